//! The data of the status page, made from a snapshot: pure.
//!
//! Owns how urgent a cluster is, and what of it is shown: names, states, and the messages of
//! conditions. No setting of a spec and no line of a log is shown, because those may be secret.

use std::collections::{HashMap, HashSet};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::{SignedDuration, Timestamp, Unit},
};
use serde::Serialize;

use crate::{
    api::{
        printer,
        v1beta1::{ClusterStatus, Health, Operation, PilotPhase, PilotStatus},
    },
    controller::{
        fleet_snapshot::{CachedCluster, CachedPilot, FleetSnapshot},
        observe::condition,
    },
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
    /// Clusters, most urgent first.
    clusters: Vec<ClusterSummary>,
    /// Nodes that belong to no cluster.
    loose: Vec<NodeSummary>,
}

/// How soon a person should look, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum Urgency {
    /// Data are not served, or nothing goes on without help.
    Critical,
    /// The cluster or node does not serve as it should, or waits for help.
    Warning,
    /// A change is under way, and makes progress.
    Changing,
    /// The cluster or node is meant to rest: it is paused, stopped, fenced or decommissioned.
    Resting,
    Fine,
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
    since: Option<Time>,
    phase: String,
    health: String,
    version: String,
    /// The version that the spec asks for, while another one runs; else empty.
    wanted_version: String,
    ready_nodes: i32,
    wanted_nodes: i64,
    operation: Option<OperationSummary>,
    last_operation: Option<LastOperation>,
    /// Other conditions that are not as they should be.
    notes: Vec<StatusNote>,
    nodes: Vec<NodeSummary>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OperationSummary {
    #[serde(rename = "type")]
    type_: String,
    phase: String,
    since: Option<Time>,
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
    at: Option<Time>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StepSummary {
    name: String,
    node: String,
    phase: String,
    message: String,
    since: Option<Time>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct BlockerSummary {
    predicate: String,
    message: String,
    hint: String,
    since: Option<Time>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusNote {
    reason: String,
    message: String,
    since: Option<Time>,
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
    let FleetSnapshot { now, leads, waiting_for, clusters, pilots } = seen;
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
    StatusPage {
        time: whole_seconds(*now),
        version: build_info::VERSION,
        leads: *leads,
        waiting_for: waiting_for.clone(),
        clusters: told,
        loose: nodes(loose, *now),
    }
}

fn cluster(seen: &CachedCluster, pilots: Vec<&CachedPilot>, now: Timestamp) -> ClusterSummary {
    let status = seen.status();
    let nodes = nodes(pilots, now);
    let urgency = urgency(seen, &status, &nodes);
    let stalled = is_true(&status.conditions, "Stalled");
    let paused = is_false(&status.conditions, "Progressing").filter(|_| seen.is_asked("paused"));
    let told = stalled.or(paused).or_else(|| condition(&status.conditions, "Ready"));
    let asked = printer::text(&seen.object.data, "/spec/version").to_owned();
    let version = status.version.clone().unwrap_or_else(|| asked.clone());
    let ClusterStatus { phase, health, operation, last_operation, conditions, .. } = &status;
    ClusterSummary {
        kind: seen.kind.clone(),
        namespace: seen.namespace().to_owned(),
        name: seen.name().to_owned(),
        urgency,
        summary: told.map(|told| told.message.clone()).unwrap_or_default(),
        reason: told.map(|told| told.reason.clone()).unwrap_or_default(),
        since: told.map(|told| told.last_transition_time.clone()),
        phase: phase.clone().unwrap_or_else(|| "Pending".to_owned()),
        health: health.as_ref().map(ToString::to_string).unwrap_or_default(),
        wanted_version: if version == asked { String::new() } else { asked },
        version,
        ready_nodes: status.ready_replicas.unwrap_or_default(),
        wanted_nodes: printer::wanted(&seen.object.data),
        operation: operation.as_ref().map(doing),
        last_operation: last_operation.as_ref().map(|last| LastOperation {
            type_: last.type_.clone(),
            phase: last.phase.clone(),
            at: last.completion_time.clone(),
        }),
        notes: conditions
            .iter()
            .filter(|found| found.type_ == "PilotsCurrent" && found.status == "False")
            .map(note)
            .collect(),
        nodes,
    }
}

fn is_true<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    condition(conditions, type_).filter(|found| found.status == "True")
}

fn is_false<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    condition(conditions, type_).filter(|found| found.status == "False")
}

fn note(condition: &Condition) -> StatusNote {
    StatusNote {
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        since: Some(condition.last_transition_time.clone()),
    }
}

fn urgency(seen: &CachedCluster, status: &ClusterStatus, nodes: &[NodeSummary]) -> Urgency {
    let conditions = &status.conditions;
    let resting = seen.is_asked("stopped") || seen.object.metadata.deletion_timestamp.is_some();
    let served_once = is_true(conditions, "Initialized").is_some();
    if is_true(conditions, "Stalled").is_some()
        || (!resting && status.health == Some(Health::Red))
        || (!resting && served_once && is_false(conditions, "Available").is_some())
    {
        return Urgency::Critical;
    }
    let operation = status.operation.as_ref();
    let blocked = operation.is_some_and(|operation| !operation.blocked_by.is_empty());
    let silent = nodes.iter().any(|node| node.phase == PilotPhase::Unknown.to_string());
    if blocked || silent || status.health == Some(Health::Yellow) && operation.is_none() && !resting
    {
        return Urgency::Warning;
    }
    if seen.is_asked("paused") {
        return Urgency::Resting;
    }
    if operation.is_some() || seen.object.metadata.deletion_timestamp.is_some() {
        return Urgency::Changing;
    }
    if seen.is_asked("stopped") {
        return Urgency::Resting;
    }
    match condition(conditions, "Ready").map(|ready| ready.status.as_str()) {
        Some("True") => Urgency::Fine,
        Some("False") => Urgency::Warning,
        _ => Urgency::Changing,
    }
}

fn doing(operation: &Operation) -> OperationSummary {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let steps = operation.steps.iter().take(STEPS).map(|step| StepSummary {
        name: step.name.clone(),
        node: text(&step.pilot),
        phase: step.phase.clone(),
        message: text(&step.message),
        since: step.completion_time.clone().or_else(|| step.start_time.clone()),
    });
    let blocked_by = operation.blocked_by.iter().map(|block| BlockerSummary {
        predicate: block.predicate.clone(),
        message: text(&block.message),
        hint: text(&block.hint),
        since: block.since.clone(),
    });
    OperationSummary {
        type_: operation.type_.clone(),
        phase: operation.phase.clone(),
        since: operation.start_time.clone(),
        message: text(&operation.message),
        steps: steps.collect(),
        blocked_by: blocked_by.collect(),
    }
}

/// Returns the nodes in the order of namespace, pool and ordinal.
fn nodes(pilots: Vec<&CachedPilot>, now: Timestamp) -> Vec<NodeSummary> {
    let mut nodes: Vec<NodeSummary> = pilots.into_iter().map(|pilot| node(pilot, now)).collect();
    nodes.sort_by_cached_key(|node| {
        let ordinal = node.name.rsplit('-').next().and_then(|ordinal| ordinal.parse::<u32>().ok());
        (node.namespace.clone(), node.pool.clone(), ordinal, node.name.clone())
    });
    nodes
}

/// Conditions of a Pilot that are shown only while they are False.
const CHECKS: [&str; 6] = [
    "PreflightPassed",
    "ConfigApplied",
    "StateSaved",
    "Writable",
    "ProgramCurrent",
    "PluginsInstalled",
];

fn node(seen: &CachedPilot, now: Timestamp) -> NodeSummary {
    let pilot = &seen.pilot;
    let PilotStatus { conditions, blockers, process, last_termination, storage, .. } =
        &pilot.status;
    let ready = condition(conditions, "Ready");
    let serves = ready.is_some_and(|ready| ready.status == "True");
    let phase = match &pilot.status.phase {
        Some(_) if seen.is_silent() => PilotPhase::Unknown,
        Some(phase) => phase.clone(),
        None => PilotPhase::Pending,
    };
    let age = SignedDuration::try_from(seen.heard).unwrap_or_default();
    let heard = pilot.status.last_heartbeat_time.as_ref().and_then(|_| now.checked_sub(age).ok());
    let bytes = storage.as_ref().map(|storage| (storage.used_bytes, storage.capacity_bytes));
    let (used_bytes, capacity_bytes) = bytes.unwrap_or_default();
    NodeSummary {
        namespace: pilot.metadata.namespace.clone().unwrap_or_default(),
        name: pilot.metadata.name.clone().unwrap_or_default(),
        pool: pilot.spec.node_pool.clone().unwrap_or_default(),
        urgency: node_urgency(&phase, serves),
        message: ready.filter(|_| !serves).map(|ready| ready.message.clone()).unwrap_or_default(),
        version: pilot.status.version.clone().unwrap_or_default(),
        machine: pilot.status.instance.as_ref().and_then(|at| at.node.clone()).unwrap_or_default(),
        restarts: process.as_ref().map_or(0, |process| process.restarts),
        heard: heard.map(whole_seconds),
        used_bytes,
        capacity_bytes,
        leaving: pilot.status.decommission.as_ref().map(|leaving| DecommissionProgress {
            percent: leaving.percent,
            message: leaving.message.clone().unwrap_or_default(),
            irreversible: leaving.irreversible,
        }),
        last_exit: last_termination.as_ref().filter(|end| end.exit_code != Some(0)).map(|end| {
            StatusNote {
                reason: end.reason.clone().or_else(|| end.signal.clone()).unwrap_or_default(),
                message: end.message.clone().unwrap_or_default(),
                since: end.finish_time.clone(),
            }
        }),
        blockers: blockers
            .iter()
            .map(|blocker| BlockerSummary {
                predicate: blocker.predicate.clone(),
                message: blocker.message.clone(),
                hint: String::new(),
                since: blocker.since.clone(),
            })
            .collect(),
        notes: CHECKS
            .into_iter()
            .filter_map(|type_| is_false(conditions, type_).map(note))
            .collect(),
        phase: phase.to_string(),
    }
}

fn node_urgency(phase: &PilotPhase, serves: bool) -> Urgency {
    match phase {
        PilotPhase::Failed => Urgency::Critical,
        PilotPhase::Stopped | PilotPhase::Fenced | PilotPhase::Decommissioned => Urgency::Resting,
        PilotPhase::Running if serves => Urgency::Fine,
        PilotPhase::Unknown | PilotPhase::Running => Urgency::Warning,
        _ => Urgency::Changing,
    }
}

/// Rounds a time to seconds, so that unchanged facts give an unchanged answer.
fn whole_seconds(time: Timestamp) -> Timestamp {
    time.round(Unit::Second).unwrap_or(time)
}
