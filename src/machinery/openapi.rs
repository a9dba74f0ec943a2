//! The OpenAPI documents of the group, versions 2 and 3.
//!
//! Owns how paths and definitions are written in each OpenAPI version; `openapi/paths` has the
//! paths, `schema` the definitions. kube-aggregator merges version 2 into its own by definition
//! name, so Kubernetes' definitions stay word for word. kubectl reads version 3. There, two facts
//! make kubectl leave work to the server: PATCH takes `fieldValidation` and `dryRun`, so kubectl
//! does not validate by itself; no strategic merge patch is offered, so kubectl sends JSON merge
//! patches.

pub mod foreign;
mod paths;
pub mod protobuf;

use serde_json::{Map, Value, json};

use self::paths::{ApiOperation, ApiParameter, PathItem};
use super::{
    schema::{REF_PREFIX, close_over, kubernetes},
    served_kind::{ServedKind, ServedVersion},
};
use crate::machinery::served_kinds::{ServedGroup, ServedKinds};

/// Prefix of references in OpenAPI version 3, where version 2 has `#/definitions/`.
const COMPONENTS: &str = "#/components/schemas/";

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// Returns the OpenAPI version 2 document of all versions of the group, served at `/openapi/v2`.
pub fn v2(served: &ServedKinds) -> Value {
    let mut paths = Map::new();
    let mut definitions = Map::new();
    for &version in served.group().versions {
        for route in paths::routes(served, version) {
            paths.insert(route.path.clone(), route_v2(served.group(), &route));
        }
        definitions.extend(all_definitions(served, version));
    }
    json!({
        "swagger": "2.0",
        "info": info(served.group()),
        "paths": paths,
        "definitions": definitions,
        "securityDefinitions": { "BearerToken": bearer_token() },
        "security": [{ "BearerToken": [] }],
    })
}

/// Returns the OpenAPI version 3 document of one API version, served at
/// `/openapi/v3/apis/<group>/<version>`.
pub fn v3(served: &ServedKinds, version: ServedVersion) -> Value {
    let paths: Map<String, Value> = paths::routes(served, version)
        .into_iter()
        .map(|route| (route.path.clone(), route_v3(served.group(), &route)))
        .collect();
    let mut schemas = all_definitions(served, version);
    for (name, definition) in &mut schemas {
        match name.as_str() {
            "io.k8s.apimachinery.pkg.api.resource.Quantity" => {
                *definition = one_of(definition, &["string", "number"]);
            }
            "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => {
                *definition = one_of(definition, &["integer", "string"]);
            }
            _ => to_v3(definition),
        }
    }
    json!({
        "openapi": "3.0.0",
        "info": info(served.group()),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "BearerToken": bearer_token() },
        },
    })
}

fn info(group: &ServedGroup) -> Value {
    json!({ "title": group.title, "version": concat!("v", env!("CARGO_PKG_VERSION")) })
}

fn bearer_token() -> Value {
    json!({
        "description": "Bearer Token authentication",
        "in": "header",
        "name": "authorization",
        "type": "apiKey",
    })
}

/// Returns the definitions of `version`, of its lists, and of what its paths take and answer.
fn all_definitions(served: &ServedKinds, version: ServedVersion) -> Map<String, Value> {
    let group = served.group();
    let mut all = served.definitions(version).clone();
    for kind in served.served(group.name, version) {
        all.insert(
            format!("{}List", group.definition(version, kind.kind())),
            list_of(served, version, kind),
        );
    }
    for name in ["APIGroup", "APIResourceList", "DeleteOptions", "ListMeta", "Patch", "Status"] {
        let reference = json!({ "$ref": format!("{REF_PREFIX}{META}{name}") });
        close_over(&reference, kubernetes(), &mut all);
    }
    let with_group = |version: &ServedVersion| json!({ "group": group.name, "kind": "DeleteOptions", "version": version.as_str() });
    all[&format!("{META}DeleteOptions")]["x-kubernetes-group-version-kind"] =
        group.versions.iter().map(with_group).collect();
    all
}

fn list_of(served: &ServedKinds, version: ServedVersion, kind: &dyn ServedKind) -> Value {
    let item = served.group().definition(version, kind.kind());
    let head = &served.definitions(version)[&item]["properties"];
    json!({
        "description": format!("{kind}List is a list of {kind}", kind = kind.kind()),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": head["apiVersion"],
            "items": {
                "description": format!("List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md", kind.plural()),
                "type": "array",
                "items": { "$ref": format!("{REF_PREFIX}{item}") },
            },
            "kind": head["kind"],
            "metadata": {
                "description": "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds",
                "$ref": format!("{REF_PREFIX}{META}ListMeta"),
            },
        },
        "x-kubernetes-group-version-kind": [
            { "group": kind.group(), "kind": format!("{}List", kind.kind()), "version": version.as_str() },
        ],
    })
}

