//! Nodes that leave: the drain of the last node of a pool, its progress, and its end.

use super::{
    AwaitedStep, Candidate, OperationType, Plan, PlannedStep, Remedy, StepBlocker, World,
    absence::AbsentNode, candidate::Verdict, roll,
};
use crate::{
    api::v1beta1::{NodeChange, PilotIntent},
    controller::{
        desired_state::DesiredPool,
        observe::{BlockerFacts, Member, ObservedPool},
    },
};

/// Does the node's pilot report why the node cannot leave?
pub(super) fn refuses(member: &Member) -> bool {
    refusals(member).next().is_some()
}

fn refusals(member: &Member) -> impl Iterator<Item = &BlockerFacts> {
    let pilot = member.pilot.as_ref().filter(|pilot| !pilot.hearing.is_over());
    let blockers = pilot.into_iter().flat_map(|pilot| &pilot.blockers);
    // What speaks against a stop as well is no refusal: it is about the cluster, not about this
    // departure.
    blockers.filter(|blocker| blocker.against == [NodeChange::Leave])
}

/// Removes nodes that have left, continues departures that were begun, or takes them back.
pub(super) fn finish(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for pool in &world.observed.pools {
        for (ordinal, member) in pool.running() {
            candidates.extend(member.and_then(|member| one(world, pool, ordinal, member)));
        }
    }
    candidates
}

fn one(world: World<'_>, pool: &ObservedPool, ordinal: u32, member: &Member) -> Option<Candidate> {
    let wanted = world.wanted_of(pool);
    let last = ordinal + 1 == pool.replicas();
    let surplus = pool.replicas() > wanted;
    let remove = || {
        let (pool, pilot) = (pool.name.clone(), member.name.clone());
        Candidate::step(OperationType::ScaleDown, PlannedStep::Remove { pool, pilot, to: ordinal })
    };
    let needless = member.held().is_none() && never_joined(member, world, pool);
    if !member.intends(&PilotIntent::Decommissioned) {
        // The node left by itself, or its data were given up, or it has no data to move away and no
        // database that could move data.
        let empty = needless || (member.held().is_none() && member.never_ran());
        let goes = member.decommissioned() || member.abandoned() || empty;
        if last && surplus && goes {
            return Some(remove());
        }
        let leaves = member.held() == Some(PilotIntent::Decommissioned);
        return (leaves && member.serving() && !member.decommissioned()).then(|| drain(member));
    }
    // A node that never joined, and whose database does not run, has nothing to move away.
    let keep = || {
        let step = PlannedStep::Keep { pilot: member.name.clone() };
        Candidate::step(OperationType::ScaleUp, step)
    };
    if member.decommissioned() || member.abandoned() || (surplus && needless) {
        // One that is wanted again joins again, empty (`repair`), and must not leave for that.
        return if last && surplus { Some(remove()) } else { (ordinal < wanted).then(keep) };
    }
    let irreversible = member.pilot.as_ref().is_some_and(|pilot| pilot.irreversible);
    if ordinal < wanted && !irreversible {
        return Some(keep());
    }
    // `absence` tells of a node that is gone with its machine. The API turns some pilots away, so
    // their progress is unknown; `renewal` reports that.
    let gone = AbsentNode { pool, ordinal, member: Some(member) }.lasts() && !member.serving();
    (member.turned_away().is_none() && !gone).then(|| drain(member))
}

/// Waits for a node that leaves, or says why it cannot.
fn drain(member: &Member) -> Candidate {
    let refused: Vec<StepBlocker> = refusals(member)
        .map(|blocker| StepBlocker {
            predicate: blocker.predicate.clone().into(),
            step: format!("DrainPilot/{}", member.name),
            message: format!("{}: {}", member.name, blocker.message),
            remedy: Remedy::WantNode { node: member.name.clone() },
        })
        .collect();
    if !refused.is_empty() {
        return Candidate::hold(OperationType::ScaleDown, refused);
    }
    let awaited = AwaitedStep::new("DrainPilot", &member.name, progress(member));
    Candidate::wait(OperationType::ScaleDown, awaited)
}

pub(super) fn progress(member: &Member) -> String {
    let said = member.pilot.as_ref().and_then(|pilot| pilot.progress.clone());
    said.unwrap_or_else(|| format!("{} is moving its data away", member.name))
}

/// Did the database of a node never serve, so that the node may go as it is? Only once another node
/// is a member: until then, all others may wait for this node to found the cluster. A node
/// that cannot start founds none if its volume is empty and its node pool is gone.
fn never_joined(member: &Member, world: World<'_>, pool: &ObservedPool) -> bool {
    let mut members = world.observed.pools.iter().flat_map(|pool| pool.members.values());
    let founded = members.any(|other| other.has_identity() && !other.decommissioned());
    let fails = member.pilot.as_ref().is_some_and(|pilot| pilot.failed);
    let in_vain = fails && member.is_empty() && world.desired.pool(&pool.name).is_none();
    (founded || in_vain) && member.never_served()
}

