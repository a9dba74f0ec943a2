//! Which fields of a JSON object a schema knows, and the walks that need to know it.
//!
//! Unknown fields of a request are dropped. Unknown fields of stored bytes were written by a
//! newer server: they are kept, carried over every update, and never served.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{Timestamp, fmt::strtime};
use serde_json::Value;

/// What a schema says about a value, as far as the walks here need it.
#[derive(Debug)]
pub(super) enum Known {
    /// Nothing, or a scalar: every value below it is taken as it is.
    Opaque,
    Time,
    Object(BTreeMap<String, Known>),
    Map(Box<Known>),
    /// A list; with keys it is a list map.
    List(Box<Known>, Vec<String>),
}

/// No schema of ours nests as deep; a recursive one ends here.
const MAX_DEPTH: usize = 32;

impl Known {
    /// Reads a root schema. apiVersion and kind are known at its top, whether it says so or not.
    pub(super) fn of(root: &Value) -> Self {
        let mut known = Self::read(root, root, 0);
        if let Self::Object(fields) = &mut known {
            for name in ["apiVersion", "kind"] {
                fields.insert(name.to_owned(), Self::Opaque);
            }
        }
        known
    }

    fn read(root: &Value, schema: &Value, depth: usize) -> Self {
        if depth > MAX_DEPTH || schema.get("x-kubernetes-preserve-unknown-fields").is_some() {
            return Self::Opaque;
        }
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
            return target.map_or(Self::Opaque, |target| Self::read(root, target, depth + 1));
        }
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            let field = |(name, schema): (&String, &Value)| {
                (name.clone(), Self::read(root, schema, depth + 1))
            };
            return Self::Object(properties.iter().map(field).collect());
        }
        if let Some(items) = schema.get("items") {
            let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
            let keys = keys.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
            return Self::List(Box::new(Self::read(root, items, depth + 1)), keys.collect());
        }
        if let Some(values) = schema.get("additionalProperties").filter(|v| v.is_object()) {
            return Self::Map(Box::new(Self::read(root, values, depth + 1)));
        }
        if schema.get("format").and_then(Value::as_str) == Some("date-time") {
            return Self::Time;
        }
        Self::Opaque
    }

    /// Is every field known?
    pub(super) fn knows(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Object(fields), Value::Object(object)) => object
                .iter()
                .all(|(name, value)| fields.get(name).is_some_and(|known| known.knows(value))),
            (Self::Map(known), Value::Object(object)) => {
                object.values().all(|value| known.knows(value))
            }
            (Self::List(known, _), Value::Array(items)) => {
                items.iter().all(|item| known.knows(item))
            }
            _ => true,
        }
    }

    /// Removes every field that is not known.
    pub(super) fn prune(&self, value: &mut Value) {
        match (self, value) {
            (Self::Object(fields), Value::Object(object)) => object.retain(|name, value| {
                let known = fields.get(name);
                known.inspect(|known| known.prune(value)).is_some()
            }),
            (Self::Map(known), Value::Object(object)) => {
                object.values_mut().for_each(|value| known.prune(value));
            }
            (Self::List(known, _), Value::Array(items)) => {
                for item in items {
                    known.prune(item);
                }
            }
            _ => {}
        }
    }

    /// Copies the fields of `old` that are not known into `new`, where their place still exists:
    /// items of list maps by key, other items only while the list is unchanged.
    pub(super) fn carry(&self, old: &Value, new: &mut Value) {
        match (self, old, new) {
            (Self::Object(fields), Value::Object(old), Value::Object(new)) => {
                for (name, value) in old {
                    match (fields.get(name), new.get_mut(name)) {
                        (Some(known), Some(new)) => known.carry(value, new),
                        // Who read an object of which nothing is known did not see it.
                        (Some(known), None) if !known.unseen(value) => {}
                        (_, _) => {
                            new.insert(name.clone(), value.clone());
                        }
                    }
                }
            }
            (Self::Map(known), Value::Object(old), Value::Object(new)) => {
                for (name, value) in old {
                    if let Some(new) = new.get_mut(name) {
                        known.carry(value, new);
                    }
                }
            }
            (Self::List(known, keys), Value::Array(old), Value::Array(new)) => {
                known.carry_items(keys, old, new);
            }
            _ => {}
        }
    }

    fn carry_items(&self, keys: &[String], old: &[Value], new: &mut [Value]) {
        if keys.is_empty() {
            let pruned = |value: &Value| {
                let mut value = value.clone();
                self.prune(&mut value);
                value
            };
            if old.len() == new.len() && old.iter().zip(&*new).all(|(o, n)| pruned(o) == *n) {
                old.iter().zip(new).for_each(|(old, new)| self.carry(old, new));
            }
            return;
        }
        for new in new {
            let same = |old: &&Value| keys.iter().all(|key| old.get(key) == new.get(key));
            if let Some(old) = old.iter().find(same) {
                self.carry(old, new);
            }
        }
    }

    /// Is this an object that holds fields, and none that is known?
    fn unseen(&self, value: &Value) -> bool {
        let (Self::Object(fields), Value::Object(object)) = (self, value) else { return false };
        let unseen = |(name, value): (&String, &Value)| {
            fields.get(name).is_none_or(|known| known.unseen(value))
        };
        !object.is_empty() && object.iter().all(unseen)
    }

    /// Rewrites times with an offset of `±hh` or `±hhmm` in UTC.
    pub(super) fn repair_times(&self, value: &mut Value) {
        match (self, value) {
            (Self::Object(fields), Value::Object(object)) => {
                for (name, value) in object {
                    if let Some(known) = fields.get(name) {
                        known.repair_times(value);
                    }
                }
            }
            (Self::Map(known), Value::Object(object)) => {
                object.values_mut().for_each(|value| known.repair_times(value));
            }
            (Self::List(known, _), Value::Array(items)) => {
                for item in items {
                    known.repair_times(item);
                }
            }
            (Self::Time, Value::String(text)) => {
                if let Some(repaired) = repair_time(text) {
                    *text = repaired;
                }
            }
            _ => {}
        }
    }
}

