//! A walk through upgrades of a small cluster: machines, pods, pilots, persons, several coordinators
//! of which one may be stopped in the middle, reads that are old, and machines that never come back.
//!
//! The decision is the real one. The laws that it must keep are asserted after every write, and at
//! the end of each walk, when nobody interferes any more: every run ends, and nothing of ours stays.
//! All randomness comes from one seed, which a broken law tells with all that happened.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    DatabaseCluster, Decision, FleetView, JOB_FORM, KubeVersion, LAG_SECONDS, MachineFacts,
    MachinePod, MachineVolume, MemberPilot, OtherRun, PodRole, RunFacts, UpgradeAction,
    plan_upgrade, sweep_marks,
};
use crate::api::containership::{
    ClusterUpgradeSpec, ClusterUpgradeStatus, DrainMode, FailurePolicy, JobCode, JobReport,
    JobStep, MachinePhase, RunnerArtifacts, RunnerMode, UpgradePhase, UpgradeReport, UpgradeType,
};

const OLD: &str = "v1.33.13";
const NEW: &str = "v1.34.4";

struct Run {
    name: String,
    created: Timestamp,
    spec: ClusterUpgradeSpec,
    status: ClusterUpgradeStatus,
    version: u64,
    deleting: bool,
    finalizer: bool,
    retry: Option<String>,
}

/// What the rest of the world knows of a machine.
#[derive(Default)]
struct Machine {
    facts: MachineFacts,
    version: u64,
    /// The machine never comes back once it is changed.
    doomed: bool,
    /// When it is well again after a change.
    back: Option<Timestamp>,
    /// A person cordoned it, and nobody else uncordons it.
    by_person: bool,
    /// A person uncordoned it, or took our mark, since it began: pods may have come.
    touched: bool,
}

/// A decision that a coordinator made and did not carry out before it was stopped.
struct LateDecision {
    run: String,
    version: u64,
    decision: Decision,
}

