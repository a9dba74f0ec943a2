//! What is looked at before anything is touched: what is refused for good, each in one sentence, and
//! what is waited for.

use super::{JOB_FORM, KubeVersion, Look, MachineFacts, OtherRun, advance, k8s_time, turn};
use crate::api::containership::{
    MachineStatus, RunnerMode, UpgradePhase, UpgradeType, matches_all,
};

/// kubelets may be older than an API server by so many minor versions.
const OLDEST_KUBELET: i64 = 3;
/// From this minor version on, a kubelet does not start on a machine with control groups of version 1.
const CGROUP_V2_ONLY: u32 = 35;

/// Accepts a run that may begin; refuses it for good, or says what it waits for.
pub(super) fn accept_run(plan: &mut Look<'_>) {
    let (run, fleet) = (plan.run, plan.fleet);
    if run.deleting {
        return;
    }
    let selector = run.spec.label_selector.as_deref().unwrap_or_default();
    let selected_machines =
        fleet.machines.iter().filter(|machine| matches_all(selector, &machine.labels));
    let mut selected_machines: Vec<&MachineFacts> = selected_machines.collect();
    turn::sort_machines(&mut selected_machines);
    if let Err(sentence) = check_acceptable(plan, &selected_machines) {
        plan.set_finished(UpgradePhase::Failed, Some(sentence));
        return;
    }
    let is_first = |other: &&OtherRun| other.accepted || other.is_older(run);
    if let Some(other) = fleet.others.iter().find(is_first) {
        let sentence = format!("upgrade {} is not finished, and comes first", other.name);
        plan.add_wait(None, "OtherUpgrade", sentence);
        plan.status.phase = Some(UpgradePhase::Pending);
        return;
    }
    for machine in fleet.machines.iter().filter(|machine| !machine.ready) {
        plan.add_wait(None, "MachinesReady", format!("machine {} is not Ready", machine.name));
    }
    if fleet.machines.iter().any(|machine| machine.etcd_ready == Some(false)) {
        plan.add_wait(None, "EtcdHealthy", "a member of etcd is not ready");
    }
    if !plan.waits.is_empty() {
        plan.status.phase = Some(UpgradePhase::Preflight);
        return;
    }
    let is_reboot = run.spec.type_ == UpgradeType::Reboot;
    let node = |machine: &&MachineFacts| MachineStatus {
        name: machine.name.clone(),
        control_plane: machine.control_plane,
        from: Some(if is_reboot { machine.boot_id.clone() } else { machine.kubelet.clone() }),
        to: run.spec.target_version.clone().filter(|_| !is_reboot),
        // Our taint is put on all that are still to come.
        marked: true,
        ..MachineStatus::default()
    };
    plan.status.nodes = selected_machines.iter().map(node).collect();
    plan.status.start_time = Some(k8s_time(plan.now()));
    plan.status.warnings = collect_warnings(plan);
}

/// Returns what a person should know, and what does not hold the run.
fn collect_warnings(plan: &Look<'_>) -> Vec<String> {
    let mut warnings = plan.fleet.deprecated.clone();
    for node in plan.status.nodes.iter().filter(|node| advance::needs_drain(plan.run, node)) {
        for name in plan.fleet.clusters_on(&node.name) {
            let database_cluster = plan.fleet.clusters.iter().find(|cluster| cluster.name == name);
            if let Some(cluster) =
                database_cluster.filter(|cluster| cluster.drainable == Some(false))
            {
                let machine = &node.name;
                warnings.push(format!("{name} does not let {machine} go yet: {}", cluster.why));
            }
        }
    }
    warnings.truncate(20);
    warnings
}

fn check_acceptable(plan: &Look<'_>, selected_machines: &[&MachineFacts]) -> Result<(), String> {
    let (run, fleet) = (plan.run, plan.fleet);
    if run.spec.type_ == UpgradeType::Etcd {
        return Err(
            "Unsupported: type etcd is not carried out; kubeadm upgrades the etcd beside a \
                    control plane"
                .to_owned(),
        );
    }
    if selected_machines.is_empty() {
        return Err("no machine meets spec.labelSelector".to_owned());
    }
    if run.spec.runner.mode == RunnerMode::Kubeadm {
        check_runners(plan, selected_machines)?;
    }
    let members = fleet.machines.iter().filter(|machine| machine.etcd_ready.is_some()).count();
    if members == 2 && selected_machines.iter().any(|machine| machine.etcd_ready.is_some()) {
        return Err("etcd has two members, and can spare neither".to_owned());
    }
    if run.spec.type_ == UpgradeType::Reboot {
        return Ok(());
    }
    let text = run.spec.target_version.as_deref().unwrap_or_default();
    let Some(target) = KubeVersion::parse(text) else {
        return Err(format!("targetVersion {text:?} is no release of Kubernetes"));
    };
    for machine in selected_machines {
        check_version_step(plan, machine, &target)?;
        let cgroup = machine.upgrade.as_ref().map(|report| report.cgroup);
        if cgroup == Some(1) && target.minor >= CGROUP_V2_ONLY {
            let name = &machine.name;
            return Err(format!(
                "machine {name} has control groups of version 1, on which kubelet \
                                {target} does not start"
            ));
        }
    }
    check_version_skew(plan, selected_machines, &target)
}

