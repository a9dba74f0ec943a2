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

/// Merges `over` into `base`.
pub(super) fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => merge_objects(base, over),
        (base, over) => *base = over.clone(),
    }
}

fn merge_objects(base: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (key, value) in over {
        if value.is_null() {
            base.remove(key);
            continue;
        }
        let keys = LIST_MAPS.iter().find(|(field, _)| field == key).map(|(_, keys)| *keys);
        match (base.get_mut(key), value, keys) {
            (Some(Value::Array(below)), Value::Array(above), Some(keys)) => {
                merge_list_maps(below, above, keys);
            }
            (Some(below), above, _) => merge(below, above),
            (None, above, _) => {
                base.insert(key.clone(), above.clone());
            }
        }
    }
}

fn merge_list_maps(base: &mut Vec<Value>, over: &[Value], keys: &[&str]) {
    let same = |a: &Value, b: &Value| keys.iter().all(|key| part(a, key) == part(b, key));
    for entry in over {
        match base.iter_mut().find(|found| same(found, entry)) {
            Some(found) => merge(found, entry),
            None => base.push(entry.clone()),
        }
    }
}

fn part(entry: &Value, key: &str) -> Value {
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
        merge(
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
