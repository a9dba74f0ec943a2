//! OpenAPI of Kubernetes' own kinds, as far as kubectl reads it: PATCH takes `fieldValidation` and
//! `dryRun`, which makes kubectl leave validation to the server.
//!
//! The schemas of these kinds are Kubernetes' own; here each is an object that may hold anything.

use serde_json::{Map, Value, json};

use super::{COMPONENTS, document_info, paths};
use crate::machinery::{
    served_kind::{ServedKind, ServedVersion},
    served_kinds::ServedKinds,
};

/// Returns the OpenAPI version 3 document served at `/openapi/v3/api/v1` or
/// `/openapi/v3/apis/<group>/<version>`.
pub fn build_v3(served_kinds: &ServedKinds, group: &str, version: ServedVersion) -> Value {
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for kind in served_kinds.group_kinds(group, version) {
        let gvk = json!({"group": group, "kind": kind.kind(), "version": version.as_str()});
        let name = format!("io.k8s.api.{}.{version}.{}", definition_group(group), kind.kind());
        let schema = json!({
            "type": "object",
            "description": format!("A {} of Kubernetes.", kind.kind()),
            "x-kubernetes-group-version-kind": [gvk],
            "x-kubernetes-preserve-unknown-fields": true,
        });
        schemas.insert(name.clone(), schema);
        paths.insert(object_path(kind, version), path_item(kind, &gvk, &name));
    }
    json!({
        "openapi": "3.0.0",
        "info": document_info(served_kinds.group()),
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

/// Returns the group's part in the names of its definitions.
fn definition_group(group: &str) -> &str {
    match group.split('.').next().unwrap_or_default() {
        "" => "core",
        name => name,
    }
}

fn object_path(kind: &dyn ServedKind, version: ServedVersion) -> String {
    let prefix = if kind.group().is_empty() { "api" } else { "apis" };
    let namespace = if kind.is_namespaced() { "/namespaces/{namespace}" } else { "" };
    format!("/{prefix}/{}{namespace}/{}/{{name}}", kind.api_version(version), kind.plural())
}

fn path_item(kind: &dyn ServedKind, gvk: &Value, schema: &str) -> Value {
    let reference = json!({"schema": {"$ref": format!("{COMPONENTS}{schema}")}});
    let answer = json!({"200": {"description": "OK", "content": {"application/json": reference}}});
    // Where no strategic merge patch is offered, kubectl uses the types that are compiled into it.
    let content: Map<String, Value> =
        paths::PATCH_TYPES.iter().map(|type_| ((*type_).to_owned(), reference.clone())).collect();
    let mut path_parameters = vec![paths::NAME];
    if kind.is_namespaced() {
        path_parameters.push(paths::NAMESPACE);
    }
    let operation = |verb: &str, action: &str| {
        json!({
            "operationId": format!("{verb}{}", kind.kind()),
            "responses": answer,
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk,
        })
    };
    let mut patch = operation("patch", "patch");
    let parameters = [paths::DRY_RUN, paths::FIELD_MANAGER, paths::FIELD_VALIDATION, paths::FORCE];
    patch["parameters"] = parameters.iter().map(super::parameter_v3).collect();
    patch["requestBody"] = json!({"required": true, "content": content});
    json!({
        "parameters": path_parameters.iter().map(super::parameter_v3).collect::<Vec<_>>(),
        "get": operation("read", "get"),
        "patch": patch,
    })
}
