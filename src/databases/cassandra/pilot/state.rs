//! What a node remembers about itself beside its data, in `.navigator/cassandra.json`.
//!
//! The file is written at the turns of the node's life only: prepared, joined, decommissioning,
//! left. It tells a restart from a first start, which decides whether the node may name itself as a
//! seed.

use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use crate::pilot::volume::state::StateFile;

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeState {
    pub(super) cluster_name: String,
    pub(super) datacenter: String,
    pub(super) rack: String,
    /// Version that ran on the data last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    /// The node was a full member once; its data are its own.
    pub(super) joined: bool,
    /// The node began the ring, and so had nothing to receive.
    pub(super) founded: bool,
    /// Address of the dead node whose place this one takes, until it has joined.
    pub(super) replacing: Option<IpAddr>,
    pub(super) bootstrap_bytes_received: Option<i64>,
    /// Most bytes that any ready member of the datacenter held when this node began to join.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ring_load: Option<i64>,
    /// The node joined and received none of these bytes: it would answer reads without the rows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) starved: bool,
    /// Since when the node gives its data away.
    #[serde(rename = "retiringSince")]
    pub(super) decommissioning_since: Option<Time>,
    /// The node left the ring. Cassandra refuses to start on these data.
    pub(super) left: bool,
}

impl StateFile for NodeState {
    const FILE: &'static str = "cassandra.json";
}
