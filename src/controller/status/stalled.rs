//! Says when a cluster does not go on without a person: the condition `Stalled`.
//!
//! It follows from the remedies of what the plan waits for and is blocked by. What needs a person is
//! Stalled after two minutes, and what ends by itself after the progress deadline. The times are
//! those that Kubernetes and the status have recorded, so the next controller goes on counting.

use k8s_openapi::jiff::Timestamp;

use crate::{
    api::{predicate, v1beta1::Operation},
    controller::{
        desired_state::{DesiredCluster, StallCause},
        observe::{Member, ObservedCluster, PATIENCE, find_condition},
        plan::{AwaitedStep, Plan, Remedy, StepBlocker},
    },
};

/// Returns why the cluster does not go on without a person; `operation` is what the status will
/// say.
pub(super) fn find_stall_cause(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    plan: &Plan,
    operation: Option<&Operation>,
    now: Timestamp,
) -> Option<StallCause> {
    let record = StallRecord { desired, observed, operation, now };
    let wait_cause =
        plan.waiting.as_ref().and_then(|awaited_step| record.waiting_cause(awaited_step));
    wait_cause
        .or_else(|| plan.blocked.iter().find_map(|blocker| record.blocked_cause(blocker)))
        .or_else(|| rejection_cause(observed))
        .or_else(|| record.overdue_cause(plan))
}

/// What is recorded of the times since which the plan waits.
struct StallRecord<'a> {
    desired: &'a DesiredCluster,
    observed: &'a ObservedCluster,
    operation: Option<&'a Operation>,
    now: Timestamp,
}

impl StallRecord<'_> {
    fn waiting_cause(&self, awaited_step: &AwaitedStep) -> Option<StallCause> {
        if !awaited_step.remedy.needs_person() {
            return None;
        }
        let since = match self.operation {
            Some(operation) => {
                let mut steps = operation.steps.iter().take(1);
                let step = steps.find(|step| {
                    step.name == awaited_step.step
                        && step.pilot.as_ref() == Some(&awaited_step.pilot)
                });
                step.and_then(|step| step.start_time.as_ref().map(|since| since.0))
            }
            None => self.unready_since(),
        };
        self.build_cause(
            &awaited_step.pilot,
            since,
            "NodesNotReady",
            &awaited_step.message,
            &awaited_step.remedy,
        )
    }

    fn blocked_cause(&self, blocker: &StepBlocker) -> Option<StallCause> {
        // Where the database makes copies, the data may be elsewhere soon.
        let is_about_copies = self.desired.database.knows_copies
            && blocker.predicate == predicate::DATA_OUTLIVES_POD.name;
        if !blocker.remedy.needs_person() || is_about_copies {
            return None;
        }
        let since = match self.operation {
            Some(operation) => {
                let mut entries = operation.blocked_by.iter();
                let entry = entries.find(|entry| {
                    entry.predicate == blocker.predicate
                        && entry.step.as_ref() == Some(&blocker.step)
                });
                entry.and_then(|entry| entry.since.as_ref().map(|since| since.0))
            }
            None => self.unready_since(),
        };
        let pilot = blocker.step.split_once('/').map_or("", |(_, pilot)| pilot);
        self.build_cause(pilot, since, "PredicateBlocked", &blocker.message, &blocker.remedy)
    }

    /// Returns the cause once it has lasted; `reason` where the node has none of its own.
    fn build_cause(
        &self,
        pilot: &str,
        since: Option<Timestamp>,
        reason: &'static str,
        message: &str,
        remedy: &Remedy,
    ) -> Option<StallCause> {
        let members = self.observed.pools.iter().flat_map(|pool| pool.members.values());
        let mut members = members.filter(|member| member.name == pilot);
        let own_reason = members.find_map(failure_reason);
        let age = since.map_or(0, |since| self.now.duration_since(since).as_secs());
        // A failure of the pod has lasted by the times of Kubernetes.
        let is_lasting =
            own_reason.is_some() || age >= i64::try_from(PATIENCE.as_secs()).unwrap_or(i64::MAX);
        let message = format!("{message}; {remedy}");
        is_lasting.then_some(StallCause { reason: own_reason.unwrap_or(reason), message })
    }

    /// Returns when the cluster ceased to be Ready: an outage is no operation.
    fn unready_since(&self) -> Option<Timestamp> {
        let ready_condition = find_condition(&self.desired.status.conditions, "Ready");
        ready_condition
            .filter(|condition| condition.status != "True")
            .map(|condition| condition.last_transition_time.0)
    }

    /// Returns a cause where the step has shown no progress for longer than the deadline.
    fn overdue_cause(&self, plan: &Plan) -> Option<StallCause> {
        let step = self.operation?.steps.first()?;
        let blocker = plan.blocked.first().filter(|_| plan.is_blocked());
        // A step that was held when the cluster was paused is held no more by what is known.
        let is_blocked = step.phase == "Blocked";
        if is_blocked && blocker.is_none_or(|blocker| blocker.remedy.is_patient()) {
            return None;
        }
        let since = step.last_progress_time.as_ref().or(step.start_time.as_ref())?;
        let deadline = self.desired.strategy.progress_deadline.as_secs();
        if self.now.duration_since(since.0).as_secs() < i64::try_from(deadline).ok()? {
            return None;
        }
        let (name, pilot) = (&step.name, step.pilot.as_deref().unwrap_or_default());
        let message = step.message.as_deref().unwrap_or("nothing was reported");
        let hint = blocker.map(|blocker| format!("; {}", blocker.remedy)).unwrap_or_default();
        Some(StallCause {
            reason: "ProgressDeadlineExceeded",
            message: format!(
                "{name} {pilot} has made no progress for {deadline} s: {message}{hint}"
            ),
        })
    }
}

/// Returns the reason of what keeps the node's pod from becoming ready, where it has lasted.
fn failure_reason(member: &Member) -> Option<&'static str> {
    let pod_failure = member.pod.as_ref().and_then(|pod| pod.trouble.as_ref());
    let refusal = member.refused.as_ref().filter(|_| member.pod.is_none());
    pod_failure.or(refusal).filter(|failure| failure.lasts).map(|failure| failure.reason)
}

/// Returns a configuration that a pilot rejects. No time makes it valid.
fn rejection_cause(observed: &ObservedCluster) -> Option<StallCause> {
    observed.pools.iter().flat_map(super::existing_nodes).find_map(|member| {
        let error = member.pilot.as_ref()?.validated.as_ref()?.as_ref().err()?;
        let message = format!("{}: {error}; {}", member.name, Remedy::Correct);
        Some(StallCause { reason: "ConfigRejected", message })
    })
}
