//! Pilots that nobody speaks for: silent ones are marked, abandoned ones collected.
//!
//! Owns the clock of heartbeats. The one writer of a Pilot's status beside its pilot, and only
//! to say that the pilot is silent.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::{
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    runtime::reflector::ObjectRef,
};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{
    build::pilot_resource,
    context::{Context, Error, MANAGER},
    events::News,
    flavour::Cluster,
    observe::condition,
    status::seconds,
};
use crate::{
    api::v1beta1::{API_VERSION, Pilot, PilotPhase},
    error::chain,
    runtime::Shutdown,
};

/// Three heartbeats.
const SILENT_AFTER: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// When each Pilot's heartbeat was last seen to move, by our own clock: a pilot whose clock is
/// wrong is not silent.
#[derive(Default)]
struct Heard(HashMap<String, (Option<Timestamp>, Instant)>);

impl Heard {
    /// How long the heartbeat of this Pilot has not moved.
    fn silence(&mut self, pilot: &Pilot, now: Instant) -> Duration {
        let uid = pilot.metadata.uid.clone().unwrap_or_default();
        let beat = pilot.status.last_heartbeat_time.as_ref().map(|time| time.0);
        let entry = self.0.entry(uid).or_insert((beat, now));
        if entry.0 != beat {
            *entry = (beat, now);
        }
        now.duration_since(entry.1)
    }

    fn forget_all_but(&mut self, pilots: &[Arc<Pilot>]) {
        let alive: HashSet<_> =
            pilots.iter().filter_map(|pilot| pilot.metadata.uid.as_deref()).collect();
        self.0.retain(|uid, _| alive.contains(uid.as_str()));
    }
}

/// Looks at all Pilots every ten seconds until shutdown.
pub(crate) async fn watch_over(ctx: Arc<Context>, gc_after: Duration, shutdown: Shutdown) {
    let mut heard = Heard::default();
    loop {
        tokio::select! {
            () = sleep(LOOK_EVERY) => {}
            () = shutdown.triggered() => return,
        }
        let pilots = ctx.stores.pilots.state();
        heard.forget_all_but(&pilots);
        for pilot in pilots {
            let silence = heard.silence(&pilot, Instant::now());
            let done = if silence >= gc_after && abandoned(&ctx, &pilot) {
                collect(&ctx, &pilot).await
            } else if silence >= SILENT_AFTER && speaks(&pilot) {
                mark_silent(&ctx, &pilot).await
            } else {
                Ok(())
            };
            match done {
                Ok(()) | Err(Error::Conflict { .. } | Error::NotLeading) => {}
                Err(error) => warn!(error = %chain(&error), "Failed to look after a Pilot"),
            }
        }
    }
}

/// Did a pilot once report, and has nobody said yet that it is silent?
fn speaks(pilot: &Pilot) -> bool {
    let ready = condition(&pilot.status.conditions, "Ready");
    let marked = ready.is_some_and(|c| c.status == "Unknown" && c.reason == "PilotSilent");
    pilot.status.last_heartbeat_time.is_some() && !marked
}

/// The status of a Pilot whose pilot is silent: all that it last said, but ready and phase.
fn silenced(pilot: &Pilot, now: Timestamp) -> serde_json::Value {
    let mut conditions = pilot.status.conditions.clone();
    let last = pilot.status.last_heartbeat_time.as_ref().map(|time| time.0.to_string());
    let ready = Condition {
        type_: "Ready".to_owned(),
        status: "Unknown".to_owned(),
        reason: "PilotSilent".to_owned(),
        message: format!("the pilot was last heard of at {}", last.unwrap_or_default()),
        observed_generation: pilot.metadata.generation,
        last_transition_time: Time(seconds(now)),
    };
    conditions.retain(|condition| condition.type_ != "Ready");
    conditions.insert(0, ready);
    json!({"conditions": conditions, "phase": PilotPhase::Unknown})
}

