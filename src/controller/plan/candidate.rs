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
    /// Returns the desired pools in the order of the spec, as observed and as desired.
    pub(super) fn desired_pools(self) -> impl Iterator<Item = (&'a ObservedPool, &'a DesiredPool)> {
        let World { desired, observed } = self;
        observed.pools.iter().filter_map(|pool| Some((pool, desired.pool(&pool.name)?)))
    }

    /// Returns the number of nodes that are desired of a pool; 0 if the pool left the spec.
    pub(super) fn desired_replicas(self, pool: &ObservedPool) -> u32 {
        self.desired.pool(&pool.name).map_or(0, |desired_pool| desired_pool.replicas)
    }

    /// Returns every node that runs or should run, with the members that have an object.
    pub(super) fn running_nodes(
        self,
    ) -> impl Iterator<Item = (&'a ObservedPool, u32, Option<&'a Member>)> {
        let nodes_of_pool = |pool: &'a ObservedPool| {
            pool.nodes().map(move |(ordinal, member)| (pool, ordinal, member))
        };
        self.observed.pools.iter().flat_map(nodes_of_pool)
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
    /// The node that is next in the rollout order, if the plan tries this candidate because that
    /// node is blocked. The blockers of this candidate are reported only if they need the user, and
    /// nothing before the candidate does.
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
    pub(super) fn from_step(
        operation: impl Into<Option<OperationType>>,
        step: PlannedStep,
    ) -> Self {
        Self { operation: operation.into(), act: CandidateAct::Step(step), in_place_of: None }
    }

    /// Makes the candidate one that is tried because the node `first_member` is held.
    pub(super) fn in_place_of(self, first_member: &Member) -> Self {
        Self { in_place_of: Some(first_member.name.clone()), ..self }
    }

    /// Makes a candidate that has begun, whose end is waited for.
    pub(super) fn from_wait(
        operation: impl Into<Option<OperationType>>,
        awaited_step: AwaitedStep,
    ) -> Self {
        Self {
            operation: operation.into(),
            act: CandidateAct::Await(awaited_step),
            in_place_of: None,
        }
    }

    /// Makes a candidate that a rule holds.
    pub(super) fn from_blockers(
        operation: impl Into<Option<OperationType>>,
        blockers: impl IntoIterator<Item = StepBlocker>,
    ) -> Self {
        let blockers = blockers.into_iter().collect();
        Self { operation: operation.into(), act: CandidateAct::Hold(blockers), in_place_of: None }
    }
}
