//! Pilot as upstream released it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{pilot_part::PilotParts, v1beta1::PilotStatus};

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
    /// What only its database needs, under the database's word. The scheme adds it to the schema.
    #[serde(flatten)]
    #[schemars(skip)]
    pub parts: PilotParts,
}
