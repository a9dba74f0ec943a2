//! Structured merge of a partial pod template over a generated one.
//!
//! Objects are merged key by key, and `null` removes a key. Lists that the core types declare as
//! maps are merged by their keys, as in server-side apply; all other lists are replaced.

use serde_json::{Map, Value};

/// Fields that are lists, with the keys that tell their entries apart, as core/v1 declares them.
const LIST_MAPS: &[(&str, &[&str])] = &[
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("ephemeralContainers", &["name"]),
    ("volumes", &["name"]),
    ("env", &["name"]),
    ("ports", &["containerPort", "protocol"]),
    ("volumeMounts", &["mountPath"]),
    ("volumeDevices", &["devicePath"]),
    ("imagePullSecrets", &["name"]),
    ("hostAliases", &["ip"]),
    ("topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("resourceClaims", &["name"]),
    ("schedulingGates", &["name"]),
];

/// Merges `overlay` into `base`.
pub(super) fn merge_values(base: &mut Value, overlay: &Value) {
    match (base, overlay) {
        (Value::Object(base), Value::Object(overlay)) => merge_objects(base, overlay),
        (base, overlay) => *base = overlay.clone(),
    }
}

fn merge_objects(base: &mut Map<String, Value>, overlay: &Map<String, Value>) {
    for (key, value) in overlay {
        if value.is_null() {
            base.remove(key);
            continue;
        }
        let keys = LIST_MAPS.iter().find(|(field, _)| field == key).map(|(_, keys)| *keys);
        match (base.get_mut(key), value, keys) {
            (Some(Value::Array(base_list)), Value::Array(overlay_list), Some(keys)) => {
                merge_list_maps(base_list, overlay_list, keys);
            }
            (Some(base_value), overlay_value, _) => merge_values(base_value, overlay_value),
            (None, overlay_value, _) => {
                base.insert(key.clone(), overlay_value.clone());
            }
        }
    }
}

fn merge_list_maps(base: &mut Vec<Value>, overlay: &[Value], keys: &[&str]) {
    let is_same_entry =
        |a: &Value, b: &Value| keys.iter().all(|key| key_value(a, key) == key_value(b, key));
    for entry in overlay {
        match base.iter_mut().find(|base_entry| is_same_entry(base_entry, entry)) {
            Some(base_entry) => merge_values(base_entry, entry),
            None => base.push(entry.clone()),
        }
    }
}

fn key_value(entry: &Value, key: &str) -> Value {
    match (entry.get(key), key) {
        (Some(value), _) => value.clone(),
        // `protocol` is the only key of these lists that has a default.
        (None, "protocol") => Value::from("TCP"),
        (None, _) => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn list_maps_are_merged_by_key_and_other_lists_replaced() {
        let mut base = json!({
            "containers": [{
                "name": "example",
                "image": "example:5",
                "env": [{"name": "A", "value": "1"}],
                "ports": [{"containerPort": 9042, "protocol": "TCP", "name": "cql"}],
                "args": ["a", "b"],
            }],
            "tolerations": [{"key": "old"}],
            "priorityClassName": "low",
        });
        merge_values(
            &mut base,
            &json!({
                "containers": [
                    {"name": "sidecar", "image": "x"},
                    {
                        "name": "example",
                        "env": [{"name": "B", "value": "2"}],
                        "ports": [{"containerPort": 9042, "hostPort": 9042}],
                        "args": ["c"],
                    },
                ],
                "tolerations": [{"key": "new"}],
                "priorityClassName": null,
            }),
        );
        assert_eq!(
            base,
            json!({
                "containers": [
                    {
                        "name": "example",
                        "image": "example:5",
                        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                        "ports": [
                            {"containerPort": 9042, "protocol": "TCP", "name": "cql", "hostPort": 9042}
                        ],
                        "args": ["c"],
                    },
                    {"name": "sidecar", "image": "x"},
                ],
                "tolerations": [{"key": "new"}],
            })
        );
    }
}
