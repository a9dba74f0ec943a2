//! What Navigator decides of a database, known to validation and to those who render: settings
//! that nobody else may set, because what is rendered wins, and the versions that are run.

use serde_json::{Map, Value};

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

/// What of a pod template holds parts of Navigator's, so that `null` must not remove it; and in
/// the database's own container.
pub const KEPT_IN_PODS: [&[&str]; 7] = [
    &["metadata"],
    &["metadata", "labels"],
    &["metadata", "annotations"],
    &["spec"],
    &["spec", "containers"],
    &["spec", "initContainers"],
    &["spec", "volumes"],
];
pub const KEPT_IN_CONTAINERS: [&str; 2] = ["env", "volumeMounts"];

/// Major and minor version of the Cassandras that are run.
pub const CASSANDRA_RELEASES: [(u64, u64); 3] = [(4, 0), (4, 1), (5, 0)];

/// Does a Cassandra with these settings ask nobody for a password?
pub fn lets_everybody_in(config: &Map<String, Value>) -> bool {
    let authenticator = match config.get("authenticator") {
        // 5.0 takes a class with parameters too.
        Some(Value::Object(class)) => class.get("class_name"),
        authenticator => authenticator,
    };
    let name = authenticator.and_then(Value::as_str).unwrap_or("AllowAllAuthenticator");
    name.rsplit('.').next() == Some("AllowAllAuthenticator")
}

/// Is `key` the setting that `pattern` names, or a part of it?
pub fn covers(pattern: &str, key: &str) -> bool {
    let stem = pattern.strip_suffix(".*").unwrap_or(pattern);
    key.strip_prefix(stem).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_an_authenticator_that_asks_keeps_anybody_out() {
        for (config, expected) in [
            (json!({}), true),
            (json!({"authenticator": null}), true),
            (json!({"authenticator": "org.apache.cassandra.auth.AllowAllAuthenticator"}), true),
            (json!({"authenticator": {"class_name": "AllowAllAuthenticator"}}), true),
            (json!({"authenticator": "PasswordAuthenticator"}), false),
            (json!({"authenticator": {"class_name": "PasswordAuthenticator"}}), false),
        ] {
            assert_eq!(lets_everybody_in(config.as_object().unwrap()), expected, "{config}");
        }
    }
}
