//! The objects that are written, and the definition of their kind for kube-apiserver.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::client::{Ask, JSON};

pub(crate) const NAMESPACE: &str = "db";
/// Bytes of an object when it is sent.
pub(crate) const SIZE: usize = 1536;
const GROUP: &str = "navigator.jetstack.io";
const TURN: &str = "bench.example.org/turn";
const APPLIED: &str = "bench.example.org/applied";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// A kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ours, or the same kind as a CustomResourceDefinition.
    CassandraCluster,
    /// sample-apiserver's.
    Flunder,
}

impl Kind {
    pub(crate) fn collection(self) -> String {
        let (group, plural) = match self {
            Self::CassandraCluster => (GROUP, "cassandraclusters"),
            Self::Flunder => ("wardle.example.com", "flunders"),
        };
        format!("/apis/{group}/v1beta1/namespaces/{NAMESPACE}/{plural}")
    }

    fn path(self, number: usize) -> String {
        format!("{}/{}", self.collection(), name(number))
    }

    fn object(self, number: usize) -> Value {
        let (group, kind, spec) = match self {
            Self::CassandraCluster => (GROUP, "CassandraCluster", cluster()),
            Self::Flunder => (
                "wardle.example.com",
                "Flunder",
                json!({"flunderReference": "another", "referenceType": "Flunder"}),
            ),
        };
        let mut object = json!({
            "apiVersion": format!("{group}/v1beta1"), "kind": kind,
            "metadata": {
                "name": name(number), "labels": {"app": "bench", "shard": (number % 10).to_string()},
                "annotations": {TURN: "0", "bench.example.org/text": ""},
            },
            "spec": spec,
        });
        let rest = SIZE - object.to_string().len();
        object["metadata"]["annotations"]["bench.example.org/text"] = "x".repeat(rest).into();
        object
    }

    pub(crate) fn create(self, number: usize) -> Ask {
        let body = Bytes::from(self.object(number).to_string());
        Ask { method: "POST", path: self.collection(), content_type: JSON, body }
    }

    pub(crate) fn get(self, number: usize) -> Ask {
        Ask::get(self.path(number))
    }

    pub(crate) fn delete(self, number: usize) -> Ask {
        let path = self.path(number);
        Ask { method: "DELETE", path, content_type: JSON, body: Bytes::new() }
    }

    /// Changes one annotation, to a value that no object had before.
    pub(crate) fn patch(self, number: usize, turn: &str) -> Ask {
        let body = json!({"metadata": {"annotations": {TURN: turn}}}).to_string();
        let path = self.path(number);
        Ask { method: "PATCH", path, content_type: MERGE, body: Bytes::from(body) }
    }

    /// Changes an annotation by server-side apply.
    pub(crate) fn apply(self, number: usize, turn: &str) -> Ask {
        let object = self.object(number);
        let body = json!({
            "apiVersion": object["apiVersion"], "kind": object["kind"],
            "metadata": {"name": object["metadata"]["name"], "annotations": {APPLIED: turn}},
        });
        let path = format!("{}?fieldManager=bench&force=true", self.path(number));
        let body = Bytes::from(body.to_string());
        Ask { method: "PATCH", path, content_type: APPLY, body }
    }
}

pub(crate) fn name(number: usize) -> String {
    format!("object-{number:06}")
}

fn cluster() -> Value {
    let pool = |name: &str| {
        json!({
            "name": name, "replicas": 3, "datacenter": "eu", "rack": name,
            "resources": {"limits": {"memory": "16Gi"}}, "persistence": {"size": "500Gi"},
        })
    };
    json!({
        "version": "5.0.6", "clusterName": "Bench", "numTokens": 16,
        "config": {"authenticator": "PasswordAuthenticator", "concurrent_reads": 64},
        "security": {"mode": "Open"}, "jvm": {"heap": "8Gi"}, "nodePools": [pool("a"), pool("b"), pool("c")],
    })
}

/// Our kind as a CustomResourceDefinition, made from our own OpenAPI document.
pub(crate) fn definition(openapi: &Value) -> Value {
    let schemas = &openapi["components"]["schemas"];
    let all = schemas.as_object().expect("our OpenAPI document has schemas");
    let is_ours = |schema: &Value| {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array();
        kinds.into_iter().flatten().any(|own| own["kind"] == "CassandraCluster")
    };
    let ours = all.values().find(|schema| is_ours(schema)).expect("our kind has a schema");
    let mut schema = structural(ours, all);
    // kube-apiserver has its own schemas for these.
    let properties = schema["properties"].as_object_mut().expect("a kind has properties");
    for own in ["apiVersion", "kind", "metadata"] {
        properties.remove(own);
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("cassandraclusters.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {
                "plural": "cassandraclusters", "singular": "cassandracluster",
                "kind": "CassandraCluster", "listKind": "CassandraClusterList",
            },
            "versions": [{
                "name": "v1beta1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

/// A schema without references, reduced to what a structural schema may have.
fn structural(schema: &Value, all: &Map<String, Value>) -> Value {
    const EITHER: &str = "x-kubernetes-int-or-string";
    const OPEN: &str = "x-kubernetes-preserve-unknown-fields";
    const KEPT: [&str; 17] = [
        "type",
        "format",
        "description",
        "default",
        "enum",
        "nullable",
        "required",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
    ];
    let mut made = Map::new();
    let parts = schema["allOf"].as_array().into_iter().flatten();
    for part in std::iter::once(schema).chain(parts) {
        if let Some(name) = part["$ref"].as_str() {
            let name = name.rsplit('/').next().unwrap_or_default();
            let Value::Object(referred) = structural(&all[name], all) else { continue };
            made.extend(referred);
        }
    }
    for key in KEPT {
        if let Some(value) = schema.get(key) {
            made.insert(key.to_owned(), value.clone());
        }
    }
    if let Some(properties) = schema["properties"].as_object() {
        let inner = properties.iter().map(|(name, inner)| (name.clone(), structural(inner, all)));
        made.insert("properties".to_owned(), Value::Object(inner.collect()));
    }
    for key in ["items", "additionalProperties"] {
        if schema[key].is_object() {
            made.insert(key.to_owned(), structural(&schema[key], all));
        }
    }
    // A CRD's lists have keys only where each is required or has a default.
    let items = &made.get("items").cloned().unwrap_or_default();
    let keys = made.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
    let without = keys.into_iter().flatten().any(|key| {
        let required = items["required"].as_array().is_some_and(|all| all.contains(key));
        let default = &items["properties"][key.as_str().unwrap_or_default()]["default"];
        !required && default.is_null()
    });
    if without {
        made.remove("x-kubernetes-list-map-keys");
        made.remove("x-kubernetes-list-type");
    }
    let either = made.contains_key(EITHER)
        || schema[EITHER] == true
        || schema["format"] == "int-or-string"
        || schema["oneOf"].is_array()
        || schema["anyOf"].is_array();
    let is_open = !made.contains_key("type")
        || made["type"] == "object"
            && !made.contains_key("properties")
            && !made.contains_key("additionalProperties");
    if either {
        for other in ["type", "format", OPEN] {
            made.remove(other);
        }
        made.insert(EITHER.to_owned(), true.into());
    } else if is_open || schema[OPEN] == true {
        made.insert(OPEN.to_owned(), true.into());
    }
    Value::Object(made)
}
