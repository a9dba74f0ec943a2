//! One machine that is under way: cordon, drain, change, verify, uncordon, settle. And the marks of
//! those that are not.

use k8s_openapi::jiff::SignedDuration;

use super::{
    KubeVersion, LAG_SECONDS, Look, MachineFacts, OtherRun, RunFacts, STABLE_SECONDS,
    UpgradeAction, drain, k8s_time,
};
use crate::api::{
    containership::{
        DrainMode, JobCode, JobReport, JobStep, MachinePhase, MachineStatus, RunnerMode,
        UpgradeType,
    },
    predicate,
};

/// Brings a machine that is under way one phase further, or says what it waits for.
pub(super) fn advance(look: &mut Look<'_>, index: usize) {
    let node = look.status.nodes[index].clone();
    let machine = look.fleet.machine(&node.name);
    look.status.nodes[index] = match node.phase {
        MachinePhase::Cordon => cordon(look, index, node, machine),
        MachinePhase::Drain => drain(look, node, machine),
        MachinePhase::Run => run(look, node, machine),
        MachinePhase::Verify => verify(look, node, machine),
        MachinePhase::Uncordon => uncordon(look, node),
        MachinePhase::Settle => settle(look, node, machine),
        MachinePhase::Pending | MachinePhase::Done | MachinePhase::Failed | MachinePhase::Gone => {
            node
        }
    };
}

/// Puts our taint on a machine that is still to come, and takes all marks off one that has ended or
/// will not begin. Goes by what was written last.
pub(super) fn mark(look: &mut Look<'_>, index: usize, ending: bool) {
    let stored = &look.run.status.nodes[index];
    if !stored.marked {
        return;
    }
    if stored.phase.has_ended() || (stored.phase == MachinePhase::Pending && ending) {
        let mut node = look.status.nodes[index].clone();
        let failed = stored.phase == MachinePhase::Failed;
        let ready = look.fleet.machine(&node.name).is_some_and(|machine| machine.ready);
        let_go(look, &mut node, ready || !failed);
        if failed && !ready {
            let message = node.message.unwrap_or_default();
            node.message = Some(format!("{message}; it is not Ready and stays as it is"));
        }
        look.status.nodes[index] = node;
    } else if stored.phase == MachinePhase::Pending
        && let Some(machine) = look.fleet.machine(&stored.name)
        && machine.tainted_by.as_deref() != Some(look.run.name)
        && !is_at_target(look.run, stored, machine)
    {
        look.actions.push(UpgradeAction::Taint {
            machine: machine.name.clone(),
            version: machine.version.clone(),
            by: look.run.name.to_owned(),
        });
    }
}

/// Takes off the marks of a machine, and takes back what was asked of pilots.
fn let_go(look: &mut Look<'_>, node: &mut MachineStatus, uncordon: bool) {
    if let Some(machine) = look.fleet.machine(&node.name) {
        look.actions.push(machine.release(look.run.name, uncordon));
    }
    let asked = |place: &String| look.fleet.pilots.iter().find(|pilot| pilot.place() == *place);
    let withdraw = |pilot: &super::MemberPilot| pilot.withdraw(look.run.name);
    look.actions.extend(node.asked.iter().filter_map(asked).map(withdraw));
    node.asked.clear();
    (node.marked, node.deadline, node.stable_since) = (false, None, None);
}

/// Has the machine what the run brings?
pub(super) fn is_at_target(
    run: &RunFacts<'_>,
    node: &MachineStatus,
    machine: &MachineFacts,
) -> bool {
    if run.spec.type_ == UpgradeType::Reboot {
        return !machine.boot_id.is_empty() && node.from.as_ref() != Some(&machine.boot_id);
    }
    let target = run.spec.target_version.as_deref().and_then(KubeVersion::parse);
    target.is_some() && KubeVersion::parse(&machine.kubelet) == target
}

