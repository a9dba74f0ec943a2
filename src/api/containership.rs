//! The kinds of the cluster manager: how machines are upgraded, which labels they bear, whose SSH keys
//! stand on them, and who pulls images from where, in the groups that Containership's cluster manager
//! had in 2019.
//!
//! kube-apiserver serves these kinds, by CustomResourceDefinitions, and not Navigator's own API
//! server: what drains and upgrades machines must not stand on a pod of one of them. Manifests of
//! 2019 are accepted: fields that they may hold are known, and those without a meaning any more are
//! ignored.

mod cluster_upgrade;
mod label;
mod label_requirement;
mod registry;
mod upgrade_report;
mod upgrade_status;
mod user;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use serde_json::Value;

pub use cluster_upgrade::*;
pub use label::*;
pub use label_requirement::{LabelOperator, LabelRequirement, select};
pub use registry::*;
pub use upgrade_report::*;
pub use upgrade_status::*;
pub use user::*;

/// Group of the kinds about people, registries and the whole cluster.
pub const GROUP: &str = "containership.io";
/// Group of the kinds about machines.
pub const PROVISION_GROUP: &str = "provision.containership.io";

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
    /// Annotation on a ClusterUpgrade that failed: the machines that failed are tried again. The
    /// value is any text, and tells one request from the next.
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
    /// Finalizer of a ClusterUpgrade, held while a machine may bear a mark of it.
    pub const UPGRADE_FINALIZER: &str = "provision.containership.io/upgrade";
}

/// Returns the definitions of all kinds of the cluster manager, as they are applied to a cluster.
pub fn definitions() -> Vec<CustomResourceDefinition> {
    vec![
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
