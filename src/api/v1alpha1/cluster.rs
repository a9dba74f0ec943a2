//! A cluster of node pools as upstream released it: what the clusters of all databases share.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::ResourceRequirements, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ImageSpec, Persistence};
use crate::api::{
    cluster_kind::{ClusterKind, OlderPool, OlderSpec},
    v1beta1::{ClusterStatus, SecurityContext},
};

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
    #[serde(default)]
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
    /// Image that holds the pilot. Defaults to the controller's own, which also runs in place of
    /// upstream's pilot images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot_image: Option<ImageSpec>,
    /// Image of the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSpec>,
    /// User that the database runs as.
    #[serde(default)]
    pub security_context: SecurityContext,
    /// Nothing is changed while true; status is still observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// What only this database has.
    #[serde(flatten)]
    pub own: OlderSpec<K>,
    /// Groups of equal nodes, created in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub node_pools: Vec<NodePool<K>>,
}

/// Nodes that are equal to each other.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", bound = "")]
#[schemars(rename = "{K}NodePool", bound = "K: ClusterKind")]
pub struct NodePool<K: ClusterKind> {
    /// Name of the pool, unique in the cluster. A new name is a new pool.
    #[serde(default)]
    pub name: String,
    /// Wanted number of nodes, 0 to 1000. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Labels of the machines that the nodes may run on.
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
    /// Scheduler that places the nodes' pods.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub scheduler_name: String,
    /// CPU and memory of each database container.
    #[serde(default)]
    pub resources: ResourceRequirements,
    /// Volume of each node. Without it data are lost with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<Persistence>,
    /// What only this database has.
    #[serde(flatten)]
    pub own: OlderPool<K>,
}
