//! Nodes that are wanted and do not exist: one is made at a time.

use super::{Candidate, OperationType, Plan, PlannedStep, World, current_operation, roll};
use crate::controller::{
    desired_state::DesiredPool,
    observe::{Member, ObservedPool},
};

/// Returns the pool that grows next. Masters come first, because no other node serves without one;
/// then the order of the spec.
pub(super) fn pool_to_scale_up(world: World<'_>) -> Option<&ObservedPool> {
    let needs_node = |(pool, desired_pool): &(&ObservedPool, &DesiredPool)| {
        pool.set.is_some() && pool.replicas() < desired_pool.replicas
    };
    world
        .desired_pools()
        .filter(needs_node)
        .min_by_key(|(_, desired_pool)| !desired_pool.eligible)
        .map(|(pool, _)| pool)
}

/// Makes one node more. Not with a configuration that a running node rejects, or has not judged.
pub(super) fn scale_up(world: World<'_>, plan: &Plan) -> Vec<Candidate> {
    if plan.waiting.as_ref().is_some_and(|awaited| awaited.step == roll::JUDGED) {
        return Vec::new();
    }
    let Some(pool) = pool_to_scale_up(world) else { return Vec::new() };
    let step = PlannedStep::Raise { pool: pool.name.clone(), to: pool.replicas() + 1 };
    let is_bootstrap = current_operation(world.desired) == Some(OperationType::Bootstrap);
    let operation = if is_bootstrap { OperationType::Bootstrap } else { OperationType::ScaleUp };
    vec![Candidate::from_step(operation, step)]
}

/// Makes one node more before an old one is touched, where pods are to change: a new pod that
/// cannot be scheduled or started takes no node away then.
pub(super) fn try_pods(world: World<'_>, plan: &Plan) -> Vec<Candidate> {
    let members = || world.running_nodes().filter_map(|(pool, _, member)| Some((pool, member?)));
    let has_current_template = |pool: &ObservedPool, member: &Member| {
        let desired_pool = world.desired.pool(&pool.name)?;
        Some(desired_pool.matches_pod_hash(&member.pod.as_ref()?.hash))
    };
    let is_new =
        |(pool, member): (&ObservedPool, &Member)| has_current_template(pool, member) == Some(true);
    let is_old = |(pool, member): (&ObservedPool, &Member)| {
        has_current_template(pool, member) == Some(false)
    };
    if !members().any(is_old) || members().any(is_new) || roll::changes_version(world) {
        return Vec::new();
    }
    scale_up(world, plan)
}
