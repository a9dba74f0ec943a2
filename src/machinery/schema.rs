//! Schemas in OpenAPI's form: Kubernetes' own definitions, references between definitions, and what
//! is compiled of them.
//!
//! Kubernetes' definitions are an extract of the OpenAPI document of Kubernetes 1.34
//! (`scripts/kubernetes-definitions.py`), so that kube-aggregator finds them equal to its own.

mod compile;
pub mod compiled;
pub mod field_location;

use std::{collections::BTreeSet, io::Read as _, sync::LazyLock};

use flate2::read::DeflateDecoder;
use serde_json::{Map, Value};

/// Prefix of references from one definition to another.
pub const REF_PREFIX: &str = "#/definitions/";

/// Returns Kubernetes' own definitions, without the lists of groups that use them.
pub fn kubernetes_definitions() -> &'static Map<String, Value> {
    static DEFINITIONS: LazyLock<Map<String, Value>> = LazyLock::new(|| {
        let packed = include_bytes!(concat!(env!("OUT_DIR"), "/kubernetes.json.packed"));
        let mut extract = String::new();
        DeflateDecoder::new(&packed[..]).read_to_string(&mut extract).expect("packed by build.rs");
        serde_json::from_str(&extract).expect("the extract is valid JSON, packed by build.rs")
    });
    &DEFINITIONS
}

/// Copies the definitions of `source` that `schema` refers to, directly or through others, into
/// `target`.
pub fn close_over(schema: &Value, source: &Map<String, Value>, target: &mut Map<String, Value>) {
    let mut names = BTreeSet::new();
    collect_references(schema, &mut names);
    for name in names {
        if target.contains_key(&name) {
            continue;
        }
        if let Some(definition) = source.get(&name) {
            target.insert(name, definition.clone());
            close_over(definition, source, target);
        }
    }
}

fn collect_references(schema: &Value, names: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str().and_then(|text| text.strip_prefix(REF_PREFIX)) {
                    Some(name) if key == "$ref" => {
                        names.insert(name.to_owned());
                    }
                    _ => collect_references(value, names),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, names)),
        _ => {}
    }
}
