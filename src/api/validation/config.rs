//! Validates a database's own settings: those that Navigator sets are refused (V30), and their size
//! is limited (V5).

use serde_json::{Map, Value};

use super::validator::Validator;
use crate::machinery::field_error::FieldPath;

/// Most bytes of a database's own settings, or of a pod template, as compact JSON.
pub(super) const OVERLAY_LIMIT: usize = 64 * 1024;

pub(super) const MANAGED: &str = "is managed by Navigator";

/// Validates settings. Dotted and nested keys are one: `{cluster: {name: x}}` is `cluster.name`.
pub(super) fn validate_config(
    validator: &mut Validator,
    config: &Map<String, Value>,
    is_managed: impl Fn(&str, &Value) -> bool,
    path: &FieldPath,
) {
    validate_size(validator, config, path);
    for (key, value) in flatten_settings(config) {
        if is_managed(&key, value) {
            validator.forbidden(&path.key(&key), MANAGED);
        }
    }
}

/// Returns the dotted keys of all settings, and their values.
pub(super) fn flatten_settings(config: &Map<String, Value>) -> Vec<(String, &Value)> {
    let mut leaves = Vec::new();
    for (key, value) in config {
        collect_leaves(key.clone(), value, &mut leaves);
    }
    leaves
}

/// Limits the size of an overlay (V5).
pub(super) fn validate_size(
    validator: &mut Validator,
    overlay: &Map<String, Value>,
    path: &FieldPath,
) {
    let bytes = serde_json::to_string(overlay).map_or(usize::MAX, |text| text.len());
    if bytes > OVERLAY_LIMIT {
        validator.too_long(path, OVERLAY_LIMIT);
    }
}

/// Collects all leaves of `value`, with their dotted keys.
fn collect_leaves<'a>(key: String, value: &'a Value, leaves: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                collect_leaves(format!("{key}.{name}"), value, leaves);
            }
        }
        _ => leaves.push((key, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::reserved_fields::is_key_covered;

    #[test]
    fn a_reserved_setting_is_found_in_any_spelling() {
        assert!(is_key_covered("path.*", "path.data") && is_key_covered("path.*", "path"));
        assert!(is_key_covered("seed_provider", "seed_provider.class_name"));
        assert!(
            !is_key_covered("node.data", "node.database") && !is_key_covered("path.*", "pathology")
        );
        let config = serde_json::json!({"a": {"b": {"c.d": 1}, "e": {}}});
        let keys = flatten_settings(config.as_object().unwrap()).into_iter().map(|(key, _)| key);
        assert_eq!(keys.collect::<Vec<_>>(), ["a.b.c.d", "a.e"]);
    }
}
