//! How machines of a Kubernetes cluster are upgraded or rebooted: what is refused before anything is
//! touched, whose turn it is, and what is done next.
//!
//! Owns the decision alone: [`plan_upgrade`] is a pure function of one ClusterUpgrade, of what was read of
//! the cluster, and of the time. It keeps nothing in memory, so whoever leads next goes on from the
//! objects.
//!
//! A run that is deleted lets go of a machine that is only cordoned: nothing was done to it. From its
//! drain on a machine is finished, well or not: pods left it for a change, and whoever makes that
//! change may be at it. So a drain that hangs ends at its timeout, or when the finalizer is taken off
//! by hand: then [`sweep_marks`] lets go of everything.
//!
//! What the caller must keep to, for the decision to be safe whatever happens between two steps:
//!
//! - It reads the ClusterUpgrades themselves from the API server, and no cache. All else may be
//!   as old as [`LAG_SECONDS`].
//! - It carries out the actions in their order, and writes the status only when all succeeded, against
//!   the resourceVersion that it read. What was written before an action allows it; so an action that
//!   was carried out and then forgotten is carried out again.
//! - An action on a Node or a Pilot succeeds only where the object still has the version that the
//!   action names, and is a failure else. An eviction that a budget refuses is none.
//! - Marks of runs that are over are taken off by [`sweep_marks`], which it calls at every look.

mod advance;
mod drain;
mod facts;
mod job;
mod journal;
mod kube_version;
mod labels;
#[cfg(test)]
mod model;
mod preflight;
mod summary;
#[cfg(test)]
mod tests;
mod turn;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

pub use self::{
    drain::requesting_upgrade,
    facts::{
        DatabaseCluster, Decision, FleetView, MachineFacts, MachinePod, MachineVolume, MemberPilot,
        OtherRun, PodRole, RunFacts, UpgradeAction,
    },
    job::{HostPolicy, JOB_FORM, MachineRole, UpgradeJob},
    journal::{KubeletDigests, KubeletMove, StepFailure, UpgradeJournal},
    kube_version::KubeVersion,
    labels::{LabelOutcome, LabelPlan, LabelWish, label_status, plan_labels},
};
use crate::api::containership::{
    ClusterUpgradeStatus, FailurePolicy, MachinePhase, MachineStatus, MachineWait, UpgradePhase,
    UpgradeType,
};

/// Seconds by which what is read may be older than what was written last.
pub const LAG_SECONDS: i64 = 10;
/// Seconds for which a machine must be seen as wanted before its cordon is taken off.
pub const STABLE_SECONDS: i64 = 30;

/// Decides what is done next for one upgrade, and what its status says.
pub fn plan_upgrade(run: &RunFacts<'_>, fleet: &FleetView) -> Decision {
    let mut plan =
        Look { run, fleet, status: run.status.clone(), actions: Vec::new(), waits: Vec::new() };
    if run.status.is_finished() {
        plan.handle_finished();
    } else if run.status.nodes.is_empty() {
        preflight::accept_run(&mut plan);
    } else if run.finalizer || run.deleting {
        plan.advance_machines();
    } else {
        plan.actions.push(UpgradeAction::AddFinalizer);
    }
    let is_over = run.status.is_finished() && plan.status.is_finished();
    if run.finalizer && (is_over || (run.deleting && run.status.nodes.is_empty())) {
        plan.actions.push(UpgradeAction::RemoveFinalizer);
    }
    summary::complete_status(&mut plan);
    Decision { actions: plan.actions, status: plan.status }
}

/// Refuses an upgrade that was not accepted yet, for good and with this sentence.
pub fn refuse_upgrade(run: &RunFacts<'_>, fleet: &FleetView, sentence: &str) -> Decision {
    let mut plan =
        Look { run, fleet, status: run.status.clone(), actions: Vec::new(), waits: Vec::new() };
    plan.set_finished(UpgradePhase::Failed, Some(sentence.to_owned()));
    if run.finalizer {
        plan.actions.push(UpgradeAction::RemoveFinalizer);
    }
    summary::complete_status(&mut plan);
    Decision { actions: plan.actions, status: plan.status }
}

/// Returns what takes off the marks of runs that are over: of those that are finished or deleted, all
/// but `active`. A leader that was stopped in the middle may have made one late.
pub fn sweep_marks(fleet: &FleetView, active: &[&str]) -> Vec<UpgradeAction> {
    let ended_run =
        |by: &Option<String>| by.as_deref().filter(|by| !active.contains(by)).map(str::to_owned);
    let marks = fleet.machines.iter().filter_map(|machine| {
        let by = ended_run(&machine.cordoned_by).or_else(|| ended_run(&machine.tainted_by))?;
        Some(machine.release_action(&by, true))
    });
    let requests = fleet.pilots.iter().filter_map(|pilot| {
        let by = drain::requesting_upgrade(pilot)?;
        (!active.contains(&by)).then(|| pilot.withdraw_action(by))
    });
    marks.chain(requests).collect()
}

/// One look at an upgrade: what is known, and what is decided so far.
struct Look<'a> {
    run: &'a RunFacts<'a>,
    fleet: &'a FleetView,
    status: ClusterUpgradeStatus,
    actions: Vec<UpgradeAction>,
    waits: Vec<MachineWait>,
}

