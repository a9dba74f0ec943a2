//! The node's own state beside its data, in `.navigator/cassandra.json`.
//!
//! The file is written when the state changes: prepared, joined, decommissioning, left. It tells a
//! restart from a first start, which decides whether the node may name itself as a seed.

use std::{fs, net::IpAddr, path::Path};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::{node_view::NodeView, ring_presence::RingPresence};
use crate::pilot::volume::state_file::StateFile;

/// Bytes that a member of the ring must hold for a join without received data to count as failed. A
/// ring with less may have nothing to give to a joining node: Cassandra's own tables are counted,
/// too.
pub(super) const LEAST_LOAD: i64 = 64 << 20;

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
    /// True when the node began or joined a ring that asks for passwords: its logins are made.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) asks_passwords: bool,
    /// True while the ring that this node began has no logins: it starts for its pilot alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) founding_logins: bool,
    /// True while a copy of the logins that this node had made may lack rows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) copies_unsettled: bool,
    /// Since when the node may lack writes that other nodes have.
    pub(super) presence: RingPresence,
}

impl StateFile for NodeState {
    const FILE: &'static str = "cassandra.json";
}

/// Does the volume hold Cassandra's own tables?
pub(super) fn has_data(data: &Path) -> bool {
    fs::read_dir(data.join("data/system")).is_ok_and(|mut entries| entries.next().is_some())
}

impl NodeState {
    /// Takes over what is new about the node: its version, how it joined, that it left. Returns
    /// whether it has just joined.
    pub(super) fn update(&mut self, facts: &NodeView) -> bool {
        if facts.version.is_some() {
            self.version.clone_from(&facts.version);
        }
        match facts.mode.as_str() {
            // A new process may finish the join, and its count of received bytes begins at zero.
            "JOINING" if facts.received > Some(0) && self.bootstrap_bytes_received <= Some(0) => {
                self.bootstrap_bytes_received = facts.received;
            }
            "NORMAL" if !self.joined => {
                self.joined = true;
                self.replacing = None;
                let received_bytes = facts.received.max(self.bootstrap_bytes_received);
                let received_bytes = received_bytes.filter(|_| !self.founded);
                self.bootstrap_bytes_received = received_bytes;
                self.starved = received_bytes == Some(0)
                    && self.ring_load.is_some_and(|load| load >= LEAST_LOAD);
                return true;
            }
            "DECOMMISSIONED" => self.left = true,
            _ => {}
        }
        false
    }

    /// Returns the bytes that the node received as it joined.
    pub(super) fn received_bytes(&self, facts: &NodeView) -> Option<i64> {
        let incoming = facts.received.filter(|_| facts.mode == "JOINING");
        incoming.max(self.bootstrap_bytes_received)
    }

    /// Returns the bytes that a member held while this node joined and received none of them.
    pub(super) fn starved_of(&self) -> Option<i64> {
        self.ring_load.filter(|_| self.starved)
    }

    /// Logs how the node joined.
    pub(super) fn log_join(&self) {
        let (received, ring_load) = (self.bootstrap_bytes_received, self.ring_load);
        if self.founded {
            info!("Cassandra began a ring");
        } else if received == Some(0) {
            warn!(ring_load, "Cassandra joined the ring and received nothing");
        } else {
            info!(received, "Cassandra joined the ring");
        }
    }
}
