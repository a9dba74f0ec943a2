//! Removes what nodes and pools leave behind: claims, Pilots, StatefulSets.

use super::{
    AwaitedStep, Candidate, OperationType, Plan, PlannedStep, Remedy, StepBlocker, World,
    step::ClaimRef,
};
use crate::{
    api::{predicate, v1beta1::ForgetPhase},
    controller::{
        desired_state::DesiredPool,
        observe::{Member, ObservedPool, PilotFacts},
    },
};

/// Removes the claims, Pilots and StatefulSets of nodes and pools that no longer exist.
pub(super) fn prune_objects(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for pool in &world.observed.pools {
        let desired_pool = world.desired.pool(&pool.name);
        for (ordinal, member) in pool.members.range(pool.replicas()..) {
            candidates.extend(prune_node(world, *ordinal, pool, member));
        }
        let is_empty = pool.members.values().all(|member| member.pod.is_none());
        if desired_pool.is_none() && pool.set.is_some() && pool.replicas() == 0 && is_empty {
            let step =
                PlannedStep::DeletePool { pool: pool.name.clone(), set: pool.set_name.clone() };
            candidates.push(Candidate::from_step(OperationType::ScaleDown, step));
        }
    }
    candidates.extend(clear_forget_requests(world));
    candidates
}

fn prune_node(
    world: World<'_>,
    ordinal: u32,
    pool: &ObservedPool,
    member: &Member,
) -> Option<Candidate> {
    let pilot = member.pilot.as_ref()?;
    let desired_pool = world.desired.pool(&pool.name);
    // A Pilot is made before the StatefulSet grows, so a wanted Pilot may still wait for its pod.
    let is_awaited = desired_pool.is_some_and(|pool| ordinal < pool.replicas);
    let is_gone = pilot.decommissioned || member.is_data_discarded();
    if member.pod.is_some() || (is_awaited && !is_gone) {
        return None;
    }
    if is_gone || !member.may_be_member() {
        // A pool that left the spec took its retention rule with it, so its claims are kept, but
        // for those whose data were given up.
        let can_delete_claim =
            desired_pool.map_or(member.is_data_discarded(), DesiredPool::delete_claim_when_scaled);
        return match living_claim(member).filter(|_| can_delete_claim && is_gone) {
            Some(claim) => {
                let pilot = member.name.clone();
                let step = PlannedStep::DeleteClaim { pilot, claim };
                Some(Candidate::from_step(OperationType::ScaleDown, step))
            }
            None => Some(delete_lost_pilot(world, member, pilot)),
        };
    }
    if !pool.orphan {
        return None;
    }
    // The pool left the spec, and another hand deleted its StatefulSet.
    match &member.claim {
        Some(claim) => Some(Candidate::from_blockers(
            OperationType::ScaleDown,
            [StepBlocker {
                predicate: predicate::DATA_LEFT.name.into(),
                step: format!("RemovePilot/{}", member.name),
                message: format!(
                    "{} has data on claim {}, and its node pool {} has no StatefulSet any more",
                    member.name, claim.name, pool.name
                ),
                remedy: Remedy::WantPool { node: member.name.clone(), data: claim.uid.clone() },
            }],
        )),
        None => Some(delete_lost_pilot(world, member, pilot)),
    }
}

/// Deletes the Pilot of a node that is gone, after the database of the others has forgotten it.
fn delete_lost_pilot(world: World<'_>, member: &Member, pilot: &PilotFacts) -> Candidate {
    let lost_id = pilot.node_id.as_ref().filter(|_| !pilot.decommissioned && pilot.identity);
    lost_id.and_then(|id| forget_node(world, member, id)).unwrap_or_else(|| {
        let step = PlannedStep::DeletePilot { pilot: member.name.clone(), uid: pilot.uid.clone() };
        Candidate::from_step(OperationType::ScaleDown, step)
    })
}

/// Has a node that serves let its database forget `lost_id`, or waits for that; `None` once it is
/// forgotten.
fn forget_node(world: World<'_>, member: &Member, lost_id: &String) -> Option<Candidate> {
    let nodes = world.running_nodes().filter_map(|(_, _, other)| other);
    let serving_nodes = nodes.filter(|other| other.is_serving() && other.name != member.name);
    let pilots: Vec<_> =
        serving_nodes.filter_map(|other| Some((other, other.pilot.as_ref()?))).collect();
    let current_helper = pilots.iter().find(|(_, pilot)| pilot.spec.forget.contains(lost_id));
    let message = match current_helper {
        Some((helper, pilot)) => {
            let record = pilot.forgotten.iter().find(|entry| entry.node_id == *lost_id);
            if record.is_some_and(|entry| entry.phase == ForgetPhase::Forgotten) {
                return None;
            }
            let progress = record.and_then(|entry| entry.message.as_deref()).unwrap_or("asked");
            format!("{} lets its database forget {}: {progress}", helper.name, member.name)
        }
        None => match pilots.first() {
            Some((helper, pilot)) => {
                let mut nodes = pilot.spec.forget.clone();
                nodes.push(lost_id.clone());
                let step = PlannedStep::Forget { pilot: helper.name.clone(), nodes };
                return Some(Candidate::from_step(OperationType::ScaleDown, step));
            }
            None => format!("waits for a node that serves, to have {} forgotten", member.name),
        },
    };
    let awaited_step = AwaitedStep::new("Cleanup", &member.name, message);
    Some(Candidate::from_wait(OperationType::ScaleDown, awaited_step))
}

/// Takes requests back that were carried out, of nodes that have no Pilot any more.
fn clear_forget_requests(world: World<'_>) -> Option<Candidate> {
    let members = || world.observed.pools.iter().flat_map(|pool| pool.members.values());
    let pilots = || members().filter_map(|member| Some((member, member.pilot.as_ref()?)));
    let exists = |id: &String| pilots().any(|(_, pilot)| pilot.node_id.as_ref() == Some(id));
    pilots().find_map(|(member, pilot)| {
        let is_done = |id: &&String| {
            let mut records = pilot.forgotten.iter();
            let is_forgotten =
                records.any(|entry| entry.node_id == **id && entry.phase == ForgetPhase::Forgotten);
            is_forgotten && !exists(id)
        };
        let nodes: Vec<_> = pilot.spec.forget.iter().filter(|id| !is_done(id)).cloned().collect();
        let step = PlannedStep::Forget { pilot: member.name.clone(), nodes: nodes.clone() };
        (nodes != pilot.spec.forget).then(|| Candidate::from_step(OperationType::ScaleDown, step))
    })
}

/// Names the claim of a member, unless it is being deleted.
pub(super) fn living_claim(member: &Member) -> Option<ClaimRef> {
    let claim = member.claim.as_ref().filter(|claim| !claim.terminating)?;
    Some(ClaimRef { name: claim.name.clone(), uid: claim.uid.clone() })
}
