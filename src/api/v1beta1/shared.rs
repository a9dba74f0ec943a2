//! Parts of a spec that cluster kinds share.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A database's own settings, merged into its configuration file: objects deeply, lists
/// replaced, `null` removes. Unknown keys are kept as written.
pub type Config = Map<String, Value>;

/// A container image by repository and tag or digest.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageSpec {
    /// Repository without tag, for example `docker.io/library/example`.
    pub repository: String,
    /// Tag of the image. Either tag or digest must be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Digest, `sha256:` followed by 64 hexadecimal characters; it wins over the tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// When the image is pulled: `Always`, `IfNotPresent` or `Never`. Defaults to
    /// `IfNotPresent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_policy: Option<String>,
}

/// As whom processes run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecurityContext {
    /// User id of the database process, and group id of its volumes. Defaults to that of the
    /// database's own image. 0 is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<i64>,
}

/// Heap and options of a Java virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Jvm {
    /// Heap size (both -Xms and -Xmx). When absent, it follows from the memory limit; without one
    /// it is 1Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heap: Option<Quantity>,
    /// Further options, one argument each, starting with `-`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub options: Vec<String>,
}

/// The pace of a new version or configuration, and what it does not wait for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// `RollingUpdate` (default), or `OnDelete`: a new revision is used only when a pod is
    /// deleted by hand.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Nodes that may be down at once when Navigator stops one or lets one leave, as a number or
    /// percentage of all; at least 1, the default. More than one only within one node pool, or in
    /// different datacenters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// `InPlace` (default): a restart that another setting or `restartedAt` needs keeps the pod; its
    /// pilot restarts the database. `Recreate`: each restart makes the pod anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<String>,
    /// `InPlace` (default): a new pilot binary takes over the running database. `OnRestart`:
    /// with the next restart of the database. `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot_update: Option<String>,
    /// Hold the update after this many nodes. Remove it to promote, revert the spec to cancel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// Names of predicates that no step waits for; `*` for all but those that
    /// must be named. Overrides a safety rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub skip_predicates: Vec<String>,
    /// Seconds after which a step that makes no progress is reported as Stalled, 60 to 86400.
    /// Defaults to 1800.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<i32>,
}

/// What the pilot of each node goes by; takes effect without a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotSettings {
    /// Seconds of silence after which a database that answered before counts as hung, 10 to 3600:
    /// longer than its longest pause for garbage collection. Defaults to 90.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silence_limit_seconds: Option<i32>,
    /// Start the database although the limits of open files, processes, mappings or locked memory
    /// are lower than it needs: at your own risk, where nobody may raise them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_low_limits: Option<bool>,
}

/// Where an update is held for a look.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Canary {
    /// Node pools that take part; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub node_pools: Vec<String>,
    /// Nodes that may run the new revision. 0 holds the update altogether.
    pub replicas: i32,
}

/// What a user may say about generated Services.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Services {
    /// The Service for clients of the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ServiceTemplate>,
}

/// Type, labels and annotations of a generated Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceTemplate {
    /// `ClusterIP` (default), `NodePort` or `LoadBalancer`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Labels put on the Service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations put on the Service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Class of the load balancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer_class: Option<String>,
    /// Networks in CIDR notation that may reach the load balancer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub load_balancer_source_ranges: Vec<String>,
    /// `Cluster` or `Local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<String>,
}

/// Size and class of volumes, and what becomes of their claims.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Persistence {
    /// `false` keeps data in an emptyDir on purpose: it is lost with the pod. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Size of each volume. It may be raised, and volumes that are there grow where their
    /// StorageClass allows it; it may be lowered to the smallest volume that is there. Required
    /// unless `enabled` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// StorageClass of the volumes; the cluster's default class when absent. It cannot be
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// Labels put on the claims.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations put on the claims.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// What becomes of claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
}

/// When a claim is deleted.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// `Delete` (default) or `Retain`, after the pilot reported that the node holds no data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_scaled: Option<String>,
    /// `Retain` (default) or `Delete`, when the cluster is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_deleted: Option<String>,
}

/// Part of a pod template, merged over the generated one; nothing in it is required.
/// Its schema is that of a core/v1 PodTemplateSpec.
pub type PodTemplate = Map<String, Value>;

/// Does a collection or struct say nothing?
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
