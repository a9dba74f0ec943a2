//! Cassandra's part of a Pilot between the hub and v1alpha1.

use super::{kind::PilotCassandraSpec, v1alpha1};

/// The part as v1alpha1 shows it, and what v1alpha1 cannot say: all of it.
pub fn project(
    spec: PilotCassandraSpec,
    node_pool: String,
) -> (v1alpha1::PilotCassandraSpec, PilotCassandraSpec) {
    (v1alpha1::PilotCassandraSpec { node_pool }, spec)
}

pub fn lift(
    older: v1alpha1::PilotCassandraSpec,
    surplus: PilotCassandraSpec,
) -> (PilotCassandraSpec, String) {
    let v1alpha1::PilotCassandraSpec { node_pool } = older;
    (surplus, node_pool)
}