/// Asks the last node of a pool that has too many to leave.
pub(super) fn shrink(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let surplus = |pool: &&ObservedPool| pool.replicas() > world.wanted_of(pool);
    // Pools that left the spec come last in the list and are decommissioned first; masters stay
    // longest. A new node comes before an old one goes, unless it waits for another version, which
    // itself waits until such pools are gone.
    let pools = world.observed.pools.iter();
    let Some(pool) = pools.rev().filter(surplus).min_by_key(|pool| pool.eligible()) else {
        return Vec::new();
    };
    let left = world.desired.pool(&pool.name).is_none();
    let upgrade_first = left && roll::changes_version(world);
    if super::growth::wanted_pool(world).is_some() && !upgrade_first {
        return Vec::new();
    }
    let Some(member) = pool.members.get(&(pool.replicas() - 1)) else { return Vec::new() };
    if !member.serving() || member.intent() == PilotIntent::Decommissioned {
        return Vec::new();
    }
    if member.eligible() && !roll::changes_version(world) && masters_come(world) {
        return Vec::new();
    }
    let step = PlannedStep::Decommission { pilot: member.name.clone() };
    vec![Candidate::step(OperationType::ScaleDown, step)]
}

/// Is a node that serves to become one that can be elected master? It gets the role before another
/// master leaves.
fn masters_come(world: World<'_>) -> bool {
    let lacks_role = |(_, member): (u32, Option<&Member>)| {
        member.is_some_and(|member| member.serving() && !member.eligible())
    };
    let comes = |(pool, wanted): (&ObservedPool, &DesiredPool)| {
        wanted.eligible && pool.running().any(lacks_role)
    };
    !world.desired.strategy.on_delete && world.wanted().any(comes)
}

/// Returns the block of a node without which the cluster could not go on. Where the database cluster has
/// nodes elsewhere, the node's own pilot knows whether they take its data.
pub(super) fn last_of_its_kind(
    world: World<'_>,
    step: &PlannedStep,
    member: &Member,
) -> Option<StepBlocker> {
    let count = |counts: &dyn Fn(&ObservedPool) -> bool| {
        let pools = world.observed.pools.iter().filter(|pool| counts(pool));
        pools.map(ObservedPool::replicas).sum::<u32>()
    };
    let (predicate, message) = if member.eligible() && count(&ObservedPool::eligible) == 1 {
        ("QuorumKept", format!("{} is the last node that can be elected master", member.name))
    } else if count(&|_| true) == 1 && !world.desired.nodes_elsewhere {
        let message = format!("{} is the last node; its data have nowhere to go", member.name);
        ("RangesKeepQuorum", message)
    } else {
        return None;
    };
    Some(StepBlocker {
        predicate: predicate.into(),
        step: format!("{}/{}", step.name(), member.name),
        message,
        remedy: Remedy::KeepNode,
    })
}

/// Holds a node's departure until the other nodes have cleaned up. They get ranges back from the
/// node that leaves, and may still hold rows of those ranges from before they gave them away. Rows
/// that were deleted since would come back.
pub(super) fn owed(world: World<'_>, leaving: &Member) -> Option<Verdict> {
    let desired = world.desired;
    if desired.strategy.skips(roll::CLEANUP_PENDING) {
        return None;
    }
    let heard =
        world.running().filter_map(|(_, _, member)| Some((member?, member?.pilot.as_ref()?)));
    let heard: Vec<_> = heard.filter(|(member, _)| !member.decommissioned()).collect();
    let others = || heard.iter().filter(|(other, _)| other.name != leaving.name);
    let owes = others().find_map(|(other, pilot)| {
        Some((other, pilot.cleanup.as_ref().filter(|cleanup| cleanup.due)?))
    });
    if let Some((other, cleanup)) = owes {
        let block = StepBlocker {
            predicate: roll::CLEANUP_PENDING.into(),
            step: format!("DrainPilot/{}", leaving.name),
            message: format!("{}: {}", other.name, cleanup.message),
            remedy: Remedy::CleanUp {
                cluster: desired.name.clone(),
                predicate: roll::CLEANUP_PENDING.to_owned(),
            },
        };
        return Some(Verdict::Held { waiting: None, blocked: vec![block] });
    }
    // A node that has just joined may have taken ranges of a node that has not checked since.
    let mut speak = others().filter(|(_, pilot)| pilot.cleanup.is_some());
    let unsaid = speak.find(|(_, pilot)| {
        heard.iter().any(|(_, joined)| joined.hearing.returned <= pilot.hearing.ago)
    });
    let (other, _) = unsaid?;
    let message = format!("waits until {} has said whether it gave ranges away", other.name);
    let waiting = Some(AwaitedStep::new("DrainPilot", &leaving.name, message));
    Some(Verdict::Held { waiting, blocked: Vec::new() })
}
