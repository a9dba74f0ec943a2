//! The predicates of Cassandra alone.

use crate::api::{
    predicate::{Predicate, SkipPolicy},
    v1beta1::NodeChange,
};

/// A ring takes one change of its members at a time, with all members up and of one schema.
const ANY_CHANGE: &[NodeChange] = &[NodeChange::Stop, NodeChange::Join, NodeChange::Leave];

pub const RANGES_KEEP_QUORUM: Predicate = Predicate {
    against: &[NodeChange::Stop, NodeChange::Leave],
    ..Predicate::against_stop(
        "RangesKeepQuorum",
        "a range would lose its quorum; or: it is the last node",
    )
};
pub const PEERS_UP: Predicate = Predicate {
    against: ANY_CHANGE,
    calm: true,
    ..Predicate::against_stop("PeersUp", "another node is down, as seen from this one")
};
/// [`PEERS_UP`] where all nodes that are down are in other datacenters: this one may stop, as
/// `RangesKeepQuorum` judges each datacenter by itself.
pub const PEERS_UP_ELSEWHERE: Predicate =
    Predicate { against: &[NodeChange::Join, NodeChange::Leave], ..PEERS_UP };
pub const RING_SETTLED: Predicate = Predicate {
    against: ANY_CHANGE,
    calm: true,
    ..Predicate::against_stop("RingSettled", "a node joins, leaves or moves")
};
pub const STREAMS_IDLE: Predicate =
    Predicate { calm: true, ..Predicate::against_stop("StreamsIdle", "data are being streamed") };
pub const SCHEMA_AGREEMENT: Predicate = Predicate {
    against: ANY_CHANGE,
    ..Predicate::against_stop(
        "SchemaAgreement",
        "live nodes of one release have several schema versions",
    )
};
pub const CLEANUP_PENDING: Predicate = Predicate {
    against: &[NodeChange::Leave],
    ..Predicate::against_stop(
        "CleanupPending",
        "a node is to leave, and another one has rows of ranges that it gave away: deleted ones \
         would come back",
    )
};
/// Judged by the controller, from what pilots report.
pub const SPACE_HERE: Predicate = Predicate {
    against: &[NodeChange::Join],
    ..Predicate::against_stop(
        "SpaceHere",
        "a node is to join, and would get more data than its volume holds",
    )
};
/// Judged by the controller, from what pilots report.
pub const REPLICA_BEHIND: Predicate = Predicate {
    against: &[NodeChange::Leave],
    skip: SkipPolicy::ByName,
    ..Predicate::against_stop(
        "ReplicaBehind",
        "a node is to leave or is given up, and another one lacks writes that it may have, until it is \
         repaired",
    )
};
/// A node that joins would be given rows out of the empty tables; a node that leaves gives its
/// ranges back.
pub const JOINED_EMPTY: Predicate = Predicate {
    against: &[NodeChange::Stop, NodeChange::Join],
    skip: SkipPolicy::ByStar,
    ..Predicate::against_stop(
        "JoinedEmpty",
        "it joined a ring that holds data and received nothing; it is not ready",
    )
};
pub const REPLICATION_FACTOR: Predicate = Predicate::against_decommission(
    "ReplicationFactor",
    "it is to leave, and fewer nodes would remain than a keyspace has replicas",
);
pub const RECEIVERS_READY: Predicate = Predicate::against_decommission(
    "ReceiversReady",
    "it is to leave, and a node that would take a part of its data is down or of another schema",
);
pub const MEMBERS_REMAIN: Predicate =
    Predicate::against_decommission("MembersRemain", "it is to leave, and is the last node");

pub const PREDICATES: &[Predicate] = &[
    RANGES_KEEP_QUORUM,
    PEERS_UP,
    RING_SETTLED,
    STREAMS_IDLE,
    SCHEMA_AGREEMENT,
    CLEANUP_PENDING,
    SPACE_HERE,
    REPLICA_BEHIND,
    JOINED_EMPTY,
    REPLICATION_FACTOR,
    RECEIVERS_READY,
    MEMBERS_REMAIN,
];

/// Names of predicates that specs may skip, and that no step waits for.
pub const WITHOUT_EFFECT: &[&str] = &["RackAtATime", "SeedAvailable"];
