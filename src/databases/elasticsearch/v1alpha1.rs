//! Elasticsearch's own types in version v1alpha1, as upstream released it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What only an Elasticsearch cluster has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Elasticsearch {
    /// Plugins that are installed before a node starts: names, URLs or Maven coordinates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub plugins: Vec<String>,
    /// Quorum of masters, read by versions before 7 only. Computed when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_masters: Option<i32>,
}

/// What only a node pool of Elasticsearch has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Roles {
    /// What the nodes do: `data`, `ingest`, `master`, and every role of v1beta1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub roles: Vec<String>,
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
