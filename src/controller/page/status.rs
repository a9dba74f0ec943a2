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
        picture::{ClusterPicture, ClusterTrouble, Urgency, exit_word},
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
pub(super) fn status(seen: &FleetSnapshot) -> StatusPage {
    let FleetSnapshot { now, leads, waiting_for, clusters, pilots, runs } = seen;
    let mut of_cluster: HashMap<[&str; 3], Vec<&CachedPilot>> = HashMap::new();
    let mut loose = Vec::new();
    let known: HashSet<[&str; 3]> = clusters.iter().map(CachedCluster::key).collect();
    for pilot in pilots {
        match pilot.key().filter(|key| known.contains(key)) {
            Some(key) => of_cluster.entry(key).or_default().push(pilot),
            None => loose.push(pilot),
        }
    }
    let mut told: Vec<ClusterSummary> = clusters
        .iter()
        .map(|one| cluster(one, of_cluster.remove(&one.key()).unwrap_or_default(), *now))
        .collect();
    told.sort_by(|a, b| {
        (a.urgency, &a.namespace, &a.name, &a.kind).cmp(&(
            b.urgency,
            &b.namespace,
            &b.name,
            &b.kind,
        ))
    });
    let mut runs: Vec<MachineRun> = runs.iter().map(run).collect();
    runs.sort_by(|a, b| (a.urgency, b.since, &a.name).cmp(&(b.urgency, a.since, &b.name)));
    StatusPage {
        time: whole_seconds(*now),
        version: build_info::VERSION,
        leads: *leads,
        waiting_for: waiting_for.clone(),
        runs,
        clusters: told,
        loose: nodes(loose, &ClusterPicture::new(&Value::Null), *now),
    }
}

fn cluster(seen: &CachedCluster, pilots: Vec<&CachedPilot>, now: Timestamp) -> ClusterSummary {
    let picture = seen.picture().with_nodes(pilots.iter().map(|pilot| &*pilot.pilot));
    let headline = picture.headline();
    let headline = headline.as_ref();
    ClusterSummary {
        kind: seen.kind.clone(),
        namespace: picture.namespace.to_owned(),
        name: picture.name.to_owned(),
        urgency: picture.urgency(),
        summary: headline.map(|said| said.message.to_string()).unwrap_or_default(),
        reason: headline.map_or("", |said| said.reason).to_owned(),
        since: headline.and_then(|said| said.since),
        phase: picture.phase_word().to_owned(),
        health: picture.health.to_owned(),
        version: picture.version.to_owned(),
        wanted_version: picture.version_ahead().unwrap_or_default().to_owned(),
        ready_nodes: picture.ready_nodes,
        wanted_nodes: picture.wanted_nodes(),
        operation: picture.operation.as_ref().map(doing),
        last_operation: picture.last_operation.as_ref().map(|last| LastOperation {
            type_: last.type_.to_owned(),
            phase: last.phase.to_owned(),
            at: last.ended,
        }),
        notes: picture
            .troubles()
            .iter()
            .filter_map(ClusterTrouble::condition)
            .map(|condition| note(&condition))
            .collect(),
        nodes: nodes(pilots, &picture, now),
    }
}

fn run(run: &ClusterUpgrade) -> MachineRun {
    let status = run.status.clone().unwrap_or_default();
    let urgency = match status.phase {
        Some(UpgradePhase::Failed) => Urgency::Critical,
        Some(UpgradePhase::Success) => Urgency::Fine,
        Some(UpgradePhase::Paused) => Urgency::Resting,
        Some(UpgradePhase::Pending | UpgradePhase::Preflight | UpgradePhase::InProgress) | None => {
            Urgency::Changing
        }
    };
    let waits = status.waits_for.into_iter().map(|wait| MachineBlocker {
        machine: wait.machine.unwrap_or_default(),
        cluster: wait.cluster.unwrap_or_default(),
        node: wait.pilot.unwrap_or_default(),
        predicate: wait.predicate,
        message: wait.message,
        since: wait.since.map(|time| time.0),
    });
    MachineRun {
        namespace: run.namespace().unwrap_or_default(),
        name: run.name_any(),
        urgency,
        type_: format!("{:?}", run.spec.type_).to_lowercase(),
        target: run.spec.target_version.clone().unwrap_or_default(),
        // Before the coordinator saw it, a run has none.
        phase: status.phase.map_or_else(|| "New".to_owned(), |phase| format!("{phase:?}")),
        progress: status.progress.unwrap_or_default(),
        since: status.completion_time.or(status.start_time).map(|time| time.0),
        message: status.message.unwrap_or_default(),
        waits_for: waits.collect(),
    }
}

