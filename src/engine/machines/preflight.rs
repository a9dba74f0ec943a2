//! What is looked at before anything is touched: what is refused for good, each in one sentence, and
//! what is waited for.

use super::{JOB_FORM, KubeVersion, Look, MachineFacts, OtherRun, advance, k8s_time, turn};
use crate::api::containership::{MachineStatus, RunnerMode, UpgradePhase, UpgradeType, select};

/// kubelets may be older than an API server by so many minor versions.
const OLDEST_KUBELET: i64 = 3;
/// From this minor version on, a kubelet does not start on a machine with control groups of version 1.
const CGROUP_V2_ONLY: u32 = 35;

/// Accepts a run that may begin; refuses it for good, or says what it waits for.
pub(super) fn accept(look: &mut Look<'_>) {
    let (run, fleet) = (look.run, look.fleet);
    if run.deleting {
        return;
    }
    let selector = run.spec.label_selector.as_deref().unwrap_or_default();
    let chosen = fleet.machines.iter().filter(|machine| select(selector, &machine.labels));
    let mut chosen: Vec<&MachineFacts> = chosen.collect();
    turn::sort(&mut chosen);
    if let Err(sentence) = refuse(look, &chosen) {
        look.finish(UpgradePhase::Failed, Some(sentence));
        return;
    }
    let first = |other: &&OtherRun| other.accepted || other.is_older(run);
    if let Some(other) = fleet.others.iter().find(first) {
        let sentence = format!("upgrade {} is not finished, and comes first", other.name);
        look.wait(None, "OtherUpgrade", sentence);
        look.status.phase = Some(UpgradePhase::Pending);
        return;
    }
    for machine in fleet.machines.iter().filter(|machine| !machine.ready) {
        look.wait(None, "MachinesReady", format!("machine {} is not Ready", machine.name));
    }
    if fleet.machines.iter().any(|machine| machine.etcd_ready == Some(false)) {
        look.wait(None, "EtcdHealthy", "a member of etcd is not ready");
    }
    if !look.waits.is_empty() {
        look.status.phase = Some(UpgradePhase::Preflight);
        return;
    }
    let reboots = run.spec.type_ == UpgradeType::Reboot;
    let node = |machine: &&MachineFacts| MachineStatus {
        name: machine.name.clone(),
        control_plane: machine.control_plane,
        from: Some(if reboots { machine.boot_id.clone() } else { machine.kubelet.clone() }),
        to: run.spec.target_version.clone().filter(|_| !reboots),
        // Our taint is put on all that are still to come.
        marked: true,
        ..MachineStatus::default()
    };
    look.status.nodes = chosen.iter().map(node).collect();
    look.status.start_time = Some(k8s_time(look.now()));
    look.status.warnings = warnings(look);
}

/// Returns what a person should know, and what does not hold the run.
fn warnings(look: &Look<'_>) -> Vec<String> {
    let mut warnings = look.fleet.deprecated.clone();
    for node in look.status.nodes.iter().filter(|node| advance::drains(look.run, node)) {
        for name in look.fleet.clusters_on(&node.name) {
            let found = look.fleet.clusters.iter().find(|cluster| cluster.name == name);
            if let Some(cluster) = found.filter(|cluster| cluster.drainable == Some(false)) {
                let machine = &node.name;
                warnings.push(format!("{name} does not let {machine} go yet: {}", cluster.why));
            }
        }
    }
    warnings.truncate(20);
    warnings
}

fn refuse(look: &Look<'_>, chosen: &[&MachineFacts]) -> Result<(), String> {
    let (run, fleet) = (look.run, look.fleet);
    if run.spec.type_ == UpgradeType::Etcd {
        return Err(
            "Unsupported: type etcd is not carried out; kubeadm upgrades the etcd beside a \
                    control plane"
                .to_owned(),
        );
    }
    if chosen.is_empty() {
        return Err("no machine meets spec.labelSelector".to_owned());
    }
    if run.spec.runner.mode == RunnerMode::Kubeadm {
        runners(look, chosen)?;
    }
    let members = fleet.machines.iter().filter(|machine| machine.etcd_ready.is_some()).count();
    if members == 2 && chosen.iter().any(|machine| machine.etcd_ready.is_some()) {
        return Err("etcd has two members, and can spare neither".to_owned());
    }
    if run.spec.type_ == UpgradeType::Reboot {
        return Ok(());
    }
    let text = run.spec.target_version.as_deref().unwrap_or_default();
    let Some(target) = KubeVersion::parse(text) else {
        return Err(format!("targetVersion {text:?} is no release of Kubernetes"));
    };
    for machine in chosen {
        step(look, machine, &target)?;
        let cgroup = machine.upgrade.as_ref().map(|report| report.cgroup);
        if cgroup == Some(1) && target.minor >= CGROUP_V2_ONLY {
            let name = &machine.name;
            return Err(format!(
                "machine {name} has control groups of version 1, on which kubelet \
                                {target} does not start"
            ));
        }
    }
    skew(look, chosen, &target)
}

/// A run by agents needs one on each machine, a runner beside it, and what to give them.
fn runners(look: &Look<'_>, chosen: &[&MachineFacts]) -> Result<(), String> {
    if look.run.spec.type_ == UpgradeType::Reboot {
        return Err("Unsupported: runner.mode Kubeadm reboots no machine; use External".to_owned());
    }
    if look.run.spec.runner.artifacts.is_none() {
        return Err("runner.mode Kubeadm needs spec.runner.artifacts".to_owned());
    }
    for MachineFacts { name, upgrade, .. } in chosen {
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
fn step(look: &Look<'_>, machine: &MachineFacts, target: &KubeVersion) -> Result<(), String> {
    let MachineFacts { name, kubelet, .. } = machine;
    let Some(from) = KubeVersion::parse(kubelet) else {
        return Err(format!("machine {name} tells no version of its kubelet: {kubelet:?}"));
    };
    if target < &from && !look.run.spec.allow_downgrade {
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
fn skew(look: &Look<'_>, chosen: &[&MachineFacts], target: &KubeVersion) -> Result<(), String> {
    let is_chosen = |machine: &MachineFacts| chosen.iter().any(|other| other.name == machine.name);
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for machine in &look.fleet.machines {
        if let Some(version) = &machine.api_server {
            before.push(version);
            after.push(if is_chosen(machine) { target } else { version });
        }
    }
    if before.is_empty() {
        before.extend(&look.fleet.api_server);
        after.extend(&look.fleet.api_server);
    }
    let (Some(oldest), Some(newest)) = (after.iter().min(), after.iter().max()) else {
        return Err("no API server tells its version".to_owned());
    };
    let all = before.iter().chain(&after);
    let (low, high) = (all.clone().min().unwrap_or(oldest), all.max().unwrap_or(newest));
    if !matches!(high.minors_after(low), Some(0..=1)) {
        return Err(format!(
            "API servers would be {low} and {high}, more than one minor version \
                            apart"
        ));
    }
    for machine in &look.fleet.machines {
        let name = &machine.name;
        let told = KubeVersion::parse(&machine.kubelet);
        let Some(kubelet) = (if is_chosen(machine) { Some(target.clone()) } else { told }) else {
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
