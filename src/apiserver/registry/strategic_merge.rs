//! Strategic merge patches: what kubectl sends for Kubernetes' own kinds.
//!
//! As a merge patch, but lists of certain fields are merged item by item, and directives among the
//! fields say what a merge cannot (`$patch`, `$retainKeys`, `$setElementOrder/…`,
//! `$deleteFromPrimitiveList/…`). Pure. The fields are those that the Go types of the kinds served
//! here mark so.

use serde_json::{Map, Value};

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const REMOVE: &str = "$deleteFromPrimitiveList/";

/// A patch that contradicts itself.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Error {
    #[error("unknown patch type {0:?}")]
    Directive(String),
    #[error("an item of {field:?} does not contain its merge key {key:?}")]
    NoKey { field: String, key: &'static str },
}

/// How a list is merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListMergeStrategy {
    Replace,
    /// Values that the list lacks are added.
    Add,
    /// Items with the same value of the named field are merged.
    By(&'static str),
}

fn merge_strategy(field: &str, items: &[Value]) -> ListMergeStrategy {
    match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "secrets"
        | "resourceClaims"
        | "schedulingGates" => ListMergeStrategy::By("name"),
        "ports" => {
            let has_container_port = items.iter().any(|item| item.get("containerPort").is_some());
            ListMergeStrategy::By(if has_container_port { "containerPort" } else { "port" })
        }
        "volumeMounts" => ListMergeStrategy::By("mountPath"),
        "volumeDevices" => ListMergeStrategy::By("devicePath"),
        "conditions" | "addresses" => ListMergeStrategy::By("type"),
        "ownerReferences" => ListMergeStrategy::By("uid"),
        "hostAliases" | "podIPs" => ListMergeStrategy::By("ip"),
        "topologySpreadConstraints" => ListMergeStrategy::By("topologyKey"),
        "finalizers" => ListMergeStrategy::Add,
        _ => ListMergeStrategy::Replace,
    }
}

/// Applies the patch to the object.
pub(super) fn merge_object(object: &mut Value, patch: &Value) -> Result<(), Error> {
    let Value::Object(patch) = patch else {
        *object = patch.clone();
        return Ok(());
    };
    match patch.get(PATCH).map(|directive| directive.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("replace") => {
            let fields = patch.iter().filter(|(name, _)| *name != PATCH);
            *object = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
            return Ok(());
        }
        Some("delete") => {
            *object = Value::Object(Map::new());
            return Ok(());
        }
        Some(other) => return Err(Error::Directive(other.to_owned())),
    }
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let fields = object.as_object_mut().expect("it was just made an object");
    if let Some(Value::Array(retained_keys)) = patch.get(RETAIN) {
        fields.retain(|name, _| retained_keys.iter().any(|key| key == name));
    }
    for (name, value) in patch {
        if name.starts_with('$') {
            continue;
        }
        match value {
            Value::Null => drop(fields.remove(name)),
            Value::Array(items) => merge_list(fields, name, items)?,
            _ => merge_object(fields.entry(name).or_insert(Value::Null), value)?,
        }
    }
    for (name, values) in patch {
        let Value::Array(values) = values else { continue };
        if let Some(field) = name.strip_prefix(REMOVE)
            && let Some(Value::Array(list)) = fields.get_mut(field)
        {
            list.retain(|item| !values.contains(item));
        }
        if let Some(field) = name.strip_prefix(ORDER)
            && let Some(Value::Array(list)) = fields.get_mut(field)
        {
            sort_items(list, values, merge_strategy(field, values));
        }
    }
    Ok(())
}

