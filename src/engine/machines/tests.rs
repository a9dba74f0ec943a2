//! What one look decides, case by case; `model` walks through whole runs.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    DatabaseCluster, Decision, FleetView, KubeVersion, MachineFacts, MachinePod, MachineVolume,
    MemberPilot, OtherRun, PodRole, RunFacts, UpgradeAction, plan_upgrade, sweep_marks,
};
use crate::api::{
    containership::{
        ClusterUpgradeSpec, ClusterUpgradeStatus, MachinePhase, UpgradePhase, name::NODE_POOL_ID,
    },
    leave_request::LeaveRequest,
};

const RUN: &str = "to-34";

/// One run in a small cluster, whose writes succeed at once.
struct Scene {
    spec: ClusterUpgradeSpec,
    status: ClusterUpgradeStatus,
    fleet: FleetView,
    deleting: bool,
    finalizer: bool,
    retry: Option<String>,
}

fn spec(fields: Value) -> ClusterUpgradeSpec {
    let mut all = json!({"targetVersion": "v1.34.4"});
    if let (Value::Object(all), Value::Object(fields)) = (&mut all, fields) {
        all.extend(fields);
    }
    serde_json::from_value(all).unwrap()
}

fn worker(name: &str) -> MachineFacts {
    MachineFacts {
        name: name.to_owned(),
        version: "1".to_owned(),
        ready: true,
        kubelet: "v1.33.13".to_owned(),
        boot_id: "boot-1".to_owned(),
        ..MachineFacts::default()
    }
}

fn control_plane(name: &str, version: &str) -> MachineFacts {
    MachineFacts {
        control_plane: true,
        api_server: KubeVersion::parse(version),
        control_plane_healthy: true,
        kubelet: version.to_owned(),
        ..worker(name)
    }
}

/// A worker whose agent says this of upgrades.
fn told(name: &str, report: Value) -> MachineFacts {
    MachineFacts { upgrade: Some(serde_json::from_value(report).unwrap()), ..worker(name) }
}

fn by_agents() -> Value {
    let artifacts =
        json!({"baseURL": "https://a.example", "sha256": {"kubelet": "a", "kubeadm": "b"}});
    json!({"runner": {"mode": "Kubeadm", "artifacts": artifacts}})
}

fn pod(name: &str, role: PodRole, machine: &str) -> MachinePod {
    MachinePod {
        namespace: "db".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        machine: Some(machine.to_owned()),
        role,
        ends: false,
        labels: BTreeMap::new(),
        volumes: vec![format!("pv-{name}")],
        has_owner: true,
        has_local_data: false,
        refusal: None,
    }
}

fn pilot(name: &str, cluster: &str) -> MemberPilot {
    MemberPilot {
        namespace: "db".to_owned(),
        name: name.to_owned(),
        version: "1".to_owned(),
        cluster: cluster.to_owned(),
        leave: None,
        waits: None,
    }
}

fn cluster(name: &str) -> DatabaseCluster {
    DatabaseCluster {
        name: name.to_owned(),
        drainable: Some(true),
        why: String::new(),
        serves: true,
    }
}

impl Scene {
    fn new(fields: Value, machines: Vec<MachineFacts>) -> Self {
        let fleet = FleetView {
            now: "2026-11-26T12:00:00Z".parse().unwrap(),
            machines,
            pods: Vec::new(),
            volumes: Vec::new(),
            pilots: Vec::new(),
            clusters: Vec::new(),
            others: Vec::new(),
            api_server: KubeVersion::parse("v1.34.4"),
            deprecated: Vec::new(),
        };
        Self {
            spec: spec(fields),
            status: ClusterUpgradeStatus::default(),
            fleet,
            deleting: false,
            finalizer: false,
            retry: None,
        }
    }

    fn decide(&self) -> Decision {
        let run = RunFacts {
            name: RUN,
            id: "uid-of-the-run",
            created: Timestamp::UNIX_EPOCH,
            generation: 1,
            spec: &self.spec,
            status: &self.status,
            deleting: self.deleting,
            finalizer: self.finalizer,
            retry: self.retry.as_deref(),
        };
        plan_upgrade(&run, &self.fleet)
    }

    /// Decides, and carries it out; pods end at once when they are evicted.
    fn look(&mut self) -> Vec<UpgradeAction> {
        let decision = self.decide();
        for action in &decision.actions {
            self.act(action);
        }
        self.status = decision.status;
        decision.actions
    }

    /// Looks every five seconds until nothing changes, at most so often.
    fn looks(&mut self, most: usize) {
        for _ in 0..most {
            self.look();
            self.fleet.now += SignedDuration::from_secs(5);
        }
    }

