//! Turns schemas that schemars generates into the form that Kubernetes takes: structural, no
//! `null`, one type each.
//!
//! Go takes `null` for "absent", so optional fields are described without it.

use serde_json::{Map, Value, json};

use super::definition_name;
use crate::machinery::{schema::REF_PREFIX, served_kind::ServedVersion};

/// Prefix of the names of Kubernetes' types, as schemars writes them.
const UPSTREAM: &str = "io.k8s.";

/// Rewrites a definition and the schemas inside it.
pub(super) fn normalize_schema(schema: &mut Value, version: ServedVersion) {
    let Value::Object(fields) = schema else { return };
    for noise in ["$schema", "title", "writeOnly", "readOnly"] {
        fields.remove(noise);
    }
    flatten_optional(fields);
    point_to_definition(fields, version);
    if let Some(Value::String(text)) = fields.get_mut("description") {
        *text = unwrap_paragraphs(text);
    }
    // A field of any content is an object whose unknown fields are kept.
    if fields.get("additionalProperties") == Some(&Value::Bool(true)) {
        fields.remove("additionalProperties");
    }
    // Ranges belong to validation, which ratchets.
    for bound in ["minimum", "maximum"] {
        fields.remove(bound);
    }
    if let Some(Value::Object(properties)) = fields.get_mut("properties") {
        for (property, schema) in properties {
            if property == "podTemplate" {
                let description = schema["description"].take();
                *schema = json!({
                    "$ref": format!("{REF_PREFIX}{}", definition_name(version, "PodTemplate")),
                    "description": description,
                });
            }
            normalize_schema(schema, version);
        }
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(schema) = fields.get_mut(inner) {
            normalize_schema(schema, version);
        }
    }
}

/// Removes `null` from the schema of an `Option<T>`: `["string", "null"]` and `anyOf [T, null]`
/// become T.
fn flatten_optional(fields: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = fields.get("type") {
        let non_null_type = types.iter().find(|type_| *type_ != "null").cloned();
        fields.insert("type".into(), non_null_type.unwrap_or_default());
    }
    if let Some(Value::Array(choices)) = fields.remove("anyOf") {
        let non_null_choice = choices.into_iter().find(|choice| choice["type"] != "null");
        if let Some(Value::Object(choice_fields)) = non_null_choice {
            for (key, value) in choice_fields {
                fields.entry(key).or_insert(value);
            }
        }
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    // schemars' `default` is what serde fills in. A default in Kubernetes' sense is only what the
    // server writes into objects.
    let written_default = fields.remove("x-written-default");
    fields.remove("default");
    if let Some(default_value) = written_default {
        fields.insert("default".into(), default_value);
    }
}

fn point_to_definition(fields: &mut Map<String, Value>, version: ServedVersion) {
    if let Some(Value::String(target)) = fields.get_mut("$ref")
        && let Some(type_name) = target.strip_prefix(REF_PREFIX)
        && !type_name.starts_with(UPSTREAM)
        && !type_name.contains('.')
    {
        *target = format!("{REF_PREFIX}{}", definition_name(version, type_name));
    }
}

/// Joins the lines of each paragraph: doc comments are wrapped at the margin, and readers of an API
/// wrap for themselves.
fn unwrap_paragraphs(text: &str) -> String {
    text.split("\n\n").map(|part| part.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}
