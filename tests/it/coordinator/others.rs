//! Who acts beside the coordinator: the tool that upgrades machines, kubelets and the scheduler,
//! Navigator's controller, and time.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::fleet::{Fleet, NEW, RUNS, node, runs};

/// How far the time of a wait is put back.
const AN_HOUR: SignedDuration = SignedDuration::from_hours(1);

impl Fleet {
    /// What everybody else does, once.
    pub(super) async fn others_act(&self) {
        for run in self.list(RUNS).await {
            self.pass_time(&run).await;
            self.tool(&run).await;
        }
        self.controller().await;
        self.kubelets().await;
    }

    /// As if time went by: what is waited for holds for an hour. Our edit meets the coordinator's own.
    async fn pass_time(&self, run: &Value) {
        let mut nodes = run["status"]["nodes"].clone();
        let now = Timestamp::now();
        let mut moved = false;
        for node in nodes.as_array_mut().into_iter().flatten() {
            let since: Option<Timestamp> =
                node["stableSince"].as_str().map(|text| text.parse().unwrap());
            if since.is_some_and(|since| now.duration_since(since) < AN_HOUR / 2) {
                node["stableSince"] = json!((now - AN_HOUR).to_string());
                moved = true;
            }
        }
        if moved {
            let version = &run["metadata"]["resourceVersion"];
            let change =
                json!({"metadata": {"resourceVersion": version}, "status": {"nodes": nodes}});
            let name = run["metadata"]["name"].as_str().unwrap();
            self.patch(&format!("{RUNS}/{name}/status"), &change).await;
        }
    }

    /// The tool that upgrades machines which are waited for. They are drained then.
    async fn tool(&self, run: &Value) {
        let nodes = run["status"]["nodes"].as_array().cloned().unwrap_or_default();
        for waiting in nodes.iter().filter(|node| node["phase"] == "Run") {
            let name = waiting["name"].as_str().unwrap();
            let Some(found) = self.get(&node(name)).await else { continue };
            if self.left.contains(name) || found["status"]["nodeInfo"]["kubeletVersion"] == NEW {
                continue;
            }
            assert_eq!(found["spec"]["unschedulable"], true, "{name} is changed while cordoned");
            for pod in self.list("/api/v1/pods").await {
                let meta = &pod["metadata"];
                let stays = !meta["annotations"]["kubernetes.io/config.mirror"].is_null()
                    || meta["ownerReferences"][0]["kind"] == "DaemonSet";
                assert!(stays || pod["spec"]["nodeName"] != name, "{name} is changed with {meta}");
            }
            let change = json!({"status": {"nodeInfo": {"kubeletVersion": NEW}}});
            self.patch(&format!("{}/status", node(name)), &change).await;
            let parts = "/api/v1/namespaces/kube-system/pods";
            let image = format!("registry.example/kube-apiserver:{NEW}");
            let change = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
            self.patch(&format!("{parts}/kube-apiserver-{name}"), &change).await;
        }
    }

    /// Kubelets end pods; the scheduler binds the database's to the machine of its volume.
    async fn kubelets(&self) {
        for pod in self.list("/api/v1/pods").await {
            let [namespace, name] = ["namespace", "name"].map(|at| pod["metadata"][at].as_str());
            let path = format!("/api/v1/namespaces/{}/pods/{}", namespace.unwrap(), name.unwrap());
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                self.end(&path).await;
            } else if pod["spec"]["nodeName"].is_null() {
                let volume = self.get("/api/v1/persistentvolumes/pv-demo").await.unwrap();
                let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
                let on = terms[0]["matchExpressions"][0]["values"][0].as_str().unwrap();
                let machine = self.get(&node(on)).await.unwrap();
                if machine["spec"]["unschedulable"] != true {
                    let binding = json!({
                        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
                        "target": {"apiVersion": "v1", "kind": "Node", "name": on},
                    });
                    self.make(&format!("{path}/binding"), &binding).await;
                    self.patch(&format!("{path}/status"), &runs()).await;
                    self.set_serves(true).await;
                }
            }
        }
    }
}
