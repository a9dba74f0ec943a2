//! What kube-apiserver takes of the kinds, and what it refuses.

use std::{fs, path::Path};

use http::Method;
use serde_json::{Value, json};

use super::cluster::Cluster;

#[tokio::test]
async fn objects_of_2019_are_accepted_and_bad_ones_refused() {
    let cluster = Cluster::new("core-kinds").await;
    let post = async |plural: &str, object: &Value| {
        let path = format!("{}?fieldValidation=Strict", cluster.kind(plural));
        cluster.ask(Method::POST, &path, object).await
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/containership");
    for (file, plural) in [
        ("registry-2019.yaml", "registries"),
        ("registry-2019-written.yaml", "registries"),
        ("clusterlabel-2019.yaml", "clusterlabels"),
        ("nodepoollabel-2019.yaml", "nodepoollabels"),
    ] {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        let mut object: Value = serde_yaml::from_str(&text).unwrap();
        object["metadata"]["namespace"] = cluster.core.clone().into();
        let (status, said) = post(plural, &object).await;
        assert_eq!(status, 201, "{file}: {said}");
        assert_eq!(said["spec"]["id"], object["spec"]["id"], "{file}");
    }
    let (_, registry) = cluster
        .ask(Method::GET, &format!("{}/registry1", cluster.kind("registries")), &Value::Null)
        .await;
    assert_eq!(registry["spec"]["excludedNamespaces"], json!(["kube-system"]));
    assert_eq!(registry["spec"]["serviceAccounts"], json!(["containership"]));

    let key = |key: &str| json!({"key": key, "value": "v"});
    let pair = json!({"username": "u"});
    let cases = [
        ("clusterlabels", key("kubernetes.io/hostname"), "belong to Kubernetes"),
        ("clusterlabels", key("node-role.kubernetes.io/control-plane"), "belong to Kubernetes"),
        ("clusterlabels", key("x.k8s.io/a"), "belong to Kubernetes"),
        ("clusterlabels", key("containership.io/node-pool-id"), "keys must begin with"),
        ("clusterlabels", key("a b"), "must be the key of a label"),
        ("clusterlabels", key("a/b/c"), "must be the key of a label"),
        ("clusterlabels", json!({"key": "a", "value": "a b"}), "must be the value of a label"),
        ("clusterlabels", json!({"key": "a", "value": "x".repeat(64)}), "spec.value"),
        ("clusterlabels", json!({"value": "v"}), "spec.key: Required value"),
        ("nodepoollabels", key("team"), "spec.node_pool_id: Required value"),
        ("nodepoollabels", json!({"key": "k8s.io/a", "node_pool_id": "p"}), "belong to Kubernetes"),
        (
            "registries",
            json!({"credentials": pair, "credentialsSecretRef": {"name": "mine"}}),
            "credentialsSecretRef can name no other",
        ),
        ("registries", json!({"credentials": {"a b": "c"}}), "keys of credentials must be"),
        ("registries", json!({"credentialsSecretRef": {"name": ""}}), "credentialsSecretRef.name"),
        ("registries", json!({"excludedNamespaces": ["a", "a"]}), "Duplicate value"),
        ("registries", json!({"server": "a"}), "unknown field \"spec.server\""),
    ];
    for (index, (plural, spec, says)) in cases.iter().enumerate() {
        let (group, kind) = match *plural {
            "clusterlabels" => ("containership.io", "ClusterLabel"),
            "nodepoollabels" => ("provision.containership.io", "NodePoolLabel"),
            _ => ("containership.io", "Registry"),
        };
        let object = json!({
            "apiVersion": format!("{group}/v3"), "kind": kind,
            "metadata": {"name": format!("bad-{index}")}, "spec": spec,
        });
        let (status, said) = post(plural, &object).await;
        let message = said["message"].as_str().unwrap_or_default();
        assert!(
            matches!(status, 400 | 422) && message.contains(says),
            "{spec}: {status} {message}"
        );
    }
}
