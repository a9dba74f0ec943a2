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
    schema::{REF_PREFIX, close_over, kubernetes_definitions},
    served_kind::{ServedKind, ServedVersion},
};
use crate::machinery::served_kinds::{ServedGroup, ServedKinds};

/// Prefix of references in OpenAPI version 3, where version 2 has `#/definitions/`.
const COMPONENTS: &str = "#/components/schemas/";

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// Returns the OpenAPI version 2 document of all versions of the group, served at `/openapi/v2`.
pub fn build_v2(served_kinds: &ServedKinds) -> Value {
    let mut paths = Map::new();
    let mut definitions = Map::new();
    for &version in served_kinds.group().versions {
        for route in paths::build_routes(served_kinds, version) {
            paths.insert(route.path.clone(), route_v2(served_kinds.group(), &route));
        }
        definitions.extend(all_definitions(served_kinds, version));
    }
    json!({
        "swagger": "2.0",
        "info": document_info(served_kinds.group()),
        "paths": paths,
        "definitions": definitions,
        "securityDefinitions": { "BearerToken": bearer_token() },
        "security": [{ "BearerToken": [] }],
    })
}

/// Returns the OpenAPI version 3 document of one API version, served at
/// `/openapi/v3/apis/<group>/<version>`.
pub fn build_v3(served_kinds: &ServedKinds, version: ServedVersion) -> Value {
    let paths: Map<String, Value> = paths::build_routes(served_kinds, version)
        .into_iter()
        .map(|route| (route.path.clone(), route_v3(served_kinds.group(), &route)))
        .collect();
    let mut schemas = all_definitions(served_kinds, version);
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
        "info": document_info(served_kinds.group()),
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "BearerToken": bearer_token() },
        },
    })
}

fn document_info(group: &ServedGroup) -> Value {
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
fn all_definitions(served_kinds: &ServedKinds, version: ServedVersion) -> Map<String, Value> {
    let group = served_kinds.group();
    let mut definitions = served_kinds.definitions(version).clone();
    for kind in served_kinds.group_kinds(group.name, version) {
        definitions.insert(
            format!("{}List", group.definition_name(version, kind.kind())),
            list_of(served_kinds, version, kind),
        );
    }
    for name in ["APIGroup", "APIResourceList", "DeleteOptions", "ListMeta", "Patch", "Status"] {
        let reference = json!({ "$ref": format!("{REF_PREFIX}{META}{name}") });
        close_over(&reference, kubernetes_definitions(), &mut definitions);
    }
    let with_group = |version: &ServedVersion| json!({ "group": group.name, "kind": "DeleteOptions", "version": version.as_str() });
    definitions[&format!("{META}DeleteOptions")]["x-kubernetes-group-version-kind"] =
        group.versions.iter().map(with_group).collect();
    definitions
}

fn list_of(served_kinds: &ServedKinds, version: ServedVersion, kind: &dyn ServedKind) -> Value {
    let item = served_kinds.group().definition_name(version, kind.kind());
    let properties = &served_kinds.definitions(version)[&item]["properties"];
    json!({
        "description": format!("{kind}List is a list of {kind}", kind = kind.kind()),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": properties["apiVersion"],
            "items": {
                "description": format!("List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md", kind.plural()),
                "type": "array",
                "items": { "$ref": format!("{REF_PREFIX}{item}") },
            },
            "kind": properties["kind"],
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
    let mut one_of_schema = json!({ "description": definition["description"], "oneOf": choices });
    if definition["format"].is_string() {
        one_of_schema["format"] = definition["format"].clone();
    }
    one_of_schema
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
        let responses = build_responses(
            operation,
            |description| json!({ "description": description, "schema": schema }),
        );
        let mut operation_object = build_operation_object(group, operation);
        operation_object["consumes"] = operation.consumes.into();
        operation_object["produces"] = operation.produces.into();
        operation_object["schemes"] = json!(["https"]);
        operation_object["parameters"] = parameters.into();
        operation_object["responses"] = responses;
        item.insert(operation.method.into(), operation_object);
    }
    item.insert("parameters".into(), route.parameters.iter().map(parameter_v2).collect());
    item.into()
}

fn route_v3(group: &ServedGroup, route: &PathItem) -> Value {
    let mut item = Map::new();
    for operation in &route.operations {
        let mut operation_object = build_operation_object(group, operation);
        let parameters: Vec<Value> = operation.parameters.iter().map(parameter_v3).collect();
        if !parameters.is_empty() {
            operation_object["parameters"] = parameters.into();
        }
        let content = |types: &[&str], schema: &str| -> Value {
            let schema = json!({ "schema": { "$ref": format!("{COMPONENTS}{schema}") } });
            let by_type = types.iter().map(|type_| ((*type_).to_owned(), schema.clone()));
            Value::Object(by_type.collect())
        };
        if let Some(body) = &operation.body {
            operation_object["requestBody"] =
                json!({ "content": content(operation.consumes, body) });
            if operation.body_required {
                operation_object["requestBody"]["required"] = true.into();
            }
        }
        operation_object["responses"] = build_responses(operation, |description| {
            json!({
                "description": description,
                "content": content(operation.produces, &operation.answer),
            })
        });
        item.insert(operation.method.into(), operation_object);
    }
    item.insert("parameters".into(), route.parameters.iter().map(parameter_v3).collect());
    item.into()
}

fn build_operation_object(group: &ServedGroup, operation: &ApiOperation) -> Value {
    let mut operation_object = json!({
        "description": operation.description,
        "operationId": operation.id,
        "tags": [operation.tag],
    });
    if let Some((action, kind, version)) = operation.acts_on {
        operation_object["x-kubernetes-action"] = action.into();
        operation_object["x-kubernetes-group-version-kind"] =
            json!({ "group": group.name, "kind": kind, "version": version.as_str() });
    }
    operation_object
}

fn build_responses(operation: &ApiOperation, answer: impl Fn(&str) -> Value) -> Value {
    let mut responses = Map::new();
    for (code, text) in operation.codes {
        responses.insert((*code).into(), answer(text));
    }
    responses.insert("401".into(), json!({ "description": "Unauthorized" }));
    responses.into()
}

fn parameter_v2(parameter: &ApiParameter) -> Value {
    let mut parameter_object = parameter_head(parameter);
    parameter_object["type"] = parameter.type_.into();
    parameter_object["uniqueItems"] = true.into();
    parameter_object
}

fn parameter_v3(parameter: &ApiParameter) -> Value {
    let mut parameter_object = parameter_head(parameter);
    parameter_object["schema"] = json!({ "type": parameter.type_, "uniqueItems": true });
    parameter_object
}

fn parameter_head(parameter: &ApiParameter) -> Value {
    let place = if parameter.in_path { "path" } else { "query" };
    let mut parameter_object = json!({
        "name": parameter.name,
        "in": place,
        "description": parameter.description,
    });
    if parameter.in_path {
        parameter_object["required"] = true.into();
    }
    parameter_object
}
