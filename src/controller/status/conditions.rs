//! Computes the conditions of a cluster (docs/conditions.md).

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use super::{
    ConditionInputs,
    condition_state::{ConditionState, finding},
    is_initialized, security,
};
use crate::{
    api::{
        silence::{PILOT_SILENT, PILOT_TURNED_AWAY},
        v1beta1::Health,
    },
    controller::{
        desired_state::{DesiredCluster, StallCause},
        observe::find_condition,
        plan::{RolloutState, replicas_behind, waits_for_renewal},
    },
};

/// Longest message of a condition, in bytes.
const MESSAGE_MAX: usize = 1024;

/// Returns all conditions, in a fixed order. `Reconciling` and `Stalled` are present only while
/// True, and never both; `Repaired` only while it is False.
pub(super) fn build_conditions(facts: &ConditionInputs<'_>) -> Vec<Condition> {
    let mut findings = vec![
        ("Ready", ready_state(facts)),
        ("Available", available_state(facts)),
        ("Progressing", progressing_state(facts)),
        ("Initialized", initialized_finding(facts)),
        ("MembersHealthy", members_healthy(facts)),
        ("PilotsCurrent", pilots_current(facts)),
        ("Secured", secured_state(facts)),
        ("Drainable", drainable_state(facts)),
    ];
    let secrets = [
        ("CertificatesValid", security::certificates_valid(facts)),
        ("UsersReady", security::users_ready(facts)),
    ];
    for (type_, state) in secrets {
        findings.extend(state.map(|state| (type_, security::as_looked(facts, type_, state))));
    }
    findings.extend(repaired_state(facts).map(|state| ("Repaired", state)));
    if let Some(stalled) = &facts.stalled {
        findings.push(("Stalled", finding("True", stalled.reason, stalled.message.clone())));
    } else if let Some(operation) = facts.plan.operation {
        findings.push((
            "Reconciling",
            finding("True", operation.ready_reason(), progress_message(facts)),
        ));
    }
    findings.into_iter().map(|(type_, finding)| stamp_condition(facts, type_, finding)).collect()
}

/// Returns `Ready` and `Reconciling` of a cluster that is being deleted, with what the deletion
/// waits for.
pub(super) fn deleting_conditions(
    desired: &DesiredCluster,
    waits_for: &str,
    now: Timestamp,
) -> [Condition; 2] {
    [("Ready", "False"), ("Reconciling", "True")].map(|(type_, status)| {
        build_condition(desired, now, type_, finding(status, "Deleting", waits_for))
    })
}

/// Returns `Ready` and `Stalled` of a cluster whose objects are not known.
pub(super) fn unknown_conditions(
    desired: &DesiredCluster,
    cause: &StallCause,
    now: Timestamp,
) -> [Condition; 2] {
    [("Ready", "Unknown"), ("Stalled", "True")].map(|(type_, status)| {
        build_condition(desired, now, type_, finding(status, cause.reason, cause.message.clone()))
    })
}

fn stamp_condition(facts: &ConditionInputs<'_>, type_: &str, finding: ConditionState) -> Condition {
    build_condition(facts.desired, facts.now, type_, finding)
}

/// Adds times to a condition. The time of the last transition is kept while the condition's status
/// stays.
fn build_condition(
    desired: &DesiredCluster,
    now: Timestamp,
    type_: &str,
    finding: ConditionState,
) -> Condition {
    let ConditionState { status, reason, mut message } = finding;
    if message.len() > MESSAGE_MAX {
        let end = (0..=MESSAGE_MAX).rev().find(|end| message.is_char_boundary(*end));
        message.truncate(end.unwrap_or_default());
    }
    let old_condition = find_condition(&desired.status.conditions, type_);
    let since = old_condition
        .filter(|old_condition| old_condition.status == status)
        .and_then(|old_condition| old_condition.last_transition_time.clone().into());
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.into_owned(),
        message,
        observed_generation: Some(desired.generation),
        last_transition_time: since
            .unwrap_or_else(|| Time(super::operation::truncate_to_seconds(now))),
    }
}