impl Look<'_> {
    fn now(&self) -> Timestamp {
        self.fleet.now
    }

    fn time_after(&self, seconds: i32) -> Timestamp {
        self.now() + SignedDuration::from_secs(seconds.into())
    }

    /// Notes what a machine waits for; without one, what the run waits for.
    fn add_wait(&mut self, machine: Option<&str>, predicate: &str, message: impl Into<String>) {
        self.add_wait_for(machine, (None, None), predicate, message.into());
    }

    fn add_wait_for(
        &mut self,
        machine: Option<&str>,
        (cluster, pilot): (Option<&str>, Option<&str>),
        predicate: &str,
        message: String,
    ) {
        self.waits.push(MachineWait {
            machine: machine.map(str::to_owned),
            cluster: cluster.map(str::to_owned),
            pilot: pilot.map(str::to_owned),
            predicate: predicate.to_owned(),
            message,
            since: None,
        });
    }

    /// After its end, a run is tried again, deleted in time, or left.
    fn handle_finished(&mut self) {
        let (run, retry) = (self.run, self.run.retry.map(str::to_owned));
        let has_failed = run.status.phase == Some(UpgradePhase::Failed);
        if has_failed && !run.deleting && retry.is_some() && retry != run.status.retried {
            let nodes = std::mem::take(&mut self.status.nodes);
            let reset_node = |node: MachineStatus| match node.phase {
                MachinePhase::Failed => node.reset_for_retry(),
                MachinePhase::Pending => MachineStatus { marked: true, ..node },
                _ => node,
            };
            self.status = ClusterUpgradeStatus {
                nodes: nodes.into_iter().map(reset_node).collect(),
                retried: retry,
                conditions: std::mem::take(&mut self.status.conditions),
                start_time: self.status.start_time.take(),
                warnings: std::mem::take(&mut self.status.warnings),
                ..ClusterUpgradeStatus::default()
            };
            return;
        }
        let age = run.status.completion_time.as_ref().map(|time| self.now().duration_since(time.0));
        if let (Some(ttl), Some(age)) = (run.spec.ttl_seconds_after_finished, age)
            && !run.deleting
            && age >= SignedDuration::from_secs(ttl.into())
        {
            self.actions.push(UpgradeAction::Delete);
        }
    }

    /// Goes on with a run that was accepted.
    fn advance_machines(&mut self) {
        for index in 0..self.status.nodes.len() {
            advance::advance_machine(self, index);
        }
        // What was written last allows that the marks of those that will not begin are taken off.
        let is_ending = self.is_ending(self.run.status);
        for index in 0..self.status.nodes.len() {
            advance::update_marks(self, index, is_ending);
        }
        if !self.is_ending(&self.status) {
            turn::start_machines(self);
        }
        let nodes = &self.status.nodes;
        let is_idle = nodes.iter().all(|node| !node.phase.is_under_way() && !node.marked);
        if is_idle && (is_ending || nodes.iter().all(|node| node.phase.has_ended())) {
            self.complete_run();
        }
    }

    /// Does no further machine begin?
    fn is_ending(&self, status: &ClusterUpgradeStatus) -> bool {
        let is_reboot = self.run.spec.type_ == UpgradeType::Reboot;
        let stops_on_failure = self.run.spec.failure_policy == FailurePolicy::Stop;
        let is_fatal = |node: &MachineStatus| {
            node.phase == MachinePhase::Failed
                && (stops_on_failure || (node.control_plane && !is_reboot))
        };
        self.run.deleting || status.nodes.iter().any(is_fatal)
    }

    fn complete_run(&mut self) {
        let nodes = &self.status.nodes;
        let failed_machines: Vec<&str> = nodes
            .iter()
            .filter(|node| node.phase == MachinePhase::Failed)
            .map(|node| node.name.as_str())
            .collect();
        let pending_count = nodes.iter().filter(|node| node.phase == MachinePhase::Pending).count();
        let suffix = if pending_count > 0 {
            format!("; {pending_count} were left as they are")
        } else {
            String::new()
        };
        let (phase, message) = match failed_machines.as_slice() {
            [] if pending_count == 0 => (UpgradePhase::Success, None),
            [] => (UpgradePhase::Failed, Some(format!("the upgrade was deleted{suffix}"))),
            names => {
                let list = names.join(", ");
                (UpgradePhase::Failed, Some(format!("failed on {list}{suffix}")))
            }
        };
        self.set_finished(phase, message);
    }

    fn set_finished(&mut self, phase: UpgradePhase, message: Option<String>) {
        self.status.phase = Some(phase);
        self.status.message = message;
        self.status.completion_time.get_or_insert(k8s_time(self.fleet.now));
    }
}

impl MachineStatus {
    /// Returns the machine as one that did not begin yet.
    fn reset_for_retry(self) -> Self {
        Self {
            name: self.name,
            control_plane: self.control_plane,
            from: self.from,
            to: self.to,
            attempt: self.attempt,
            marked: true,
            ..Self::default()
        }
    }
}

fn k8s_time(time: Timestamp) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time)
}
