//! Reasons why a node has no pod, or its pod no volume, that only Events of Kubernetes show.
//!
//! Owns when events are read: for a node that has been unavailable for 30 s, and again each 30 s.
//! The texts of events are added to the facts as they are. A text that a newer event contradicts is
//! not reported.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::{api::events::v1::Event, jiff::Timestamp};
use kube::{Api, Client, api::ListParams};
use tokio::time::Instant;
use tracing::debug;

use super::{
    desired_state::DesiredCluster,
    observe::{Member, ObservedCluster, ObservedPool, PATIENCE, PodFailure},
    queue::ClusterKey,
};
use crate::{api::names, error::chain};

/// How long a node may be away before events are read for it, and the pause between two readings.
const PAUSE: Duration = Duration::from_secs(30);

/// Most events of one object that are read.
const MOST: u32 = 500;

/// Reasons of the kubelet's and of the attach controller's events about volumes of a pod.
const UNMOUNTED: [&str; 3] = ["FailedAttachVolume", "FailedMapVolume", "FailedMount"];

/// Reasons of events that follow when all volumes of a pod are mounted.
const MOUNTED: [&str; 4] = ["Created", "Pulled", "Pulling", "Started"];

/// Unavailable nodes, and what events report about them.
#[derive(Clone, Default)]
pub(crate) struct EventCauses(Arc<Mutex<HashMap<ClusterKey, BTreeMap<String, AwayNode>>>>);

/// A node without a pod, or with a pod whose database was never started.
#[derive(Clone, Debug)]
struct AwayNode {
    /// Uid of its pod, if it has one.
    pod: Option<String>,
    /// When this process first saw the node away.
    since: Instant,
    read: Option<Instant>,
    cause: Option<FoundCause>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FoundCause {
    reason: &'static str,
    message: String,
    /// When this process first read of this reason.
    since: Instant,
}

impl EventCauses {
    /// Reads the events of nodes that have been away for long enough. After a failed reading stands
    /// what was read before.
    pub(crate) async fn read_events(
        &self,
        client: &Client,
        desired: &DesiredCluster,
        observed: &ObservedCluster,
    ) {
        let now = Instant::now();
        let mut nodes = self.unavailable_nodes(desired, observed, now);
        let api: Api<Event> = Api::namespaced(client.clone(), &desired.namespace);
        let mut set_events: HashMap<String, Vec<Event>> = HashMap::new();
        for pool in &observed.pools {
            let set = pool.set.as_ref().map(|set| set.uid.clone()).unwrap_or_default();
            for (ordinal, _) in pool.nodes() {
                let name = names::pilot_name(&pool.set_name, ordinal);
                let Some(node) = nodes.get_mut(&name).filter(|node| node.is_due(now)) else {
                    continue;
                };
                node.read = Some(now);
                if let Some(pod) = &node.pod {
                    if let Some(events) = list_events(&api, pod).await {
                        node.update_cause(mount_failure(&name, &events));
                    }
                    continue;
                }
                if !set_events.contains_key(&set)
                    && let Some(events) = list_events(&api, &set).await
                {
                    set_events.insert(set.clone(), events);
                }
                if let Some(events) = set_events.get(&set) {
                    node.update_cause(refusal_cause(&name, events));
                }
            }
        }
        self.store_nodes(desired.key(), nodes);
    }

    /// Adds to the facts what was read. Facts of the caches and of the server get the same.
    pub(crate) fn apply_causes(&self, desired: &DesiredCluster, observed: &mut ObservedCluster) {
        let nodes = self.lock().get(&desired.key()).cloned().unwrap_or_default();
        let now = Instant::now();
        for pool in &mut observed.pools {
            for ordinal in 0..pool.replicas() {
                let name = names::pilot_name(&pool.set_name, ordinal);
                let Some(node) = nodes.get(&name) else { continue };
                let Some(FoundCause { reason, message, since }) = node.cause.clone() else {
                    continue;
                };
                let is_lasting = now.duration_since(since) >= PATIENCE;
                let failure = PodFailure { reason, message, lasts: is_lasting };
                let new_member = || Member { name: name.clone(), ..Member::default() };
                set_failure(pool.members.entry(ordinal).or_insert_with(new_member), node, failure);
            }
        }
    }

    /// Forgets a cluster that is gone.
    pub(crate) fn remove_cluster(&self, key: &ClusterKey) {
        self.lock().remove(key);
    }

