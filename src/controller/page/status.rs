//! The data of the status page, made from a snapshot: pure.
//!
//! Owns which parts of a cluster's picture are shown: names, states, and the messages of
//! conditions. No setting of a spec and no line of a log is shown, because those may be secret.

use std::collections::{HashMap, HashSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp, Unit};
use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value;

use crate::{
    api::{
        containership::{ClusterUpgrade, UpgradePhase},
        object_picture::{BlockerPicture, ConditionPicture, OperationPicture},
        picture::{ClusterPicture, ClusterTrouble, Urgency, exit_reason},
    },
    controller::fleet_snapshot::{CachedCluster, CachedPilot, FleetSnapshot},
    runtime::build_info,
};

/// The body of `/status.json`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusPage {
    time: Timestamp,
    version: &'static str,
    leads: bool,
    waiting_for: Vec<String>,
    /// Upgrades and reboots of machines, most urgent first.
    runs: Vec<MachineRun>,
    /// Clusters, most urgent first.
    clusters: Vec<ClusterSummary>,
    /// Nodes that belong to no cluster.
    loose: Vec<NodeSummary>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClusterSummary {
    kind: String,
    namespace: String,
    name: String,
    urgency: Urgency,
    /// One sentence about the cluster.
    summary: String,
    /// The reason in one word, as in a condition.
    reason: String,
    since: Option<Timestamp>,
    phase: String,
    health: String,
    version: String,
    /// The version that the spec asks for, while another one runs; else empty.
    wanted_version: String,
    ready_nodes: i64,
    wanted_nodes: i64,
    operation: Option<OperationSummary>,
    last_operation: Option<LastOperation>,
    /// Other conditions that are not as they should be.
    notes: Vec<StatusNote>,
    nodes: Vec<NodeSummary>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MachineRun {
    namespace: String,
    name: String,
    urgency: Urgency,
    /// `kubernetes` or `reboot`.
    #[serde(rename = "type")]
    type_: String,
    target: String,
    phase: String,
    /// Machines that are done, of all: `3/7`.
    progress: String,
    /// When it began, or when it ended.
    since: Option<Timestamp>,
    message: String,
    waits_for: Vec<MachineBlocker>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MachineBlocker {
    machine: String,
    cluster: String,
    node: String,
    predicate: String,
    message: String,
    since: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OperationSummary {
    #[serde(rename = "type")]
    type_: String,
    phase: String,
    since: Option<Timestamp>,
    message: String,
    steps: Vec<StepSummary>,
    blocked_by: Vec<BlockerSummary>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LastOperation {
    #[serde(rename = "type")]
    type_: String,
    phase: String,
    at: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StepSummary {
    name: String,
    node: String,
    phase: String,
    message: String,
    since: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BlockerSummary {
    predicate: String,
    message: String,
    hint: String,
    since: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusNote {
    /// The condition that says so; empty where none does.
    condition: String,
    reason: String,
    message: String,
    since: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeSummary {
    namespace: String,
    name: String,
    pool: String,
    urgency: Urgency,
    phase: String,
    /// Why the node does not serve.
    message: String,
    version: String,
    machine: String,
    restarts: i32,
    /// When the node's pilot reported last, by our own clock.
    heard: Option<Timestamp>,
    used_bytes: i64,
    capacity_bytes: i64,
    /// Progress of a decommission, while one is under way.
    leaving: Option<DecommissionProgress>,
    /// How the database's last process ended; absent after exit code 0.
    last_exit: Option<StatusNote>,
    /// Why the node may not stop now.
    blockers: Vec<BlockerSummary>,
    notes: Vec<StatusNote>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DecommissionProgress {
    percent: Option<i32>,
    message: String,
    irreversible: bool,
}

/// Limit of the steps of an operation that are shown; a status holds fifty at most.
const STEPS: usize = 12;

/// Makes the page's data from what the caches hold.
pub(super) fn status_page(snapshot: &FleetSnapshot) -> StatusPage {
    let FleetSnapshot { now, leads, waiting_for, clusters, pilots, runs } = snapshot;
    let mut pilots_by_cluster: HashMap<[&str; 3], Vec<&CachedPilot>> = HashMap::new();
    let mut loose_pilots = Vec::new();
    let cluster_keys: HashSet<[&str; 3]> = clusters.iter().map(CachedCluster::key).collect();
    for pilot in pilots {
        match pilot.key().filter(|key| cluster_keys.contains(key)) {
            Some(key) => pilots_by_cluster.entry(key).or_default().push(pilot),
            None => loose_pilots.push(pilot),
        }
    }
    let mut summaries: Vec<ClusterSummary> = clusters
        .iter()
        .map(|cached_cluster| {
            summarize_cluster(
                cached_cluster,
                pilots_by_cluster.remove(&cached_cluster.key()).unwrap_or_default(),
                *now,
            )
        })
        .collect();
    summaries.sort_by(|a, b| {
        (a.urgency, &a.namespace, &a.name, &a.kind).cmp(&(
            b.urgency,
            &b.namespace,
            &b.name,
            &b.kind,
        ))
    });
    let mut runs: Vec<MachineRun> = runs.iter().map(summarize_upgrade).collect();
    runs.sort_by(|a, b| (a.urgency, b.since, &a.name).cmp(&(b.urgency, a.since, &b.name)));
    StatusPage {
        time: whole_seconds(*now),
        version: build_info::VERSION,
        leads: *leads,
        waiting_for: waiting_for.clone(),
        runs,
        clusters: summaries,
        loose: summarize_nodes(loose_pilots, &ClusterPicture::new(&Value::Null), *now),
    }
}

fn summarize_cluster(
    cached_cluster: &CachedCluster,
    pilots: Vec<&CachedPilot>,
    now: Timestamp,
) -> ClusterSummary {
    let picture = cached_cluster.summary().with_nodes(pilots.iter().map(|pilot| &*pilot.pilot));
    let headline = picture.build_headline();
    let headline = headline.as_ref();
    ClusterSummary {
        kind: cached_cluster.kind.clone(),
        namespace: picture.namespace.to_owned(),
        name: picture.name.to_owned(),
        urgency: picture.urgency(),
        summary: headline.map(|headline| headline.message.to_string()).unwrap_or_default(),
        reason: headline.map_or("", |headline| headline.reason).to_owned(),
        since: headline.and_then(|headline| headline.since),
        phase: picture.phase_word().to_owned(),
        health: picture.health.to_owned(),
        version: picture.version.to_owned(),
        wanted_version: picture.version_ahead().unwrap_or_default().to_owned(),
        ready_nodes: picture.ready_nodes,
        wanted_nodes: picture.wanted_nodes(),
        operation: picture.operation.as_ref().map(summarize_operation),
        last_operation: picture.last_operation.as_ref().map(|operation| LastOperation {
            type_: operation.type_.to_owned(),
            phase: operation.phase.to_owned(),
            at: operation.ended,
        }),
        notes: picture
            .list_troubles()
            .iter()
            .filter_map(ClusterTrouble::trouble_condition)
            .map(|condition| condition_note(&condition))
            .collect(),
        nodes: summarize_nodes(pilots, &picture, now),
    }
}

fn summarize_upgrade(upgrade: &ClusterUpgrade) -> MachineRun {
    let status = upgrade.status.clone().unwrap_or_default();
    let urgency = match status.phase {
        Some(UpgradePhase::Failed) => Urgency::Critical,
        Some(UpgradePhase::Success) => Urgency::Fine,
        Some(UpgradePhase::Paused) => Urgency::Resting,
        Some(UpgradePhase::Pending | UpgradePhase::Preflight | UpgradePhase::InProgress) | None => {
            Urgency::Changing
        }
    };
    let blockers = status.waits_for.into_iter().map(|wait| MachineBlocker {
        machine: wait.machine.unwrap_or_default(),
        cluster: wait.cluster.unwrap_or_default(),
        node: wait.pilot.unwrap_or_default(),
        predicate: wait.predicate,
        message: wait.message,
        since: wait.since.map(|time| time.0),
    });
    MachineRun {
        namespace: upgrade.namespace().unwrap_or_default(),
        name: upgrade.name_any(),
        urgency,
        type_: format!("{:?}", upgrade.spec.type_).to_lowercase(),
        target: upgrade.spec.target_version.clone().unwrap_or_default(),
        // Before the coordinator saw it, a run has none.
        phase: status.phase.map_or_else(|| "New".to_owned(), |phase| format!("{phase:?}")),
        progress: status.progress.unwrap_or_default(),
        since: status.completion_time.or(status.start_time).map(|time| time.0),
        message: status.message.unwrap_or_default(),
        waits_for: blockers.collect(),
    }
}

fn condition_note(condition: &ConditionPicture<'_>) -> StatusNote {
    StatusNote {
        condition: condition.type_.to_owned(),
        reason: condition.reason.to_owned(),
        message: condition.message.to_owned(),
        since: condition.since,
    }
}

fn summarize_operation(operation: &OperationPicture<'_>) -> OperationSummary {
    let steps = operation.steps.iter().take(STEPS).map(|step| StepSummary {
        name: step.name.to_owned(),
        node: step.node.to_owned(),
        phase: step.phase.to_owned(),
        message: step.message.to_owned(),
        since: step.ended.or(step.started),
    });
    OperationSummary {
        type_: operation.type_.to_owned(),
        phase: operation.phase.to_owned(),
        since: operation.started,
        message: operation.message.to_owned(),
        steps: steps.collect(),
        blocked_by: operation.blockers.iter().map(summarize_blocker).collect(),
    }
}

fn summarize_blocker(blocker: &BlockerPicture<'_>) -> BlockerSummary {
    BlockerSummary {
        predicate: blocker.predicate.to_owned(),
        message: blocker.message.to_owned(),
        hint: blocker.remedy_text(),
        since: blocker.since,
    }
}

/// Returns the nodes, sorted by their namespace, then by their place in the picture of `cluster`.
fn summarize_nodes(
    mut pilots: Vec<&CachedPilot>,
    cluster: &ClusterPicture<'_>,
    now: Timestamp,
) -> Vec<NodeSummary> {
    pilots.sort_by_cached_key(|cached_pilot| {
        (cached_pilot.pilot.metadata.namespace.clone(), cluster.place_of(&cached_pilot.pilot))
    });
    pilots.into_iter().map(|pilot| summarize_node(pilot, now)).collect()
}

fn summarize_node(cached_pilot: &CachedPilot, now: Timestamp) -> NodeSummary {
    let (pilot, picture) = (&cached_pilot.pilot, cached_pilot.summary());
    let status = &pilot.status;
    let age = SignedDuration::try_from(cached_pilot.heard).unwrap_or_default();
    let last_heartbeat = picture.last_report_time().and_then(|_| now.checked_sub(age).ok());
    let bytes = status.storage.as_ref().map(|storage| (storage.used_bytes, storage.capacity_bytes));
    let (used_bytes, capacity_bytes) = bytes.unwrap_or_default();
    let not_ready = picture.ready_condition().filter(|condition| !condition.is_true());
    let notes =
        picture.problem_conditions().into_iter().filter(|condition| condition.type_ != "Ready");
    NodeSummary {
        namespace: pilot.metadata.namespace.clone().unwrap_or_default(),
        name: picture.name().to_owned(),
        pool: picture.pool().to_owned(),
        urgency: picture.urgency(),
        message: not_ready.map_or("", |condition| condition.message).to_owned(),
        version: picture.version().to_owned(),
        machine: status
            .instance
            .as_ref()
            .and_then(|instance| instance.node.clone())
            .unwrap_or_default(),
        restarts: status.process.as_ref().map_or(0, |process| process.restarts),
        heard: last_heartbeat.map(whole_seconds),
        used_bytes,
        capacity_bytes,
        leaving: status.decommission.as_ref().map(|progress| DecommissionProgress {
            percent: progress.percent,
            message: progress.message.clone().unwrap_or_default(),
            irreversible: progress.irreversible,
        }),
        last_exit: picture.last_exit().map(|termination| StatusNote {
            condition: String::new(),
            reason: exit_reason(termination).to_owned(),
            message: termination.message.clone().unwrap_or_default(),
            since: termination.finish_time.as_ref().map(|time| time.0),
        }),
        blockers: status
            .blockers
            .iter()
            .map(|blocker| BlockerSummary {
                predicate: blocker.predicate.clone(),
                message: blocker.message.clone(),
                hint: String::new(),
                since: blocker.since.as_ref().map(|time| time.0),
            })
            .collect(),
        notes: notes.map(|condition| condition_note(&condition)).collect(),
        phase: picture.phase().to_string(),
    }
}

/// Rounds a time to seconds, so that unchanged facts give an unchanged answer.
fn whole_seconds(time: Timestamp) -> Timestamp {
    time.round(Unit::Second).unwrap_or(time)
}
