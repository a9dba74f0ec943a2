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
pub(crate) use deliver::{PilotRollout, RolloutState, pilots};
pub(crate) use drain::{DrainHold, drain_hold, nodes};
pub(crate) use pin::{BirthSpec, newborn, pinned, pinned_to};
pub(crate) use remedy::Remedy;
pub(crate) use renewal::{turned_away, waits_for_renewal};
pub(crate) use roll::{outdated, without_restart};
pub(crate) use step::{ClaimRef, PlannedStep};
pub(crate) use vacate::{LeaveAnswer, VACATE_POD, answers};

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
    pub(crate) fn reason(self) -> &'static str {
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
    fn from(awaited: AwaitedStep) -> Self {
        Self {
            predicate: predicate::MAX_UNAVAILABLE.name.into(),
            step: format!("{}/{}", awaited.step, awaited.pilot),
            message: awaited.message,
            remedy: awaited.remedy,
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
    pub(crate) fn sentence(&self) -> String {
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
    fn wait_for(&mut self, awaited: AwaitedStep) -> Option<StepBlocker> {
        let needs = |awaited: &AwaitedStep| awaited.remedy != Remedy::Wait;
        match &self.waiting {
            Some(known) if needs(known) => needs(&awaited).then(|| awaited.into()),
            Some(_) if !needs(&awaited) => None,
            _ => {
                self.waiting = Some(awaited);
                None
            }
        }
    }

    /// Notes the first wait, all blocks, and the operation of the candidate that is preferred most.
    fn note(&mut self, operation: Option<OperationType>, verdict: Verdict) {
        match verdict {
            Verdict::Go(step) => {
                self.step = Some(step);
                self.operation = operation.or(self.operation);
                return;
            }
            Verdict::Held { waiting, mut blocked } => {
                blocked.extend(waiting.and_then(|awaited| self.wait_for(awaited)));
                let new = |block: &StepBlocker| !self.blocked.contains(block);
                let blocked: Vec<_> = blocked.into_iter().filter(new).collect();
                self.blocked.extend(blocked);
            }
        }
        self.operation = self.operation.or(operation);
    }

    /// Does it tell something that only a person ends?
    fn needs_person(&self) -> bool {
        let waiting = self.waiting.iter().map(|awaited| &awaited.remedy);
        let mut told = self.blocked.iter().map(|block| &block.remedy).chain(waiting);
        told.any(Remedy::needs_person)
    }
}

/// Returns what to do next for the cluster. The caller does it, and asks again.
pub(crate) fn plan(desired: &DesiredCluster, observed: &ObservedCluster) -> Plan {
    let mut plan = Plan::default();
    if desired.deleted || desired.paused || desired.stalled.is_some() || observed.stalled.is_some()
    {
        return plan;
    }
    let world = World { desired, observed };
    if let Some(candidate) = volumes::without_set(world) {
        let operation = candidate.operation;
        plan.note(operation, gates::judge(world, candidate));
        return plan;
    }
    for candidates in sources(world) {
        let mut first_has_its_turn = false;
        for candidate in candidates(world, &plan) {
            let (operation, first) = (candidate.operation, candidate.in_place_of.clone());
            let mut verdict = gates::judge(world, candidate);
            match (&mut verdict, first) {
                (first, None) => first_has_its_turn = gates::holds_for_a_moment(world, first),
                (Verdict::Go(step), Some(first)) => {
                    let in_turn =
                        !first_has_its_turn && gates::first_spoke_last(world, &first, step);
                    if !in_turn && !gates::are_apart(world, &first, step) {
                        verdict = gates::HELD;
                    }
                }
                (Verdict::Held { waiting, blocked }, Some(_)) => {
                    // Of one that is tried in place of the first, only what a person has to know.
                    let told = plan.needs_person();
                    let is_new = |remedy: &Remedy| !told && remedy.needs_person();
                    *waiting = waiting.take().filter(|awaited| is_new(&awaited.remedy));
                    blocked.retain(|block| is_new(&block.remedy));
                }
            }
            plan.note(operation, verdict);
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
fn sources(world: World<'_>) -> &'static [CandidateSource] {
    if world.desired.stopped { &STOPPED } else { &RUNNING }
}

static STOPPED: [CandidateSource; 1] = [stop::stop];

static RUNNING: [CandidateSource; 16] = [
    stop::resume,
    begin_anew::begin_anew,
    repair::replace,
    repair::renew,
    departure::finish,
    tidy::clean_up,
    absence::settle,
    vacate::vacate,
    volumes::grow,
    renewal::renew,
    growth::try_pods,
    departure::shrink,
    roll::roll,
    secure::hold,
    growth::grow,
    deliver::deliver,
];

/// Returns the operation that was begun; it goes on until every node serves. `None` when nothing
/// was begun: nodes that do not serve then have reasons of their own.
fn under_way(desired: &DesiredCluster) -> Option<OperationType> {
    let initialized = super::observe::condition(&desired.status.conditions, "Initialized")
        .is_some_and(|condition| condition.status == "True");
    if !initialized {
        return Some(OperationType::Bootstrap);
    }
    let begun = desired.status.operation.as_ref()?.type_.as_str();
    OperationType::ALL.into_iter().find(|operation| operation.as_str() == begun)
}
