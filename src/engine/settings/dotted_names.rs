//! Settings of a database to which `a.b` and `{a: {b: …}}` are one.
//!
//! Merged by structure alone, both spellings would stand side by side, and the one that is rendered
//! last wins, even if it is the cluster's.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::merge_settings;

/// Collects the settings by their dotted names; those that are `null` are not set.
pub fn flatten_settings(settings: &Map<String, Value>) -> BTreeMap<String, Value> {
    let mut keys = BTreeMap::new();
    collect_leaves("", settings, false, &mut keys);
    keys
}

/// Finds a setting in dotted, nested or mixed spelling.
pub fn find_setting<'a>(settings: &'a Map<String, Value>, path: &[&str]) -> Option<&'a Value> {
    (1..=path.len()).find_map(|length| {
        let value = settings.get(&path[..length].join("."))?;
        match &path[length..] {
            [] => Some(value),
            rest => find_setting(value.as_object()?, rest),
        }
    })
}

/// Returns the cluster's settings with the pool's over them, in their original spelling, since a
/// Pilot's settings are compared by their spelling. Only those of the cluster's settings are left
/// out that would win over the pool's.
pub fn merge_pool_settings(
    cluster: &Map<String, Value>,
    pool: &Map<String, Value>,
) -> Map<String, Value> {
    let overlay_pool = |cluster: &Map<String, Value>| {
        // Merging over nothing drops `null`s, which stand for "not set".
        let mut merged_settings = Map::new();
        merge_settings(&mut merged_settings, cluster);
        merge_settings(&mut merged_settings, pool);
        merged_settings
    };
    let merged_settings = overlay_pool(cluster);
    let rendered = flatten_settings(&merged_settings);
    let mut pool_settings = BTreeMap::new();
    collect_leaves("", pool, true, &mut pool_settings);
    pool_settings.retain(|path, value| rendered.get(path).unwrap_or(&Value::Null) != value);
    if pool_settings.is_empty() {
        return merged_settings;
    }
    let mut cluster_settings = cluster.clone();
    remove_settings("", &mut cluster_settings, &pool_settings);
    overlay_pool(&cluster_settings)
}

fn collect_leaves(
    prefix: &str,
    settings: &Map<String, Value>,
    includes_nulls: bool,
    leaf_values: &mut BTreeMap<String, Value>,
) {
    for (key, value) in settings {
        match value {
            Value::Object(inner) => {
                collect_leaves(&join_path(prefix, key), inner, includes_nulls, leaf_values);
            }
            Value::Null if !includes_nulls => {}
            value => {
                leaf_values.insert(join_path(prefix, key), value.clone());
            }
        }
    }
}

fn remove_settings(
    prefix: &str,
    settings: &mut Map<String, Value>,
    overrides: &BTreeMap<String, Value>,
) {
    settings.retain(|key, value| {
        let path = join_path(prefix, key);
        match value {
            Value::Object(inner) => {
                remove_settings(&path, inner, overrides);
                !inner.is_empty()
            }
            _ => !overrides.contains_key(&path),
        }
    });
}

fn join_path(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn over(cluster: &Value, pool: &Value) -> Value {
        json!(merge_pool_settings(cluster.as_object().unwrap(), pool.as_object().unwrap()))
    }

    #[test]
    fn a_pool_wins_whichever_way_it_and_the_cluster_spell_a_setting() {
        let spelled = |value: Value| {
            [
                json!({"a.b.c": value.clone()}),
                json!({"a": {"b.c": value.clone()}}),
                json!({"a.b": {"c": value.clone()}}),
                json!({"a": {"b": {"c": value}}}),
            ]
        };
        let rendered = |cluster: &Value, pool: &Value| {
            flatten_settings(over(cluster, pool).as_object().unwrap())
        };
        for cluster in spelled(json!(1)) {
            for pool in spelled(json!(2)) {
                let wanted = [("a.b.c".to_owned(), json!(2))].into();
                assert_eq!(rendered(&cluster, &pool), wanted, "{cluster} {pool}");
            }
            for pool in spelled(Value::Null) {
                assert_eq!(rendered(&cluster, &pool), BTreeMap::new(), "{cluster} {pool}: not set");
            }
        }
    }

    #[test]
    fn what_was_right_before_is_told_as_before() {
        let cluster = json!({"a": {"b": 1, "x": 1}, "d": {"e": 1}, "n": {"z": null}});
        let pool = json!({"a.b": 2, "d": {"f": 3}});
        let told = json!({"a": {"b": 1, "x": 1}, "a.b": 2, "d": {"e": 1, "f": 3}, "n": {}});
        assert_eq!(over(&cluster, &pool), told);
    }
}
