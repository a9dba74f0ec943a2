//! Computes `status.operation`: what is being done, step by step, and what holds it up.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::NodeCounts;
use crate::{
    api::{
        names,
        v1beta1::{BlockedBy, Operation, OperationStep},
    },
    controller::{
        desired_state::DesiredCluster,
        observe::ObservedCluster,
        plan::{AwaitedStep, Plan, PlannedStep, VACATE_POD},
    },
};

const STEPS_MAX: usize = 50;

/// Returns the running operation and the last one that ended.
pub(super) fn build_operation(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    plan: &Plan,
    counts: NodeCounts,
    now: Timestamp,
) -> (Option<Operation>, Option<Operation>) {
    let old_operation = desired.status.operation.clone();
    let last_operation = desired.status.last_operation.clone();
    if desired.paused || desired.deleted || desired.stalled.is_some() || observed.stalled.is_some()
    {
        // An operation that was begun stays as it is: it does not go on, and is not done.
        return (old_operation, last_operation);
    }
    let Some(type_) = plan.operation else {
        return match old_operation {
            Some(old_operation) => (None, Some(end_operation(desired, old_operation, now))),
            None => (None, last_operation),
        };
    };
    let (base, last_operation) = match old_operation {
        Some(old_operation) if old_operation.type_ == type_.as_str() => {
            (old_operation, last_operation)
        }
        old_operation => {
            let last_operation = old_operation
                .map(|old_operation| end_operation(desired, old_operation, now))
                .or(last_operation);
            let id = format!("{}-{}", desired.generation, type_.as_str().to_lowercase());
            let new_operation = Operation {
                id,
                type_: type_.as_str().to_owned(),
                start_time: Some(Time(truncate_to_seconds(now))),
                ..Operation::default()
            };
            (new_operation, last_operation)
        }
    };
    let blocked_by = blocked_by(&base, plan, now);
    let is_long_blocked = blocked_by.iter().any(|blocker| is_waiting_long(blocker, now));
    let is_step_awaited = plan.waiting.as_ref().is_some_and(AwaitedStep::is_ahead_of_its_step);
    let step_phase = if plan.is_blocked() {
        "Blocked"
    } else if plan.step.is_none() && is_step_awaited {
        PENDING
    } else {
        "Running"
    };
    let phase = if step_phase == PENDING { "Running" } else { step_phase };
    let message = format!(
        "{} of {} nodes serve, {} run the wanted spec{}",
        counts.serving,
        counts.wanted,
        counts.current,
        if is_long_blocked { HELD_LONG } else { "" }
    );
    let operation = Operation {
        phase: phase.to_owned(),
        completion_time: None,
        message: Some(message),
        steps: build_steps(&base, current_step(observed, plan), step_phase, now),
        blocked_by,
        ..base
    };
    (Some(operation), last_operation)
}

/// End of the message of an operation in which a request that a node leave its machine has been held
/// for an hour.
const HELD_LONG: &str = "; a node was asked to leave its machine an hour ago";

/// Has a request that a node leave its machine been held by one rule for an hour?
fn is_waiting_long(blocker: &BlockedBy, now: Timestamp) -> bool {
    let is_requested = blocker.step.as_deref().is_some_and(|step| step.starts_with(VACATE_POD));
    let since = blocker.since.as_ref().map(|since| now.duration_since(since.0).as_secs());
    is_requested && since.is_some_and(|seconds| seconds >= 3_600)
}

/// Does the operation say that a request has been held for an hour?
pub(crate) fn is_held_long(operation: &Operation) -> bool {
    operation.message.as_deref().is_some_and(|message| message.ends_with(HELD_LONG))
}

/// Closes an operation. Where the spec was edited since the last status, which had the operation under
/// way, nothing shows that it reached its end.
fn end_operation(desired: &DesiredCluster, operation: Operation, now: Timestamp) -> Operation {
    let is_edited = desired.status.observed_generation != Some(desired.generation);
    let (phase, message) = if is_edited {
        ("Failed", Some("the spec was changed before it ended".to_owned()))
    } else {
        ("Done", operation.message)
    };
    Operation {
        phase: phase.to_owned(),
        message,
        completion_time: Some(Time(truncate_to_seconds(now))),
        steps: Vec::new(),
        blocked_by: Vec::new(),
        ..operation
    }
}

