//! What Navigator decides of a database, known to validation and to those who render: settings
//! that nobody else may set, because what is rendered wins, and the versions that are run.

/// `*` stands for anything.
pub const ELASTICSEARCH: &[&str] = &[
    "cluster.name",
    "node.name",
    "node.roles",
    "node.master",
    "node.data",
    "node.ingest",
    "path.*",
    "network.host",
    "network.bind_host",
    "network.publish_host",
    "http.port",
    "transport.port",
    "transport.tcp.port",
    "discovery.*",
    "cluster.initial_master_nodes",
    "xpack.security.*",
];

pub const CASSANDRA: &[&str] = &[
    "cluster_name",
    "num_tokens",
    "seed_provider",
    "listen_address",
    "broadcast_address",
    "rpc_address",
    "broadcast_rpc_address",
    "storage_port",
    "ssl_storage_port",
    "native_transport_port",
    "endpoint_snitch",
    "data_file_directories",
    "commitlog_directory",
    "saved_caches_directory",
    "hints_directory",
    "cdc_raw_directory",
    "auto_bootstrap",
    "initial_token",
    "server_encryption_options",
    "client_encryption_options",
];

/// Major and minor version of the Cassandras that are run.
pub const CASSANDRA_RELEASES: [(u64, u64); 3] = [(4, 0), (4, 1), (5, 0)];

/// Is `key` the setting that `pattern` names, or a part of it?
pub fn covers(pattern: &str, key: &str) -> bool {
    let stem = pattern.strip_suffix(".*").unwrap_or(pattern);
    key.strip_prefix(stem).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
