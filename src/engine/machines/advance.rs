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
pub(super) fn advance_machine(plan: &mut Look<'_>, index: usize) {
    let node = plan.status.nodes[index].clone();
    let machine = plan.fleet.find_machine(&node.name);
    plan.status.nodes[index] = match node.phase {
        MachinePhase::Cordon => cordon_machine(plan, index, node, machine),
        MachinePhase::Drain => drain_machine(plan, node, machine),
        MachinePhase::Run => run_upgrade(plan, node, machine),
        MachinePhase::Verify => verify_machine(plan, node, machine),
        MachinePhase::Uncordon => uncordon_machine(plan, node),
        MachinePhase::Settle => settle_databases(plan, node, machine),
        MachinePhase::Pending | MachinePhase::Done | MachinePhase::Failed | MachinePhase::Gone => {
            node
        }
    };
}

/// Puts our taint on a machine that is still to come, and takes all marks off one that has ended or
/// will not begin. Goes by what was written last.
pub(super) fn update_marks(plan: &mut Look<'_>, index: usize, is_ending: bool) {
    let stored = &plan.run.status.nodes[index];
    if !stored.marked {
        return;
    }
    if stored.phase.has_ended() || (stored.phase == MachinePhase::Pending && is_ending) {
        let mut node = plan.status.nodes[index].clone();
        let has_failed = stored.phase == MachinePhase::Failed;
        let is_ready = plan.fleet.find_machine(&node.name).is_some_and(|machine| machine.ready);
        release_machine(plan, &mut node, is_ready || !has_failed);
        if has_failed && !is_ready {
            let message = node.message.unwrap_or_default();
            node.message = Some(format!("{message}; it is not Ready and stays as it is"));
        }
        plan.status.nodes[index] = node;
    } else if stored.phase == MachinePhase::Pending
        && let Some(machine) = plan.fleet.find_machine(&stored.name)
        && machine.tainted_by.as_deref() != Some(plan.run.name)
        && !is_at_target(plan.run, stored, machine)
    {
        plan.actions.push(UpgradeAction::Taint {
            machine: machine.name.clone(),
            version: machine.version.clone(),
            by: plan.run.name.to_owned(),
        });
    }
}

