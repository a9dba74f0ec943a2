//! Decides the next step for a cluster: at most one.
//!
//! The plan is the first of all things that could be done whose gates let it pass. Candidates come
//! in order of preference: bring nodes back, repair what is broken, finish what was begun, then
//! change. Whatever holds an earlier candidate is told, and hides no later one. Reads nothing but
//! [`ObservedCluster`] and [`DesiredCluster`]; writes nothing.
//!
//! Invariants, held by the random walks and the search in the tests:
//! - a node is stopped or decommissioned only while no more nodes are down than may be;
//! - a node that holds data is removed only after its pilot reported that it left, or after a
//!   person gave its data up;
//! - without a step, a cluster that is not as wanted has something that it waits for, with a way
//!   out;
//! - a crash between steps is safe: the next reconcile observes again and decides again.

use std::borrow::Cow;

use super::{desired_state::DesiredCluster, observe::ObservedCluster};
use crate::api::predicate;

mod absence;
mod begin_anew;
mod behind;
mod candidate;
mod deliver;
mod departure;
mod drain;
mod gates;
mod growth;
#[cfg(test)]
pub(crate) mod model;
mod pin;
mod remedy;
mod renewal;
mod repair;
mod roll;
mod room;
mod secure;
mod step;
mod stop;
#[cfg(test)]
pub(super) mod tests;
mod tidy;
mod vacate;
mod volumes;

pub(crate) use behind::ReplicasBehind;
use candidate::{Candidate, Verdict, World};
pub(crate) use deliver::{PilotRollout, RolloutState, pilot_rollout};
pub(crate) use drain::{DrainHold, drain_hold, node_count};
pub(crate) use pin::{BirthSpec, pinned_template, pinned_to, revision_for_new_pod};
pub(crate) use remedy::Remedy;
pub(crate) use renewal::{describe_unauthorized, waits_for_renewal};
pub(crate) use roll::{is_outdated, without_restart};
pub(crate) use step::{ClaimRef, PlannedStep};
pub(crate) use vacate::{LeaveAnswer, VACATE_POD, eviction_answers};

/// The kind of change that is under way in a cluster; `status.operation.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationType {
    Bootstrap,
    ScaleUp,
    ScaleDown,
    Upgrade,
    Configure,
    Resize,
    Replace,
    Stop,
    Start,
    /// Nodes leave their machines, because a person or a program asked for that.
    Vacate,
    /// Encryption and logins are turned on or off.
    Secure,
}

impl OperationType {
    const ALL: [Self; 11] = [
        Self::Bootstrap,
        Self::ScaleUp,
        Self::ScaleDown,
        Self::Upgrade,
        Self::Configure,
        Self::Resize,
        Self::Replace,
        Self::Stop,
        Self::Start,
        Self::Vacate,
        Self::Secure,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Bootstrap => "Bootstrap",
            Self::ScaleUp => "ScaleUp",
            Self::ScaleDown => "ScaleDown",
            Self::Upgrade => "Upgrade",
            Self::Configure => "Configure",
            Self::Resize => "Resize",
            Self::Replace => "Replace",
            Self::Stop => "Stop",
            Self::Start => "Start",
            Self::Vacate => "Vacate",
            Self::Secure => "Secure",
        }
    }

    /// Returns the reason of the Ready condition while the operation lasts.
    pub(crate) fn ready_reason(self) -> &'static str {
        match self {
            Self::Bootstrap | Self::Start => "BootstrapInProgress",
            Self::ScaleUp => "ScaleUpInProgress",
            Self::ScaleDown => "ScaleDownInProgress",
            Self::Upgrade => "UpgradeInProgress",
            Self::Configure => "ConfigureInProgress",
            Self::Resize => "ResizeInProgress",
            Self::Replace => "ReplaceInProgress",
            Self::Stop => "ClusterStopped",
            Self::Vacate => "VacateInProgress",
            Self::Secure => "SecureInProgress",
        }
    }
}