/// Do pods leave the machine before it is changed?
pub(super) fn drains(run: &RunFacts<'_>, node: &MachineStatus) -> bool {
    let minor = |text: &Option<String>| {
        let version = text.as_deref().and_then(KubeVersion::parse);
        version.map(|version| (version.major, version.minor))
    };
    match run.spec.drain.mode {
        DrainMode::Always => true,
        DrainMode::Never => false,
        DrainMode::Auto => {
            run.spec.type_ == UpgradeType::Reboot || minor(&node.from) != minor(&node.to)
        }
    }
}

/// Keeps the machine cordoned. Returns whether it was seen to be.
fn keep_cordoned(look: &mut Look<'_>, machine: Option<&MachineFacts>) -> bool {
    let Some(machine) = machine else { return false };
    if !machine.cordoned {
        look.actions.push(UpgradeAction::Cordon {
            machine: machine.name.clone(),
            version: machine.version.clone(),
            by: look.run.name.to_owned(),
        });
    }
    machine.cordoned
}

/// Is all seen that the phase waits for, and was it seen for so many seconds?
fn is_stable(look: &Look<'_>, node: &mut MachineStatus, seen: bool, seconds: i64) -> bool {
    if !seen {
        node.stable_since = None;
        return false;
    }
    let since = node.stable_since.get_or_insert(k8s_time(look.now())).0;
    look.now().duration_since(since) >= SignedDuration::from_secs(seconds)
}

fn enter(look: &Look<'_>, node: MachineStatus, phase: MachinePhase) -> MachineStatus {
    let seconds = match phase {
        MachinePhase::Drain => Some(look.run.spec.drain.timeout_seconds),
        MachinePhase::Run => Some(look.run.spec.node_timeout()),
        _ => None,
    };
    let kept = if phase == MachinePhase::Verify { node.deadline } else { None };
    let deadline = seconds.map(|seconds| k8s_time(look.after(seconds))).or(kept);
    let ended = phase.has_ended().then(|| k8s_time(look.now()));
    MachineStatus { phase, deadline, stable_since: None, completion_time: ended, ..node }
}

fn fail(look: &Look<'_>, node: MachineStatus, message: String) -> MachineStatus {
    enter(look, MachineStatus { message: Some(message), ..node }, MachinePhase::Failed)
}

fn is_overdue(look: &Look<'_>, node: &MachineStatus) -> bool {
    node.deadline.as_ref().is_some_and(|deadline| deadline.0 <= look.now())
}

fn cordon(
    look: &mut Look<'_>,
    index: usize,
    mut node: MachineStatus,
    machine: Option<&MachineFacts>,
) -> MachineStatus {
    if look.run.deleting {
        // No pod was evicted yet.
        return enter(look, node, MachinePhase::Pending);
    }
    if machine.is_none() {
        let message = Some("its Node was deleted".to_owned());
        return enter(look, MachineStatus { message, ..node }, MachinePhase::Gone);
    }
    let cordoned = keep_cordoned(look, machine);
    // A pod may have come until just before the cordon.
    if !is_stable(look, &mut node, cordoned, LAG_SECONDS) {
        look.wait(Some(&node.name), "Cordon", "is cordoned, and looked at again");
        return node;
    }
    // A leader that was stopped in the middle may have let two runs begin.
    let first = |other: &&OtherRun| other.under_way && other.is_older(look.run);
    if let Some(other) = look.fleet.others.iter().find(first) {
        let message = format!("upgrade {} comes first", other.name);
        look.wait(Some(&node.name), "OtherUpgrade", message);
        return step_back(look, node);
    }
    let clusters = look.fleet.clusters_on(&node.name);
    if let Some((other, cluster)) = shared(look, index, &clusters, false) {
        let message = format!("{cluster} has members on {other} too, which comes first");
        look.wait_for(Some(&node.name), (Some(&cluster), None), "SharedCluster", message);
        return step_back(look, node);
    }
    node.clusters = clusters;
    let phase = if drains(look.run, &node) { MachinePhase::Drain } else { MachinePhase::Run };
    enter(look, node, phase)
}

