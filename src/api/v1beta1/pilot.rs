//! Pilot: the intent for one database node, and its report.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Config, Health, Jvm, NodeChange, PilotSecurity, PilotSecurityStatus, PilotSettings,
    shared::is_default,
};
use crate::api::{
    open_enum::open_enum,
    pilot_part::{PilotPart, PilotParts},
};

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
    #[serde(default, skip_serializing_if = "is_default")]
    pub status: PilotStatus,
}

/// All that a pilot's process needs to know.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotSpec {
    /// The cluster that this node belongs to. Without it the Pilot is unmanaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_ref: Option<ClusterRef>,
    /// The node pool that this node belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_pool: Option<String>,
    /// Whether the node runs, and how it ends. Defaults to Running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<PilotIntent>,
    /// Version of the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Hash of everything below that needs a restart to take effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<String>,
    /// Any change of this time asks for one restart of the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<Time>,
    /// The `configHash` for which the database is to be restarted in its instance. Without effect
    /// where `status.startedFor` is the same, or where `configHash` is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_for: Option<String>,
    /// When a new program of the pilot takes over: `InPlace` (default), `OnRestart`, `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot_update: Option<String>,
    /// What the pilot goes by; without it, its flags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot_settings: Option<PilotSettings>,
    /// Ids of nodes that are lost for good, as `status.identity.nodeID` had them. Where this node
    /// serves, it has its database forget them, and answers in `status.forgotten`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub forget: Vec<String>,
    /// Id of the database cluster whose quorum is lost for good, as `status.identity.clusterID` has
    /// it: before its database starts again, this node begins the cluster anew from what it has, and
    /// the other nodes leave the former one. Means nothing to data of another cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsafe_bootstrap: Option<String>,
    /// Encryption, certificates and logins; absent where everything is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<PilotSecurity>,
    /// Settings of the cluster and the pool, merged.
    #[serde(default, skip_serializing_if = "Config::is_empty")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub config: Config,
    /// Settings of the Java virtual machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jvm: Option<Jvm>,
    /// What only its database needs, under the database's word. The scheme adds it to the schema.
    #[serde(flatten)]
    #[schemars(skip)]
    pub parts: PilotParts,
}

impl PilotSpec {
    /// What the database of `P` needs, where it is said.
    pub fn part<P: PilotPart>(&self) -> Option<P::Spec> {
        self.parts.get(P::NAMES.word)
    }

    pub fn set_part<P: PilotPart>(&mut self, part: &P::Spec) {
        self.parts.set(P::NAMES.word, part);
    }

    pub fn change_part<P: PilotPart>(&mut self, apply_change: impl FnOnce(&mut P::Spec)) {
        let mut part = self.part::<P>().unwrap_or_default();
        apply_change(&mut part);
        self.set_part::<P>(&part);
    }
}

/// A cluster in the Pilot's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRef {
    /// A kind of cluster.
    #[serde(default)]
    pub kind: String,
    /// Name of the cluster.
    #[serde(default)]
    pub name: String,
}

open_enum! {
    /// What is wanted of a database node. An unknown value starts nothing and stops nothing.
    pub enum PilotIntent {
        /// Keep the database up.
        #[default]
        Running,
        /// Move all data away, leave the database cluster, stop.
        Decommissioned,
        /// Flush and stop cleanly; the instance may go.
        Stopped,
        /// Stop the database and keep the instance alive and not ready, for repair.
        Fenced,
    }
}

open_enum! {
    /// Where a database node is in its life, as its pilot sees it.
    pub enum PilotPhase {
        /// The pilot has not begun, or waits for its turn.
        #[default]
        Pending,
        /// The host and the data volume are being checked.
        Preflight,
        /// The database has been started and does not serve yet.
        Starting,
        /// The database serves.
        Running,
        /// Data are being moved away.
        Decommissioning,
        /// The node has left the database cluster.
        Decommissioned,
        /// The database is being stopped.
        Stopping,
        /// The database was stopped on request.
        Stopped,
        /// The database is stopped and the instance kept, for repair.
        Fenced,
        /// The database cannot be run; conditions say why.
        Failed,
        /// The pilot is silent.
        Unknown,
    }
}