struct World {
    rng: StdRng,
    now: Timestamp,
    machines: Vec<Machine>,
    /// Pods with the number of the database cluster that they are of.
    pods: Vec<MachinePod>,
    volumes: Vec<MachineVolume>,
    pilots: Vec<(MemberPilot, u64)>,
    /// Database clusters whose rules hold every node.
    held: BTreeSet<String>,
    runs: Vec<Run>,
    views: Vec<FleetView>,
    late: Vec<LateDecision>,
    uids: u64,
    /// Runs of which a decision was carried out late.
    disturbed: BTreeSet<String>,
    /// Machines that failed or were taken over, which may stay cordoned.
    left: BTreeSet<String>,
    log: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let planes = rng.random_range(1..=3);
        let workers = rng.random_range(2..=4);
        let machine = |index: usize| {
            let plane = index < planes;
            // Control planes come last by name.
            let name = if plane { format!("p{index}") } else { format!("m{}", index - planes) };
            Machine {
                facts: MachineFacts {
                    name,
                    control_plane: plane,
                    ready: true,
                    kubelet: OLD.to_owned(),
                    boot_id: "boot-0".to_owned(),
                    api_server: plane.then(|| KubeVersion::parse(OLD).unwrap()),
                    control_plane_healthy: plane,
                    upgrade: Some(UpgradeReport {
                        cgroup: 2,
                        has_room: true,
                        runner: Some(JOB_FORM),
                        job: None,
                    }),
                    ..MachineFacts::default()
                },
                ..Machine::default()
            }
        };
        let machines: Vec<Machine> = (0..planes + workers).map(machine).collect();
        let mut world = Self {
            rng,
            now: "2026-11-26T12:00:00Z".parse().unwrap(),
            machines,
            pods: Vec::new(),
            volumes: Vec::new(),
            pilots: Vec::new(),
            held: BTreeSet::new(),
            runs: Vec::new(),
            views: Vec::new(),
            late: Vec::new(),
            uids: 0,
            disturbed: BTreeSet::new(),
            left: BTreeSet::new(),
            log: vec![format!("seed {seed}")],
        };
        for cluster in ["a", "b"] {
            for ordinal in 0..3 {
                let on = planes + world.rng.random_range(0..workers);
                let on = world.machines[on].facts.name.clone();
                world.make_member(cluster, ordinal, on);
            }
        }
        for index in 0..world.rng.random_range(2..6) {
            let on = world.rng.random_range(0..planes + workers);
            let on = world.machines[on].facts.name.clone();
            let role = [PodRole::Ordinary, PodRole::Navigator, PodRole::Coordinator, PodRole::Left];
            let role = role[world.rng.random_range(0..4)];
            world.make_pod(&format!("pod-{index}"), role, Some(on), &[]);
        }
        world
    }

    fn make_pod(&mut self, name: &str, role: PodRole, on: Option<String>, volumes: &[String]) {
        self.uids += 1;
        self.pods.push(MachinePod {
            namespace: "db".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{}", self.uids),
            machine: on,
            role,
            ends: false,
            labels: BTreeMap::new(),
            volumes: volumes.to_vec(),
            has_owner: true,
            has_local_data: false,
            refusal: None,
        });
    }

    fn make_member(&mut self, cluster: &str, ordinal: usize, on: String) {
        let name = format!("{cluster}-{ordinal}");
        let bound = self.rng.random_bool(0.5).then(|| on.clone());
        self.volumes.push(MachineVolume { name: name.clone(), machine: bound });
        self.make_pod(&name, PodRole::Database, Some(on), std::slice::from_ref(&name));
        let pilot = MemberPilot {
            namespace: "db".to_owned(),
            name,
            version: String::new(),
            cluster: format!("db/kind/{cluster}"),
            leave: None,
            waits: None,
        };
        self.pilots.push((pilot, 1));
    }

    fn log_event(&mut self, text: impl std::fmt::Debug) {
        self.log.push(format!("{} {text:?}", self.now));
    }

    fn check_law(&self, is_met: bool, law: &str) {
        let last = self.log.len().saturating_sub(120);
        assert!(is_met, "broken: {law}\n{}\n{}", self.log[0], self.log[last..].join("\n"));
    }

    fn random_chance(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    fn find_machine(&self, name: &str) -> Option<&Machine> {
        self.machines.iter().find(|machine| machine.facts.name == name)
    }

    fn find_machine_mut(&mut self, name: &str) -> Option<&mut Machine> {
        self.machines.iter_mut().find(|machine| machine.facts.name == name)
    }

    /// How a database cluster is: every member runs, and no rule holds.
    fn database_cluster(&self, name: &str) -> DatabaseCluster {
        let members = self.pilots.iter().filter(|(pilot, _)| pilot.cluster == name);
        let is_running = |pilot: &MemberPilot| {
            let pod = self.pods.iter().find(|pod| pod.name == pilot.name);
            pod.is_some_and(|pod| {
                let machine = pod.machine.as_ref().and_then(|on| self.find_machine(on));
                !pod.ends && machine.is_some_and(|on| on.facts.ready)
            })
        };
        let is_serving = members.clone().all(|(pilot, _)| is_running(pilot));
        let is_blocked = self.held.contains(name);
        DatabaseCluster {
            name: name.to_owned(),
            drainable: Some(is_serving && !is_blocked),
            why: "PeersUp: a node is away".to_owned(),
            serves: is_serving,
        }
    }

    /// What a coordinator with caches that are up to date would read.
    fn current_view(&self) -> FleetView {
        let machine = |machine: &Machine| MachineFacts {
            version: machine.version.to_string(),
            ..machine.facts.clone()
        };
        let pilot = |(pilot, version): &(MemberPilot, u64)| MemberPilot {
            version: version.to_string(),
            ..pilot.clone()
        };
        FleetView {
            now: self.now,
            machines: self.machines.iter().map(machine).collect(),
            pods: self.pods.clone(),
            volumes: self.volumes.clone(),
            pilots: self.pilots.iter().map(pilot).collect(),
            clusters: ["db/kind/a", "db/kind/b"].map(|name| self.database_cluster(name)).into(),
            others: Vec::new(),
            api_server: None,
            deprecated: Vec::new(),
        }
    }

    /// What a coordinator reads: each kind as it was at a moment that is not too long ago.
    fn read_view(&mut self, stale: bool) -> FleetView {
        let fresh = self.current_view();
        self.views.push(fresh.clone());
        let oldest = self.now - SignedDuration::from_secs(LAG_SECONDS);
        let ends: Vec<Timestamp> = self.views.iter().skip(1).map(|view| view.now).collect();
        let until = |index: usize| ends.get(index).copied().unwrap_or(self.now);
        let usable: Vec<usize> =
            (0..self.views.len()).filter(|index| until(*index) > oldest).collect();
        let mut pick = || {
            if !stale {
                return self.views.len() - 1;
            }
            usable[self.rng.random_range(0..usable.len())]
        };
        let (machines, pods, pilots, clusters) = (pick(), pick(), pick(), pick());
        let stale_view = FleetView {
            machines: self.views[machines].machines.clone(),
            pods: self.views[pods].pods.clone(),
            pilots: self.views[pilots].pilots.clone(),
            clusters: self.views[clusters].clusters.clone(),
            ..fresh
        };
        let first_view = usable[0];
        self.views.drain(..first_view);
        stale_view
    }

    /// A coordinator looks at every upgrade.
    fn reconcile_runs(&mut self, faults: bool) {
        for name in self.runs.iter().map(|run| run.name.clone()).collect::<Vec<_>>() {
            let stale = faults && self.random_chance(0.5);
            let mut fleet = self.read_view(stale);
            let Some(run) = self.runs.iter().find(|run| run.name == name) else { continue };
            let others = self.runs.iter().filter(|other| other.name != name);
            fleet.others = others
                .filter(|other| !other.status.is_finished())
                .map(|other| OtherRun {
                    name: other.name.clone(),
                    created: other.created,
                    accepted: !other.status.nodes.is_empty(),
                    under_way: other.status.nodes.iter().any(|node| node.phase.is_under_way()),
                })
                .collect();
            let facts = RunFacts {
                name: &run.name,
                id: &run.name,
                created: run.created,
                generation: 1,
                spec: &run.spec,
                status: &run.status,
                deleting: run.deleting,
                finalizer: run.finalizer,
                retry: run.retry.as_deref(),
            };
            let decision = plan_upgrade(&facts, &fleet);
            assert_eq!(
                decision,
                plan_upgrade(&facts, &fleet),
                "the decision is a function of what is read"
            );
            let late = LateDecision { run: name, version: run.version, decision };
            if faults && self.random_chance(0.04) {
                self.log.push(format!("stopped before {:?}", late.decision.actions));
                self.late.push(late);
            } else {
                self.carry_out(late, faults, true);
            }
        }
        let active: Vec<String> = self
            .runs
            .iter()
            .filter(|run| !run.status.is_finished())
            .map(|run| run.name.clone())
            .collect();
        let active: Vec<&str> = active.iter().map(String::as_str).collect();
        let stale = faults && self.random_chance(0.5);
        let fleet = self.read_view(stale);
        for action in sweep_marks(&fleet, &active) {
            self.apply_action(&action);
        }
    }

    /// Carries a decision out, with the end of the coordinator between any two writes.
    fn carry_out(&mut self, late: LateDecision, faults: bool, is_timely: bool) {
        let LateDecision { run: name, version, decision } = late;
        if !is_timely {
            self.disturbed.insert(name.clone());
        }
        for action in &decision.actions {
            if faults && self.random_chance(0.05) {
                self.log_event("coordinator ends");
                return;
            }
            self.log_event(("does", action));
            if is_timely {
                self.check_mark(&name, action);
            }
            let is_applied = self.apply_run_action(&name, action);
            if faults && self.random_chance(0.05) {
                self.apply_run_action(&name, action);
            }
            if !is_applied {
                self.log_event("conflict");
                return;
            }
        }
        if faults && self.random_chance(0.05) {
            self.log_event("coordinator ends before the status");
            return;
        }
        let Some(run) = self.runs.iter().position(|run| run.name == name) else { return };
        if self.runs[run].version != version || self.runs[run].status == decision.status {
            return;
        }
        let old_status = std::mem::replace(&mut self.runs[run].status, decision.status);
        self.runs[run].version += 1;
        self.check_write(run, &old_status);
        if self.runs[run].status.is_finished() && !old_status.is_finished() {
            self.check_end(&name);
        }
    }

    fn apply_run_action(&mut self, run: &str, action: &UpgradeAction) -> bool {
        let Some(index) = self.runs.iter().position(|candidate| candidate.name == run) else {
            return self.apply_action(action);
        };
        match action {
            UpgradeAction::AddFinalizer => {
                if self.runs[index].deleting {
                    return false;
                }
                self.runs[index].finalizer = true;
                self.runs[index].version += 1;
            }
            UpgradeAction::RemoveFinalizer => {
                self.runs[index].finalizer = false;
                if self.runs[index].deleting {
                    self.runs.remove(index);
                }
            }
            UpgradeAction::Delete => self.delete_run(index),
            _ => return self.apply_action(action),
        }
        true
    }

    fn delete_run(&mut self, index: usize) {
        self.runs[index].deleting = true;
        self.runs[index].version += 1;
        if !self.runs[index].finalizer {
            self.runs.remove(index);
        }
    }

    /// Writes to a machine, a pod or a pilot. Returns whether the write succeeded.
    fn apply_action(&mut self, action: &UpgradeAction) -> bool {
        match action {
            UpgradeAction::Taint { machine, version, by } => {
                self.write_machine(machine, version, |facts| facts.tainted_by = Some(by.clone()))
            }
            UpgradeAction::Cordon { machine, version, by } => {
                self.write_machine(machine, version, |facts| {
                    if !facts.cordoned {
                        (facts.cordoned, facts.cordoned_by) = (true, Some(by.clone()));
                    }
                })
            }
            UpgradeAction::Release { machine, version, by, uncordon } => {
                let machine_facts = self.find_machine(machine).map(|entry| entry.facts.clone());
                let is_own_cordon = machine_facts
                    .as_ref()
                    .is_some_and(|facts| facts.cordoned_by.as_ref() == Some(by));
                if is_own_cordon && !uncordon {
                    self.left.insert(machine.clone());
                }
                self.write_machine(machine, version, |facts| {
                    if facts.tainted_by.as_ref() == Some(by) {
                        facts.tainted_by = None;
                    }
                    if facts.cordoned_by.as_ref() == Some(by) {
                        facts.cordoned_by = None;
                        facts.cordoned &= !uncordon;
                    }
                })
            }
            UpgradeAction::Evict { pod, uid, .. } => {
                let is_refused = self.random_chance(0.3);
                let pod = self
                    .pods
                    .iter_mut()
                    .find(|candidate| candidate.name == *pod && candidate.uid == *uid);
                if let Some(pod) = pod {
                    if is_refused {
                        pod.refusal = Some("a budget refuses it".to_owned());
                    } else {
                        pod.ends = true;
                    }
                    let is_allowed = pod.role != PodRole::Database && pod.has_owner;
                    self.check_law(
                        is_allowed,
                        "no pod is evicted that a database or nobody stands behind",
                    );
                }
                true
            }
            UpgradeAction::Ask { pilot, version, request, .. } => {
                self.write_pilot(pilot, version, |pilot| pilot.leave = Some(request.clone()))
            }
            UpgradeAction::Withdraw { pilot, version, by, .. } => {
                self.write_pilot(pilot, version, |pilot| {
                    if super::drain::requesting_upgrade(pilot) == Some(by) {
                        pilot.leave = None;
                    }
                })
            }
            UpgradeAction::AddFinalizer
            | UpgradeAction::RemoveFinalizer
            | UpgradeAction::Delete => false,
        }
    }

    fn write_machine(
        &mut self,
        name: &str,
        version: &str,
        apply_change: impl FnOnce(&mut MachineFacts),
    ) -> bool {
        let Some(machine) = self.find_machine_mut(name) else { return false };
        if machine.version.to_string() != version {
            return false;
        }
        let old_facts = machine.facts.clone();
        apply_change(&mut machine.facts);
        machine.version += u64::from(machine.facts != old_facts);
        true
    }

    fn write_pilot(
        &mut self,
        name: &str,
        version: &str,
        apply_change: impl FnOnce(&mut MemberPilot),
    ) -> bool {
        let pilot_entry = self.pilots.iter_mut().find(|(pilot, _)| pilot.name == name);
        let Some((pilot, current)) = pilot_entry else { return false };
        if current.to_string() != version {
            return false;
        }
        let old_pilot = pilot.clone();
        apply_change(pilot);
        *current += u64::from(*pilot != old_pilot);
        true
    }

    /// A machine is marked, and a pilot asked, only where the status said before that it may be.
    fn check_mark(&self, run: &str, action: &UpgradeAction) {
        let Some(run) = self.runs.iter().find(|candidate| candidate.name == run) else { return };
        let nodes = &run.status.nodes;
        let is_announced = match action {
            UpgradeAction::Taint { machine, .. } | UpgradeAction::Cordon { machine, .. } => {
                nodes.iter().any(|node| node.name == *machine && node.marked)
            }
            UpgradeAction::Ask { namespace, pilot, .. } => {
                let place = format!("{namespace}/{pilot}");
                nodes.iter().any(|node| node.asked.contains(&place))
            }
            _ => return,
        };
        self.check_law(
            is_announced,
            "nothing is marked or asked before the status says that it may be",
        );
    }

    /// At its end, a run has taken off what it put on machines and Pilots, without being swept up
    /// after.
    fn check_end(&self, run: &str) {
        if self.disturbed.contains(run) {
            return;
        }
        let is_own = |by: &Option<String>| by.as_deref() == Some(run);
        let is_marked = |machine: &Machine| {
            is_own(&machine.facts.cordoned_by) || is_own(&machine.facts.tainted_by)
        };
        let is_requested =
            |(pilot, _): &(MemberPilot, u64)| super::drain::requesting_upgrade(pilot) == Some(run);
        let is_clean =
            !self.machines.iter().any(is_marked) && !self.pilots.iter().any(is_requested);
        self.check_law(is_clean, "no mark and no request of a run is left at its end");
    }

    /// The laws that hold between machines, after a status was written.
    fn check_write(&mut self, run: usize, old_status: &ClusterUpgradeStatus) {
        let changes: Vec<(String, MachinePhase)> = self.runs[run]
            .status
            .nodes
            .iter()
            .filter(|node| {
                old_status
                    .nodes
                    .iter()
                    .find(|old_node| old_node.name == node.name)
                    .map(|old| old.phase)
                    != Some(node.phase)
            })
            .map(|node| (node.name.clone(), node.phase))
            .collect();
        self.log_event((
            &self.runs[run].name.clone(),
            &self.runs[run].status.phase.clone(),
            &changes,
        ));
        let mut unavailable: Vec<(usize, String, bool, bool)> = Vec::new();
        for (index, run) in self.runs.iter().enumerate() {
            let nodes = run.status.nodes.iter().filter(|node| node.phase.is_under_way());
            unavailable.extend(nodes.map(|node| {
                let is_drained = node.phase != MachinePhase::Cordon;
                (index, node.name.clone(), node.control_plane, is_drained)
            }));
        }
        let max_unavailable = |machines: &[&(usize, String, bool, bool)]| {
            let lowest_limit =
                machines.iter().map(|(index, ..)| self.runs[*index].spec.max_unavailable).min();
            if machines.iter().any(|(_, _, plane, _)| *plane) {
                1
            } else {
                lowest_limit.unwrap_or(1)
            }
        };
        let is_within_limit = |machines: &[&(usize, String, bool, bool)]| {
            i32::try_from(machines.len()).unwrap() <= max_unavailable(machines)
        };
        // Of one run, those that are only cordoned count as well.
        let own_machines: Vec<_> = unavailable.iter().filter(|(index, ..)| *index == run).collect();
        let drained_machines: Vec<_> =
            unavailable.iter().filter(|(_, _, _, drained)| *drained).collect();
        self.check_law(
            is_within_limit(&own_machines) && is_within_limit(&drained_machines),
            "no more machines are away than maxUnavailable",
        );
        for (name, phase) in &changes {
            let old_phase =
                old_status.nodes.iter().find(|old| old.name == *name).map(|old| old.phase);
            let was_drained = old_phase.is_some_and(|earlier_phase| {
                earlier_phase.is_under_way() && earlier_phase != MachinePhase::Cordon
            });
            let is_finished = *phase != MachinePhase::Pending || !was_drained;
            self.check_law(
                is_finished,
                "from its drain on a machine is finished, whoever deletes the run",
            );
            if *phase == MachinePhase::Cordon {
                let nodes = &self.runs[run].status.nodes;
                let starting_node = nodes.iter().find(|node| node.name == *name).unwrap();
                let is_waiting = |node: &&crate::api::containership::MachineStatus| {
                    node.control_plane && !node.phase.has_ended()
                };
                let is_first =
                    starting_node.control_plane || !nodes.iter().any(|node| is_waiting(&node));
                self.check_law(is_first, "control planes come first");
                self.find_machine_mut(name).into_iter().for_each(|machine| machine.touched = false);
            }
            if matches!(phase, MachinePhase::Drain | MachinePhase::Run) {
                let view = self.current_view();
                let own_clusters: BTreeSet<String> = view.clusters_on(name).into_iter().collect();
                let is_touched =
                    |name: &str| self.find_machine(name).is_none_or(|machine| machine.touched);
                for (index, other, _, drained) in &unavailable {
                    let nodes = &self.runs[*index].status.nodes;
                    let node = nodes.iter().find(|node| node.name == *other).unwrap();
                    if other == name || !drained {
                        continue;
                    }
                    let other_clusters: BTreeSet<String> = node.clusters.iter().cloned().collect();
                    let is_separate = is_touched(name)
                        || is_touched(other)
                        || own_clusters.is_disjoint(&other_clusters);
                    self.check_law(
                        is_separate,
                        "no two machines of one database cluster are away together",
                    );
                }
            }
        }
    }

    /// Kubernetes, the controller, the tool that upgrades machines, and time.
    fn run_others(&mut self, faults: bool) {
        let max_seconds = if self.random_chance(0.6) { 3 } else { 20 };
        let seconds = self.rng.random_range(1..=max_seconds);
        self.now += SignedDuration::from_secs(seconds);
        self.run_controller();
        self.run_kubernetes();
        self.run_upgrade_tool();
        if faults && self.random_chance(0.3) {
            self.end_random_pod();
        }
        self.views.push(self.current_view());
    }

    fn run_controller(&mut self) {
        for index in 0..self.pilots.len() {
            let (pilot, _) = self.pilots[index].clone();
            let Some(request) = &pilot.leave else { continue };
            let pod = self.pods.iter().position(|pod| pod.name == pilot.name);
            let Some(pod) = pod.filter(|pod| self.pods[*pod].uid == request.pod) else { continue };
            if self.pods[pod].ends || self.random_chance(0.5) {
                continue;
            }
            let database = self.database_cluster(&pilot.cluster);
            let machine = self.pods[pod].machine.clone();
            // Others that left the same machine are expected to be away.
            let cluster_pilots =
                self.pilots.iter().filter(|(other, _)| other.cluster == pilot.cluster);
            let is_calm = cluster_pilots.clone().all(|(other, _)| {
                let pod = self.pods.iter().find(|pod| pod.name == other.name);
                pod.is_some_and(|pod| {
                    let is_bound_here = machine
                        .as_deref()
                        .is_some_and(|on| self.current_view().is_bound_to(pod, on));
                    pod.machine.is_some() && !pod.ends || is_bound_here
                })
            });
            let is_blocked = self.held.contains(&database.name) || !is_calm;
            let blocker_text = is_blocked.then(|| "PeersUp: a node is away".to_owned());
            if self.pilots[index].0.waits != blocker_text {
                self.pilots[index].0.waits = blocker_text;
                self.pilots[index].1 += 1;
            }
            if !is_blocked {
                self.pods[pod].ends = true;
                let name = self.pods[pod].name.clone();
                self.log_event(("controller deletes", name));
            }
        }
    }

    fn run_kubernetes(&mut self) {
        let mut recreated_pods = Vec::new();
        for index in (0..self.pods.len()).rev() {
            let is_ready =
                |on: &String| self.find_machine(on).is_some_and(|machine| machine.facts.ready);
            let can_end = self.pods[index].machine.as_ref().is_none_or(is_ready);
            if self.pods[index].ends && can_end && self.random_chance(0.5) {
                let pod = self.pods.remove(index);
                if pod.has_owner {
                    recreated_pods.push(pod);
                }
            }
        }
        for pod in recreated_pods {
            self.make_pod(&pod.name, pod.role, None, &pod.volumes);
        }
        for index in 0..self.pods.len() {
            if self.pods[index].machine.is_some() {
                continue;
            }
            let volume = self
                .volumes
                .iter()
                .find(|candidate| self.pods[index].volumes.contains(&candidate.name));
            let bound_machine = volume.and_then(|volume| volume.machine.clone());
            let can_schedule = |machine: &&Machine| {
                let facts = &machine.facts;
                let is_allowed_here =
                    bound_machine.as_ref().is_none_or(|bound| *bound == facts.name);
                is_allowed_here && facts.ready && !facts.cordoned
            };
            let mut candidates: Vec<(bool, String)> = self
                .machines
                .iter()
                .filter(can_schedule)
                .map(|machine| (machine.facts.tainted_by.is_some(), machine.facts.name.clone()))
                .collect();
            candidates.sort();
            if !candidates.is_empty() {
                let candidate_count = if self.random_chance(0.5) { 1 } else { candidates.len() };
                let (_, on) = candidates[self.rng.random_range(0..candidate_count)].clone();
                self.log_event(("scheduled", &self.pods[index].name.clone(), &on));
                self.pods[index].machine = Some(on);
            }
        }
    }

    /// Pods end and are made again, also those of databases, without being asked.
    fn end_random_pod(&mut self) {
        let pod = self.rng.random_range(0..self.pods.len());
        let is_ordinary = self.pods[pod].role == PodRole::Ordinary;
        if is_ordinary || self.random_chance(0.3) {
            self.pods[pod].ends = true;
            let name = self.pods[pod].name.clone();
            self.log_event(("ends by itself", name));
        }
    }

    /// A person's own tool, or a runner, changes the machines that wait for it.
    fn run_upgrade_tool(&mut self) {
        let mut pending_changes = Vec::new();
        for run in &self.runs {
            let running_nodes =
                run.status.nodes.iter().filter(|node| node.phase == MachinePhase::Run);
            pending_changes.extend(running_nodes.map(|node| {
                let job = JobReport {
                    id: run.name.clone(),
                    attempt: node.attempt,
                    step: JobStep::Kubeadm,
                    code: None,
                    message: None,
                };
                let job = (run.spec.runner.mode == RunnerMode::Kubeadm).then_some(job);
                (node.name.clone(), run.spec.clone(), job)
            }));
        }
        for (name, spec, job) in pending_changes {
            if self.random_chance(0.5) {
                continue;
            }
            let remaining_pods: Vec<String> = self
                .pods
                .iter()
                .filter(|pod| pod.machine.as_ref() == Some(&name) && pod.role != PodRole::Left)
                .map(|pod| pod.name.clone())
                .collect();
            let is_drained = spec.drain.mode == DrainMode::Never || remaining_pods.is_empty();
            let Some(machine) = self.find_machine(&name) else { continue };
            self.check_law(
                is_drained || machine.touched,
                "a machine is changed when its pods have left",
            );
            let (now, duration) = (self.now, self.rng.random_range(0..120));
            let machine = self.find_machine_mut(&name).unwrap();
            if machine.back.is_some() {
                continue;
            }
            machine.facts.ready = false;
            machine.version += 1;
            machine.back = Some(now + SignedDuration::from_secs(duration));
            machine.facts.upgrade.as_mut().unwrap().job = job;
        }
        let (now, is_failing) = (self.now, self.random_chance(0.2));
        for machine in &mut self.machines {
            if machine.back.is_some_and(|back| back <= now) && !machine.doomed {
                machine.back = None;
                machine.version += 1;
                let facts = &mut machine.facts;
                facts.ready = true;
                facts.boot_id.push('+');
                let job = facts.upgrade.as_mut().and_then(|report| report.job.as_mut());
                if let Some(job) = job {
                    job.code = Some(if is_failing { JobCode::RolledBack } else { JobCode::Done });
                    if is_failing {
                        continue;
                    }
                }
                facts.kubelet = NEW.to_owned();
                if facts.control_plane {
                    facts.api_server = KubeVersion::parse(NEW);
                }
            }
        }
    }

    fn run_user(&mut self) {
        let machine = self.rng.random_range(0..self.machines.len());
        let name = self.machines[machine].facts.name.clone();
        match self.rng.random_range(0..16) {
            0 if self.runs.len() < 3 => self.create_run(),
            1..=3 if !self.runs.is_empty() => {
                let run = self.rng.random_range(0..self.runs.len());
                self.runs[run].spec.paused ^= true;
                self.runs[run].version += 1;
            }
            4 if !self.runs.is_empty() => {
                let run = self.rng.random_range(0..self.runs.len());
                self.log_event(("person deletes", &self.runs[run].name.clone()));
                self.delete_run(run);
            }
            5 => {
                let target = &mut self.machines[machine];
                if !target.facts.cordoned {
                    // Where our mark is still there, the cordon is taken for ours.
                    target.by_person = target.facts.cordoned_by.is_none();
                    target.facts.cordoned = true;
                    target.version += 1;
                    self.log_event(("person cordons", name));
                }
            }
            6 => {
                let target = &mut self.machines[machine];
                (target.facts.cordoned, target.by_person, target.touched) = (false, false, true);
                target.version += 1;
                self.left.remove(&name);
                self.log_event(("person uncordons", name));
            }
            7 => {
                // The person takes the cordon over.
                let target = &mut self.machines[machine];
                if target.facts.cordoned_by.take().is_some() {
                    (target.by_person, target.touched) = (target.facts.cordoned, true);
                    target.version += 1;
                    self.log_event(("person takes the cordon over", name));
                }
            }
            8 => {
                let cluster = ["db/kind/a", "db/kind/b"][self.rng.random_range(0..2)];
                if !self.held.remove(cluster) {
                    self.held.insert(cluster.to_owned());
                }
            }
            9 => {
                let target = &mut self.machines[machine];
                if target.back.is_none() {
                    target.facts.ready ^= true;
                    target.version += 1;
                }
            }
            10 => {
                // A pod that nothing makes again, or the end of one.
                let lone_pod = self.pods.iter().position(|pod| !pod.has_owner);
                match lone_pod {
                    Some(pod) => drop(self.pods.remove(pod)),
                    None if !self.machines[machine].facts.cordoned => {
                        self.make_pod("lone", PodRole::Ordinary, Some(name), &[]);
                        self.pods.last_mut().unwrap().has_owner = false;
                    }
                    None => {}
                }
            }
            11 if !self.runs.is_empty() => {
                let run = self.rng.random_range(0..self.runs.len());
                let token = self.uids;
                self.runs[run].retry = Some(token.to_string());
                self.runs[run].version += 1;
            }
            12 => {
                if let Some(run) = self.runs.iter_mut().find(|run| !run.status.is_finished()) {
                    run.spec.failure_policy = FailurePolicy::Continue;
                    run.version += 1;
                }
            }
            13 if self.machines.len() > 5 && self.machines[machine].back.is_none() => {
                let has_pods = self.pods.iter().any(|pod| pod.machine.as_ref() == Some(&name));
                let has_volumes =
                    self.volumes.iter().any(|volume| volume.machine.as_ref() == Some(&name));
                if !has_pods && !has_volumes && !self.machines[machine].facts.control_plane {
                    self.machines.remove(machine);
                    self.log_event(("machine is gone", name));
                }
            }
            14 => self.machines[machine].doomed |= self.rng.random_bool(0.3),
            _ => {}
        }
    }

    /// A person asks for an upgrade.
    fn create_run(&mut self) {
        self.uids += 1;
        let mut spec = ClusterUpgradeSpec {
            target_version: Some(NEW.to_owned()),
            max_unavailable: self.rng.random_range(1..=3),
            node_timeout_seconds: 300,
            ..ClusterUpgradeSpec::default()
        };
        if self.random_chance(0.3) {
            (spec.type_, spec.target_version) = (UpgradeType::Reboot, None);
        }
        if spec.type_ == UpgradeType::Kubernetes && self.random_chance(0.4) {
            spec.runner.mode = RunnerMode::Kubeadm;
            spec.runner.artifacts = Some(RunnerArtifacts::default());
        }
        spec.drain.mode =
            [DrainMode::Auto, DrainMode::Always, DrainMode::Never][self.rng.random_range(0..3)];
        spec.drain.timeout_seconds = 600;
        if self.random_chance(0.3) {
            spec.failure_policy = FailurePolicy::Continue;
        }
        let name = format!("run-{}", self.uids);
        self.log_event(("person asks", &name, spec.type_, spec.max_unavailable, spec.drain.mode));
        self.runs.push(Run {
            name,
            created: self.now,
            spec,
            status: ClusterUpgradeStatus::default(),
            version: 1,
            deleting: false,
            finalizer: false,
            retry: None,
        });
    }

    fn walk_steps(&mut self, steps: usize) {
        self.create_run();
        for _ in 0..steps {
            self.run_others(true);
            if self.random_chance(0.15) {
                self.run_user();
            }
            if self.random_chance(0.9) {
                self.reconcile_runs(true);
            }
            if self.random_chance(0.1) && !self.late.is_empty() {
                let late = self.late.remove(0);
                self.log.push(format!("goes on late: {:?}", late.decision.actions));
                self.carry_out(late, false, false);
            }
        }
    }

    /// Nobody interferes any more: persons undo what only they can.
    fn run_until_settled(&mut self) -> usize {
        for late in std::mem::take(&mut self.late) {
            self.carry_out(late, false, false);
        }
        self.held.clear();
        for run in &mut self.runs {
            run.spec.paused = false;
            run.version += 1;
        }
        for machine in &mut self.machines {
            machine.version += 1;
            if machine.back.is_none() {
                machine.facts.ready = true;
            }
        }
        self.pods.retain(|pod| pod.has_owner);
        for reconcile_count in 0..3000 {
            // A machine that never comes back, and is not being changed now, is removed.
            let is_idle = |runs: &[Run], name: &str| {
                let nodes = runs.iter().flat_map(|run| &run.status.nodes);
                !nodes.clone().any(|node| node.name == name && node.phase.is_under_way())
            };
            for index in (0..self.machines.len()).rev() {
                let machine = &self.machines[index];
                let is_lost = machine.doomed && machine.back.is_some_and(|back| back <= self.now);
                if is_lost && is_idle(&self.runs, &machine.facts.name.clone()) {
                    self.remove_machine(index);
                }
            }
            self.run_others(false);
            self.reconcile_runs(false);
            self.uncordon_needed();
            let is_settled = self
                .runs
                .iter()
                .all(|run| run.status.is_finished() && !run.finalizer && !run.deleting);
            if is_settled && self.now_is_clean() {
                return reconcile_count;
            }
        }
        let stuck_runs: Vec<String> = self
            .runs
            .iter()
            .map(|run| format!("{} {:?} {:?}", run.name, run.status.phase, run.status.waits_for))
            .collect();
        self.log.extend(stuck_runs);
        self.check_law(false, "every run ends, and no mark of ours stays");
        0
    }

    /// A person does what the status says that only a person can.
    fn uncordon_needed(&mut self) {
        let waits = self.runs.iter().flat_map(|run| &run.status.waits_for);
        let cordoned_waits = waits.filter(|wait| wait.predicate == "MachineCordoned");
        let mut names: Vec<String> =
            cordoned_waits.filter_map(|wait| wait.machine.clone()).collect();
        // The database's own controller says the same of a machine that no run holds, and pods that
        // fit nowhere are seen.
        let waiting_pods: Vec<_> = self.pods.iter().filter(|pod| pod.machine.is_none()).collect();
        let view = self.current_view();
        let are_all_cordoned = self.machines.iter().all(|machine| machine.facts.cordoned);
        let is_needed = |machine: &&Machine| {
            let name = &machine.facts.name;
            let mut nodes = self.runs.iter().flat_map(|run| &run.status.nodes);
            let is_under_way = nodes.any(|node| node.name == *name && node.phase.is_under_way());
            let has_waiting_pod =
                waiting_pods.iter().any(|pod| are_all_cordoned || view.is_bound_to(pod, name));
            machine.facts.cordoned && has_waiting_pod && !is_under_way
        };
        let needed_machines = self.machines.iter().filter(is_needed);
        names.extend(needed_machines.map(|machine| machine.facts.name.clone()));
        for name in names {
            let machine = self.find_machine_mut(&name).unwrap();
            (machine.facts.cordoned, machine.by_person) = (false, false);
            machine.version += 1;
            self.left.remove(&name);
        }
    }

    /// A dead machine is deleted with its pods; its databases' volumes are given up.
    fn remove_machine(&mut self, index: usize) {
        let name = self.machines[index].facts.name.clone();
        self.log_event(("buried", &name));
        for volume in
            self.volumes.iter_mut().filter(|candidate| candidate.machine.as_ref() == Some(&name))
        {
            volume.machine = None;
        }
        for pod in self.pods.iter_mut().filter(|pod| pod.machine.as_ref() == Some(&name)) {
            (pod.machine, pod.ends) = (None, true);
        }
        let machine = &mut self.machines[index];
        if self.runs.iter().any(|run| run.status.nodes.iter().any(|node| node.name == name)) {
            // A new machine of the same name takes its place.
            (machine.facts.ready, machine.facts.kubelet) = (true, NEW.to_owned());
            machine.facts.boot_id.push('+');
            machine.facts.api_server = machine.facts.api_server.take().and(KubeVersion::parse(NEW));
        }
        (machine.doomed, machine.back) = (false, None);
        machine.facts.ready = true;
        machine.version += 1;
    }

    /// Is nothing of ours left, and every machine as persons want it?
    fn now_is_clean(&self) -> bool {
        let is_clean = |machine: &Machine| {
            let facts = &machine.facts;
            let is_cordon_expected =
                facts.cordoned == machine.by_person || self.left.contains(&facts.name);
            facts.cordoned_by.is_none() && facts.tainted_by.is_none() && is_cordon_expected
        };
        let is_requested =
            |(pilot, _): &(MemberPilot, u64)| super::drain::requesting_upgrade(pilot).is_some();
        self.machines.iter().all(is_clean) && !self.pilots.iter().any(is_requested)
    }
}