/// Cuts a time to whole seconds, the precision of times in objects.
pub(crate) fn truncate_to_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// Returns name, pilot and message of the step that is being done, waited for or held up.
fn current_step(
    observed: &ObservedCluster,
    plan: &Plan,
) -> Option<(String, Option<String>, Option<String>)> {
    if let Some(step) = &plan.step {
        let pilot = match step {
            PlannedStep::Raise { pool, to } | PlannedStep::Return { pool, to } => observed
                .pools
                .iter()
                .find(|other| other.name == *pool)
                .map(|other| names::pilot_name(&other.set_name, to.saturating_sub(1))),
            step => step.pilot().map(str::to_owned),
        };
        return Some((step.name().to_owned(), pilot, None));
    }
    if let Some(awaited_step) = &plan.waiting {
        let message = Some(awaited_step.description());
        return Some((awaited_step.step.to_owned(), Some(awaited_step.pilot.clone()), message));
    }
    let blocker = plan.blocked.first()?;
    let (step, pilot) = match blocker.step.split_once('/') {
        Some((step, pilot)) => (step, Some(pilot.to_owned())),
        None => (blocker.step.as_str(), None),
    };
    Some((step.to_owned(), pilot, Some(blocker.message.clone())))
}

/// Phase of a step that has not begun, and may never begin.
const PENDING: &str = "Pending";

/// Returns the steps of the operation: the current one first, then from new to old. Steps that had
/// not ended become `Done`, or `Skipped` where they never began.
fn build_steps(
    old_operation: &Operation,
    current_step: Option<(String, Option<String>, Option<String>)>,
    phase: &str,
    now: Timestamp,
) -> Vec<OperationStep> {
    let now = Time(truncate_to_seconds(now));
    let Some((name, pilot, message)) = current_step else { return old_operation.steps.clone() };
    let is_current = |step: &OperationStep| {
        step.name == name && step.pilot == pilot && step.completion_time.is_none()
    };
    let old_step = old_operation.steps.iter().find(|step| is_current(step));
    let is_progressing =
        old_step.is_some_and(|step| has_moved(step.message.as_deref(), message.as_deref()));
    let progress = old_step.and_then(|step| step.last_progress_time.clone());
    let mut steps = vec![OperationStep {
        start_time: old_step.and_then(|step| step.start_time.clone()).or(Some(now.clone())),
        last_progress_time: if is_progressing { Some(now.clone()) } else { progress },
        name: name.clone(),
        pilot: pilot.clone(),
        phase: phase.to_owned(),
        message,
        completion_time: None,
    }];
    steps.extend(old_operation.steps.iter().filter(|step| !is_current(step)).map(|step| {
        let step = step.clone();
        match step.completion_time {
            Some(_) => step,
            None => OperationStep {
                phase: final_phase(&step.phase).to_owned(),
                message: None,
                completion_time: Some(now.clone()),
                ..step
            },
        }
    }));
    steps.truncate(STEPS_MAX);
    steps
}

fn final_phase(phase: &str) -> &'static str {
    if [PENDING, "Blocked"].contains(&phase) { "Skipped" } else { "Done" }
}

/// Did a step make progress between two messages? Progress is a change of the figures in a
/// sentence: bytes, percents. A change of words is none: a database that crashes again and again is
/// reported in two sentences by turns.
fn has_moved(old: Option<&str>, new: Option<&str>) -> bool {
    let (Some(old), Some(new)) = (old, new) else { return false };
    let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    old != new && words(old) == words(new)
}

fn blocked_by(old_operation: &Operation, plan: &Plan, now: Timestamp) -> Vec<BlockedBy> {
    let since = |predicate: &str, step: &str| {
        let entry = old_operation
            .blocked_by
            .iter()
            .find(|entry| entry.predicate == predicate && entry.step.as_deref() == Some(step));
        entry.and_then(|entry| entry.since.clone())
    };
    let mut blockers: Vec<BlockedBy> = plan
        .blocked
        .iter()
        .map(|blocker| BlockedBy {
            predicate: blocker.predicate.clone().into_owned(),
            step: Some(blocker.step.clone()),
            since: since(&blocker.predicate, &blocker.step)
                .or(Some(Time(truncate_to_seconds(now)))),
            message: Some(blocker.message.clone()),
            hint: Some(blocker.remedy.to_string()),
        })
        .collect();
    blockers.sort_by(|a, b| a.since.cmp(&b.since));
    blockers.truncate(20);
    blockers
}