fn one_of(definition: &Value, types: &[&str]) -> Value {
    let choices: Vec<Value> = types.iter().map(|type_| json!({ "type": type_ })).collect();
    let mut rewritten = json!({ "description": definition["description"], "oneOf": choices });
    if definition["format"].is_string() {
        rewritten["format"] = definition["format"].clone();
    }
    rewritten
}

/// Rewrites references of OpenAPI version 2 for version 3. In OpenAPI 3.0 no keyword may stand
/// beside a `$ref`, so a `$ref` with neighbours moves into `allOf`.
fn to_v3(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let target = fields
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|text| text.strip_prefix(REF_PREFIX))
                .map(|name| format!("{COMPONENTS}{name}"));
            if let Some(target) = target {
                fields.remove("$ref");
                if fields.is_empty() {
                    fields.insert("$ref".into(), target.into());
                } else {
                    fields.insert("allOf".into(), json!([{ "$ref": target }]));
                }
            }
            fields.values_mut().for_each(to_v3);
        }
        Value::Array(items) => items.iter_mut().for_each(to_v3),
        _ => {}
    }
}

fn route_v2(group: &ServedGroup, route: &PathItem) -> Value {
    let mut item = Map::new();
    for operation in &route.operations {
        let mut parameters: Vec<Value> = operation.parameters.iter().map(parameter_v2).collect();
        if let Some(body) = &operation.body {
            parameters.insert(
                0,
                json!({
                    "in": "body",
                    "name": "body",
                    "required": operation.body_required,
                    "schema": { "$ref": format!("{REF_PREFIX}{body}") },
                }),
            );
        }
        let schema = json!({ "$ref": format!("{REF_PREFIX}{}", operation.answer) });
        let responses = responses(
            operation,
            |description| json!({ "description": description, "schema": schema }),
        );
        let mut written = common(group, operation);
        written["consumes"] = operation.consumes.into();
        written["produces"] = operation.produces.into();
        written["schemes"] = json!(["https"]);
        written["parameters"] = parameters.into();
        written["responses"] = responses;
        item.insert(operation.method.into(), written);
    }
    item.insert("parameters".into(), route.parameters.iter().map(parameter_v2).collect());
    item.into()
}

fn route_v3(group: &ServedGroup, route: &PathItem) -> Value {
    let mut item = Map::new();
    for operation in &route.operations {
        let mut written = common(group, operation);
        let parameters: Vec<Value> = operation.parameters.iter().map(parameter_v3).collect();
        if !parameters.is_empty() {
            written["parameters"] = parameters.into();
        }
        let content = |types: &[&str], schema: &str| -> Value {
            let schema = json!({ "schema": { "$ref": format!("{COMPONENTS}{schema}") } });
            let by_type = types.iter().map(|type_| ((*type_).to_owned(), schema.clone()));
            Value::Object(by_type.collect())
        };
        if let Some(body) = &operation.body {
            written["requestBody"] = json!({ "content": content(operation.consumes, body) });
            if operation.body_required {
                written["requestBody"]["required"] = true.into();
            }
        }
        written["responses"] = responses(operation, |description| {
            json!({
                "description": description,
                "content": content(operation.produces, &operation.answer),
            })
        });
        item.insert(operation.method.into(), written);
    }
    item.insert("parameters".into(), route.parameters.iter().map(parameter_v3).collect());
    item.into()
}

fn common(group: &ServedGroup, operation: &ApiOperation) -> Value {
    let mut written = json!({
        "description": operation.description,
        "operationId": operation.id,
        "tags": [operation.tag],
    });
    if let Some((action, kind, version)) = operation.acts_on {
        written["x-kubernetes-action"] = action.into();
        written["x-kubernetes-group-version-kind"] =
            json!({ "group": group.name, "kind": kind, "version": version.as_str() });
    }
    written
}

fn responses(operation: &ApiOperation, answer: impl Fn(&str) -> Value) -> Value {
    let mut responses = Map::new();
    for (code, text) in operation.codes {
        responses.insert((*code).into(), answer(text));
    }
    responses.insert("401".into(), json!({ "description": "Unauthorized" }));
    responses.into()
}

fn parameter_v2(parameter: &ApiParameter) -> Value {
    let mut written = parameter_head(parameter);
    written["type"] = parameter.type_.into();
    written["uniqueItems"] = true.into();
    written
}

fn parameter_v3(parameter: &ApiParameter) -> Value {
    let mut written = parameter_head(parameter);
    written["schema"] = json!({ "type": parameter.type_, "uniqueItems": true });
    written
}

fn parameter_head(parameter: &ApiParameter) -> Value {
    let place = if parameter.in_path { "path" } else { "query" };
    let mut written = json!({
        "name": parameter.name,
        "in": place,
        "description": parameter.description,
    });
    if parameter.in_path {
        written["required"] = true.into();
    }
    written
}
