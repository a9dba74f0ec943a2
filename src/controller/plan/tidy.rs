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
pub(super) fn clean_up(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for pool in &world.observed.pools {
        let wanted = world.desired.pool(&pool.name);
        for (ordinal, member) in pool.members.range(pool.replicas()..) {
            candidates.extend(leftover(world, *ordinal, pool, member));
        }
        let empty = pool.members.values().all(|member| member.pod.is_none());
        if wanted.is_none() && pool.set.is_some() && pool.replicas() == 0 && empty {
            let step =
                PlannedStep::DeletePool { pool: pool.name.clone(), set: pool.set_name.clone() };
            candidates.push(Candidate::step(OperationType::ScaleDown, step));
        }
    }
    candidates.extend(forgotten(world));
    candidates
}

fn leftover(
    world: World<'_>,
    ordinal: u32,
    pool: &ObservedPool,
    member: &Member,
) -> Option<Candidate> {
    let pilot = member.pilot.as_ref()?;
    let wanted = world.desired.pool(&pool.name);
    // A Pilot is made before the StatefulSet grows, so a wanted Pilot may still wait for its pod.
    let awaited = wanted.is_some_and(|wanted| ordinal < wanted.replicas);
    let gone = pilot.decommissioned || member.abandoned();
    if member.pod.is_some() || (awaited && !gone) {
        return None;
    }
    if gone || !member.may_be_member() {
        // A pool that left the spec took its retention rule with it, so its claims are kept, but
        // for those whose data were given up.
        let delete = wanted.map_or(member.abandoned(), DesiredPool::delete_claim_when_scaled);
        return match living_claim(member).filter(|_| delete && gone) {
            Some(claim) => {
                let pilot = member.name.clone();
                let step = PlannedStep::DeleteClaim { pilot, claim };
                Some(Candidate::step(OperationType::ScaleDown, step))
            }
            None => Some(last_of(world, member, pilot)),
        };
    }
    if !pool.orphan {
        return None;
    }
    // The pool left the spec, and another hand deleted its StatefulSet.
    match &member.claim {
        Some(claim) => Some(Candidate::hold(
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
        None => Some(last_of(world, member, pilot)),
    }
}

/// Deletes the Pilot of a node that is gone, after the database of the others has forgotten it.
fn last_of(world: World<'_>, member: &Member, pilot: &PilotFacts) -> Candidate {
    let lost = pilot.node_id.as_ref().filter(|_| !pilot.decommissioned && pilot.identity);
    lost.and_then(|lost| forgetting(world, member, lost)).unwrap_or_else(|| {
        let step = PlannedStep::DeletePilot { pilot: member.name.clone(), uid: pilot.uid.clone() };
        Candidate::step(OperationType::ScaleDown, step)
    })
}

/// Has a node that serves let its database forget `lost`, or waits for that; `None` once it is
/// forgotten.
fn forgetting(world: World<'_>, member: &Member, lost: &String) -> Option<Candidate> {
    let nodes = world.running().filter_map(|(_, _, found)| found);
    let serving = nodes.filter(|found| found.serving() && found.name != member.name);
    let pilots: Vec<_> = serving.filter_map(|found| Some((found, found.pilot.as_ref()?))).collect();
    let asked = pilots.iter().find(|(_, pilot)| pilot.spec.forget.contains(lost));
    let message = match asked {
        Some((asked, pilot)) => {
            let found = pilot.forgotten.iter().find(|found| found.node_id == *lost);
            if found.is_some_and(|found| found.phase == ForgetPhase::Forgotten) {
                return None;
            }
            let said = found.and_then(|found| found.message.as_deref()).unwrap_or("asked");
            format!("{} lets its database forget {}: {said}", asked.name, member.name)
        }
        None => match pilots.first() {
            Some((helper, pilot)) => {
                let mut nodes = pilot.spec.forget.clone();
                nodes.push(lost.clone());
                let step = PlannedStep::Forget { pilot: helper.name.clone(), nodes };
                return Some(Candidate::step(OperationType::ScaleDown, step));
            }
            None => format!("waits for a node that serves, to have {} forgotten", member.name),
        },
    };
    let awaited = AwaitedStep::new("Cleanup", &member.name, message);
    Some(Candidate::wait(OperationType::ScaleDown, awaited))
}

/// Takes requests back that were carried out, of nodes that have no Pilot any more.
fn forgotten(world: World<'_>) -> Option<Candidate> {
    let pools = || world.observed.pools.iter().flat_map(|pool| pool.members.values());
    let pilots = || pools().filter_map(|member| Some((member, member.pilot.as_ref()?)));
    let exists = |id: &String| pilots().any(|(_, pilot)| pilot.node_id.as_ref() == Some(id));
    pilots().find_map(|(member, pilot)| {
        let done = |id: &&String| {
            let mut found = pilot.forgotten.iter();
            let over = found.any(|one| one.node_id == **id && one.phase == ForgetPhase::Forgotten);
            over && !exists(id)
        };
        let nodes: Vec<_> = pilot.spec.forget.iter().filter(|id| !done(id)).cloned().collect();
        let step = PlannedStep::Forget { pilot: member.name.clone(), nodes: nodes.clone() };
        (nodes != pilot.spec.forget).then(|| Candidate::step(OperationType::ScaleDown, step))
    })
}

/// Names the claim of a member, unless it is being deleted.
pub(super) fn living_claim(member: &Member) -> Option<ClaimRef> {
    let claim = member.claim.as_ref().filter(|claim| !claim.terminating)?;
    Some(ClaimRef { name: claim.name.clone(), uid: claim.uid.clone() })
}
