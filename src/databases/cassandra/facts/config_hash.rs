//! Decides when a Cassandra node has to be restarted.

use serde_json::{Value, json};

use super::super::v1beta1::{CassandraNode, PilotCassandraSpec};
use crate::{api::v1beta1::PilotSpec, engine::config_hash};

/// Returns a hash of the parts of a Pilot's spec whose change needs a restart of Cassandra.
pub fn config_hash(spec: &PilotSpec) -> String {
    let object = || spec.cluster_ref.as_ref().map(|cluster| cluster.name.clone());
    // A ring keeps its name. Earlier releases gave the object's name to each that the spec does not
    // name, so their hashes hold it.
    let node_part = spec.part::<CassandraNode>().map(|part| PilotCassandraSpec {
        cluster_name: part.cluster_name.or_else(object),
        new_cluster_name: None,
        ..part
    });
    config_hash::config_hash(spec, vec![Value::Null, json!(node_part)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1beta1::ClusterRef;

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
        let mut cassandra = common("5.0.6");
        let part = PilotCassandraSpec {
            cluster_name: Some("shop".to_owned()),
            new_cluster_name: None,
            datacenter: Some("eu".to_owned()),
            rack: Some("a".to_owned()),
            num_tokens: Some(16),
            additional_seeds: vec!["seed.example.org".to_owned()],
        };
        cassandra.set_part::<CassandraNode>(&part);
        let bare = PilotSpec { version: Some("5.0.6".to_owned()), ..PilotSpec::default() };
        let stored = [&bare, &cassandra].map(config_hash);
        assert_eq!(stored, ["4d2c7d0210e8ac85", "2cc3397c38ac72c5"]);

        // The Pilot is made again, by a release that gives a new ring another name.
        let mut unnamed = cassandra.clone();
        unnamed.set_part::<CassandraNode>(&PilotCassandraSpec {
            cluster_name: None,
            new_cluster_name: Some("shop-1a2b3c4d".to_owned()),
            ..part
        });
        let kind = "CassandraCluster".to_owned();
        unnamed.cluster_ref = Some(ClusterRef { kind, name: "shop".to_owned() });
        assert_eq!(config_hash(&unnamed), stored[1], "the ring keeps its name");
    }
}