async fn mark_silent(ctx: &Context, pilot: &Pilot) -> Result<(), Error> {
    let meta = &pilot.metadata;
    let name = meta.name.as_deref().unwrap_or_default();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    // Its pilot may speak at this very moment: then the version differs, and nothing is written.
    let patch = json!({
        "metadata": {"resourceVersion": meta.resource_version},
        "status": silenced(pilot, Timestamp::now()),
    });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    ctx.write(&pilot_resource(), namespace)?
        .patch_status(name, &params, &Patch::Merge(&patch))
        .await
        .map_err(|error| Error::request("update the status of", "Pilot", name, error))?;
    warn!(namespace, name, "Pilot is silent");
    let regarding = ObjectReference {
        api_version: Some(API_VERSION.to_owned()),
        kind: Some("Pilot".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: meta.uid.clone(),
        ..ObjectReference::default()
    };
    let news = News::warning("PilotSilent", "no heartbeat for 90 s");
    ctx.events.publish(&regarding, &news).await;
    Ok(())
}

/// No cluster wants it, and nothing of its name runs.
fn abandoned(ctx: &Context, pilot: &Pilot) -> bool {
    let meta = &pilot.metadata;
    let name = meta.name.as_deref().unwrap_or_default();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    if ctx.stores.pods.get(&ObjectRef::new(name).within(namespace)).is_some() {
        return false;
    }
    let Some(reference) = &pilot.spec.cluster_ref else { return true };
    let stores = &ctx.stores;
    let wants = match reference.kind.as_str() {
        "CassandraCluster" => wants(ctx, &stores.cassandra, &reference.name, pilot),
        "ElasticsearchCluster" => wants(ctx, &stores.elasticsearch, &reference.name, pilot),
        _ => false,
    };
    !wants
}

/// Does a cluster want a node of this name, or its data?
fn wants<K>(
    ctx: &Context,
    clusters: &kube::runtime::reflector::Store<K>,
    cluster: &str,
    pilot: &Pilot,
) -> bool
where
    K: Cluster,
{
    let namespace = pilot.metadata.namespace.as_deref().unwrap_or_default();
    let Some(cluster) = clusters.get(&ObjectRef::new(cluster).within(namespace)) else {
        return false;
    };
    let left = condition(&pilot.status.conditions, "Decommissioned")
        .is_some_and(|condition| condition.status == "True");
    if pilot.status.identity.is_some() && !left {
        return true;
    }
    let desired = cluster.desired(&ctx.settings);
    let name = pilot.metadata.name.as_deref().unwrap_or_default();
    desired.pools.iter().any(|pool| {
        let ordinal = name.strip_prefix(pool.set.as_str()).and_then(|rest| rest.strip_prefix('-'));
        ordinal.and_then(|o| o.parse::<u32>().ok()).is_some_and(|o| o < pool.replicas)
    })
}

async fn collect(ctx: &Context, pilot: &Pilot) -> Result<(), Error> {
    let meta = &pilot.metadata;
    let name = meta.name.as_deref().unwrap_or_default();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
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

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_the_last_heartbeat_seen_to_move_whatever_its_clock_says() {
        let mut heard = Heard::default();
        assert_eq!(heard.silence(&beating(0), Instant::now()), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(heard.silence(&beating(0), Instant::now()), Duration::from_secs(60));
        // An hour in the past, but it moved.
        assert_eq!(heard.silence(&beating(1), Instant::now()), Duration::ZERO);
    }

    #[test]
    fn a_silent_pilot_is_marked_once_and_keeps_its_other_conditions() {
        let mut pilot = beating(0);
        assert!(speaks(&pilot));
        assert!(!speaks(&Pilot::default()));
        let started = Condition {
            type_: "Started".into(),
            status: "True".into(),
            reason: "CassandraStarted".into(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        };
        pilot.status.conditions = vec![started.clone()];
        let status = silenced(&pilot, Timestamp::UNIX_EPOCH);
        pilot.status.conditions = serde_json::from_value(status["conditions"].clone()).unwrap();
        assert_eq!(pilot.status.conditions[1], started);
        assert_eq!(status["phase"], "Unknown");
        assert!(!speaks(&pilot));
    }
}
