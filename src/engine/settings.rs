//! How settings are laid over each other: cluster over the built-in defaults, pool over cluster.

pub mod dotted_names;

use serde_json::{Map, Value};

/// Merges `over` into `base`: objects deeply, lists and scalars replaced, `null` removes.
pub fn merge_settings(base: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (_, Value::Null) => {
                base.remove(key);
            }
            (Some(Value::Object(base_object)), Value::Object(over_object)) => {
                merge_settings(base_object, over_object);
            }
            (_, Value::Object(over_object)) => {
                // The object is merged into an empty one, so that a `null` inside it does not
                // survive.
                let mut merged_object = Map::new();
                merge_settings(&mut merged_object, over_object);
                base.insert(key.clone(), Value::Object(merged_object));
            }
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_merge_deeply_lists_are_replaced_and_null_removes() {
        let mut base = json!({"a": {"b": 1, "c": 2}, "l": [1, 2], "gone": 1});
        let over =
            json!({"a": {"c": 3, "d": null}, "l": [9], "gone": null, "new": {"x": null, "y": 1}});
        merge_settings(base.as_object_mut().unwrap(), over.as_object().unwrap());
        assert_eq!(base, json!({"a": {"b": 1, "c": 3}, "l": [9], "new": {"y": 1}}));
    }
}
