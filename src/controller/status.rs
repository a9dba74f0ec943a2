//! Computes a cluster's status from what was observed and planned: pure.
//!
//! Owns phase, health, counts and conditions; `operation` has its own file. Invariant: the same
//! facts give the same status, so nothing is written while nothing changes; a heartbeat moves no
//! condition.

mod condition_state;
mod conditions;
mod operation;
mod security;
mod stalled;
#[cfg(test)]
mod tests;

use std::{cmp::Ordering, collections::BTreeMap};

use k8s_openapi::{apimachinery::pkg::api::resource::Quantity, jiff::Timestamp};

use super::{
    desired_state::{DesiredCluster, StallCause},
    observe::{Member, ObservedCluster, ObservedPool},
    plan::{
        DrainHold, OperationType, PilotRollout, Plan, describe_unauthorized, drain_hold,
        is_outdated, pilot_rollout, waits_for_renewal,
    },
};
use crate::{
    api::v1beta1::{ClusterStatus, Health, NodePoolStatus, StorageStatus, VersionCount},
    machinery::quantity,
};

pub(crate) use conditions::PILOT_FAILURES;
pub(crate) use operation::{is_held_long, truncate_to_seconds};

/// Numbers of nodes, by state.
#[derive(Clone, Copy, Debug, Default)]
struct NodeCounts {
    wanted: u32,
    existing: u32,
    serving: u32,
    current: u32,
}

/// The inputs of the conditions.
struct ConditionInputs<'a> {
    desired: &'a DesiredCluster,
    observed: &'a ObservedCluster,
    plan: &'a Plan,
    counts: NodeCounts,
    pilots: PilotRollout,
    health: Option<Health>,
    /// Name of the first serving node whose volume is full, with its pilot's message.
    full: Option<String>,
    stalled: Option<StallCause>,
    /// No node is known to serve, and some nodes that may serve have pilots that do not report.
    unheard: bool,
    /// Which nodes' pilots the API rejects, and until when.
    turned_away: Option<String>,
    /// What speaks against the eviction of a node.
    hold: Option<DrainHold>,
    now: Timestamp,
}

/// Computes the status to write; equal to the last one when nothing changed.
pub(crate) fn build_status(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    plan: &Plan,
    now: Timestamp,
) -> ClusterStatus {
    let counts = count_nodes(desired, observed);
    let (operation, last_operation) =
        operation::build_operation(desired, observed, plan, counts, now);
    let stalled = desired
        .stalled
        .clone()
        .or_else(|| observed.stalled.clone())
        .or_else(|| observed.refused.clone())
        .or_else(|| stalled::find_stall_cause(desired, observed, plan, operation.as_ref(), now));
    let health = cluster_health(desired, observed, counts);
    let pilots = pilot_rollout(desired, observed);
    let full_message = full_volume_message(observed);
    let hold = drain_hold(desired, observed, plan);
    let health_of = health.clone();
    let is_silent = counts.serving == 0
        && observed.pools.iter().flat_map(existing_nodes).any(Member::is_silent);
    let facts = ConditionInputs {
        desired,
        observed,
        plan,
        counts,
        pilots,
        health: health_of,
        full: full_message,
        stalled,
        unheard: is_silent,
        turned_away: describe_unauthorized(observed),
        hold,
        now,
    };
    let conditions = conditions::build_conditions(&facts);
    let versions = count_versions(observed);
    ClusterStatus {
        observed_generation: Some(desired.generation),
        phase: Some(cluster_phase(&facts).to_owned()),
        health,
        version: versions.first().map(|count| count.version.clone()),
        versions,
        cluster_id: cluster_id(desired, observed),
        cluster_name: cluster_name(observed).or_else(|| desired.status.cluster_name.clone()),
        leader: observed.leader.clone(),
        image: Some(desired.image.reference.clone()),
        pilot_image: Some(desired.pilot_image.reference.clone()),
        minimum_masters: desired
            .pools
            .iter()
            .find_map(|pool| (desired.database.minimum_masters)(&pool.pilot)),
        security: security::security_status(desired, observed),
        binding: security::binding_secret(desired),
        replicas: Some(to_i32(counts.existing)),
        ready_replicas: Some(to_i32(counts.serving)),
        node_pools: observed
            .pools
            .iter()
            .map(|pool| (pool.name.clone(), pool_status(desired, pool)))
            .collect(),
        operation,
        last_operation,
        conditions,
    }
}

/// Computes the status of a cluster that is being deleted: its last status, and what the deletion
/// waits for.
pub(crate) fn deleting_status(
    desired: &DesiredCluster,
    waits_for: &str,
    now: Timestamp,
) -> ClusterStatus {
    let mut conditions = desired.status.conditions.clone();
    conditions.retain(|condition| {
        !["Ready", "Stalled", "Reconciling", "Drainable"].contains(&&*condition.type_)
    });
    let [ready, reconciling] = conditions::deleting_conditions(desired, waits_for, now);
    conditions.insert(0, ready);
    conditions.push(reconciling);
    ClusterStatus {
        phase: Some("Deleting".to_owned()),
        observed_generation: Some(desired.generation),
        conditions,
        ..desired.status.clone()
    }
}