/// Says what is being done or waited for, in a sentence.
fn progress_message(facts: &ConditionInputs<'_>) -> String {
    let (counts, plan) = (facts.counts, facts.plan);
    if plan.is_blocked()
        && let Some(blocker) = plan.blocked.first()
    {
        return format!("{}: {}", blocker.predicate, blocker.message);
    }
    if let Some(awaited_step) = plan.waiting.as_ref().filter(|_| plan.step.is_none()) {
        return awaited_step.description();
    }
    format!("{} of {} nodes serve", counts.serving, counts.wanted)
}

fn ready_state(facts: &ConditionInputs<'_>) -> ConditionState {
    let (counts, plan, desired) = (facts.counts, facts.plan, facts.desired);
    if let Some(stalled) = &facts.stalled {
        return finding("False", stalled.reason, stalled.message.clone());
    }
    if desired.stopped && !desired.round.stops_all {
        return finding("False", "ClusterStopped", progress_message(facts));
    }
    if let Some(unauthorized_message) = facts
        .turned_away
        .as_ref()
        .filter(|_| waits_for_renewal(plan) || (plan.operation.is_none() && plan.waiting.is_none()))
    {
        return finding("Unknown", PILOT_TURNED_AWAY, unauthorized_message.clone());
    }
    if let Some(operation) = plan.operation {
        let reason = if plan.is_blocked() { "PredicateBlocked" } else { operation.ready_reason() };
        return finding("False", reason, progress_message(facts));
    }
    if counts.serving < counts.wanted || counts.existing != counts.wanted {
        return finding("False", "NodesNotReady", progress_message(facts));
    }
    if counts.current < counts.wanted {
        let reason = if desired.paused { "ClusterPaused" } else { "ConfigureInProgress" };
        let message = format!("{} of {} nodes run the wanted spec", counts.current, counts.wanted);
        return finding("False", reason, message);
    }
    if let Some(full_message) = &facts.full {
        return finding("False", "DiskFull", full_message.clone());
    }
    if facts.health == Some(Health::Red) {
        return finding("False", "HealthRed", "some data are not served");
    }
    finding("True", "AllNodesReady", format!("{} of {} nodes serve", counts.serving, counts.wanted))
}

fn available_state(facts: &ConditionInputs<'_>) -> ConditionState {
    let counts = facts.counts;
    let message = format!("{} of {} nodes serve", counts.serving, counts.wanted);
    if let Some(unauthorized_message) = facts.turned_away.as_ref().filter(|_| facts.unheard) {
        return finding(
            "Unknown",
            PILOT_TURNED_AWAY,
            format!("{message} for sure: {unauthorized_message}"),
        );
    }
    if facts.unheard {
        let message = format!("{message} for sure: their pilots are not heard, and pods are ready");
        return finding("Unknown", PILOT_SILENT, message);
    }
    if counts.serving == 0 {
        return finding("False", "NodesNotReady", message);
    }
    if facts.health == Some(Health::Red) {
        return finding("False", "HealthRed", "some data are not served");
    }
    finding("True", "ClientsServed", message)
}

fn progressing_state(facts: &ConditionInputs<'_>) -> ConditionState {
    if facts.desired.paused {
        return finding("False", "ClusterPaused", "spec.paused is true: nothing is changed");
    }
    if let Some(stalled) = &facts.stalled {
        return finding("False", stalled.reason, stalled.message.clone());
    }
    if facts.plan.operation.is_some() {
        return finding("True", "OperationInProgress", progress_message(facts));
    }
    if facts.plan.waiting.is_some() || !facts.plan.blocked.is_empty() {
        return finding("True", "NodesNotReady", progress_message(facts));
    }
    let old_condition = find_condition(&facts.desired.status.conditions, "Progressing");
    if old_condition.is_some_and(|old_condition| {
        ["ClusterPaused", "ClusterResumed"].contains(&&*old_condition.reason)
    }) {
        return finding("True", "ClusterResumed", "spec.paused was taken back");
    }
    finding("True", "ReconcileComplete", "the cluster is as its spec says")
}

