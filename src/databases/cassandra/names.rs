//! Names of Cassandra that are a contract: labels, ports, and the names of the objects that belong
//! to a cluster. Changing one is a breaking change.

use super::predicates::{PREDICATES, WITHOUT_EFFECT};
use crate::api::{database_names::DatabaseNames, names::port::METRICS};

pub const NAMES: DatabaseNames = DatabaseNames {
    kind: "CassandraCluster",
    plural: "cassandraclusters",
    singular: "cassandracluster",
    short_names: &["cassandra", "cassc"],
    word: "cassandra",
    title: "Cassandra",
    prefix: "cass",
    container: "cassandra",
    data_volume: "cassandra-data",
    data_dir: "/var/lib/cassandra",
    cluster_label: label::CLUSTER,
    pool_label: label::NODE_POOL,
    predicates: PREDICATES,
    without_effect: WITHOUT_EFFECT,
    ports: &[
        ("intra-node", port::STORAGE),
        ("intra-node-tls", port::STORAGE_TLS),
        ("cql", port::CQL),
        ("prometheus", METRICS),
    ],
    node_ports: &["intra-node", "intra-node-tls"],
    leader_lease: |cluster| format!("cassandra-{cluster}-leaderelection"),
    role: "-pilot",
    services: &["-seeds", "-nodes", "-client"],
};

pub mod label {
    pub const CLUSTER: &str = "navigator.jetstack.io/cassandra-cluster-name";
    pub const NODE_POOL: &str = "navigator.jetstack.io/cassandra-node-pool-name";
    /// Label `"true"`, which marks the pods of ordinal 0 and the seeds Service.
    pub const SEED: &str = "navigator.jetstack.io/cassandra-seed";
}

pub mod port {
    pub const STORAGE: u16 = 7000;
    pub const STORAGE_TLS: u16 = 7001;
    pub const CQL: u16 = 9042;
}

/// Returns the name of the headless Service over all nodes.
pub fn nodes_service(cluster: &str) -> String {
    format!("cass-{cluster}-nodes")
}
/// Returns the name of the headless Service over the nodes of ordinal 0; it publishes addresses
/// that are not ready.
pub fn seeds_service(cluster: &str) -> String {
    format!("cass-{cluster}-seeds")
}
/// Returns the name of the Service for clients, made only when `spec.services.client.type` is set.
pub fn client_service(cluster: &str) -> String {
    format!("cass-{cluster}-client")
}
/// Uid and gid of the database when the user sets none.
pub const DEFAULT_UID: i64 = 999;
pub const DEFAULT_DATACENTER: &str = "navigator-default-datacenter";
pub const DEFAULT_IMAGE_REPOSITORY: &str = "docker.io/cassandra";
