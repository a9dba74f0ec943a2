//! Cassandra's own types in version v1alpha1, as upstream released it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What only Cassandra needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotCassandraSpec {
    /// The node pool that this node belongs to.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_pool: String,
}
