//! What one look asks of the server, and in which order.

mod rights;

use serde_json::{Value, json};

use super::{UpgradeCoordinator, name};
use crate::{
    api::names,
    coordinator::{
        metrics::Metrics,
        testing::{FakeServer, coordinator},
    },
};

const RUN: &str =
    "/apis/provision.containership.io/v3/namespaces/containership-core/clusterupgrades/to-34";
const POD: &str = "/api/v1/namespaces/shop/pods/web-0";
const PILOT: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots/ex-demo-a-0";

struct Scene {
    server: FakeServer,
    coordinator: UpgradeCoordinator,
}

fn machine(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

impl Scene {
    /// Two machines of 1.33, and an upgrade to 1.34.
    fn new() -> Self {
        let server = FakeServer::default();
        for name in ["m-1", "m-2"] {
            let node = json!({
                "metadata": {},
                "spec": {"taints": [{"key": "of-a-person", "effect": "NoSchedule"}]},
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "nodeInfo": {
                        "kubeletVersion": "v1.33.13", "bootID": "boot-1", "architecture": "",
                        "containerRuntimeVersion": "", "kernelVersion": "",
                        "kubeProxyVersion": "", "machineID": "", "operatingSystem": "",
                        "osImage": "", "systemUUID": "",
                    },
                },
            });
            server.lock().put(&machine(name), node);
        }
        let run = json!({
            "apiVersion": "provision.containership.io/v3", "kind": "ClusterUpgrade",
            "metadata": {
                "namespace": "containership-core", "uid": "u-run", "generation": 1,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"targetVersion": "v1.34.4"},
        });
        server.lock().put(RUN, run);
        let client = server.client();
        let coordinator = coordinator(client.clone(), client, Metrics::new());
        Self { server, coordinator }
    }

    fn run(&self) -> Value {
        self.server.lock().objects[RUN].clone()
    }

    fn node(&self, name: &str) -> Value {
        self.server.lock().objects[&machine(name)].clone()
    }

    /// Returns the writes since the last time.
    fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.server.lock().writes)
    }

    /// Looks until the first machine is in this phase, as if time had gone by between looks.
    async fn until(&mut self, phase: &str) {
        self.until_on(0, phase).await;
    }

    /// As `until`, of any machine of the run.
    async fn until_on(&mut self, at: usize, phase: &str) {
        for _ in 0..20 {
            self.coordinator.reconcile().await.unwrap();
            let run = self.run();
            if run["status"]["nodes"][at]["phase"] == phase {
                return;
            }
            if !run["status"]["nodes"][at]["stableSince"].is_null() {
                let mut nodes = run["status"]["nodes"].clone();
                nodes[at]["stableSince"] = json!("2026-01-01T00:00:00Z");
                self.server.lock().edit(RUN, &json!({"status": {"nodes": nodes}}));
            }
        }
        panic!("{phase} was not reached: {:#}", self.run()["status"]);
    }

    /// Puts an ordinary pod on the first machine.
    fn add_pod(&self) {
        let pod = json!({
            "metadata": {
                "namespace": "shop", "uid": "u-web",
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u-0",
                    "controller": true,
                }],
            },
            "spec": {"nodeName": "m-1", "containers": []},
            "status": {"phase": "Running"},
        });
        self.server.lock().put(POD, pod);
    }

    /// Puts a member of a database on the first machine.
    fn add_member(&self) {
        let mut server = self.server.lock();
        let pod = json!({
            "metadata": {
                "namespace": "db", "uid": "u-member",
                "labels": {
                    "navigator.jetstack.io/has-pilot": "",
                    "navigator.jetstack.io/example-cluster-name": "demo",
                },
            },
            "spec": {"nodeName": "m-1", "containers": []},
            "status": {"phase": "Running"},
        });
        server.put("/api/v1/namespaces/db/pods/ex-demo-a-0", pod);
        let pilot = json!({
            "metadata": {"namespace": "db"},
            "spec": {"clusterRef": {"kind": "ExampleCluster", "name": "demo"}},
        });
        server.put(PILOT, pilot);
        let cluster = json!({
            "metadata": {"namespace": "db"},
            "spec": {"nodePools": [{"name": "a"}]},
            "status": {"readyReplicas": 1},
        });
        let path = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/exampleclusters/demo";
        server.put(path, cluster);
    }
}

