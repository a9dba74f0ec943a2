//! Status of the cluster kinds; the same type in every served version.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity,
    apis::meta::v1::{Condition, Time},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SecretName, SecurityRungs};
use crate::api::open_enum::open_enum;

open_enum! {
    /// Health of a database cluster. An absent value means unknown.
    pub enum Health {
        /// Everything is in place.
        #[default]
        Green,
        /// All data are served, with less redundancy than wanted.
        Yellow,
        /// Some data are not served.
        Red,
    }
}

/// What was last observed of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// A word for people; machines read conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Health of the database cluster; absent while unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Lowest of the versions that the nodes run, or ran before they stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Versions that the nodes run, or ran before they stopped, and how many nodes each, at most 10.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["version"]))]
    pub versions: Vec<VersionCount>,
    /// The database's own id of its cluster, where it has one; else the object's own uid.
    #[serde(rename = "clusterID", default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The name by which nodes of the database cluster know each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// Pilot that leads the others, as their LeaderLease names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Database image that is run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Pilot image that is run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot_image: Option<String>,
    /// Quorum of masters in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_masters: Option<i32>,
    /// How clients connect and what keeps others out; absent where the cluster is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<ClusterSecurityStatus>,
    /// Secret that an application can mount to connect, as the Service Binding specification has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<SecretName>,
    /// Nodes that exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Nodes that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Node pools by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_pools: BTreeMap<String, NodePoolStatus>,
    /// What is being done now; at most one thing at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// What was done last; without steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<Operation>,
    /// Conditions of the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// How clients connect to a cluster that is not open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSecurityStatus {
    /// The lowest that any node runs, of encryption and logins each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rungs: Option<SecurityRungs>,
    /// Secret of the administrator: `username`, `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_secret: Option<String>,
    /// ConfigMap with the CAs that clients are to trust, under `ca.crt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_config_map: Option<String>,
    /// The certificate in use that ends first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_expiry: Option<CertificateExpiry>,
    /// CAs that sign the certificates of nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub certificate_authorities: Vec<AuthorityStatus>,
    /// The administrator, and the users of the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub users: Vec<UserStatus>,
}

/// A CA that signs the certificates of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthorityStatus {
    /// `Internode` or `Client`.
    #[serde(rename = "use", default)]
    pub usage: String,
    /// SHA-256 of its certificate, in hexadecimal.
    #[serde(default)]
    pub sha256: String,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
    /// `Managed`: Navigator made it. `Secret`: a Secret that the spec names holds it.
    #[serde(default)]
    pub source: String,
    /// `Current`; while another takes its place, `Spreading`, `Signing` or `Retiring`.
    #[serde(default)]
    pub phase: String,
}

/// A user that Navigator keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserStatus {
    /// Name with which the user logs in.
    #[serde(default)]
    pub name: String,
    /// Secret with its password.
    #[serde(default)]
    pub secret: String,
    /// `Applied`: all nodes have it. `Pending`: some do not yet. `Failed`: its Secret cannot be used.
    #[serde(default)]
    pub state: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// When a certificate that a node shows ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CertificateExpiry {
    /// The node that shows it.
    #[serde(default)]
    pub pilot: String,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
}

/// A version and how many nodes run it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionCount {
    /// Version as the database reports it.
    pub version: String,
    /// Nodes that run it.
    #[serde(default)]
    pub replicas: i32,
}

/// What was last observed of a node pool.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolStatus {
    /// Nodes that exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Nodes that are ready.
    #[serde(default)]
    pub ready_replicas: i64,
    /// Nodes that run the wanted version and configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// Lowest version that runs in the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Label selector of the pool's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Sizes of the pool's volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageStatus>,
    /// Where nodes and volumes are, by the field of the pool, such as `zone`, `storageClass` or `rack`.
    /// A pool that is removed keeps it until its nodes are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<BTreeMap<String, String>>,
}

/// What claims ask for, and what there is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageStatus {
    /// Size that the claims ask for; the smallest, where they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<Quantity>,
    /// Size of the smallest volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smallest: Option<Quantity>,
}

/// Something that is done to a cluster, in steps.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Generation and type; stable while the operation lasts.
    #[serde(default)]
    pub id: String,
    /// `Bootstrap`, `ScaleUp`, `ScaleDown`, `Upgrade`, `Configure`, `Resize`, `Replace`, `Stop`,
    /// `Start`, `Vacate` or `Secure`.
    #[serde(rename = "type", default)]
    pub type_: String,
    /// `Pending`, `Running`, `Blocked`, `Done`, or `Failed` where the spec was changed before it ended.
    #[serde(default)]
    pub phase: String,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// How far it is, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Its steps, at most 50, unfinished ones first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub steps: Vec<OperationStep>,
    /// What it waits for, at most 20, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub blocked_by: Vec<BlockedBy>,
}

/// One step of an operation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationStep {
    /// What is done, for example `RecreatePod`.
    #[serde(default)]
    pub name: String,
    /// The node that it is done to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot: Option<String>,
    /// `Pending`, `Running`, `Blocked`, `Done`, `Failed` or `Skipped`.
    #[serde(default)]
    pub phase: String,
    /// What it waits for, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When figures in its message were last seen to move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_progress_time: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
}

/// A predicate that holds, and since when.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockedBy {
    /// Name of the predicate.
    #[serde(default)]
    pub predicate: String,
    /// The step that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// What was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What a person can do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}
