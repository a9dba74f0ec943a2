//! The discovery documents, from the table of kinds.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    api::{
        GROUP,
        kind::{Kind, Version},
        scheme::Scheme,
    },
    runtime::build,
};

const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];

/// `APIGroupList`
pub(super) fn groups() -> Value {
    let mut group = group();
    // Within a list, items carry no type of their own.
    if let Some(fields) = group.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]})
}

/// `APIGroup`
pub(super) fn group() -> Value {
    let entry = |version: Version| json!({"groupVersion": version.api_version(), "version": version.as_str()});
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": GROUP,
        "versions": Version::ALL.map(entry),
        "preferredVersion": entry(Version::ALL[0]),
    })
}

/// `APIResourceList`
pub(super) fn resources(scheme: &Scheme, version: Version) -> Value {
    let mut resources = Vec::new();
    for kind in served(scheme, version) {
        resources.push(json!({
            "name": kind.plural(),
            "singularName": kind.singular(),
            "namespaced": true,
            "kind": kind.kind(),
            "verbs": VERBS,
            "shortNames": kind.short_names(),
            "categories": kind.categories(),
            "storageVersionHash": storage_version_hash(kind.kind()),
        }));
        if kind.has_status() {
            resources.push(json!({
                "name": format!("{}/status", kind.plural()),
                "singularName": "",
                "namespaced": true,
                "kind": kind.kind(),
                "verbs": STATUS_VERBS,
            }));
        }
    }
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version.api_version(),
        "resources": resources,
    })
}

/// `APIGroupDiscoveryList`: all of the above in one document.
pub(super) fn aggregated(scheme: &Scheme) -> Value {
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [{
            "metadata": {"name": GROUP, "creationTimestamp": null},
            "versions": Version::ALL.map(|version| aggregated_version(scheme, version)),
        }],
    })
}

fn aggregated_version(scheme: &Scheme, version: Version) -> Value {
    let resource = |kind: &'static dyn Kind| {
        let response_kind =
            json!({"group": GROUP, "version": version.as_str(), "kind": kind.kind()});
        let mut resource = json!({
            "resource": kind.plural(),
            "responseKind": response_kind,
            "scope": "Namespaced",
            "singularResource": kind.singular(),
            "verbs": VERBS,
            "shortNames": kind.short_names(),
            "categories": kind.categories(),
        });
        if kind.has_status() {
            resource["subresources"] = json!([{
                "subresource": "status",
                "responseKind": response_kind,
                "acceptedTypes": [],
                "verbs": STATUS_VERBS,
            }]);
        }
        resource
    };
    json!({
        "version": version.as_str(),
        "freshness": "Current",
        "resources": served(scheme, version).map(resource).collect::<Vec<_>>(),
    })
}

/// `/version`. Kubernetes' clients want two numbers.
pub(super) fn version() -> Value {
    let mut parts = build::VERSION.split('.');
    json!({
        "major": parts.next().unwrap_or_default(),
        "minor": parts.next().unwrap_or_default(),
        "gitVersion": format!("v{}", build::VERSION),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, platform()),
    })
}

/// Go's name of the architecture.
fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Where each version's OpenAPI document is, by its hash.
pub(super) fn openapi_index(hashes: &BTreeMap<String, String>) -> Value {
    let paths: serde_json::Map<String, Value> = hashes
        .iter()
        .map(|(name, hash)| {
            let url = format!("/openapi/v3/{name}?hash={hash}");
            (name.clone(), json!({"serverRelativeURL": url}))
        })
        .collect();
    json!({"paths": paths})
}

/// Kinds of a version, sorted by path.
fn served(scheme: &Scheme, version: Version) -> impl Iterator<Item = &'static dyn Kind> {
    let mut served: Vec<&'static dyn Kind> =
        scheme.kinds().iter().copied().filter(|kind| kind.versions().contains(&version)).collect();
    served.sort_by_key(|kind| kind.plural());
    served.into_iter()
}

/// Changes when the stored version does.
fn storage_version_hash(kind: &str) -> String {
    let digest = Sha256::digest(format!("{GROUP}/{}/{kind}", Version::V1beta1));
    STANDARD.encode(&digest[..8])
}
