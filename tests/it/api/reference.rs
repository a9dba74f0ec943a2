//! The reference in `docs/api` and the released schemas, from the same source that checks
//! requests. `make golden` rewrites them.

use std::fmt::Write;

use navigator::{
    api::{V1ALPHA1, VERSIONS, schema},
    machinery::{schema::REF_PREFIX, served_kind::ServedVersion},
};
use serde_json::{Map, Value, json};

use crate::{golden, scheme};

#[test]
fn the_reference_says_what_the_schema_says() {
    for version in VERSIONS {
        golden::check_file(&format!("docs/api/{version}.md"), &reference(version));
    }
}

#[test]
fn schemas_are_as_released() {
    for version in VERSIONS {
        let ours: Map<String, Value> = scheme()
            .definitions(version)
            .iter()
            .filter(|(name, _)| name.starts_with("com.jetstack."))
            .map(|(name, definition)| (name.clone(), definition.clone()))
            .collect();
        let text = serde_json::to_string_pretty(&json!(ours)).unwrap() + "\n";
        golden::check(&format!("api/schema/{version}.json"), &text);
    }
}

#[test]
fn a_released_field_of_v1alpha1_never_goes() {
    // Upstream's fields, which stay for ever whatever the golden schema is rewritten to.
    for (type_name, fields) in [
        (
            "ElasticsearchClusterSpec",
            &[
                "version",
                "pilotImage",
                "image",
                "securityContext",
                "paused",
                "plugins",
                "minimumMasters",
                "nodePools",
            ][..],
        ),
        (
            "CassandraClusterSpec",
            &["version", "pilotImage", "image", "securityContext", "paused", "nodePools"],
        ),
        ("PilotSpec", &["elasticsearch", "cassandra"]),
    ] {
        let name = schema::definition_name(V1ALPHA1, type_name);
        let definition = &scheme().definitions(V1ALPHA1)[&name];
        for field in fields {
            assert!(definition["properties"].get(field).is_some(), "{type_name}.{field} is gone");
        }
    }
}

fn reference(version: ServedVersion) -> String {
    let mut page = format!(
        "# API reference: navigator.jetstack.io/{version}\n\n\
         Generated from the types; `make golden` rewrites it. Fields marked * must be given.\n\n"
    );
    let mut todo: Vec<String> = Vec::new();
    for kind in scheme().kinds().iter().filter(|kind| kind.versions().contains(&version)) {
        writeln!(
            page,
            "- [{}](#{}): `{}`, short `{}`",
            kind.kind(),
            kind.kind().to_lowercase(),
            kind.plural(),
            kind.short_names().join("`, `")
        )
        .unwrap();
        todo.push(schema::definition_name(version, kind.kind()));
    }
    let mut at = 0;
    while let Some(name) = todo.get(at).cloned() {
        at += 1;
        let definition = &scheme().definitions(version)[&name];
        section(&mut page, &short(&name), definition);
        for target in mentioned(definition) {
            if target.starts_with("com.jetstack.") && !todo.contains(&target) {
                todo.push(target);
            }
        }
    }
    page
}

/// A type with its fields.
fn section(page: &mut String, title: &str, definition: &Value) {
    writeln!(page, "\n## {title}\n\n{}", text(definition)).unwrap();
    if title == "PodOverlay" {
        page.push_str(
            "\nFields as in core/v1 PodSpec; `kubectl explain pod.spec` describes them.\n",
        );
        return;
    }
    let Some(properties) = definition["properties"].as_object() else {
        writeln!(page, "\n{}", values(definition).trim()).unwrap();
        return;
    };
    page.push_str("\n| field | type | meaning |\n|---|---|---|\n");
    let required = definition["required"].as_array().cloned().unwrap_or_default();
    for (name, schema) in properties {
        let star = if required.contains(&json!(name)) { " *" } else { "" };
        let meaning = format!("{}{}", text(schema), values(schema)).replace('|', "\\|");
        writeln!(
            page,
            "| `{name}`{star} | {} | {} |",
            type_text(schema),
            meaning.replace('\n', " ")
        )
        .unwrap();
    }
}

fn text(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default().trim()
}

/// What is known of a field beside its meaning.
fn values(schema: &Value) -> String {
    let mut known = String::new();
    if let Some(values) = schema["enum"].as_array().or_else(|| schema["items"]["enum"].as_array()) {
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        write!(known, " One of {}.", values.join(", ")).unwrap();
    }
    if let Some(default) = schema.get("default") {
        write!(known, " Written when absent: `{default}`.").unwrap();
    }
    for word in ["maxItems", "maxProperties"] {
        if let Some(limit) = schema[word].as_u64() {
            write!(known, " At most {limit}.").unwrap();
        }
    }
    if let Some(keys) = schema["x-kubernetes-list-map-keys"].as_array() {
        write!(known, " Entries are told apart by {}.", keys[0]).unwrap();
    }
    if schema["x-kubernetes-list-type"] == "set" {
        known.push_str(" Every value once.");
    }
    known
}

fn type_text(schema: &Value) -> String {
    if let Some(target) = schema["$ref"].as_str() {
        let name = target.trim_start_matches(REF_PREFIX);
        let title = short(name);
        return if name.starts_with("com.jetstack.") {
            format!("[{title}](#{})", title.to_lowercase())
        } else {
            title
        };
    }
    match schema["type"].as_str() {
        Some("array") => format!("list of {}", type_text(&schema["items"])),
        Some("object") if schema["additionalProperties"].is_object() => {
            format!("map of {}", type_text(&schema["additionalProperties"]))
        }
        Some(type_) => schema["format"].as_str().unwrap_or(type_).to_owned(),
        None => "any".to_owned(),
    }
}

fn short(name: &str) -> String {
    name.rsplit('.').next().unwrap_or(name).to_owned()
}

/// Definitions that the fields of a type refer to, in their order.
fn mentioned(schema: &Value) -> Vec<String> {
    match schema {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(key, value)| match value.as_str() {
                Some(target) if key == "$ref" => {
                    vec![target.trim_start_matches(REF_PREFIX).to_owned()]
                }
                _ => mentioned(value),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(mentioned).collect(),
        _ => Vec::new(),
    }
}
