//! A database cluster whose voters are lost: one node begins it anew, on a person's word.
//!
//! Owns who counts as lost, and what holds such a word. It is bound to the id of the database
//! cluster and asked of one node only. While a node serves there is an elected leader, so words and
//! requests are taken back then: one that stayed would count at the next outage. A request that was
//! carried out stays, since nodes that come back later learn from it that their cluster is over.

use super::{AwaitedStep, Candidate, OperationType, Plan, PlannedStep, Remedy, StepBlocker, World};
use crate::{
    api::predicate::QUORUM_LOST,
    controller::observe::{Member, PilotFacts},
};

type Voter<'a> = (&'a Member, &'a PilotFacts);

/// The voters of a database cluster in which no node serves.
struct LeaderlessVoters<'a> {
    /// Those whose volume is lost, given up or empty, or that are away for long. Not those that a
    /// person keeps down or whose pods are refused: that can be taken back.
    lost: Vec<Voter<'a>>,
    /// Those whose pilots speak for their volumes, or that are away for a moment.
    left: Vec<Voter<'a>>,
}

fn pilots(world: World<'_>) -> impl Iterator<Item = Voter<'_>> {
    let members = world.observed.pools.iter().flat_map(|pool| pool.members.values());
    members.filter_map(|member| Some((member, member.pilot.as_ref()?)))
}

/// Does the pilot of the current pod report?
fn speaks((member, pilot): Voter<'_>) -> bool {
    let pod = member.pod.as_ref().filter(|pod| !pod.terminating);
    pod.is_some_and(|pod| pilot.instance.as_ref() == Some(&pod.uid)) && pilot.hearing.is_fresh()
}

impl<'a> LeaderlessVoters<'a> {
    /// Returns `None` while a node serves, by its pilot or by the kubelet: it follows a leader.
    fn among(world: World<'a>) -> Option<Self> {
        let ready = |member: &Member| member.pod.as_ref().is_some_and(|pod| pod.ready);
        if pilots(world).any(|(member, pilot)| pilot.ready || ready(member)) {
            return None;
        }
        let voters = pilots(world).filter(|(member, pilot)| {
            member.has_identity() && pilot.eligible && !pilot.decommissioned
        });
        let (lost, left) = voters.partition(|(member, pilot)| {
            let kept = member.held().is_some() || member.refused.is_some();
            let away = member.lasts_away() && !speaks((member, pilot)) && !kept;
            member.abandoned() || pilot.emptied || away
        });
        Some(Self { lost, left })
    }

    /// Are so many voters lost that those that are left elect no leader? A leader drops voters that
    /// are away while it leads, so that one of many may hold the majority: then all others wait.
    fn lack_quorum(&self) -> bool {
        let waits =
            |voter: &Voter<'_>| speaks(*voter) && voter.1.joins_in_vain && voter.0.held().is_none();
        self.lost.len() >= self.left.len() || (!self.lost.is_empty() && self.left.iter().all(waits))
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.lost.iter().map(|(member, _)| &*member.name).collect();
        names.join(", ")
    }
}

/// Was the node asked, and has not done it?
fn is_asked(pilot: &PilotFacts) -> bool {
    let request = pilot.spec.unsafe_bootstrap.as_ref();
    request.is_some() && request == pilot.cluster_id.as_ref()
}

/// Returns the way out where too many voters are lost for a leader to be elected, in place of `own`.
/// Giving them up would not help: nodes that join need a leader.
pub(super) fn remedy(world: World<'_>, node: &str, own: &Remedy) -> Option<Remedy> {
    let gives_up = matches!(own, Remedy::GiveUp { .. });
    if !gives_up && *own != Remedy::Wait {
        return None;
    }
    let voters = LeaderlessVoters::among(world).filter(LeaderlessVoters::lack_quorum)?;
    if let Some((asked, _)) = voters.left.iter().find(|(_, pilot)| is_asked(pilot)) {
        let node = node.to_owned();
        return (gives_up && asked.name == node).then_some(Remedy::TakeWordBack { node });
    }
    let able = |(member, pilot): &&Voter<'_>| {
        speaks((member, pilot)) && (world.desired.database.begins_anew)(&pilot.spec)
    };
    let (member, pilot) = voters.left.iter().find(able)?;
    if !gives_up && member.name != node {
        return None;
    }
    Some(Remedy::BeginAnew {
        cluster: world.desired.name.clone(),
        node: member.name.clone(),
        id: pilot.cluster_id.clone()?,
        lost: voters.names(),
    })
}

/// Answers each person's word that a node begins the cluster anew.
pub(super) fn begin_anew(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    pilots(world).filter_map(|voter| answer(world, voter)).collect()
}

fn answer(world: World<'_>, (member, pilot): Voter<'_>) -> Option<Candidate> {
    let (word, request) = (&pilot.unsafe_bootstrap, &pilot.spec.unsafe_bootstrap);
    if word.is_none() && request.is_none() {
        return None;
    }
    let name = member.name.clone();
    let take_back = |request: bool| {
        let step = PlannedStep::TakeWordBack { pilot: name.clone(), request };
        Some(Candidate::step(OperationType::Replace, step))
    };
    let own = pilot.cluster_id.as_ref();
    let means = own.is_some() && word.as_ref() == own;
    let Some(voters) = LeaderlessVoters::among(world) else {
        // The cluster that the word is about has a leader after all.
        let is_of = |found: &PilotFacts| found.ready && found.cluster_id == *request;
        let needless = request.is_some() && pilots(world).any(|(_, found)| is_of(found));
        return (word.is_some() || needless).then(|| take_back(needless))?;
    };
    match (means, is_asked(pilot)) {
        (true, true) => {
            let message = format!("{name} begins the cluster anew from what it has");
            let awaited = AwaitedStep::new("RestartPilot", &name, message);
            Some(Candidate::wait(OperationType::Replace, awaited))
        }
        (true, false) => Some(judged(world, (member, pilot), &voters)),
        (false, true) => take_back(true),
        (false, false) => None,
    }
}

/// Has the node asked, or refuses a person's word.
fn judged(world: World<'_>, voter: Voter<'_>, voters: &LeaderlessVoters<'_>) -> Candidate {
    let (name, cluster) = (voter.0.name.clone(), voter.1.cluster_id.clone().unwrap_or_default());
    let Some(why) = refusal(world, voter, voters) else {
        let step = PlannedStep::BeginAnew { pilot: name, cluster };
        return Candidate::step(OperationType::Replace, step);
    };
    let block = StepBlocker {
        predicate: QUORUM_LOST.name.into(),
        step: format!("RestartPilot/{name}"),
        message: format!("{name} does not begin the cluster anew: {why}"),
        remedy: Remedy::TakeWordBack { node: name },
    };
    Candidate::hold(OperationType::Replace, [block])
}

/// Returns why the node does not begin the cluster anew.
fn refusal(
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
    let asked = pilots(world)
        .find(|(other, found)| other.name != member.name && is_asked(found) && !other.abandoned());
    if let Some((other, _)) = asked {
        return Some(format!("{} was asked before", other.name));
    }
    if member.abandoned() || pilot.emptied {
        return Some("its own data are lost".to_owned());
    }
    if !speaks((member, pilot)) {
        return Some("its pilot does not report".to_owned());
    }
    let (lost, all) = (voters.lost.len(), voters.lost.len() + voters.left.len());
    (!voters.lack_quorum()).then(|| {
        format!("{lost} of {all} voters are lost, and the others elect a leader without that")
    })
}
