//! Unsafe bootstrap: the voters of a database cluster are lost, and one node forms it again, if the
//! user approves.
//!
//! Owns which nodes count as lost, and what blocks an approval. An approval is bound to the id of
//! the database cluster, and only one node receives the request. While a node serves there is an
//! elected leader, so the controller cancels approvals and requests then. One that stayed would
//! count at the next outage. A request that was carried out stays, since nodes that come back later
//! learn from it that their cluster is over.

use super::{AwaitedStep, Candidate, OperationType, Plan, PlannedStep, Remedy, StepBlocker, World};
use crate::{
    api::predicate::QUORUM_LOST,
    controller::observe::{Member, PilotFacts},
};

type Voter<'a> = (&'a Member, &'a PilotFacts);

/// The voters of a database cluster in which no node serves.
struct LeaderlessVoters<'a> {
    /// Those whose volume is lost, discarded or empty, or that are unavailable for long. Not those
    /// that a user keeps down or whose pods are refused: that can be reverted.
    lost: Vec<Voter<'a>>,
    /// Those whose pilots report on their volumes, or that are unavailable for a moment.
    left: Vec<Voter<'a>>,
}

fn nodes_with_pilots(world: World<'_>) -> impl Iterator<Item = Voter<'_>> {
    let members = world.observed.pools.iter().flat_map(|pool| pool.members.values());
    members.filter_map(|member| Some((member, member.pilot.as_ref()?)))
}

/// Returns whether the pilot of the current pod reports.
fn is_reporting((member, pilot): Voter<'_>) -> bool {
    let pod = member.pod.as_ref().filter(|pod| !pod.terminating);
    pod.is_some_and(|pod| pilot.instance.as_ref() == Some(&pod.uid)) && pilot.hearing.is_fresh()
}

impl<'a> LeaderlessVoters<'a> {
    /// Returns `None` while a node serves, by its pilot or by the kubelet: it follows a leader.
    fn find(world: World<'a>) -> Option<Self> {
        let is_pod_ready = |member: &Member| member.pod.as_ref().is_some_and(|pod| pod.ready);
        if nodes_with_pilots(world).any(|(member, pilot)| pilot.ready || is_pod_ready(member)) {
            return None;
        }
        let voters = nodes_with_pilots(world).filter(|(member, pilot)| {
            member.has_identity() && pilot.eligible && !pilot.decommissioned
        });
        let (lost, left) = voters.partition(|(member, pilot)| {
            let is_kept_down = member.user_intent().is_some() || member.refused.is_some();
            let is_unavailable =
                member.has_lasting_failure() && !is_reporting((member, pilot)) && !is_kept_down;
            member.is_data_discarded() || pilot.emptied || is_unavailable
        });
        Some(Self { lost, left })
    }

    /// Returns whether so many voters are lost that the remaining ones elect no leader. A leader
    /// drops unavailable voters while it leads, so that one of many may hold the majority: then all
    /// others wait.
    fn has_lost_quorum(&self) -> bool {
        let is_waiting = |voter: &Voter<'_>| {
            is_reporting(*voter) && voter.1.joins_in_vain && voter.0.user_intent().is_none()
        };
        self.lost.len() >= self.left.len()
            || (!self.lost.is_empty() && self.left.iter().all(is_waiting))
    }

    fn lost_names(&self) -> String {
        let names: Vec<&str> = self.lost.iter().map(|(member, _)| &*member.name).collect();
        names.join(", ")
    }
}

/// Returns whether the node has received the request, and has not carried it out.
fn is_asked(pilot: &PilotFacts) -> bool {
    let request = pilot.spec.unsafe_bootstrap.as_ref();
    request.is_some() && request == pilot.cluster_id.as_ref()
}

/// Returns the remedy if too many voters are lost for a leader to be elected; it replaces
/// `node_remedy`. Discarding their data would not help: nodes that join need a leader.
pub(super) fn bootstrap_remedy(
    world: World<'_>,
    node: &str,
    node_remedy: &Remedy,
) -> Option<Remedy> {
    let is_discard = matches!(node_remedy, Remedy::GiveUp { .. });
    if !is_discard && *node_remedy != Remedy::Wait {
        return None;
    }
    let voters = LeaderlessVoters::find(world).filter(LeaderlessVoters::has_lost_quorum)?;
    if let Some((bootstrap_node, _)) = voters.left.iter().find(|(_, pilot)| is_asked(pilot)) {
        let node = node.to_owned();
        return (is_discard && bootstrap_node.name == node)
            .then_some(Remedy::TakeWordBack { node });
    }
    let can_bootstrap = |(member, pilot): &&Voter<'_>| {
        is_reporting((member, pilot)) && (world.desired.database.begins_anew)(&pilot.spec)
    };
    let (member, pilot) = voters.left.iter().find(can_bootstrap)?;
    if !is_discard && member.name != node {
        return None;
    }
    Some(Remedy::BeginAnew {
        cluster: world.desired.name.clone(),
        node: member.name.clone(),
        id: pilot.cluster_id.clone()?,
        lost: voters.lost_names(),
    })
}

