//! Few defaults are written, and each as promised.

use navigator::{
    api::{NAVIGATOR, V1BETA1},
    machinery::decode::ParsedBody,
};
use serde_json::{Value, json};

use crate::scheme;

/// The spec as it is stored, written over `stored`.
fn defaulted(spec: &Value, stored: Option<&Value>) -> Value {
    let kind = scheme().by_kind("CassandraCluster").unwrap();
    let decode = |spec: &Value| {
        let body = json!({
            "apiVersion": NAVIGATOR.api_version(V1BETA1), "kind": kind.kind(),
            "metadata": {"name": "c"}, "spec": spec,
        });
        kind.decode(V1BETA1, ParsedBody::from(body), stored).unwrap().hub
    };
    let once = decode(spec);
    assert_eq!(decode(&once["spec"]), once, "defaulting twice equals once");
    once["spec"].clone()
}

#[test]
fn only_the_promised_defaults_are_written() {
    assert_eq!(
        defaulted(
            &json!({"version": "5.0.6", "image": {"repository": "r", "tag": ""}, "jvm": {},
                "services": {}, "updateStrategy": {}, "securityContext": {},
                "podTemplate": {"metadata": {}, "spec": {"nodeSelector": {}, "schedulerName": ""}},
                "nodePools": [{"name": "a", "resources": {}, "persistence": {"retention": {}}}]}),
            None
        ),
        json!({"version": "5.0.6", "image": {"repository": "r", "pullPolicy": "IfNotPresent"},
            "nodePools": [{"name": "a", "replicas": 1, "rack": "a", "persistence": {},
                "datacenter": "navigator-default-datacenter"}]})
    );
}

#[test]
fn absent_replicas_keep_the_stored_value_by_pool_name() {
    let stored = json!({"metadata": {"name": "c"}, "spec": {"nodePools": [
        {"name": "a", "replicas": 5}, {"name": "b", "replicas": 0}]}});
    let spec = defaulted(
        &json!({"nodePools": [{"name": "b"}, {"name": "new"}, {"name": "a"}]}),
        Some(&stored),
    );
    let replicas = |i: usize| spec["nodePools"][i]["replicas"].clone();
    assert_eq!([replicas(0), replicas(1), replicas(2)], [json!(0), json!(1), json!(5)]);
}
