//! The kustomize folder: the manifest as a base, and components that change it.

use navigator::{
    api::{GROUP, VERSIONS, names},
    manifest::{self, InstallSettings, InstallStore},
};
use serde_json::{Value, json};

use super::{additions, etcd, machines, objects};
use crate::scheme;

const MADE: &str =
    "# Written by `make golden` from tests/it/install/kustomize.rs; edit that, not this.\n";

/// Every file of the folder.
pub(super) fn files() -> Vec<(String, String)> {
    let mut files = vec![
        (
            "base/kustomization.yaml".to_owned(),
            kustomization(
                "Kustomization",
                &json!({
                    "resources": ["navigator.yaml"],
                }),
            ),
        ),
        (
            "base/navigator.yaml".to_owned(),
            manifest::manifest_yaml(&InstallSettings::default(), scheme()),
        ),
    ];
    let mut component = |name: &str, fields: &Value| {
        let text = kustomization("Component", fields);
        files.push((format!("components/{name}/kustomization.yaml"), text));
    };
    component("etcd", &etcd_component(None));
    component("etcd-tls", &etcd_component(Some(ETCD_SECRET)));
    component("kubernetes", &kubernetes_component());
    component("single-namespace", &single_namespace());
    component(machines::COMPONENT, &json!({"resources": ["objects.yaml"]}));
    for name in additions::ALL {
        let patches = if name == additions::CERT_MANAGER { certificate_patches() } else { vec![] };
        let mut fields = json!({"resources": ["objects.yaml"]});
        if !patches.is_empty() {
            fields["patches"] = json!(patches);
        }
        component(name, &fields);
    }
    let changing = [
        ("etcd", changes(&with_etcd(None)).added),
        ("etcd-tls", changes(&with_etcd(None)).added),
        ("kubernetes", changes(&with_kubernetes()).added),
        ("single-namespace", changes(&watching()).added),
        (machines::COMPONENT, machines::objects(names::IMAGE, names::NAMESPACE)),
    ];
    let adding = additions::ALL.map(|name| (name, additions::objects(name)));
    for (name, added) in changing.into_iter().chain(adding) {
        let mut text = MADE.to_owned();
        for object in added {
            text.push_str("---\n");
            text.push_str(&serde_yaml::to_string(&object).unwrap());
        }
        files.push((format!("components/{name}/objects.yaml"), text));
    }
    files
}

fn kustomization(kind: &str, fields: &Value) -> String {
    let version = if kind == "Component" { "v1alpha1" } else { "v1beta1" };
    let mut all = json!({"apiVersion": format!("kustomize.config.k8s.io/{version}"), "kind": kind});
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    format!("{MADE}{}", serde_yaml::to_string(&all).unwrap())
}

/// What a user of the etcd components brings: a ConfigMap with the URLs and a Secret with certificates.
const ETCD_CONFIG_MAP: &str = "navigator-etcd";
const ETCD_SECRET: &str = "navigator-etcd-tls";
const SERVERS: &str = "NAVIGATOR_ETCD_SERVERS";
/// What a user of the component for a single namespace brings: a ConfigMap with its name.
const WATCH_CONFIG_MAP: &str = "navigator-watch";
/// Stands in the place of that name.
const WATCHED: &str = "set-by-a-replacement";

/// The URLs are expanded from a variable.
fn with_etcd(secret: Option<&str>) -> InstallSettings {
    InstallSettings { store: etcd(&format!("$({SERVERS})"), secret), ..InstallSettings::default() }
}

fn with_kubernetes() -> InstallSettings {
    InstallSettings { store: InstallStore::Kubernetes, ..InstallSettings::default() }
}

fn watching() -> InstallSettings {
    InstallSettings { watch_namespace: Some(WATCHED.to_owned()), ..InstallSettings::default() }
}

/// What other settings change in the manifest.
struct Changes {
    gone: Vec<Value>,
    changed: Vec<(Value, Value)>,
    added: Vec<Value>,
}

fn changes(settings: &InstallSettings) -> Changes {
    let same = |one: &Value, other: &Value| {
        one["kind"] == other["kind"] && one["metadata"]["name"] == other["metadata"]["name"]
    };
    let (before, after) = (objects(&InstallSettings::default()), objects(settings));
    let mut changes = Changes { gone: vec![], changed: vec![], added: vec![] };
    for object in &before {
        match after.iter().find(|other| same(object, other)) {
            None => changes.gone.push(object.clone()),
            Some(other) if other != object => {
                changes.changed.push((object.clone(), other.clone()));
            }
            Some(_) => {}
        }
    }
    let is_new = |object: &Value| !before.iter().any(|other| same(object, other));
    changes.added = after.into_iter().filter(is_new).collect();
    changes
}

