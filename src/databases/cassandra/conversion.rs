//! Conversion of Cassandra's own fields between the hub and v1alpha1.

use super::{
    v1alpha1,
    v1beta1::{Cassandra, CassandraNode, PilotCassandraSpec, Rack},
};
use crate::api::{
    cluster_kind::{Nothing, OlderCluster},
    pilot_part::OlderPart,
};

/// Cassandra's own cluster fields in v1alpha1: only node pools have any.
#[derive(Debug)]
pub struct CassandraV1alpha1;

impl OlderCluster<Cassandra> for CassandraV1alpha1 {
    type Spec = Nothing;
    type Pool = Rack;
    type Surplus = Cassandra;

    fn project_spec(spec: Cassandra) -> (Nothing, Cassandra) {
        (Nothing {}, spec)
    }

    fn lift_spec(_older: Nothing, surplus: Cassandra) -> Cassandra {
        surplus
    }

    fn project_pool(pool: Rack) -> Rack {
        pool
    }

    fn lift_pool(older: Rack) -> Rack {
        older
    }
}

/// Cassandra's part of a Pilot in v1alpha1.
#[derive(Debug)]
pub struct CassandraNodeV1alpha1;

impl OlderPart<CassandraNode> for CassandraNodeV1alpha1 {
    type Spec = v1alpha1::PilotCassandraSpec;
    type Surplus = PilotCassandraSpec;

    fn project_part(
        spec: PilotCassandraSpec,
        node_pool: String,
    ) -> (v1alpha1::PilotCassandraSpec, PilotCassandraSpec) {
        (v1alpha1::PilotCassandraSpec { node_pool }, spec)
    }

    fn lift_part(
        older: v1alpha1::PilotCassandraSpec,
        surplus: PilotCassandraSpec,
    ) -> (PilotCassandraSpec, String) {
        let v1alpha1::PilotCassandraSpec { node_pool } = older;
        (surplus, node_pool)
    }
}
