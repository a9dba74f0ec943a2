//! Nodes that are asked to leave their machines: who goes next, who waits for a machine, and what is
//! answered.
//!
//! A request is an annotation of a Pilot that names one pod. Its answer is that this pod is deleted,
//! as soon as the gates of a restart let it go: one node of a cluster at a time, whatever
//! `maxUnavailable` allows. A node that cannot come back elsewhere, since its volume is on the
//! machine that it left, is away as expected: others of that machine may follow it where their data
//! stay available, and nobody is asked to give its data up.

use super::{Candidate, OperationType, Plan, PlannedStep, Remedy, StepBlocker, World, roll};
use crate::{
    api::predicate,
    controller::{
        desired_state::DesiredCluster,
        observe::{Member, ObservedCluster, PilotFacts, PodFailure},
    },
};

/// The step's name in `status.operation`.
pub(crate) const VACATE_POD: &str = "VacatePod";

/// Returns the nodes that are asked to leave, in the order of restarts: the last ordinal first, and
/// the elected master very last.
pub(super) fn vacate(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let mut asked: Vec<&Member> = world.running().filter_map(|(_, _, member)| member).collect();
    asked.reverse();
    asked.retain(|member| is_asked(member));
    asked.sort_by_key(|member| {
        (member.pilot.as_ref().is_some_and(|pilot| pilot.elected), member.eligible())
    });
    asked.into_iter().filter_map(|member| candidate(world, member)).collect()
}

/// Is the pod that the node has now asked to leave its machine?
fn is_asked(member: &Member) -> bool {
    let (Some(pod), Some(pilot)) = (&member.pod, &member.pilot) else { return false };
    pilot.leave.as_ref().is_some_and(|request| request.pod == pod.uid && !pod.terminating)
}

fn candidate(world: World<'_>, member: &Member) -> Option<Candidate> {
    let (pod, pilot) = (member.pod.as_ref()?, member.pilot.as_ref()?);
    let step = PlannedStep::Vacate {
        pilot: member.name.clone(),
        pod: pod.uid.clone(),
        by: pilot.leave.as_ref()?.by.clone(),
    };
    if member.serving() {
        return Some(Candidate::step(OperationType::Vacate, step));
    }
    // `absence` waits for a node that starts, and tells of one that a person keeps down.
    let broken = pod.trouble.is_some() || member.fails();
    if !broken || member.held().is_some() || member.at_work() {
        return None;
    }
    let lost = roll::lost_with_pod(world.desired, member);
    let lost = lost.map(|block| StepBlocker { step: named(&member.name), ..block });
    Some(match lost {
        Some(block) => Candidate::hold(OperationType::Vacate, [block]),
        None => Candidate::step(OperationType::Vacate, step),
    })
}

fn named(node: &str) -> String {
    format!("{VACATE_POD}/{node}")
}

/// Returns the machine that the node left at a request and waits for: no pod is scheduled there now,
/// and no other machine takes the node. The scheduler's words tell, since the controller may not read
/// Nodes. Where other machines lack room, the node is in trouble: room can be made.
pub(crate) fn stays(member: &Member) -> Option<&str> {
    let (pod, pilot) = (member.pod.as_ref()?, member.pilot.as_ref()?);
    let request = pilot.leave.as_ref()?;
    let left = request.pod != pod.uid && pilot.instance.as_ref() == Some(&request.pod);
    let waits = pod.trouble.as_ref().is_some_and(|trouble| {
        let says = |words: &str| trouble.message.contains(words);
        trouble.reason == "Unschedulable" && says("were unschedulable") && !says("Insufficient")
    });
    pilot.machine.as_deref().filter(|_| left && waits && !pod.terminating)
}

/// Does the scheduler say that the pod's volume keeps it from machines?
pub(super) fn is_bound_by_volume(trouble: &PodFailure) -> bool {
    let words = ["volume node affinity conflict", "PersistentVolume's node affinity"];
    words.iter().any(|words| trouble.message.contains(words))
}

/// Says what a node waits for that left this machine.
pub(super) fn stays_until(member: &Member, machine: &str) -> String {
    let name = &member.name;
    let trouble = member.pod.as_ref().and_then(|pod| pod.trouble.as_ref());
    if trouble.is_some_and(is_bound_by_volume) {
        return format!("{name} stays with its volume: machine {machine} is cordoned");
    }
    format!("{name} waits for machine {machine}, which is cordoned: no other takes its pod")
}

/// Returns the block of a node that waits for its machine.
pub(super) fn away(member: &Member, machine: &str) -> StepBlocker {
    StepBlocker {
        predicate: predicate::MACHINE_CORDONED.name.into(),
        step: format!("WaitHealthy/{}", member.name),
        message: stays_until(member, machine),
        remedy: Remedy::Uncordon { machine: machine.to_owned() },
    }
}

/// What the answer to a request waits for, to be written into the Pilot of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaveAnswer {
    pub(crate) pilot: String,
    pub(crate) resource_version: String,
    /// Rule or reason, and a sentence; `None` where nothing is asked, or the node leaves.
    pub(crate) waits: Option<String>,
}

/// Returns the answers that differ from what the Pilots say.
pub(crate) fn answers(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    plan: &Plan,
) -> Vec<LeaveAnswer> {
    let members = observed.pools.iter().flat_map(|pool| pool.members.values());
    let owned = |pilot: &&PilotFacts| pilot.owned;
    let pilots = members.filter_map(|member| Some((member, member.pilot.as_ref().filter(owned)?)));
    let answer = |(member, pilot): (&Member, &PilotFacts)| {
        let waits = is_asked(member).then(|| waits_for(desired, plan, member)).flatten();
        (waits != pilot.leave_waits).then(|| LeaveAnswer {
            pilot: member.name.clone(),
            resource_version: pilot.resource_version.clone(),
            waits,
        })
    };
    pilots.filter_map(answer).collect()
}

/// Says what a request waits for: what holds the node itself, else what is done or waited for first.
fn waits_for(desired: &DesiredCluster, plan: &Plan, member: &Member) -> Option<String> {
    if desired.paused {
        return Some("ClusterPaused: spec.paused is true, so nothing is changed".to_owned());
    }
    if let Some(stalled) = &desired.stalled {
        return Some(format!("{}: {}", stalled.reason, stalled.message));
    }
    if matches!(&plan.step, Some(PlannedStep::Vacate { pilot, .. }) if *pilot == member.name) {
        return None;
    }
    let said =
        |block: &StepBlocker| format!("{}: {}; {}", block.predicate, block.message, block.remedy);
    let own = plan.blocked.iter().find(|block| block.step == named(&member.name));
    let about =
        || plan.blocked.iter().find(|block| block.step.ends_with(&format!("/{}", member.name)));
    if let Some(block) = own.or_else(about) {
        return Some(said(block));
    }
    let reason = plan.operation.map_or("NodesNotReady", OperationType::reason);
    Some(match (&plan.step, &plan.waiting, plan.blocked.first()) {
        (Some(step), ..) => {
            let node = step.pilot().map(|pilot| format!(" of {pilot}")).unwrap_or_default();
            format!("{reason}: step {}{node} comes first", step.name())
        }
        (None, Some(waiting), _) => format!("{reason}: {}", waiting.sentence()),
        (None, None, Some(block)) => said(block),
        (None, None, None) => match roll::lost_with_pod(desired, member) {
            Some(block) => said(&block),
            None => format!("{reason}: the next step is decided anew"),
        },
    })
}
