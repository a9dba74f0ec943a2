//! The machines of a test: Nodes and pods in a real kube-apiserver.
//!
//! Who acts there is scripted (`others.rs`), and databases are objects alone (`databases.rs`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use futures::StreamExt;
use http::{Method, Request};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
    client::Body,
};
use navigator::api::containership::name;
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex as Turn, MutexGuard},
    task::JoinSet,
    time::sleep,
};

use super::{
    databases::{CLUSTERS, PILOTS},
    process::Coordinator,
    wire::{Course, Wire},
};
use crate::{
    api::containership::define,
    storage::{etcd_server, kube_apiserver::Server},
};

pub(super) const OLD: &str = "v1.33.13";
pub(super) const NEW: &str = "v1.34.4";
pub(super) const PATIENCE: Duration = Duration::from_secs(240);
pub(super) const RUNS: &str =
    "/apis/provision.containership.io/v3/namespaces/containership-core/clusterupgrades";

/// The machines of one test, one test at a time: a run goes by all Nodes that there are.
pub(super) struct Fleet {
    client: Client,
    pub(super) wire: Wire,
    marks: Arc<Mutex<Vec<NodeMarks>>>,
    /// Machines that the tool does not upgrade.
    pub(super) left: BTreeSet<String>,
    tasks: JoinSet<()>,
    _turn: MutexGuard<'static, ()>,
}

/// What was seen of a Node, at each of its changes.
#[derive(Clone, Debug)]
pub(super) struct NodeMarks {
    pub(super) name: String,
    pub(super) cordoned: bool,
    /// The run that cordoned it, by the annotation.
    pub(super) by: Option<String>,
    pub(super) kubelet: String,
    last: bool,
}

fn server() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    let more = ["--etcd-prefix=/coordinator", "--disable-admission-plugins=ServiceAccount"];
    SHARED.get_or_init(|| Server::start(etcd_server::shared().url(), &more))
}

impl Fleet {
    /// Machines of these names, of which the first one runs the control plane.
    pub(super) async fn new(names: &[&str], course: Course) -> Self {
        static TURN: Turn<()> = Turn::const_new(());
        let turn = TURN.lock().await;
        let server = server();
        define(server).await;
        let config = kube::config::Kubeconfig::read_from(server.master()).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(config, &options).await.unwrap();
        // The wire hands on what the server answered, and when.
        config.default_retry = false;
        let client = Client::try_from(config).unwrap();
        let wire = Wire::start(client.clone(), course).await;
        let mut fleet = Self {
            client,
            wire,
            marks: Arc::default(),
            left: BTreeSet::new(),
            tasks: JoinSet::new(),
            _turn: turn,
        };
        fleet.define_databases().await;
        fleet.clear().await;
        fleet.watch().await;
        for (index, name) in names.iter().enumerate() {
            fleet.make_node(name, index == 0).await;
        }
        fleet
    }

    pub(super) fn start(&self) -> Coordinator {
        Coordinator::start(&self.wire.url)
    }

    /// Another way to the same server.
    pub(super) async fn other_wire(&self) -> Wire {
        Wire::start(self.client.clone(), Course::Open).await
    }

    /// A way to the same server in the name of a user.
    pub(super) async fn wire_as(&self, user: &str, course: Course) -> Wire {
        let mut config = server().config().await;
        config.default_retry = false;
        config.auth_info.impersonate = Some(user.to_owned());
        Wire::start(Client::try_from(config).unwrap(), course).await
    }

