//! Finds Pilots whose pilot does not report: marks silent ones, deletes abandoned ones.
//!
//! Beside the pilot, this is the only writer of a Pilot's status: it marks a pilot as silent.

use std::{collections::HashSet, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{
    context::{ControllerContext, Error, MANAGER},
    desired_state::ManagedDatabase,
    events::EventNotice,
    object_caches::ObjectOutline,
    observe::condition,
    resources::pilot_resource,
    status::seconds,
    token_renewal::renewed_by,
};
use crate::{
    api::{
        silence::{PILOT_SILENT, PILOT_TURNED_AWAY, SILENT_AFTER},
        v1beta1::{API_VERSION, Pilot, PilotIntent, PilotPhase},
    },
    error::chain,
    runtime::Shutdown,
};

const CHECK_EVERY: Duration = Duration::from_secs(10);

/// Checks all Pilots every ten seconds until shutdown.
pub(crate) async fn watch_over(
    ctx: Arc<ControllerContext>,
    gc_after: Duration,
    shutdown: Shutdown,
) {
    loop {
        tokio::select! {
            () = sleep(CHECK_EVERY) => {}
            () = shutdown.triggered() => return,
        }
        check_all(&ctx, gc_after).await;
    }
}

/// Checks all Pilots once.
pub(super) async fn check_all(ctx: &ControllerContext, gc_after: Duration) {
    for (pilot, silence) in silent(ctx, gc_after.min(SILENT_AFTER)) {
        // Its pod may be there, and not be known.
        if ctx.stores.left_out(place(&pilot).0).is_some() {
            continue;
        }
        let done = if silence >= gc_after && abandoned(ctx, &pilot) {
            collect(ctx, &pilot).await
        } else if silence >= SILENT_AFTER && !rests(ctx, &pilot) {
            mark(ctx, &pilot).await
        } else {
            Ok(())
        };
        match done {
            Ok(()) | Err(Error::Conflict { .. } | Error::NotLeading) => {}
            Err(error) => {
                warn!(error = %chain(&error), "Failed to look after a Pilot");
                if error.is_outage() {
                    ctx.heard.api_is_away(Instant::now());
                    // The API is away, so the other Pilots cannot be written either.
                    return;
                }
            }
        }
    }
}

/// Returns the Pilots whose pilots did not report for `least` or longer, and for how long. Pilots
/// that are gone are forgotten.
fn silent(ctx: &ControllerContext, least: Duration) -> Vec<(Arc<Pilot>, Duration)> {
    let now = Instant::now();
    let (mut alive, mut found) = (HashSet::new(), Vec::new());
    ctx.stores.pilots.outlines(|pilot| {
        let silence = ctx.heard.silence(&pilot.uid, now);
        if silence >= least {
            found.push((pilot.clone(), silence));
        }
        alive.insert(pilot.uid.clone());
    });
    ctx.heard.forget_all_but(&alive);
    let read = |(pilot, silence): (ObjectOutline, Duration)| {
        Some((ctx.stores.pilots.named(&pilot.namespace, &pilot.name)?, silence))
    };
    found.into_iter().filter_map(read).collect()
}

/// Does the node rest by request: asked to stop or to leave, its pod gone, so that no pilot
/// reports?
fn rests(ctx: &ControllerContext, pilot: &Pilot) -> bool {
    let away = matches!(pilot.spec.phase, Some(PilotIntent::Stopped | PilotIntent::Decommissioned));
    let in_pod = pilot.status.instance.as_ref().is_some_and(|at| at.runtime == "Kubernetes");
    away && in_pod && !has_pod(ctx, pilot)
}

fn has_pod(ctx: &ControllerContext, pilot: &Pilot) -> bool {
    pod(ctx, pilot).is_some()
}

fn pod(ctx: &ControllerContext, pilot: &Pilot) -> Option<Arc<Pod>> {
    let (namespace, name) = place(pilot);
    ctx.stores.pods.named(namespace, name)
}

fn place(pilot: &Pilot) -> (&str, &str) {
    let meta = &pilot.metadata;
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// Why a pilot does not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SilenceCause {
    Unexplained,
    /// The token is of an earlier ServiceAccount; the kubelet has renewed it by this time.
    DeadToken(Timestamp),
}

impl SilenceCause {
    fn of(ctx: &ControllerContext, pilot: &Pilot, now: Timestamp) -> Self {
        let dead = || {
            let reference = pilot.spec.cluster_ref.as_ref()?;
            let database = of_kind(ctx, &reference.kind)?;
            let account = ctx.stores.account(database, place(pilot).0, &reference.name);
            renewed_by(&pod(ctx, pilot)?.metadata, account.as_ref(), now)
        };
        dead().map_or(Self::Unexplained, Self::DeadToken)
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Unexplained => PILOT_SILENT,
            Self::DeadToken(_) => PILOT_TURNED_AWAY,
        }
    }

    /// Returns the text that follows the time of the last report in messages.
    fn explanation(self) -> String {
        match self {
            Self::Unexplained => String::new(),
            Self::DeadToken(by) => format!(
                "; its token is of a ServiceAccount that was deleted since, and kubelet renews it \
                 by {by}"
            ),
        }
    }
}

