//! Cassandra for the API: its kind of cluster, its part of a Pilot, and schema facts that its types
//! cannot express.

use serde_json::Value;

use super::{
    columns,
    conversion::{CassandraNodeV1alpha1, CassandraV1alpha1},
    names,
    v1beta1::{
        Cassandra, CassandraCluster, CassandraNode, CassandraRights, PilotCassandraSpec,
        PilotCassandraStatus, Rack,
    },
};
use crate::{
    api::{
        cluster_kind::ClusterKind,
        database_names::DatabaseNames,
        pilot_part::{ErasedPilotPart, PilotPart},
        schema::SchemaMarkers,
        scheme::{KindEntry, ServedDatabase},
    },
    machinery::served_kind::PrinterColumn,
};

/// Cassandra's entry for the API.
pub const DATABASE: ServedDatabase = ServedDatabase {
    cluster: KindEntry::new::<CassandraCluster>(),
    part: ErasedPilotPart::new::<CassandraNode>(),
    rows: ROWS,
};

const ROWS: SchemaMarkers = SchemaMarkers {
    descriptions: &[
        ("CassandraCluster", "", "A Cassandra cluster: racks of nodes that form one ring."),
        ("CassandraClusterSpec", "", "What is wanted of a Cassandra cluster."),
        (
            "CassandraClusterSpec",
            "version",
            "Version of Cassandra, for example `5.0.6`. Two or three parts, kept as written.",
        ),
        (
            "CassandraClusterSpec",
            "image",
            "Image of the database. Defaults to `docker.io/cassandra:<version>`.",
        ),
        ("CassandraClusterSpec", "config", "Settings merged into cassandra.yaml of every node."),
        ("CassandraNodePool", "", "Nodes of one rack in one datacenter."),
    ],
    enums: &[("CassandraCleanup", "phase", &["Waiting", "Running", "Done", "Failed"])],
    max_items: &[("CassandraClusterSpec", "additionalSeeds", 20), ("CassandraRole", "grants", 100)],
    max_bytes: &[],
    defaults: &[("CassandraNodePool", "datacenter", "\"navigator-default-datacenter\"")],
};

impl ClusterKind for Cassandra {
    const NAMES: &'static DatabaseNames = &names::NAMES;
    const COLUMNS: &'static [PrinterColumn] = columns::COLUMNS;

    type Pool = Rack;
    type Role = CassandraRights;
    type Older = CassandraV1alpha1;

    fn default_pool(name: &str, pool: &mut Rack) {
        let Rack { datacenter, rack } = pool;
        for (text, default) in [(datacenter, names::DEFAULT_DATACENTER), (rack, name)] {
            if text.as_ref().is_none_or(String::is_empty) {
                *text = Some(default.to_owned());
            }
        }
    }

    fn topology_fields(pool: &Rack) -> Vec<(&'static str, Option<&str>)> {
        let Rack { datacenter, rack } = pool;
        vec![("datacenter", datacenter.as_deref()), ("rack", rack.as_deref())]
    }

    fn printer_cells(hub: &Value, now: i64) -> Vec<Value> {
        columns::build_cells(hub, now)
    }
}

impl PilotPart for CassandraNode {
    const NAMES: &'static DatabaseNames = &names::NAMES;
    type Spec = PilotCassandraSpec;
    type Status = PilotCassandraStatus;
    type Older = CassandraNodeV1alpha1;
}