mod searches {
    use super::*;
    use crate::testing::search_seeds;

    /// Walks in CI.
    const SEEDS: usize = 40;

    #[test]
    fn walks_keep_the_laws_and_end_clean() {
        let (mut succeeded, mut failed, mut looks) = (0, 0, 0);
        for seed in search_seeds(SEEDS) {
            let mut world = World::new(seed);
            world.walk_steps(250);
            looks += world.run_until_settled();
            for run in &world.runs {
                match run.status.phase {
                    Some(UpgradePhase::Success) => succeeded += 1,
                    _ => failed += 1,
                }
            }
            // At rest nothing is written.
            let writes = world.log.len();
            let versions: Vec<u64> = world.runs.iter().map(|run| run.version).collect();
            world.now += SignedDuration::from_secs(60);
            world.reconcile_runs(false);
            let after: Vec<u64> = world.runs.iter().map(|run| run.version).collect();
            world.check_law(
                versions == after && world.log.len() == writes,
                "nothing is written at rest",
            );
        }
        assert!(
            succeeded > SEEDS / 3 && failed > SEEDS / 12,
            "{succeeded} succeeded, {failed} failed"
        );
        assert!(looks > 0);
    }
}

/// A leader is stopped before it puts taints on machines, and goes on when the run is gone.
#[test]
fn marks_that_come_late_are_swept() {
    let mut world = World::new(1);
    world.create_run();
    let mut late = None;
    while late.is_none() {
        world.now += SignedDuration::from_secs(5);
        world.reconcile_runs(false);
        let (run, fleet) = (&world.runs[0], world.current_view());
        let facts = RunFacts {
            name: &run.name,
            id: &run.name,
            created: run.created,
            generation: 1,
            spec: &run.spec,
            status: &run.status,
            deleting: false,
            finalizer: run.finalizer,
            retry: None,
        };
        let decision = plan_upgrade(&facts, &fleet);
        let taints =
            decision.actions.iter().any(|action| matches!(action, UpgradeAction::Taint { .. }));
        late =
            taints.then(|| LateDecision { run: run.name.clone(), version: run.version, decision });
    }
    world.delete_run(0);
    while !world.runs.is_empty() {
        world.reconcile_runs(false);
    }
    world.carry_out(late.unwrap(), false, false);
    assert!(!world.now_is_clean(), "the late leader left no mark");
    world.reconcile_runs(false);
    assert!(world.now_is_clean());
}