/// All that is known of a node. Only its pilot writes it; the controller marks a silent one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotStatus {
    /// Generation of the spec that the pilot acts on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The conditions in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<PilotPhase>,
    /// When the pilot last reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// Version of the pilot's own binary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot_version: Option<String>,
    /// Which installation of that binary runs: what `navigator install` said when it put it
    /// there. Tells two installations of one version apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot_program: Option<String>,
    /// Hash of the configuration that the running process was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_hash: Option<String>,
    /// The `spec.configHash` that was wanted when the process was started. A pilot that says it acts
    /// on `spec.restartFor`; those of earlier releases do neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_for: Option<String>,
    /// Version that the database says it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// This node's view of the database cluster's health; absent while unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// What speaks against stopping this node now, against letting it leave, or against adding
    /// another one, as its own pilot judges.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub blockers: Vec<Blocker>,
    /// Which node of which database cluster this is; outlives the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// Where the pilot runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Instance>,
    /// Addresses under which the database is reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub endpoints: Vec<Endpoint>,
    /// The database's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// How the previous process ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_termination: Option<Termination>,
    /// The data volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<PilotStorage>,
    /// Progress of a decommission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decommission: Option<Decommission>,
    /// How far the database is with each node of `spec.forget`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["nodeID"]))]
    pub forgotten: Vec<ForgottenNode>,
    /// What the node uses of `spec.security`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<PilotSecurityStatus>,
    /// What only its database reports, under the database's word. The scheme adds it to the
    /// schema.
    #[serde(flatten)]
    #[schemars(skip)]
    pub parts: PilotParts,
    /// Conditions of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl PilotStatus {
    /// What the database of `P` reports, where it does.
    pub fn part<P: PilotPart>(&self) -> Option<P::Status> {
        self.parts.get(P::NAMES.word)
    }

    pub fn set_part<P: PilotPart>(&mut self, part: &P::Status) {
        self.parts.set(P::NAMES.word, part);
    }

    pub fn change_part<P: PilotPart>(&mut self, apply_change: impl FnOnce(&mut P::Status)) {
        let mut part = self.part::<P>().unwrap_or_default();
        apply_change(&mut part);
        self.set_part::<P>(&part);
    }
}

/// A reason why a step has to wait.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// Name of the rule, for example `ShardCopyElsewhere`.
    pub predicate: String,
    /// What it speaks against; a list that is empty or absent means Stop.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub against: Vec<NodeChange>,
    /// What it found, in a sentence.
    #[serde(default)]
    pub message: String,
    /// Since when it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// When this was last judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_time: Option<Time>,
}

impl Blocker {
    /// Does this speak against `change`?
    pub fn is_against(&self, change: &NodeChange) -> bool {
        self.blocked_changes().contains(change)
    }

    /// Returns what this speaks against. Pilots of earlier releases say nothing, and mean Stop.
    pub fn blocked_changes(&self) -> Vec<NodeChange> {
        if self.against.is_empty() { vec![NodeChange::Stop] } else { self.against.clone() }
    }
}

/// Ids of a node, its cluster and its ring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// The database's own id of its cluster, where it has one; else metadata.uid of the cluster
    /// object.
    #[serde(rename = "clusterID", default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// The id that the database gives to the node.
    #[serde(rename = "nodeID", default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// When the node got this identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Id of the ring that its volume belongs to: that of its founding, in the LeaderLease.
    #[serde(rename = "ringID", default, skip_serializing_if = "Option::is_none")]
    pub ring_id: Option<String>,
}

open_enum! {
    /// How far a database is with forgetting a node.
    pub enum ForgetPhase {
        /// The database is being asked, or moves copies of what the node held.
        #[default]
        Removing,
        /// The database does not know the node, or no longer.
        Forgotten,
        /// The database has to keep the node; the message says why.
        Refused,
    }
}

/// A node that the database is to forget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForgottenNode {
    /// The id that the database gave to the node.
    #[serde(rename = "nodeID")]
    pub node_id: String,
    /// How far that is.
    #[serde(default)]
    pub phase: ForgetPhase,
    /// What it waits for, or why it is refused, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A pod, or a process on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// `Kubernetes` or `Process`.
    #[serde(default)]
    pub runtime: String,
    /// Name of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The pod's uid; elsewhere a hash of the address and the data directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// An address of the database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// What it is for, for example `client`.
    pub name: String,
    /// Host name or IP address.
    #[serde(default)]
    pub host: String,
    /// TCP port.
    #[serde(default)]
    pub port: i32,
}

/// A process, since when it runs and how often it was started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// Process id as the pilot sees it.
    #[serde(default)]
    pub pid: i32,
    /// When it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Starts by this pilot beyond the first.
    #[serde(default)]
    pub restarts: i32,
}

/// The end of a process: code, reason, last lines of its log.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Termination {
    /// Exit code, or 128 plus the signal's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// One word for machines, for example `OutOfMemory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it had been started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_time: Option<Time>,
    /// Last lines of its output, at most 20 and 4 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub log_tail: Vec<String>,
}

/// Place, size and use of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotStorage {
    /// Where it is mounted.
    #[serde(default)]
    pub path: String,
    /// Its size in bytes.
    #[serde(default)]
    pub capacity_bytes: i64,
    /// Bytes in use.
    #[serde(default)]
    pub used_bytes: i64,
    /// What fills it, the largest share first, once 85 of 100 bytes are in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub contents: Vec<VolumeShare>,
    /// When it will be full at the rate of the last hour, once 85 of 100 bytes are in use; absent
    /// while its use does not grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_time: Option<Time>,
}

/// One kind of content of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeShare {
    /// What it is, for example `snapshots`.
    #[serde(default)]
    pub what: String,
    /// Bytes of it.
    #[serde(default)]
    pub bytes: i64,
}

/// Progress of moving a node's data away.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Decommission {
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<i32>,
    /// Bytes still to move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_left: Option<i64>,
    /// Shards still on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards_left: Option<i32>,
    /// Documents still on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents_left: Option<i64>,
    /// True once the node can no longer be kept.
    #[serde(default)]
    pub irreversible: bool,
    /// What it waits for, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
