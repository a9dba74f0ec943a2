//! Removes what nodes and pools leave behind: claims, Pilots, StatefulSets.

use super::{
    Candidate, OperationType, Plan, PlannedStep, Remedy, StepBlocker, World, step::ClaimRef,
};
use crate::{
    api::predicate,
    controller::{
        desired_state::DesiredPool,
        observe::{Member, ObservedPool},
    },
};

/// Removes the claims, Pilots and StatefulSets of nodes and pools that no longer exist.
pub(super) fn clean_up(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for pool in &world.observed.pools {
        let wanted = world.desired.pool(&pool.name);
        for (ordinal, member) in pool.members.range(pool.replicas()..) {
            candidates.extend(leftover(wanted, *ordinal, pool, member));
        }
        let empty = pool.members.values().all(|member| member.pod.is_none());
        if wanted.is_none() && pool.set.is_some() && pool.replicas() == 0 && empty {
            let step =
                PlannedStep::DeletePool { pool: pool.name.clone(), set: pool.set_name.clone() };
            candidates.push(Candidate::step(OperationType::ScaleDown, step));
        }
    }
    candidates
}

fn leftover(
    wanted: Option<&DesiredPool>,
    ordinal: u32,
    pool: &ObservedPool,
    member: &Member,
) -> Option<Candidate> {
    let pilot = member.pilot.as_ref()?;
    // A Pilot is made before the StatefulSet grows, so a wanted Pilot may still wait for its pod.
    let awaited = wanted.is_some_and(|wanted| ordinal < wanted.replicas);
    let gone = pilot.decommissioned || member.abandoned();
    let needless = gone || (!member.may_be_member() && !awaited);
    if member.pod.is_some() {
        return None;
    }
    if !needless {
        return orphan(wanted, pool, member);
    }
    let name = member.name.clone();
    // A pool that left the spec took its retention rule with it, so its claims are kept, but for
    // those whose data were given up.
    let delete = wanted.map_or(member.abandoned(), DesiredPool::delete_claim_when_scaled);
    let step = match living_claim(member) {
        Some(claim) if delete && gone => PlannedStep::DeleteClaim { pilot: name, claim },
        _ => PlannedStep::DeletePilot { pilot: name, uid: pilot.uid.clone() },
    };
    Some(Candidate::step(OperationType::ScaleDown, step))
}

/// Tells of a node whose volume holds data, and that no StatefulSet runs: its pool left the spec,
/// and the StatefulSet was deleted by another hand.
fn orphan(wanted: Option<&DesiredPool>, pool: &ObservedPool, member: &Member) -> Option<Candidate> {
    if wanted.is_some() || !pool.orphan {
        return None;
    }
    let Some(claim) = &member.claim else {
        // The volume is gone as well.
        let pilot = member.pilot.as_ref()?;
        let step = PlannedStep::DeletePilot { pilot: member.name.clone(), uid: pilot.uid.clone() };
        return Some(Candidate::step(OperationType::ScaleDown, step));
    };
    Some(Candidate::hold(
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
    ))
}

/// Names the claim of a member, unless it is being deleted.
pub(super) fn living_claim(member: &Member) -> Option<ClaimRef> {
    let claim = member.claim.as_ref().filter(|claim| !claim.terminating)?;
    Some(ClaimRef { name: claim.name.clone(), uid: claim.uid.clone() })
}
