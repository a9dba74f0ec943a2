//! CassandraCluster and Cassandra's part of a Pilot in version v1beta1: the fields that no other
//! database has.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::v1beta1::{Cluster, NodePool};

pub type CassandraCluster = Cluster<Cassandra>;
pub type CassandraNodePool = NodePool<Cassandra>;

/// What only a Cassandra cluster has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cassandra {
    /// Name of the ring; cannot be changed. Without it a new ring is named like the object, with a
    /// part of its uid; see `status.clusterName`. Required beside `additionalSeeds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// Tokens of each node, 1 to 1536. Defaults to the version's own default; cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_tokens: Option<i32>,
    /// Host names of seeds outside this object, for example in other datacenters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub additional_seeds: Vec<String>,
}

/// What a role of Cassandra allows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CassandraRights {
    /// Rights on data. Other rights on data are taken from the role.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub grants: Vec<CassandraGrant>,
}

/// Rights on all keyspaces, on one, or on one table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CassandraGrant {
    /// `ALL`, or some of `SELECT`, `MODIFY`, `CREATE` (not on a table), `ALTER`, `DROP`, `AUTHORIZE`,
    /// and from 5.0 on `UNMASK` and `SELECT_MASKED`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub permissions: Vec<String>,
    /// Name of the keyspace as it is stored: in lower case, unless it was made with quotes. `*`: all
    /// keyspaces, also later ones. The keyspace may be made later.
    #[serde(default)]
    pub keyspace: String,
    /// Name of a table as it is stored. Without it the rights are on all tables of the keyspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
}

/// What only a node pool of Cassandra has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rack {
    /// Datacenter of the nodes. Defaults to `navigator-default-datacenter`; cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datacenter: Option<String>,
    /// Rack of the nodes. Defaults to the pool's name; cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
}

/// Cassandra's part of a Pilot.
#[derive(Debug)]
pub struct CassandraNode;

/// Datacenter, rack and seeds of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotCassandraSpec {
    /// Name of the ring, where the cluster's spec says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// Name of a ring that this node begins, where `clusterName` is absent. A node with data keeps
    /// the name that its data have, and one without takes that of the other nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_cluster_name: Option<String>,
    /// Datacenter of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datacenter: Option<String>,
    /// Rack of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// Tokens of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_tokens: Option<i32>,
    /// Host names of seeds outside the cluster object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub additional_seeds: Vec<String>,
}

/// A node as Cassandra sees it, and the ring as the node sees it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PilotCassandraStatus {
    /// Name of the node's ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<String>,
    /// Version of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `StorageService`'s word for the node's state, for example `NORMAL`; absent while no process runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation_mode: Option<String>,
    /// Tokens that the node owns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<i32>,
    /// Bytes of data on the node, as Cassandra counts its load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_bytes: Option<i64>,
    /// Most replicas that a keyspace of users has in the node's datacenter by
    /// `NetworkTopologyStrategy`; absent while unknown, and where there is no such keyspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication_factor: Option<i32>,
    /// Bytes received while joining; 0 means that nothing was streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_bytes_received: Option<i64>,
    /// The node was a member of the ring once, with these data; absent while unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<bool>,
    /// Members of the ring that this node sees down; absent while unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub unreachable: Option<Vec<CassandraPeer>>,
    /// The cleanup that was asked for last; absent when none ever was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleanup: Option<CassandraCleanup>,
    /// The node may lack writes that other nodes have, until it is repaired; absent where it is not
    /// known to, and where no keyspace has a second copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<CassandraBehind>,
}

/// Since when a node may lack writes that other nodes have, and why.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CassandraBehind {
    /// When the node came back to the ring, or joined in place of a lost node. A repair after that
    /// counts.
    pub since: Time,
    /// When the node went away, for longer than other nodes keep hints of what it misses; absent
    /// where it joined in place of a lost node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away_since: Option<Time>,
}

/// The removal of rows that are other nodes' now, as a person asked for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CassandraCleanup {
    /// The request, as the Pilot's annotation `navigator.jetstack.io/cleanup` had it.
    pub request: String,
    /// Where it stands.
    pub phase: String,
    /// Keyspaces that are done.
    #[serde(default)]
    pub keyspaces_done: i32,
    /// Keyspaces in all; known while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyspaces: Option<i32>,
    /// The keyspace under way, what it waits for, or why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A member of a Cassandra ring, as another one knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CassandraPeer {
    /// Its IP address.
    pub address: String,
    /// Its host id.
    #[serde(rename = "hostID", default, skip_serializing_if = "Option::is_none")]
    pub host_id: Option<String>,
    /// Datacenter that it was in last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datacenter: Option<String>,
    /// Rack that it was in last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
}
