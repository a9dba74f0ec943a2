//! The kinds of the cluster manager: how machines are upgraded, which labels they bear, whose SSH keys
//! stand on them, who pulls images from where, who may do what, and what is applied together, in the
//! groups that Containership's cluster manager had in 2019.
//!
//! kube-apiserver serves these kinds, by CustomResourceDefinitions, and not Navigator's own API
//! server: what drains and upgrades machines must not stand on a pod of one of them. Manifests of
//! 2019 are accepted: fields that they may hold are known, and those without a meaning any more are
//! ignored.

mod authorization;
mod cluster_upgrade;
mod label;
mod label_requirement;
mod plugin;
mod registry;
mod upgrade_report;
mod upgrade_status;
mod user;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use serde_json::Value;

pub use authorization::*;
pub use cluster_upgrade::*;
pub use label::*;
pub use label_requirement::{LabelOperator, LabelRequirement, select};
pub use plugin::*;
pub use registry::*;
pub use upgrade_report::*;
pub use upgrade_status::*;
pub use user::*;

/// Group of the kinds about people, registries and the whole cluster.
pub const GROUP: &str = "containership.io";
/// Group of the kinds about machines.
pub const PROVISION_GROUP: &str = "provision.containership.io";
/// Group of the kinds about rights.
pub const AUTH_GROUP: &str = "auth.containership.io";

/// Names that are a contract of the cluster manager: annotations, labels, taints and finalizers.
pub mod name {
    /// Annotation on a Node of Kubernetes: name of the ClusterUpgrade that cordoned it. Whoever takes
    /// the annotation off takes the cordon over.
    pub const CORDONED_BY: &str = "containership.io/cordoned-by";
    /// Annotation on a Node: name of the ClusterUpgrade that put the taint [`UPGRADE_PENDING`] on it.
    pub const TAINTED_BY: &str = "containership.io/tainted-by";
    /// Taint `PreferNoSchedule` on Nodes that a ClusterUpgrade will still come to, so that pods which
    /// are evicted go to machines that are done.
    pub const UPGRADE_PENDING: &str = "containership.io/upgrade-pending";
    /// Annotation on a ClusterUpgrade that failed: the machines that failed are tried again. On a Plugin:
    /// the version that failed is. The value is any text, and tells one request from the next.
    pub const RETRY: &str = "containership.io/retry";
    /// Annotation on a Node: what its agent says, an [`super::AgentReport`] as JSON.
    pub const AGENT: &str = "containership.io/agent";
    /// Annotation on a Node: what its agent says of upgrades, an [`super::UpgradeReport`] as JSON.
    pub const UPGRADE: &str = "containership.io/upgrade";
    /// Label on a Node: its pool.
    pub const NODE_POOL_ID: &str = "containership.io/node-pool-id";
    /// What the keys of labels begin with that ClusterLabels and NodePoolLabels alone put on Nodes.
    pub const LABEL_PREFIXES: [&str; 2] =
        ["cluster.containership.io/", "nodepool.containership.io/"];
    /// Label on Secrets by which images are pulled: uid of the Registry that they are of. Whoever takes
    /// the label off takes the Secret over.
    pub const REGISTRY: &str = "containership.io/registry";
    /// Label on the Secret into which the credentials of a Registry were moved: uid of the Registry.
    pub const REGISTRY_CREDENTIALS: &str = "containership.io/registry-credentials";
    /// Annotation on Secrets by which images are pulled: digest of what they hold.
    pub const REGISTRY_DIGEST: &str = "containership.io/registry-digest";
    /// Annotation on a ServiceAccount: names of the Secrets that Registries had it pull with.
    pub const REGISTRY_SECRETS: &str = "containership.io/registry-secrets";
    /// Annotation `disabled` on a namespace: no Registry is meant for it.
    pub const REGISTRY_SYNC: &str = "containership.io/registry-sync";
    /// Finalizer of a Registry, held while a copy of its credentials may be left.
    pub const REGISTRY_FINALIZER: &str = "containership.io/registry";
    /// ServiceAccount that is made in each namespace that a Registry is meant for.
    pub const SERVICE_ACCOUNT: &str = "containership";
    /// Label on ClusterRoles and bindings: uid of the AuthorizationRole or the binding that they are of.
    /// Whoever takes the label off takes the object over.
    pub const AUTHORIZATION: &str = "containership.io/authorization";
    /// Finalizer of an AuthorizationRole, as in 2019, held while its ClusterRole stands.
    pub const ROLE_FINALIZER: &str = "authorizationrole.finalizers.containership.io";
    /// Finalizer of an AuthorizationRoleBinding, as in 2019, held while its binding stands.
    pub const BINDING_FINALIZER: &str = "authorizationrolebinding.finalizers.containership.io";
    /// Label on what a Plugin had applied: uid of the Plugin. Whoever takes the label off takes the
    /// object over.
    pub const PLUGIN: &str = "containership.io/plugin";
    /// Finalizer of a Plugin, held while something of it stands.
    pub const PLUGIN_FINALIZER: &str = "containership.io/plugin";
    /// Label, and its value, on objects that a hub keeps, and on ServiceAccounts that were made here.
    /// Whoever takes it off takes the object over.
    pub const MANAGED: (&str, &str) = ("containership.io/managed", "true");
    /// Annotation on an object that a hub keeps: digest of what the hub wants.
    pub const HUB_DIGEST: &str = "containership.io/hub-digest";
    /// Annotation on the core namespace: deletions that a person confirms, as the event
    /// `SuspiciousDeletion` names them, separated by commas.
    pub const CONFIRM_DELETION: &str = "containership.io/confirm-deletion";
    /// Annotation on the core namespace: id of the cluster from which a person has the cluster manager
    /// take all away that is its own.
    pub const TERMINATE: &str = "containership.io/terminate";
    /// Annotation on the core namespace: how far that is. The coordinator writes it, and agents go by it.
    pub const TERMINATE_PROGRESS: &str = "containership.io/terminate-progress";
    /// Finalizer of a ClusterUpgrade, held while a machine may bear a mark of it.
    pub const UPGRADE_FINALIZER: &str = "provision.containership.io/upgrade";
}

/// Returns the definitions of all kinds of the cluster manager, as they are applied to a cluster.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    vec![
        tidied(&AuthorizationRole::crd()),
        tidied(&AuthorizationRoleBinding::crd()),
        tidied(&Plugin::crd()),
        tidied(&Registry::crd()),
        tidied(&ClusterLabel::crd()),
        tidied(&ClusterUpgrade::crd()),
        tidied(&NodePoolLabel::crd()),
        tidied(&User::crd()),
    ]
}

/// Takes null and the margins of doc comments out of the schemas. kube-apiserver drops a null
/// where a field may not be null, so what Go's programs write for "absent" is absent, for rules too.
fn tidied(definition: &CustomResourceDefinition) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(definition).expect("a definition is JSON");
    tidy(&mut value);
    serde_json::from_value(value).expect("it was a definition before")
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