/// Answers each approval of an unsafe bootstrap.
pub(super) fn begin_anew(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    nodes_with_pilots(world).filter_map(|voter| answer_request(world, voter)).collect()
}

fn answer_request(world: World<'_>, (member, pilot): Voter<'_>) -> Option<Candidate> {
    let (approval, request) = (&pilot.unsafe_bootstrap, &pilot.spec.unsafe_bootstrap);
    if approval.is_none() && request.is_none() {
        return None;
    }
    let name = member.name.clone();
    let cancel_bootstrap = |request: bool| {
        let step = PlannedStep::TakeWordBack { pilot: name.clone(), request };
        Some(Candidate::from_step(OperationType::Replace, step))
    };
    let cluster_id = pilot.cluster_id.as_ref();
    let is_approved = cluster_id.is_some() && approval.as_ref() == cluster_id;
    let Some(voters) = LeaderlessVoters::find(world) else {
        // The cluster that the approval is about has a leader after all.
        let is_in_cluster = |other: &PilotFacts| other.ready && other.cluster_id == *request;
        let is_needless =
            request.is_some() && nodes_with_pilots(world).any(|(_, other)| is_in_cluster(other));
        return (approval.is_some() || is_needless).then(|| cancel_bootstrap(is_needless))?;
    };
    match (is_approved, is_asked(pilot)) {
        (true, true) => {
            let message = format!("{name} begins the cluster anew from what it has");
            let awaited_step = AwaitedStep::new("RestartPilot", &name, message);
            Some(Candidate::from_wait(OperationType::Replace, awaited_step))
        }
        (true, false) => Some(judge_request(world, (member, pilot), &voters)),
        (false, true) => cancel_bootstrap(true),
        (false, false) => None,
    }
}

/// Requests the unsafe bootstrap from the node, or reports why the approval is refused.
fn judge_request(world: World<'_>, voter: Voter<'_>, voters: &LeaderlessVoters<'_>) -> Candidate {
    let (name, cluster) = (voter.0.name.clone(), voter.1.cluster_id.clone().unwrap_or_default());
    let Some(reason) = find_refusal(world, voter, voters) else {
        let step = PlannedStep::BeginAnew { pilot: name, cluster };
        return Candidate::from_step(OperationType::Replace, step);
    };
    let blocker = StepBlocker {
        predicate: QUORUM_LOST.name.into(),
        step: format!("RestartPilot/{name}"),
        message: format!("{name} does not begin the cluster anew: {reason}"),
        remedy: Remedy::TakeWordBack { node: name },
    };
    Candidate::from_blockers(OperationType::Replace, [blocker])
}

/// Returns why the node does not run the unsafe bootstrap.
fn find_refusal(
    world: World<'_>,
    (member, pilot): Voter<'_>,
    voters: &LeaderlessVoters<'_>,
) -> Option<String> {
    if !(world.desired.database.begins_anew)(&pilot.spec) {
        return Some("its database has no such way".to_owned());
    }
    if !pilot.eligible {
        return Some("it is no voter, and does not know what the cluster had agreed on".to_owned());
    }
    let requested_node = nodes_with_pilots(world).find(|(other, other_pilot)| {
        other.name != member.name && is_asked(other_pilot) && !other.is_data_discarded()
    });
    if let Some((other, _)) = requested_node {
        return Some(format!("{} was asked before", other.name));
    }
    if member.is_data_discarded() || pilot.emptied {
        return Some("its own data are lost".to_owned());
    }
    if !is_reporting((member, pilot)) {
        return Some("its pilot does not report".to_owned());
    }
    let (lost_count, voter_count) = (voters.lost.len(), voters.lost.len() + voters.left.len());
    (!voters.has_lost_quorum()).then(|| {
        format!("{lost_count} of {voter_count} voters are lost, and the others elect a leader without that")
    })
}
