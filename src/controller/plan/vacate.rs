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
pub(super) fn evict_nodes(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let mut requested_members: Vec<&Member> =
        world.running_nodes().filter_map(|(_, _, member)| member).collect();
    requested_members.reverse();
    requested_members.retain(|member| is_asked(member));
    requested_members.sort_by_key(|member| {
        (member.pilot.as_ref().is_some_and(|pilot| pilot.elected), member.is_eligible())
    });
    requested_members.into_iter().filter_map(|member| evict_node(world, member)).collect()
}

/// Is the pod that the node has now asked to leave its machine?
fn is_asked(member: &Member) -> bool {
    let (Some(pod), Some(pilot)) = (&member.pod, &member.pilot) else { return false };
    pilot.leave.as_ref().is_some_and(|request| request.pod == pod.uid && !pod.terminating)
}

fn evict_node(world: World<'_>, member: &Member) -> Option<Candidate> {
    let (pod, pilot) = (member.pod.as_ref()?, member.pilot.as_ref()?);
    let step = PlannedStep::Vacate {
        pilot: member.name.clone(),
        pod: pod.uid.clone(),
        by: pilot.leave.as_ref()?.by.clone(),
    };
    if member.is_serving() {
        return Some(Candidate::from_step(OperationType::Vacate, step));
    }
    // `absence` waits for a node that starts, and tells of one that a person keeps down.
    let is_broken = pod.trouble.is_some() || member.has_failed();
    if !is_broken || member.user_intent().is_some() || member.at_work() {
        return None;
    }
    let blocker = roll::pod_data_blocker(world.desired, member);
    let blocker = blocker.map(|block| StepBlocker { step: step_label(&member.name), ..block });
    Some(match blocker {
        Some(block) => Candidate::from_blockers(OperationType::Vacate, [block]),
        None => Candidate::from_step(OperationType::Vacate, step),
    })
}

fn step_label(node: &str) -> String {
    format!("{VACATE_POD}/{node}")
}

/// Returns the machine that the node left at a request and waits for: no pod is scheduled there now,
/// and no other machine takes the node. The scheduler's words tell, since the controller may not read
/// Nodes. Where other machines lack room, the node is in trouble: room can be made.
pub(crate) fn awaited_machine(member: &Member) -> Option<&str> {
    let (pod, pilot) = (member.pod.as_ref()?, member.pilot.as_ref()?);
    let request = pilot.leave.as_ref()?;
    let has_left = request.pod != pod.uid && pilot.instance.as_ref() == Some(&request.pod);
    let is_waiting = pod.trouble.as_ref().is_some_and(|trouble| {
        let has_text = |text: &str| trouble.message.contains(text);
        trouble.reason == "Unschedulable"
            && has_text("were unschedulable")
            && !has_text("Insufficient")
    });
    pilot.machine.as_deref().filter(|_| has_left && is_waiting && !pod.terminating)
}

/// Does the scheduler say that the pod's volume keeps it from machines?
pub(super) fn is_bound_by_volume(trouble: &PodFailure) -> bool {
    let phrases = ["volume node affinity conflict", "PersistentVolume's node affinity"];
    phrases.iter().any(|phrase| trouble.message.contains(phrase))
}

/// Says what a node waits for that left this machine.
pub(super) fn describe_machine_wait(member: &Member, machine: &str) -> String {
    let name = &member.name;
    let trouble = member.pod.as_ref().and_then(|pod| pod.trouble.as_ref());
    if trouble.is_some_and(is_bound_by_volume) {
        return format!("{name} stays with its volume: machine {machine} is cordoned");
    }
    format!("{name} waits for machine {machine}, which is cordoned: no other takes its pod")
}

/// Returns the block of a node that waits for its machine.
pub(super) fn cordoned_blocker(member: &Member, machine: &str) -> StepBlocker {
    StepBlocker {
        predicate: predicate::MACHINE_CORDONED.name.into(),
        step: format!("WaitHealthy/{}", member.name),
        message: describe_machine_wait(member, machine),
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
pub(crate) fn eviction_answers(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    plan: &Plan,
) -> Vec<LeaveAnswer> {
    let members = observed.pools.iter().flat_map(|pool| pool.members.values());
    let is_owned = |pilot: &&PilotFacts| pilot.owned;
    let pilots =
        members.filter_map(|member| Some((member, member.pilot.as_ref().filter(is_owned)?)));
    let build_answer = |(member, pilot): (&Member, &PilotFacts)| {
        let blocked_by =
            is_asked(member).then(|| describe_eviction_blocker(desired, plan, member)).flatten();
        (blocked_by != pilot.leave_waits).then(|| LeaveAnswer {
            pilot: member.name.clone(),
            resource_version: pilot.resource_version.clone(),
            waits: blocked_by,
        })
    };
    pilots.filter_map(build_answer).collect()
}

/// Says what a request waits for: what holds the node itself, else what is done or waited for first.
fn describe_eviction_blocker(
    desired: &DesiredCluster,
    plan: &Plan,
    member: &Member,
) -> Option<String> {
    if desired.paused {
        return Some("ClusterPaused: spec.paused is true, so nothing is changed".to_owned());
    }
    if let Some(stall) = &desired.stalled {
        return Some(format!("{}: {}", stall.reason, stall.message));
    }
    if matches!(&plan.step, Some(PlannedStep::Vacate { pilot, .. }) if *pilot == member.name) {
        return None;
    }
    let describe_blocker =
        |block: &StepBlocker| format!("{}: {}; {}", block.predicate, block.message, block.remedy);
    let own_blocker = plan.blocked.iter().find(|block| block.step == step_label(&member.name));
    let find_related_blocker =
        || plan.blocked.iter().find(|block| block.step.ends_with(&format!("/{}", member.name)));
    if let Some(block) = own_blocker.or_else(find_related_blocker) {
        return Some(describe_blocker(block));
    }
    let reason = plan.operation.map_or("NodesNotReady", OperationType::ready_reason);
    Some(match (&plan.step, &plan.waiting, plan.blocked.first()) {
        (Some(step), ..) => {
            let node = step.pilot().map(|pilot| format!(" of {pilot}")).unwrap_or_default();
            format!("{reason}: step {}{node} comes first", step.name())
        }
        (None, Some(awaited_step), _) => format!("{reason}: {}", awaited_step.description()),
        (None, None, Some(block)) => describe_blocker(block),
        (None, None, None) => match roll::pod_data_blocker(desired, member) {
            Some(block) => describe_blocker(&block),
            None => format!("{reason}: the next step is decided anew"),
        },
    })
}