/// A run by agents needs one on each machine, a runner beside it, and what to give them.
fn check_runners(plan: &Look<'_>, selected_machines: &[&MachineFacts]) -> Result<(), String> {
    if plan.run.spec.type_ == UpgradeType::Reboot {
        return Err("Unsupported: runner.mode Kubeadm reboots no machine; use External".to_owned());
    }
    if plan.run.spec.runner.artifacts.is_none() {
        return Err("runner.mode Kubeadm needs spec.runner.artifacts".to_owned());
    }
    for MachineFacts { name, upgrade, .. } in selected_machines {
        let Some(report) = upgrade else {
            return Err(format!("machine {name} has no agent that says how its runner is"));
        };
        match report.runner {
            Some(JOB_FORM..) if report.has_room => {}
            Some(JOB_FORM..) => {
                return Err(format!("machine {name} has less than 2 GiB of room on its disk"));
            }
            Some(_) => {
                return Err(format!(
                    "machine {name} has an old runner: run `navigator agent host-install` of this \
                     release there"
                ));
            }
            None => {
                return Err(format!(
                    "machine {name} has no runner: run `navigator agent host-install` there"
                ));
            }
        }
    }
    Ok(())
}

/// One minor version at a time, and none back unless that is asked for.
fn check_version_step(
    plan: &Look<'_>,
    machine: &MachineFacts,
    target: &KubeVersion,
) -> Result<(), String> {
    let MachineFacts { name, kubelet, .. } = machine;
    let Some(from) = KubeVersion::parse(kubelet) else {
        return Err(format!("machine {name} tells no version of its kubelet: {kubelet:?}"));
    };
    if target < &from && !plan.run.spec.allow_downgrade {
        return Err(format!(
            "machine {name} runs {kubelet}, so {target} is a downgrade: see spec.allowDowngrade"
        ));
    }
    match target.minors_after(&from) {
        Some(-1..=1) => Ok(()),
        _ => Err(format!(
            "machine {name} runs {kubelet}, and {target} is more than one minor \
                          version away"
        )),
    }
}

/// The skew that Kubernetes supports, after the run: kubelets no newer than the oldest API server and
/// at most three minor versions older than the newest; API servers one minor version apart, always.
fn check_version_skew(
    plan: &Look<'_>,
    selected_machines: &[&MachineFacts],
    target: &KubeVersion,
) -> Result<(), String> {
    let is_selected =
        |machine: &MachineFacts| selected_machines.iter().any(|other| other.name == machine.name);
    let (mut old_versions, mut new_versions) = (Vec::new(), Vec::new());
    for machine in &plan.fleet.machines {
        if let Some(version) = &machine.api_server {
            old_versions.push(version);
            new_versions.push(if is_selected(machine) { target } else { version });
        }
    }
    if old_versions.is_empty() {
        old_versions.extend(&plan.fleet.api_server);
        new_versions.extend(&plan.fleet.api_server);
    }
    let (Some(oldest), Some(newest)) = (new_versions.iter().min(), new_versions.iter().max())
    else {
        return Err("no API server tells its version".to_owned());
    };
    let versions = old_versions.iter().chain(&new_versions);
    let (low, high) = (versions.clone().min().unwrap_or(oldest), versions.max().unwrap_or(newest));
    if !matches!(high.minors_after(low), Some(0..=1)) {
        return Err(format!(
            "API servers would be {low} and {high}, more than one minor version \
                            apart"
        ));
    }
    for machine in &plan.fleet.machines {
        let name = &machine.name;
        let reported_version = KubeVersion::parse(&machine.kubelet);
        let Some(kubelet) =
            (if is_selected(machine) { Some(target.clone()) } else { reported_version })
        else {
            continue;
        };
        match newest.minors_after(&kubelet) {
            Some(..=OLDEST_KUBELET) => {}
            _ => {
                return Err(format!(
                    "machine {name} would run kubelet {kubelet} beside API server \
                                    {newest}, more than three minor versions behind"
                ));
            }
        }
        if !matches!(oldest.minors_after(&kubelet), Some(0..)) {
            return Err(format!(
                "machine {name} would run kubelet {kubelet}, newer than API server \
                                {oldest}: choose control planes too, or first"
            ));
        }
    }
    Ok(())
}
