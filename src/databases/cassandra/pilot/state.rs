//! The node's own state beside its data, in `.navigator/cassandra.json`.
//!
//! The file is written when the state changes: prepared, joined, decommissioning, left. It tells a
//! restart from a first start, which decides whether the node may name itself as a seed.

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::pilot::volume::state_file::StateFile;

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeState {
    pub(super) cluster_name: String,
    pub(super) datacenter: String,
    pub(super) rack: String,
    /// Cassandra version that last ran on the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    /// True when the node was once a full member, so that the data are its own.
    pub(super) joined: bool,
    /// True when the node began the ring, and so had nothing to receive.
    pub(super) founded: bool,
    /// Address of the dead node that this node replaces, until it has joined.
    pub(super) replacing: Option<IpAddr>,
    pub(super) bootstrap_bytes_received: Option<i64>,
    /// Most bytes that any ready member of the datacenter held when this node began to join.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ring_load: Option<i64>,
    /// True when the node joined and received none of the `ring_load` bytes: it would answer reads
    /// without the rows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) starved: bool,
    /// Time since which the node gives its data away.
    #[serde(rename = "retiringSince")]
    pub(super) decommissioning_since: Option<Time>,
    /// True when the node left the ring. Cassandra refuses to start on its data.
    pub(super) left: bool,
}

impl StateFile for NodeState {
    const FILE: &'static str = "cassandra.json";
}
