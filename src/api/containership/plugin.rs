//! Plugin: objects that are applied to the cluster together, and kept at the last version that worked.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where the manifests are, and what becomes of them. The fields of 2019 are named as they were.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "containership.io",
    version = "v3",
    kind = "Plugin",
    plural = "plugins",
    singular = "plugin",
    shortname = "plgn",
    category = "containership",
    namespaced,
    status = "PluginStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Objects that the coordinator applies together, as the ServiceAccount plugin-NAME of its namespace. A version that fails is undone.",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Objects", type_ = "integer", json_path = ".status.objects"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 200")
        .message("name of a Plugin must be at most 200 bytes")
)]
#[serde(rename_all = "camelCase")]
pub struct PluginSpec {
    /// Id of the plugin, as its author knows it. Navigator goes by the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub id: Option<String>,
    /// When the plugin was added, in the words of the author.
    #[serde(rename = "added_at", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub added_at: Option<String>,
    /// Words about the plugin, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// What the plugin is for, such as `metrics`, `logs`, `cni`. Nothing goes by it.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub type_: Option<String>,
    /// Version of the manifests, for people: a change of the manifests is what counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub version: Option<String>,
    /// Program that does the work, such as `prometheus`. Nothing goes by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub implementation: Option<String>,
    /// Where the manifests are; `hub` without it, as in 2019.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PluginSource>,
    /// Delete objects that are no longer in the manifests, and all of them with the Plugin. Definitions
    /// of kinds and namespaces are never deleted.
    #[serde(default = "yes")]
    pub prune: bool,
    /// Seconds in which a version must be rolled out, or else it is undone.
    #[serde(default = "timeout")]
    #[schemars(range(min = 1, max = 86400))]
    pub timeout_seconds: i32,
}

fn yes() -> bool {
    true
}

fn timeout() -> i32 {
    300
}

/// Where manifests are: one of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "[has(self.hub), has(self.configMapRef), has(self.inline)].filter(given, given).size() == 1",
    "message": "source must be one of hub, configMapRef and inline",
}]))]
pub struct PluginSource {
    /// The hub of the coordinator has them, under the name of the Plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubSource>,
    /// A ConfigMap in the namespace of the Plugin has them: each value is YAML, of one document or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ConfigMapSource>,
    /// The manifests themselves, as YAML of one document or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 524_288))]
    pub inline: Option<String>,
}

/// The hub of the coordinator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct HubSource {}

/// Name of a ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ConfigMapSource {
    /// Name of the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// What stands of a Plugin. The coordinator alone writes it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Version of the manifests that stand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Objects that stand by them.
    #[serde(default)]
    pub objects: i32,
    /// The version that is being rolled out, or undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<PluginRollout>,
    /// The version that failed. It is not tried again until the manifests change, or the annotation
    /// `containership.io/retry`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<PluginFailure>,
    /// Ready, Reconciling and Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A version on its way.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginRollout {
    /// Digest of the manifests.
    pub digest: String,
    /// When it began.
    pub started_at: Time,
    /// All objects were applied, and their roll-out is waited for.
    #[serde(default)]
    pub applied: bool,
    /// Why it is being undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A version that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginFailure {
    /// Digest of the manifests.
    pub digest: String,
    /// What failed, in a sentence.
    pub message: String,
}
