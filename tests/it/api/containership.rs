//! The kinds of the cluster manager: their definitions as files, and what a real kube-apiserver makes
//! of them.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use http::Method;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use navigator::api::containership::{
    AuthorizationRole, AuthorizationRoleBinding, ClusterLabel, ClusterUpgrade, KindDefinition,
    NodePoolLabel, Plugin, Registry, User, kind_definitions,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    golden,
    storage::kube_apiserver::{self, Server},
};

const UPGRADES: &str =
    "/apis/provision.containership.io/v3/namespaces/containership-core/clusterupgrades";
const USERS: &str = "/apis/containership.io/v3/namespaces/containership-core/users";

/// What the program holds of the kinds is what kube derives from their types.
#[test]
fn definitions_are_as_released() {
    let derived = [
        AuthorizationRole::crd(),
        AuthorizationRoleBinding::crd(),
        Plugin::crd(),
        Registry::crd(),
        ClusterLabel::crd(),
        ClusterUpgrade::crd(),
        NodePoolLabel::crd(),
        User::crd(),
    ];
    for definition in &derived {
        let definition = tidied(definition);
        let name = definition.metadata.name.clone().unwrap();
        let text = serde_yaml::to_string(&definition).unwrap();
        golden::check_file(&format!("src/api/containership/definitions/{name}.yaml"), &text);
    }
    let names = |all: Vec<String>| all.into_iter().collect::<BTreeSet<_>>();
    let held = kind_definitions().iter().map(|one| one.name.clone()).collect();
    let derived = derived.iter().filter_map(|one| one.metadata.name.clone()).collect();
    assert_eq!(names(held), names(derived));
}

/// Takes null and the margins of doc comments out of the schemas. kube-apiserver drops a null
/// where a field may not be null, so what Go's programs write for "absent" is absent, for rules too.
fn tidied(definition: &CustomResourceDefinition) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(definition).unwrap();
    tidy(&mut value);
    serde_json::from_value(value).unwrap()
}

fn tidy(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|field, value| field != "nullable" || !value.is_boolean());
            if let Some(Value::Array(values)) = fields.get_mut("enum") {
                values.retain(|value| !value.is_null());
            }
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// Defines the kinds, and waits until they are served.
pub(crate) async fn define(server: &Server) {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for definition in kind_definitions() {
        let (status, said) = server.ask(Method::POST, path, &definition.manifest).await;
        assert!(matches!(status, 201 | 409), "{said}");
    }
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "containership-core"},
    });
    let (status, said) = server.ask(Method::POST, "/api/v1/namespaces", &namespace).await;
    assert!(matches!(status, 201 | 409), "{said}");
    let deadline = Instant::now() + Duration::from_secs(60);
    for definition in kind_definitions() {
        let KindDefinition { group, plural, .. } = definition;
        let kind = format!("/apis/{group}/v3/namespaces/containership-core/{plural}");
        while server.ask(Method::GET, &kind, &Value::Null).await.0 != 200 {
            assert!(Instant::now() < deadline, "{kind} is not served");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

fn upgrade(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "provision.containership.io/v3", "kind": "ClusterUpgrade",
        "metadata": {"name": name}, "spec": spec,
    })
}

/// Posts as kubectl does: a field that the schema lacks is refused.
async fn create(server: &Server, object: &Value) -> (u16, Value) {
    server.ask(Method::POST, &format!("{UPGRADES}?fieldValidation=Strict"), object).await
}