/// Did the pilot once report, and is its Pilot not yet marked as silent for this reason?
fn unmarked(pilot: &Pilot, reason: &str) -> bool {
    let ready = condition(&pilot.status.conditions, "Ready");
    let marked = ready.is_some_and(|c| c.status == "Unknown" && c.reason == reason);
    pilot.status.last_heartbeat_time.is_some() && !marked
}

/// Returns the status of a Pilot whose pilot is silent: the last report, with another Ready and
/// phase.
fn silenced(pilot: &Pilot, silence: SilenceCause, now: Timestamp) -> serde_json::Value {
    let mut conditions = pilot.status.conditions.clone();
    let last = pilot.status.last_heartbeat_time.as_ref().map(|time| time.0.to_string());
    let ready = Condition {
        type_: "Ready".to_owned(),
        status: "Unknown".to_owned(),
        reason: silence.reason().to_owned(),
        message: format!(
            "the pilot was last heard of at {}{}",
            last.unwrap_or_default(),
            silence.explanation()
        ),
        observed_generation: pilot.metadata.generation,
        last_transition_time: Time(seconds(now)),
    };
    conditions.retain(|condition| condition.type_ != "Ready");
    conditions.insert(0, ready);
    json!({"conditions": conditions, "phase": PilotPhase::Unknown})
}

/// Marks a Pilot as silent, with the reason, unless it is marked so already.
async fn mark(ctx: &ControllerContext, pilot: &Pilot) -> Result<(), Error> {
    let now = Timestamp::now();
    let silence = SilenceCause::of(ctx, pilot, now);
    let known = [PILOT_SILENT, PILOT_TURNED_AWAY].iter().any(|reason| !unmarked(pilot, reason));
    if !unmarked(pilot, silence.reason()) || (known && !has_old_pod(ctx, pilot, now)) {
        return Ok(());
    }
    mark_as(ctx, pilot, silence, now).await
}

/// Is the pod old enough that its pilot should have reported?
fn has_old_pod(ctx: &ControllerContext, pilot: &Pilot, now: Timestamp) -> bool {
    let made = pod(ctx, pilot).and_then(|pod| pod.metadata.creation_timestamp.clone());
    made.is_some_and(|made| {
        Duration::try_from(now.duration_since(made.0)).is_ok_and(|age| age >= SILENT_AFTER)
    })
}

async fn mark_as(
    ctx: &ControllerContext,
    pilot: &Pilot,
    silence: SilenceCause,
    now: Timestamp,
) -> Result<(), Error> {
    let meta = &pilot.metadata;
    let (namespace, name) = place(pilot);
    // The pilot may report at this very moment: then the version differs, and nothing is written.
    let patch = json!({
        "metadata": {"resourceVersion": meta.resource_version},
        "status": silenced(pilot, silence, now),
    });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    ctx.write(&pilot_resource(), namespace)?
        .patch_status(name, &params, &Patch::Merge(&patch))
        .await
        .map_err(|error| Error::request("update the status of", "Pilot", name, error))?;
    warn!(namespace, name, reason = silence.reason(), "Pilot is silent");
    let regarding = ObjectReference {
        api_version: Some(API_VERSION.to_owned()),
        kind: Some("Pilot".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: meta.uid.clone(),
        ..ObjectReference::default()
    };
    let note = format!("no heartbeat for {} s{}", SILENT_AFTER.as_secs(), silence.explanation());
    let notice = EventNotice::warning(silence.reason(), note);
    ctx.events.publish_about(&regarding, &notice).await;
    Ok(())
}

/// Is the Pilot wanted by no cluster, and without a pod, as far as the caches know?
fn abandoned(ctx: &ControllerContext, pilot: &Pilot) -> bool {
    if has_pod(ctx, pilot) {
        return false;
    }
    let Some(reference) = &pilot.spec.cluster_ref else { return true };
    let Some(database) = of_kind(ctx, &reference.kind) else { return true };
    let cluster = ctx.stores.cluster(database, place(pilot).0, &reference.name);
    !cluster.is_some_and(|cluster| wants(ctx, database, &cluster, pilot))
}

/// Returns the database whose clusters are of this kind.
fn of_kind(ctx: &ControllerContext, kind: &str) -> Option<&'static ManagedDatabase> {
    ctx.stores.databases().find(|database| database.names.kind == kind)
}

