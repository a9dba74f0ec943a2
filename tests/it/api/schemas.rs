//! The schemas have the form that Kubernetes takes, and say something about every field.

use std::collections::BTreeSet;

use navigator::{
    api::{
        V1BETA1, VERSIONS,
        schema::{self, SHARED, SchemaMarkers},
    },
    databases,
    machinery::{schema::REF_PREFIX, served_kind::ServedVersion},
};
use serde_json::{Map, Value};

use crate::scheme;

fn definitions(version: ServedVersion) -> &'static Map<String, Value> {
    scheme().definitions(version)
}

fn references(schema: &Value, names: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str().and_then(|text| text.strip_prefix(REF_PREFIX)) {
                    Some(name) if key == "$ref" => {
                        names.insert(name.to_owned());
                    }
                    _ => references(value, names),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, names)),
        _ => {}
    }
}

fn every_schema(visit: &mut dyn FnMut(&str, &Map<String, Value>)) {
    fn walk(path: &str, schema: &Value, visit: &mut dyn FnMut(&str, &Map<String, Value>)) {
        let fields = schema.as_object().expect(path);
        visit(path, fields);
        for (name, property) in
            fields.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            walk(&format!("{path}.{name}"), property, visit);
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = fields.get(key).filter(|inner| inner.is_object()) {
                walk(&format!("{path}[]"), inner, visit);
            }
        }
    }
    for version in VERSIONS {
        for (name, definition) in definitions(version) {
            walk(name, definition, visit);
        }
    }
}

#[test]
fn schemas_are_structural() {
    every_schema(&mut |path, fields| {
        if path.starts_with("io.k8s.") {
            return;
        }
        for word in ["anyOf", "oneOf", "allOf", "not", "$schema", "title", "const", "nullable"] {
            assert!(!fields.contains_key(word), "{path} has {word}");
        }
        assert!(
            fields.get("type").is_some_and(Value::is_string) != fields.contains_key("$ref"),
            "{path} has neither one type nor a reference: {fields:?}"
        );
        if fields.get("type").is_some_and(|type_| type_ == "array") {
            assert!(fields.contains_key("items"), "{path} has no items");
        }
    });
}

#[test]
fn every_field_of_ours_is_described() {
    every_schema(&mut |path, fields| {
        let ours = path.starts_with("com.jetstack.") && !path.contains("[]");
        assert!(!ours || fields.contains_key("description"), "{path} has no doc comment");
    });
}

#[test]
fn every_list_of_ours_says_how_it_merges() {
    every_schema(&mut |path, fields| {
        let list = fields.get("type").is_some_and(|type_| type_ == "array");
        let overlay = path.contains(".PodOverlay.");
        if path.starts_with("com.jetstack.") && list && !overlay {
            assert!(fields.contains_key("x-kubernetes-list-type"), "{path} has no list type");
        }
    });
}

#[test]
fn every_reference_has_its_definition() {
    for version in VERSIONS {
        for (name, definition) in definitions(version) {
            let mut names = BTreeSet::new();
            references(definition, &mut names);
            for target in names {
                assert!(definitions(version).contains_key(&target), "{name} → {target}");
            }
        }
    }
}

#[test]
fn every_row_names_a_field_that_exists() {
    let check = |rows: &SchemaMarkers| {
        let SchemaMarkers { descriptions, enums, max_items, max_bytes, defaults } = rows;
        let named = enums.iter().map(|row| (row.0, row.1));
        let named = named.chain(max_items.iter().chain(*max_bytes).map(|row| (row.0, row.1)));
        let named = named.chain(descriptions.iter().chain(*defaults).map(|row| (row.0, row.1)));
        for (type_name, field) in named {
            let whole = schema::definition_name(V1BETA1, type_name);
            let types = definitions(V1BETA1);
            let found = types.iter().any(|(name, definition)| {
                let same = *name == whole || name.ends_with(type_name) && rows.is_shared();
                same && (field.is_empty() || definition["properties"].get(field).is_some())
            });
            assert!(found, "{type_name}.{field} is no field");
        }
    };
    check(&SHARED);
    for database in databases::ALL {
        check(&database.api.rows);
    }
}
