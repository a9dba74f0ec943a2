//! What the schema says about values: list-map keys and sets without repetition (V4), bounds
//! (V5), closed lists of values (V6). Every kind, one walk.

use std::collections::HashSet;

use serde_json::Value;

use super::judge::Judge;
use crate::api::{
    field::Path,
    schema::{self, MAX_BYTES, REF_PREFIX},
    scheme::Version,
};

/// Which values are compared with closed lists.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Enums {
    Judge,
    /// Words in status grow with the programs that write them.
    Ignore,
}

/// Judges `value`, the field `field` of a kind.
pub(super) fn judge(judge: &mut Judge, kind: &str, field: &str, value: &Value, enums: Enums) {
    let root = &schema::definitions(Version::V1beta1)[&schema::name(Version::V1beta1, kind)];
    Walk { judge, enums }.value(&root["properties"][field], None, value, &Path::new(field));
}

struct Walk<'a> {
    judge: &'a mut Judge,
    enums: Enums,
}

impl Walk<'_> {
    /// `limit`: most bytes of this text, or of the texts of this list.
    fn value(&mut self, schema: &Value, limit: Option<usize>, value: &Value, path: &Path) {
        let Some((type_name, schema)) = resolve(schema) else { return };
        match value {
            Value::Object(fields) => {
                self.count(schema, "maxProperties", fields.len(), path);
                for (name, value) in fields {
                    let (inner, place) = match schema["properties"].get(name) {
                        Some(inner) => (inner, path.child(name)),
                        None => (&schema["additionalProperties"], path.key(name)),
                    };
                    let limit = MAX_BYTES.iter().find(|row| row.0 == type_name && row.1 == name);
                    self.value(inner, limit.map(|row| row.2), value, &place);
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
                    self.judge.too_long(path, limit);
                }
                if let Some(known) = schema["enum"].as_array()
                    && self.enums == Enums::Judge
                    && !known.contains(value)
                {
                    let known: Vec<&str> = known.iter().filter_map(Value::as_str).collect();
                    self.judge.unsupported(path, text.as_str(), &known);
                }
            }
            _ => {}
        }
    }

    fn count(&mut self, schema: &Value, word: &str, actual: usize, path: &Path) {
        let limit = schema[word].as_u64().and_then(|limit| usize::try_from(limit).ok());
        if let Some(limit) = limit.filter(|limit| actual > *limit) {
            self.judge.too_many(path, actual, limit);
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
                self.judge.duplicate(&key.map_or(place.clone(), |key| place.child(key)), part);
            }
        }
    }
}

/// One of our own types, or a schema that stands in one. Core types are judged where they are
/// served.
fn resolve(schema: &Value) -> Option<(&str, &Value)> {
    let Some(target) = schema["$ref"].as_str() else { return Some(("", schema)) };
    let name = target.strip_prefix(REF_PREFIX)?;
    let type_name = name.strip_prefix("com.jetstack.navigator.v1beta1.")?;
    if type_name == "PodTemplate" {
        return None;
    }
    Some((type_name, &schema::definitions(Version::V1beta1)[name]))
}