/// Computes the status of a cluster whose objects are not known: its last status, and why.
pub(crate) fn unknown_status(
    desired: &DesiredCluster,
    cause: &StallCause,
    now: Timestamp,
) -> ClusterStatus {
    let mut conditions = desired.status.conditions.clone();
    conditions.retain(|condition| {
        !["Ready", "Stalled", "Progressing", "Reconciling", "Drainable"]
            .contains(&&*condition.type_)
    });
    let [ready, stalled] = conditions::unknown_conditions(desired, cause, now);
    conditions.insert(0, ready);
    conditions.push(stalled);
    ClusterStatus { conditions, ..desired.status.clone() }
}

fn to_i32(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn existing_nodes(pool: &ObservedPool) -> impl Iterator<Item = &Member> {
    pool.members.values().filter(|member| member.pod.is_some())
}

fn count_nodes(desired: &DesiredCluster, observed: &ObservedCluster) -> NodeCounts {
    let mut counts = NodeCounts {
        wanted: desired.pools.iter().map(|pool| pool.replicas).sum(),
        ..NodeCounts::default()
    };
    for pool in &observed.pools {
        let desired_pool = desired.pool(&pool.name);
        for member in existing_nodes(pool) {
            counts.existing += 1;
            counts.serving += u32::from(member.is_serving());
            counts.current += u32::from(
                desired_pool.is_some_and(|desired_pool| !is_outdated(member, desired_pool)),
            );
        }
    }
    counts
}

fn pool_status(desired: &DesiredCluster, pool: &ObservedPool) -> NodePoolStatus {
    let desired_pool = desired.pool(&pool.name);
    let count = |is_counted: &dyn Fn(&Member) -> bool| {
        existing_nodes(pool).filter(|member| is_counted(member)).count()
    };
    let database = desired.database;
    let version = existing_nodes(pool)
        .filter_map(|member| member.pilot.as_ref()?.version.clone())
        .min_by(|a, b| by_version(a, b));
    NodePoolStatus {
        replicas: i32::try_from(count(&|_| true)).ok(),
        ready_replicas: i64::try_from(count(&Member::is_serving)).unwrap_or(i64::MAX),
        updated_replicas: i32::try_from(count(&|member| {
            desired_pool.is_some_and(|desired_pool| !is_outdated(member, desired_pool))
        }))
        .ok(),
        version,
        selector: Some(format!(
            "{}={},{}={}",
            database.names.cluster_label, desired.name, database.names.pool_label, pool.name
        )),
        storage: storage_status(desired, pool),
        topology: desired_pool.map(|desired_pool| desired_pool.topology.clone()).or_else(|| {
            let old_status = desired.status.node_pools.get(&pool.name)?;
            old_status.topology.clone()
        }),
    }
}

fn storage_status(desired: &DesiredCluster, pool: &ObservedPool) -> Option<StorageStatus> {
    // Kept claims of nodes that left do not grow; they count where no node runs.
    let members: Vec<&Member> = match pool.replicas() {
        0 => pool.members.values().collect(),
        _ => pool.nodes().filter_map(|(_, member)| member).collect(),
    };
    let claims = members.iter().filter_map(|member| member.claim.as_ref());
    let smallest_capacity = claims
        .filter_map(|claim| claim.capacity.clone())
        .min_by_key(|capacity| quantity::parse_nanos(capacity));
    let claims = members.iter().filter_map(|member| member.claim.as_ref());
    let requested_sizes = claims.filter_map(|claim| claim.requested.clone());
    let desired_size = || desired.pool(&pool.name)?.volume_size().map(str::to_owned);
    let requested = requested_sizes
        .min_by_key(|size| quantity::parse_nanos(size))
        .or_else(desired_size)
        .map(Quantity);
    let status = StorageStatus { requested, smallest: smallest_capacity.map(Quantity) };
    (status != StorageStatus::default()).then_some(status)
}

/// Counts the versions by which data may have been written. A node whose data were given up has
/// none, until it serves again: its Pilot still names the version that ran before.
fn count_versions(observed: &ObservedCluster) -> Vec<VersionCount> {
    let mut counts: BTreeMap<String, i32> = BTreeMap::new();
    let is_discarded = |member: &Member| {
        let is_discard_requested =
            member.pilot.as_ref().is_some_and(|pilot| pilot.given_up.is_some());
        member.is_data_discarded() || (is_discard_requested && !member.is_serving())
    };
    // A volume keeps what was written while its node is stopped.
    let is_kept = |member: &Member| {
        let has_data = member.claim.as_ref().is_some_and(|claim| claim.holds_data);
        member.pod.is_some() || (has_data && !member.is_decommissioned())
    };
    let members = observed.pools.iter().flat_map(|pool| pool.members.values());
    for member in members.filter(|member| is_kept(member) && !is_discarded(member)) {
        if let Some(version) = member.pilot.as_ref().and_then(|pilot| pilot.version.clone()) {
            *counts.entry(version).or_default() += 1;
        }
    }
    let mut versions: Vec<_> =
        counts.into_iter().map(|(version, replicas)| VersionCount { version, replicas }).collect();
    versions.sort_by(|a, b| by_version(&a.version, &b.version));
    versions.truncate(10);
    versions
}

/// Compares versions part by part, numbers by value and anything else by text: `4.1.10` is above
/// `4.1.9`.
fn by_version(a: &str, b: &str) -> Ordering {
    let parts = |version: &str| {
        version
            .split(['.', '-'])
            .map(|part| (part.parse::<u64>().unwrap_or_default(), part.to_owned()))
            .collect::<Vec<_>>()
    };
    parts(a).cmp(&parts(b))
}

fn cluster_id(desired: &DesiredCluster, observed: &ObservedCluster) -> Option<String> {
    if desired.database.id_is_uid {
        return Some(desired.uid.clone());
    }
    let members = || observed.pools.iter().flat_map(|pool| pool.members.values());
    let id = |member: &Member| member.pilot.as_ref()?.cluster_id.clone();
    // A node that is lost may be of the cluster as it was before it was begun anew.
    members().filter(|member| member.is_serving()).find_map(id).or_else(|| members().find_map(id))
}

/// Returns the name of the database cluster as a node reports it, one that serves if there is any.
fn cluster_name(observed: &ObservedCluster) -> Option<String> {
    let members = || observed.pools.iter().flat_map(|pool| pool.members.values());
    let name = |member: &Member| member.pilot.as_ref()?.cluster_name.clone();
    members()
        .filter(|member| member.is_serving())
        .find_map(name)
        .or_else(|| members().find_map(name))
}

/// Returns the worst health that serving nodes report. Green becomes Yellow while a wanted node
/// does not serve or a volume is full. When no node serves, the health is Red, or `None` where it
/// is only that pilots do not report.
fn cluster_health(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    counts: NodeCounts,
) -> Option<Health> {
    let members =
        observed.pools.iter().flat_map(existing_nodes).filter(|member| member.is_serving());
    let reported_health = members.filter_map(|member| member.pilot.as_ref()?.health.clone());
    let rank = |health: &Health| match health {
        Health::Green => 0,
        Health::Red => 2,
        Health::Yellow | Health::Other(_) => 1,
    };
    let worst_health = reported_health.max_by_key(rank);
    if worst_health.is_none() && counts.serving == 0 && is_initialized(desired) && !desired.stopped
    {
        let is_silent = observed.pools.iter().flat_map(existing_nodes).any(Member::is_silent);
        return (!is_silent).then_some(Health::Red);
    }
    worst_health.map(|health| match health {
        Health::Green
            if counts.serving < counts.wanted || full_volume_message(observed).is_some() =>
        {
            Health::Yellow
        }
        health => health,
    })
}

/// Names the first node that serves and whose volume is full, with its pilot's message.
fn full_volume_message(observed: &ObservedCluster) -> Option<String> {
    let mut members =
        observed.pools.iter().flat_map(existing_nodes).filter(|member| member.is_serving());
    members.find_map(|member| {
        let message = member.pilot.as_ref()?.full.as_ref()?;
        Some(format!("{}: {message}", member.name))
    })
}

fn is_initialized(desired: &DesiredCluster) -> bool {
    super::observe::find_condition(&desired.status.conditions, "Initialized")
        .is_some_and(|condition| condition.status == "True")
}

/// Returns the phase, a summary of the status in one word.
fn cluster_phase(facts: &ConditionInputs<'_>) -> &'static str {
    let ConditionInputs { desired, plan, counts, stalled, .. } = facts;
    if desired.deleted {
        return "Deleting";
    }
    if stalled.is_some() {
        return "Stalled";
    }
    if desired.paused {
        return "Paused";
    }
    if desired.stopped && plan.operation.is_none() {
        return "Stopped";
    }
    match plan.operation {
        // The cluster runs, as far as the kubelet can tell, and nothing is changed.
        Some(_) if waits_for_renewal(plan) => "Degraded",
        Some(OperationType::Bootstrap | OperationType::Start) => "Creating",
        Some(OperationType::ScaleUp | OperationType::ScaleDown) => "Scaling",
        Some(
            OperationType::Upgrade
            | OperationType::Configure
            | OperationType::Resize
            | OperationType::Replace
            | OperationType::Stop
            | OperationType::Vacate
            | OperationType::Secure,
        ) => "Updating",
        None if counts.serving < counts.wanted => "Degraded",
        None => "Running",
    }
}