    fn act(&mut self, action: &UpgradeAction) {
        match action {
            UpgradeAction::AddFinalizer => self.finalizer = true,
            UpgradeAction::RemoveFinalizer => self.finalizer = false,
            UpgradeAction::Delete => self.deleting = true,
            UpgradeAction::Taint { machine, by, .. } => {
                self.machine(machine).tainted_by = Some(by.clone());
            }
            UpgradeAction::Cordon { machine, by, .. } => {
                let machine = self.machine(machine);
                (machine.cordoned, machine.cordoned_by) = (true, Some(by.clone()));
            }
            UpgradeAction::Release { machine, by, uncordon, .. } => {
                let machine = self.machine(machine);
                machine.tainted_by = None;
                if machine.cordoned_by.take().as_ref() == Some(by) {
                    machine.cordoned = !uncordon;
                }
            }
            UpgradeAction::Evict { uid, .. } => self.fleet.pods.retain(|pod| pod.uid != *uid),
            UpgradeAction::Ask { pilot, request, .. } => {
                self.pilot(pilot).leave = Some(request.clone());
            }
            UpgradeAction::Withdraw { pilot, .. } => self.pilot(pilot).leave = None,
        }
    }

    fn machine(&mut self, name: &str) -> &mut MachineFacts {
        self.fleet.machines.iter_mut().find(|machine| machine.name == name).unwrap()
    }

    fn pilot(&mut self, name: &str) -> &mut MemberPilot {
        self.fleet.pilots.iter_mut().find(|pilot| pilot.name == name).unwrap()
    }

    fn phase(&self, name: &str) -> MachinePhase {
        self.status.nodes.iter().find(|node| node.name == name).unwrap().phase
    }

    fn add_member(&mut self, name: &str, cluster: &str, machine: &str) {
        self.fleet.pods.push(pod(name, PodRole::Database, machine));
        self.fleet.pilots.push(pilot(name, cluster));
    }

    fn waits(&self) -> &str {
        self.status.waits_for_text.as_deref().unwrap_or_default()
    }

    fn upgrade(&mut self, name: &str) {
        let machine = self.machine(name);
        machine.kubelet = "v1.34.4".to_owned();
        if machine.control_plane {
            machine.api_server = KubeVersion::parse("v1.34.4");
        }
    }
}

#[test]
fn what_cannot_be_done_is_refused_in_one_sentence_and_nothing_is_touched() {
    let plane = |version: &str| control_plane("c1", version);
    let old = |name: &str, kubelet: &str| MachineFacts { kubelet: kubelet.into(), ..worker(name) };
    let member =
        |name: &str| MachineFacts { etcd_ready: Some(true), ..control_plane(name, "v1.33.13") };
    let cases: Vec<(Value, Vec<MachineFacts>, &str)> = vec![
        (json!({"type": "etcd"}), vec![worker("w1")], "Unsupported: type etcd is not carried out"),
        (
            json!({"runner": {"mode": "Kubeadm"}}),
            vec![worker("w1")],
            "runner.mode Kubeadm needs spec.runner.artifacts",
        ),
        (
            json!({"type": "reboot", "runner": {"mode": "Kubeadm"}}),
            vec![worker("w1")],
            "Unsupported: runner.mode Kubeadm reboots no machine",
        ),
        (by_agents(), vec![worker("w1")], "machine w1 has no agent"),
        (by_agents(), vec![told("w1", json!({"cgroup": 2}))], "machine w1 has no runner"),
        (
            by_agents(),
            vec![told("w1", json!({"cgroup": 2, "runner": 0, "hasRoom": true}))],
            "machine w1 has an old runner",
        ),
        (
            by_agents(),
            vec![told("w1", json!({"cgroup": 2, "runner": 1}))],
            "machine w1 has less than 2 GiB of room",
        ),
        (
            json!({"labelSelector": [{"label": "pool", "operator": "=", "value": ["x"]}]}),
            vec![worker("w1")],
            "no machine meets spec.labelSelector",
        ),
        (
            json!({"targetVersion": "1.34"}),
            vec![worker("w1")],
            "targetVersion \"1.34\" is no release of Kubernetes",
        ),
        (
            json!({"targetVersion": "v1.35.4"}),
            vec![plane("v1.33.13"), worker("w1")],
            "machine c1 runs v1.33.13, and v1.35.4 is more than one minor version away",
        ),
        (
            json!({"targetVersion": "v2.0.0"}),
            vec![worker("w1")],
            "machine w1 runs v1.33.13, and v2.0.0 is more than one minor version away",
        ),
        (
            json!({"targetVersion": "v1.33.4"}),
            vec![worker("w1")],
            "machine w1 runs v1.33.13, so v1.33.4 is a downgrade: see spec.allowDowngrade",
        ),
        (
            json!({"labelSelector": [{"label": "w", "operator": "exists"}]}),
            vec![
                plane("v1.33.13"),
                MachineFacts { labels: [("w".into(), String::new())].into(), ..worker("w1") },
            ],
            "machine w1 would run kubelet v1.34.4, newer than API server v1.33.13",
        ),
        (
            json!({"labelSelector": [{"label": "w", "operator": "!"}]}),
            vec![
                plane("v1.33.13"),
                MachineFacts {
                    labels: [("w".into(), String::new())].into(),
                    ..old("w1", "v1.30.2")
                },
            ],
            "machine w1 would run kubelet v1.30.2 beside API server v1.34.4, more than three minor",
        ),
        (
            json!({"labelSelector": [{"label": "w", "operator": "!"}]}),
            vec![
                MachineFacts {
                    labels: [("w".into(), String::new())].into(),
                    ..control_plane("c0", "v1.32.1")
                },
                plane("v1.33.13"),
            ],
            "API servers would be v1.32.1 and v1.34.4, more than one minor version apart",
        ),
        (
            json!({}),
            vec![member("c1"), member("c2")],
            "etcd has two members, and can spare neither",
        ),
        (
            json!({"targetVersion": "v1.35.4"}),
            vec![MachineFacts {
                upgrade: told("", json!({"cgroup": 1})).upgrade,
                ..old("w1", "v1.34.4")
            }],
            "machine w1 has control groups of version 1, on which kubelet v1.35.4 does not start",
        ),
    ];
    for (fields, machines, sentence) in cases {
        let mut scene = Scene::new(fields, machines);
        assert_eq!(scene.look(), [], "{sentence}");
        assert_eq!(scene.status.phase, Some(UpgradePhase::Failed), "{sentence}");
        let message = scene.status.message.clone().unwrap();
        assert!(message.starts_with(sentence), "{message}\nis not\n{sentence}");
        assert_eq!(scene.look(), [], "{sentence}");
        assert_eq!(scene.status.message, Some(message));
    }
}

