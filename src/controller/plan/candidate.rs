//! What could be done for a cluster, and whether it may be done now.

use super::{AwaitedStep, OperationType, PlannedStep, StepBlocker};
use crate::controller::{
    desired_state::{DesiredCluster, DesiredPool},
    observe::{Member, ObservedCluster, ObservedPool},
};

/// All that is known of a cluster; candidates and gates read nothing else.
#[derive(Clone, Copy)]
pub(super) struct World<'a> {
    pub(super) desired: &'a DesiredCluster,
    pub(super) observed: &'a ObservedCluster,
}

impl<'a> World<'a> {
    /// Returns the wanted pools in the order of the spec, as observed and as desired.
    pub(super) fn wanted(self) -> impl Iterator<Item = (&'a ObservedPool, &'a DesiredPool)> {
        let World { desired, observed } = self;
        observed.pools.iter().filter_map(|pool| Some((pool, desired.pool(&pool.name)?)))
    }

    /// Returns the number of nodes that are wanted of a pool; 0 where the pool left the spec.
    pub(super) fn wanted_of(self, pool: &ObservedPool) -> u32 {
        self.desired.pool(&pool.name).map_or(0, |wanted| wanted.replicas)
    }

    /// Returns every node that runs or should run, with the members that have an object.
    pub(super) fn running(
        self,
    ) -> impl Iterator<Item = (&'a ObservedPool, u32, Option<&'a Member>)> {
        let each = |pool: &'a ObservedPool| {
            pool.running().map(move |(ordinal, member)| (pool, ordinal, member))
        };
        self.observed.pools.iter().flat_map(each)
    }

    pub(super) fn member(self, name: &str) -> Option<&'a Member> {
        let mut members = self.observed.pools.iter().flat_map(|pool| pool.members.values());
        members.find(|member| member.name == name)
    }
}

/// One thing that could be done, or that is under way.
pub(super) struct Candidate {
    pub(super) operation: Option<OperationType>,
    pub(super) act: CandidateAct,
    /// The node that would have its turn, where this candidate is tried because that node is held.
    /// What holds the candidate is reported only where that needs a person, and nothing before it does.
    pub(super) in_place_of: Option<String>,
}

pub(super) enum CandidateAct {
    Step(PlannedStep),
    Await(AwaitedStep),
    Hold(Vec<StepBlocker>),
}

/// Whether a candidate may be carried out.
pub(super) enum Verdict {
    Go(PlannedStep),
    Held { waiting: Option<AwaitedStep>, blocked: Vec<StepBlocker> },
}

impl Candidate {
    pub(super) fn step(operation: impl Into<Option<OperationType>>, step: PlannedStep) -> Self {
        Self { operation: operation.into(), act: CandidateAct::Step(step), in_place_of: None }
    }

    /// Makes the candidate one that is tried because the node `first` is held.
    pub(super) fn in_place_of(self, first: &Member) -> Self {
        Self { in_place_of: Some(first.name.clone()), ..self }
    }

    /// Makes a candidate that has begun, whose end is waited for.
    pub(super) fn wait(operation: impl Into<Option<OperationType>>, awaited: AwaitedStep) -> Self {
        Self { operation: operation.into(), act: CandidateAct::Await(awaited), in_place_of: None }
    }

    /// Makes a candidate that a rule holds.
    pub(super) fn hold(
        operation: impl Into<Option<OperationType>>,
        blocked: impl IntoIterator<Item = StepBlocker>,
    ) -> Self {
        let blocked = blocked.into_iter().collect();
        Self { operation: operation.into(), act: CandidateAct::Hold(blocked), in_place_of: None }
    }
}
