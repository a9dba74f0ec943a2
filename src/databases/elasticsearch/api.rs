//! Elasticsearch for the API: its kind of cluster, its part of a Pilot, and schema facts that its
//! types cannot express.

use super::{
    conversion::{ElasticsearchNodeV1alpha1, ElasticsearchV1alpha1},
    names,
    v1beta1::{
        Elasticsearch, ElasticsearchCluster, ElasticsearchNode, ElasticsearchRights,
        PilotElasticsearchSpec, PilotElasticsearchStatus, Roles,
    },
};
use crate::api::{
    cluster_kind::ClusterKind,
    database_names::DatabaseNames,
    pilot_part::{ErasedPilotPart, PilotPart},
    schema::SchemaMarkers,
    scheme::{KindEntry, ServedDatabase},
};

/// Elasticsearch's entry for the API.
pub const DATABASE: ServedDatabase = ServedDatabase {
    cluster: KindEntry::new::<ElasticsearchCluster>(),
    part: ErasedPilotPart::new::<ElasticsearchNode>(),
    rows: ROWS,
};

const PLUGIN_STATUSES: &[&str] = &["Unknown", "Pending", "Installed", "Failed", "Removing"];

const ROWS: SchemaMarkers = SchemaMarkers {
    descriptions: &[
        ("ElasticsearchCluster", "", "An Elasticsearch cluster: pools of nodes with roles."),
        ("ElasticsearchClusterSpec", "", "What is wanted of an Elasticsearch cluster."),
        (
            "ElasticsearchClusterSpec",
            "version",
            "Version of Elasticsearch in the form MAJOR.MINOR.PATCH, kept as written.",
        ),
        (
            "ElasticsearchClusterSpec",
            "image",
            "Image of the database. Defaults to `docker.elastic.co/elasticsearch/elasticsearch:<version>`.",
        ),
        (
            "ElasticsearchClusterSpec",
            "config",
            "Settings merged into elasticsearch.yml of every node.",
        ),
        (
            "ElasticsearchClusterSpec",
            "nodePools",
            "Groups of equal nodes, made in this order; those that can be elected master come first, whatever their place.",
        ),
        ("ElasticsearchNodePool", "", "Nodes with the same roles."),
        (
            "ElasticsearchNodePool",
            "zone",
            "Zone (`topology.kubernetes.io/zone`) in which the nodes run; also their awareness attribute `zone`. It cannot be changed.",
        ),
    ],
    enums: &[("PluginStatus", "status", PLUGIN_STATUSES)],
    max_items: &[
        ("ElasticsearchClusterSpec", "plugins", 50),
        ("ElasticsearchRole", "cluster", 100),
        ("ElasticsearchRole", "indices", 100),
        ("ElasticsearchRole", "applications", 100),
        ("ElasticsearchRole", "runAs", 100),
        ("IndexRights", "names", 100),
        ("IndexRights", "privileges", 100),
        ("ApplicationRights", "privileges", 100),
        ("ApplicationRights", "resources", 100),
    ],
    max_bytes: &[("ElasticsearchPlugin", "name", 512), ("PluginStatus", "message", 256)],
    defaults: &[],
};

impl ClusterKind for Elasticsearch {
    const NAMES: &'static DatabaseNames = &names::NAMES;

    type Pool = Roles;
    type Role = ElasticsearchRights;
    type Older = ElasticsearchV1alpha1;
}

impl PilotPart for ElasticsearchNode {
    const NAMES: &'static DatabaseNames = &names::NAMES;
    type Spec = PilotElasticsearchSpec;
    type Status = PilotElasticsearchStatus;
    type Older = ElasticsearchNodeV1alpha1;
}