/// Asks the server whether a Pilot is abandoned. A cache that misses an object proves nothing: its
/// watch may lag behind, or may not cover the object.
async fn is_abandoned(ctx: &ControllerContext, pilot: &Pilot) -> Result<bool, Error> {
    let (namespace, name) = place(pilot);
    let pods: Api<Pod> = Api::namespaced(ctx.client.clone(), namespace);
    let pod =
        pods.get_opt(name).await.map_err(|error| Error::request("get", "Pod", name, error))?;
    if pod.is_some() {
        return Ok(false);
    }
    let Some(reference) = &pilot.spec.cluster_ref else { return Ok(true) };
    let Some(database) = of_kind(ctx, &reference.kind) else { return Ok(true) };
    let name = &reference.name;
    let found = ctx.read(&database.resource(), namespace).get_opt(name).await;
    let found = found.map_err(|error| Error::request("get", database.names.kind, name, error))?;
    Ok(!found.is_some_and(|cluster| wants(ctx, database, &cluster, pilot)))
}

/// Does the cluster want a node of the Pilot's name, or its data? A cluster that cannot be read
/// counts as wanting it.
fn wants(
    ctx: &ControllerContext,
    database: &ManagedDatabase,
    cluster: &DynamicObject,
    pilot: &Pilot,
) -> bool {
    let left = condition(&pilot.status.conditions, "Decommissioned")
        .is_some_and(|condition| condition.status == "True");
    if pilot.status.identity.is_some() && !left {
        return true;
    }
    let Ok(desired) = (database.desired)(cluster, &ctx.settings, None) else { return true };
    let name = place(pilot).1;
    desired.pools.iter().any(|pool| {
        let ordinal = name.strip_prefix(pool.set.as_str()).and_then(|rest| rest.strip_prefix('-'));
        ordinal.and_then(|o| o.parse::<u32>().ok()).is_some_and(|o| o < pool.replicas)
    })
}

async fn collect(ctx: &ControllerContext, pilot: &Pilot) -> Result<(), Error> {
    if !is_abandoned(ctx, pilot).await? {
        return Ok(());
    }
    let meta = &pilot.metadata;
    let (namespace, name) = place(pilot);
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
        }),
        ..DeleteParams::default()
    };
    match ctx.write(&pilot_resource(), namespace)?.delete(name, &params).await {
        Ok(_) => info!(namespace, name, "Collected abandoned Pilot"),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(Error::request("delete", "Pilot", name, error)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beating(at: i64) -> Pilot {
        let mut pilot = Pilot::default();
        pilot.metadata.uid = Some("u".into());
        pilot.status.last_heartbeat_time = Some(Time(Timestamp::from_second(at).unwrap()));
        pilot
    }

    #[test]
    fn a_silent_pilot_is_marked_once_and_keeps_its_other_conditions() {
        let mut pilot = beating(0);
        assert!(unmarked(&pilot, PILOT_SILENT));
        assert!(!unmarked(&Pilot::default(), PILOT_SILENT));
        let started = Condition {
            type_: "Started".into(),
            status: "True".into(),
            reason: "ExampleStarted".into(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        };
        pilot.status.conditions = vec![started.clone()];
        let status = silenced(&pilot, SilenceCause::Unexplained, Timestamp::UNIX_EPOCH);
        pilot.status.conditions = serde_json::from_value(status["conditions"].clone()).unwrap();
        assert_eq!(pilot.status.conditions[1], started);
        assert_eq!(status["phase"], "Unknown");
        assert!(!unmarked(&pilot, PILOT_SILENT));
        assert!(unmarked(&pilot, PILOT_TURNED_AWAY), "the reason is known later");
    }
}
