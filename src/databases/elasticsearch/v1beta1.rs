//! ElasticsearchCluster and Elasticsearch's part of a Pilot in version v1beta1: the fields that no
//! other database has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::v1beta1::{Cluster, NodePool};

pub type ElasticsearchCluster = Cluster<Elasticsearch>;
pub type ElasticsearchNodePool = NodePool<Elasticsearch>;

/// What only an Elasticsearch cluster has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Elasticsearch {
    /// Plugins that are installed before a node starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub plugins: Vec<ElasticsearchPlugin>,
    /// Quorum of masters, read by versions before 7 only. Computed when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_masters: Option<i32>,
}

/// What a role of Elasticsearch allows, by Elasticsearch's own names of privileges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ElasticsearchRights {
    /// Privileges on the cluster, for example `monitor`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub cluster: Vec<String>,
    /// Privileges on indices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub indices: Vec<IndexRights>,
    /// Privileges on applications, for example on Kibana.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub applications: Vec<ApplicationRights>,
    /// Users in whose name requests may be made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub run_as: Vec<String>,
}

/// Privileges on some indices of Elasticsearch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IndexRights {
    /// Names of indices, data streams and aliases; `*` stands for any characters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub names: Vec<String>,
    /// Privileges, for example `read`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub privileges: Vec<String>,
    /// The names stand also for indices of Elasticsearch itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_restricted_indices: Option<bool>,
}

/// Privileges on an application that asks Elasticsearch what its users may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationRights {
    /// Name of the application, for example `kibana-.kibana`.
    #[serde(default)]
    pub application: String,
    /// Privileges by the application's own names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub privileges: Vec<String>,
    /// Resources of the application, for example `*`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub resources: Vec<String>,
}

/// What only a node pool of Elasticsearch has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Roles {
    /// What the nodes do: `master`, `data`, `ingest`, further roles by version, or
    /// `coordinating` alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub roles: Vec<String>,
}

/// A plugin of Elasticsearch.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ElasticsearchPlugin {
    /// Name, URL or Maven coordinates, as `elasticsearch-plugin install` takes them.
    pub name: String,
    /// SHA-512 of the archive in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha512: Option<String>,
}

/// May a node with these roles be elected master?
pub fn is_master(roles: &[String]) -> bool {
    roles.iter().any(|role| role == "master")
}

/// May nodes with these roles hold shards?
pub fn holds_shards(roles: &[String]) -> bool {
    roles.iter().any(|role| role.starts_with("data"))
}

/// Do nodes with these roles keep a state that must not be lost? Masters keep the cluster's state;
/// nodes that only coordinate or ingest keep nothing.
pub fn keeps_data(roles: &[String]) -> bool {
    is_master(roles) || holds_shards(roles)
}

/// Elasticsearch's part of a Pilot.
#[derive(Debug)]
pub struct ElasticsearchNode;

/// Roles, zone and plugins of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotElasticsearchSpec {
    /// Name of a cluster that this node begins; by default the object's name. A node with data keeps
    /// the name that its data have, and one without takes that of the other nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_cluster_name: Option<String>,
    /// Roles of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub roles: Vec<String>,
    /// Zone of the node, its awareness attribute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Quorum of masters, read by versions before 7 only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_masters: Option<i32>,
    /// Plugins to install before the node starts; others are removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub plugins: Vec<ElasticsearchPlugin>,
}

/// Version, documents and plugins of a node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotElasticsearchStatus {
    /// Name of the cluster that the node is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// Documents on this node; absent while unknown, 0 means empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<i64>,
    /// Version of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// True while this node is the elected master; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elected_master: Option<bool>,
    /// Plugins and how they fared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub plugins: Vec<PluginStatus>,
}

/// What was installed, or why it was not.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// Name as in the spec.
    pub name: String,
    /// `Unknown`, `Pending`, `Installed`, `Failed` or `Removing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Installed version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Why it failed, at most 256 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