/// Takes off the marks of a machine, and takes back what was asked of pilots.
fn release_machine(plan: &mut Look<'_>, node: &mut MachineStatus, uncordon: bool) {
    if let Some(machine) = plan.fleet.find_machine(&node.name) {
        plan.actions.push(machine.release_action(plan.run.name, uncordon));
    }
    let find_pilot =
        |place: &String| plan.fleet.pilots.iter().find(|pilot| pilot.namespaced_name() == *place);
    let withdraw_request = |pilot: &super::MemberPilot| pilot.withdraw_action(plan.run.name);
    plan.actions.extend(node.asked.iter().filter_map(find_pilot).map(withdraw_request));
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
pub(super) fn needs_drain(run: &RunFacts<'_>, node: &MachineStatus) -> bool {
    let minor_version = |text: &Option<String>| {
        let version = text.as_deref().and_then(KubeVersion::parse);
        version.map(|version| (version.major, version.minor))
    };
    match run.spec.drain.mode {
        DrainMode::Always => true,
        DrainMode::Never => false,
        DrainMode::Auto => {
            run.spec.type_ == UpgradeType::Reboot
                || minor_version(&node.from) != minor_version(&node.to)
        }
    }
}

/// Keeps the machine cordoned. Returns whether it was seen to be.
fn ensure_cordoned(plan: &mut Look<'_>, machine: Option<&MachineFacts>) -> bool {
    let Some(machine) = machine else { return false };
    if !machine.cordoned {
        plan.actions.push(UpgradeAction::Cordon {
            machine: machine.name.clone(),
            version: machine.version.clone(),
            by: plan.run.name.to_owned(),
        });
    }
    machine.cordoned
}

/// Is all seen that the phase waits for, and was it seen for so many seconds?
fn is_stable(plan: &Look<'_>, node: &mut MachineStatus, is_met: bool, seconds: i64) -> bool {
    if !is_met {
        node.stable_since = None;
        return false;
    }
    let since = node.stable_since.get_or_insert(k8s_time(plan.now())).0;
    plan.now().duration_since(since) >= SignedDuration::from_secs(seconds)
}

fn enter_phase(plan: &Look<'_>, node: MachineStatus, phase: MachinePhase) -> MachineStatus {
    let seconds = match phase {
        MachinePhase::Drain => Some(plan.run.spec.drain.timeout_seconds),
        MachinePhase::Run => Some(plan.run.spec.node_timeout()),
        _ => None,
    };
    let kept_deadline = if phase == MachinePhase::Verify { node.deadline } else { None };
    let deadline = seconds.map(|seconds| k8s_time(plan.time_after(seconds))).or(kept_deadline);
    let end_time = phase.has_ended().then(|| k8s_time(plan.now()));
    MachineStatus { phase, deadline, stable_since: None, completion_time: end_time, ..node }
}

fn fail_machine(plan: &Look<'_>, node: MachineStatus, message: String) -> MachineStatus {
    enter_phase(plan, MachineStatus { message: Some(message), ..node }, MachinePhase::Failed)
}

fn is_overdue(plan: &Look<'_>, node: &MachineStatus) -> bool {
    node.deadline.as_ref().is_some_and(|deadline| deadline.0 <= plan.now())
}

fn cordon_machine(
    plan: &mut Look<'_>,
    index: usize,
    mut node: MachineStatus,
    machine: Option<&MachineFacts>,
) -> MachineStatus {
    if plan.run.deleting {
        // No pod was evicted yet.
        return enter_phase(plan, node, MachinePhase::Pending);
    }
    if machine.is_none() {
        let message = Some("its Node was deleted".to_owned());
        return enter_phase(plan, MachineStatus { message, ..node }, MachinePhase::Gone);
    }
    let is_cordoned = ensure_cordoned(plan, machine);
    // A pod may have come until just before the cordon.
    if !is_stable(plan, &mut node, is_cordoned, LAG_SECONDS) {
        plan.add_wait(Some(&node.name), "Cordon", "is cordoned, and looked at again");
        return node;
    }
    // A leader that was stopped in the middle may have let two runs begin.
    let is_first = |other: &&OtherRun| other.under_way && other.is_older(plan.run);
    if let Some(other) = plan.fleet.others.iter().find(is_first) {
        let message = format!("upgrade {} comes first", other.name);
        plan.add_wait(Some(&node.name), "OtherUpgrade", message);
        return step_back(plan, node);
    }
    let clusters = plan.fleet.clusters_on(&node.name);
    if let Some((other, cluster)) = find_shared_cluster(plan, index, &clusters, false) {
        let message = format!("{cluster} has members on {other} too, which comes first");
        plan.add_wait_for(Some(&node.name), (Some(&cluster), None), "SharedCluster", message);
        return step_back(plan, node);
    }
    node.clusters = clusters;
    let phase = if needs_drain(plan.run, &node) { MachinePhase::Drain } else { MachinePhase::Run };
    enter_phase(plan, node, phase)
}

/// Lets a machine wait for its turn again. What the others wait for may need this very machine, so it
/// does not wait cordoned.
fn step_back(plan: &mut Look<'_>, mut node: MachineStatus) -> MachineStatus {
    release_machine(plan, &mut node, true);
    let attempt = node.attempt - 1;
    MachineStatus { attempt, ..node.reset_for_retry() }
}

/// Returns another machine that is drained, changed or settles, and a database cluster that has
/// members on both. Those that are cordoned only count where `cordoned` is true.
pub(super) fn find_shared_cluster(
    plan: &Look<'_>,
    index: usize,
    clusters: &[String],
    counts_cordoned: bool,
) -> Option<(String, String)> {
    let other_nodes = plan.status.nodes.iter().enumerate().filter(|(other, _)| *other != index);
    let mut unavailable_nodes = other_nodes.filter(|(_, node)| {
        node.phase.is_under_way() && (counts_cordoned || node.phase != MachinePhase::Cordon)
    });
    unavailable_nodes.find_map(|(_, node)| {
        let cluster = clusters.iter().find(|cluster| node.clusters.contains(cluster))?;
        Some((node.name.clone(), cluster.clone()))
    })
}

fn drain_machine(
    plan: &mut Look<'_>,
    mut node: MachineStatus,
    machine: Option<&MachineFacts>,
) -> MachineStatus {
    let (action_count, wait_count) = (plan.actions.len(), plan.waits.len());
    let has_pods = drain::drain_pods(plan, &mut node);
    if has_pods && is_overdue(plan, &node) {
        plan.actions.truncate(action_count);
        let seconds = plan.run.spec.drain.timeout_seconds;
        let reason =
            plan.waits.drain(wait_count..).next().map(|wait| wait.message).unwrap_or_default();
        return fail_machine(plan, node, format!("its drain took more than {seconds} s: {reason}"));
    }
    if machine.is_some_and(|machine| !machine.cordoned) {
        // A pod that is evicted now could come back here.
        plan.actions.truncate(action_count);
        ensure_cordoned(plan, machine);
        return node;
    }
    if has_pods { node } else { enter_phase(plan, node, MachinePhase::Run) }
}

fn run_upgrade(
    plan: &mut Look<'_>,
    node: MachineStatus,
    machine: Option<&MachineFacts>,
) -> MachineStatus {
    let uses_agent = plan.run.spec.runner.mode == RunnerMode::Kubeadm;
    let job = current_job(plan.run, &node, machine);
    if let Some(failure) = job.and_then(|job| failure_of(job, &node)) {
        return fail_machine(plan, node, failure);
    }
    // A new kubelet may still have to go.
    let is_changed = !uses_agent || job.is_some_and(|job| job.code == Some(JobCode::Done));
    if is_changed && machine.is_some_and(|machine| is_at_target(plan.run, &node, machine)) {
        return enter_phase(plan, node, MachinePhase::Verify);
    }
    let expected_change = match &node.to {
        Some(to) => format!("kubelet {to}"),
        None => "reboot".to_owned(),
    };
    if is_overdue(plan, &node) {
        let seconds = plan.run.spec.node_timeout();
        let runner_state =
            job.filter(|_| uses_agent).map(|job| format!("; its runner {}", describe_job(job)));
        let runner_suffix = runner_state.unwrap_or_default();
        return fail_machine(
            plan,
            node,
            format!("no {expected_change} was seen within {seconds} s{runner_suffix}"),
        );
    }
    ensure_cordoned(plan, machine);
    if uses_agent {
        let message = match job {
            Some(job) => format!("its runner {}", describe_job(job)),
            None => "its runner has not taken the job yet".to_owned(),
        };
        plan.add_wait(Some(&node.name), "JobDone", message);
        drain::report_bound_pods(plan, &node);
        return node;
    }
    let message = match (machine, &node.to) {
        (None, _) => "its Node is gone, and is waited for".to_owned(),
        (Some(machine), Some(to)) => {
            format!("runs kubelet {}: bring it to {to} by your own tool", machine.kubelet)
        }
        (Some(_), None) => "is to be rebooted by your own tool".to_owned(),
    };
    plan.add_wait(Some(&node.name), "MachineChanged", message);
    drain::report_bound_pods(plan, &node);
    node
}

/// Returns what the machine's agent says of the job of this very attempt.
fn current_job<'a>(
    run: &RunFacts<'_>,
    node: &MachineStatus,
    machine: Option<&'a MachineFacts>,
) -> Option<&'a JobReport> {
    let job = machine?.upgrade.as_ref()?.job.as_ref()?;
    (job.id == run.id && job.attempt == node.attempt).then_some(job)
}

