//! Cassandra's settings that Navigator decides, for validation and for rendering.

use serde_json::{Map, Value};

use crate::api::reserved_fields::is_key_covered;

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

/// Those that are Navigator's where the cluster asks for passwords.
const MANAGED_WITH_LOGINS: &[&str] = &["authenticator", "authorizer", "role_manager"];

/// May only Navigator set `key`, a dotted name? `requires_password`: the cluster asks for passwords
/// (V66).
pub fn is_managed(key: &str, requires_password: bool) -> bool {
    let is_of = |names: &[&str]| names.iter().any(|name| is_key_covered(name, key));
    is_of(MANAGED) || requires_password && is_of(MANAGED_WITH_LOGINS)
}

/// Is `value` what Navigator sets `key` to, where the cluster asks for passwords?
pub fn is_restated(key: &str, value: &Value) -> bool {
    let class = match key.strip_suffix(".class_name").unwrap_or(key) {
        "authenticator" => "PasswordAuthenticator",
        "authorizer" => "CassandraAuthorizer",
        "role_manager" => "CassandraRoleManager",
        _ => return false,
    };
    let name = value.as_str().unwrap_or_default();
    name.strip_prefix("org.apache.cassandra.auth.").unwrap_or(name) == class
}

/// Does a Cassandra with the settings `config` accept clients without a password?
pub fn is_authentication_off(config: &Map<String, Value>) -> bool {
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
    fn who_may_log_in_is_the_users_to_set_unless_passwords_are_asked_for() {
        for key in ["authenticator", "authenticator.class_name", "authorizer", "role_manager"] {
            assert!(is_managed(key, true) && !is_managed(key, false), "{key}");
        }
        for key in ["cluster_name", "client_encryption_options.enabled"] {
            assert!(is_managed(key, true) && is_managed(key, false), "{key}");
        }
        assert!(!is_managed("roles_validity", true));
    }

    #[test]
    fn settings_that_say_what_navigator_says_may_stay() {
        for (key, value, expected) in [
            ("authenticator", json!("PasswordAuthenticator"), true),
            (
                "authenticator.class_name",
                json!("org.apache.cassandra.auth.PasswordAuthenticator"),
                true,
            ),
            ("authorizer", json!("CassandraAuthorizer"), true),
            ("role_manager", json!("CassandraRoleManager"), true),
            ("authenticator", json!("mine.PasswordAuthenticator2"), false),
            ("authenticator", json!("AllowAllAuthenticator"), false),
            ("authenticator.parameters.a", json!("PasswordAuthenticator"), false),
            ("cluster_name", json!("PasswordAuthenticator"), false),
        ] {
            assert_eq!(is_restated(key, &value), expected, "{key} {value}");
        }
    }

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
            assert_eq!(is_authentication_off(config.as_object().unwrap()), expected, "{config}");
        }
    }
}
