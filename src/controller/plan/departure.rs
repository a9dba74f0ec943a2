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

/// Returns whether the node's pilot reports why the node cannot be decommissioned.
pub(super) fn is_decommission_refused(member: &Member) -> bool {
    decommission_refusals(member).next().is_some()
}

fn decommission_refusals(member: &Member) -> impl Iterator<Item = &BlockerFacts> {
    let pilot = member.pilot.as_ref().filter(|pilot| !pilot.hearing.is_over());
    let blockers = pilot.into_iter().flat_map(|pilot| &pilot.blockers);
    // A blocker that is also against a stop is no refusal: it is about the cluster, not about this
    // decommission.
    blockers.filter(|blocker| blocker.against == [NodeChange::Leave])
}

/// Removes nodes that have left, and continues or cancels decommissions that were begun.
pub(super) fn finish_decommissions(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for pool in &world.observed.pools {
        for (ordinal, member) in pool.nodes() {
            candidates.extend(member.and_then(|member| finish_node(world, pool, ordinal, member)));
        }
    }
    candidates
}

fn finish_node(
    world: World<'_>,
    pool: &ObservedPool,
    ordinal: u32,
    member: &Member,
) -> Option<Candidate> {
    let desired_replicas = world.desired_replicas(pool);
    let is_last = ordinal + 1 == pool.replicas();
    let is_surplus = pool.replicas() > desired_replicas;
    let remove_node = || {
        let (pool, pilot) = (pool.name.clone(), member.name.clone());
        Candidate::from_step(
            OperationType::ScaleDown,
            PlannedStep::Remove { pool, pilot, to: ordinal },
        )
    };
    let is_needless = member.user_intent().is_none() && never_joined(member, world, pool);
    if !member.has_intent(&PilotIntent::Decommissioned) {
        // The node left by itself, or its data were given up, or it has no data to move away and no
        // database that could move data.
        let is_empty = is_needless || (member.user_intent().is_none() && member.never_ran());
        let can_go = member.is_decommissioned() || member.is_data_discarded() || is_empty;
        if is_last && is_surplus && can_go {
            return Some(remove_node());
        }
        let is_leaving = member.user_intent() == Some(PilotIntent::Decommissioned);
        return (is_leaving && member.is_serving() && !member.is_decommissioned())
            .then(|| await_decommission(member));
    }
    // A node that never joined, and whose database does not run, has nothing to move away.
    let cancel_decommission = || {
        let step = PlannedStep::Keep { pilot: member.name.clone() };
        Candidate::from_step(OperationType::ScaleUp, step)
    };
    if member.is_decommissioned() || member.is_data_discarded() || (is_surplus && is_needless) {
        // A node that is desired again joins again, empty (`repair`), and must not leave for that.
        return if is_last && is_surplus {
            Some(remove_node())
        } else {
            (ordinal < desired_replicas).then(cancel_decommission)
        };
    }
    let is_irreversible = member.pilot.as_ref().is_some_and(|pilot| pilot.irreversible);
    if ordinal < desired_replicas && !is_irreversible {
        return Some(cancel_decommission());
    }
    // `absence` reports a node that is gone with its machine. The API rejects some pilots, so their
    // progress is unknown; `renewal` reports that.
    let is_gone = AbsentNode { pool, ordinal, member: Some(member) }.is_long_unavailable()
        && !member.is_serving();
    (member.unauthorized_until().is_none() && !is_gone).then(|| await_decommission(member))
}

/// Waits for a node that leaves, or says why it cannot.
fn await_decommission(member: &Member) -> Candidate {
    let blockers: Vec<StepBlocker> = decommission_refusals(member)
        .map(|blocker| StepBlocker {
            predicate: blocker.predicate.clone().into(),
            step: format!("DrainPilot/{}", member.name),
            message: format!("{}: {}", member.name, blocker.message),
            remedy: Remedy::WantNode { node: member.name.clone() },
        })
        .collect();
    if !blockers.is_empty() {
        return Candidate::from_blockers(OperationType::ScaleDown, blockers);
    }
    let awaited_step = AwaitedStep::new("DrainPilot", &member.name, decommission_progress(member));
    Candidate::from_wait(OperationType::ScaleDown, awaited_step)
}

pub(super) fn decommission_progress(member: &Member) -> String {
    let reported_progress = member.pilot.as_ref().and_then(|pilot| pilot.progress.clone());
    reported_progress.unwrap_or_else(|| format!("{} is moving its data away", member.name))
}

/// Returns whether the database of a node never served, so that the node may go as it is. This
/// needs another node that is a member: until then, all others may wait for this node to bootstrap
/// the cluster. A node that cannot start bootstraps none if its volume is empty and its node pool
/// is gone.
fn never_joined(member: &Member, world: World<'_>, pool: &ObservedPool) -> bool {
    let mut members = world.observed.pools.iter().flat_map(|pool| pool.members.values());
    let is_bootstrapped = members.any(|other| other.has_identity() && !other.is_decommissioned());
    let has_failed = member.pilot.as_ref().is_some_and(|pilot| pilot.failed);
    let is_in_vain = has_failed && member.is_empty() && world.desired.pool(&pool.name).is_none();
    (is_bootstrapped || is_in_vain) && member.never_served()
}