/// Returns how a job ended that failed for good.
fn failure_of(job: &JobReport, node: &MachineStatus) -> Option<String> {
    let reason = job.message.as_deref().unwrap_or_default();
    match job.code {
        Some(JobCode::RolledBack) if job.step < JobStep::Kubeadm => {
            Some(format!("was not changed: {reason}"))
        }
        Some(JobCode::RolledBack) => {
            Some(format!("rolled back to {}: {reason}", node.from.as_deref().unwrap_or_default()))
        }
        Some(JobCode::Dirty) => Some(format!("is neither old nor new: {reason}")),
        Some(JobCode::Done | JobCode::Again) | None => None,
    }
}

/// Says what a runner does.
fn describe_job(job: &JobReport) -> String {
    let step = format!("{:?}", job.step).to_lowercase();
    match &job.message {
        Some(reason) if job.code == Some(JobCode::Again) => {
            format!("tries step {step} again: {reason}")
        }
        _ if job.code == Some(JobCode::Done) => "is done, and its Node does not say so yet".into(),
        _ => format!("is at step {step}"),
    }
}

fn verify_machine(
    plan: &mut Look<'_>,
    mut node: MachineStatus,
    machine: Option<&MachineFacts>,
) -> MachineStatus {
    let target = node.to.as_deref().and_then(KubeVersion::parse);
    let problem = match machine {
        None => Some("its Node is gone".to_owned()),
        Some(machine) if !is_at_target(plan.run, &node, machine) => {
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
    if is_stable(plan, &mut node, problem.is_none(), STABLE_SECONDS) {
        return enter_phase(plan, node, MachinePhase::Uncordon);
    }
    if is_overdue(plan, &node) {
        let seconds = plan.run.spec.node_timeout();
        let reason = problem.unwrap_or_else(|| "it was not well for long enough".to_owned());
        return fail_machine(plan, node, format!("not well within {seconds} s: {reason}"));
    }
    ensure_cordoned(plan, machine);
    let message = problem.unwrap_or_else(|| format!("must stay well for {STABLE_SECONDS} s"));
    plan.add_wait(Some(&node.name), "MachineReady", message);
    drain::report_bound_pods(plan, &node);
    node
}

fn uncordon_machine(plan: &mut Look<'_>, mut node: MachineStatus) -> MachineStatus {
    release_machine(plan, &mut node, true);
    enter_phase(plan, node, MachinePhase::Settle)
}

/// Waits until the databases that lost a member serve again, and no rule holds: the next machine
/// must not take another one.
fn settle_databases(
    plan: &mut Look<'_>,
    node: MachineStatus,
    machine: Option<&MachineFacts>,
) -> MachineStatus {
    let mut is_settled = true;
    for name in &node.clusters {
        let Some(cluster) = plan.fleet.clusters.iter().find(|candidate| candidate.name == *name)
        else {
            continue;
        };
        if cluster.serves && cluster.drainable != Some(false) {
            continue;
        }
        is_settled = false;
        let message = if cluster.serves { cluster.why.clone() } else { "a node is away".into() };
        plan.add_wait_for(Some(&node.name), (Some(name), None), "DatabaseSettled", message);
    }
    if is_settled || plan.run.deleting {
        return enter_phase(plan, node, MachinePhase::Done);
    }
    if machine.is_some_and(|machine| machine.cordoned) {
        let message = "is cordoned, and not by this upgrade: what waits for it comes back once it is \
                       uncordoned";
        plan.add_wait(Some(&node.name), predicate::MACHINE_CORDONED.name, message);
    }
    node
}