/// The time in UTC, when its offset is one that RFC 3339 does not know.
fn repair_time(text: &str) -> Option<String> {
    let (date, time) = text.split_once(['T', 't'])?;
    let sign = time.rfind(['+', '-'])?;
    let (time, offset) = time.split_at(sign);
    let digits = &offset[1..];
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (hours, minutes) = match digits.len() {
        2 => (digits, "00"),
        4 => digits.split_at(2),
        _ => return None,
    };
    let sign = &offset[..1];
    let moment: Timestamp = format!("{date}T{time}{sign}{hours}:{minutes}").parse().ok()?;
    strtime::format("%Y-%m-%dT%H:%M:%SZ", moment).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Pools by name, settings of any content, and a name.
    fn known() -> Known {
        let any = json!({"x-kubernetes-preserve-unknown-fields": true});
        Known::of(&json!({"properties": {
            "metadata": {"properties": {"name": {"type": "string"}}},
            "spec": {"properties": {
                "config": any,
                "nodePools": {
                    "items": {"properties": {"name": {"type": "string"}}},
                    "x-kubernetes-list-map-keys": ["name"],
                },
            }},
        }}))
    }

    #[test]
    fn unknown_fields_are_pruned_at_any_depth() {
        let mut value = json!({"kind": "ExampleCluster", "new": 1, "metadata": {"name": "a", "new": 1},
            "spec": {"new": 1, "config": {"any": 1}, "nodePools": [{"name": "p", "new": 1}]}});
        known().prune(&mut value);
        assert_eq!(
            value,
            json!({"kind": "ExampleCluster", "metadata": {"name": "a"},
                "spec": {"config": {"any": 1}, "nodePools": [{"name": "p"}]}})
        );
    }

    #[test]
    fn unknown_fields_are_carried_to_where_they_were() {
        let old = json!({"spec": {"tls": {"mode": "Managed"}, "nodePools": [
            {"name": "a", "new": 1}, {"name": "b", "new": 2}, {"name": "c", "new": 3}]}});
        let mut new = json!({"spec": {"nodePools": [{"name": "c"}, {"name": "a"}, {"name": "d"}]}});
        known().carry(&old, &mut new);
        assert_eq!(
            new,
            json!({"spec": {"tls": {"mode": "Managed"}, "nodePools": [
                {"name": "c", "new": 3}, {"name": "a", "new": 1}, {"name": "d"}]}})
        );
    }

    #[test]
    fn odd_offsets_are_repaired_and_all_else_is_left() {
        assert_eq!(repair_time("2017-10-01T19:00:00+00").unwrap(), "2017-10-01T19:00:00Z");
        assert_eq!(repair_time("2017-10-01T19:00:00+0230").unwrap(), "2017-10-01T16:30:00Z");
        assert_eq!(repair_time("2017-10-01T19:00:00-07").unwrap(), "2017-10-02T02:00:00Z");
        for text in ["2017-10-01T19:00:00Z", "2017-10-01T19:00:00+02:00", "2017-10-01", "soon", ""]
        {
            assert_eq!(repair_time(text), None, "{text}");
        }
    }
}