fn merge_list(fields: &mut Map<String, Value>, name: &str, items: &[Value]) -> Result<(), Error> {
    let strategy = merge_strategy(name, items);
    let has_replace = items.iter().any(|item| item[PATCH] == "replace");
    if strategy == ListMergeStrategy::Replace || has_replace {
        let new_items = items.iter().filter(|item| item.get(PATCH).is_none());
        fields.insert(name.to_owned(), new_items.cloned().collect());
        return Ok(());
    }
    let list = fields.entry(name).or_insert(Value::Null);
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    let list = list.as_array_mut().expect("it was just made an array");
    let ListMergeStrategy::By(key) = strategy else {
        for item in items {
            if !list.contains(item) {
                list.push(item.clone());
            }
        }
        return Ok(());
    };
    for item in items {
        let item_key = item.get(key).filter(|value| !value.is_null());
        let item_key = item_key.ok_or_else(|| Error::NoKey { field: name.to_owned(), key })?;
        let index = list.iter().position(|existing_item| existing_item.get(key) == Some(item_key));
        match (item[PATCH].as_str(), index) {
            (Some("delete"), index) => drop(index.map(|index| list.remove(index))),
            (_, Some(index)) => merge_object(&mut list[index], item)?,
            (_, None) => {
                let mut new_item = Value::Null;
                merge_object(&mut new_item, item)?;
                list.push(new_item);
            }
        }
    }
    Ok(())
}

/// Sorts the items that `desired_order` names into its order; the other items keep their places
/// behind those that they stood behind.
fn sort_items(list: &mut Vec<Value>, desired_order: &[Value], strategy: ListMergeStrategy) {
    let id = |item: &Value| match strategy {
        ListMergeStrategy::By(key) => item[key].clone(),
        ListMergeStrategy::Add | ListMergeStrategy::Replace => item.clone(),
    };
    let rank = |item: &Value| desired_order.iter().position(|entry| id(entry) == id(item));
    let mut last_rank = 0;
    let mut ranked_items: Vec<(usize, Value)> = Vec::with_capacity(list.len());
    for item in list.drain(..) {
        last_rank = rank(&item).unwrap_or(last_rank);
        ranked_items.push((last_rank, item));
    }
    // The sort is stable: an item that is not named stays behind its neighbour.
    ranked_items.sort_by_key(|(rank, _)| *rank);
    list.extend(ranked_items.into_iter().map(|(_, item)| item));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(mut object: Value, patch: &Value) -> Value {
        merge_object(&mut object, patch).unwrap();
        object
    }

    #[test]
    fn lists_are_merged_by_key_added_to_or_replaced() {
        let object = json!({
            "containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]},
                {"name": "b"}],
            "finalizers": ["x/y"],
            "args": ["1", "2"],
        });
        let rows = [
            (
                json!({"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}]}),
                "/containers/0/env",
                json!([{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]),
            ),
            (
                json!({"containers": [{"name": "b", "$patch": "delete"}, {"name": "c"}]}),
                "/containers/1",
                json!({"name": "c"}),
            ),
            (
                json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
                "/containers",
                json!([{"name": "c"}]),
            ),
            (
                json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}),
                "/containers/0/name",
                json!("b"),
            ),
            (json!({"finalizers": ["x/y", "z"]}), "/finalizers", json!(["x/y", "z"])),
            (json!({"$deleteFromPrimitiveList/finalizers": ["x/y"]}), "/finalizers", json!([])),
            (json!({"args": ["3"]}), "/args", json!(["3"])),
        ];
        for (patch, pointer, expected) in rows {
            let got = merged(object.clone(), &patch);
            assert_eq!(got.pointer(pointer), Some(&expected), "{patch}");
        }
    }

    #[test]
    fn objects_are_merged_replaced_or_thinned() {
        let object = json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"a": 1}}});
        for (patch, expected) in [
            (json!({"type": null}), json!({"rollingUpdate": {"a": 1}})),
            (json!({"$patch": "replace", "type": "Recreate"}), json!({"type": "Recreate"})),
            (json!({"$retainKeys": ["type"], "type": "Recreate"}), json!({"type": "Recreate"})),
            (json!({"$patch": "delete"}), json!({})),
        ] {
            let got = merged(object.clone(), &json!({"strategy": patch}));
            assert_eq!(got["strategy"], expected, "{patch}");
        }
        let mut object = object;
        assert!(merge_object(&mut object, &json!({"$patch": "nope"})).is_err());
        let nameless = json!({"containers": [{"image": "x"}]});
        assert!(merge_object(&mut object, &nameless).is_err());
    }
}
