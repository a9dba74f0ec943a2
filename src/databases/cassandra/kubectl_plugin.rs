//! Cassandra's entry for `kubectl navigator`.

use super::{names::NAMES, v1beta1::CassandraNode};
use crate::plugin::{NodeLoad, ShownDatabase};

pub const DATABASE: ShownDatabase = ShownDatabase {
    names: &NAMES,
    // cqlsh comes with the database, and connects to the node in its own container.
    shell: &["sh", "-c", r#"exec "${CASSANDRA_HOME:-/opt/cassandra}/bin/cqlsh" "$@""#, "cqlsh"],
    load: |status| Some(NodeLoad::Bytes(status.part::<CassandraNode>()?.load_bytes?)),
    cleans_up: true,
    lost_with_quorum: None,
    remark: |status| status.part::<CassandraNode>()?.operation_mode.filter(|mode| mode != "NORMAL"),
};
