//! The Pilot's spec with defaults, as far as Cassandra uses it.

use super::state::{NodeState, has_data};
use crate::{
    api::v1beta1::Pilot,
    databases::cassandra::{
        facts::{Release, heap_bytes},
        names,
        v1beta1::{CassandraNode, PilotCassandraSpec},
    },
    pilot::{
        driver::{DatabaseNode, Error},
        kube::peers,
    },
};

/// The values from which the configuration of a start is rendered.
pub(super) struct ResolvedSpec {
    pub(super) release: Release,
    pub(super) cluster_name: String,
    pub(super) datacenter: String,
    pub(super) rack: String,
    pub(super) num_tokens: Option<i32>,
    pub(super) jvm_options: Vec<String>,
    pub(super) heap: u64,
}

impl ResolvedSpec {
    /// `state`: what the volume says of the node.
    pub(super) fn from_node(node: &DatabaseNode, state: &NodeState) -> Result<Self, Error> {
        let spec = &node.pilot.spec;
        let rejection = |error: &dyn std::fmt::Display| Error::ConfigRejected(error.to_string());
        let version = spec.version.as_deref().unwrap_or_default();
        let release = version.parse().map_err(|error| rejection(&error))?;
        let heap = heap_bytes(spec.jvm.as_ref(), node.memory_limit).map_err(|e| rejection(&e))?;
        let rack = rack_of(&node.pilot);
        let cassandra = spec.part::<CassandraNode>().unwrap_or_default();
        Ok(Self {
            release,
            cluster_name: ring_name(node, state, &cassandra)
                .ok_or_else(|| rejection(&"spec.cassandra.clusterName is missing"))?,
            datacenter: cassandra
                .datacenter
                .unwrap_or_else(|| names::DEFAULT_DATACENTER.to_owned()),
            rack,
            num_tokens: cassandra.num_tokens,
            jvm_options: spec.jvm.clone().unwrap_or_default().options,
            heap,
        })
    }
}

/// Returns the name of the node's ring: what the spec says; else the name that its own data have,
/// since Cassandra does not start under another one (`SystemKeyspace.checkHealth`); else that of the
/// ring that its peers are in; else that of a new ring. Releases before 0.3 gave the object's name to
/// each ring, also to data that they noted no name of.
fn ring_name(node: &DatabaseNode, state: &NodeState, part: &PilotCassandraSpec) -> Option<String> {
    if part.cluster_name.is_some() {
        return part.cluster_name.clone();
    }
    let object_name = || node.pilot.spec.cluster_ref.as_ref().map(|cluster| cluster.name.clone());
    if has_data(&node.data) {
        let stored_name = Some(&state.cluster_name).filter(|name| !name.is_empty()).cloned();
        return stored_name.or_else(object_name);
    }
    let reported_name = |peer: &Pilot| peer.status.part::<CassandraNode>()?.cluster_name;
    peers::cluster_name(&node.pilot, &node.peers, reported_name)
        .or_else(|| part.new_cluster_name.clone())
        .or_else(object_name)
}

/// Returns the peers in a datacenter, as their Pilots say.
pub(super) fn in_datacenter<'a>(
    peers: &'a [Pilot],
    datacenter: &str,
) -> impl Iterator<Item = &'a Pilot> {
    peers.iter().filter(move |peer| datacenter_of(peer) == datacenter)
}

/// Returns the datacenter of a node, as its Pilot says.
pub(super) fn datacenter_of(pilot: &Pilot) -> String {
    let datacenter = pilot.spec.part::<CassandraNode>().and_then(|part| part.datacenter);
    datacenter.unwrap_or_else(|| names::DEFAULT_DATACENTER.to_owned())
}

/// Returns the rack of a node, as its Pilot says.
pub(super) fn rack_of(pilot: &Pilot) -> String {
    let rack = pilot.spec.part::<CassandraNode>().and_then(|part| part.rack);
    rack.or_else(|| pilot.spec.node_pool.clone()).unwrap_or_else(|| "rack1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::v1beta1::ClusterRef,
        databases::cassandra::pilot::tests::{node_in, peer},
    };

    #[test]
    fn ring_keeps_name_of_its_data() {
        let place = tempfile::tempdir().unwrap();
        let mut node = node_in(place.path());
        let kind = "CassandraCluster".to_owned();
        node.pilot.spec.cluster_ref = Some(ClusterRef { kind, name: "shop".to_owned() });
        node.pilot.spec.change_part::<CassandraNode>(|part| {
            (part.cluster_name, part.new_cluster_name) = (None, Some("shop-new".to_owned()));
        });
        let name = |node: &DatabaseNode, state: &NodeState| {
            ResolvedSpec::from_node(node, state).unwrap().cluster_name
        };
        let (fresh, noted) = (
            NodeState::default(),
            NodeState { cluster_name: "shop-old".to_owned(), ..NodeState::default() },
        );
        assert_eq!(name(&node, &fresh), "shop-new", "it founds");
        assert_eq!(name(&node, &noted), "shop-new", "its data are gone");
        // The founder is lost, or the cluster is made again: a node without data joins the others.
        let of_ring = |name: &str, ready, ring: Option<&str>| {
            let mut peer = peer(name, "10.0.0.2", ready);
            let ring = ring.map(str::to_owned);
            peer.status.change_part::<CassandraNode>(|part| part.cluster_name = ring);
            peer
        };
        node.peers =
            vec![of_ring("b", false, Some("shop-lost")), of_ring("c", true, Some("shop-c"))];
        assert_eq!(name(&node, &fresh), "shop-c");
        node.peers.pop();
        assert_eq!(name(&node, &fresh), "shop-lost");
        node.peers = vec![of_ring("b", true, None)];
        assert_eq!(name(&node, &fresh), "shop", "a pilot of before reports no name");
        node.peers[0].status.phase = Some(crate::api::v1beta1::PilotPhase::Decommissioned);
        assert_eq!(name(&node, &fresh), "shop-new");
        std::fs::create_dir_all(node.data.join("data/system/local-1")).unwrap();
        node.peers = vec![of_ring("c", true, Some("shop-c"))];
        assert_eq!(name(&node, &noted), "shop-old");
        assert_eq!(name(&node, &fresh), "shop", "no name of these data was noted");
        node.pilot.spec.change_part::<CassandraNode>(|part| {
            part.cluster_name = Some("orders".to_owned());
        });
        assert_eq!(name(&node, &noted), "orders", "the spec says it; preflight compares");
    }
}
