//! When two intents for a node need the same running process, and when a restart lies between.

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::api::v1beta1::{PilotElasticsearchSpec, PilotSpec};

/// Hash of everything in a Pilot's spec that needs a restart to take effect. The controller
/// writes it to `spec.configHash`; the pilot shows the one that its process was started with.
///
/// It is stored with every Pilot: a change of how it is made restarts every database at the next
/// upgrade. So a new field is left out while it is unset (`skip_serializing_if`), and what a
/// further database needs is pushed behind the others only where it is set. The literal hashes in
/// the tests hold that.
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
    use crate::api::v1beta1::{
        ElasticsearchPlugin, PilotCassandraSpec, PilotElasticsearchSpec, PilotIntent,
    };

    /// These hashes stand in Pilots of running databases. If this test fails, so would every user's
    /// database be restarted by an upgrade: mend the code, not the numbers.
    #[test]
    fn hashes_that_released_controllers_stored_stay_what_they_are() {
        let common = |version: &str| PilotSpec {
            version: Some(version.to_owned()),
            restarted_at: serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap(),
            config: serde_json::from_value(json!({"a": {"b": [1, "x"]}, "c.d": true})).unwrap(),
            jvm: serde_json::from_value(json!({"heap": "1Gi", "options": ["-Xlog:gc"]})).unwrap(),
            ..PilotSpec::default()
        };
        let cassandra = PilotCassandraSpec {
            cluster_name: Some("shop".to_owned()),
            datacenter: Some("eu".to_owned()),
            rack: Some("a".to_owned()),
            num_tokens: Some(16),
            additional_seeds: vec!["seed.example.org".to_owned()],
        };
        let elasticsearch = PilotElasticsearchSpec {
            roles: vec!["master".to_owned()],
            zone: Some("a".to_owned()),
            minimum_masters: Some(2),
            plugins: vec![ElasticsearchPlugin { name: "icu".to_owned(), ..Default::default() }],
        };
        let cassandra = PilotSpec { cassandra: Some(cassandra), ..common("5.0.6") };
        let elasticsearch = PilotSpec { elasticsearch: Some(elasticsearch), ..common("8.19.4") };
        let bare = PilotSpec { version: Some("5.0.6".to_owned()), ..PilotSpec::default() };
        let stored = [&bare, &cassandra, &elasticsearch].map(config_hash);
        assert_eq!(stored, ["4d2c7d0210e8ac85", "2cc3397c38ac72c5", "b8c5968facbf9ea7"]);
    }

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
