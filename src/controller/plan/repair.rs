//! Nodes that cannot serve as they are: they get the newest spec, or a new volume.

use std::time::Duration;

use super::{
    AwaitedStep, Candidate, OperationType, Plan, PlannedStep, Remedy, StepBlocker, World,
    absence::{self, AbsentNode},
    pin, roll, tidy, vacate,
};
use crate::{
    api::predicate,
    controller::{
        desired_state::DesiredPool,
        observe::{Member, ObservedPool, PodFacts},
    },
};

const VERSION_TURN: &str = predicate::VERSION_TURN.name;

/// Gives a broken node the newest spec, without waiting for other nodes. If only its database
/// cannot run, the pilot takes the spec without a new pod. A node that a person keeps down is left
/// alone, and a node that moves data is not broken.
pub(super) fn replace(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (pool, wanted) in world.wanted() {
        let members = pool.running().filter_map(|(_, member)| member);
        candidates.extend(members.filter_map(|member| {
            taken_back(world, pool, member, wanted)
                .or_else(|| released(world, pool, member, wanted))
                .or_else(|| mend(world, pool, member, wanted))
        }));
    }
    candidates
}

/// Makes a pod anew that got another version without its node's turn, and never ran with it.
fn taken_back(
    world: World<'_>,
    pool: &ObservedPool,
    member: &Member,
    wanted: &DesiredPool,
) -> Option<Candidate> {
    let pod = member.pod.as_ref().filter(|_| pin::leaked(member, wanted))?;
    let ran = pod.started && !member.fails();
    if member.serving() || ran || roll::lost_with_pod(world.desired, member).is_some() {
        return None;
    }
    let mark = member.pilot.as_ref()?.pinned.as_ref().filter(|mark| !wanted.makes(mark))?;
    let step = PlannedStep::Recreate { pilot: member.name.clone(), pod: pod.uid.clone() };
    let kept = pool.set.as_ref().is_some_and(|set| set.template == *mark);
    kept.then(|| Candidate::step(OperationType::Replace, step))
}

/// Gives the newest spec to a node whose pod is refused, although it has not had its turn: no pod
/// can be made of what it had. The next pod is made of the newest inputs.
fn released(
    world: World<'_>,
    pool: &ObservedPool,
    member: &Member,
    wanted: &DesiredPool,
) -> Option<Candidate> {
    member.pilot.as_ref().filter(|pilot| pilot.pinned.is_some())?;
    if member.pod.is_some() || !pin::is_refused(member) || member.held().is_some() {
        return None;
    }
    let held = turn(world, pool, member, wanted);
    let step = PlannedStep::Configure { pilot: member.name.clone() };
    Some(match held {
        Some(block) => Candidate::hold(OperationType::Upgrade, [block]),
        None => Candidate::step(OperationType::Replace, step),
    })
}

fn mend(
    world: World<'_>,
    pool: &ObservedPool,
    member: &Member,
    wanted: &DesiredPool,
) -> Option<Candidate> {
    let pod = member.pod.as_ref().filter(|pod| !pod.terminating)?;
    let failed = member.pilot.as_ref().is_some_and(|pilot| pilot.failed);
    let broken = pod.trouble.is_some() || failed;
    // A pod that has missed its deadline may still run its database with a former spec.
    if !broken || !roll::differs(member, wanted) {
        return corrected(world, pool, member, wanted);
    }
    if roll::in_vain(pool, member, wanted) || member.held().is_some() || member.at_work() {
        return None;
    }
    if vacate::stays(member).is_some() || passes(world, pool, pod) {
        return None;
    }
    if let Some(block) = turn(world, pool, member, wanted) {
        return Some(Candidate::hold(OperationType::Upgrade, [block]));
    }
    let pilot = member.name.clone();
    let step = if pod.trouble.is_none() && roll::fits(member, wanted) {
        PlannedStep::Configure { pilot }
    } else if roll::lost_with_pod(world.desired, member).is_some() {
        // `absence` reports this, where it waits for the node.
        return None;
    } else {
        PlannedStep::Replace { pilot, pod: pod.uid.clone() }
    };
    Some(Candidate::step(OperationType::Replace, step))
}

/// Brings the newest spec to a node whose database runs and does not serve, as the roll brings it to one
/// that serves: something in the former spec may be the cause. A spec that another node does not serve with
/// goes no further, and neither does one that a canary holds.
fn corrected(
    world: World<'_>,
    pool: &ObservedPool,
    member: &Member,
    wanted: &DesiredPool,
) -> Option<Candidate> {
    let pilot = member.pilot.as_ref()?;
    let lasts = member.runs_without_serving() && pilot.hearing.gone >= STARTS_WITHIN;
    let of_version = pilot.spec.version == wanted.pilot.version;
    if !lasts || !of_version || !roll::outdated(member, wanted) || world.desired.strategy.on_delete
    {
        return None;
    }
    if roll::in_vain(pool, member, wanted) || member.held().is_some() {
        return None;
    }
    // A node that has yet to join may wait for this one. Where it fails, its spec may be the cause.
    let fails = |member: &Member| member.pilot.as_ref().is_some_and(|pilot| pilot.failed);
    let has_newest = |node: &AbsentNode<'_>| {
        let wanted = world.desired.pool(&node.pool.name);
        let tells = |member: &Member| !node.joins() || fails(member);
        let newest = |member: &Member| wanted.is_some_and(|wanted| !roll::outdated(member, wanted));
        node.name() != member.name && node.member.is_some_and(|m| tells(m) && newest(m))
    };
    if roll::canary_is_full(world, &pool.name) || absence::down(world).any(|node| has_newest(&node))
    {
        return None;
    }
    roll::restart(world, OperationType::Replace, pool, member)
}

