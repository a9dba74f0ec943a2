//! The OpenAPI documents: what kubectl and kube-aggregator rely on.

use std::collections::BTreeSet;

use navigator::{
    api::{GROUP, V1ALPHA1, V1BETA1, VERSIONS},
    machinery::{
        openapi::{build_v2, build_v3},
        schema::kubernetes_definitions,
        served_kind::ServedVersion,
    },
};
use serde_json::{Value, json};

use crate::scheme;

/// Without strategic merge patches, of which kubectl would send one.
const PATCHES: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

#[test]
fn patch_offers_what_kubectl_looks_for() {
    for version in VERSIONS {
        let path = format!("/apis/{GROUP}/{version}/namespaces/{{namespace}}/pilots/{{name}}");
        let patch = &build_v3(scheme(), version)["paths"][&path]["patch"];
        assert_eq!(patch["x-kubernetes-action"], "patch");
        assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Pilot");
        let names: Vec<&str> = patch["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|parameter| parameter["in"] == "query")
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["dryRun", "fieldManager", "fieldValidation", "force"]);
        let types = patch["requestBody"]["content"].as_object().unwrap();
        let offered: BTreeSet<&str> = types.keys().map(String::as_str).collect();
        assert_eq!(offered, BTreeSet::from(PATCHES));
        let consumes = &build_v2(scheme())["paths"][&path]["patch"]["consumes"];
        assert_eq!(*consumes, json!(PATCHES));
    }
}

#[test]
fn kubernetes_definitions_are_word_for_word_upstreams_in_version_2() {
    let mut compared = 0;
    for (name, definition) in build_v2(scheme())["definitions"].as_object().unwrap() {
        if let Some(upstream) = kubernetes_definitions().get(name) {
            let mut ours = definition.clone();
            ours.as_object_mut().unwrap().remove("x-kubernetes-group-version-kind");
            assert_eq!(&ours, upstream, "{name}");
            compared += 1;
        }
    }
    assert!(compared > 50, "{compared} definitions compared");
}

#[test]
fn every_reference_of_the_documents_has_a_target() {
    fn walk(document: &Value, value: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(target)) = fields.get("$ref") {
                    let pointer = target.trim_start_matches('#');
                    assert!(document.pointer(pointer).is_some(), "{target} is missing");
                }
                fields.values().for_each(|value| walk(document, value));
            }
            Value::Array(items) => items.iter().for_each(|item| walk(document, item)),
            _ => {}
        }
    }
    let all = VERSIONS.map(|version| build_v3(scheme(), version));
    for document in all.iter().chain([&build_v2(scheme())]) {
        walk(document, document);
    }
}

#[test]
fn operation_ids_are_unique() {
    let mut seen = BTreeSet::new();
    for (path, item) in build_v2(scheme())["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values().filter(|value| value.is_object()) {
            let id = operation["operationId"].as_str().unwrap();
            assert!(seen.insert(id.to_owned()), "{id} occurs again at {path}");
        }
    }
}

/// Clients that are generated from the documents send a token, and are sorted by tags.
#[test]
fn operations_have_the_tag_of_their_version_and_a_token() {
    let token = json!({
        "description": "Bearer Token authentication",
        "in": "header", "name": "authorization", "type": "apiKey",
    });
    let old = build_v2(scheme());
    assert_eq!(old["securityDefinitions"], json!({"BearerToken": token}));
    assert_eq!(old["security"], json!([{"BearerToken": []}]));
    let mut documents = vec![old];
    for version in VERSIONS {
        let document = build_v3(scheme(), version);
        assert_eq!(document["components"]["securitySchemes"], json!({"BearerToken": token}));
        documents.push(document);
    }
    for document in documents {
        for (path, item) in document["paths"].as_object().unwrap() {
            let version = path.split('/').nth(3).unwrap();
            let expected = format!("navigatorJetstackIo_{version}");
            for operation in item.as_object().unwrap().values().filter(|value| value.is_object()) {
                assert_eq!(operation["tags"], json!([expected]), "{path}");
            }
        }
    }
}

#[test]
fn lease_is_served_in_v1beta1_only() {
    let served = |version: ServedVersion| {
        build_v3(scheme(), version)["paths"]
            .as_object()
            .unwrap()
            .keys()
            .any(|path| path.contains("leases"))
    };
    assert!(served(V1BETA1) && !served(V1ALPHA1));
}

/// `null` is no schema and no part of one.
#[test]
fn nothing_in_the_documents_is_null() {
    fn nulls(place: &str, value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Null => found.push(place.to_owned()),
            Value::Object(fields) => {
                for (name, value) in fields {
                    nulls(&format!("{place}/{name}"), value, found);
                }
            }
            Value::Array(items) => {
                for item in items {
                    nulls(&format!("{place}/-"), item, found);
                }
            }
            _ => {}
        }
    }
    let all = VERSIONS.map(|version| build_v3(scheme(), version));
    for document in all.iter().chain([&build_v2(scheme())]) {
        let mut found = Vec::new();
        nulls("", document, &mut found);
        assert_eq!(found, [""; 0]);
    }
}