#[tokio::test]
async fn upgrades_of_2019_are_accepted_and_bad_ones_refused() {
    let server = kube_apiserver::shared();
    define(server).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/containership");
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let object: Value = serde_yaml::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        if object["kind"] != "ClusterUpgrade" {
            continue;
        }
        let (status, said) = create(server, &object).await;
        assert_eq!(status, 201, "{}: {said}", path.display());
        assert!(
            said.get("status").is_none(),
            "what is written beside the spec is no status: {said}"
        );
    }

    let selector = |operator: &str, value: Value| {
        json!({"targetVersion": "v1.34.4", "labelSelector": [
            {"label": "pool", "operator": operator, "value": value},
        ]})
    };
    let with = |fields: Value| {
        let mut spec = json!({"targetVersion": "v1.34.4"});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        spec
    };
    let digest = "0".repeat(64);
    let artifacts = json!({
        "baseURL": "http://dl.k8s.io", "sha256": {"kubelet": digest, "kubeadm": digest},
    });
    let cases = [
        (json!({}), "targetVersion must be a release of Kubernetes"),
        (json!({"targetVersion": "1.34.4"}), "targetVersion must be a release of Kubernetes"),
        (json!({"targetVersion": "v1.34"}), "targetVersion must be a release of Kubernetes"),
        (with(json!({"type": "os"})), "Unsupported value: \"os\""),
        (selector("~", json!(["a"])), "Unsupported value: \"~\""),
        (selector("=", json!(["a", "b"])), "operators =, ==, !=, gt and lt take one value"),
        (selector("==", json!(null)), "operators =, ==, !=, gt and lt take one value"),
        (selector("in", json!([])), "operators in and notin take one value or more"),
        (selector("exists", json!(["a"])), "operators exists and ! take no value"),
        (selector("gt", json!(["many"])), "operators gt and lt compare with a whole number"),
        (with(json!({"maxUnavailable": 0})), "spec.maxUnavailable"),
        (with(json!({"nodeTimeoutSeconds": -1})), "spec.nodeTimeoutSeconds"),
        (with(json!({"drain": {"mode": "Force"}})), "Unsupported value: \"Force\""),
        (with(json!({"drain": {"timeoutSeconds": 0}})), "spec.drain.timeoutSeconds"),
        (with(json!({"window": {"start": "24:00", "end": "02:00"}})), "spec.window.start"),
        (
            with(json!({"window": {"start": "02:00", "end": "02:00"}})),
            "start and end of a window must differ",
        ),
        (
            with(
                json!({"window": {"days": ["Friday", "Friday"], "start": "02:00", "end": "03:00"}}),
            ),
            "Duplicate value",
        ),
        (with(json!({"runner": {"artifacts": artifacts}})), "baseURL must begin with https://"),
        (with(json!({"force": true})), "unknown field \"spec.force\""),
    ];
    for (index, (spec, says)) in cases.iter().enumerate() {
        let (status, said) = create(server, &upgrade(&format!("bad-{index}"), spec)).await;
        let message = said["message"].as_str().unwrap_or_default();
        assert!(
            matches!(status, 400 | 422) && message.contains(says),
            "{spec}: {status} {message}"
        );
    }
    let (_, all) = server.ask(Method::GET, UPGRADES, &Value::Null).await;
    assert_eq!(
        all["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|item| { item["metadata"]["name"].as_str().unwrap().starts_with("bad-") })
            .count(),
        0
    );
}

