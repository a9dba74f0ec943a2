//! The discovery documents, built from the scheme's kinds.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    machinery::{
        served_kind::{ServedKind, ServedVersion, Subresource},
        served_kinds::ServedKinds,
    },
    runtime::build_info,
};

const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const STATUS_VERBS: &[&str] = &["get", "patch", "update"];

/// A group's name and the versions that it is served in.
pub(super) type GroupVersions = (&'static str, Vec<ServedVersion>);

/// Returns the `apiVersion` of objects of a group's version.
fn group_version(group: &str, version: ServedVersion) -> String {
    if group.is_empty() { version.to_string() } else { format!("{group}/{version}") }
}

/// Returns the path of a group's version, without the first slash.
pub(super) fn version_path(group: &str, version: ServedVersion) -> String {
    let prefix = if group.is_empty() { "api" } else { "apis" };
    format!("{prefix}/{}", group_version(group, version))
}

/// Builds the `APIGroupList` of the named groups.
pub(super) fn build_group_list(groups: &[GroupVersions]) -> Value {
    let named_groups = groups.iter().filter(|(group, _)| !group.is_empty());
    let list_items = named_groups.map(|(name, versions)| {
        let mut group = build_group(name, versions);
        // Within a list, items carry no type of their own.
        if let Some(fields) = group.as_object_mut() {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        group
    });
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list_items.collect::<Vec<_>>()})
}

/// Builds the `APIGroup` of one group.
pub(super) fn build_group(group: &str, versions: &[ServedVersion]) -> Value {
    let entry = |version: &ServedVersion| json!({"groupVersion": group_version(group, *version), "version": version.as_str()});
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": group,
        "versions": versions.iter().map(entry).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(entry),
    })
}

/// Builds `APIVersions`, which the core group has instead of an `APIGroup`.
pub(super) fn build_core_versions() -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [],
    })
}

/// Builds the `APIResourceList` of a group's version.
pub(super) fn build_resource_list(
    scheme: &ServedKinds,
    group: &str,
    version: ServedVersion,
) -> Value {
    let mut resources = Vec::new();
    for kind in sorted_kinds(scheme, group, version) {
        resources.push(json!({
            "name": kind.plural(),
            "singularName": kind.singular(),
            "namespaced": kind.is_namespaced(),
            "kind": kind.kind(),
            "verbs": VERBS,
            "shortNames": kind.short_names(),
            "categories": kind.categories(),
            "storageVersionHash": storage_version_hash(kind),
        }));
        for Subresource { name, form, verbs } in list_subresources(kind) {
            let mut resource = json!({
                "name": format!("{}/{name}", kind.plural()),
                "singularName": "",
                "namespaced": kind.is_namespaced(),
                "kind": kind.kind(),
                "verbs": verbs,
            });
            if let Some([group, version, kind]) = form {
                resource["group"] = json!(group);
                resource["version"] = json!(version);
                resource["kind"] = json!(kind);
            }
            resources.push(resource);
        }
    }
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group, version),
        "resources": resources,
    })
}

fn list_subresources(kind: &dyn ServedKind) -> impl Iterator<Item = Subresource> {
    let status = Subresource { name: "status", form: None, verbs: STATUS_VERBS };
    let status = kind.has_status().then_some(status);
    status.into_iter().chain(kind.subresources().iter().copied())
}

/// Builds the `APIGroupDiscoveryList`: groups, versions and resources in one document.
pub(super) fn build_aggregated(scheme: &ServedKinds, groups: &[GroupVersions]) -> Value {
    let item = |(group, versions): &GroupVersions| {
        let mut metadata = json!({"creationTimestamp": null});
        if !group.is_empty() {
            metadata["name"] = json!(group);
        }
        let versions = versions.iter().map(|version| aggregated_version(scheme, group, *version));
        json!({"metadata": metadata, "versions": versions.collect::<Vec<_>>()})
    };
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": groups.iter().map(item).collect::<Vec<_>>(),
    })
}

fn aggregated_version(scheme: &ServedKinds, group: &str, version: ServedVersion) -> Value {
    let resource = |kind: &'static dyn ServedKind| {
        let response_kind =
            json!({"group": group, "version": version.as_str(), "kind": kind.kind()});
        let mut resource = json!({
            "resource": kind.plural(),
            "responseKind": response_kind,
            "scope": if kind.is_namespaced() { "Namespaced" } else { "Cluster" },
            "singularResource": kind.singular(),
            "verbs": VERBS,
            "shortNames": kind.short_names(),
            "categories": kind.categories(),
        });
        let parts: Vec<_> = list_subresources(kind)
            .map(|Subresource { name, form, verbs }| {
                let subresource_kind = form.map(|[group, version, kind]| {
                    json!({"group": group, "version": version, "kind": kind})
                });
                json!({
                    "subresource": name,
                    "responseKind": subresource_kind.unwrap_or_else(|| response_kind.clone()),
                    "acceptedTypes": [],
                    "verbs": verbs,
                })
            })
            .collect();
        if !parts.is_empty() {
            resource["subresources"] = json!(parts);
        }
        resource
    };
    json!({
        "version": version.as_str(),
        "freshness": "Current",
        "resources": sorted_kinds(scheme, group, version).map(resource).collect::<Vec<_>>(),
    })
}

/// Builds the document of `/version`. Kubernetes' clients expect numbers in `major` and `minor`.
pub(super) fn build_version() -> Value {
    let mut parts = build_info::VERSION.split('.');
    json!({
        "major": parts.next().unwrap_or_default(),
        "minor": parts.next().unwrap_or_default(),
        "gitVersion": format!("v{}", build_info::VERSION),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, go_architecture()),
    })
}

/// Returns Go's name of the architecture.
fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Builds the index of `/openapi/v3`: URLs of each version's OpenAPI document, with its hash.
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

/// Returns the kinds that a group's version serves, sorted by plural.
fn sorted_kinds(
    scheme: &ServedKinds,
    group: &str,
    version: ServedVersion,
) -> impl Iterator<Item = &'static dyn ServedKind> {
    let mut kinds: Vec<&'static dyn ServedKind> = scheme.group_kinds(group, version).collect();
    kinds.sort_by_key(|kind| kind.plural());
    kinds.into_iter()
}

/// Returns the `storageVersionHash` of a kind, which changes when the stored version does.
fn storage_version_hash(kind: &dyn ServedKind) -> String {
    let hub_version = kind.hub_version();
    let digest = Sha256::digest(format!("{}/{hub_version}/{}", kind.group(), kind.kind()));
    STANDARD.encode(&digest[..8])
}
