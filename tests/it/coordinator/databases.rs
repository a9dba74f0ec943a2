//! Databases, as objects alone: Pilots and clusters are CustomResources here. What matters is what the
//! coordinator does with them; `tests/e2e/machines_job.py` has the real ones.

use serde_json::json;

use super::fleet::Fleet;

pub(super) const PILOTS: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/shop/pilots";
pub(super) const CLUSTERS: &str =
    "/apis/navigator.jetstack.io/v1beta1/namespaces/shop/cassandraclusters";
const LEAVE: &str = "navigator.jetstack.io/leave";

impl Fleet {
    /// Defines the kinds of databases, as far as the coordinator reads them.
    pub(super) async fn define_databases(&self) {
        let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        for (kind, plural, singular) in [
            ("Pilot", "pilots", "pilot"),
            ("CassandraCluster", "cassandraclusters", "cassandracluster"),
        ] {
            let definition = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{plural}.navigator.jetstack.io")},
                "spec": {
                    "group": "navigator.jetstack.io", "scope": "Namespaced",
                    "names": {"kind": kind, "plural": plural, "singular": singular},
                    "versions": [{
                        "name": "v1beta1", "served": true, "storage": true,
                        "schema": {"openAPIV3Schema": any},
                    }],
                },
            });
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            self.make(path, &definition).await;
        }
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
        self.make("/api/v1/namespaces", &namespace).await;
        for path in [PILOTS, CLUSTERS, "/api/v1/namespaces/kube-system"] {
            self.until(path, async |fleet| fleet.get(path).await.ok_or("not served".into())).await;
        }
    }

    /// Makes a database of one node, whose volume is on this machine.
    pub(super) async fn make_database(&self, on: &str) {
        let cluster = json!({
            "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "CassandraCluster",
            "metadata": {"name": "demo"},
            "spec": {"nodePools": [{"name": "a", "replicas": 1}]},
        });
        self.make(CLUSTERS, &cluster).await;
        self.set_serves(true).await;
        let pilot = json!({
            "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
            "metadata": {"name": "cass-demo-a-0"},
            "spec": {"clusterRef": {"kind": "CassandraCluster", "name": "demo"}},
        });
        self.make(PILOTS, &pilot).await;
        let only = json!({"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [on]},
        ]}]});
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-demo"},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "local", "local": {"path": "/data"},
                "nodeAffinity": {"required": only},
                "claimRef": {"namespace": "shop", "name": "data-demo"},
            },
        });
        self.make("/api/v1/persistentvolumes", &volume).await;
        self.make_member(Some(on)).await;
    }

    pub(super) async fn make_member(&self, on: Option<&str>) {
        let meta = json!({
            "name": "cass-demo-a-0", "namespace": "shop",
            "labels": {
                "navigator.jetstack.io/has-pilot": "",
                "navigator.jetstack.io/cassandra-cluster-name": "demo",
            },
        });
        let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data-demo"}});
        self.make_pod(&meta, on, "cassandra", &[claim]).await;
    }

    pub(super) async fn set_serves(&self, serves: bool) {
        let status = if serves { "True" } else { "False" };
        let change = json!({"status": {
            "readyReplicas": u8::from(serves),
            "conditions": [{
                "type": "Drainable", "status": status, "reason": "PeersUp", "message": "a node is away",
            }],
        }});
        self.patch(&format!("{CLUSTERS}/demo"), &change).await;
    }

    /// Navigator's controller, which lets a node leave that is asked to.
    pub(super) async fn controller(&self) {
        for pilot in self.list(PILOTS).await {
            let name = pilot["metadata"]["name"].as_str().unwrap();
            let asked = pilot["metadata"]["annotations"][LEAVE].as_str().unwrap_or_default();
            let path = format!("/api/v1/namespaces/shop/pods/{name}");
            let Some(pod) = self.get(&path).await else { continue };
            if asked.split(' ').next() == pod["metadata"]["uid"].as_str() {
                self.set_serves(false).await;
                self.end(&path).await;
                self.make_member(None).await;
            }
        }
    }
}