fn note(condition: &ConditionPicture<'_>) -> StatusNote {
    StatusNote {
        condition: condition.type_.to_owned(),
        reason: condition.reason.to_owned(),
        message: condition.message.to_owned(),
        since: condition.since,
    }
}

fn doing(operation: &OperationPicture<'_>) -> OperationSummary {
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
        blocked_by: operation.blockers.iter().map(blocker).collect(),
    }
}

fn blocker(blocker: &BlockerPicture<'_>) -> BlockerSummary {
    BlockerSummary {
        predicate: blocker.predicate.to_owned(),
        message: blocker.message.to_owned(),
        hint: blocker.advice(),
        since: blocker.since,
    }
}

/// Returns the nodes, sorted by their namespace, then by their place in the picture of `cluster`.
fn nodes(
    mut pilots: Vec<&CachedPilot>,
    cluster: &ClusterPicture<'_>,
    now: Timestamp,
) -> Vec<NodeSummary> {
    pilots.sort_by_cached_key(|seen| {
        (seen.pilot.metadata.namespace.clone(), cluster.place_of(&seen.pilot))
    });
    pilots.into_iter().map(|pilot| node(pilot, now)).collect()
}

fn node(seen: &CachedPilot, now: Timestamp) -> NodeSummary {
    let (pilot, picture) = (&seen.pilot, seen.picture());
    let status = &pilot.status;
    let age = SignedDuration::try_from(seen.heard).unwrap_or_default();
    let heard = picture.reported().and_then(|_| now.checked_sub(age).ok());
    let bytes = status.storage.as_ref().map(|storage| (storage.used_bytes, storage.capacity_bytes));
    let (used_bytes, capacity_bytes) = bytes.unwrap_or_default();
    let not_ready = picture.ready().filter(|ready| !ready.is_true());
    let notes = picture.troubles().into_iter().filter(|one| one.type_ != "Ready");
    NodeSummary {
        namespace: pilot.metadata.namespace.clone().unwrap_or_default(),
        name: picture.name().to_owned(),
        pool: picture.pool().to_owned(),
        urgency: picture.urgency(),
        message: not_ready.map_or("", |ready| ready.message).to_owned(),
        version: picture.version().to_owned(),
        machine: status.instance.as_ref().and_then(|at| at.node.clone()).unwrap_or_default(),
        restarts: status.process.as_ref().map_or(0, |process| process.restarts),
        heard: heard.map(whole_seconds),
        used_bytes,
        capacity_bytes,
        leaving: status.decommission.as_ref().map(|leaving| DecommissionProgress {
            percent: leaving.percent,
            message: leaving.message.clone().unwrap_or_default(),
            irreversible: leaving.irreversible,
        }),
        last_exit: picture.last_exit().map(|end| StatusNote {
            condition: String::new(),
            reason: exit_word(end).to_owned(),
            message: end.message.clone().unwrap_or_default(),
            since: end.finish_time.as_ref().map(|time| time.0),
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
        notes: notes.map(|condition| note(&condition)).collect(),
        phase: picture.phase().to_string(),
    }
}

/// Rounds a time to seconds, so that unchanged facts give an unchanged answer.
fn whole_seconds(time: Timestamp) -> Timestamp {
    time.round(Unit::Second).unwrap_or(time)
}