/// How long a database may run before it serves, until its former spec is taken for the cause.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// May the trouble pass by itself, while a held canary keeps the newest spec from the pool?
fn passes(world: World<'_>, pool: &ObservedPool, pod: &PodFacts) -> bool {
    let young = pod.trouble.as_ref().is_some_and(|trouble| !trouble.lasts);
    young && roll::canary_is_full(world, &pool.name)
}

/// Holds another version back from a broken node until a node that serves runs it, and while the
/// canary is held: a version that data were opened with cannot be taken back. A canary holds no version
/// that all nodes run that serve.
fn turn(
    world: World<'_>,
    pool: &ObservedPool,
    member: &Member,
    wanted: &DesiredPool,
) -> Option<StepBlocker> {
    let version = |member: &Member| member.pilot.as_ref()?.spec.version.clone();
    let has = version(member)?;
    let target = wanted.pilot.version.clone()?;
    let serving = || world.running().filter_map(|(_, _, member)| member).filter(|m| m.serving());
    let is_new = serving().any(|other| version(other).as_ref() != Some(&target));
    let canary = is_new && roll::canary_is_full(world, &pool.name);
    let tried = !canary && serving().any(|other| version(other).as_ref() == Some(&target));
    let alone = serving().next().is_none();
    let skipped = world.desired.strategy.skips(VERSION_TURN);
    if has == target || tried || alone || skipped || !member.may_be_member() {
        return None;
    }
    Some(StepBlocker {
        predicate: VERSION_TURN.into(),
        step: format!("RecreatePod/{}", member.name),
        message: format!(
            "{} does not serve with {has}, and gets {target} when {}: {}",
            member.name,
            if canary { "the canary is over" } else { "a node that serves runs it" },
            super::absence::unready(member)
        ),
        remedy: roll::skip(world.desired.database, VERSION_TURN),
    })
}

/// Gives a new, empty volume to a node that cannot serve with the volume that it has: a person gave
/// the data up, or the node left the database cluster and is wanted again.
pub(super) fn renew(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (pool, ordinal, member) in world.running() {
        let Some(member) = member else { continue };
        let wanted = world.desired.pool(&pool.name);
        let surplus = pool.replicas() > world.wanted_of(pool);
        // A word that stayed would count at the next outage.
        let word = member.pilot.as_ref().and_then(|pilot| pilot.given_up.clone());
        if member.serving() && word.is_some() && word == member.data() {
            let step = PlannedStep::KeepData { pilot: member.name.clone() };
            candidates.push(Candidate::step(OperationType::Replace, step));
        } else if member.abandoned() {
            // The last node of a pool that has too many is removed by `departure`. One before it
            // cannot be: it joins again, to leave in its turn.
            if !(surplus && ordinal + 1 == pool.replicas()) {
                candidates.extend(renewed(member));
            }
        } else if let Some(wanted) = wanted.filter(|wanted| ordinal < wanted.replicas)
            && has_left(member)
        {
            let kept = !wanted.delete_claim_when_scaled();
            candidates.extend(match kept.then(|| claim_kept(member, wanted)).flatten() {
                Some(block) => Some(Candidate::hold(OperationType::Replace, [block])),
                None => renewed(member),
            });
        }
    }
    candidates
}

/// Does the pilot of the current pod say that the node left the database cluster, while no person
/// and no request asks it to leave?
fn has_left(member: &Member) -> bool {
    let (Some(pod), Some(pilot)) = (&member.pod, &member.pilot) else { return false };
    let speaks = pilot.instance.as_ref() == Some(&pod.uid) && pilot.hearing.is_fresh();
    speaks && pilot.decommissioned && !pod.terminating && !member.asked_to_leave()
}

fn claim_kept(member: &Member, wanted: &DesiredPool) -> Option<StepBlocker> {
    let claim = member.claim.as_ref().filter(|claim| !claim.terminating)?;
    Some(StepBlocker {
        predicate: predicate::CLAIM_KEPT.name.into(),
        step: format!("RecreatePod/{}", member.name),
        message: format!(
            "{} left the database cluster, and its volume {} is kept: no node can start on it",
            member.name, claim.name
        ),
        remedy: Remedy::DeleteClaim { claim: claim.name.clone(), pool: wanted.name.clone() },
    })
}

/// Returns the step that gives up volume and pod, or the wait for their end.
fn renewed(member: &Member) -> Option<Candidate> {
    let claim = tidy::living_claim(member);
    let living = |pod: &&PodFacts| !pod.terminating;
    let pod = member.pod.as_ref().filter(living).map(|pod| pod.uid.clone());
    if claim.is_some() || pod.is_some() {
        let step = PlannedStep::Renew { pilot: member.name.clone(), claim, pod };
        return Some(Candidate::step(OperationType::Replace, step));
    }
    let message = format!("waiting for pod {} to end", member.name);
    let overdue = member.pod.as_ref()?.overdue;
    let node = member.name.clone();
    let remedy = if overdue { Remedy::EndPod { node } } else { Remedy::Wait };
    let awaited = AwaitedStep { remedy, ..AwaitedStep::new("RecreatePod", &member.name, message) };
    Some(Candidate::wait(OperationType::Replace, awaited))
}