/// A rule that holds up a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepBlocker {
    pub(crate) predicate: Cow<'static, str>,
    /// The step and its pilot, as `step/pilot`.
    pub(crate) step: String,
    pub(crate) message: String,
    pub(crate) remedy: Remedy,
}

impl From<AwaitedStep> for StepBlocker {
    fn from(awaited_step: AwaitedStep) -> Self {
        Self {
            predicate: predicate::MAX_UNAVAILABLE.name.into(),
            step: format!("{}/{}", awaited_step.step, awaited_step.pilot),
            message: awaited_step.message,
            remedy: awaited_step.remedy,
        }
    }
}

/// What was decided for a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The operation that is under way; `None` when the cluster is as desired, or nothing may be
    /// done.
    pub(crate) operation: Option<OperationType>,
    pub(crate) step: Option<PlannedStep>,
    /// The first step and pilot that the plan waits for, of those that need a person if there are
    /// any.
    pub(crate) waiting: Option<AwaitedStep>,
    /// What holds up steps that are preferred to `step`, or all steps.
    pub(crate) blocked: Vec<StepBlocker>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AwaitedStep {
    pub(crate) step: &'static str,
    pub(crate) pilot: String,
    pub(crate) message: String,
    pub(crate) remedy: Remedy,
}

impl AwaitedStep {
    fn new(step: &'static str, pilot: &str, message: String) -> Self {
        Self { step, pilot: pilot.to_owned(), message, remedy: Remedy::Wait }
    }

    /// Says what is waited for, and what a person can do where the wait does not end by itself.
    pub(crate) fn description(&self) -> String {
        match &self.remedy {
            Remedy::Wait => self.message.clone(),
            remedy => format!("{}; {remedy}", self.message),
        }
    }

    /// Does the wait come before its step begins? That is so for a pod that is to be deleted; any
    /// other step has begun, and the wait is for its end.
    pub(crate) fn is_ahead_of_its_step(&self) -> bool {
        ["RecreatePod", VACATE_POD].contains(&self.step)
    }
}

impl Plan {
    /// Is everything that could be done held by rules?
    pub(crate) fn is_blocked(&self) -> bool {
        self.step.is_none() && self.waiting.is_none() && !self.blocked.is_empty()
    }

    /// Notes a wait. One that needs a person is told before one that ends by itself; a further one
    /// that needs a person becomes a block, so that its way out is told as well.
    fn wait_for(&mut self, awaited_step: AwaitedStep) -> Option<StepBlocker> {
        let needs_action = |awaited_step: &AwaitedStep| awaited_step.remedy != Remedy::Wait;
        match &self.waiting {
            Some(first_wait) if needs_action(first_wait) => {
                needs_action(&awaited_step).then(|| awaited_step.into())
            }
            Some(_) if !needs_action(&awaited_step) => None,
            _ => {
                self.waiting = Some(awaited_step);
                None
            }
        }
    }

    /// Notes the first wait, all blocks, and the operation of the candidate that is preferred most.
    fn apply_verdict(&mut self, operation: Option<OperationType>, verdict: Verdict) {
        match verdict {
            Verdict::Go(step) => {
                self.step = Some(step);
                self.operation = operation.or(self.operation);
                return;
            }
            Verdict::Held { waiting, mut blocked } => {
                blocked.extend(waiting.and_then(|awaited_step| self.wait_for(awaited_step)));
                let is_new = |block: &StepBlocker| !self.blocked.contains(block);
                let new_blockers: Vec<_> = blocked.into_iter().filter(is_new).collect();
                self.blocked.extend(new_blockers);
            }
        }
        self.operation = self.operation.or(operation);
    }

    /// Does it tell something that only a person ends?
    fn needs_person(&self) -> bool {
        let awaited_remedy = self.waiting.iter().map(|awaited_step| &awaited_step.remedy);
        let mut remedies = self.blocked.iter().map(|block| &block.remedy).chain(awaited_remedy);
        remedies.any(Remedy::needs_person)
    }
}

