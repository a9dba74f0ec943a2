//! The cluster manager in the chart and in the kustomize folder: it runs in the namespace of
//! Navigator's own install there, which somebody else makes.

use navigator::{
    api::names,
    manifest::{self, ClusterManagerSettings, HubSettings},
};
use serde_json::{Value, json};

use super::{
    chart::{all, logged},
    find,
    template::{block, document, either_document, optional, optional_word, when, when_all},
};
use crate::scheme;

/// Name of the component of kustomize.
pub(super) const COMPONENT: &str = "cluster-manager";
/// The values ask for the cluster manager.
pub(super) const ENABLED: &str = ".Values.clusterManager.enabled";

/// Objects of the cluster manager in this namespace, without the namespace.
pub(super) fn objects(image: &str, namespace: &str, enable_cluster_upgrade: bool) -> Vec<Value> {
    let (image, namespace) = (image.to_owned(), namespace.to_owned());
    let settings = ClusterManagerSettings {
        image,
        namespace,
        enable_cluster_upgrade,
        ..ClusterManagerSettings::default()
    };
    let mut objects = manifest::cluster_manager_objects(&settings, scheme());
    objects.retain(|object| object["kind"] != "Namespace");
    objects
}

const REGISTRIES: &str = ".Values.clusterManager.registries";
const HUB: &str = ".Values.clusterManager.hub.url";
const TERMINATE: &str = ".Values.clusterManager.allowTerminate";

/// Objects of the chart with these switches on.
fn switched(image: &str, registries: bool, hub: bool, allow_terminate: bool) -> Vec<Value> {
    let value = |name: &str| format!("{{{{ .Values.clusterManager.hub.{name} }}}}");
    let hub = hub.then(|| HubSettings {
        url: value("url"),
        organization_id: value("organizationId"),
        cluster_id: value("clusterId"),
    });
    let settings = ClusterManagerSettings {
        image: image.to_owned(),
        namespace: "{{ .Release.Namespace }}".to_owned(),
        enable_cluster_upgrade: true,
        registries,
        hub,
        allow_terminate,
    };
    let mut objects = manifest::cluster_manager_objects(&settings, scheme());
    objects.retain(|object| object["kind"] != "Namespace");
    objects
}

/// Objects with switches on, when that is, and the objects with one switch less.
struct RightsSwitch<'a> {
    condition: &'a str,
    with: &'a [Value],
    without: [&'a [Value]; 2],
}

/// The template of the chart.
pub(super) fn template(image: &str) -> String {
    let mut text = String::new();
    let of = |registries, hub, allow_terminate| switched(image, registries, hub, allow_terminate);
    let none = of(false, false, false);
    let (registries, hub, terminate) =
        (of(true, false, false), of(false, true, false), of(false, false, true));
    let both = of(true, false, true);
    let ends = all(&[REGISTRIES, TERMINATE]).unwrap();
    fn switch<'a>(
        condition: &'a str,
        with: &'a [Value],
        without: [&'a [Value]; 2],
    ) -> RightsSwitch<'a> {
        RightsSwitch { condition, with, without }
    }
    let switches = [
        switch(REGISTRIES, &registries, [&none, &none]),
        switch(HUB, &hub, [&none, &none]),
        switch(TERMINATE, &terminate, [&none, &none]),
        switch(&ends, &both, [&registries, &terminate]),
    ];
    for mut object in none.clone() {
        let is_for_people = object["metadata"]["labels"][names::label::K8S_COMPONENT] == "users";
        let mut conditions = vec![ENABLED];
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
                let on = |hub| {
                    let objects = of(true, hub, true);
                    let mut object = find(&objects, "Deployment", names::COORDINATOR).clone();
                    deployment(&mut object);
                    object
                };
                text.push_str(&either_document(&on(true), &on(false), HUB, Some(ENABLED)));
                continue;
            }
            _ => {}
        }
        let (kind, name) = (object["kind"].clone(), object["metadata"]["name"].clone());
        if name == names::COORDINATOR
            && let Some(rules) = object["rules"].as_array_mut()
        {
            let rules_of = |objects: &[Value]| {
                let role = find(objects, kind.as_str().unwrap(), names::COORDINATOR);
                role["rules"].as_array().unwrap().clone()
            };
            for RightsSwitch { condition, with, without } in &switches {
                let known = without.map(|all| rules_of(all)).concat();
                let mut more = rules_of(with);
                more.retain(|rule| !known.contains(rule));
                if !more.is_empty() {
                    rules.push(when_all(condition, &more));
                }
            }
        }
        text.push_str(&document(&object, all(&conditions).as_deref()));
    }
    text
}

fn deployment(object: &mut Value) {
    let spec = &mut object["spec"]["template"]["spec"];
    spec["securityContext"] = block("securityContext", "podSecurityContext");
    spec["imagePullSecrets"] = optional("imagePullSecrets", "imagePullSecrets");
    let container = &mut spec["containers"][0];
    container["imagePullPolicy"] = optional_word("imagePullPolicy", "image.pullPolicy");
    container["securityContext"] = block("securityContext", "securityContext");
    for arg in container["args"].as_array_mut().unwrap() {
        for (flag, condition) in [
            ("--enable-cluster-upgrade", ".Values.clusterManager.enableClusterUpgrade"),
            ("--registries", REGISTRIES),
            ("--allow-terminate", TERMINATE),
        ] {
            if arg == flag {
                *arg = when(condition, arg);
            }
        }
    }
    container["env"].as_array_mut().unwrap().extend(logged());
}
