//! A cluster of node pools: what the clusters of all databases share.
//!
//! A database adds its own fields with a [`ClusterKind`], beside the shared ones in the same
//! objects of the spec.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::ResourceRequirements,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    API_VERSION, ClusterStatus, Config, DatabaseSecurity, ImageSpec, Jvm, Persistence,
    PilotSettings, PodTemplate, SecurityContext, SecurityRungs, Services, UpdateStrategy, VERSION,
    shared::is_default,
};
use crate::api::cluster_kind::ClusterKind;

/// A cluster of one database.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", bound = "")]
#[schemars(rename = "{K}Cluster", bound = "K: ClusterKind")]
pub struct Cluster<K: ClusterKind> {
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Written by people.
    #[serde(default)]
    pub spec: ClusterSpec<K>,
    /// Written by the controller.
    #[serde(default, skip_serializing_if = "is_default")]
    pub status: ClusterStatus,
}

/// What is wanted of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", bound = "")]
#[schemars(rename = "{K}ClusterSpec", bound = "K: ClusterKind")]
pub struct ClusterSpec<K: ClusterKind> {
    /// Version of the database, kept as written.
    #[serde(default)]
    pub version: String,
    /// Image of the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSpec>,
    /// Image that holds the pilot. Defaults to the controller's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot_image: Option<ImageSpec>,
    /// Nothing is changed while true; status is still observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// All databases are stopped cleanly while true; volumes and sizes are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<bool>,
    /// A change of this time asks for one ordered rolling restart. Of this and a pool's own time
    /// the later counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<Time>,
    /// User that the database runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
    /// Settings merged into the configuration of every node.
    #[serde(default, skip_serializing_if = "Config::is_empty")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub config: Config,
    /// Settings of the Java virtual machine of every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jvm: Option<Jvm>,
    /// Merged over the generated pod template of every node pool.
    #[serde(default, skip_serializing_if = "PodTemplate::is_empty")]
    pub pod_template: PodTemplate,
    /// How changes reach running nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
    /// Services that clients use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Services>,
    /// Who may reach the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<DatabaseSecurity<K>>,
    /// How patient pilots are, and what they insist on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot_settings: Option<PilotSettings>,
    /// What only this database has.
    #[serde(flatten)]
    pub own: K,
    /// Groups of equal nodes, created in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub node_pools: Vec<NodePool<K>>,
}

impl<K: ClusterKind> ClusterSpec<K> {
    /// Returns what is to be encrypted and who is asked.
    pub fn desired_security(&self) -> SecurityRungs {
        self.security.as_ref().map(|security| security.shared.desired_modes()).unwrap_or_default()
    }
}

/// Nodes that are equal to each other.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", bound = "")]
#[schemars(rename = "{K}NodePool", bound = "K: ClusterKind")]
pub struct NodePool<K: ClusterKind> {
    /// Name of the pool, unique in the cluster. A new name is a new pool.
    pub name: String,
    /// Wanted number of nodes, 0 to 1000. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Zone (`topology.kubernetes.io/zone`) in which the nodes run; cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// CPU and memory of each database container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Volume of each node. Without it data are lost with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<Persistence>,
    /// A change of this time asks for one ordered restart of this pool. Of this and the
    /// cluster's time the later counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<Time>,
    /// Settings merged over the cluster's own.
    #[serde(default, skip_serializing_if = "Config::is_empty")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub config: Config,
    /// Settings of the Java virtual machine, merged over the cluster's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jvm: Option<Jvm>,
    /// Merged over the generated pod template after the cluster's own.
    #[serde(default, skip_serializing_if = "PodTemplate::is_empty")]
    pub pod_template: PodTemplate,
    /// What only this database has.
    #[serde(flatten)]
    pub own: K::Pool,
}

impl<K: ClusterKind> NodePool<K> {
    /// Returns the fields that say where the pool's nodes and volumes are, by their names in the spec:
    /// those that nodes cannot take a change of.
    pub fn topology_fields(&self) -> BTreeMap<String, String> {
        let class =
            self.persistence.as_ref().and_then(|persistence| persistence.storage_class.as_deref());
        let shared_fields = [("zone", self.zone.as_deref()), ("storageClass", class)];
        let fields = shared_fields.into_iter().chain(K::topology_fields(&self.own));
        fields.filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))).collect()
    }
}

impl<K: ClusterKind> k8s_openapi::Resource for Cluster<K> {
    const API_VERSION: &'static str = API_VERSION;
    const GROUP: &'static str = crate::api::GROUP;
    const KIND: &'static str = K::NAMES.kind;
    const VERSION: &'static str = VERSION;
    const URL_PATH_SEGMENT: &'static str = K::NAMES.plural;
    type Scope = k8s_openapi::NamespaceResourceScope;
}

impl<K: ClusterKind> k8s_openapi::Metadata for Cluster<K> {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &Self::Ty {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut Self::Ty {
        &mut self.metadata
    }
}
