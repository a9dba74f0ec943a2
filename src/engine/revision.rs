//! When two intents for a node need the same running process, and when a restart lies between.

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::api::v1beta1::{PilotElasticsearchSpec, PilotSpec};

/// Hash of everything in a Pilot's spec that needs a restart to take effect. The controller
/// writes it to `spec.configHash`; the pilot shows the one that its process was started with.
pub fn config_hash(spec: &PilotSpec) -> String {
    let PilotSpec {
        cluster_ref: _,
        node_pool: _,
        phase: _,
        version,
        config_hash: _,
        restarted_at,
        pilot_update: _,
        config,
        jvm,
        elasticsearch,
        cassandra,
    } = spec;
    // A new quorum reaches running nodes through the cluster's settings.
    let elasticsearch = elasticsearch
        .as_ref()
        .map(|spec| PilotElasticsearchSpec { minimum_masters: None, ..spec.clone() });
    // serde_json's maps are sorted by key, so equal intents give equal bytes.
    let bytes = json!([version, restarted_at, config, jvm, elasticsearch, cassandra]).to_string();
    Sha256::digest(bytes).iter().take(8).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1beta1::PilotIntent;

    #[test]
    fn a_changed_setting_changes_the_hash_and_a_changed_phase_does_not() {
        let spec = PilotSpec { version: Some("5.0.6".to_owned()), ..PilotSpec::default() };
        let hash = config_hash(&spec);
        assert_eq!(hash.len(), 16);
        let fenced = PilotSpec { phase: Some(PilotIntent::Fenced), ..spec.clone() };
        assert_eq!(config_hash(&fenced), hash);
        let mut quorum = spec.clone();
        quorum.elasticsearch = Some(PilotElasticsearchSpec::default());
        let one = config_hash(&quorum);
        quorum.elasticsearch.as_mut().unwrap().minimum_masters = Some(2);
        assert_eq!(config_hash(&quorum), one, "a quorum is changed while nodes run");
        let mut tuned = spec;
        tuned.config.insert("concurrent_reads".to_owned(), json!(64));
        assert_ne!(config_hash(&tuned), hash);
    }
}