#[test]
fn a_downgrade_by_one_minor_version_is_done_where_it_is_asked_for() {
    let fields = json!({"targetVersion": "v1.32.9", "allowDowngrade": true});
    let mut scene = Scene::new(fields, vec![worker("w1")]);
    scene.fleet.api_server = KubeVersion::parse("v1.33.1");
    scene.looks(2);
    assert_eq!(scene.status.phase, Some(UpgradePhase::InProgress), "{:?}", scene.status.message);
}

#[test]
fn a_run_waits_for_another_and_for_machines_that_are_not_ready() {
    let mut scene = Scene::new(json!({}), vec![worker("w1"), worker("w2")]);
    let other = |accepted, under_way| OtherRun {
        name: "reboot-all".into(),
        created: "2026-11-26T11:00:00Z".parse().unwrap(),
        accepted,
        under_way,
    };
    scene.fleet.others = vec![other(true, false)];
    assert_eq!(scene.look(), []);
    assert_eq!(scene.status.phase, Some(UpgradePhase::Pending));
    assert_eq!(scene.waits(), "OtherUpgrade: upgrade reboot-all is not finished, and comes first");
    // One that is younger and was not accepted waits for this one.
    scene.fleet.others = vec![other(false, false)];
    scene.machine("w2").ready = false;
    assert_eq!(scene.look(), []);
    assert_eq!(scene.status.phase, Some(UpgradePhase::Preflight));
    assert_eq!(scene.waits(), "MachinesReady: machine w2 is not Ready");
    scene.machine("w2").ready = true;
    scene.look();
    assert_eq!(scene.status.phase, Some(UpgradePhase::InProgress));
    // A run that was tried again may have a machine under way.
    scene.fleet.others = vec![other(true, true)];
    scene.looks(3);
    assert_eq!(scene.phase("w1"), MachinePhase::Pending);
    assert_eq!(scene.waits(), "OtherUpgrade: upgrade reboot-all comes first");
    // Two leaders may have let both begin: then the younger goes no further than its cordon, and
    // takes it off.
    scene.fleet.others.clear();
    scene.looks(1);
    scene.fleet.others = vec![other(true, true)];
    scene.fleet.others[0].created = Timestamp::UNIX_EPOCH - SignedDuration::from_secs(1);
    scene.looks(3);
    assert!(scene.machine("w1").cordoned);
    scene.looks(3);
    assert_eq!((scene.phase("w1"), scene.status.nodes[0].attempt), (MachinePhase::Pending, 0));
    assert!(!scene.machine("w1").cordoned);
    assert_eq!(scene.waits(), "OtherUpgrade: upgrade reboot-all comes first");
    scene.fleet.others.clear();
    scene.looks(8);
    assert_eq!(scene.phase("w1"), MachinePhase::Run);
}

#[test]
fn unready_machine_blocks_the_next_one() {
    let mut scene = Scene::new(json!({}), ["w1", "w2", "w3"].map(worker).into());
    scene.looks(8);
    scene.upgrade("w1");
    scene.looks(1);
    scene.machine("w3").ready = false;
    scene.looks(20);
    assert_eq!(
        ["w1", "w2"].map(|name| scene.phase(name)),
        [MachinePhase::Done, MachinePhase::Pending]
    );
    assert!(scene.waits().contains("machine w3 is not Ready"), "{}", scene.waits());
    scene.machine("w3").ready = true;
    scene.looks(2);
    assert!(scene.phase("w2").is_under_way());
}

