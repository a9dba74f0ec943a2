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
pub(super) fn recover_broken_nodes(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (pool, desired_pool) in world.desired_pools() {
        let members = pool.nodes().filter_map(|(_, member)| member);
        candidates.extend(members.filter_map(|member| {
            recreate_leaked_pod(world, pool, member, desired_pool)
                .or_else(|| release_pin(world, pool, member, desired_pool))
                .or_else(|| recover_node(world, pool, member, desired_pool))
        }));
    }
    candidates
}

/// Makes a pod anew that got another version without its node's turn, and never ran with it.
fn recreate_leaked_pod(
    world: World<'_>,
    pool: &ObservedPool,
    member: &Member,
    desired_pool: &DesiredPool,
) -> Option<Candidate> {
    let pod = member.pod.as_ref().filter(|_| pin::is_leaked(member, desired_pool))?;
    let has_run = pod.started && !member.has_failed();
    if member.is_serving() || has_run || roll::pod_data_blocker(world.desired, member).is_some() {
        return None;
    }
    let mark = member
        .pilot
        .as_ref()?
        .pinned
        .as_ref()
        .filter(|mark| !desired_pool.matches_pod_hash(mark))?;
    let step = PlannedStep::Recreate { pilot: member.name.clone(), pod: pod.uid.clone() };
    let is_template_kept = pool.set.as_ref().is_some_and(|set| set.template == *mark);
    is_template_kept.then(|| Candidate::from_step(OperationType::Replace, step))
}

/// Gives the newest spec to a node whose pod is refused, although it has not had its turn: no pod
/// can be made of what it had. The next pod is made of the newest inputs.
fn release_pin(
    world: World<'_>,
    pool: &ObservedPool,
    member: &Member,
    desired_pool: &DesiredPool,
) -> Option<Candidate> {
    member.pilot.as_ref().filter(|pilot| pilot.pinned.is_some())?;
    if member.pod.is_some() || !pin::is_refused(member) || member.user_intent().is_some() {
        return None;
    }
    let blocker = find_version_blocker(world, pool, member, desired_pool);
    let step = PlannedStep::Configure { pilot: member.name.clone() };
    Some(match blocker {
        Some(block) => Candidate::from_blockers(OperationType::Upgrade, [block]),
        None => Candidate::from_step(OperationType::Replace, step),
    })
}

fn recover_node(
    world: World<'_>,
    pool: &ObservedPool,
    member: &Member,
    desired_pool: &DesiredPool,
) -> Option<Candidate> {
    let pod = member.pod.as_ref().filter(|pod| !pod.terminating)?;
    let has_failed = member.pilot.as_ref().is_some_and(|pilot| pilot.failed);
    let is_broken = pod.trouble.is_some() || has_failed;
    // A pod that has missed its deadline may still run its database with a former spec.
    if !is_broken || !roll::needs_change(member, desired_pool) {
        return update_unavailable_node(world, pool, member, desired_pool);
    }
    if roll::is_recreate_futile(pool, member, desired_pool)
        || member.user_intent().is_some()
        || member.at_work()
    {
        return None;
    }
    if vacate::awaited_machine(member).is_some() || can_recover_itself(world, pool, pod) {
        return None;
    }
    if let Some(block) = find_version_blocker(world, pool, member, desired_pool) {
        return Some(Candidate::from_blockers(OperationType::Upgrade, [block]));
    }
    let pilot = member.name.clone();
    let step = if pod.trouble.is_none() && roll::has_current_pod(member, desired_pool) {
        PlannedStep::Configure { pilot }
    } else if roll::pod_data_blocker(world.desired, member).is_some() {
        // `absence` reports this, where it waits for the node.
        return None;
    } else {
        PlannedStep::Replace { pilot, pod: pod.uid.clone() }
    };
    Some(Candidate::from_step(OperationType::Replace, step))
}

/// Brings the newest spec to a node whose database runs and does not serve, as the roll brings it to one
/// that serves: something in the former spec may be the cause. A spec that another node does not serve with
/// goes no further, and neither does one that a canary holds.
fn update_unavailable_node(
    world: World<'_>,
    pool: &ObservedPool,
    member: &Member,
    desired_pool: &DesiredPool,
) -> Option<Candidate> {
    let pilot = member.pilot.as_ref()?;
    let is_lasting = member.runs_without_serving() && pilot.hearing.gone >= STARTS_WITHIN;
    let is_same_version = pilot.spec.version == desired_pool.pilot.version;
    if !is_lasting
        || !is_same_version
        || !roll::is_outdated(member, desired_pool)
        || world.desired.strategy.on_delete
    {
        return None;
    }
    if roll::is_recreate_futile(pool, member, desired_pool) || member.user_intent().is_some() {
        return None;
    }
    // A node that has yet to join may wait for this one. Where it fails, its spec may be the cause.
    let has_failed = |member: &Member| member.pilot.as_ref().is_some_and(|pilot| pilot.failed);
    let has_newest = |node: &AbsentNode<'_>| {
        let desired_pool = world.desired.pool(&node.pool.name);
        let is_conclusive = |member: &Member| !node.is_joining() || has_failed(member);
        let is_newest =
            |member: &Member| desired_pool.is_some_and(|pool| !roll::is_outdated(member, pool));
        node.name() != member.name && node.member.is_some_and(|m| is_conclusive(m) && is_newest(m))
    };
    if roll::canary_is_full(world, &pool.name)
        || absence::missing_nodes(world).any(|node| has_newest(&node))
    {
        return None;
    }
    roll::restart_node(world, OperationType::Replace, pool, member)
}

