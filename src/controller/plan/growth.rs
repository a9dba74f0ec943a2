//! Nodes that are wanted and do not exist: one is made at a time.

use super::{Candidate, OperationType, Plan, PlannedStep, World, roll, under_way};
use crate::controller::{
    desired_state::DesiredPool,
    observe::{Member, ObservedPool},
};

/// Returns the pool that grows next. Masters come first, because no other node serves without one;
/// then the order of the spec.
pub(super) fn wanted_pool(world: World<'_>) -> Option<&ObservedPool> {
    let grows = |(pool, wanted): &(&ObservedPool, &DesiredPool)| {
        pool.set.is_some() && pool.replicas() < wanted.replicas
    };
    world.wanted().filter(grows).min_by_key(|(_, wanted)| !wanted.eligible).map(|(pool, _)| pool)
}

/// Makes one node more. Not with a configuration that a running node rejects, or has not judged.
pub(super) fn grow(world: World<'_>, plan: &Plan) -> Vec<Candidate> {
    if plan.waiting.as_ref().is_some_and(|awaited| awaited.step == roll::JUDGED) {
        return Vec::new();
    }
    let Some(pool) = wanted_pool(world) else { return Vec::new() };
    let step = PlannedStep::Raise { pool: pool.name.clone(), to: pool.replicas() + 1 };
    let bootstrap = under_way(world.desired) == Some(OperationType::Bootstrap);
    let operation = if bootstrap { OperationType::Bootstrap } else { OperationType::ScaleUp };
    vec![Candidate::step(operation, step)]
}

/// Makes one node more before an old one is touched, where pods are to change: a new pod that
/// cannot be scheduled or started takes no node away then.
pub(super) fn try_pods(world: World<'_>, plan: &Plan) -> Vec<Candidate> {
    let members = || world.running().filter_map(|(pool, _, member)| Some((pool, member?)));
    let made = |pool: &ObservedPool, member: &Member| {
        let wanted = world.desired.pool(&pool.name)?;
        Some(wanted.makes(&member.pod.as_ref()?.hash))
    };
    let is_new = |(pool, member): (&ObservedPool, &Member)| made(pool, member) == Some(true);
    let is_old = |(pool, member): (&ObservedPool, &Member)| made(pool, member) == Some(false);
    if !members().any(is_old) || members().any(is_new) || roll::changes_version(world) {
        return Vec::new();
    }
    grow(world, plan)
}
