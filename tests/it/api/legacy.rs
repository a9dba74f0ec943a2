//! Older ways of writing v1alpha1 are understood, or refused with their replacement.

use navigator::{
    api::V1ALPHA1,
    machinery::{
        decode::{self, ParsedBody},
        served_kind::DecodeError,
        strict_decoding,
    },
};
use serde_json::{Value, json};

use crate::scheme;

fn normalize(kind: &str, body: Value) -> Result<(Value, Vec<String>), DecodeError> {
    let mut document = ParsedBody::from(body);
    let kind = scheme().by_kind(kind).unwrap();
    let normalized = kind.normalize(V1ALPHA1, &mut document);
    normalized.map(|warnings| (document.value, warnings))
}

fn causes(kind: &str, body: Value) -> Vec<String> {
    match normalize(kind, body) {
        Err(DecodeError::Invalid(errors)) => errors.iter().map(ToString::to_string).collect(),
        other => panic!("expected field errors, got {other:?}"),
    }
}

#[test]
fn the_seeds_unquoted_true_and_short_offset_are_understood() {
    let (value, warnings) = normalize(
        "Pilot",
        json!({"status": {"conditions": [
            {"type": "Ready", "status": true, "lastTransitionTime": "2017-10-01T19:00:00+00"},
            {"type": "Stopped", "status": false}]}}),
    )
    .unwrap();
    assert_eq!(
        value["status"]["conditions"],
        json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2017-10-01T19:00:00Z"},
            {"type": "Stopped", "status": "False"}])
    );
    assert!(warnings.is_empty());
}

#[test]
fn early_plugins_and_roles_are_rewritten_with_a_warning() {
    let (value, warnings) = normalize(
        "ElasticsearchCluster",
        json!({"spec": {"plugins": [{"name": "a"}, "b", "a"],
            "nodePools": [{"name": "p", "roles": ["client", "ingest", "data"]}]}}),
    )
    .unwrap();
    assert_eq!(value["spec"]["plugins"], json!(["a", "b"]));
    assert_eq!(value["spec"]["nodePools"][0]["roles"], json!(["ingest", "data"]));
    assert_eq!(
        warnings,
        [
            "spec.plugins[0]: object form is accepted and stored as a string",
            "spec.plugins: duplicate entries were removed",
            "spec.nodePools[0].roles[0]: \"client\" is stored as \"ingest\"",
            "spec.nodePools[0].roles: duplicate entries were removed",
        ]
    );
}

#[test]
fn forms_whose_meaning_changed_are_refused_with_their_replacement() {
    for kind in ["ElasticsearchCluster", "CassandraCluster"] {
        let found = causes(kind, json!({"spec": {"sysctl": ["a=b"], "image": {"fsGroup": 1}}}));
        assert!(found[0].starts_with("spec.image.fsGroup: Forbidden: in this early form"));
        assert!(found[1].starts_with("spec.sysctl: Forbidden: kernel settings"));
    }
    let found = causes(
        "ElasticsearchCluster",
        json!({"spec": {"plugins": [{"name": "a", "version": "1"}]}}),
    );
    assert!(found[0].starts_with("spec.plugins[0].version: Forbidden"), "{found:?}");
}

#[test]
fn a_version_without_quotes_is_refused() {
    let refused = normalize("CassandraCluster", json!({"spec": {"version": 3.11}}));
    assert_eq!(refused.unwrap_err().to_string(), "spec.version must be a string; put it in quotes");
}

#[test]
fn a_quantity_written_as_a_number_keeps_its_digits() {
    let mut document = decode::parse_json(
        br#"{"spec":{"nodePools":[{"name":"p","resources":{"limits":{"cpu":1.50,"memory":1e9}},
        "persistence":{"size":1073741824}}]}}"#,
    )
    .unwrap();
    let kind = scheme().by_kind("CassandraCluster").unwrap();
    kind.normalize(V1ALPHA1, &mut document).unwrap();
    strict_decoding::canonicalize_document(
        scheme().schemas().kind_schema(V1ALPHA1, "CassandraCluster"),
        &mut document,
    );
    let pool = &document.value["spec"]["nodePools"][0];
    assert_eq!(pool["resources"]["limits"], json!({"cpu": "1.50", "memory": "1e9"}));
    assert_eq!(pool["persistence"]["size"], "1073741824");
}

#[test]
fn decommission_has_three_spellings_that_must_agree() {
    for (spec, decommission) in [
        (json!({"inService": false}), true),
        (json!({"inService": true}), false),
        (json!({"phase": "Running"}), false),
        (json!({"phase": "Decomissioned"}), true),
        (json!({"phase": "Decommissioned", "inService": false, "decommission": true}), true),
    ] {
        let (value, _) = normalize("Pilot", json!({"spec": spec})).unwrap();
        assert_eq!(value, json!({"spec": {"decommission": decommission}}));
    }
    assert_eq!(
        causes("Pilot", json!({"spec": {"inService": false, "decommission": false}})),
        ["spec.inService: Invalid value: false: contradicts spec.decommission"]
    );
    assert_eq!(
        causes("Pilot", json!({"spec": {"phase": "Fenced"}})),
        [
            "spec.phase: Unsupported value: \"Fenced\": supported values: \"Running\", \"Decommissioned\""
        ]
    );
}