/// Lets a machine wait for its turn again. What the others wait for may need this very machine, so it
/// does not wait cordoned.
fn step_back(look: &mut Look<'_>, mut node: MachineStatus) -> MachineStatus {
    let_go(look, &mut node, true);
    let attempt = node.attempt - 1;
    MachineStatus { attempt, ..node.again() }
}

/// Returns another machine that is drained, changed or settles, and a database cluster that has
/// members on both. Those that are cordoned only count where `cordoned` is true.
pub(super) fn shared(
    look: &Look<'_>,
    index: usize,
    clusters: &[String],
    cordoned: bool,
) -> Option<(String, String)> {
    let others = look.status.nodes.iter().enumerate().filter(|(other, _)| *other != index);
    let mut away = others.filter(|(_, node)| {
        node.phase.is_under_way() && (cordoned || node.phase != MachinePhase::Cordon)
    });
    away.find_map(|(_, node)| {
        let cluster = clusters.iter().find(|cluster| node.clusters.contains(cluster))?;
        Some((node.name.clone(), cluster.clone()))
    })
}

fn drain(
    look: &mut Look<'_>,
    mut node: MachineStatus,
    machine: Option<&MachineFacts>,
) -> MachineStatus {
    let (actions, waits) = (look.actions.len(), look.waits.len());
    let left = drain::drain(look, &mut node);
    if left && is_overdue(look, &node) {
        look.actions.truncate(actions);
        let seconds = look.run.spec.drain.timeout_seconds;
        let why = look.waits.drain(waits..).next().map(|wait| wait.message).unwrap_or_default();
        return fail(look, node, format!("its drain took more than {seconds} s: {why}"));
    }
    if machine.is_some_and(|machine| !machine.cordoned) {
        // A pod that is evicted now could come back here.
        look.actions.truncate(actions);
        keep_cordoned(look, machine);
        return node;
    }
    if left { node } else { enter(look, node, MachinePhase::Run) }
}

fn run(look: &mut Look<'_>, node: MachineStatus, machine: Option<&MachineFacts>) -> MachineStatus {
    let by_agent = look.run.spec.runner.mode == RunnerMode::Kubeadm;
    let job = job(look.run, &node, machine);
    if let Some(failure) = job.and_then(|job| failure_of(job, &node)) {
        return fail(look, node, failure);
    }
    // A new kubelet may still have to go.
    let changed = !by_agent || job.is_some_and(|job| job.code == Some(JobCode::Done));
    if changed && machine.is_some_and(|machine| is_at_target(look.run, &node, machine)) {
        return enter(look, node, MachinePhase::Verify);
    }
    let wanted = match &node.to {
        Some(to) => format!("kubelet {to}"),
        None => "reboot".to_owned(),
    };
    if is_overdue(look, &node) {
        let seconds = look.run.spec.node_timeout();
        let last = job.filter(|_| by_agent).map(|job| format!("; its runner {}", told(job)));
        let last = last.unwrap_or_default();
        return fail(look, node, format!("no {wanted} was seen within {seconds} s{last}"));
    }
    keep_cordoned(look, machine);
    if by_agent {
        let message = match job {
            Some(job) => format!("its runner {}", told(job)),
            None => "its runner has not taken the job yet".to_owned(),
        };
        look.wait(Some(&node.name), "JobDone", message);
        drain::tell_bound(look, &node);
        return node;
    }
    let message = match (machine, &node.to) {
        (None, _) => "its Node is gone, and is waited for".to_owned(),
        (Some(machine), Some(to)) => {
            format!("runs kubelet {}: bring it to {to} by your own tool", machine.kubelet)
        }
        (Some(_), None) => "is to be rebooted by your own tool".to_owned(),
    };
    look.wait(Some(&node.name), "MachineChanged", message);
    drain::tell_bound(look, &node);
    node
}

/// Returns what the machine's agent says of the job of this very attempt.
fn job<'a>(
    run: &RunFacts<'_>,
    node: &MachineStatus,
    machine: Option<&'a MachineFacts>,
) -> Option<&'a JobReport> {
    let job = machine?.upgrade.as_ref()?.job.as_ref()?;
    (job.id == run.id && job.attempt == node.attempt).then_some(job)
}

