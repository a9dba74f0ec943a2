//! At which addresses the nodes of peers can be reached, as a driver is told.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::api::v1beta1::Pilot;

/// Name of the endpoint at which nodes of a cluster reach each other.
pub const TRANSPORT: &str = "transport";

/// Addresses of peers that are theirs now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PeerAddresses {
    /// No other node ever gets the address of a peer, so what the Pilots have is right.
    #[default]
    AsReported,
    /// Addresses by the names of the peers' Pilots. A peer that is not named has none, as far as
    /// this node knows.
    Current(BTreeMap<String, Vec<String>>),
}

impl PeerAddresses {
    /// Returns the hosts at which the peer's node listens for other nodes.
    pub fn hosts_of(&self, peer: &Pilot) -> Vec<String> {
        match self {
            Self::AsReported => {
                let mut endpoints = peer.status.endpoints.iter();
                let transport = endpoints
                    .find(|endpoint| endpoint.name == TRANSPORT && !endpoint.host.is_empty());
                transport.map(|endpoint| endpoint.host.clone()).into_iter().collect()
            }
            Self::Current(hosts) => hosts.get(&peer.name_any()).cloned().unwrap_or_default(),
        }
    }
}
