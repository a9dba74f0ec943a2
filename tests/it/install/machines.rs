//! The cluster manager in the chart and in the kustomize folder: it runs in the namespace of
//! Navigator's own install there, which somebody else makes.

use navigator::{
    api::names,
    manifest::{self, ClusterManagerSettings},
};
use serde_json::{Value, json};

use super::{
    chart::{all, logged},
    template::{block, document, optional, optional_word, when},
};
use crate::scheme;

/// Name of the component of kustomize.
pub(super) const COMPONENT: &str = "cluster-manager";
/// The values ask for the cluster manager.
pub(super) const ENABLED: &str = ".Values.clusterManager.enabled";

/// Objects of the cluster manager in this namespace, without the namespace.
pub(super) fn objects(image: &str, namespace: &str, enable_cluster_upgrade: bool) -> Vec<Value> {
    let settings = ClusterManagerSettings {
        image: image.to_owned(),
        namespace: namespace.to_owned(),
        enable_cluster_upgrade,
        ..ClusterManagerSettings::default()
    };
    let mut objects = manifest::cluster_manager_objects(&settings, scheme());
    objects.retain(|object| object["kind"] != "Namespace");
    objects
}

/// The template of the chart.
pub(super) fn template(image: &str) -> String {
    let mut text = String::new();
    for mut object in objects(image, "{{ .Release.Namespace }}", true) {
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
            "Deployment" => deployment(&mut object),
            _ => {}
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
        if arg == "--enable-cluster-upgrade" {
            *arg = when(".Values.clusterManager.enableClusterUpgrade", arg);
        }
    }
    container["env"].as_array_mut().unwrap().extend(logged());
}
