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
    observe::find_condition,
    resources::pilot_resource,
    status::truncate_to_seconds,
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
    for (pilot, silence) in find_silent_pilots(ctx, gc_after.min(SILENT_AFTER)) {
        // Its pod may be there, and not be known.
        if ctx.stores.left_out(namespace_and_name(&pilot).0).is_some() {
            continue;
        }
        let result = if silence >= gc_after && is_abandoned_in_caches(ctx, &pilot) {
            collect_pilot(ctx, &pilot).await
        } else if silence >= SILENT_AFTER && !is_resting(ctx, &pilot) {
            mark_silent(ctx, &pilot).await
        } else {
            Ok(())
        };
        match result {
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

/// Returns the Pilots whose pilots did not report for `min_silence` or longer, and for how long.
/// Pilots that are gone are forgotten.
fn find_silent_pilots(
    ctx: &ControllerContext,
    min_silence: Duration,
) -> Vec<(Arc<Pilot>, Duration)> {
    let now = Instant::now();
    let (mut alive_uids, mut silent_pilots) = (HashSet::new(), Vec::new());
    ctx.stores.pilots.for_each_outline(|pilot| {
        let silence = ctx.heard.silence_duration(&pilot.uid, now);
        if silence >= min_silence {
            silent_pilots.push((pilot.clone(), silence));
        }
        alive_uids.insert(pilot.uid.clone());
    });
    ctx.heard.forget_all_but(&alive_uids);
    let read_pilot = |(pilot, silence): (ObjectOutline, Duration)| {
        Some((ctx.stores.pilots.get_object(&pilot.namespace, &pilot.name)?, silence))
    };
    silent_pilots.into_iter().filter_map(read_pilot).collect()
}

/// Returns whether the node rests by request: it was asked to stop or to leave, and its pod is
/// gone, so that no pilot reports.
fn is_resting(ctx: &ControllerContext, pilot: &Pilot) -> bool {
    let is_stopped =
        matches!(pilot.spec.phase, Some(PilotIntent::Stopped | PilotIntent::Decommissioned));
    let is_in_pod =
        pilot.status.instance.as_ref().is_some_and(|instance| instance.runtime == "Kubernetes");
    is_stopped && is_in_pod && !has_pod(ctx, pilot)
}

fn has_pod(ctx: &ControllerContext, pilot: &Pilot) -> bool {
    find_pod(ctx, pilot).is_some()
}

fn find_pod(ctx: &ControllerContext, pilot: &Pilot) -> Option<Arc<Pod>> {
    let (namespace, name) = namespace_and_name(pilot);
    ctx.stores.pods.get_object(namespace, name)
}

fn namespace_and_name(pilot: &Pilot) -> (&str, &str) {
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
    fn for_pilot(ctx: &ControllerContext, pilot: &Pilot, now: Timestamp) -> Self {
        let dead_token = || {
            let reference = pilot.spec.cluster_ref.as_ref()?;
            let database = find_database(ctx, &reference.kind)?;
            let account =
                ctx.stores.service_account(database, namespace_and_name(pilot).0, &reference.name);
            renewed_by(&find_pod(ctx, pilot)?.metadata, account.as_ref(), now)
        };
        dead_token().map_or(Self::Unexplained, Self::DeadToken)
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

/// Returns whether the pilot once reported, and its Pilot is not yet marked as silent for this
/// reason.
fn is_unmarked(pilot: &Pilot, reason: &str) -> bool {
    let ready_condition = find_condition(&pilot.status.conditions, "Ready");
    let is_marked = ready_condition.is_some_and(|c| c.status == "Unknown" && c.reason == reason);
    pilot.status.last_heartbeat_time.is_some() && !is_marked
}

/// Returns the status of a Pilot whose pilot is silent: the last report, with another Ready and
/// phase.
fn silent_status(pilot: &Pilot, silence: SilenceCause, now: Timestamp) -> serde_json::Value {
    let mut conditions = pilot.status.conditions.clone();
    let last_heartbeat = pilot.status.last_heartbeat_time.as_ref().map(|time| time.0.to_string());
    let ready_condition = Condition {
        type_: "Ready".to_owned(),
        status: "Unknown".to_owned(),
        reason: silence.reason().to_owned(),
        message: format!(
            "the pilot was last heard of at {}{}",
            last_heartbeat.unwrap_or_default(),
            silence.explanation()
        ),
        observed_generation: pilot.metadata.generation,
        last_transition_time: Time(truncate_to_seconds(now)),
    };
    conditions.retain(|condition| condition.type_ != "Ready");
    conditions.insert(0, ready_condition);
    json!({"conditions": conditions, "phase": PilotPhase::Unknown})
}

/// Marks a Pilot as silent, with the reason, unless it is marked so already.
async fn mark_silent(ctx: &ControllerContext, pilot: &Pilot) -> Result<(), Error> {
    let now = Timestamp::now();
    let silence = SilenceCause::for_pilot(ctx, pilot, now);
    let is_already_marked =
        [PILOT_SILENT, PILOT_TURNED_AWAY].iter().any(|reason| !is_unmarked(pilot, reason));
    if !is_unmarked(pilot, silence.reason()) || (is_already_marked && !has_old_pod(ctx, pilot, now))
    {
        return Ok(());
    }
    mark_as(ctx, pilot, silence, now).await
}

/// Returns whether the pod is old enough that its pilot should have reported.
fn has_old_pod(ctx: &ControllerContext, pilot: &Pilot, now: Timestamp) -> bool {
    let created_at = find_pod(ctx, pilot).and_then(|pod| pod.metadata.creation_timestamp.clone());
    created_at.is_some_and(|created_at| {
        Duration::try_from(now.duration_since(created_at.0)).is_ok_and(|age| age >= SILENT_AFTER)
    })
}

async fn mark_as(
    ctx: &ControllerContext,
    pilot: &Pilot,
    silence: SilenceCause,
    now: Timestamp,
) -> Result<(), Error> {
    let meta = &pilot.metadata;
    let (namespace, name) = namespace_and_name(pilot);
    // The pilot may report at this very moment: then the version differs, and nothing is written.
    let patch = json!({
        "metadata": {"resourceVersion": meta.resource_version},
        "status": silent_status(pilot, silence, now),
    });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    ctx.write_api(&pilot_resource(), namespace)?
        .patch_status(name, &params, &Patch::Merge(&patch))
        .await
        .map_err(|error| Error::from_request("update the status of", "Pilot", name, error))?;
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

/// Returns whether no cluster needs the Pilot, and it has no pod, as far as the caches know.
fn is_abandoned_in_caches(ctx: &ControllerContext, pilot: &Pilot) -> bool {
    if has_pod(ctx, pilot) {
        return false;
    }
    let Some(reference) = &pilot.spec.cluster_ref else { return true };
    let Some(database) = find_database(ctx, &reference.kind) else { return true };
    let cluster = ctx.stores.cluster(database, namespace_and_name(pilot).0, &reference.name);
    !cluster.is_some_and(|cluster| is_desired(ctx, database, &cluster, pilot))
}

/// Returns the database whose clusters are of this kind.
fn find_database(ctx: &ControllerContext, kind: &str) -> Option<&'static ManagedDatabase> {
    ctx.stores.databases().find(|database| database.names.kind == kind)
}

/// Asks the server whether a Pilot is abandoned. A cache that misses an object proves nothing: its
/// watch may lag behind, or may not cover the object.
async fn is_abandoned(ctx: &ControllerContext, pilot: &Pilot) -> Result<bool, Error> {
    let (namespace, name) = namespace_and_name(pilot);
    let pods: Api<Pod> = Api::namespaced(ctx.client.clone(), namespace);
    let pod =
        pods.get_opt(name).await.map_err(|error| Error::from_request("get", "Pod", name, error))?;
    if pod.is_some() {
        return Ok(false);
    }
    let Some(reference) = &pilot.spec.cluster_ref else { return Ok(true) };
    let Some(database) = find_database(ctx, &reference.kind) else { return Ok(true) };
    let name = &reference.name;
    let result = ctx.read_api(&database.api_resource(), namespace).get_opt(name).await;
    let cluster =
        result.map_err(|error| Error::from_request("get", database.names.kind, name, error))?;
    Ok(!cluster.is_some_and(|cluster| is_desired(ctx, database, &cluster, pilot)))
}

/// Returns whether the cluster needs a node of the Pilot's name, or its data. A cluster that cannot
/// be read counts as needing it.
fn is_desired(
    ctx: &ControllerContext,
    database: &ManagedDatabase,
    cluster: &DynamicObject,
    pilot: &Pilot,
) -> bool {
    let is_decommissioned = find_condition(&pilot.status.conditions, "Decommissioned")
        .is_some_and(|condition| condition.status == "True");
    if pilot.status.identity.is_some() && !is_decommissioned {
        return true;
    }
    let Ok(desired) = (database.desired)(cluster, &ctx.settings, None) else { return true };
    let name = namespace_and_name(pilot).1;
    desired.pools.iter().any(|pool| {
        let ordinal = name.strip_prefix(pool.set.as_str()).and_then(|rest| rest.strip_prefix('-'));
        ordinal.and_then(|o| o.parse::<u32>().ok()).is_some_and(|o| o < pool.replicas)
    })
}

async fn collect_pilot(ctx: &ControllerContext, pilot: &Pilot) -> Result<(), Error> {
    if !is_abandoned(ctx, pilot).await? {
        return Ok(());
    }
    let meta = &pilot.metadata;
    let (namespace, name) = namespace_and_name(pilot);
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
        }),
        ..DeleteParams::default()
    };
    match ctx.write_api(&pilot_resource(), namespace)?.delete(name, &params).await {
        Ok(_) => info!(namespace, name, "Collected abandoned Pilot"),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(Error::from_request("delete", "Pilot", name, error)),
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
        assert!(is_unmarked(&pilot, PILOT_SILENT));
        assert!(!is_unmarked(&Pilot::default(), PILOT_SILENT));
        let started = Condition {
            type_: "Started".into(),
            status: "True".into(),
            reason: "ExampleStarted".into(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        };
        pilot.status.conditions = vec![started.clone()];
        let status = silent_status(&pilot, SilenceCause::Unexplained, Timestamp::UNIX_EPOCH);
        pilot.status.conditions = serde_json::from_value(status["conditions"].clone()).unwrap();
        assert_eq!(pilot.status.conditions[1], started);
        assert_eq!(status["phase"], "Unknown");
        assert!(!is_unmarked(&pilot, PILOT_SILENT));
        assert!(is_unmarked(&pilot, PILOT_TURNED_AWAY), "the reason is known later");
    }
}
