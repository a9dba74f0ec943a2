//! Computes the conditions of a cluster (docs/conditions.md).

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use super::{
    ConditionInputs,
    condition_state::{ConditionState, finding},
    initialized, security,
};
use crate::{
    api::{
        silence::{PILOT_SILENT, PILOT_TURNED_AWAY},
        v1beta1::Health,
    },
    controller::{
        desired_state::{DesiredCluster, StallCause},
        observe::condition,
        plan::{RolloutState, replicas_behind, waits_for_renewal},
    },
};

/// Longest message of a condition, in bytes.
const MESSAGE_MAX: usize = 1024;

/// Returns all conditions, in a fixed order. `Reconciling` and `Stalled` are present only while
/// True, and never both; `Repaired` only while it is False.
pub(super) fn conditions(facts: &ConditionInputs<'_>) -> Vec<Condition> {
    let mut findings = vec![
        ("Ready", ready(facts)),
        ("Available", available(facts)),
        ("Progressing", progressing(facts)),
        ("Initialized", initialized_finding(facts)),
        ("MembersHealthy", members_healthy(facts)),
        ("PilotsCurrent", pilots_current(facts)),
        ("Secured", secured(facts)),
        ("Drainable", drainable(facts)),
    ];
    let secrets = [
        ("CertificatesValid", security::certificates_valid(facts)),
        ("UsersReady", security::users_ready(facts)),
    ];
    for (type_, found) in secrets {
        findings.extend(found.map(|found| (type_, security::as_looked(facts, type_, found))));
    }
    findings.extend(repaired(facts).map(|found| ("Repaired", found)));
    if let Some(stalled) = &facts.stalled {
        findings.push(("Stalled", finding("True", stalled.reason, stalled.message.clone())));
    } else if let Some(operation) = facts.plan.operation {
        findings.push(("Reconciling", finding("True", operation.reason(), doing(facts))));
    }
    findings.into_iter().map(|(type_, finding)| stamped(facts, type_, finding)).collect()
}

/// Returns `Ready` and `Reconciling` of a cluster that is being deleted, with what the deletion
/// waits for.
pub(super) fn deleting(
    desired: &DesiredCluster,
    waits_for: &str,
    now: Timestamp,
) -> [Condition; 2] {
    [("Ready", "False"), ("Reconciling", "True")]
        .map(|(type_, status)| dated(desired, now, type_, finding(status, "Deleting", waits_for)))
}

/// Returns `Ready` and `Stalled` of a cluster whose objects are not known.
pub(super) fn unknown(
    desired: &DesiredCluster,
    cause: &StallCause,
    now: Timestamp,
) -> [Condition; 2] {
    [("Ready", "Unknown"), ("Stalled", "True")].map(|(type_, status)| {
        dated(desired, now, type_, finding(status, cause.reason, cause.message.clone()))
    })
}

fn stamped(facts: &ConditionInputs<'_>, type_: &str, finding: ConditionState) -> Condition {
    dated(facts.desired, facts.now, type_, finding)
}

/// Adds times to a condition. The time of the last transition is kept while the condition's status
/// stays.
fn dated(
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
    let before = condition(&desired.status.conditions, type_);
    let since = before
        .filter(|before| before.status == status)
        .and_then(|before| before.last_transition_time.clone().into());
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.into_owned(),
        message,
        observed_generation: Some(desired.generation),
        last_transition_time: since.unwrap_or_else(|| Time(super::operation::seconds(now))),
    }
}

/// Says what is being done or waited for, in a sentence.
fn doing(facts: &ConditionInputs<'_>) -> String {
    let (counts, plan) = (facts.counts, facts.plan);
    if plan.is_blocked()
        && let Some(block) = plan.blocked.first()
    {
        return format!("{}: {}", block.predicate, block.message);
    }
    if let Some(waiting) = plan.waiting.as_ref().filter(|_| plan.step.is_none()) {
        return waiting.sentence();
    }
    format!("{} of {} nodes serve", counts.serving, counts.wanted)
}

