//! Cassandra's entry for `kubectl navigator`.

use super::{names::NAMES, v1beta1::CassandraNode};
use crate::plugin::{NodeLoad, Predicate, ShownDatabase};

pub const DATABASE: ShownDatabase = ShownDatabase {
    names: &NAMES,
    // cqlsh comes with the database, and connects to the node in its own container.
    shell: &["sh", "-c", r#"exec "${CASSANDRA_HOME:-/opt/cassandra}/bin/cqlsh" "$@""#, "cqlsh"],
    load: |status| Some(NodeLoad::Bytes(status.part::<CassandraNode>()?.load_bytes?)),
    cleans_up: true,
    remark: |status| status.part::<CassandraNode>()?.operation_mode.filter(|mode| mode != "NORMAL"),
    predicates: &[
        Predicate {
            name: "RangesKeepQuorum",
            sentence: "a range would lose its quorum; or: it is the last node",
        },
        Predicate { name: "PeersUp", sentence: "another node is down, as seen from this one" },
        Predicate { name: "RingSettled", sentence: "a node joins, leaves or moves" },
        Predicate { name: "StreamsIdle", sentence: "data are being streamed" },
        Predicate { name: "SchemaAgreement", sentence: "live nodes have several schema versions" },
        Predicate {
            name: "CleanupPending",
            sentence: "a node is to leave, and another one has rows of ranges that it gave away: deleted \
                       ones would come back",
        },
        Predicate {
            name: "JoinedEmpty",
            sentence: "it joined a ring that holds data and received nothing; it is not ready",
        },
    ],
};
