//! Elasticsearch's settings that Navigator decides, for validation and for rendering.

use crate::api::reserved_fields::is_key_covered;

/// Names of settings that only Navigator may set, because the rendered ones win over the user's.
/// `*` stands for any text.
pub const MANAGED: &[&str] = &[
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

/// Those of them that are the user's where the cluster asks for passwords: what is written into the
/// audit trail, realms beside our own, and what TLS may speak.
const FREE: &[&str] = &[
    "xpack.security.audit.*",
    "xpack.security.authc.*",
    "xpack.security.http.ssl.cipher_suites",
    "xpack.security.http.ssl.supported_protocols",
    "xpack.security.transport.ssl.cipher_suites",
    "xpack.security.transport.ssl.supported_protocols",
];

/// Those of the free ones that stay Navigator's: by them somebody without a login of the spec would
/// come in, or nobody with one.
const KEPT: &[&str] = &[
    "xpack.security.authc.anonymous.*",
    "xpack.security.authc.realms.file.*",
    "xpack.security.authc.reserved_realm.*",
];

/// May only Navigator set `key`, a dotted name? `asks`: the cluster asks for passwords.
pub fn is_managed(key: &str, requires_password: bool) -> bool {
    let is_of = |patterns: &[&str]| patterns.iter().any(|pattern| is_key_covered(pattern, key));
    is_of(MANAGED) && !(requires_password && is_of(FREE) && !is_of(KEPT))
}

#[cfg(test)]
mod tests {
    use super::is_managed;

    #[test]
    fn some_settings_of_security_are_free_where_passwords_are_asked_for() {
        let free = [
            "xpack.security.audit.enabled",
            "xpack.security.audit.logfile.events.include",
            "xpack.security.authc.realms.ldap.ours.url",
            "xpack.security.authc.api_key.enabled",
            "xpack.security.http.ssl.supported_protocols",
            "xpack.security.transport.ssl.cipher_suites",
        ];
        let kept = [
            "xpack.security.enabled",
            "xpack.security.http.ssl.enabled",
            "xpack.security.http.ssl.key",
            "xpack.security.transport.ssl.verification_mode",
            "xpack.security.authc.anonymous.roles",
            "xpack.security.authc.realms.file",
            "xpack.security.authc.realms.file.file1.order",
            "xpack.security.authc.reserved_realm.enabled",
            "xpack.security.auditor",
            "path.data",
        ];
        for key in free {
            assert!(is_managed(key, false) && !is_managed(key, true), "{key}");
        }
        for key in kept {
            assert!(is_managed(key, false) && is_managed(key, true), "{key}");
        }
        for asks in [false, true] {
            assert!(!is_managed("xpack.monitoring.enabled", asks));
        }
    }
}
