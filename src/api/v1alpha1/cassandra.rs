//! CassandraCluster as upstream released it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::ResourceRequirements, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ImageSpec, Persistence};
use crate::api::v1beta1::{ClusterStatus, SecurityContext};

/// A Cassandra cluster: racks of nodes that form one ring.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CassandraCluster {
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: CassandraClusterSpec,
    /// What was last observed.
    #[serde(default)]
    pub status: ClusterStatus,
}

/// What is wanted of a Cassandra cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CassandraClusterSpec {
    /// Version of Cassandra, for example `5.0.6`. Two or three parts, kept as written.
    #[serde(default)]
    pub version: String,
    /// Image that holds the pilot. Defaults to the controller's own, which also runs in place of
    /// upstream's pilot images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot_image: Option<ImageSpec>,
    /// Image of the database. Defaults to `docker.io/cassandra:<version>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSpec>,
    /// User that the database runs as.
    #[serde(default)]
    pub security_context: SecurityContext,
    /// Nothing is changed while true; status is still observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Groups of equal nodes, created in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub node_pools: Vec<CassandraNodePool>,
}

/// Nodes of one rack in one datacenter.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CassandraNodePool {
    /// Name of the pool, unique in the cluster. A new name is a new pool.
    #[serde(default)]
    pub name: String,
    /// Wanted number of nodes, 0 to 1000. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Datacenter of the nodes. Defaults to `navigator-default-datacenter`; cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datacenter: Option<String>,
    /// Rack of the nodes. Defaults to the pool's name; cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
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
}