    /// Returns the nodes that are away, with what is known of those that were away before.
    fn unavailable_nodes(
        &self,
        desired: &DesiredCluster,
        observed: &ObservedCluster,
        now: Instant,
    ) -> BTreeMap<String, AwayNode> {
        let previous_nodes = self.lock().get(&desired.key()).cloned().unwrap_or_default();
        let mut nodes = BTreeMap::new();
        for (pool, ordinal, member) in observed.pools.iter().flat_map(pool_members) {
            let pod = member.and_then(|member| member.pod.as_ref());
            if pod.is_some_and(|pod| pod.ready || pod.started || pod.terminating) {
                continue;
            }
            let name = names::pilot_name(&pool.set_name, ordinal);
            let pod = pod.map(|pod| pod.uid.clone());
            let new_node = || AwayNode { pod: pod.clone(), since: now, read: None, cause: None };
            let node = previous_nodes.get(&name).filter(|node| node.pod == pod).cloned();
            nodes.insert(name, node.unwrap_or_else(new_node));
        }
        nodes
    }

    fn store_nodes(&self, key: ClusterKey, nodes: BTreeMap<String, AwayNode>) {
        if nodes.is_empty() {
            self.lock().remove(&key);
        } else {
            self.lock().insert(key, nodes);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ClusterKey, BTreeMap<String, AwayNode>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AwayNode {
    fn is_due(&self, now: Instant) -> bool {
        let has_paused = self.read.is_none_or(|read_at| now.duration_since(read_at) >= PAUSE);
        has_paused && now.duration_since(self.since) >= PAUSE
    }

    /// Takes what was read; a reason that stands keeps its time.
    fn update_cause(&mut self, cause: Option<FoundCause>) {
        let previous = self.cause.take();
        self.cause = cause.map(|cause| match previous {
            Some(previous) if previous.reason == cause.reason => {
                FoundCause { since: previous.since, ..cause }
            }
            _ => cause,
        });
    }
}

fn pool_members(
    pool: &ObservedPool,
) -> impl Iterator<Item = (&ObservedPool, u32, Option<&Member>)> {
    pool.nodes().map(move |(ordinal, member)| (pool, ordinal, member))
}

/// Adds a cause to a node, unless the node is not as it was when the cause was read.
fn set_failure(member: &mut Member, node: &AwayNode, failure: PodFailure) {
    match &mut member.pod {
        None if node.pod.is_none() => member.refused = Some(failure),
        Some(pod) if node.pod.as_ref() == Some(&pod.uid) && !pod.started => {
            let current_reason = pod.trouble.as_ref().map(|trouble| trouble.reason);
            if matches!(current_reason, None | Some("ProgressDeadlineExceeded")) {
                pod.trouble = Some(failure);
            }
        }
        _ => {}
    }
}

async fn list_events(api: &Api<Event>, uid: &str) -> Option<Vec<Event>> {
    if uid.is_empty() {
        return Some(Vec::new());
    }
    let params = ListParams::default().fields(&format!("regarding.uid={uid}")).limit(MOST);
    match api.list(&params).await {
        Ok(list) => Some(list.items),
        Err(error) => {
            debug!(uid, error = %chain(&error), "Failed to read events");
            None
        }
    }
}

/// Returns the refusal of the pod `name`, or of its claim, by the events of its StatefulSet.
fn refusal_cause(name: &str, events: &[Event]) -> Option<FoundCause> {
    let subject = format!("Pod {name} in StatefulSet ");
    let note = |event: &Event| event.note.clone().unwrap_or_default();
    let of_pod = |event: &&Event| note(event).contains(&subject);
    let has_reason = |event: &&Event, reason: &str| event.reason.as_deref() == Some(reason);
    let failures = events.iter().filter(|event| of_pod(event) && has_reason(event, "FailedCreate"));
    let newest = failures.max_by_key(|event| event_time(event))?;
    // A claim is made before its pod, so the success of a claim contradicts nothing.
    let is_success = |event: &&Event| {
        let succeeded =
            has_reason(event, "SuccessfulCreate") || has_reason(event, "SuccessfulDelete");
        of_pod(event) && succeeded && !note(event).contains(" Claim ")
    };
    if events.iter().filter(is_success).any(|event| event_time(event) > event_time(newest)) {
        return None;
    }
    let note = note(newest);
    let words = note.split_once("failed error: ").map_or(note.as_str(), |(_, words)| words);
    let quota = words.contains("exceeded quota");
    Some(FoundCause {
        reason: if quota { "QuotaExceeded" } else { "PodRefused" },
        message: format!("pod {name} is not created: {words}"),
        since: Instant::now(),
    })
}

/// Returns why a volume of the pod `name` is not mounted, by the events of that pod.
fn mount_failure(name: &str, events: &[Event]) -> Option<FoundCause> {
    let reason = |event: &Event| event.reason.clone().unwrap_or_default();
    let failures = events.iter().filter(|event| UNMOUNTED.contains(&&*reason(event)));
    let newest = failures.max_by_key(|event| event_time(event))?;
    let newest_reason = reason(newest);
    let is_contradiction = |event: &&Event| {
        let reason = reason(event);
        MOUNTED.contains(&&*reason)
            || (newest_reason == "FailedAttachVolume" && reason == "SuccessfulAttachVolume")
    };
    if events.iter().filter(is_contradiction).any(|event| event_time(event) > event_time(newest)) {
        return None;
    }
    let words = newest.note.as_deref().unwrap_or_default();
    let message = format!("{name}: {newest_reason}: {words}");
    Some(FoundCause { reason: "VolumeNotMounted", message, since: Instant::now() })
}

/// Returns when an event happened last.
fn event_time(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().map(|series| series.last_observed_time.0);
    let last_time = event.deprecated_last_timestamp.as_ref().map(|time| time.0);
    let first_time = event.event_time.as_ref().map(|time| time.0);
    let created_at = event.metadata.creation_timestamp.as_ref().map(|time| time.0);
    series.or(last_time).or(first_time).or(created_at)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(reason: &str, second: u32, note: &str) -> Event {
        serde_json::from_value(json!({
            "metadata": {"name": "x"}, "reason": reason, "note": note, "eventTime": null,
            "deprecatedLastTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
        }))
        .unwrap()
    }

    const QUOTA: &str = "create Pod db-1 in StatefulSet db failed error: pods \"db-1\" is \
                         forbidden: exceeded quota: small, requested: pods=1, used: pods=1";

    #[test]
    fn a_refusal_is_told_in_the_servers_words_and_only_of_its_pod() {
        let events = [event("FailedCreate", 5, QUOTA)];
        let cause = refusal_cause("db-1", &events).unwrap();
        assert_eq!(cause.reason, "QuotaExceeded");
        let message = "pod db-1 is not created: pods \"db-1\" is forbidden: exceeded quota: small, \
                       requested: pods=1, used: pods=1";
        assert_eq!(cause.message, message);
        assert_eq!(refusal_cause("db-10", &events), None);
        let policy = "create Pod db-1 in StatefulSet db failed error: pods \"db-1\" is forbidden: \
                      violates PodSecurity \"restricted:latest\"";
        assert_eq!(
            refusal_cause("db-1", &[event("FailedCreate", 5, policy)]).unwrap().reason,
            "PodRefused"
        );
    }

    #[test]
    fn a_refusal_of_a_claim_is_one_of_its_pod() {
        let claim = "create Claim data-db-1 for Pod db-1 in StatefulSet db failed error: \
                     persistentvolumeclaims \"data-db-1\" is forbidden: exceeded quota: small";
        assert_eq!(
            refusal_cause("db-1", &[event("FailedCreate", 5, claim)]).unwrap().reason,
            "QuotaExceeded"
        );
    }

    #[test]
    fn the_newest_event_counts() {
        let made = "create Pod db-1 in StatefulSet db successful";
        let claim = "create Claim data-db-1 Pod db-1 in StatefulSet db success";
        let failed = || event("FailedCreate", 5, QUOTA);
        let with = |other| refusal_cause("db-1", &[failed(), other]).is_some();
        assert!(!with(event("SuccessfulCreate", 6, made)), "the pod existed since");
        assert!(with(event("SuccessfulCreate", 4, made)));
        assert!(with(event("SuccessfulCreate", 6, claim)), "its claim is no pod");
        let newer = event("FailedCreate", 9, "create Pod db-1 in StatefulSet db failed error: no");
        assert_eq!(
            refusal_cause("db-1", &[newer, failed()]).unwrap().message,
            "pod db-1 is not created: no"
        );
    }

    #[test]
    fn a_volume_that_is_mounted_by_now_is_not_told() {
        let failed = event("FailedMount", 5, "secret \"keys\" not found");
        let cause = mount_failure("db-1", std::slice::from_ref(&failed)).unwrap();
        assert_eq!(cause.message, "db-1: FailedMount: secret \"keys\" not found");
        let attached = event("SuccessfulAttachVolume", 6, "");
        assert!(mount_failure("db-1", &[failed.clone(), attached.clone()]).is_some());
        assert!(mount_failure("db-1", &[failed, event("Pulled", 6, "")]).is_none());
        let detached = event("FailedAttachVolume", 5, "Multi-Attach error");
        assert!(mount_failure("db-1", &[detached, attached]).is_none());
    }
}
