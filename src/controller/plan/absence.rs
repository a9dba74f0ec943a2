//! Nodes that should serve and do not: what each waits for, and whether it may come back by itself.

use super::{
    AwaitedStep, Candidate, OperationType, Plan, Remedy, StepBlocker, World, begin_anew, behind,
    roll, under_way, vacate,
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
pub(super) fn absent(world: World<'_>) -> impl Iterator<Item = AbsentNode<'_>> {
    let nodes = world.running().filter(|(_, _, member)| !member.is_some_and(Member::serving));
    nodes.map(|(pool, ordinal, member)| AbsentNode { pool, ordinal, member })
}

/// Returns the absent nodes that the database cluster misses, or will have again: not those that have
/// left it and are not wanted.
pub(super) fn down(world: World<'_>) -> impl Iterator<Item = AbsentNode<'_>> {
    absent(world).filter(move |node| {
        let left = node.member.is_some_and(Member::decommissioned);
        !left || node.ordinal < world.wanted_of(node.pool)
    })
}

/// Returns the nodes whose StatefulSet does not want them any more, and whose pods have not ended.
/// A pod whose data were given up is not waited for, nor one that is overdue after its node left: its
/// machine may be gone.
pub(super) fn ending(world: World<'_>) -> impl Iterator<Item = (&ObservedPool, &Member)> {
    let beyond = |pool: &'_ ObservedPool| pool.replicas();
    let pools = world.observed.pools.iter();
    let members = pools.flat_map(move |pool| {
        pool.members.range(beyond(pool)..).map(move |(_, member)| (pool, member))
    });
    let over = |member: &Member| {
        let overdue = member.pod.as_ref().is_some_and(|pod| pod.overdue);
        member.abandoned() || (overdue && member.decommissioned())
    };
    members.filter(move |(_, member)| member.pod.is_some() && !over(member))
}

impl AbsentNode<'_> {
    pub(super) fn name(&self) -> String {
        names::pilot(&self.pool.set_name, self.ordinal)
    }

    /// Has the node been away for longer than a start or a restart takes?
    pub(super) fn lasts(&self) -> bool {
        self.member.is_some_and(Member::lasts_away)
    }

    /// Is the node none of the database cluster yet?
    pub(super) fn joins(&self) -> bool {
        !self.member.is_some_and(Member::may_be_member)
    }

    /// Says why the node does not serve, in one sentence.
    pub(super) fn sentence(&self) -> String {
        let Some(member) = self.member else { return format!("waiting for pod {}", self.name()) };
        vacate::stays(member)
            .map_or_else(|| unready(member), |machine| vacate::stays_until(member, machine))
    }

    /// Returns what a person can do so that the node serves, or is waited for no more. Giving a node
    /// up leads nowhere where too many voters are lost.
    pub(super) fn remedy(&self, world: World<'_>) -> Remedy {
        let own = self.own_remedy();
        begin_anew::remedy(world, &self.name(), &own).unwrap_or(own)
    }

    fn own_remedy(&self) -> Remedy {
        let node = self.name();
        if let Some(machine) = self.member.and_then(vacate::stays) {
            return Remedy::Uncordon { machine: machine.to_owned() };
        }
        let Some(member) = self.member.filter(|_| self.lasts()) else { return Remedy::Wait };
        if let Some(refused) = member.refused.as_ref().filter(|_| member.pod.is_none()) {
            return admission(refused);
        }
        if member.decommissioned() && member.held().is_some() {
            return Remedy::RenewByPhase { node };
        }
        if member.pod.as_ref().is_some_and(|pod| pod.overdue) {
            return Remedy::EndPod { node };
        }
        let reason = member.pod.as_ref().and_then(|pod| Some(pod.trouble.as_ref()?.reason));
        match reason {
            Some("VolumeNotMounted") => return Remedy::MendVolume { node, data: member.data() },
            Some("VolumeLost") => {
                return member.data().map_or(Remedy::Correct, |data| Remedy::GiveUp { node, data });
            }
            _ => {}
        }
        let broken = member.pod.as_ref().is_some_and(|pod| pod.trouble.is_some());
        match member.data() {
            _ if member.held().is_some() && !broken => Remedy::ReleasePhase { node },
            // Data of an empty volume cannot be given up: its database does not start as it is told to.
            Some(data) if member.may_be_member() && !member.is_empty() && may_be_lost(member) => {
                Remedy::GiveUp { node, data }
            }
            _ => Remedy::Correct,
        }
    }
}

/// May the volume or the machine of a node be gone? Not where its pod waits for an image or for room,
/// or where its pilot says why the database does not serve: the spec can be corrected there.
fn may_be_lost(member: &Member) -> bool {
    let Some(pod) = &member.pod else { return true };
    match &pod.trouble {
        Some(trouble) => trouble.reason == "Unschedulable" && vacate::is_bound_by_volume(trouble),
        None => member.pilot.as_ref().is_none_or(|pilot| pilot.hearing.is_over()),
    }
}

/// Waits until every node serves. A node that a person keeps down, and one that may not get a new
/// pod, is held.
pub(super) fn settle(world: World<'_>, _: &Plan) -> Vec<Candidate> {
    let operation = under_way(world.desired);
    // The plan of `renewal` waits for those that the API turns away, and a replica that is behind holds
    // the replacement of those whose data are given up.
    let is_told = |member: &Member| {
        let is_held = || behind::block(world, "RecreatePod", member).is_some();
        member.turned_away().is_some() || (member.abandoned() && is_held())
    };
    let away = absent(world).filter(|node| !node.member.is_some_and(is_told));
    let mut candidates: Vec<_> = away.map(|node| awaited(world, &node, operation)).collect();
    candidates.extend(ending(world).map(|(_, member)| ends(OperationType::ScaleDown, member)));
    candidates
}

/// Waits for the end of a pod.
pub(super) fn ends(operation: OperationType, member: &Member) -> Candidate {
    let message = format!("waiting for pod {} to end", member.name);
    let overdue = member.pod.as_ref().is_some_and(|pod| pod.overdue);
    let node = member.name.clone();
    let remedy = if overdue { Remedy::EndPod { node } } else { Remedy::Wait };
    let awaited = AwaitedStep { remedy, ..AwaitedStep::new("RemovePilot", &member.name, message) };
    Candidate::wait(operation, awaited)
}

fn awaited(world: World<'_>, node: &AbsentNode<'_>, operation: Option<OperationType>) -> Candidate {
    let (name, remedy) = (node.name(), node.remedy(world));
    let wanted = world.desired.pool(&node.pool.name);
    let surplus = node.ordinal >= world.wanted_of(node.pool);
    let operation = operation.or(surplus.then_some(OperationType::ScaleDown));
    if let Some(member) = node.member {
        if let Some(phase) = member.held() {
            return Candidate::hold(operation, [held(&name, &phase, member, remedy)]);
        }
        if let Some(machine) = vacate::stays(member) {
            let operation = operation.or(Some(OperationType::Vacate));
            return Candidate::hold(operation, [vacate::away(member, machine)]);
        }
        if let Some(block) = refused(member) {
            return Candidate::hold(operation.or(Some(OperationType::Replace)), [block]);
        }
        if let Some(block) = wanted.and_then(|wanted| kept(world.desired, member, wanted)) {
            return Candidate::hold(operation.or(Some(OperationType::Replace)), [block]);
        }
    }
    let (mut message, mut remedy) = (node.sentence(), remedy);
    let member = node.member.filter(|member| member.pod.is_some() && !member.is_empty());
    let data = member.and_then(Member::data);
    if surplus && let Some(data) = data {
        message += "; it may hold data, so it leaves only once it serves";
        let fails = member.is_some_and(|member| {
            let failed = member.pilot.as_ref().is_some_and(|pilot| pilot.failed);
            failed || member.runs_without_serving()
        });
        let is_member = member.is_some_and(Member::may_be_member);
        let node = name.clone();
        remedy = match remedy {
            // The spec that could be corrected went with the pool.
            Remedy::Correct | Remedy::GiveUp { .. } if fails && wanted.is_none() => {
                Remedy::WantPool { node, data }
            }
            Remedy::Correct if !is_member => Remedy::MendVolume { node, data: Some(data) },
            Remedy::Correct if wanted.is_none() => Remedy::WantNode { node },
            remedy => remedy,
        };
    }
    Candidate::wait(
        operation,
        AwaitedStep { remedy, ..AwaitedStep::new("WaitHealthy", &name, message) },
    )
}

fn held(name: &str, phase: &PilotIntent, member: &Member, remedy: Remedy) -> StepBlocker {
    let left = if member.decommissioned() { ", and has left" } else { "" };
    StepBlocker {
        predicate: predicate::PHASE_HELD.name.into(),
        step: format!("WaitHealthy/{name}"),
        message: format!("{name} is kept {phase} by a person or a program{left}"),
        remedy,
    }
}

/// Returns the block of a node whose pod Kubernetes does not create.
fn refused(member: &Member) -> Option<StepBlocker> {
    let refused = member.refused.as_ref().filter(|_| member.pod.is_none())?;
    Some(StepBlocker {
        predicate: predicate::POD_ADMITTED.name.into(),
        step: format!("StartPilot/{}", member.name),
        message: refused.message.clone(),
        remedy: admission(refused),
    })
}

/// Returns the way out of the refusal of a pod.
fn admission(refused: &PodFailure) -> Remedy {
    if refused.reason == "QuotaExceeded" { Remedy::RaiseQuota } else { Remedy::AdmitPod }
}

/// Returns the rule that keeps a broken node from getting the newest spec.
fn kept(desired: &DesiredCluster, member: &Member, wanted: &DesiredPool) -> Option<StepBlocker> {
    let failed = member.pilot.as_ref().is_some_and(|pilot| pilot.failed);
    let trouble = member.pod.as_ref().is_some_and(|pod| pod.trouble.is_some());
    let broken = (failed || trouble) && roll::differs(member, wanted);
    (broken && (trouble || !roll::fits(member, wanted)))
        .then(|| roll::lost_with_pod(desired, member))?
}

/// Says why a node does not serve, in one sentence.
pub(super) fn unready(member: &Member) -> String {
    let name = &member.name;
    let Some(pod) = &member.pod else {
        let refused = member.refused.as_ref().map(|refused| refused.message.clone());
        return refused.unwrap_or_else(|| format!("waiting for pod {name}"));
    };
    if pod.terminating {
        return format!("waiting for pod {name} to end");
    }
    if let Some(trouble) = &pod.trouble {
        return trouble.message.clone();
    }
    // Until the pilot of a new pod has reported, the Pilot is still marked as silent for an earlier
    // pod.
    let earlier = |pilot: &PilotFacts| {
        pilot.marked_unheard && pilot.instance.as_ref().is_some_and(|uid| *uid != pod.uid)
    };
    let pilot = member.pilot.as_ref().filter(|pilot| !earlier(pilot));
    match pilot.and_then(|pilot| pilot.not_ready.as_ref()) {
        None if pod.ready && pilot.is_some_and(PilotFacts::restarts) => {
            format!("{name} restarts its database")
        }
        Some(said) => format!("{name}: {said}"),
        None if pod.ready => format!("{name} is ready and its pilot has not said so yet"),
        None => format!("{name} is starting"),
    }
}
