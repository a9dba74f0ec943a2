//! The Pilot's spec with defaults, as far as Cassandra uses it.

use crate::{
    api::v1beta1::Pilot,
    databases::cassandra::{
        facts::{Release, heap_bytes},
        names,
        v1beta1::CassandraNode,
    },
    pilot::driver::{DatabaseNode, Error},
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
    pub(super) fn of(node: &DatabaseNode) -> Result<Self, Error> {
        let spec = &node.pilot.spec;
        let rejected = |error: &dyn std::fmt::Display| Error::ConfigRejected(error.to_string());
        let version = spec.version.as_deref().unwrap_or_default();
        let release = version.parse().map_err(|error| rejected(&error))?;
        let heap = heap_bytes(spec.jvm.as_ref(), node.memory_limit).map_err(|e| rejected(&e))?;
        let rack = rack_of(&node.pilot);
        let cassandra = spec.part::<CassandraNode>().unwrap_or_default();
        let cluster = spec.cluster_ref.as_ref().map(|cluster| cluster.name.clone());
        Ok(Self {
            release,
            cluster_name: cassandra
                .cluster_name
                .or(cluster)
                .ok_or_else(|| rejected(&"spec.cassandra.clusterName is missing"))?,
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

/// Returns the peers in a datacenter, as their Pilots say.
pub(super) fn in_datacenter<'a>(
    peers: &'a [Pilot],
    datacenter: &str,
) -> impl Iterator<Item = &'a Pilot> {
    peers.iter().filter(move |peer| datacenter_of(peer) == datacenter)
}

/// Returns the datacenter of a node, as its Pilot says.
pub(super) fn datacenter_of(pilot: &Pilot) -> String {
    let told = pilot.spec.part::<CassandraNode>().and_then(|part| part.datacenter);
    told.unwrap_or_else(|| names::DEFAULT_DATACENTER.to_owned())
}

/// Returns the rack of a node, as its Pilot says.
pub(super) fn rack_of(pilot: &Pilot) -> String {
    let rack = pilot.spec.part::<CassandraNode>().and_then(|part| part.rack);
    rack.or_else(|| pilot.spec.node_pool.clone()).unwrap_or_else(|| "rack1".to_owned())
}
