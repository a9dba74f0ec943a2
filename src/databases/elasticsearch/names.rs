//! Names of Elasticsearch that are a contract: labels, ports, and the names of the objects that
//! belong to a cluster. Changing one is a breaking change.

use super::predicates::{PREDICATES, WITHOUT_EFFECT};
use crate::api::{database_names::DatabaseNames, names::port::METRICS};

pub const NAMES: DatabaseNames = DatabaseNames {
    kind: "ElasticsearchCluster",
    plural: "elasticsearchclusters",
    singular: "elasticsearchcluster",
    short_names: &["esc", "elasticsearch"],
    word: "elasticsearch",
    title: "Elasticsearch",
    prefix: "es",
    container: "elasticsearch",
    data_volume: "elasticsearch-data",
    data_dir: "/usr/share/elasticsearch/data",
    cluster_label: label::CLUSTER,
    pool_label: label::NODE_POOL,
    predicates: PREDICATES,
    without_effect: WITHOUT_EFFECT,
    ports: &[("transport", port::TRANSPORT), ("http", port::HTTP), ("prometheus", METRICS)],
    node_ports: &["transport"],
    leader_lease: |cluster| format!("elastic-{cluster}-leaderelection"),
    role: "",
    services: &["", "-discovery"],
};

pub mod label {
    pub const CLUSTER: &str = "navigator.jetstack.io/elasticsearch-cluster-name";
    pub const NODE_POOL: &str = "navigator.jetstack.io/elasticsearch-node-pool-name";
    /// Prefix of the labels for roles, followed by the role; the value is `"true"`.
    pub const ROLE_PREFIX: &str = "navigator.jetstack.io/elasticsearch-role-";
}

/// Annotation on StatefulSets with the version, as upstream has it.
pub const VERSION_ANNOTATION: &str = "navigator.jetstack.io/elasticsearch-version";

pub mod port {
    pub const HTTP: u16 = 9200;
    pub const TRANSPORT: u16 = 9300;
}

pub fn discovery_service(cluster: &str) -> String {
    format!("es-{cluster}-discovery")
}

pub const DEFAULT_UID: i64 = 1000;
pub const DEFAULT_IMAGE_REPOSITORY: &str = "docker.elastic.co/elasticsearch/elasticsearch";