fn ready(facts: &ConditionInputs<'_>) -> ConditionState {
    let (counts, plan, desired) = (facts.counts, facts.plan, facts.desired);
    if let Some(stalled) = &facts.stalled {
        return finding("False", stalled.reason, stalled.message.clone());
    }
    if desired.stopped && !desired.round.stops_all {
        return finding("False", "ClusterStopped", doing(facts));
    }
    if let Some(turned_away) = facts
        .turned_away
        .as_ref()
        .filter(|_| waits_for_renewal(plan) || (plan.operation.is_none() && plan.waiting.is_none()))
    {
        return finding("Unknown", PILOT_TURNED_AWAY, turned_away.clone());
    }
    if let Some(operation) = plan.operation {
        let reason = if plan.is_blocked() { "PredicateBlocked" } else { operation.reason() };
        return finding("False", reason, doing(facts));
    }
    if counts.serving < counts.wanted || counts.existing != counts.wanted {
        return finding("False", "NodesNotReady", doing(facts));
    }
    if counts.current < counts.wanted {
        let reason = if desired.paused { "ClusterPaused" } else { "ConfigureInProgress" };
        let message = format!("{} of {} nodes run the wanted spec", counts.current, counts.wanted);
        return finding("False", reason, message);
    }
    if let Some(full) = &facts.full {
        return finding("False", "DiskFull", full.clone());
    }
    if facts.health == Some(Health::Red) {
        return finding("False", "HealthRed", "some data are not served");
    }
    finding("True", "AllNodesReady", format!("{} of {} nodes serve", counts.serving, counts.wanted))
}

fn available(facts: &ConditionInputs<'_>) -> ConditionState {
    let counts = facts.counts;
    let message = format!("{} of {} nodes serve", counts.serving, counts.wanted);
    if let Some(turned_away) = facts.turned_away.as_ref().filter(|_| facts.unheard) {
        return finding("Unknown", PILOT_TURNED_AWAY, format!("{message} for sure: {turned_away}"));
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

fn progressing(facts: &ConditionInputs<'_>) -> ConditionState {
    if facts.desired.paused {
        return finding("False", "ClusterPaused", "spec.paused is true: nothing is changed");
    }
    if let Some(stalled) = &facts.stalled {
        return finding("False", stalled.reason, stalled.message.clone());
    }
    if facts.plan.operation.is_some() {
        return finding("True", "OperationInProgress", doing(facts));
    }
    if facts.plan.waiting.is_some() || !facts.plan.blocked.is_empty() {
        return finding("True", "NodesNotReady", doing(facts));
    }
    let before = condition(&facts.desired.status.conditions, "Progressing");
    if before.is_some_and(|before| ["ClusterPaused", "ClusterResumed"].contains(&&*before.reason)) {
        return finding("True", "ClusterResumed", "spec.paused was taken back");
    }
    finding("True", "ReconcileComplete", "the cluster is as its spec says")
}

fn initialized_finding(facts: &ConditionInputs<'_>) -> ConditionState {
    let counts = facts.counts;
    let all = counts.wanted > 0 && counts.serving >= counts.wanted && facts.stalled.is_none();
    if initialized(facts.desired) || all {
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
fn secured(facts: &ConditionInputs<'_>) -> ConditionState {
    security::secured(facts).unwrap_or_else(|| {
        let (status, reason, message) = (facts.desired.database.secured)(facts.desired);
        finding(status, reason, message)
    })
}

/// Returns which nodes may lack writes that others have, and what to type; `None` where none does.
fn repaired(facts: &ConditionInputs<'_>) -> Option<ConditionState> {
    let behind = replicas_behind(facts.desired, facts.observed)?;
    let message = format!("{}; until it is repaired, {}", behind.sentence(), behind.remedy());
    Some(finding("False", "ReplicaBehind", message))
}

/// Returns whether a node may be evicted, as the budget tells Kubernetes.
fn drainable(facts: &ConditionInputs<'_>) -> ConditionState {
    let ConditionInputs { desired, hold, counts, .. } = facts;
    if desired.paused {
        return match condition(&desired.status.conditions, "Drainable") {
            Some(before) => {
                let status = if before.status == "True" { "True" } else { "False" };
                finding(status, before.reason.clone(), before.message.clone())
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