#[tokio::test]
async fn an_accepted_upgrade_is_immutable_but_for_paused_and_failure_policy() {
    let server = kube_apiserver::shared();
    define(server).await;
    let spec = json!({"targetVersion": "v1.34.4", "window": {"start": "01:00", "end": "02:00"}});
    let (status, said) = create(server, &upgrade("accepted", &spec)).await;
    assert_eq!(status, 201, "{said}");
    // What is not said is filled in, so that it stays as it was when the object was made.
    for (field, value) in [
        ("type", json!("kubernetes")),
        ("nodeTimeoutSeconds", json!(600)),
        ("maxUnavailable", json!(1)),
        ("failurePolicy", json!("Stop")),
    ] {
        assert_eq!(said["spec"][field], value, "{field}");
    }
    assert_eq!(said["spec"]["drain"]["timeoutSeconds"], json!(3600));

    let path = format!("{UPGRADES}/accepted");
    let status_path = format!("{path}/status");
    let patch = |spec: Value| json!({"spec": spec});
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    // Until it is accepted it may be changed.
    for before in ["Pending", "Preflight"] {
        let (status, said) = server.ask(Method::PATCH, &status_path, &phase(before)).await;
        assert_eq!(status, 200, "{said}");
        let change = patch(json!({"maxUnavailable": 2}));
        let (status, said) = server.ask(Method::PATCH, &path, &change).await;
        assert_eq!(status, 200, "{said}");
        let (status, _) =
            server.ask(Method::PATCH, &path, &patch(json!({"maxUnavailable": 1}))).await;
        assert_eq!(status, 200);
    }
    let (status, said) = server.ask(Method::PATCH, &status_path, &phase("InProgress")).await;
    assert_eq!(status, 200, "{said}");
    for fields in [
        json!({"targetVersion": "v1.34.5"}),
        json!({"type": "reboot"}),
        json!({"maxUnavailable": 2}),
        json!({"nodeTimeoutSeconds": 60}),
        json!({"labelSelector": [{"label": "a", "operator": "exists"}]}),
        json!({"window": null}),
        json!({"window": {"end": "03:00"}}),
        json!({"drain": {"mode": "Never"}}),
        json!({"runner": {"mode": "Kubeadm"}}),
        json!({"gates": {"blockingPodSelectors": []}}),
        json!({"allowDowngrade": true}),
        json!({"ttlSecondsAfterFinished": 1}),
    ] {
        let (status, said) = server.ask(Method::PATCH, &path, &patch(fields.clone())).await;
        let message = said["message"].as_str().unwrap_or_default();
        assert_eq!(status, 422, "{fields}: {said}");
        assert!(message.contains("spec of an accepted upgrade is immutable"), "{message}");
    }
    for fields in [
        json!({"paused": true}),
        json!({"failurePolicy": "Continue"}),
        // An old program's status is ignored.
        json!({"status": {"clusterStatus": "Failed"}}),
    ] {
        let (status, said) = server.ask(Method::PATCH, &path, &patch(fields)).await;
        assert_eq!(status, 200, "{said}");
        assert_eq!(said["status"]["phase"], "InProgress");
    }
    // Status is a subresource: an edit of the object does not reach it.
    let (_, said) = server.ask(Method::PATCH, &path, &phase("Success")).await;
    assert_eq!(said["status"]["phase"], "InProgress");
}

#[tokio::test]
async fn users_of_2019_are_accepted_and_endless_ones_refused() {
    let server = kube_apiserver::shared();
    define(server).await;
    let path = format!("{USERS}?fieldValidation=Strict");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/containership");
    for file in ["user-2019.yaml", "user-2019-written.yaml"] {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        let object: Value = serde_yaml::from_str(&text).unwrap();
        let (status, said) = server.ask(Method::POST, &path, &object).await;
        assert_eq!(status, 201, "{file}: {said}");
        assert_eq!(said["spec"]["id"], object["spec"]["id"], "{file}");
    }
    let user = |spec: Value| {
        json!({
            "apiVersion": "containership.io/v3", "kind": "User",
            "metadata": {"name": "bad"}, "spec": spec,
        })
    };
    let key = |length| json!({"key": "x".repeat(length)});
    for (spec, says) in [
        (json!({"ssh_keys": [{"id": "1"}]}), "spec.ssh_keys[0].key: Required value"),
        (json!({"ssh_keys": [key(2 << 20)]}), "spec.ssh_keys[0].key"),
        (json!({"ssh_keys": vec![key(1); 101]}), "spec.ssh_keys"),
        (json!({"sshKeys": []}), "unknown field \"spec.sshKeys\""),
    ] {
        let (status, said) = server.ask(Method::POST, &path, &user(spec)).await;
        let message = said["message"].as_str().unwrap_or_default();
        assert!(
            matches!(status, 400 | 422) && message.contains(says),
            "{says}: {status} {message}"
        );
    }
}
