//! Validates a database's own settings: those that Navigator sets are refused (V30), and their size
//! is limited (V5).

use serde_json::{Map, Value};

use super::validator::Validator;
use crate::machinery::field_error::FieldPath;

/// Most bytes of a database's own settings, or of a pod template, as compact JSON.
pub(super) const OVERLAY_LIMIT: usize = 64 * 1024;

pub(super) const MANAGED: &str = "is managed by Navigator";

/// Validates settings. Dotted and nested keys are one: `{cluster: {name: x}}` is `cluster.name`.
pub(super) fn validate(
    validator: &mut Validator,
    config: &Map<String, Value>,
    is_managed: impl Fn(&str, &Value) -> bool,
    path: &FieldPath,
) {
    size(validator, config, path);
    for (key, value) in settings(config) {
        if is_managed(&key, value) {
            validator.forbidden(&path.key(&key), MANAGED);
        }
    }
}

/// Returns the dotted keys of all settings, and their values.
pub(super) fn settings(config: &Map<String, Value>) -> Vec<(String, &Value)> {
    let mut all = Vec::new();
    for (key, value) in config {
        dotted(key.clone(), value, &mut all);
    }
    all
}

/// Limits the size of an overlay (V5).
pub(super) fn size(validator: &mut Validator, overlay: &Map<String, Value>, path: &FieldPath) {
    let bytes = serde_json::to_string(overlay).map_or(usize::MAX, |text| text.len());
    if bytes > OVERLAY_LIMIT {
        validator.too_long(path, OVERLAY_LIMIT);
    }
}

/// Collects all leaves of `value`, with their dotted keys.
fn dotted<'a>(key: String, value: &'a Value, all: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                dotted(format!("{key}.{name}"), value, all);
            }
        }
        _ => all.push((key, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::reserved_fields::covers;

    #[test]
    fn a_reserved_setting_is_found_in_any_spelling() {
        assert!(covers("path.*", "path.data") && covers("path.*", "path"));
        assert!(covers("seed_provider", "seed_provider.class_name"));
        assert!(!covers("node.data", "node.database") && !covers("path.*", "pathology"));
        let config = serde_json::json!({"a": {"b": {"c.d": 1}, "e": {}}});
        let keys = settings(config.as_object().unwrap()).into_iter().map(|(key, _)| key);
        assert_eq!(keys.collect::<Vec<_>>(), ["a.b.c.d", "a.e"]);
    }
}
