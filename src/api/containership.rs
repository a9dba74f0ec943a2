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

use std::{io::Read as _, sync::LazyLock};

use flate2::read::DeflateDecoder;
use serde::Deserialize as _;
use serde_json::Value;

pub use authorization::*;
pub use cluster_upgrade::*;
pub use label::*;
pub use label_requirement::{LabelOperator, LabelRequirement, matches_all};
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

/// The definition of a kind of the cluster manager.
#[derive(Clone, Debug)]
pub struct KindDefinition {
    /// Name of the CustomResourceDefinition.
    pub name: String,
    pub group: String,
    pub kind: String,
    pub plural: String,
    /// The CustomResourceDefinition, as it is applied to a cluster.
    pub manifest: Value,
}

/// Returns the definitions of all kinds of the cluster manager. They are what kube derives from the
/// types: `definitions_are_as_released` of `tests/it` compares the files that are packed here, and
/// writes them.
pub fn kind_definitions() -> &'static [KindDefinition] {
    static DEFINITIONS: LazyLock<Vec<KindDefinition>> = LazyLock::new(|| {
        let packed = include_bytes!(concat!(env!("OUT_DIR"), "/containership.yaml.packed"));
        let mut documents = String::new();
        let mut reader = DeflateDecoder::new(&packed[..]);
        reader.read_to_string(&mut documents).expect("packed by build.rs");
        serde_yaml::Deserializer::from_str(&documents).map(parse_definition).collect()
    });
    &DEFINITIONS
}

fn parse_definition(document: serde_yaml::Deserializer<'_>) -> KindDefinition {
    let manifest = Value::deserialize(document).expect("it was written as YAML");
    let required_text = |value: &Value| value.as_str().expect("a definition has it").to_owned();
    let spec = &manifest["spec"];
    KindDefinition {
        name: required_text(&manifest["metadata"]["name"]),
        group: required_text(&spec["group"]),
        kind: required_text(&spec["names"]["kind"]),
        plural: required_text(&spec["names"]["plural"]),
        manifest,
    }
}
