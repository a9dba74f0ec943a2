//! Nodes that should serve and do not: what each waits for, and whether it may come back by itself.

use super::{
    AwaitedStep, Candidate, OperationType, Plan, Remedy, StepBlocker, World, begin_anew, behind,
    current_operation, roll, vacate,
};
use crate::{
    api::{names, predicate, v1beta1::PilotIntent},
    controller::{
        desired_state::{DesiredCluster, DesiredPool},
        observe::{Member, ObservedPool, PilotFacts, PodFailure},
    },
};

/// A node that its StatefulSet runs, and that does not serve.
#[derive(Clone, Copy)]
pub(super) struct AbsentNode<'a> {
    pub(super) pool: &'a ObservedPool,
    pub(super) ordinal: u32,
    /// `None` where no object of the node exists.
    pub(super) member: Option<&'a Member>,
}

/// Returns the nodes that do not serve, in the order of their pools.
pub(super) fn unavailable_nodes(world: World<'_>) -> impl Iterator<Item = AbsentNode<'_>> {
    let nodes =
        world.running_nodes().filter(|(_, _, member)| !member.is_some_and(Member::is_serving));
    nodes.map(|(pool, ordinal, member)| AbsentNode { pool, ordinal, member })
}

/// Returns the unavailable nodes that the database cluster misses, or will have again: not those
/// that have left it and are not desired.
pub(super) fn missing_nodes(world: World<'_>) -> impl Iterator<Item = AbsentNode<'_>> {
    unavailable_nodes(world).filter(move |node| {
        let has_left = node.member.is_some_and(Member::is_decommissioned);
        !has_left || node.ordinal < world.desired_replicas(node.pool)
    })
}

/// Returns the nodes that are no longer in their StatefulSet, and whose pods have not ended. A pod
/// is left out if its data were discarded, or if it is overdue after its node was decommissioned:
/// its machine may be gone.
pub(super) fn terminating_nodes(
    world: World<'_>,
) -> impl Iterator<Item = (&ObservedPool, &Member)> {
    let surplus_start = |pool: &'_ ObservedPool| pool.replicas();
    let pools = world.observed.pools.iter();
    let members = pools.flat_map(move |pool| {
        pool.members.range(surplus_start(pool)..).map(move |(_, member)| (pool, member))
    });
    let is_finished = |member: &Member| {
        let is_overdue = member.pod.as_ref().is_some_and(|pod| pod.overdue);
        member.is_data_discarded() || (is_overdue && member.is_decommissioned())
    };
    members.filter(move |(_, member)| member.pod.is_some() && !is_finished(member))
}

impl AbsentNode<'_> {
    pub(super) fn name(&self) -> String {
        names::pilot_name(&self.pool.set_name, self.ordinal)
    }

    /// Returns whether the node has been unavailable for longer than a start or a restart takes.
    pub(super) fn is_long_unavailable(&self) -> bool {
        self.member.is_some_and(Member::has_lasting_failure)
    }

    /// Returns whether the node does not belong to the database cluster yet.
    pub(super) fn is_joining(&self) -> bool {
        !self.member.is_some_and(Member::may_be_member)
    }

    /// Says why the node does not serve, in one sentence.
    pub(super) fn description(&self) -> String {
        let Some(member) = self.member else { return format!("waiting for pod {}", self.name()) };
        vacate::awaited_machine(member).map_or_else(
            || describe_unready(member),
            |machine| vacate::describe_machine_wait(member, machine),
        )
    }

    /// Returns what the user can do so that the node serves, or is no longer waited for. Discarding
    /// a node's data does not help if too many voters are lost.
    pub(super) fn remedy(&self, world: World<'_>) -> Remedy {
        let node_remedy = self.own_remedy();
        begin_anew::bootstrap_remedy(world, &self.name(), &node_remedy).unwrap_or(node_remedy)
    }

    fn own_remedy(&self) -> Remedy {
        let node = self.name();
        if let Some(machine) = self.member.and_then(vacate::awaited_machine) {
            return Remedy::Uncordon { machine: machine.to_owned() };
        }
        let Some(member) = self.member.filter(|_| self.is_long_unavailable()) else {
            return Remedy::Wait;
        };
        if let Some(refusal) = member.refused.as_ref().filter(|_| member.pod.is_none()) {
            return admission_remedy(refusal);
        }
        if member.is_decommissioned() && member.user_intent().is_some() {
            return Remedy::RenewByPhase { node };
        }
        if member.pod.as_ref().is_some_and(|pod| pod.overdue) {
            return Remedy::EndPod { node };
        }
        let reason = member.pod.as_ref().and_then(|pod| Some(pod.trouble.as_ref()?.reason));
        match reason {
            Some("VolumeNotMounted") => {
                return Remedy::MendVolume { node, data: member.data_uid() };
            }
            Some("VolumeLost") => {
                return member
                    .data_uid()
                    .map_or(Remedy::Correct, |data| Remedy::GiveUp { node, data });
            }
            _ => {}
        }
        let is_broken = member.pod.as_ref().is_some_and(|pod| pod.trouble.is_some());
        match member.data_uid() {
            _ if member.user_intent().is_some() && !is_broken => Remedy::ReleasePhase { node },
            // Data of an empty volume cannot be discarded: its database does not start as
            // requested.
            Some(data) if member.may_be_member() && !member.is_empty() && may_be_lost(member) => {
                Remedy::GiveUp { node, data }
            }
            _ => Remedy::Correct,
        }
    }
}

/// Returns whether the volume or the machine of a node may be gone. Returns false if its pod waits
/// for an image or for room, or if its pilot reports why the database does not serve. Then the user
/// can correct the spec.
fn may_be_lost(member: &Member) -> bool {
    let Some(pod) = &member.pod else { return true };
    match &pod.trouble {
        Some(trouble) => trouble.reason == "Unschedulable" && vacate::is_bound_by_volume(trouble),
        None => member.pilot.as_ref().is_none_or(|pilot| pilot.hearing.is_over()),
    }
}

/// Waits until every node serves. A node that a user keeps down, and one that may not get a new
/// pod, is blocked.
pub(super) fn wait_for_nodes(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let operation = current_operation(world.desired);
    // The plan of `renewal` waits for nodes whose pilots the API rejects. A replica that is behind
    // blocks the replacement of nodes whose data were discarded.
    let is_reported_elsewhere = |member: &Member| {
        let is_held = || behind::node_blocker(world, "RecreatePod", member).is_some();
        member.unauthorized_until().is_some() || (member.is_data_discarded() && is_held())
    };
    let unreported_nodes =
        unavailable_nodes(world).filter(|node| !node.member.is_some_and(is_reported_elsewhere));
    let mut candidates: Vec<_> =
        unreported_nodes.map(|node| await_node(world, &node, operation)).collect();
    candidates.extend(
        terminating_nodes(world)
            .map(|(_, member)| wait_for_pod_end(OperationType::ScaleDown, member)),
    );
    candidates
}

/// Waits for the end of a pod.
pub(super) fn wait_for_pod_end(operation: OperationType, member: &Member) -> Candidate {
    let message = format!("waiting for pod {} to end", member.name);
    let is_overdue = member.pod.as_ref().is_some_and(|pod| pod.overdue);
    let node = member.name.clone();
    let remedy = if is_overdue { Remedy::EndPod { node } } else { Remedy::Wait };
    let awaited_step =
        AwaitedStep { remedy, ..AwaitedStep::new("RemovePilot", &member.name, message) };
    Candidate::from_wait(operation, awaited_step)
}

fn await_node(
    world: World<'_>,
    node: &AbsentNode<'_>,
    operation: Option<OperationType>,
) -> Candidate {
    let (name, remedy) = (node.name(), node.remedy(world));
    let desired_pool = world.desired.pool(&node.pool.name);
    let is_surplus = node.ordinal >= world.desired_replicas(node.pool);
    let operation = operation.or(is_surplus.then_some(OperationType::ScaleDown));
    if let Some(member) = node.member {
        if let Some(phase) = member.user_intent() {
            return Candidate::from_blockers(
                operation,
                [phase_blocker(&name, &phase, member, remedy)],
            );
        }
        if let Some(machine) = vacate::awaited_machine(member) {
            let operation = operation.or(Some(OperationType::Vacate));
            return Candidate::from_blockers(
                operation,
                [vacate::cordoned_blocker(member, machine)],
            );
        }
        if let Some(blocker) = admission_blocker(member) {
            return Candidate::from_blockers(operation.or(Some(OperationType::Replace)), [blocker]);
        }
        if let Some(blocker) =
            desired_pool.and_then(|pool| recovery_blocker(world.desired, member, pool))
        {
            return Candidate::from_blockers(operation.or(Some(OperationType::Replace)), [blocker]);
        }
    }
    let (mut message, mut remedy) = (node.description(), remedy);
    let member = node.member.filter(|member| member.pod.is_some() && !member.is_empty());
    let data = member.and_then(Member::data_uid);
    if is_surplus && let Some(data) = data {
        message += "; it may hold data, so it leaves only once it serves";
        let is_failing = member.is_some_and(|member| {
            let has_failed = member.pilot.as_ref().is_some_and(|pilot| pilot.failed);
            has_failed || member.runs_without_serving()
        });
        let is_member = member.is_some_and(Member::may_be_member);
        let node = name.clone();
        remedy = match remedy {
            // The spec that could be corrected went with the pool.
            Remedy::Correct | Remedy::GiveUp { .. } if is_failing && desired_pool.is_none() => {
                Remedy::WantPool { node, data }
            }
            Remedy::Correct if !is_member => Remedy::MendVolume { node, data: Some(data) },
            Remedy::Correct if desired_pool.is_none() => Remedy::WantNode { node },
            remedy => remedy,
        };
    }
    Candidate::from_wait(
        operation,
        AwaitedStep { remedy, ..AwaitedStep::new("WaitHealthy", &name, message) },
    )
}

fn phase_blocker(name: &str, phase: &PilotIntent, member: &Member, remedy: Remedy) -> StepBlocker {
    let suffix = if member.is_decommissioned() { ", and has left" } else { "" };
    StepBlocker {
        predicate: predicate::PHASE_HELD.name.into(),
        step: format!("WaitHealthy/{name}"),
        message: format!("{name} is kept {phase} by a person or a program{suffix}"),
        remedy,
    }
}

/// Returns the block of a node whose pod Kubernetes does not create.
fn admission_blocker(member: &Member) -> Option<StepBlocker> {
    let refusal = member.refused.as_ref().filter(|_| member.pod.is_none())?;
    Some(StepBlocker {
        predicate: predicate::POD_ADMITTED.name.into(),
        step: format!("StartPilot/{}", member.name),
        message: refusal.message.clone(),
        remedy: admission_remedy(refusal),
    })
}

/// Returns the way out of the refusal of a pod.
fn admission_remedy(refusal: &PodFailure) -> Remedy {
    if refusal.reason == "QuotaExceeded" { Remedy::RaiseQuota } else { Remedy::AdmitPod }
}

/// Returns the rule that keeps a broken node from getting the newest spec.
fn recovery_blocker(
    desired: &DesiredCluster,
    member: &Member,
    desired_pool: &DesiredPool,
) -> Option<StepBlocker> {
    let has_failed = member.pilot.as_ref().is_some_and(|pilot| pilot.failed);
    let has_trouble = member.pod.as_ref().is_some_and(|pod| pod.trouble.is_some());
    let is_broken = (has_failed || has_trouble) && roll::needs_change(member, desired_pool);
    (is_broken && (has_trouble || !roll::has_current_pod(member, desired_pool)))
        .then(|| roll::pod_data_blocker(desired, member))?
}

/// Says why a node does not serve, in one sentence.
pub(super) fn describe_unready(member: &Member) -> String {
    let name = &member.name;
    let Some(pod) = &member.pod else {
        let message = member.refused.as_ref().map(|refusal| refusal.message.clone());
        return message.unwrap_or_else(|| format!("waiting for pod {name}"));
    };
    if pod.terminating {
        return format!("waiting for pod {name} to end");
    }
    if let Some(trouble) = &pod.trouble {
        return trouble.message.clone();
    }
    // Until the pilot of a new pod has reported, the Pilot is still marked as silent for an earlier
    // pod.
    let is_from_earlier_pod = |pilot: &PilotFacts| {
        pilot.marked_unheard && pilot.instance.as_ref().is_some_and(|uid| *uid != pod.uid)
    };
    let pilot = member.pilot.as_ref().filter(|pilot| !is_from_earlier_pod(pilot));
    match pilot.and_then(|pilot| pilot.not_ready.as_ref()) {
        None if pod.ready && pilot.is_some_and(PilotFacts::is_restarting) => {
            format!("{name} restarts its database")
        }
        Some(reason) => format!("{name}: {reason}"),
        None if pod.ready => format!("{name} is ready and its pilot has not said so yet"),
        None => format!("{name} is starting"),
    }
}