    pub(super) async fn ask(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let form = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", form);
        let answer = self.client.send(request.body(Body::from(body)).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect_bytes().await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    pub(super) async fn make(&self, collection: &str, object: &Value) -> Value {
        let (status, said) = self.ask(Method::POST, collection, object).await;
        assert!(matches!(status, 201 | 409), "{collection}: {said}");
        said
    }

    /// Changes an object; one that is gone, or was changed meanwhile, is left.
    pub(super) async fn patch(&self, path: &str, change: &Value) {
        let (status, said) = self.ask(Method::PATCH, path, change).await;
        assert!(matches!(status, 200 | 404 | 409), "{path} {change}: {said}");
    }

    pub(super) async fn get(&self, path: &str) -> Option<Value> {
        let (status, found) = self.ask(Method::GET, path, &Value::Null).await;
        (status == 200).then_some(found)
    }

    pub(super) async fn list(&self, path: &str) -> Vec<Value> {
        let (status, mut found) = self.ask(Method::GET, path, &Value::Null).await;
        assert_eq!(status, 200, "{path}: {found}");
        std::mem::take(found["items"].as_array_mut().unwrap())
    }

    pub(super) async fn end(&self, path: &str) {
        let now = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
        let (status, said) = self.ask(Method::DELETE, path, &now).await;
        assert!(matches!(status, 200 | 404 | 409), "{path}: {said}");
    }

    /// Takes away what another test left.
    async fn clear(&self) {
        let path = |object: &Value, collection: &str| {
            let meta = &object["metadata"];
            let (place, plural) = collection.rsplit_once('/').unwrap();
            let place = match meta["namespace"].as_str() {
                Some(namespace) if !place.contains("/namespaces/") => {
                    format!("{place}/namespaces/{namespace}")
                }
                _ => place.to_owned(),
            };
            format!("{place}/{plural}/{}", meta["name"].as_str().unwrap())
        };
        for collection in [
            RUNS,
            PILOTS,
            CLUSTERS,
            "/api/v1/pods",
            "/api/v1/nodes",
            "/api/v1/persistentvolumes",
            "/apis/policy/v1/poddisruptionbudgets",
        ] {
            for object in self.list(collection).await {
                let path = path(&object, collection);
                if collection == RUNS || collection.ends_with("volumes") {
                    self.patch(&path, &json!({"metadata": {"finalizers": null}})).await;
                }
                self.end(&path).await;
            }
        }
    }

    /// Keeps what becomes of Nodes from now on.
    async fn watch(&mut self) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let list = nodes.list(&ListParams::default()).await.unwrap();
        let version = list.metadata.resource_version.unwrap();
        let marks = Arc::clone(&self.marks);
        self.tasks.spawn(async move {
            let stream = nodes.watch(&WatchParams::default().timeout(290), &version).await.unwrap();
            let mut stream = Box::pin(stream);
            while let Some(event) = stream.next().await {
                if let WatchEvent::Added(node) | WatchEvent::Modified(node) = event.unwrap() {
                    marks.lock().unwrap().push(NodeMarks::of(node));
                }
            }
        });
    }

    /// Returns what was seen of all Nodes until now, in order.
    pub(super) async fn marks(&self, any: &str) -> Vec<NodeMarks> {
        let last = json!({"metadata": {"annotations": {"last": "yes"}}});
        self.patch(&node(any), &last).await;
        self.until("the watch", async |fleet| {
            let marks = fleet.marks.lock().unwrap().clone();
            if marks.last().is_some_and(|mark| mark.last) { Ok(marks) } else { Err(String::new()) }
        })
        .await
    }

    async fn make_node(&self, name: &str, plane: bool) {
        let mut labels = BTreeMap::from([("kubernetes.io/hostname", name)]);
        if plane {
            labels.insert("node-role.kubernetes.io/control-plane", "");
        }
        let object = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": [{"key": "of-a-person", "effect": "PreferNoSchedule"}]},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {
                    "kubeletVersion": OLD, "bootID": "boot-1", "architecture": "amd64",
                    "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
                },
            },
        });
        self.make("/api/v1/nodes", &object).await;
        if plane {
            let labels = json!({"tier": "control-plane", "component": "kube-apiserver"});
            let mirror = json!({"kubernetes.io/config.mirror": "1"});
            let meta = json!({
                "name": format!("kube-apiserver-{name}"), "namespace": "kube-system",
                "labels": labels, "annotations": mirror,
            });
            self.make_pod(
                &meta,
                Some(name),
                &format!("registry.example/kube-apiserver:{OLD}"),
                &[],
            )
            .await;
        }
    }

    /// Makes a pod that runs on a machine, or one that waits for its scheduler.
    pub(super) async fn make_pod(
        &self,
        meta: &Value,
        on: Option<&str>,
        image: &str,
        volumes: &[Value],
    ) {
        let collection = format!("/api/v1/namespaces/{}/pods", meta["namespace"].as_str().unwrap());
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": meta,
            "spec": {
                "nodeName": on, "volumes": volumes,
                "containers": [{"name": "main", "image": image}],
            },
        });
        self.make(&collection, &pod).await;
        if on.is_some() {
            let path = format!("{collection}/{}", meta["name"].as_str().unwrap());
            self.patch(&format!("{path}/status"), &runs()).await;
        }
    }

    /// Makes a pod of a controller of this kind.
    pub(super) async fn make_owned(&self, name: &str, owner: &str, on: &str) {
        let owners = json!([{
            "apiVersion": "apps/v1", "kind": owner, "name": "web", "uid": "u-0",
            "controller": true,
        }]);
        let meta = json!({
            "name": name, "namespace": "shop", "labels": {"app": name}, "ownerReferences": owners,
        });
        self.make_pod(&meta, Some(on), "example", &[]).await;
    }

    /// A budget that lets this pod go, or not. No controller is there that would count.
    pub(super) async fn set_budget(&self, app: &str, allowed: u8) {
        let collection = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets";
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": app},
            "spec": {"minAvailable": 1 - allowed, "selector": {"matchLabels": {"app": app}}},
        });
        let path = format!("{collection}/{app}");
        self.end(&path).await;
        self.make(collection, &budget).await;
        let status = json!({"status": {
            "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 1,
            "desiredHealthy": 1 - allowed, "expectedPods": 1,
        }});
        self.patch(&format!("{path}/status"), &status).await;
    }

    pub(super) async fn ask_for(&self, run: &str, spec: Value) {
        let mut all = json!({"targetVersion": NEW});
        json_patch::merge(&mut all, &spec);
        let run = json!({
            "apiVersion": "provision.containership.io/v3", "kind": "ClusterUpgrade",
            "metadata": {"name": run}, "spec": all,
        });
        self.make(RUNS, &run).await;
    }

    pub(super) async fn run(&self, name: &str) -> Value {
        self.get(&format!("{RUNS}/{name}")).await.unwrap_or_default()
    }

    /// Asks, while everybody acts, until the answer is good.
    pub(super) async fn until<T>(
        &self,
        what: &str,
        mut good: impl AsyncFnMut(&Self) -> Result<T, String>,
    ) -> T {
        let begun = Instant::now();
        loop {
            let last = match good(self).await {
                Ok(answer) => return answer,
                Err(seen) => seen,
            };
            assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}: {last}");
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Acts for everybody else until a run is as wanted.
    pub(super) async fn act_until(&self, run: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.until(run, async |fleet| {
            fleet.others_act().await;
            let found = fleet.run(run).await;
            if wanted(&found) { Ok(found) } else { Err(format!("{:#}", found["status"])) }
        })
        .await
    }

    /// Claims that a machine bears no mark of ours, and is cordoned only where a person did that.
    pub(super) async fn is_clean(&self, name: &str, cordoned: bool) {
        let found = self.get(&node(name)).await.unwrap();
        let annotations = found["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
        for mark in [name::CORDONED_BY, name::TAINTED_BY] {
            assert!(!annotations.contains_key(mark), "{name} bears {annotations:?}");
        }
        let taints = found["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let keys: BTreeSet<&str> =
            taints.iter().filter_map(|taint| taint["key"].as_str()).collect();
        assert!(!keys.contains(name::UPGRADE_PENDING), "{name} bears {keys:?}");
        assert!(keys.contains("of-a-person"), "{name} bears {keys:?}");
        assert_eq!(found["spec"]["unschedulable"] == true, cordoned, "{name} is cordoned");
    }

    pub(super) async fn kubelet(&self, name: &str) -> String {
        let found = self.get(&node(name)).await.unwrap();
        found["status"]["nodeInfo"]["kubeletVersion"].as_str().unwrap().to_owned()
    }
}

impl NodeMarks {
    fn of(node: Node) -> Self {
        let annotations = node.metadata.annotations.unwrap_or_default();
        let info = node.status.and_then(|status| status.node_info);
        Self {
            name: node.metadata.name.unwrap_or_default(),
            cordoned: node.spec.and_then(|spec| spec.unschedulable) == Some(true),
            by: annotations.get(name::CORDONED_BY).cloned(),
            kubelet: info.map(|info| info.kubelet_version).unwrap_or_default(),
            last: annotations.contains_key("last"),
        }
    }
}

/// Path of a machine's Node.
pub(super) fn node(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

/// Status of a pod that runs.
pub(super) fn runs() -> Value {
    json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
}