fn initialized_finding(facts: &ConditionInputs<'_>) -> ConditionState {
    let counts = facts.counts;
    let is_complete =
        counts.wanted > 0 && counts.serving >= counts.wanted && facts.stalled.is_none();
    if is_initialized(facts.desired) || is_complete {
        return finding("True", "ReconcileComplete", "every wanted node has served once");
    }
    let message = format!("{} of {} nodes serve", counts.serving, counts.wanted);
    finding("False", "BootstrapInProgress", message)
}

fn members_healthy(facts: &ConditionInputs<'_>) -> ConditionState {
    let counts = facts.counts;
    let message = format!("{} of {} existing nodes serve", counts.serving, counts.existing);
    if counts.serving < counts.existing || (counts.existing == 0 && counts.wanted > 0) {
        return finding("False", "NodesNotReady", message);
    }
    finding("True", "AllNodesReady", message)
}

/// Returns who can reach the data. This condition only informs: nothing depends on it or enforces
/// it.
fn secured_state(facts: &ConditionInputs<'_>) -> ConditionState {
    security::secured_state(facts).unwrap_or_else(|| {
        let (status, reason, message) = (facts.desired.database.secured)(facts.desired);
        finding(status, reason, message)
    })
}

/// Returns which nodes may lack writes that others have, and what to type; `None` where none does.
fn repaired_state(facts: &ConditionInputs<'_>) -> Option<ConditionState> {
    let behind_replicas = replicas_behind(facts.desired, facts.observed)?;
    let message = format!(
        "{}; until it is repaired, {}",
        behind_replicas.description(),
        behind_replicas.remedy()
    );
    Some(finding("False", "ReplicaBehind", message))
}

/// Returns whether a node may be evicted, as the budget tells Kubernetes.
fn drainable_state(facts: &ConditionInputs<'_>) -> ConditionState {
    let ConditionInputs { desired, hold, counts, .. } = facts;
    if desired.paused {
        return match find_condition(&desired.status.conditions, "Drainable") {
            Some(old_condition) => {
                let status = if old_condition.status == "True" { "True" } else { "False" };
                finding(status, old_condition.reason.clone(), old_condition.message.clone())
            }
            None => finding("False", "ClusterPaused", "budgets are left as they are"),
        };
    }
    if let Some(hold) = hold {
        return finding("False", hold.reason.clone(), hold.message.clone());
    }
    let message = match counts.existing {
        _ if desired.stopped => "its nodes are stopped",
        0 | 1 => "its only node may go, and nothing is served meanwhile",
        _ => "one node may go at a time",
    };
    finding("True", "MayLeave", message)
}

/// Reasons of `PilotsCurrent` that stop the delivery of a newer pilot.
pub(crate) const PILOT_FAILURES: [&str; 4] =
    ["ImagePullFailed", "PilotInstallFailed", "PilotUpdateRefused", "ProgressDeadlineExceeded"];

fn pilots_current(facts: &ConditionInputs<'_>) -> ConditionState {
    let (pilots, image) = (&facts.pilots, &facts.desired.pilot_image.reference);
    let count = format!("{} of {} pilots are of {image}", pilots.current, pilots.all);
    match &pilots.next {
        None => finding("True", "PilotsCurrent", count),
        Some(RolloutState::AtRestart) => {
            let message = format!("{count}; the others change when their pods are made anew");
            finding("False", "PilotUpdateOnRestart", message)
        }
        Some(RolloutState::Deliver { pilot, .. }) => {
            finding("False", "PilotUpdateInProgress", format!("{count}; {pilot} is next"))
        }
        Some(RolloutState::Wait { message, .. }) => {
            finding("False", "PilotUpdateInProgress", format!("{count}; {message}"))
        }
        Some(RolloutState::Failed { reason, message }) => {
            finding("False", *reason, format!("{count}; {message}"))
        }
    }
}
