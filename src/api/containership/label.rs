//! ClusterLabel and NodePoolLabel: a label that all Nodes bear, or those of one pool.

#![expect(clippy::duplicated_attributes, reason = "several columns are of one type")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// A label of all Nodes. The fields are named as in 2019.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "containership.io",
    version = "v3",
    kind = "ClusterLabel",
    plural = "clusterlabels",
    singular = "clusterlabel",
    shortname = "cl",
    category = "containership",
    namespaced,
    status = "LabelStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A label that every Node of the cluster bears.",
    printcolumn(name = "Key", type_ = "string", json_path = ".spec.key"),
    printcolumn(name = "Value", type_ = "string", json_path = ".spec.value"),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ClusterLabelSpec {
    /// Id of the label, as its author knows it. Navigator goes by the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub id: Option<String>,
    /// When the label was made, in the words of the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub created_at: Option<String>,
    /// When the label was changed, in the words of the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub updated_at: Option<String>,
    /// Key of the label, such as `cluster.containership.io/tier`. Below `cluster.containership.io/` and
    /// `nodepool.containership.io/`, Nodes bear what ClusterLabels and NodePoolLabels say and nothing
    /// else; a label with another key stays on Nodes when its object is deleted.
    #[schemars(schema_with = "key")]
    pub key: String,
    /// Value of the label.
    #[serde(default)]
    #[schemars(schema_with = "value")]
    pub value: String,
}

/// A label of the Nodes of one pool. The fields are named as in 2019.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "provision.containership.io",
    version = "v3",
    kind = "NodePoolLabel",
    plural = "nodepoollabels",
    singular = "nodepoollabel",
    shortname = "npl",
    category = "containership",
    namespaced,
    status = "LabelStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A label that every Node of one pool bears: those whose label containership.io/node-pool-id names it.",
    printcolumn(name = "Key", type_ = "string", json_path = ".spec.key"),
    printcolumn(name = "Value", type_ = "string", json_path = ".spec.value"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.node_pool_id"),
    printcolumn(name = "Nodes", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct NodePoolLabelSpec {
    /// Id of the label, as its author knows it. Navigator goes by the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub id: Option<String>,
    /// When the label was made, in the words of the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub created_at: Option<String>,
    /// When the label was changed, in the words of the author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub updated_at: Option<String>,
    /// Key of the label, such as `nodepool.containership.io/disk`; as that of a ClusterLabel.
    #[schemars(schema_with = "key")]
    pub key: String,
    /// Value of the label.
    #[serde(default)]
    #[schemars(schema_with = "value")]
    pub value: String,
    /// Pool of the Nodes.
    #[schemars(length(min = 1, max = 63))]
    pub node_pool_id: String,
}

/// Which Nodes bear a label. The coordinator alone writes it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Nodes that bear the label with this value.
    #[serde(default)]
    pub nodes: i32,
    /// These and all Nodes that should, as `5/6`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Ready, Reconciling and Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Schema of the key of a label that Navigator may set. The engine's `refusal` says the same of
/// objects that are there already.
fn key(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let form = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?\
                [A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
    let rule = |rule: String, message: &str| json!({"rule": rule, "message": message});
    schemars::json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": 317,
        "x-kubernetes-validations": [
            rule(format!("self.matches('{form}')"), "key must be the key of a label, such as cluster.containership.io/tier"),
            rule(
                "!self.matches('^([^/]*[.])?(kubernetes|k8s)[.]io/')".to_owned(),
                "keys of kubernetes.io and k8s.io belong to Kubernetes",
            ),
            rule(
                "!self.matches('^([^/]*[.])?containership[.]io/') || self.matches('^(cluster|nodepool)[.]containership[.]io/')".to_owned(),
                "of containership.io, keys must begin with cluster.containership.io/ or nodepool.containership.io/",
            ),
        ],
    })
}

fn value(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "string",
        "maxLength": 63,
        "x-kubernetes-validations": [{
            "rule": "self.matches('^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$')",
            "message": "value must be the value of a label: letters, digits, '-', '_' and '.'",
        }],
    })
}