#[test]
fn control_planes_go_by_name_and_then_workers_by_pool() {
    let pool = |name: &str, pool: &str| MachineFacts {
        labels: [(NODE_POOL_ID.to_owned(), pool.to_owned())].into(),
        ..worker(name)
    };
    let machines = vec![
        pool("w1", "b"),
        pool("w2", "a"),
        control_plane("c2", "v1.33.13"),
        worker("w3"),
        control_plane("c1", "v1.33.13"),
        pool("w0", "b"),
    ];
    let mut scene = Scene::new(json!({}), machines);
    scene.look();
    let order: Vec<&str> = scene.status.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(order, ["c1", "c2", "w3", "w2", "w0", "w1"]);
}

#[test]
fn an_external_tool_is_waited_for_and_the_machine_is_given_back() {
    let mut scene = Scene::new(json!({}), vec![worker("w1"), worker("w2")]);
    scene.look();
    assert_eq!(scene.look(), [UpgradeAction::AddFinalizer]);
    // All that are still to come are avoided by pods that are evicted.
    let tainted: Vec<_> = scene.look();
    assert!(matches!(&tainted[..], [UpgradeAction::Taint { .. }, UpgradeAction::Taint { .. }]));
    scene.looks(6);
    assert_eq!(scene.phase("w1"), MachinePhase::Run);
    assert!(scene.machine("w1").cordoned && !scene.machine("w2").cordoned);
    assert_eq!(
        scene.waits(),
        "w1: MachineChanged: runs kubelet v1.33.13: bring it to v1.34.4 by your own tool"
    );
    assert_eq!(scene.status.current_node.as_deref(), Some("w1"));
    assert_eq!(scene.status.progress.as_deref(), Some("0/2"));
    // At rest nothing is written.
    let before = scene.decide();
    scene.fleet.now += SignedDuration::from_secs(5);
    assert_eq!(scene.decide(), before);
    scene.upgrade("w1");
    scene.machine("w1").ready = false;
    scene.looks(3);
    assert_eq!(scene.waits(), "w1: MachineReady: is not Ready");
    scene.machine("w1").ready = true;
    scene.looks(6);
    assert_eq!(scene.phase("w1"), MachinePhase::Verify);
    scene.looks(6);
    assert_eq!(scene.phase("w1"), MachinePhase::Done);
    let w1 = scene.machine("w1").clone();
    assert!(!w1.cordoned && w1.cordoned_by.is_none() && w1.tainted_by.is_none());
    scene.looks(5);
    scene.upgrade("w2");
    scene.looks(20);
    assert_eq!(scene.status.phase, Some(UpgradePhase::Success));
    assert_eq!(scene.status.progress.as_deref(), Some("2/2"));
    assert!(!scene.finalizer);
}

#[test]
fn a_machine_that_was_cordoned_before_stays_so() {
    let mut scene = Scene::new(json!({}), vec![worker("w1")]);
    scene.machine("w1").cordoned = true;
    scene.looks(8);
    assert_eq!(scene.phase("w1"), MachinePhase::Run);
    assert_eq!(scene.machine("w1").cordoned_by, None);
    scene.upgrade("w1");
    scene.looks(20);
    assert_eq!(scene.status.phase, Some(UpgradePhase::Success));
    assert!(scene.machine("w1").cordoned);
}

#[test]
fn machines_that_are_as_wanted_are_left_alone() {
    let machines = vec![MachineFacts { kubelet: "v1.34.4+k3s1".into(), ..worker("w1") }];
    let mut scene = Scene::new(json!({}), machines);
    scene.looks(6);
    assert_eq!(scene.status.phase, Some(UpgradePhase::Success));
    assert_eq!(scene.status.nodes[0].attempt, 0);
}

