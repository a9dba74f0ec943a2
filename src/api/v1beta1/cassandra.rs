//! CassandraCluster.

use k8s_openapi::{
    api::core::v1::ResourceRequirements,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ClusterStatus, Config, ImageSpec, Jvm, Persistence, PodTemplate, SecurityContext, Services,
    UpdateStrategy, shared::is_default,
};

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
    #[serde(default, skip_serializing_if = "is_default")]
    pub status: ClusterStatus,
}

/// What is wanted of a Cassandra cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CassandraClusterSpec {
    /// Version of Cassandra, for example `5.0.6`. Two or three parts, kept as written.
    #[serde(default)]
    pub version: String,
    /// Image of the database. Defaults to `docker.io/cassandra:<version>`.
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
    /// Name of the ring. Defaults to the object's name; cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// Tokens of each node, 1 to 1536. Defaults to the version's own default; cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_tokens: Option<i32>,
    /// Host names of seeds outside this object, for example in other datacenters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub additional_seeds: Vec<String>,
    /// Settings merged into cassandra.yaml of every node.
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
}
