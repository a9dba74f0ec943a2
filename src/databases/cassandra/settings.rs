//! Cassandra's settings that Navigator decides, for validation and for rendering.

use serde_json::{Map, Value};

/// Names of settings that only Navigator may set, because the rendered ones win over the user's.
pub const MANAGED: &[&str] = &[
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

/// Does a Cassandra with the settings `config` accept clients without a password?
pub fn lets_everybody_in(config: &Map<String, Value>) -> bool {
    let authenticator = match config.get("authenticator") {
        // 5.0 accepts a class with parameters, too.
        Some(Value::Object(class)) => class.get("class_name"),
        authenticator => authenticator,
    };
    let name = authenticator.and_then(Value::as_str).unwrap_or("AllowAllAuthenticator");
    name.rsplit('.').next() == Some("AllowAllAuthenticator")
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