/// Asks the last node of a pool that has too many to leave.
pub(super) fn scale_down(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let has_surplus = |pool: &&ObservedPool| pool.replicas() > world.desired_replicas(pool);
    // Pools that left the spec come last in the list and are decommissioned first; masters stay
    // longest. A new node comes before an old one goes, unless it waits for another version, which
    // itself waits until such pools are gone.
    let pools = world.observed.pools.iter();
    let Some(pool) = pools.rev().filter(has_surplus).min_by_key(|pool| pool.has_eligible_node())
    else {
        return Vec::new();
    };
    let has_left_spec = world.desired.pool(&pool.name).is_none();
    let is_upgrade_first = has_left_spec && roll::changes_version(world);
    if super::growth::pool_to_scale_up(world).is_some() && !is_upgrade_first {
        return Vec::new();
    }
    let Some(member) = pool.members.get(&(pool.replicas() - 1)) else { return Vec::new() };
    if !member.is_serving() || member.intent() == PilotIntent::Decommissioned {
        return Vec::new();
    }
    if member.is_eligible() && !roll::changes_version(world) && masters_come(world) {
        return Vec::new();
    }
    let step = PlannedStep::Decommission { pilot: member.name.clone() };
    vec![Candidate::from_step(OperationType::ScaleDown, step)]
}

/// Returns whether a node that serves will become eligible as master. It gets the node role before
/// another master leaves.
fn masters_come(world: World<'_>) -> bool {
    let lacks_role = |(_, member): (u32, Option<&Member>)| {
        member.is_some_and(|member| member.is_serving() && !member.is_eligible())
    };
    let gains_master = |(pool, desired_pool): (&ObservedPool, &DesiredPool)| {
        desired_pool.eligible && pool.nodes().any(lacks_role)
    };
    !world.desired.strategy.on_delete && world.desired_pools().any(gains_master)
}

/// Returns the block of a node without which the cluster could not go on. Where the database cluster has
/// nodes elsewhere, the node's own pilot knows whether they take its data.
pub(super) fn last_of_its_kind(
    world: World<'_>,
    step: &PlannedStep,
    member: &Member,
) -> Option<StepBlocker> {
    let count_replicas = |is_counted: &dyn Fn(&ObservedPool) -> bool| {
        let pools = world.observed.pools.iter().filter(|pool| is_counted(pool));
        pools.map(ObservedPool::replicas).sum::<u32>()
    };
    let (predicate, message) =
        if member.is_eligible() && count_replicas(&ObservedPool::has_eligible_node) == 1 {
            ("QuorumKept", format!("{} is the last node that can be elected master", member.name))
        } else if count_replicas(&|_| true) == 1 && !world.desired.nodes_elsewhere {
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

/// Blocks a node's decommission until the other nodes have cleaned up. They get ranges back from
/// the node that leaves, and may still hold rows of those ranges from before they gave them away.
/// Rows that were deleted since would come back.
pub(super) fn check_pending_cleanup(world: World<'_>, leaving: &Member) -> Option<Verdict> {
    let desired = world.desired;
    if desired.strategy.is_skipped(roll::CLEANUP_PENDING) {
        return None;
    }
    let reports =
        world.running_nodes().filter_map(|(_, _, member)| Some((member?, member?.pilot.as_ref()?)));
    let reports: Vec<_> = reports.filter(|(member, _)| !member.is_decommissioned()).collect();
    let other_reports = || reports.iter().filter(|(other, _)| other.name != leaving.name);
    let pending_cleanup = other_reports().find_map(|(other, pilot)| {
        Some((other, pilot.cleanup.as_ref().filter(|cleanup| cleanup.due)?))
    });
    if let Some((other, cleanup)) = pending_cleanup {
        let blocker = StepBlocker {
            predicate: roll::CLEANUP_PENDING.into(),
            step: format!("DrainPilot/{}", leaving.name),
            message: format!("{}: {}", other.name, cleanup.message),
            remedy: Remedy::CleanUp {
                cluster: desired.name.clone(),
                predicate: roll::CLEANUP_PENDING.to_owned(),
            },
        };
        return Some(Verdict::Held { waiting: None, blocked: vec![blocker] });
    }
    // A node that has just joined may have taken ranges of a node that has not checked since.
    let mut cleanup_reports = other_reports().filter(|(_, pilot)| pilot.cleanup.is_some());
    let stale_report = cleanup_reports.find(|(_, pilot)| {
        reports.iter().any(|(_, other_pilot)| other_pilot.hearing.returned <= pilot.hearing.ago)
    });
    let (other, _) = stale_report?;
    let message = format!("waits until {} has said whether it gave ranges away", other.name);
    let waiting = Some(AwaitedStep::new("DrainPilot", &leaving.name, message));
    Some(Verdict::Held { waiting, blocked: Vec::new() })
}
