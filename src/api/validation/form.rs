//! What the schema says about values: list-map keys and sets without repetition (V4), bounds
//! (V5), closed lists of values (V6). Every kind, one walk.

use std::collections::HashSet;

use serde_json::Value;

use super::validator::Validator;
use crate::api::{
    field::Path,
    kind::Version,
    schema::{self, REF_PREFIX, Schemas},
};

/// Which values are compared with closed lists.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Enums {
    Check,
    /// Words in status grow with the programs that write them.
    Ignore,
}

/// Validates `value`, the field `field` of a kind.
pub(super) fn validate(
    validator: &mut Validator,
    kind: &str,
    field: &str,
    value: &Value,
    enums: Enums,
) {
    let schemas = validator.schemas;
    let root = &schemas.definitions(Version::V1beta1)[&schema::name(Version::V1beta1, kind)];
    Walk { validator, schemas, enums }.value(
        &root["properties"][field],
        None,
        value,
        &Path::new(field),
    );
}

struct Walk<'a> {
    validator: &'a mut Validator,
    schemas: &'static Schemas,
    enums: Enums,
}

impl Walk<'_> {
    /// `limit`: most bytes of this text, or of the texts of this list.
    fn value(&mut self, schema: &Value, limit: Option<usize>, value: &Value, path: &Path) {
        let Some((type_name, schema)) = resolve(self.schemas, schema) else { return };
        match value {
            Value::Object(fields) => {
                self.count(schema, "maxProperties", fields.len(), path);
                for (name, value) in fields {
                    let (inner, place) = match schema["properties"].get(name) {
                        Some(inner) => (inner, path.child(name)),
                        None => (&schema["additionalProperties"], path.key(name)),
                    };
                    let limit = self.schemas.max_bytes(type_name, name);
                    self.value(inner, limit, value, &place);
                }
            }
            Value::Array(items) => {
                self.count(schema, "maxItems", items.len(), path);
                self.repetitions(schema, items, path);
                for (index, item) in items.iter().enumerate() {
                    self.value(&schema["items"], limit, item, &path.index(index));
                }
            }
            Value::String(text) => {
                if let Some(limit) = limit.filter(|limit| text.len() > *limit) {
                    self.validator.too_long(path, limit);
                }
                if let Some(known) = schema["enum"].as_array()
                    && self.enums == Enums::Check
                    && !known.contains(value)
                {
                    let known: Vec<&str> = known.iter().filter_map(Value::as_str).collect();
                    self.validator.unsupported(path, text.as_str(), &known);
                }
            }
            _ => {}
        }
    }

    fn count(&mut self, schema: &Value, word: &str, actual: usize, path: &Path) {
        let limit = schema[word].as_u64().and_then(|limit| usize::try_from(limit).ok());
        if let Some(limit) = limit.filter(|limit| actual > *limit) {
            self.validator.too_many(path, actual, limit);
        }
    }

    /// V4
    fn repetitions(&mut self, schema: &Value, items: &[Value], path: &Path) {
        let key = schema["x-kubernetes-list-map-keys"][0].as_str();
        let part = |item: &Value| match (schema["x-kubernetes-list-type"].as_str(), key) {
            (Some("map"), Some(key)) => item.get(key).cloned(),
            (Some("set"), _) => Some(item.clone()),
            _ => None,
        };
        let mut seen = HashSet::new();
        for (index, item) in items.iter().enumerate() {
            let Some(part) = part(item) else { continue };
            if !seen.insert(part.to_string()) {
                let place = path.index(index);
                self.validator.duplicate(&key.map_or(place.clone(), |key| place.child(key)), part);
            }
        }
    }
}

/// One of our own types, or a schema that stands in one. Core types are validated where they are
/// served.
fn resolve<'a>(schemas: &'a Schemas, schema: &'a Value) -> Option<(&'a str, &'a Value)> {
    let Some(target) = schema["$ref"].as_str() else { return Some(("", schema)) };
    let name = target.strip_prefix(REF_PREFIX)?;
    let type_name = name.strip_prefix("com.jetstack.navigator.v1beta1.")?;
    if type_name == "PodTemplate" {
        return None;
    }
    Some((type_name, &schemas.definitions(Version::V1beta1)[name]))
}
