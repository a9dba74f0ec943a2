//! RedisCluster, as the API knows it: node pools of equal nodes, with no fields of its own, and
//! what a Pilot of Redis reports.

use navigator::{
    api::{
        cluster_kind::{ClusterKind, NoOlderVersion, Nothing},
        database_names::DatabaseNames,
        pilot_part::{ErasedPilotPart, PilotPart},
        predicate::Predicate,
        schema::SchemaMarkers,
        scheme::{KindEntry, ServedDatabase},
        v1beta1::{Cluster, NodeChange},
        validation::{ClusterRules, SecuritySupport, Validator},
    },
    machinery::field_error::FieldPath,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Redis, as the API knows it.
pub(crate) const DATABASE: ServedDatabase = ServedDatabase {
    cluster: KindEntry::new::<Cluster<Redis>>(),
    part: ErasedPilotPart::new::<RedisNode>(),
    rows: SchemaMarkers {
        descriptions: &[("RedisCluster", "", "A Redis primary and its replicas.")],
        enums: &[("PilotRedisStatus", "role", &["primary", "replica"])],
        max_items: &[],
        max_bytes: &[],
        defaults: &[],
    },
};

pub(crate) const NAMES: DatabaseNames = DatabaseNames {
    kind: "RedisCluster",
    plural: "redisclusters",
    singular: "rediscluster",
    short_names: &["redis"],
    word: "redis",
    title: "Redis",
    prefix: "redis",
    container: "redis",
    data_volume: "redis-data",
    data_dir: "/data",
    cluster_label: "navigator.jetstack.io/redis-cluster-name",
    pool_label: "navigator.jetstack.io/redis-node-pool-name",
    predicates: &[PRIMARY_KNOWN, REPLICA_IN_SYNC, ELECTION_POSSIBLE, COPIES_ELSEWHERE],
    without_effect: &[],
    ports: &[("redis", PORT)],
    node_ports: &[],
    leader_lease: |cluster| format!("redis-{cluster}-leaderelection"),
    role: "-pilot",
    services: &["-nodes", "-client"],
};
pub(crate) const PORT: u16 = 6379;

pub(crate) const PRIMARY_KNOWN: Predicate = Predicate {
    against: &[NodeChange::Stop, NodeChange::Leave],
    ..Predicate::against_stop("PrimaryKnown", "no primary answers")
};
pub(crate) const REPLICA_IN_SYNC: Predicate =
    Predicate::against_stop("ReplicaInSync", "no replica has what this node, the primary, has");
pub(crate) const ELECTION_POSSIBLE: Predicate = Predicate::against_stop(
    "ElectionPossible",
    "no primary answers, and a node that may have more than the others is silent",
);
pub(crate) const COPIES_ELSEWHERE: Predicate = Predicate::against_decommission(
    "CopiesElsewhere",
    "it is to leave, and no node that stays has a copy of its data",
);

/// Settings that follow from what Navigator does with Redis.
pub(crate) const MANAGED: &[&str] = &[
    "aclfile",
    "appendfsync",
    "appendonly",
    "bind",
    "cluster-announce-hostname",
    "cluster-announce-ip",
    "cluster-enabled",
    "daemonize",
    "dir",
    "include",
    "masterauth",
    "masteruser",
    "no-appendfsync-on-rewrite",
    "port",
    "protected-mode",
    "rename-command",
    "repl-ping-replica-period",
    "replica-announce-ip",
    "replica-read-only",
    "replica-serve-stale-data",
    "replicaof",
    "requirepass",
    "slaveof",
    "tls-auth-clients",
    "tls-ca-cert-dir",
    "tls-ca-cert-file",
    "tls-cert-file",
    "tls-key-file",
    "tls-port",
    "tls-replication",
    "user",
];

/// What only a RedisCluster has, in spec and node pools: nothing.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
pub(crate) struct Redis {}

impl ClusterKind for Redis {
    const NAMES: &'static DatabaseNames = &NAMES;

    type Pool = Nothing;
    type Role = Nothing;
    type Older = NoOlderVersion;
}

impl ClusterRules for Redis {
    const MANAGED: &'static [&'static str] = MANAGED;
    const SECURITY: Option<SecuritySupport> = Some(SecuritySupport {
        since: (7, 0),
        all_at_once: true,
        one_port: true,
        reserved_users: &["admin", "default"],
        makes_roles: false,
    });

    fn validate_version(validator: &mut Validator, version: &str, path: &FieldPath) {
        if let Some(why) = unsupported(version) {
            validator.forbidden(path, &why);
        }
    }
}

pub(crate) fn unsupported(version: &str) -> Option<String> {
    (!version.starts_with("7.")).then(|| format!("{version:?} is not supported, only 7.x is"))
}

/// The part of a Pilot that is Redis' own.
pub(crate) struct RedisNode;

impl PilotPart for RedisNode {
    const NAMES: &'static DatabaseNames = &NAMES;
    type Spec = Nothing;
    type Status = PilotRedisStatus;
    type Older = NoOlderVersion;
}

/// What only Redis reports.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PilotRedisStatus {
    /// `primary` or `replica`.
    pub(crate) role: String,
    /// The Pilot of the primary, as the node's data name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) primary: Option<String>,
    /// Counts the primaries that there were.
    pub(crate) epoch: u64,
    /// The epoch whose primary the node follows no more, whatever happens.
    pub(crate) released: u64,
    /// How much of the primary's writes it has; unknown after a start, until it is linked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) offset: Option<u64>,
    /// A replica gets what the primary writes.
    pub(crate) link_up: bool,
}
