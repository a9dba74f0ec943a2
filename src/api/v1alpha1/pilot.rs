//! Pilot as upstream released it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::v1beta1::PilotStatus;

/// One database node: what its pilot shall do, and what it reports.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pilot {
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What the pilot shall do.
    #[serde(default)]
    pub spec: PilotSpec,
    /// What the pilot reports.
    #[serde(default)]
    pub status: PilotStatus,
}

/// What a pilot shall do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotSpec {
    /// True: move the data away and leave the database cluster.
    #[serde(default)]
    pub decommission: bool,
    /// What only Elasticsearch needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elasticsearch: Option<PilotElasticsearchSpec>,
    /// What only Cassandra needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cassandra: Option<PilotCassandraSpec>,
}

/// What only Elasticsearch needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotElasticsearchSpec {
    /// The node pool that this node belongs to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_pool: String,
    /// Plugins to install before the node starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub plugins: Vec<PilotPlugin>,
}

/// A plugin of Elasticsearch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotPlugin {
    /// Name, URL or Maven coordinates, as `elasticsearch-plugin install` takes them.
    #[serde(default)]
    pub name: String,
}

/// What only Cassandra needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotCassandraSpec {
    /// The node pool that this node belongs to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_pool: String,
}
