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
    MachinePod, MachineVolume, MemberPilot, OtherRun, PodRole, RunFacts, UpgradeAction, next,
    sweep,
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

    fn note(&mut self, text: impl std::fmt::Debug) {
        self.log.push(format!("{} {text:?}", self.now));
    }

    fn law(&self, holds: bool, law: &str) {
        let last = self.log.len().saturating_sub(120);
        assert!(holds, "broken: {law}\n{}\n{}", self.log[0], self.log[last..].join("\n"));
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.rng.random_bool(probability)
    }

    fn machine(&self, name: &str) -> Option<&Machine> {
        self.machines.iter().find(|machine| machine.facts.name == name)
    }

    fn machine_mut(&mut self, name: &str) -> Option<&mut Machine> {
        self.machines.iter_mut().find(|machine| machine.facts.name == name)
    }

    /// How a database cluster is: every member runs, and no rule holds.
    fn database(&self, name: &str) -> DatabaseCluster {
        let members = self.pilots.iter().filter(|(pilot, _)| pilot.cluster == name);
        let runs = |pilot: &MemberPilot| {
            let pod = self.pods.iter().find(|pod| pod.name == pilot.name);
            pod.is_some_and(|pod| {
                let on = pod.machine.as_ref().and_then(|on| self.machine(on));
                !pod.ends && on.is_some_and(|on| on.facts.ready)
            })
        };
        let serves = members.clone().all(|(pilot, _)| runs(pilot));
        let held = self.held.contains(name);
        DatabaseCluster {
            name: name.to_owned(),
            drainable: Some(serves && !held),
            why: "PeersUp: a node is away".to_owned(),
            serves,
        }
    }

    /// What a coordinator with caches that are up to date would read.
    fn view(&self) -> FleetView {
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
            clusters: ["db/kind/a", "db/kind/b"].map(|name| self.database(name)).into(),
            others: Vec::new(),
            api_server: None,
            deprecated: Vec::new(),
        }
    }

    /// What a coordinator reads: each kind as it was at a moment that is not too long ago.
    fn read(&mut self, stale: bool) -> FleetView {
        let fresh = self.view();
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
        let read = FleetView {
            machines: self.views[machines].machines.clone(),
            pods: self.views[pods].pods.clone(),
            pilots: self.views[pilots].pilots.clone(),
            clusters: self.views[clusters].clusters.clone(),
            ..fresh
        };
        let first = usable[0];
        self.views.drain(..first);
        read
    }

    /// A coordinator looks at every upgrade.
    fn look(&mut self, faults: bool) {
        for name in self.runs.iter().map(|run| run.name.clone()).collect::<Vec<_>>() {
            let stale = faults && self.chance(0.5);
            let mut fleet = self.read(stale);
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
            let decision = next(&facts, &fleet);
            assert_eq!(
                decision,
                next(&facts, &fleet),
                "the decision is a function of what is read"
            );
            let late = LateDecision { run: name, version: run.version, decision };
            if faults && self.chance(0.04) {
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
        let stale = faults && self.chance(0.5);
        let fleet = self.read(stale);
        for action in sweep(&fleet, &active) {
            self.act(&action);
        }
    }

    /// Carries a decision out, with the end of the coordinator between any two writes.
    fn carry_out(&mut self, late: LateDecision, faults: bool, timely: bool) {
        let LateDecision { run: name, version, decision } = late;
        if !timely {
            self.disturbed.insert(name.clone());
        }
        for action in &decision.actions {
            if faults && self.chance(0.05) {
                self.note("coordinator ends");
                return;
            }
            self.note(("does", action));
            if timely {
                self.check_mark(&name, action);
            }
            let done = self.act_for(&name, action);
            if faults && self.chance(0.05) {
                self.act_for(&name, action);
            }
            if !done {
                self.note("conflict");
                return;
            }
        }
        if faults && self.chance(0.05) {
            self.note("coordinator ends before the status");
            return;
        }
        let Some(run) = self.runs.iter().position(|run| run.name == name) else { return };
        if self.runs[run].version != version || self.runs[run].status == decision.status {
            return;
        }
        let before = std::mem::replace(&mut self.runs[run].status, decision.status);
        self.runs[run].version += 1;
        self.check_write(run, &before);
        if self.runs[run].status.is_finished() && !before.is_finished() {
            self.check_end(&name);
        }
    }

    fn act_for(&mut self, run: &str, action: &UpgradeAction) -> bool {
        let Some(index) = self.runs.iter().position(|found| found.name == run) else {
            return self.act(action);
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
            UpgradeAction::Delete => self.delete(index),
            _ => return self.act(action),
        }
        true
    }

    fn delete(&mut self, index: usize) {
        self.runs[index].deleting = true;
        self.runs[index].version += 1;
        if !self.runs[index].finalizer {
            self.runs.remove(index);
        }
    }

    /// Writes to a machine, a pod or a pilot. Returns whether the write succeeded.
    fn act(&mut self, action: &UpgradeAction) -> bool {
        match action {
            UpgradeAction::Taint { machine, version, by } => {
                self.write(machine, version, |facts| facts.tainted_by = Some(by.clone()))
            }
            UpgradeAction::Cordon { machine, version, by } => {
                self.write(machine, version, |facts| {
                    if !facts.cordoned {
                        (facts.cordoned, facts.cordoned_by) = (true, Some(by.clone()));
                    }
                })
            }
            UpgradeAction::Release { machine, version, by, uncordon } => {
                let found = self.machine(machine).map(|found| found.facts.clone());
                let ours =
                    found.as_ref().is_some_and(|facts| facts.cordoned_by.as_ref() == Some(by));
                if ours && !uncordon {
                    self.left.insert(machine.clone());
                }
                self.write(machine, version, |facts| {
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
                let refused = self.chance(0.3);
                let pod =
                    self.pods.iter_mut().find(|found| found.name == *pod && found.uid == *uid);
                if let Some(pod) = pod {
                    if refused {
                        pod.refusal = Some("a budget refuses it".to_owned());
                    } else {
                        pod.ends = true;
                    }
                    let allowed = pod.role != PodRole::Database && pod.has_owner;
                    self.law(allowed, "no pod is evicted that a database or nobody stands behind");
                }
                true
            }
            UpgradeAction::Ask { pilot, version, request, .. } => {
                self.write_pilot(pilot, version, |pilot| pilot.leave = Some(request.clone()))
            }
            UpgradeAction::Withdraw { pilot, version, by, .. } => {
                self.write_pilot(pilot, version, |pilot| {
                    if super::drain::asked_by(pilot) == Some(by) {
                        pilot.leave = None;
                    }
                })
            }
            UpgradeAction::AddFinalizer
            | UpgradeAction::RemoveFinalizer
            | UpgradeAction::Delete => false,
        }
    }

    fn write(&mut self, name: &str, version: &str, change: impl FnOnce(&mut MachineFacts)) -> bool {
        let Some(machine) = self.machine_mut(name) else { return false };
        if machine.version.to_string() != version {
            return false;
        }
        let before = machine.facts.clone();
        change(&mut machine.facts);
        machine.version += u64::from(machine.facts != before);
        true
    }

    fn write_pilot(
        &mut self,
        name: &str,
        version: &str,
        change: impl FnOnce(&mut MemberPilot),
    ) -> bool {
        let found = self.pilots.iter_mut().find(|(pilot, _)| pilot.name == name);
        let Some((pilot, current)) = found else { return false };
        if current.to_string() != version {
            return false;
        }
        let before = pilot.clone();
        change(pilot);
        *current += u64::from(*pilot != before);
        true
    }

    /// A machine is marked, and a pilot asked, only where the status said before that it may be.
    fn check_mark(&self, run: &str, action: &UpgradeAction) {
        let Some(run) = self.runs.iter().find(|found| found.name == run) else { return };
        let nodes = &run.status.nodes;
        let said = match action {
            UpgradeAction::Taint { machine, .. } | UpgradeAction::Cordon { machine, .. } => {
                nodes.iter().any(|node| node.name == *machine && node.marked)
            }
            UpgradeAction::Ask { namespace, pilot, .. } => {
                let place = format!("{namespace}/{pilot}");
                nodes.iter().any(|node| node.asked.contains(&place))
            }
            _ => return,
        };
        self.law(said, "nothing is marked or asked before the status says that it may be");
    }

    /// At its end, a run has taken off what it put on machines and Pilots, without being swept up
    /// after.
    fn check_end(&self, run: &str) {
        if self.disturbed.contains(run) {
            return;
        }
        let ours = |by: &Option<String>| by.as_deref() == Some(run);
        let marked =
            |machine: &Machine| ours(&machine.facts.cordoned_by) || ours(&machine.facts.tainted_by);
        let asked = |(pilot, _): &(MemberPilot, u64)| super::drain::asked_by(pilot) == Some(run);
        let clean = !self.machines.iter().any(marked) && !self.pilots.iter().any(asked);
        self.law(clean, "no mark and no request of a run is left at its end");
    }

    /// The laws that hold between machines, after a status was written.
    fn check_write(&mut self, run: usize, before: &ClusterUpgradeStatus) {
        let changes: Vec<(String, MachinePhase)> = self.runs[run]
            .status
            .nodes
            .iter()
            .filter(|node| {
                before.nodes.iter().find(|old| old.name == node.name).map(|old| old.phase)
                    != Some(node.phase)
            })
            .map(|node| (node.name.clone(), node.phase))
            .collect();
        self.note((&self.runs[run].name.clone(), &self.runs[run].status.phase.clone(), &changes));
        let mut away: Vec<(usize, String, bool, bool)> = Vec::new();
        for (index, run) in self.runs.iter().enumerate() {
            let nodes = run.status.nodes.iter().filter(|node| node.phase.is_under_way());
            away.extend(nodes.map(|node| {
                let drained = node.phase != MachinePhase::Cordon;
                (index, node.name.clone(), node.control_plane, drained)
            }));
        }
        let most = |away: &[&(usize, String, bool, bool)]| {
            let most = away.iter().map(|(index, ..)| self.runs[*index].spec.max_unavailable).min();
            if away.iter().any(|(_, _, plane, _)| *plane) { 1 } else { most.unwrap_or(1) }
        };
        let fits = |away: &[&(usize, String, bool, bool)]| {
            i32::try_from(away.len()).unwrap() <= most(away)
        };
        // Of one run, those that are only cordoned count as well.
        let own: Vec<_> = away.iter().filter(|(index, ..)| *index == run).collect();
        let drained: Vec<_> = away.iter().filter(|(_, _, _, drained)| *drained).collect();
        self.law(fits(&own) && fits(&drained), "no more machines are away than maxUnavailable");
        for (name, phase) in &changes {
            let was = before.nodes.iter().find(|old| old.name == *name).map(|old| old.phase);
            let drained = was.is_some_and(|was| was.is_under_way() && was != MachinePhase::Cordon);
            let finished = *phase != MachinePhase::Pending || !drained;
            self.law(finished, "from its drain on a machine is finished, whoever deletes the run");
            if *phase == MachinePhase::Cordon {
                let nodes = &self.runs[run].status.nodes;
                let begins = nodes.iter().find(|node| node.name == *name).unwrap();
                let waiting = |node: &&crate::api::containership::MachineStatus| {
                    node.control_plane && !node.phase.has_ended()
                };
                let first = begins.control_plane || !nodes.iter().any(|node| waiting(&node));
                self.law(first, "control planes come first");
                self.machine_mut(name).into_iter().for_each(|machine| machine.touched = false);
            }
            if matches!(phase, MachinePhase::Drain | MachinePhase::Run) {
                let truth = self.view();
                let mine: BTreeSet<String> = truth.clusters_on(name).into_iter().collect();
                let touched = |name: &str| self.machine(name).is_none_or(|found| found.touched);
                for (index, other, _, drained) in &away {
                    let nodes = &self.runs[*index].status.nodes;
                    let node = nodes.iter().find(|node| node.name == *other).unwrap();
                    if other == name || !drained {
                        continue;
                    }
                    let theirs: BTreeSet<String> = node.clusters.iter().cloned().collect();
                    let apart = touched(name) || touched(other) || mine.is_disjoint(&theirs);
                    self.law(apart, "no two machines of one database cluster are away together");
                }
            }
        }
    }

    /// Kubernetes, the controller, the tool that upgrades machines, and time.
    fn others_act(&mut self, faults: bool) {
        let most = if self.chance(0.6) { 3 } else { 20 };
        let seconds = self.rng.random_range(1..=most);
        self.now += SignedDuration::from_secs(seconds);
        self.controller();
        self.kubernetes();
        self.tool();
        if faults && self.chance(0.3) {
            self.churn();
        }
        self.views.push(self.view());
    }

    fn controller(&mut self) {
        for index in 0..self.pilots.len() {
            let (pilot, _) = self.pilots[index].clone();
            let Some(request) = &pilot.leave else { continue };
            let pod = self.pods.iter().position(|pod| pod.name == pilot.name);
            let Some(pod) = pod.filter(|pod| self.pods[*pod].uid == request.pod) else { continue };
            if self.pods[pod].ends || self.chance(0.5) {
                continue;
            }
            let database = self.database(&pilot.cluster);
            let machine = self.pods[pod].machine.clone();
            // Others that left the same machine are expected to be away.
            let expected = self.pilots.iter().filter(|(other, _)| other.cluster == pilot.cluster);
            let calm = expected.clone().all(|(other, _)| {
                let pod = self.pods.iter().find(|pod| pod.name == other.name);
                pod.is_some_and(|pod| {
                    let here = machine.as_deref().is_some_and(|on| self.view().belongs(pod, on));
                    pod.machine.is_some() && !pod.ends || here
                })
            });
            let held = self.held.contains(&database.name) || !calm;
            let waits = held.then(|| "PeersUp: a node is away".to_owned());
            if self.pilots[index].0.waits != waits {
                self.pilots[index].0.waits = waits;
                self.pilots[index].1 += 1;
            }
            if !held {
                self.pods[pod].ends = true;
                let name = self.pods[pod].name.clone();
                self.note(("controller deletes", name));
            }
        }
    }

    fn kubernetes(&mut self) {
        let mut again = Vec::new();
        for index in (0..self.pods.len()).rev() {
            let ready = |on: &String| self.machine(on).is_some_and(|machine| machine.facts.ready);
            let can_end = self.pods[index].machine.as_ref().is_none_or(ready);
            if self.pods[index].ends && can_end && self.chance(0.5) {
                let pod = self.pods.remove(index);
                if pod.has_owner {
                    again.push(pod);
                }
            }
        }
        for pod in again {
            self.make_pod(&pod.name, pod.role, None, &pod.volumes);
        }
        for index in 0..self.pods.len() {
            if self.pods[index].machine.is_some() {
                continue;
            }
            let volume =
                self.volumes.iter().find(|found| self.pods[index].volumes.contains(&found.name));
            let bound = volume.and_then(|volume| volume.machine.clone());
            let fits = |machine: &&Machine| {
                let facts = &machine.facts;
                let here = bound.as_ref().is_none_or(|bound| *bound == facts.name);
                here && facts.ready && !facts.cordoned
            };
            let mut fitting: Vec<(bool, String)> = self
                .machines
                .iter()
                .filter(fits)
                .map(|machine| (machine.facts.tainted_by.is_some(), machine.facts.name.clone()))
                .collect();
            fitting.sort();
            if !fitting.is_empty() {
                let most = if self.chance(0.5) { 1 } else { fitting.len() };
                let (_, on) = fitting[self.rng.random_range(0..most)].clone();
                self.note(("scheduled", &self.pods[index].name.clone(), &on));
                self.pods[index].machine = Some(on);
            }
        }
    }

    /// Pods end and are made again, also those of databases, without being asked.
    fn churn(&mut self) {
        let pod = self.rng.random_range(0..self.pods.len());
        let ordinary = self.pods[pod].role == PodRole::Ordinary;
        if ordinary || self.chance(0.3) {
            self.pods[pod].ends = true;
            let name = self.pods[pod].name.clone();
            self.note(("ends by itself", name));
        }
    }

    /// A person's own tool, or a runner, changes the machines that wait for it.
    fn tool(&mut self) {
        let mut wanted = Vec::new();
        for run in &self.runs {
            let waits = run.status.nodes.iter().filter(|node| node.phase == MachinePhase::Run);
            wanted.extend(waits.map(|node| {
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
        for (name, spec, job) in wanted {
            if self.chance(0.5) {
                continue;
            }
            let stays: Vec<String> = self
                .pods
                .iter()
                .filter(|pod| pod.machine.as_ref() == Some(&name) && pod.role != PodRole::Left)
                .map(|pod| pod.name.clone())
                .collect();
            let drained = spec.drain.mode == DrainMode::Never || stays.is_empty();
            let Some(machine) = self.machine(&name) else { continue };
            self.law(drained || machine.touched, "a machine is changed when its pods have left");
            let (now, lasts) = (self.now, self.rng.random_range(0..120));
            let machine = self.machine_mut(&name).unwrap();
            if machine.back.is_some() {
                continue;
            }
            machine.facts.ready = false;
            machine.version += 1;
            machine.back = Some(now + SignedDuration::from_secs(lasts));
            machine.facts.upgrade.as_mut().unwrap().job = job;
        }
        let (now, fails) = (self.now, self.chance(0.2));
        for machine in &mut self.machines {
            if machine.back.is_some_and(|back| back <= now) && !machine.doomed {
                machine.back = None;
                machine.version += 1;
                let facts = &mut machine.facts;
                facts.ready = true;
                facts.boot_id.push('+');
                let job = facts.upgrade.as_mut().and_then(|report| report.job.as_mut());
                if let Some(job) = job {
                    job.code = Some(if fails { JobCode::RolledBack } else { JobCode::Done });
                    if fails {
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

    fn person(&mut self) {
        let machine = self.rng.random_range(0..self.machines.len());
        let name = self.machines[machine].facts.name.clone();
        match self.rng.random_range(0..16) {
            0 if self.runs.len() < 3 => self.ask(),
            1..=3 if !self.runs.is_empty() => {
                let run = self.rng.random_range(0..self.runs.len());
                self.runs[run].spec.paused ^= true;
                self.runs[run].version += 1;
            }
            4 if !self.runs.is_empty() => {
                let run = self.rng.random_range(0..self.runs.len());
                self.note(("person deletes", &self.runs[run].name.clone()));
                self.delete(run);
            }
            5 => {
                let found = &mut self.machines[machine];
                if !found.facts.cordoned {
                    // Where our mark is still there, the cordon is taken for ours.
                    found.by_person = found.facts.cordoned_by.is_none();
                    found.facts.cordoned = true;
                    found.version += 1;
                    self.note(("person cordons", name));
                }
            }
            6 => {
                let found = &mut self.machines[machine];
                (found.facts.cordoned, found.by_person, found.touched) = (false, false, true);
                found.version += 1;
                self.left.remove(&name);
                self.note(("person uncordons", name));
            }
            7 => {
                // The person takes the cordon over.
                let found = &mut self.machines[machine];
                if found.facts.cordoned_by.take().is_some() {
                    (found.by_person, found.touched) = (found.facts.cordoned, true);
                    found.version += 1;
                    self.note(("person takes the cordon over", name));
                }
            }
            8 => {
                let cluster = ["db/kind/a", "db/kind/b"][self.rng.random_range(0..2)];
                if !self.held.remove(cluster) {
                    self.held.insert(cluster.to_owned());
                }
            }
            9 => {
                let found = &mut self.machines[machine];
                if found.back.is_none() {
                    found.facts.ready ^= true;
                    found.version += 1;
                }
            }
            10 => {
                // A pod that nothing makes again, or the end of one.
                let lone = self.pods.iter().position(|pod| !pod.has_owner);
                match lone {
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
                let word = self.uids;
                self.runs[run].retry = Some(word.to_string());
                self.runs[run].version += 1;
            }
            12 => {
                if let Some(run) = self.runs.iter_mut().find(|run| !run.status.is_finished()) {
                    run.spec.failure_policy = FailurePolicy::Continue;
                    run.version += 1;
                }
            }
            13 if self.machines.len() > 5 && self.machines[machine].back.is_none() => {
                let used = self.pods.iter().any(|pod| pod.machine.as_ref() == Some(&name));
                let bound = self.volumes.iter().any(|found| found.machine.as_ref() == Some(&name));
                if !used && !bound && !self.machines[machine].facts.control_plane {
                    self.machines.remove(machine);
                    self.note(("machine is gone", name));
                }
            }
            14 => self.machines[machine].doomed |= self.rng.random_bool(0.3),
            _ => {}
        }
    }

    /// A person asks for an upgrade.
    fn ask(&mut self) {
        self.uids += 1;
        let mut spec = ClusterUpgradeSpec {
            target_version: Some(NEW.to_owned()),
            max_unavailable: self.rng.random_range(1..=3),
            node_timeout_seconds: 300,
            ..ClusterUpgradeSpec::default()
        };
        if self.chance(0.3) {
            (spec.type_, spec.target_version) = (UpgradeType::Reboot, None);
        }
        if spec.type_ == UpgradeType::Kubernetes && self.chance(0.4) {
            spec.runner.mode = RunnerMode::Kubeadm;
            spec.runner.artifacts = Some(RunnerArtifacts::default());
        }
        spec.drain.mode =
            [DrainMode::Auto, DrainMode::Always, DrainMode::Never][self.rng.random_range(0..3)];
        spec.drain.timeout_seconds = 600;
        if self.chance(0.3) {
            spec.failure_policy = FailurePolicy::Continue;
        }
        let name = format!("run-{}", self.uids);
        self.note(("person asks", &name, spec.type_, spec.max_unavailable, spec.drain.mode));
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

    fn walk(&mut self, steps: usize) {
        self.ask();
        for _ in 0..steps {
            self.others_act(true);
            if self.chance(0.15) {
                self.person();
            }
            if self.chance(0.9) {
                self.look(true);
            }
            if self.chance(0.1) && !self.late.is_empty() {
                let late = self.late.remove(0);
                self.log.push(format!("goes on late: {:?}", late.decision.actions));
                self.carry_out(late, false, false);
            }
        }
    }

    /// Nobody interferes any more: persons undo what only they can.
    fn settle(&mut self) -> usize {
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
        for looks in 0..3000 {
            // A machine that never comes back, and is not being changed now, is removed.
            let left = |runs: &[Run], name: &str| {
                let nodes = runs.iter().flat_map(|run| &run.status.nodes);
                !nodes.clone().any(|node| node.name == name && node.phase.is_under_way())
            };
            for index in (0..self.machines.len()).rev() {
                let machine = &self.machines[index];
                let lost = machine.doomed && machine.back.is_some_and(|back| back <= self.now);
                if lost && left(&self.runs, &machine.facts.name.clone()) {
                    self.bury(index);
                }
            }
            self.others_act(false);
            self.look(false);
            self.heed();
            let rests = self
                .runs
                .iter()
                .all(|run| run.status.is_finished() && !run.finalizer && !run.deleting);
            if rests && self.now_is_clean() {
                return looks;
            }
        }
        let stuck: Vec<String> = self
            .runs
            .iter()
            .map(|run| format!("{} {:?} {:?}", run.name, run.status.phase, run.status.waits_for))
            .collect();
        self.log.extend(stuck);
        self.law(false, "every run ends, and no mark of ours stays");
        0
    }

    /// A person does what the status says that only a person can.
    fn heed(&mut self) {
        let waits = self.runs.iter().flat_map(|run| &run.status.waits_for);
        let cordoned = waits.filter(|wait| wait.predicate == "MachineCordoned");
        let mut names: Vec<String> = cordoned.filter_map(|wait| wait.machine.clone()).collect();
        // The database's own controller says the same of a machine that no run holds, and pods that
        // fit nowhere are seen.
        let waiting: Vec<_> = self.pods.iter().filter(|pod| pod.machine.is_none()).collect();
        let view = self.view();
        let none_left = self.machines.iter().all(|machine| machine.facts.cordoned);
        let needed = |machine: &&Machine| {
            let name = &machine.facts.name;
            let mut nodes = self.runs.iter().flat_map(|run| &run.status.nodes);
            let under_way = nodes.any(|node| node.name == *name && node.phase.is_under_way());
            let waits = waiting.iter().any(|pod| none_left || view.belongs(pod, name));
            machine.facts.cordoned && waits && !under_way
        };
        let free = self.machines.iter().filter(needed);
        names.extend(free.map(|machine| machine.facts.name.clone()));
        for name in names {
            let machine = self.machine_mut(&name).unwrap();
            (machine.facts.cordoned, machine.by_person) = (false, false);
            machine.version += 1;
            self.left.remove(&name);
        }
    }

    /// A dead machine is deleted with its pods; its databases' volumes are given up.
    fn bury(&mut self, index: usize) {
        let name = self.machines[index].facts.name.clone();
        self.note(("buried", &name));
        for volume in self.volumes.iter_mut().filter(|found| found.machine.as_ref() == Some(&name))
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
        let clean = |machine: &Machine| {
            let facts = &machine.facts;
            let wanted = facts.cordoned == machine.by_person || self.left.contains(&facts.name);
            facts.cordoned_by.is_none() && facts.tainted_by.is_none() && wanted
        };
        let asked = |(pilot, _): &(MemberPilot, u64)| super::drain::asked_by(pilot).is_some();
        self.machines.iter().all(clean) && !self.pilots.iter().any(asked)
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
            world.walk(250);
            looks += world.settle();
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
            world.look(false);
            let after: Vec<u64> = world.runs.iter().map(|run| run.version).collect();
            world.law(versions == after && world.log.len() == writes, "nothing is written at rest");
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
    world.ask();
    let mut late = None;
    while late.is_none() {
        world.now += SignedDuration::from_secs(5);
        world.look(false);
        let (run, fleet) = (&world.runs[0], world.view());
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
        let decision = next(&facts, &fleet);
        let taints =
            decision.actions.iter().any(|action| matches!(action, UpgradeAction::Taint { .. }));
        late =
            taints.then(|| LateDecision { run: run.name.clone(), version: run.version, decision });
    }
    world.delete(0);
    while !world.runs.is_empty() {
        world.look(false);
    }
    world.carry_out(late.unwrap(), false, false);
    assert!(!world.now_is_clean(), "the late leader left no mark");
    world.look(false);
    assert!(world.now_is_clean());
}