#[tokio::test]
async fn a_run_is_accepted_before_anything_is_touched_and_held_before_it_is_marked() {
    let mut scene = Scene::new();
    scene.coordinator.reconcile().await.unwrap();
    assert_eq!(scene.writes(), [format!("PUT {RUN}/status")]);
    assert_eq!(scene.run()["status"]["nodes"][1]["name"], "m-2");
    scene.coordinator.reconcile().await.unwrap();
    assert_eq!(scene.writes()[0], format!("PATCH {RUN}"));
    assert_eq!(scene.run()["metadata"]["finalizers"], json!([name::UPGRADE_FINALIZER]));
    scene.coordinator.reconcile().await.unwrap();
    let writes = scene.writes();
    let marks = [format!("PATCH {}", machine("m-1")), format!("PATCH {}", machine("m-2"))];
    assert_eq!(writes[..2], marks, "both machines are still to come");
    assert_eq!(writes[2], format!("PUT {RUN}/status"));
    let node = scene.node("m-2");
    assert_eq!(node["metadata"]["annotations"][name::TAINTED_BY], "to-34");
    let keys: Vec<_> =
        node["spec"]["taints"].as_array().unwrap().iter().map(|t| &t["key"]).collect();
    assert_eq!(keys, ["of-a-person", name::UPGRADE_PENDING]);
}

#[tokio::test]
async fn an_action_that_fails_leaves_the_status_unwritten() {
    let mut scene = Scene::new();
    scene.until("Cordon").await;
    let before = scene.run();
    scene.writes();
    for code in [409, 500] {
        let cordon = format!("PATCH {}", machine("m-1"));
        scene.server.lock().refuses.insert(cordon.clone(), code);
        scene.coordinator.reconcile().await.unwrap_err();
        assert_eq!(scene.writes(), [cordon]);
        assert_eq!(scene.run(), before);
    }
    scene.server.lock().refuses.clear();
    scene.until("Drain").await;
    assert_eq!(scene.node("m-1")["spec"]["unschedulable"], true);
    assert_eq!(scene.node("m-1")["metadata"]["annotations"][name::CORDONED_BY], "to-34");
}

#[tokio::test]
async fn a_status_that_another_client_wrote_meanwhile_is_not_overwritten() {
    let mut scene = Scene::new();
    scene.server.lock().refuses.insert(format!("PUT {RUN}"), 409);
    let error = scene.coordinator.reconcile().await.unwrap_err();
    assert_eq!(error.outcome(), "conflict");
    scene.server.lock().refuses.clear();
    scene.until("Cordon").await;
}

#[tokio::test]
async fn an_eviction_that_is_refused_is_no_failure_and_is_told() {
    let mut scene = Scene::new();
    scene.add_pod();
    scene.until("Drain").await;
    scene.server.lock().refuses.insert(format!("POST {POD}/eviction"), 429);
    scene.coordinator.reconcile().await.unwrap();
    scene.coordinator.reconcile().await.unwrap();
    let waits = &scene.run()["status"]["waitsFor"][0];
    assert_eq!(waits["predicate"], "PodEvicted");
    assert_eq!(waits["message"], "pod shop/web-0: refused");
    scene.server.lock().refuses.clear();
    scene.until("Run").await;
    assert!(!scene.server.lock().objects.contains_key(POD));
}

#[tokio::test]
async fn a_database_is_asked_and_waited_for_and_every_mark_is_taken_off() {
    let mut scene = Scene::new();
    scene.add_member();
    scene.until("Drain").await;
    for _ in 0..3 {
        scene.coordinator.reconcile().await.unwrap();
    }
    let leave = &scene.server.lock().objects[PILOT]["metadata"]["annotations"]
        [names::annotation::LEAVE]
        .clone();
    assert_eq!(leave, "u-member upgrade to-34 of m-1");
    scene.server.lock().objects.remove("/api/v1/namespaces/db/pods/ex-demo-a-0");
    scene.until("Run").await;
    let new = json!({"status": {"nodeInfo": {"kubeletVersion": "v1.34.4"}}});
    scene.server.lock().edit(&machine("m-1"), &new);
    scene.until("Done").await;
    let node = scene.node("m-1");
    assert!(node["spec"].get("unschedulable").is_none());
    assert_eq!(node["metadata"]["annotations"], json!({}));
    assert_eq!(node["spec"]["taints"], json!([{"key": "of-a-person", "effect": "NoSchedule"}]));
    let annotations = scene.server.lock().objects[PILOT]["metadata"]["annotations"].clone();
    assert_eq!(annotations, json!({}));
    scene.until_on(1, "Run").await;
    scene.server.lock().edit(&machine("m-2"), &new);
    scene.until_on(1, "Done").await;
    for _ in 0..3 {
        scene.coordinator.reconcile().await.unwrap();
    }
    assert_eq!(scene.run()["status"]["phase"], "Success");
    assert_eq!(scene.run()["metadata"]["finalizers"], json!([]));
    scene.writes();
    scene.coordinator.reconcile().await.unwrap();
    assert_eq!(scene.writes(), [""; 0], "a run that is over is left alone");
}

