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
        observe::{Member, ObservedCluster, PATIENCE, condition},
        plan::{AwaitedStep, Plan, Remedy, StepBlocker},
    },
};

/// Returns why the cluster does not go on without a person; `operation` is what the status will
/// say.
pub(super) fn stalled(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    plan: &Plan,
    operation: Option<&Operation>,
    now: Timestamp,
) -> Option<StallCause> {
    let record = StallRecord { desired, observed, operation, now };
    let waiting = plan.waiting.as_ref().and_then(|waiting| record.waits(waiting));
    waiting
        .or_else(|| plan.blocked.iter().find_map(|block| record.blocks(block)))
        .or_else(|| rejected(observed))
        .or_else(|| record.overdue(plan))
}

/// What is recorded of the times since which the plan waits.
struct StallRecord<'a> {
    desired: &'a DesiredCluster,
    observed: &'a ObservedCluster,
    operation: Option<&'a Operation>,
    now: Timestamp,
}

impl StallRecord<'_> {
    fn waits(&self, waiting: &AwaitedStep) -> Option<StallCause> {
        if !waiting.remedy.needs_person() {
            return None;
        }
        let since = match self.operation {
            Some(operation) => {
                let mut steps = operation.steps.iter().take(1);
                let step = steps.find(|step| {
                    step.name == waiting.step && step.pilot.as_ref() == Some(&waiting.pilot)
                });
                step.and_then(|step| step.start_time.as_ref().map(|since| since.0))
            }
            None => self.unready_since(),
        };
        self.cause(&waiting.pilot, since, "NodesNotReady", &waiting.message, &waiting.remedy)
    }

    fn blocks(&self, block: &StepBlocker) -> Option<StallCause> {
        // Where the database makes copies, the data may be elsewhere soon.
        let copies = self.desired.database.knows_copies
            && block.predicate == predicate::DATA_OUTLIVES_POD.name;
        if !block.remedy.needs_person() || copies {
            return None;
        }
        let since = match self.operation {
            Some(operation) => {
                let mut blocks = operation.blocked_by.iter();
                let known = blocks.find(|known| {
                    known.predicate == block.predicate && known.step.as_ref() == Some(&block.step)
                });
                known.and_then(|known| known.since.as_ref().map(|since| since.0))
            }
            None => self.unready_since(),
        };
        let pilot = block.step.split_once('/').map_or("", |(_, pilot)| pilot);
        self.cause(pilot, since, "PredicateBlocked", &block.message, &block.remedy)
    }

    /// Returns the cause once it has lasted; `reason` where the node has none of its own.
    fn cause(
        &self,
        pilot: &str,
        since: Option<Timestamp>,
        reason: &'static str,
        message: &str,
        remedy: &Remedy,
    ) -> Option<StallCause> {
        let members = self.observed.pools.iter().flat_map(|pool| pool.members.values());
        let mut members = members.filter(|member| member.name == pilot);
        let own = members.find_map(failure);
        let age = since.map_or(0, |since| self.now.duration_since(since).as_secs());
        // A failure of the pod has lasted by the times of Kubernetes.
        let lasts = own.is_some() || age >= i64::try_from(PATIENCE.as_secs()).unwrap_or(i64::MAX);
        let message = format!("{message}; {remedy}");
        lasts.then_some(StallCause { reason: own.unwrap_or(reason), message })
    }

    /// Returns when the cluster ceased to be Ready: an outage is no operation.
    fn unready_since(&self) -> Option<Timestamp> {
        let ready = condition(&self.desired.status.conditions, "Ready");
        ready.filter(|ready| ready.status != "True").map(|ready| ready.last_transition_time.0)
    }

    /// Returns a cause where the step has shown no progress for longer than the deadline.
    fn overdue(&self, plan: &Plan) -> Option<StallCause> {
        let step = self.operation?.steps.first()?;
        let block = plan.blocked.first().filter(|_| plan.is_blocked());
        // A step that was held when the cluster was paused is held no more by what is known.
        let held = step.phase == "Blocked";
        if held && block.is_none_or(|block| block.remedy.is_patient()) {
            return None;
        }
        let since = step.last_progress_time.as_ref().or(step.start_time.as_ref())?;
        let deadline = self.desired.strategy.progress_deadline.as_secs();
        if self.now.duration_since(since.0).as_secs() < i64::try_from(deadline).ok()? {
            return None;
        }
        let (name, pilot) = (&step.name, step.pilot.as_deref().unwrap_or_default());
        let said = step.message.as_deref().unwrap_or("nothing was reported");
        let way = block.map(|block| format!("; {}", block.remedy)).unwrap_or_default();
        Some(StallCause {
            reason: "ProgressDeadlineExceeded",
            message: format!("{name} {pilot} has made no progress for {deadline} s: {said}{way}"),
        })
    }
}

/// Returns the reason of what keeps the node's pod from becoming ready, where it has lasted.
fn failure(member: &Member) -> Option<&'static str> {
    let of_pod = member.pod.as_ref().and_then(|pod| pod.trouble.as_ref());
    let refused = member.refused.as_ref().filter(|_| member.pod.is_none());
    of_pod.or(refused).filter(|found| found.lasts).map(|found| found.reason)
}

/// Returns a configuration that a pilot rejects. No time makes it valid.
fn rejected(observed: &ObservedCluster) -> Option<StallCause> {
    observed.pools.iter().flat_map(super::existing).find_map(|member| {
        let why = member.pilot.as_ref()?.validated.as_ref()?.as_ref().err()?;
        let message = format!("{}: {why}; {}", member.name, Remedy::Correct);
        Some(StallCause { reason: "ConfigRejected", message })
    })
}
