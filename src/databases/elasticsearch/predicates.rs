//! The predicates of Elasticsearch alone. None speaks against a node that joins: room and copies
//! may be what a troubled cluster lacks.

use crate::api::{predicate::Predicate, v1beta1::NodeChange};

pub const HEALTH_NOT_RED: Predicate = Predicate {
    against: &[NodeChange::Stop, NodeChange::Leave],
    ..Predicate::against_stop("HealthNotRed", "some shard has no copy that serves")
};
pub const NO_SHARD_MOVEMENT: Predicate = Predicate {
    calm: true,
    ..Predicate::against_stop(
        "NoShardMovement",
        "shards recover, or move to this node or away from it",
    )
};
pub const SHARD_COPY_ELSEWHERE: Predicate = Predicate {
    way_out: Some(
        "if there are fewer data nodes than copies, lower index.number_of_replicas of the index, \
         or add data nodes",
    ),
    ..Predicate::against_stop(
        "ShardCopyElsewhere",
        "a shard has its only started copy on this node, and its index wants more",
    )
};
pub const QUORUM_KEPT: Predicate = Predicate::against_stop(
    "QuorumKept",
    "without this master fewer than a majority of more than two voters would be up; or: it is the \
     last node that can be elected master",
);
pub const SHARDS_MOVED_AWAY: Predicate = Predicate::against_spec(
    "ShardsMovedAway",
    "it is to lose its data role, and still has shards, which move to other nodes first",
);
pub const SHARDS_MAY_MOVE: Predicate = Predicate {
    needs_person: true,
    ..Predicate::against_spec(
        "ShardsMayMove",
        "it is to lose its data role, and its shards may go to no other node",
    )
};
pub const VOTE_MOVED_AWAY: Predicate = Predicate::against_spec(
    "VoteMovedAway",
    "it is to lose its master role, and another master gets its vote first",
);
pub const VOTE_MAY_MOVE: Predicate = Predicate {
    needs_person: true,
    ..Predicate::against_spec(
        "VoteMayMove",
        "it is to lose its master role, and no other node keeps that role",
    )
};
pub const COPIES_ELSEWHERE: Predicate = Predicate::against_decommission(
    "CopiesElsewhere",
    "it is to leave, and an index wants more copies than nodes would remain, or rules of \
     allocation keep its shards here",
);
pub const MASTERS_REMAIN: Predicate = Predicate::against_decommission(
    "MastersRemain",
    "it is to leave, and too few nodes that can be elected master would remain, or others are to \
     be masters and do not run with that role yet",
);

pub const PREDICATES: &[Predicate] = &[
    HEALTH_NOT_RED,
    NO_SHARD_MOVEMENT,
    SHARD_COPY_ELSEWHERE,
    QUORUM_KEPT,
    SHARDS_MOVED_AWAY,
    SHARDS_MAY_MOVE,
    VOTE_MOVED_AWAY,
    VOTE_MAY_MOVE,
    COPIES_ELSEWHERE,
    MASTERS_REMAIN,
];

/// Names of predicates that specs may skip, and that no step waits for.
pub const WITHOUT_EFFECT: &[&str] = &["OneMasterAtATime", "NonMastersFirst"];
