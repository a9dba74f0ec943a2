//! The cluster manager in the chart and in the kustomize folder: it runs in the namespace of
//! Navigator's own install there, which somebody else makes.

use navigator::{
    api::names,
    manifest::{self, ClusterManagerSettings, HubSettings},
};
use serde_json::{Value, json};

use super::{
    chart::{all, logged},
    template::{block, document, either_document, optional, optional_word, when},
};
use crate::scheme;

/// Name of the component of kustomize.
pub(super) const COMPONENT: &str = "cluster-manager";
/// The values ask for the cluster manager.
pub(super) const ENABLED: &str = ".Values.clusterManager.enabled";

const HUB: &str = ".Values.clusterManager.hub.url";
/// What two parts add that neither adds alone.
const PAIR: &str =
    "and (.Values.clusterManager.registries) (.Values.clusterManager.allowTerminate)";

/// A part of the cluster manager that is off unless a value of the chart asks for it.
#[derive(Clone, Copy)]
struct Part {
    value: &'static str,
    turn_on: fn(&mut ClusterManagerSettings),
}

const PARTS: [Part; 8] = [
    Part {
        value: ".Values.clusterManager.enableClusterUpgrade",
        turn_on: |settings| settings.enable_cluster_upgrade = true,
    },
    Part {
        value: ".Values.clusterManager.registries",
        turn_on: |settings| settings.registries = true,
    },
    Part {
        value: ".Values.clusterManager.rbacSync",
        turn_on: |settings| settings.rbac_sync = true,
    },
    Part {
        value: ".Values.clusterManager.allowPrivilegedRoles",
        turn_on: |settings| settings.allow_privileged_roles = true,
    },
    Part { value: ".Values.clusterManager.plugins", turn_on: |settings| settings.plugins = true },
    Part { value: ".Values.clusterManager.agents", turn_on: |settings| settings.agents = true },
    Part {
        value: ".Values.clusterManager.allowTerminate",
        turn_on: |settings| settings.allow_terminate = true,
    },
    Part {
        value: HUB,
        turn_on: |settings| {
            let value = |name: &str| format!("{{{{ .Values.clusterManager.hub.{name} }}}}");
            settings.hub = Some(HubSettings {
                url: value("url"),
                organization_id: value("organizationId"),
                cluster_id: value("clusterId"),
            });
        },
    },
];

/// Objects of the cluster manager in this namespace with these parts, without the namespace.
fn objects_with(image: &str, namespace: &str, parts: &[Part]) -> Vec<Value> {
    let (image, namespace) = (image.to_owned(), namespace.to_owned());
    let mut settings =
        ClusterManagerSettings { image, namespace, ..ClusterManagerSettings::default() };
    for part in parts {
        (part.turn_on)(&mut settings);
    }
    let mut objects = manifest::cluster_manager_objects(&settings, scheme());
    objects.retain(|object| object["kind"] != "Namespace");
    objects
}

/// Objects of the cluster manager in this namespace, without the namespace and the parts that are off.
pub(super) fn objects(image: &str, namespace: &str) -> Vec<Value> {
    objects_with(image, namespace, &[])
}

/// The template of the chart.
pub(super) fn template(image: &str) -> String {
    let with = |parts: &[Part]| objects_with(image, "{{ .Release.Namespace }}", parts);
    let (plain, mut alone) = (with(&[]), Vec::from(PARTS.map(|part| (part.value, with(&[part])))));
    let without_hub = with(&PARTS[..PARTS.len() - 1]);
    alone.push((PAIR, without_hub.clone()));
    let mut text = String::new();
    for mut object in with(&PARTS) {
        let is_for_people = object["metadata"]["labels"][names::label::K8S_COMPONENT] == "users";
        let mut conditions = vec![ENABLED];
        match same_object(&plain, &object) {
            Some(without) => mark_parts(&mut object, without, &alone),
            None => conditions.push(part_of(&alone, |all| same_object(all, &object).is_some())),
        }
        match object["kind"].as_str().unwrap() {
            "ClusterRole" if is_for_people => {
                conditions.extend([".Values.rbac.create", ".Values.rbac.aggregate"]);
            }
            "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => {
                conditions.push(".Values.rbac.create");
            }
            "PodDisruptionBudget" => conditions.push(".Values.podDisruptionBudget.enabled"),
            // `helm uninstall` leaves the definition, and what machines were upgraded to.
            "CustomResourceDefinition" => {
                object["metadata"]["annotations"] = json!({"helm.sh/resource-policy": "keep"});
            }
            "Deployment" => {
                // With a hub it has a volume, too.
                let mut other = same_object(&without_hub, &object).unwrap().clone();
                mark_parts(&mut other, same_object(&plain, &object).unwrap(), &alone);
                for object in [&mut object, &mut other] {
                    let spec = &mut object["spec"]["template"]["spec"];
                    spec["securityContext"] = block("securityContext", "podSecurityContext");
                    pod(spec);
                }
                let condition = all(&conditions);
                text.push_str(&either_document(&object, &other, HUB, condition.as_deref()));
                continue;
            }
            // Its user is root, whatever the values say of others.
            "DaemonSet" => pod(&mut object["spec"]["template"]["spec"]),
            _ => {}
        }
        text.push_str(&document(&object, all(&conditions).as_deref()));
    }
    text
}

fn same_object<'a>(all: &'a [Value], object: &Value) -> Option<&'a Value> {
    let id = |one: &Value| (one["kind"].clone(), one["metadata"]["name"].clone());
    all.iter().find(|one| id(one) == id(object))
}

/// The value of the one part whose objects these are.
fn part_of(alone: &[(&'static str, Vec<Value>)], has: impl Fn(&[Value]) -> bool) -> &'static str {
    let mut found = alone.iter().filter(|(_, objects)| has(objects)).map(|(value, _)| *value);
    let value = found.next().unwrap();
    assert!(found.next().is_none_or(|other| other == PAIR), "several parts add it");
    value
}

/// Puts under its value what a part adds to the object's rules or arguments.
fn mark_parts(object: &mut Value, without: &Value, alone: &[(&'static str, Vec<Value>)]) {
    for place in ["/rules", "/spec/template/spec/containers/0/args"] {
        let entries = |object: &Value| object.pointer(place).and_then(Value::as_array).cloned();
        let (Some(plain), Some(mut marked)) = (entries(without), entries(object)) else { continue };
        for entry in marked.iter_mut().filter(|entry| !plain.contains(entry)) {
            let has = |all: &[Value]| {
                let same = same_object(all, object).and_then(entries);
                same.is_some_and(|entries| entries.contains(entry))
            };
            *entry = when(part_of(alone, has), entry);
        }
        *object.pointer_mut(place).unwrap() = marked.into();
    }
}

/// What the values say of every pod of Navigator's own.
fn pod(spec: &mut Value) {
    spec["imagePullSecrets"] = optional("imagePullSecrets", "imagePullSecrets");
    let container = &mut spec["containers"][0];
    container["imagePullPolicy"] = optional_word("imagePullPolicy", "image.pullPolicy");
    container["securityContext"] = block("securityContext", "securityContext");
    container["env"].as_array_mut().unwrap().extend(logged());
}