/// Returns how a job ended that failed for good.
fn failure_of(job: &JobReport, node: &MachineStatus) -> Option<String> {
    let why = job.message.as_deref().unwrap_or_default();
    match job.code {
        Some(JobCode::RolledBack) if job.step < JobStep::Kubeadm => {
            Some(format!("was not changed: {why}"))
        }
        Some(JobCode::RolledBack) => {
            Some(format!("rolled back to {}: {why}", node.from.as_deref().unwrap_or_default()))
        }
        Some(JobCode::Dirty) => Some(format!("is neither old nor new: {why}")),
        Some(JobCode::Done | JobCode::Again) | None => None,
    }
}

/// Says what a runner does.
fn told(job: &JobReport) -> String {
    let step = format!("{:?}", job.step).to_lowercase();
    match &job.message {
        Some(why) if job.code == Some(JobCode::Again) => {
            format!("tries step {step} again: {why}")
        }
        _ if job.code == Some(JobCode::Done) => "is done, and its Node does not say so yet".into(),
        _ => format!("is at step {step}"),
    }
}

fn verify(
    look: &mut Look<'_>,
    mut node: MachineStatus,
    machine: Option<&MachineFacts>,
) -> MachineStatus {
    let target = node.to.as_deref().and_then(KubeVersion::parse);
    let lacks = match machine {
        None => Some("its Node is gone".to_owned()),
        Some(machine) if !is_at_target(look.run, &node, machine) => {
            Some("does not run as wanted any more".to_owned())
        }
        Some(machine) if !machine.ready => Some("is not Ready".to_owned()),
        Some(machine) if machine.control_plane && !machine.control_plane_healthy => {
            Some("its control plane does not answer in one version".to_owned())
        }
        Some(MachineFacts { api_server: Some(version), .. })
            if target.as_ref().is_some_and(|target| target != version) =>
        {
            Some(format!("its API server is still {version}"))
        }
        Some(_) => None,
    };
    if is_stable(look, &mut node, lacks.is_none(), STABLE_SECONDS) {
        return enter(look, node, MachinePhase::Uncordon);
    }
    if is_overdue(look, &node) {
        let seconds = look.run.spec.node_timeout();
        let lacks = lacks.unwrap_or_else(|| "it was not well for long enough".to_owned());
        return fail(look, node, format!("not well within {seconds} s: {lacks}"));
    }
    keep_cordoned(look, machine);
    let message = lacks.unwrap_or_else(|| format!("must stay well for {STABLE_SECONDS} s"));
    look.wait(Some(&node.name), "MachineReady", message);
    drain::tell_bound(look, &node);
    node
}

fn uncordon(look: &mut Look<'_>, mut node: MachineStatus) -> MachineStatus {
    let_go(look, &mut node, true);
    enter(look, node, MachinePhase::Settle)
}

/// Waits until the databases that lost a member serve again, and no rule holds: the next machine
/// must not take another one.
fn settle(
    look: &mut Look<'_>,
    node: MachineStatus,
    machine: Option<&MachineFacts>,
) -> MachineStatus {
    let mut settled = true;
    for name in &node.clusters {
        let Some(cluster) = look.fleet.clusters.iter().find(|found| found.name == *name) else {
            continue;
        };
        if cluster.serves && cluster.drainable != Some(false) {
            continue;
        }
        settled = false;
        let message = if cluster.serves { cluster.why.clone() } else { "a node is away".into() };
        look.wait_for(Some(&node.name), (Some(name), None), "DatabaseSettled", message);
    }
    if settled || look.run.deleting {
        return enter(look, node, MachinePhase::Done);
    }
    if machine.is_some_and(|machine| machine.cordoned) {
        let message = "is cordoned, and not by this upgrade: what waits for it comes back once it is \
                       uncordoned";
        look.wait(Some(&node.name), predicate::MACHINE_CORDONED.name, message);
    }
    node
}
