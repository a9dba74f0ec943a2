//! Replicas that are behind: while one is, no other node that may have what it lacks loses its data.
//!
//! A write at QUORUM is on a majority of its replicas. While one of the others lacks writes, the loss
//! of a second one may leave a row on a minority, which reads at QUORUM need not ask. So a node that
//! is behind holds whatever takes the data of another node away, until a user reports its repair or
//! skips the predicate by its name. It never holds its own replacement.

use super::{PlannedStep, Remedy, StepBlocker, World};
use crate::{
    api::names::annotation::REPAIRED,
    controller::observe::{BehindFacts, Member},
};

/// Predicate: no replica lacks writes that the node has.
pub(super) const REPLICA_BEHIND: &str = "ReplicaBehind";

/// Most replicas that one message describes: the length of a condition is limited.
const DESCRIBED: usize = 3;

/// The replicas of a cluster that are behind, without one of its nodes.
pub(crate) struct ReplicasBehind<'a> {
    world: World<'a>,
    replicas: Vec<(&'a Member, &'a BehindFacts)>,
}

impl<'a> ReplicasBehind<'a> {
    /// Finds the replicas other than the node `except`, by what their pilots reported last. `None`
    /// where no replica is behind.
    pub(super) fn find(world: World<'a>, except: Option<&str>) -> Option<Self> {
        let is_counted = |member: &&Member| {
            Some(&*member.name) != except
                && !member.is_decommissioned()
                && !member.is_data_discarded()
        };
        let behind_facts =
            |member: &'a Member| Some((member, member.pilot.as_ref()?.behind.as_ref()?));
        let replicas: Vec<_> =
            all_members(world).filter(is_counted).filter_map(behind_facts).collect();
        (!replicas.is_empty()).then_some(Self { world, replicas })
    }

    /// Describes since when and why the replicas are behind.
    pub(crate) fn description(&self) -> String {
        let descriptions = self.replicas.iter().take(DESCRIBED).map(|(member, facts)| {
            let (name, since) = (&member.name, facts.report.since);
            let flaw =
                facts.report_flaw.map(|flaw| format!(", and its annotation {REPAIRED} {flaw}"));
            let flaw = flaw.unwrap_or_default();
            match facts.report.away_since {
                Some(away_since) => format!(
                    "{name} was away from {away_since} to {since}, for longer than other nodes keep what \
                     it misses{flaw}"
                ),
                None => format!("{name} took the place of a lost node at {since}{flaw}"),
            }
        });
        let remaining_count = self.replicas.len().saturating_sub(DESCRIBED);
        let remaining_note = (remaining_count > 0).then(|| format!("and {remaining_count} more"));
        descriptions.chain(remaining_note).collect::<Vec<_>>().join("; ")
    }

    /// Returns what to type. A repair leaves out the replicas that are down only if it is asked to.
    pub(crate) fn remedy(&self) -> Remedy {
        let desired = self.world.desired;
        let mut members = all_members(self.world);
        let is_down = members.any(|member| {
            member.has_identity() && !member.is_decommissioned() && !member.is_serving()
        });
        let command = self.replicas.first().map_or("", |(_, facts)| {
            if is_down { facts.report.repair_beside_lost } else { facts.report.repair }
        });
        Remedy::Repair {
            nodes: self.replicas.iter().map(|(member, _)| member.name.clone()).collect(),
            namespace: desired.namespace.clone(),
            container: desired.database.names.container,
            command,
            predicate: REPLICA_BEHIND,
        }
    }
}

/// Returns all members, those that are to go among them: the ring may still count on them.
fn all_members(world: World<'_>) -> impl Iterator<Item = &Member> {
    world.observed.pools.iter().flat_map(|pool| pool.members.values())
}

/// Returns the block of a step that takes the data of a node away while another replica is behind.
pub(super) fn step_blocker(world: World<'_>, step: &PlannedStep) -> Option<StepBlocker> {
    let loser = node_losing_data(world, step)?;
    node_blocker(world, step.name(), loser)
}

/// Returns the block of a step `name` with which the data of `member` would go.
pub(super) fn node_blocker(world: World<'_>, name: &str, member: &Member) -> Option<StepBlocker> {
    if world.desired.strategy.is_skipped_by_name(REPLICA_BEHIND) {
        return None;
    }
    let replicas_behind = ReplicasBehind::find(world, Some(&member.name))?;
    Some(StepBlocker {
        predicate: REPLICA_BEHIND.into(),
        step: format!("{name}/{}", member.name),
        message: format!(
            "{}: it may lack writes that {} has",
            replicas_behind.description(),
            member.name
        ),
        remedy: replicas_behind.remedy(),
    })
}

/// Returns the node whose data the step takes away, or hands over. A node that has left the database
/// cluster, or never was in it, has none.
fn node_losing_data<'a>(world: World<'a>, step: &PlannedStep) -> Option<&'a Member> {
    let subject = step.pilot().and_then(|name| world.member(name));
    let loser = match step {
        PlannedStep::Decommission { .. }
        | PlannedStep::Renew { .. }
        | PlannedStep::Remove { .. }
        | PlannedStep::DeleteClaim { .. } => subject,
        // The others copy what the lost node had from one replica each.
        PlannedStep::Forget { nodes, .. } => {
            let forgotten_ids = &subject?.pilot.as_ref()?.spec.forget;
            let id = |member: &Member| member.pilot.as_ref()?.node_id.clone();
            all_members(world).filter(|member| id(member).is_some()).find(|member| {
                id(member).is_some_and(|id| nodes.contains(&id) && !forgotten_ids.contains(&id))
            })
        }
        PlannedStep::Replace { .. }
        | PlannedStep::Restart { .. }
        | PlannedStep::Recreate { .. }
        | PlannedStep::Vacate { .. } => subject.filter(|member| member.dies_with_pod()),
        PlannedStep::Raise { .. }
        | PlannedStep::Return { .. }
        | PlannedStep::Configure { .. }
        | PlannedStep::RestartInPlace { .. }
        | PlannedStep::Keep { .. }
        | PlannedStep::BeginAnew { .. }
        | PlannedStep::TakeWordBack { .. }
        | PlannedStep::KeepData { .. }
        | PlannedStep::ResizeClaim { .. }
        | PlannedStep::RenewSet { .. }
        | PlannedStep::DeletePilot { .. }
        | PlannedStep::DeletePool { .. }
        | PlannedStep::Stop { .. }
        | PlannedStep::Start { .. }
        | PlannedStep::Empty { .. }
        | PlannedStep::Deliver { .. } => None,
    };
    loser.filter(|member| member.has_identity() && !member.is_decommissioned())
}