/// Returns what to do next for the cluster. The caller does it, and asks again.
pub(crate) fn plan_next_step(desired: &DesiredCluster, observed: &ObservedCluster) -> Plan {
    let mut plan = Plan::default();
    if desired.deleted || desired.paused || desired.stalled.is_some() || observed.stalled.is_some()
    {
        return plan;
    }
    let world = World { desired, observed };
    if let Some(candidate) = volumes::without_set(world) {
        let operation = candidate.operation;
        plan.apply_verdict(operation, gates::check_gates(world, candidate));
        return plan;
    }
    for candidates in candidate_sources(world) {
        let mut is_first_turn_kept = false;
        for candidate in candidates(world, &plan) {
            let (operation, first_node) = (candidate.operation, candidate.in_place_of.clone());
            let mut verdict = gates::check_gates(world, candidate);
            match (&mut verdict, first_node) {
                (first_verdict, None) => {
                    is_first_turn_kept = gates::is_held_briefly(world, first_verdict);
                }
                (Verdict::Go(step), Some(first_node)) => {
                    let is_in_turn = !is_first_turn_kept
                        && gates::is_first_report_newer(world, &first_node, step);
                    if !is_in_turn && !gates::are_apart(world, &first_node, step) {
                        verdict = gates::HELD;
                    }
                }
                (Verdict::Held { waiting, blocked }, Some(_)) => {
                    // Of one that is tried in place of the first, only what a person has to know.
                    let needs_person = plan.needs_person();
                    let is_new = |remedy: &Remedy| !needs_person && remedy.needs_person();
                    *waiting = waiting.take().filter(|awaited_step| is_new(&awaited_step.remedy));
                    blocked.retain(|block| is_new(&block.remedy));
                }
            }
            plan.apply_verdict(operation, verdict);
            if plan.step.is_some() {
                return plan;
            }
        }
    }
    plan
}

/// Returns the replicas of the cluster that are behind; `None` where none is.
pub(crate) fn replicas_behind<'a>(
    desired: &'a DesiredCluster,
    observed: &'a ObservedCluster,
) -> Option<ReplicasBehind<'a>> {
    ReplicasBehind::find(World { desired, observed }, None)
}

/// Returns the candidates of one kind; `plan` is what was found before them.
type CandidateSource = fn(World<'_>, &Plan) -> Vec<Candidate>;

/// Returns the sources of candidates in order of preference.
fn candidate_sources(world: World<'_>) -> &'static [CandidateSource] {
    if world.desired.stopped { &STOPPED } else { &RUNNING }
}

static STOPPED: [CandidateSource; 1] = [stop::stop_cluster];

static RUNNING: [CandidateSource; 16] = [
    stop::start_cluster,
    begin_anew::begin_anew,
    repair::recover_broken_nodes,
    repair::replace_nodes,
    departure::finish_decommissions,
    tidy::prune_objects,
    absence::wait_for_nodes,
    vacate::evict_nodes,
    volumes::grow_volumes,
    renewal::recreate_unauthorized_pods,
    growth::try_pods,
    departure::scale_down,
    roll::restart_outdated_nodes,
    secure::report_blockers,
    growth::scale_up,
    deliver::deliver_next_pilot,
];

/// Returns the operation that was begun; it goes on until every node serves. `None` when nothing
/// was begun: nodes that do not serve then have reasons of their own.
fn current_operation(desired: &DesiredCluster) -> Option<OperationType> {
    let is_initialized = super::observe::find_condition(&desired.status.conditions, "Initialized")
        .is_some_and(|condition| condition.status == "True");
    if !is_initialized {
        return Some(OperationType::Bootstrap);
    }
    let operation_type = desired.status.operation.as_ref()?.type_.as_str();
    OperationType::ALL.into_iter().find(|operation| operation.as_str() == operation_type)
}