/// The component that turns the manifest into that of `--store etcd`.
fn etcd_component(secret: Option<&str>) -> Value {
    let mut changes = changes(&with_etcd(secret));
    for (_, deployment) in &mut changes.changed {
        assert_eq!(deployment["metadata"]["name"], names::APISERVER);
        let env = &mut deployment["spec"]["template"]["spec"]["containers"][0]["env"];
        env.as_array_mut().unwrap().push(json!({"name": SERVERS, "valueFrom": {
            "configMapKeyRef": {"name": ETCD_CONFIG_MAP, "key": "servers"},
        }}));
    }
    json!({"patches": patches(&changes), "resources": ["objects.yaml"]})
}

/// The component that turns the manifest into that of `--store kubernetes`.
fn kubernetes_component() -> Value {
    json!({"patches": patches(&changes(&with_kubernetes())), "resources": ["objects.yaml"]})
}

/// The component that turns it into that of `--watch-namespace`, with the name in a ConfigMap.
fn single_namespace() -> Value {
    let changes = changes(&watching());
    let binding = &changes.added[0]["metadata"]["name"];
    let variable = "spec.template.spec.containers.[name=controller].env.[name=NAVIGATOR_WATCH_NAMESPACE].value";
    json!({
        "patches": patches(&changes),
        "resources": ["objects.yaml"],
        "replacements": [{
            "source": {"kind": "ConfigMap", "name": WATCH_CONFIG_MAP, "fieldPath": "data.namespace"},
            "targets": [
                {
                    "select": {"kind": "RoleBinding", "name": binding},
                    "fieldPaths": ["metadata.namespace"],
                },
                {
                    "select": {"kind": "Deployment", "name": names::CONTROLLER},
                    "fieldPaths": [variable],
                },
            ],
        }],
    })
}

fn patches(changes: &Changes) -> Vec<Value> {
    let target =
        |object: &Value| json!({"kind": object["kind"], "name": object["metadata"]["name"]});
    let patch = |target: Value, patch: Value| json!({"target": target, "patch": serde_yaml::to_string(&patch).unwrap()});
    let changed = changes.changed.iter().map(|(before, after)| {
        let steps = serde_json::to_value(json_patch::diff(before, after)).unwrap();
        patch(target(before), steps)
    });
    let gone = changes.gone.iter().map(|object| {
        let mut whole = json!({"$patch": "delete"});
        for key in ["apiVersion", "kind"] {
            whole[key] = object[key].clone();
        }
        whole["metadata"] = json!({"name": object["metadata"]["name"]});
        patch(target(object), whole)
    });
    changed.chain(gone).collect()
}

/// What lets the API server serve the certificate of the component's Secret. Lists are appended to,
/// whatever other components made of them.
fn certificate_patches() -> Vec<Value> {
    let additions::Serving { args, mount, volume } = additions::serving(additions::CERTIFICATE);
    let pod = "/spec/template/spec";
    let container = format!("{pod}/containers/0");
    let add = |list: String, value: Value| json!({"op": "add", "path": format!("{list}/-"), "value": value});
    let mut steps: Vec<_> =
        args.into_iter().map(|arg| add(format!("{container}/args"), arg)).collect();
    steps.push(add(format!("{container}/volumeMounts"), mount));
    steps.push(add(format!("{pod}/volumes"), volume));
    let patch = |kind: &str, name: &str, steps: &Value| {
        let target = json!({"kind": kind, "name": name});
        json!({"target": target, "patch": serde_yaml::to_string(steps).unwrap()})
    };
    let mut patches = vec![patch("Deployment", names::APISERVER, &json!(steps))];
    let injected = format!("{}/{}", names::NAMESPACE, names::APISERVER);
    let annotate = json!([{
        "op": "add", "path": "/metadata/annotations", "value": {additions::INJECT: injected},
    }]);
    for version in VERSIONS {
        patches.push(patch("APIService", &format!("{version}.{GROUP}"), &annotate));
    }
    // The ServiceMonitor is of the component `monitoring`, where that stands before this one.
    let trusted = json!([{
        "op": "replace",
        "path": "/spec/endpoints/0/tlsConfig/ca/secret/name",
        "value": additions::CERTIFICATE,
    }]);
    patches.push(patch("ServiceMonitor", names::APISERVER, &trusted));
    patches
}
