//! Bodies are understood strictly: what is unknown, repeated or of another type is named.

use navigator::{
    api::V1BETA1,
    machinery::{
        decode,
        schema::compiled::Schema,
        strict_decoding::{canonicalize_document, check_document},
    },
};
use serde_json::json;

use crate::scheme;

fn cassandra() -> &'static Schema {
    scheme().schemas().kind_schema(V1BETA1, "CassandraCluster")
}

fn found(text: &str) -> (Vec<String>, Vec<String>) {
    let strict = check_document(cassandra(), &decode::parse_yaml(text.as_bytes()).unwrap());
    (strict.fields, strict.type_errors.iter().map(ToString::to_string).collect())
}

#[test]
fn every_unknown_and_duplicate_field_is_named() {
    let (fields, errors) = found(
        "metadata: {name: a, colour: red}\nspec:\n  foo: 1\n  version: '5.0.6'\n  \
         version: '5.0.6'\n  config: {anything: {goes: 1}}\n  nodePools:\n  \
         - {name: a, rackk: b, persistence: {sise: 1Gi}}\n  \
         podTemplate: {spec: {containers: [{name: x, imagee: y}], nodeSelektor: {}}}\n",
    );
    assert_eq!(
        fields,
        [
            "unknown field \"metadata.colour\"",
            "unknown field \"spec.foo\"",
            "unknown field \"spec.nodePools[0].persistence.sise\"",
            "unknown field \"spec.nodePools[0].rackk\"",
            "unknown field \"spec.podTemplate.spec.containers[0].imagee\"",
            "unknown field \"spec.podTemplate.spec.nodeSelektor\"",
            "duplicate field \"spec.version\"",
        ]
    );
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn every_wrong_type_is_named() {
    let (fields, errors) = found(
        "metadata: {name: 1, labels: {a: true}}\nspec:\n  version: 3.11\n  numTokens: '16'\n  \
         paused: 'yes'\n  restartedAt: yesterday\n  updateStrategy: {maxUnavailable: 1.5}\n  \
         nodePools:\n  - {replicas: 99999999999, resources: {limits: {cpu: 2}}}\n  - null\n",
    );
    assert!(fields.is_empty(), "{fields:?}");
    let wrong = |path: &str, expected: &str, value: &str| {
        format!(
            "{path}: Invalid value: {value}: {path} in body must be of type {expected}: {value}"
        )
    };
    let unquoted = |path: &str, written: &str| {
        format!(
            "{path}: Invalid value: {written:?}: {path} in body must be of type string: write \
             it in quotes"
        )
    };
    assert_eq!(
        errors,
        [
            unquoted("metadata.labels.a", "true"),
            unquoted("metadata.name", "1"),
            wrong("spec.nodePools[0].replicas", "int32", "99999999999"),
            "spec.nodePools[0].name: Required value".to_owned(),
            wrong("spec.nodePools[1]", "object", "\"null\""),
            wrong("spec.numTokens", "integer", "\"string\""),
            wrong("spec.paused", "boolean", "\"string\""),
            wrong("spec.restartedAt", "date-time", "\"yesterday\""),
            unquoted("spec.updateStrategy.maxUnavailable", "1.5"),
            unquoted("spec.version", "3.11"),
        ]
    );
}

#[test]
fn null_is_absent_and_quantities_keep_their_digits() {
    let text = br#"{"metadata":{"creationTimestamp":null},"spec":{"image":null,
        "config":{"a":null},"jvm":{"heap":1.50},
        "nodePools":[{"name":"a","resources":{"limits":{"cpu":2,"memory":1e9}}}]}}"#;
    let mut document = decode::parse_json(text).unwrap();
    canonicalize_document(cassandra(), &mut document);
    assert_eq!(
        document.value,
        json!({"metadata": {}, "spec": {"config": {"a": null}, "jvm": {"heap": "1.50"},
            "nodePools": [{"name": "a", "resources": {"limits": {"cpu": "2", "memory": "1e9"}}}]}})
    );
}
