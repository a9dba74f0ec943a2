//! The databases that this build can run: one entry each, and nothing else names them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    cassandra::Cassandra, database::Database, elasticsearch::Elasticsearch, volume::Volume,
};
use crate::{
    api::{names, v1beta1::Pilot},
    engine,
};

/// What the pilot must know of a flavour before its [`Database`] exists.
#[derive(Debug)]
pub struct Flavour {
    /// The word on the command line.
    pub word: &'static str,
    /// The name as people write it.
    pub title: &'static str,
    /// Kind of the cluster object.
    pub kind: &'static str,
    /// Variable by which the vendor's image says where the database is, and where it is when
    /// that is not set.
    pub home_variable: &'static str,
    pub home: &'static str,
    pub data: &'static str,
    /// Reason of the conditions while the process runs.
    pub started: &'static str,
    /// Name of the container in the pod.
    pub container: &'static str,
    /// TCP ports that it listens on at the node's address.
    pub ports: &'static [u16],
    /// Label that names the cluster on its Pilots.
    pub cluster_label: &'static str,
    /// Name of the LeaderLease of a cluster's pilots.
    pub lease: fn(&str) -> String,
    /// The node belongs to a database cluster that exists elsewhere: it never founds.
    pub joins_elsewhere: fn(&Pilot) -> bool,
    /// The rule that forbids to stop a node that does not say how it is.
    pub unseen: &'static str,
    /// Do files of the database lie in this data directory?
    pub has_data: fn(&Path) -> bool,
    /// Prefix of the name of a node's claim, followed by the name of the pod.
    pub claim: &'static str,
    /// What is said of the programs that run before the database, where there are any.
    pub preparation: Option<Preparation>,
    /// Makes the flavour from its configuration folder, its data directory and the way to that.
    pub make: fn(PathBuf, PathBuf, Volume) -> Arc<dyn Database>,
}

/// The condition that tells how [`Database::prepare`] went, and its reasons.
#[derive(Debug)]
pub struct Preparation {
    pub condition: &'static str,
    pub current: &'static str,
    pub failed: &'static str,
}

pub const CASSANDRA: Flavour = Flavour {
    word: "cassandra",
    title: "Cassandra",
    kind: "CassandraCluster",
    home_variable: "CASSANDRA_HOME",
    home: "/opt/cassandra",
    data: names::cassandra::DATA_DIR,
    started: "CassandraStarted",
    container: names::cassandra::CONTAINER,
    ports: &[names::port::CASSANDRA_STORAGE, names::port::CASSANDRA_CQL],
    cluster_label: names::label::CASSANDRA_CLUSTER,
    lease: names::cassandra::leader_lease,
    joins_elsewhere: |pilot| {
        pilot.spec.cassandra.as_ref().is_some_and(|spec| !spec.additional_seeds.is_empty())
    },
    unseen: "PeersUp",
    has_data: super::cassandra::has_data,
    claim: names::cassandra::DATA_VOLUME,
    preparation: None,
    make: |config, data, volume| Arc::new(Cassandra::new(config, data).on(volume)),
};

pub const ELASTICSEARCH: Flavour = Flavour {
    word: "elasticsearch",
    title: "Elasticsearch",
    kind: "ElasticsearchCluster",
    home_variable: "ES_HOME",
    home: engine::elasticsearch::DEFAULT_HOME,
    data: names::elasticsearch::DATA_DIR,
    started: "ElasticsearchStarted",
    container: names::elasticsearch::CONTAINER,
    ports: &[names::port::ELASTICSEARCH_TRANSPORT, names::port::ELASTICSEARCH_HTTP],
    cluster_label: names::label::ELASTICSEARCH_CLUSTER,
    lease: names::elasticsearch::leader_lease,
    joins_elsewhere: |_| false,
    unseen: "HealthNotRed",
    has_data: super::elasticsearch::has_data,
    claim: names::elasticsearch::DATA_VOLUME,
    preparation: Some(Preparation {
        condition: "PluginsInstalled",
        current: "PluginsCurrent",
        failed: "PluginInstallFailed",
    }),
    make: |_, data, volume| Arc::new(Elasticsearch::new(data).on(volume)),
};