/// How long a database may run before it serves, until its former spec is taken for the cause.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// May the trouble pass by itself, while a held canary keeps the newest spec from the pool?
fn can_recover_itself(world: World<'_>, pool: &ObservedPool, pod: &PodFacts) -> bool {
    let is_recent = pod.trouble.as_ref().is_some_and(|trouble| !trouble.lasts);
    is_recent && roll::canary_is_full(world, &pool.name)
}

/// Holds another version back from a broken node until a node that serves runs it, and while the
/// canary is held: a version that data were opened with cannot be taken back. A canary holds no version
/// that all nodes run that serve.
fn find_version_blocker(
    world: World<'_>,
    pool: &ObservedPool,
    member: &Member,
    desired_pool: &DesiredPool,
) -> Option<StepBlocker> {
    let version = |member: &Member| member.pilot.as_ref()?.spec.version.clone();
    let current_version = version(member)?;
    let target = desired_pool.pilot.version.clone()?;
    let serving =
        || world.running_nodes().filter_map(|(_, _, member)| member).filter(|m| m.is_serving());
    let is_new = serving().any(|other| version(other).as_ref() != Some(&target));
    let is_canary_held = is_new && roll::canary_is_full(world, &pool.name);
    let is_proven =
        !is_canary_held && serving().any(|other| version(other).as_ref() == Some(&target));
    let is_alone = serving().next().is_none();
    let is_skipped = world.desired.strategy.is_skipped(VERSION_TURN);
    if current_version == target || is_proven || is_alone || is_skipped || !member.may_be_member() {
        return None;
    }
    Some(StepBlocker {
        predicate: VERSION_TURN.into(),
        step: format!("RecreatePod/{}", member.name),
        message: format!(
            "{} does not serve with {current_version}, and gets {target} when {}: {}",
            member.name,
            if is_canary_held { "the canary is over" } else { "a node that serves runs it" },
            super::absence::describe_unready(member)
        ),
        remedy: roll::skip_remedy(world.desired.database, VERSION_TURN),
    })
}

/// Gives a new, empty volume to a node that cannot serve with the volume that it has: a person gave
/// the data up, or the node left the database cluster and is wanted again.
pub(super) fn replace_nodes(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (pool, ordinal, member) in world.running_nodes() {
        let Some(member) = member else { continue };
        let desired_pool = world.desired.pool(&pool.name);
        let has_surplus = pool.replicas() > world.desired_replicas(pool);
        // A word that stayed would count at the next outage.
        let discarded_data = member.pilot.as_ref().and_then(|pilot| pilot.given_up.clone());
        if member.is_serving() && discarded_data.is_some() && discarded_data == member.data_uid() {
            let step = PlannedStep::KeepData { pilot: member.name.clone() };
            candidates.push(Candidate::from_step(OperationType::Replace, step));
        } else if member.is_data_discarded() {
            // The last node of a pool that has too many is removed by `departure`. One before it
            // cannot be: it joins again, to leave in its turn.
            if !(has_surplus && ordinal + 1 == pool.replicas()) {
                candidates.extend(replace_node(member));
            }
        } else if let Some(desired_pool) = desired_pool.filter(|pool| ordinal < pool.replicas)
            && has_left(member)
        {
            let is_claim_kept = !desired_pool.delete_claim_when_scaled();
            candidates.extend(
                match is_claim_kept.then(|| claim_blocker(member, desired_pool)).flatten() {
                    Some(block) => Some(Candidate::from_blockers(OperationType::Replace, [block])),
                    None => replace_node(member),
                },
            );
        }
    }
    candidates
}

/// Does the pilot of the current pod say that the node left the database cluster, while no person
/// and no request asks it to leave?
fn has_left(member: &Member) -> bool {
    let (Some(pod), Some(pilot)) = (&member.pod, &member.pilot) else { return false };
    let is_reporting = pilot.instance.as_ref() == Some(&pod.uid) && pilot.hearing.is_fresh();
    is_reporting && pilot.decommissioned && !pod.terminating && !member.is_decommission_requested()
}

fn claim_blocker(member: &Member, desired_pool: &DesiredPool) -> Option<StepBlocker> {
    let claim = member.claim.as_ref().filter(|claim| !claim.terminating)?;
    Some(StepBlocker {
        predicate: predicate::CLAIM_KEPT.name.into(),
        step: format!("RecreatePod/{}", member.name),
        message: format!(
            "{} left the database cluster, and its volume {} is kept: no node can start on it",
            member.name, claim.name
        ),
        remedy: Remedy::DeleteClaim { claim: claim.name.clone(), pool: desired_pool.name.clone() },
    })
}

/// Returns the step that gives up volume and pod, or the wait for their end.
fn replace_node(member: &Member) -> Option<Candidate> {
    let claim = tidy::living_claim(member);
    let is_living = |pod: &&PodFacts| !pod.terminating;
    let pod = member.pod.as_ref().filter(is_living).map(|pod| pod.uid.clone());
    if claim.is_some() || pod.is_some() {
        let step = PlannedStep::Renew { pilot: member.name.clone(), claim, pod };
        return Some(Candidate::from_step(OperationType::Replace, step));
    }
    let message = format!("waiting for pod {} to end", member.name);
    let is_overdue = member.pod.as_ref()?.overdue;
    let node = member.name.clone();
    let remedy = if is_overdue { Remedy::EndPod { node } } else { Remedy::Wait };
    let awaited_step =
        AwaitedStep { remedy, ..AwaitedStep::new("RecreatePod", &member.name, message) };
    Some(Candidate::from_wait(OperationType::Replace, awaited_step))
}