#[test]
fn pods_leave_in_order_and_databases_are_asked() {
    let mut scene = Scene::new(json!({}), vec![worker("w1"), worker("w2")]);
    scene.fleet.pods = vec![
        pod("coordinator", PodRole::Coordinator, "w1"),
        pod("controller", PodRole::Navigator, "w1"),
        pod("web", PodRole::Ordinary, "w1"),
        pod("proxy", PodRole::Left, "w1"),
        pod("other", PodRole::Ordinary, "w2"),
    ];
    scene.add_member("a-0", "db/kind/a", "w1");
    scene.fleet.clusters = vec![cluster("db/kind/a")];
    let mut did = Vec::new();
    for _ in 0..12 {
        did.extend(scene.look().into_iter().filter_map(|action| match action {
            UpgradeAction::Evict { pod, .. } => Some(format!("evict {pod}")),
            UpgradeAction::Ask { pilot, request, .. } => Some(format!("ask {pilot}: {request}")),
            _ => None,
        }));
        scene.fleet.now += SignedDuration::from_secs(5);
    }
    let asked = "ask a-0: uid-a-0 upgrade to-34 of w1";
    assert_eq!(did, ["evict web", asked]);
    assert_eq!(scene.status.nodes[0].asked, ["db/a-0"]);
    assert_eq!(scene.status.nodes[0].clusters, ["db/kind/a"]);
    assert_eq!(scene.waits(), "w1: PilotAsked: db/a-0 is asked to leave");
    // The controller says which rule holds.
    scene.pilot("a-0").waits = Some("NoShardMovement: 3 shards move; wait".into());
    scene.look();
    assert_eq!(scene.waits(), "w1: NoShardMovement: 3 shards move; wait");
    let wait = &scene.status.waits_for[0];
    assert_eq!(wait.cluster.as_deref(), Some("db/kind/a"));
    assert_eq!(wait.pilot.as_deref(), Some("db/a-0"));
    // It is let go, and waits for its volume.
    scene.fleet.volumes = vec![MachineVolume { name: "pv-a-0".into(), machine: Some("w1".into()) }];
    let member = scene.fleet.pods.iter_mut().find(|pod| pod.name == "a-0").unwrap();
    (member.machine, member.uid) = (None, "uid-next".into());
    let evicted = |actions: &[UpgradeAction]| match actions {
        [UpgradeAction::Evict { pod, .. }] => pod.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(evicted(&scene.look()), "controller");
    assert_eq!(evicted(&scene.look()), "coordinator");
    scene.look();
    assert_eq!(scene.phase("w1"), MachinePhase::Run);
    scene.look();
    assert_eq!(
        scene.status.waits_for[1].message,
        "db/a-0 stays with its volume, and comes back with w1"
    );
    // The request stands while the machine is away, and is taken back with the cordon.
    assert!(scene.pilot("a-0").leave.is_some());
    scene.upgrade("w1");
    scene.fleet.clusters[0].serves = false;
    scene.looks(12);
    assert_eq!(scene.pilot("a-0").leave, None);
    assert_eq!(scene.phase("w1"), MachinePhase::Settle);
    assert_eq!(scene.waits(), "w1: DatabaseSettled: a node is away");
    scene.fleet.clusters[0].serves = true;
    (scene.fleet.clusters[0].drainable, scene.fleet.clusters[0].why) =
        (Some(false), "StreamsIdle: a-0: streams".into());
    scene.look();
    assert_eq!(scene.waits(), "w1: DatabaseSettled: StreamsIdle: a-0: streams");
    scene.fleet.clusters[0].drainable = Some(true);
    scene.look();
    assert_eq!(scene.phase("w1"), MachinePhase::Done);
}

#[test]
fn a_coordinator_that_has_nowhere_to_go_stays() {
    for (elsewhere, left) in [(Some("w2"), 1), (None, 2)] {
        let mut scene = Scene::new(json!({}), vec![worker("w1")]);
        let mut last = pod("coordinator-a", PodRole::Coordinator, "w1");
        last.refusal = Some("the budget allows no disruption".to_owned());
        let mut other = pod("coordinator-b", PodRole::Coordinator, "");
        other.machine = elsewhere.map(str::to_owned);
        scene.fleet.pods = vec![last, other];
        scene.looks(9);
        assert_eq!((scene.phase("w1"), scene.fleet.pods.len()), (MachinePhase::Run, left));
    }
}

#[test]
fn a_patch_release_drains_nothing() {
    let mut scene = Scene::new(json!({"targetVersion": "v1.33.14"}), vec![worker("w1")]);
    scene.add_member("a-0", "db/kind/a", "w1");
    scene.looks(8);
    assert_eq!(scene.phase("w1"), MachinePhase::Run);
    assert_eq!(scene.pilot("a-0").leave, None);
    assert_eq!(scene.fleet.pods.len(), 1);
}

#[test]
fn a_reboot_is_known_by_the_id_of_the_boot() {
    let fields = json!({"type": "reboot", "targetVersion": null});
    let mut scene = Scene::new(fields, vec![worker("w1")]);
    scene.looks(9);
    assert_eq!(scene.waits(), "w1: MachineChanged: is to be rebooted by your own tool");
    scene.machine("w1").boot_id = "boot-2".into();
    scene.looks(20);
    assert_eq!(scene.status.phase, Some(UpgradePhase::Success));
}

#[test]
fn pods_that_nobody_makes_again_or_that_keep_data_hold_the_drain_until_it_fails() {
    for (change, says) in [
        ((|pod| pod.has_owner = false) as fn(&mut MachinePod), "has no controller"),
        (|pod| pod.has_local_data = true, "keeps data in an emptyDir"),
        (|pod| pod.ends = true, "ends"),
    ] {
        let fields = json!({"drain": {"timeoutSeconds": 60}});
        let mut scene = Scene::new(fields, vec![worker("w1"), worker("w2")]);
        let mut held = pod("web", PodRole::Ordinary, "w1");
        change(&mut held);
        scene.fleet.pods = vec![held];
        scene.looks(10);
        assert!(scene.waits().contains(says), "{}", scene.waits());
        scene.looks(20);
        assert_eq!(scene.status.phase, Some(UpgradePhase::Failed));
        let message = scene.status.nodes[0].message.clone().unwrap();
        assert!(message.contains("more than 60 s") && message.contains(says), "{message}");
        // Stop: the rest is as it was, and no mark stays.
        assert_eq!(scene.phase("w2"), MachinePhase::Pending);
        assert_eq!(scene.status.message.as_deref(), Some("failed on w1; 1 were left as they are"));
        let marked = |machine: &MachineFacts| {
            machine.cordoned || machine.cordoned_by.is_some() || machine.tainted_by.is_some()
        };
        assert!(!scene.fleet.machines.iter().any(marked));
        assert_eq!(scene.fleet.pods.len(), 1);
    }
}

#[test]
fn a_machine_that_does_not_come_back_fails_and_stays_cordoned() {
    let mut scene = Scene::new(json!({"nodeTimeoutSeconds": 60}), vec![worker("w1"), worker("w2")]);
    scene.looks(7);
    scene.machine("w1").ready = false;
    scene.looks(20);
    assert_eq!(scene.status.phase, Some(UpgradePhase::Failed));
    assert_eq!(
        scene.status.nodes[0].message.as_deref(),
        Some("no kubelet v1.34.4 was seen within 60 s; it is not Ready and stays as it is")
    );
    // The cordon is a person's now.
    let w1 = scene.machine("w1").clone();
    assert!(w1.cordoned && w1.cordoned_by.is_none() && w1.tainted_by.is_none());
    let stalled = scene.status.conditions.iter().find(|found| found.type_ == "Stalled").unwrap();
    assert_eq!((stalled.status.as_str(), stalled.reason.as_str()), ("True", "UpgradeFailed"));
    // Tried again, by a word that differs from the last.
    scene.machine("w1").ready = true;
    scene.machine("w1").cordoned = false;
    scene.retry = Some("once more".into());
    scene.looks(8);
    assert_eq!((scene.phase("w1"), scene.status.nodes[0].attempt), (MachinePhase::Run, 2));
    scene.upgrade("w1");
    scene.looks(15);
    scene.upgrade("w2");
    scene.looks(20);
    assert_eq!(scene.status.phase, Some(UpgradePhase::Success));
}

#[test]
fn failures_of_workers_may_be_passed_over_and_those_of_control_planes_never() {
    for (first, second) in [(true, MachinePhase::Pending), (false, MachinePhase::Run)] {
        let machine = |name: &str, plane: bool| {
            if plane { control_plane(name, "v1.33.13") } else { worker(name) }
        };
        let fields = json!({"nodeTimeoutSeconds": 30, "failurePolicy": "Continue"});
        let mut scene = Scene::new(fields, vec![machine("m1", first), worker("m2")]);
        scene.looks(19);
        assert_eq!(scene.phase("m1"), MachinePhase::Failed);
        assert_eq!(scene.phase("m2"), second);
    }
}

#[test]
fn nothing_begins_while_it_is_paused_or_outside_of_its_window() {
    let at = |hour: &str| json!({"start": hour, "end": "13:00"});
    for (fields, says) in [
        (json!({"paused": true}), "Paused: spec.paused is true"),
        (json!({"window": at("12:30")}), "WindowClosed: machines begin from 12:30 to 13:00 UTC"),
    ] {
        let mut scene = Scene::new(fields, vec![worker("w1")]);
        scene.looks(5);
        assert_eq!(scene.phase("w1"), MachinePhase::Pending);
        assert!(scene.waits().starts_with(says), "{}", scene.waits());
        // What is under way is finished.
        let paused = std::mem::take(&mut scene.spec.paused);
        scene.fleet.now += SignedDuration::from_mins(31);
        scene.looks(3);
        assert!(scene.phase("w1").is_under_way());
        scene.spec.paused = paused;
        scene.fleet.now += SignedDuration::from_mins(60);
        scene.looks(5);
        assert_eq!(scene.phase("w1"), MachinePhase::Run);
    }
}

#[test]
fn gates_hold_a_machine_before_it_begins() {
    let selector = json!([{"labels": [{"label": "job", "operator": "exists"}]}]);
    let fields = json!({"gates": {"blockingPodSelectors": selector}});
    let mut scene = Scene::new(fields, vec![worker("w1"), worker("w2")]);
    let mut blocking = pod("training", PodRole::Ordinary, "w1");
    blocking.labels = [("job".to_owned(), String::new())].into();
    scene.fleet.pods = vec![blocking];
    scene.looks(5);
    assert_eq!(scene.waits(), "w1: BlockingPod: pod db/training blocks the machine");
    scene.fleet.pods.clear();
    scene.add_member("a-0", "db/kind/a", "w1");
    let mut held = cluster("db/kind/a");
    (held.drainable, held.why) = (Some(false), "PeersUp: a-1: a-2 is away".into());
    scene.fleet.clusters = vec![held];
    scene.looks(2);
    assert_eq!(scene.waits(), "w1: Drainable: PeersUp: a-1: a-2 is away");
    let stalled = |scene: &Scene| {
        scene.status.conditions.iter().any(|c| c.type_ == "Stalled" && c.status == "True")
    };
    assert!(!stalled(&scene));
    scene.fleet.now += SignedDuration::from_mins(31);
    scene.look();
    assert!(stalled(&scene));
    scene.fleet.clusters[0].drainable = Some(true);
    scene.look();
    assert_eq!(scene.phase("w1"), MachinePhase::Cordon);
}

#[test]
fn the_first_machine_goes_alone_and_then_as_many_as_may() {
    let machines = ["w1", "w2", "w3", "w4"].map(worker).into();
    let mut scene = Scene::new(json!({"maxUnavailable": 2}), machines);
    scene.add_member("a-0", "db/kind/a", "w2");
    scene.add_member("a-1", "db/kind/a", "w3");
    scene.looks(8);
    assert_eq!(scene.phase("w2"), MachinePhase::Pending);
    scene.upgrade("w1");
    scene.looks(20);
    // w3 holds a member of the same database as w2, so it waits although there is room.
    assert!(scene.phase("w2").is_under_way());
    assert_eq!(scene.phase("w3"), MachinePhase::Pending);
    let shared = scene.status.waits_for.iter().find(|wait| wait.predicate == "SharedCluster");
    assert_eq!(shared.unwrap().machine.as_deref(), Some("w3"));
    scene.fleet.pods.retain(|pod| pod.name != "a-1");
    scene.looks(2);
    assert!(scene.phase("w2").is_under_way() && scene.phase("w3").is_under_way());
    assert_eq!(scene.phase("w4"), MachinePhase::Pending);
}

#[test]
fn a_run_that_is_deleted_lets_go_of_a_machine_that_is_only_cordoned() {
    let mut scene = Scene::new(json!({}), vec![worker("w1"), worker("w2")]);
    scene.looks(4);
    assert_eq!(scene.phase("w1"), MachinePhase::Cordon);
    assert!(scene.machine("w1").cordoned);
    scene.deleting = true;
    scene.looks(6);
    assert!(!scene.finalizer);
    let clean = |machine: &MachineFacts| !machine.cordoned && machine.tainted_by.is_none();
    assert!(scene.fleet.machines.iter().all(clean));
    assert_eq!(
        scene.status.message.as_deref(),
        Some("the upgrade was deleted; 2 were left as they are")
    );
}

#[test]
fn a_run_that_is_deleted_finishes_a_machine_whose_drain_began() {
    let mut scene = Scene::new(json!({}), vec![worker("w1"), worker("w2")]);
    scene.add_member("a-0", "db/kind/a", "w1");
    scene.looks(9);
    assert_eq!(scene.phase("w1"), MachinePhase::Drain);
    scene.deleting = true;
    scene.looks(6);
    assert_eq!(scene.phase("w1"), MachinePhase::Drain);
    assert!(scene.finalizer && scene.pilot("a-0").leave.is_some());
    assert!(scene.machine("w2").tainted_by.is_none(), "no further machine is marked");
    scene.fleet.pods.clear();
    scene.looks(3);
    assert_eq!(scene.phase("w1"), MachinePhase::Run);
    scene.upgrade("w1");
    scene.looks(20);
    assert_eq!((scene.phase("w1"), scene.phase("w2")), (MachinePhase::Done, MachinePhase::Pending));
    assert_eq!(scene.pilot("a-0").leave, None);
    assert!(!scene.finalizer && !scene.machine("w1").cordoned);

    // One that hangs ends at its timeout.
    let fields = json!({"drain": {"timeoutSeconds": 60}});
    let mut scene = Scene::new(fields, vec![worker("w1"), worker("w2")]);
    scene.add_member("a-0", "db/kind/a", "w1");
    scene.looks(9);
    scene.deleting = true;
    scene.looks(20);
    assert_eq!(scene.phase("w1"), MachinePhase::Failed);
    assert_eq!(scene.pilot("a-0").leave, None);
    assert!(!scene.finalizer && !scene.machine("w1").cordoned);
}

#[test]
fn a_finished_run_is_deleted_in_time() {
    let machines = vec![MachineFacts { kubelet: "v1.34.4".into(), ..worker("w1") }];
    let mut scene = Scene::new(json!({"ttlSecondsAfterFinished": 60}), machines);
    scene.looks(8);
    assert_eq!(scene.status.phase, Some(UpgradePhase::Success));
    assert_eq!(scene.look(), []);
    scene.fleet.now += SignedDuration::from_secs(60);
    assert_eq!(scene.look(), [UpgradeAction::Delete]);
}

#[test]
fn marks_of_runs_that_are_over_are_swept() {
    let mut scene = Scene::new(json!({}), vec![worker("w1"), worker("w2"), worker("w3")]);
    scene.machine("w1").cordoned_by = Some("gone".into());
    scene.machine("w2").tainted_by = Some("gone".into());
    scene.machine("w3").cordoned_by = Some(RUN.into());
    scene.fleet.pilots =
        vec![pilot("a-0", "db/kind/a"), pilot("a-1", "db/kind/a"), pilot("a-2", "db/kind/a")];
    let ask = |by: &str| Some(LeaveRequest { pod: "uid".into(), by: by.into() });
    scene.pilot("a-0").leave = ask("upgrade gone of w1");
    scene.pilot("a-1").leave = ask("drain of w1");
    scene.pilot("a-2").leave = ask("upgrade to-34 of w3");
    let release = |machine: &str| UpgradeAction::Release {
        machine: machine.into(),
        version: "1".into(),
        by: "gone".into(),
        uncordon: true,
    };
    let withdraw = UpgradeAction::Withdraw {
        namespace: "db".into(),
        pilot: "a-0".into(),
        version: "1".into(),
        by: "gone".into(),
    };
    assert_eq!(sweep_marks(&scene.fleet, &[RUN]), [release("w1"), release("w2"), withdraw]);
}

#[test]
fn clusters_that_do_not_let_go_yet_are_told_before_the_run_begins() {
    let mut scene = Scene::new(json!({}), vec![worker("w1")]);
    scene.add_member("a-0", "db/kind/a", "w1");
    let held = DatabaseCluster {
        drainable: Some(false),
        why: "PeersUp: a-1 is away".into(),
        ..cluster("db/kind/a")
    };
    scene.fleet.clusters = vec![held];
    scene.fleet.deprecated = vec!["flowcontrol v1beta3 is asked for".into()];
    scene.look();
    assert_eq!(
        scene.status.warnings,
        [
            "flowcontrol v1beta3 is asked for",
            "db/kind/a does not let w1 go yet: PeersUp: a-1 is away"
        ]
    );
}

#[test]
fn what_the_runner_says_brings_a_machine_on() {
    let idle = json!({"cgroup": 2, "runner": 1, "hasRoom": true});
    let begun = || {
        let mut scene = Scene::new(by_agents(), vec![told("w1", idle.clone())]);
        scene.looks(10);
        assert_eq!(scene.phase("w1"), MachinePhase::Run);
        assert_eq!(scene.waits(), "w1: JobDone: its runner has not taken the job yet");
        scene
    };
    let say = |scene: &mut Scene, attempt: i32, step: &str, code: Value, message: Value| {
        let mut report = idle.clone();
        let job = json!({"id": "uid-of-the-run", "attempt": attempt, "step": step, "code": code, "message": message});
        report.as_object_mut().unwrap().extend(job.as_object().unwrap().clone());
        scene.machine("w1").upgrade = Some(serde_json::from_value(report).unwrap());
        scene.look();
    };
    let none = || Value::Null;
    let mut scene = begun();
    say(&mut scene, 1, "fetch", json!(10), json!("no answer"));
    assert_eq!(scene.waits(), "w1: JobDone: its runner tries step fetch again: no answer");
    say(&mut scene, 0, "rollback", json!(20), json!("of another attempt"));
    assert_eq!(scene.phase("w1"), MachinePhase::Run);
    // A new kubelet may still have to go.
    scene.upgrade("w1");
    say(&mut scene, 1, "health", none(), none());
    assert_eq!(scene.waits(), "w1: JobDone: its runner is at step health");
    say(&mut scene, 1, "done", json!(0), none());
    assert_eq!(scene.phase("w1"), MachinePhase::Verify);
    for (step, code, message) in [
        ("fetch", 20, "was not changed: why"),
        ("rollback", 20, "rolled back to v1.33.13: why"),
        ("rollback", 30, "is neither old nor new: why"),
    ] {
        let mut scene = begun();
        say(&mut scene, 1, step, json!(code), json!("why"));
        assert_eq!(scene.phase("w1"), MachinePhase::Failed);
        assert_eq!(scene.status.nodes[0].message.as_deref(), Some(message));
    }
    let mut scene = begun();
    scene.fleet.now += SignedDuration::from_secs(600);
    say(&mut scene, 1, "kubeadm", none(), none());
    let message = scene.status.nodes[0].message.clone().unwrap();
    assert_eq!(message, "no kubelet v1.34.4 was seen within 600 s; its runner is at step kubeadm");
}
