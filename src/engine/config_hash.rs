//! When two intents for a node need the same running process, and when a restart lies between.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::v1beta1::{PilotSecurity, PilotSpec};

/// Hash of everything in a Pilot's spec that needs a restart to take effect. The controller writes
/// it to `spec.configHash`; the pilot reports the hash that its process was started with.
///
/// `own` holds what counts of the database's own part of the spec, in a form that the database
/// chooses and keeps.
///
/// The hash is stored with every Pilot: a change of how it is made restarts every database at the
/// next upgrade. So a new field is left out while it is unset (`skip_serializing_if`), a database
/// passes what it always passed, and hashes made in another way get a prefix that says so; those of
/// this first way have none. Tests of each database hold that with literal hashes.
pub fn config_hash(spec: &PilotSpec, part_values: Vec<Value>) -> String {
    let PilotSpec {
        cluster_ref: _,
        node_pool: _,
        phase: _,
        version,
        config_hash: _,
        restarted_at,
        restart_for: _,
        pilot_update: _,
        pilot_settings: _,
        forget: _,
        unsafe_bootstrap: _,
        security,
        config,
        jvm,
        // Each database passes in `own` what counts of its part.
        parts: _,
    } = spec;
    let mut hashed_values = vec![json!(version), json!(restarted_at), json!(config), json!(jvm)];
    hashed_values.extend(part_values);
    // Certificates and users change under a running process.
    hashed_values.extend(security.as_ref().map(|security| {
        let PilotSecurity {
            internode,
            client,
            authentication,
            key: _,
            new_key_at: _,
            closes_logins: _,
            internode_certificate: _,
            client_certificate: _,
            users: _,
            client_auth,
            metrics: _,
        } = security;
        let mut security_value = json!({
            "internode": internode, "client": client, "authentication": authentication,
        });
        if let Some(client_auth_mode) = client_auth {
            security_value["clientAuth"] = json!(client_auth_mode);
        }
        security_value
    }));
    // serde_json's maps are sorted by key, so equal intents give equal bytes.
    let bytes = Value::from(hashed_values).to_string();
    let digest = Sha256::digest(bytes);
    digest.iter().take(8).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1beta1::PilotIntent;

    #[test]
    fn a_changed_setting_changes_the_hash_and_a_changed_phase_does_not() {
        let config_hash = |spec: &PilotSpec| super::config_hash(spec, Vec::new());
        let spec = PilotSpec { version: Some("5.0.6".to_owned()), ..PilotSpec::default() };
        let hash = config_hash(&spec);
        assert_eq!(hash.len(), 16);
        let fenced = PilotSpec { phase: Some(PilotIntent::Fenced), ..spec.clone() };
        assert_eq!(config_hash(&fenced), hash);
        assert_ne!(
            super::config_hash(&spec, vec![json!(1)]),
            hash,
            "what is a database's own counts"
        );
        let mut tuned = spec;
        tuned.config.insert("concurrent_reads".to_owned(), json!(64));
        assert_ne!(config_hash(&tuned), hash);
    }
}
