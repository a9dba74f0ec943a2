//! Decides when an Elasticsearch node has to be restarted.

use serde_json::{Value, json};

use super::super::v1beta1::{ElasticsearchNode, PilotElasticsearchSpec};
use crate::{api::v1beta1::PilotSpec, engine::config_hash};

/// Returns a hash of the parts of a Pilot's spec whose change needs a restart of Elasticsearch.
pub fn config_hash(spec: &PilotSpec) -> String {
    // A new quorum reaches running nodes through the cluster's settings, without a restart. A cluster
    // keeps its name.
    let node_part = spec.part::<ElasticsearchNode>();
    let node_part = node_part.map(|spec| PilotElasticsearchSpec {
        minimum_masters: None,
        new_cluster_name: None,
        ..spec
    });
    config_hash::config_hash(spec, vec![json!(node_part), Value::Null])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::databases::elasticsearch::v1beta1::ElasticsearchPlugin;

    /// These hashes are stored in Pilots of running databases. If this test fails, an upgrade would
    /// restart every user's database: repair the code, not the numbers.
    #[test]
    fn hashes_that_released_controllers_stored_stay_what_they_are() {
        let common = |version: &str| PilotSpec {
            version: Some(version.to_owned()),
            restarted_at: serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap(),
            config: serde_json::from_value(json!({"a": {"b": [1, "x"]}, "c.d": true})).unwrap(),
            jvm: serde_json::from_value(json!({"heap": "1Gi", "options": ["-Xlog:gc"]})).unwrap(),
            ..PilotSpec::default()
        };
        let mut elasticsearch = common("8.19.4");
        let mut part = PilotElasticsearchSpec {
            new_cluster_name: None,
            roles: vec!["master".to_owned()],
            zone: Some("a".to_owned()),
            minimum_masters: Some(2),
            plugins: vec![ElasticsearchPlugin { name: "icu".to_owned(), ..Default::default() }],
        };
        elasticsearch.set_part::<ElasticsearchNode>(&part);
        let bare = PilotSpec { version: Some("5.0.6".to_owned()), ..PilotSpec::default() };
        let stored = [&bare, &elasticsearch].map(config_hash);
        assert_eq!(stored, ["4d2c7d0210e8ac85", "b8c5968facbf9ea7"]);

        part.minimum_masters = Some(3);
        elasticsearch.set_part::<ElasticsearchNode>(&part);
        part.new_cluster_name = Some("logs-1a2b3c4d".to_owned());
        elasticsearch.set_part::<ElasticsearchNode>(&part);
        assert_eq!(config_hash(&elasticsearch), stored[1], "a quorum is changed while nodes run");
    }
}