#[tokio::test]
async fn eviction_spares_a_pod_with_another_uid() {
    let mut scene = Scene::new();
    scene.add_pod();
    let recreated = json!({"metadata": {"namespace": "shop", "uid": "u-recreated"}});
    scene.server.lock().put(POD, recreated);
    scene.coordinator.evict_pod("shop", "web-0", "u-web").await.unwrap();
    assert!(scene.server.lock().objects.contains_key(POD));
    scene.coordinator.evict_pod("shop", "web-0", "u-recreated").await.unwrap();
    assert!(!scene.server.lock().objects.contains_key(POD));
}

#[tokio::test]
async fn withdrawal_keeps_the_request_of_a_user() {
    let mut scene = Scene::new();
    scene.add_member();
    scene.until("Drain").await;
    for _ in 0..3 {
        scene.coordinator.reconcile().await.unwrap();
    }
    let leave = "u-member drain of m-1";
    let annotations = json!({"metadata": {"annotations": {names::annotation::LEAVE: leave}}});
    scene.server.lock().edit(PILOT, &annotations);
    scene.server.lock().objects.remove("/api/v1/namespaces/db/pods/ex-demo-a-0");
    scene.until("Run").await;
    let new = json!({"status": {"nodeInfo": {"kubeletVersion": "v1.34.4"}}});
    scene.server.lock().edit(&machine("m-1"), &new);
    scene.until("Done").await;
    scene.coordinator.reconcile().await.unwrap();
    let pilot = scene.server.lock().objects[PILOT].clone();
    assert_eq!(pilot["metadata"]["annotations"][names::annotation::LEAVE], leave);
}

#[tokio::test]
async fn while_the_api_of_the_databases_is_silent_nothing_is_asked_and_machines_are_finished() {
    let mut scene = Scene::new();
    scene.add_member();
    scene.until("Drain").await;
    let silent = "GET /apis/navigator.jetstack.io".to_owned();
    scene.server.lock().refuses.insert(silent.clone(), 503);
    scene.writes();
    for _ in 0..3 {
        scene.coordinator.reconcile().await.unwrap();
    }
    assert!(scene.writes().iter().all(|write| write.starts_with(&format!("PUT {RUN}"))));
    assert_eq!(scene.run()["status"]["waitsFor"][0]["predicate"], "ApiSilent");
    scene.server.lock().objects.remove("/api/v1/namespaces/db/pods/ex-demo-a-0");
    scene.until("Run").await;
    let new = json!({"status": {"nodeInfo": {"kubeletVersion": "v1.34.4"}}});
    scene.server.lock().edit(&machine("m-1"), &new);
    scene.until("Settle").await;
    for _ in 0..3 {
        scene.coordinator.reconcile().await.unwrap();
    }
    assert_eq!(scene.run()["status"]["nodes"][0]["phase"], "Settle", "its cluster is not heard");
    scene.server.lock().refuses.clear();
    scene.until("Done").await;
}

#[tokio::test]
async fn upgrades_that_are_off_are_refused_in_one_sentence() {
    let mut scene = Scene::new();
    scene.coordinator.enabled = false;
    scene.coordinator.reconcile().await.unwrap();
    let status = scene.run()["status"].clone();
    assert_eq!(status["phase"], "Failed");
    assert!(status["message"].as_str().unwrap().contains("--enable-cluster-upgrade"));
    scene.writes();
    scene.coordinator.reconcile().await.unwrap();
    assert_eq!(scene.writes(), [""; 0]);
}

#[tokio::test]
async fn what_a_run_that_is_gone_left_is_swept_up() {
    let mut scene = Scene::new();
    scene.server.lock().objects.remove(RUN);
    scene.server.lock().edit(
        &machine("m-1"),
        &json!({
            "metadata": {"annotations": {name::CORDONED_BY: "gone", name::TAINTED_BY: "gone"}},
            "spec": {
                "unschedulable": true,
                "taints": [{"key": name::UPGRADE_PENDING, "effect": "PreferNoSchedule"}],
            },
        }),
    );
    scene.coordinator.reconcile().await.unwrap();
    let node = scene.node("m-1");
    assert_eq!(node["spec"], json!({}));
    assert_eq!(node["metadata"]["annotations"], json!({}));
    scene.writes();
    scene.coordinator.reconcile().await.unwrap();
    assert_eq!(scene.writes(), [""; 0]);
}
