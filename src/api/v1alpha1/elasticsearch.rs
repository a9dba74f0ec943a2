//! ElasticsearchCluster as upstream released it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::ResourceRequirements, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ImageSpec, Persistence};
use crate::api::v1beta1::{ClusterStatus, SecurityContext};

/// An Elasticsearch cluster: pools of nodes with roles.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ElasticsearchCluster {
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: ElasticsearchClusterSpec,
    /// What was last observed.
    #[serde(default)]
    pub status: ClusterStatus,
}

/// What is wanted of an Elasticsearch cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ElasticsearchClusterSpec {
    /// Version of Elasticsearch in the form MAJOR.MINOR.PATCH, kept as written.
    #[serde(default)]
    pub version: String,
    /// Image that holds the pilot. Defaults to the controller's own, which also runs in place of
    /// upstream's pilot images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot_image: Option<ImageSpec>,
    /// Image of the database. Defaults to
    /// `docker.elastic.co/elasticsearch/elasticsearch:<version>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSpec>,
    /// User that the database runs as.
    #[serde(default)]
    pub security_context: SecurityContext,
    /// Nothing is changed while true; status is still observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Plugins that are installed before a node starts: names, URLs or Maven coordinates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub plugins: Vec<String>,
    /// Quorum of masters, read by versions before 7 only. Computed when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_masters: Option<i32>,
    /// Groups of equal nodes, created in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub node_pools: Vec<ElasticsearchNodePool>,
}

/// Nodes with the same roles.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ElasticsearchNodePool {
    /// Name of the pool, unique in the cluster. A new name is a new pool.
    #[serde(default)]
    pub name: String,
    /// Wanted number of nodes, 0 to 1000. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// What the nodes do: `data`, `ingest`, `master`, and every role of v1beta1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub roles: Vec<String>,
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
