//! Tells which fields of a JSON object a schema knows, and holds the walks that depend on it.
//!
//! Unknown fields of a request are dropped. Unknown fields of stored bytes were written by a newer
//! server: they are kept, carried over every update, and never served.

use k8s_openapi::jiff::{Timestamp, fmt::strtime};
use serde_json::Value;

use super::schema::compiled::{FieldSchemas, Schema, SchemaAtom, UnknownFieldPolicy, ValueFormat};

/// Does the schema know every field of `value`?
pub(crate) fn is_fully_known(schema: &Schema, value: &Value) -> bool {
    SchemaNode::root(schema).is_known(value)
}

/// Removes the fields of `value` that the schema does not know.
pub(crate) fn prune_unknown(schema: &Schema, value: &mut Value) {
    SchemaNode::root(schema).prune_value(value);
}

/// Copies the fields of `old` that the schema does not know into `new`, where their place still
/// exists: items of list maps are matched by key, items of other lists only while the list is
/// unchanged.
pub(crate) fn copy_unknown(schema: &Schema, old: &Value, new: &mut Value) {
    SchemaNode::root(schema).copy_unknown_from(old, new);
}

/// Rewrites times of `value` whose offset is `±hh` or `±hhmm` in UTC.
pub(crate) fn repair_times(schema: &Schema, value: &mut Value) {
    SchemaNode::root(schema).repair_times(value);
}

/// A schema and the part of it that describes one value.
#[derive(Clone, Copy)]
struct SchemaNode<'a> {
    schema: &'a Schema,
    atom: &'a SchemaAtom,
}

enum SchemaShape<'a> {
    /// A value that the schema leaves free, or a scalar: all values below it are taken as they are.
    Opaque,
    Time,
    Object(&'a FieldSchemas),
    Map(SchemaNode<'a>),
    /// A list, with the schema of its items and its keys; a list with keys is a list map.
    List(SchemaNode<'a>, &'a [Box<str>]),
}

impl<'a> SchemaNode<'a> {
    fn root(schema: &'a Schema) -> Self {
        Self { schema, atom: schema.atom(schema.root()) }
    }

    fn with_atom(self, atom: &'a SchemaAtom) -> Self {
        Self { atom, ..self }
    }

    fn field_node(self, fields: &FieldSchemas, name: &str) -> Option<Self> {
        fields.get(name).map(|field| self.with_atom(self.schema.atom(field.type_)))
    }

    fn shape(self) -> SchemaShape<'a> {
        let Self { schema, atom } = self;
        let scalar = match atom.facts.format {
            ValueFormat::DateTime => SchemaShape::Time,
            _ => SchemaShape::Opaque,
        };
        if atom.map.is_none() && atom.list.is_none() {
            return scalar;
        }
        match (atom.facts.unnamed, &atom.map, &atom.list) {
            (UnknownFieldPolicy::Kept, _, _) => return SchemaShape::Opaque,
            (UnknownFieldPolicy::Unknown, Some(map), _) => return SchemaShape::Object(&map.fields),
            (_, _, Some(list)) => {
                if let Some(items) = schema.item_type(atom) {
                    return SchemaShape::List(self.with_atom(items), &list.keys);
                }
            }
            _ => {}
        }
        match schema.entry_type(atom) {
            Some(entries) => SchemaShape::Map(self.with_atom(entries)),
            None => scalar,
        }
    }

    fn is_known(self, value: &Value) -> bool {
        match (self.shape(), value) {
            (SchemaShape::Object(fields), Value::Object(object)) => {
                object.iter().all(|(name, value)| {
                    self.field_node(fields, name).is_some_and(|node| node.is_known(value))
                })
            }
            (SchemaShape::Map(node), Value::Object(object)) => {
                object.values().all(|value| node.is_known(value))
            }
            (SchemaShape::List(node, _), Value::Array(items)) => {
                items.iter().all(|item| node.is_known(item))
            }
            _ => true,
        }
    }

    fn prune_value(self, value: &mut Value) {
        match (self.shape(), value) {
            (SchemaShape::Object(fields), Value::Object(object)) => {
                let mut is_all_known = true;
                for (name, value) in object.iter_mut() {
                    match self.field_node(fields, name) {
                        Some(node) => node.prune_value(value),
                        None => is_all_known = false,
                    }
                }
                // Unknown fields are rare, and `retain` costs more than the search for them.
                if !is_all_known {
                    object.retain(|name, _| fields.get(name).is_some());
                }
            }
            (SchemaShape::Map(node), Value::Object(object)) => {
                object.values_mut().for_each(|value| node.prune_value(value));
            }
            (SchemaShape::List(node, _), Value::Array(items)) => {
                for item in items {
                    node.prune_value(item);
                }
            }
            _ => {}
        }
    }

    /// Would pruning `old` make it equal to `new`?
    fn prunes_to(self, old: &Value, new: &Value) -> bool {
        match (self.shape(), old, new) {
            (SchemaShape::Object(fields), Value::Object(old), Value::Object(new)) => {
                let mut known_count = 0;
                let is_same = old.iter().all(|(name, old)| {
                    let Some(node) = self.field_node(fields, name) else { return true };
                    known_count += 1;
                    new.get(name).is_some_and(|new| node.prunes_to(old, new))
                });
                is_same && known_count == new.len()
            }
            (SchemaShape::Map(node), Value::Object(old), Value::Object(new)) => {
                let is_same = |(name, old): (&String, &Value)| {
                    new.get(name).is_some_and(|new| node.prunes_to(old, new))
                };
                old.len() == new.len() && old.iter().all(is_same)
            }
            (SchemaShape::List(node, _), Value::Array(old), Value::Array(new)) => {
                old.len() == new.len() && old.iter().zip(new).all(|(o, n)| node.prunes_to(o, n))
            }
            _ => old == new,
        }
    }

    fn copy_unknown_from(self, old: &Value, new: &mut Value) {
        match (self.shape(), old, new) {
            (SchemaShape::Object(fields), Value::Object(old), Value::Object(new)) => {
                for (name, value) in old {
                    match (self.field_node(fields, name), new.get_mut(name)) {
                        (Some(node), Some(new)) => node.copy_unknown_from(value, new),
                        // A client that read the object saw this field and removed it. An object of
                        // unknown fields alone was invisible to the client, and is carried.
                        (Some(node), None) if !node.is_unknown_only(value) => {}
                        (_, _) => {
                            new.insert(name.clone(), value.clone());
                        }
                    }
                }
            }
            (SchemaShape::Map(node), Value::Object(old), Value::Object(new)) => {
                for (name, value) in old {
                    if let Some(new) = new.get_mut(name) {
                        node.copy_unknown_from(value, new);
                    }
                }
            }
            (SchemaShape::List(node, keys), Value::Array(old), Value::Array(new)) => {
                node.copy_unknown_items(keys, old, new);
            }
            _ => {}
        }
    }

    fn copy_unknown_items(self, keys: &[Box<str>], old: &[Value], new: &mut [Value]) {
        if keys.is_empty() {
            if old.len() == new.len() && old.iter().zip(&*new).all(|(o, n)| self.prunes_to(o, n)) {
                old.iter().zip(new).for_each(|(old, new)| self.copy_unknown_from(old, new));
            }
            return;
        }
        for new in new {
            let has_same_keys =
                |old: &&Value| keys.iter().all(|key| old.get(&**key) == new.get(&**key));
            if let Some(old) = old.iter().find(has_same_keys) {
                self.copy_unknown_from(old, new);
            }
        }
    }

    /// Is `value` an object that holds fields, none of which the schema knows?
    fn is_unknown_only(self, value: &Value) -> bool {
        let (SchemaShape::Object(fields), Value::Object(object)) = (self.shape(), value) else {
            return false;
        };
        let is_unknown = |(name, value): (&String, &Value)| {
            self.field_node(fields, name).is_none_or(|node| node.is_unknown_only(value))
        };
        !object.is_empty() && object.iter().all(is_unknown)
    }

    fn repair_times(self, value: &mut Value) {
        match (self.shape(), value) {
            (SchemaShape::Object(fields), Value::Object(object)) => {
                for (name, value) in object {
                    if let Some(node) = self.field_node(fields, name) {
                        node.repair_times(value);
                    }
                }
            }
            (SchemaShape::Map(node), Value::Object(object)) => {
                object.values_mut().for_each(|value| node.repair_times(value));
            }
            (SchemaShape::List(node, _), Value::Array(items)) => {
                for item in items {
                    node.repair_times(item);
                }
            }
            (SchemaShape::Time, Value::String(text)) => {
                if let Some(utc_text) = repair_time(text) {
                    *text = utc_text;
                }
            }
            _ => {}
        }
    }
}

/// Returns the time `text` in UTC, when its offset is `±hh` or `±hhmm`, which RFC 3339 does not
/// allow.
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

    /// Returns a schema with node pools by name, free-form settings, and a name.
    fn schema() -> Schema {
        let any = json!({"x-kubernetes-preserve-unknown-fields": true});
        Schema::from_openapi(&json!({"properties": {
            "kind": {"type": "string"},
            "metadata": {"properties": {"name": {"type": "string"}}},
            "spec": {"properties": {
                "config": any,
                "nodePools": {
                    "items": {"properties": {"name": {"type": "string"}}},
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
            }},
        }}))
    }

    #[test]
    fn unknown_fields_are_pruned_at_any_depth() {
        let mut value = json!({"kind": "ExampleCluster", "new": 1, "metadata": {"name": "a", "new": 1},
            "spec": {"new": 1, "config": {"any": 1}, "nodePools": [{"name": "p", "new": 1}]}});
        prune_unknown(&schema(), &mut value);
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
        copy_unknown(&schema(), &old, &mut new);
        assert_eq!(
            new,
            json!({"spec": {"tls": {"mode": "Managed"}, "nodePools": [
                {"name": "c", "new": 3}, {"name": "a", "new": 1}, {"name": "d"}]}})
        );
    }

    #[test]
    fn items_without_keys_are_carried_while_their_list_is_unchanged() {
        let schema = Schema::from_openapi(&json!({"properties": {
            "list": {"items": {"properties": {"a": {"items": {}}, "b": {}}}},
        }}));
        let old = json!({"list": [{"a": [1], "new": 1}, {"a": [2], "b": {"any": 1}}]});
        for (list, expected) in [
            (json!([{"a": [1]}, {"a": [2], "b": {"any": 1}}]), old["list"].clone()),
            (json!([{"a": [1]}, {"a": [2], "b": {"any": 2}}]), Value::Null),
            (json!([{"a": [1], "b": 1}, {"a": [2], "b": {"any": 1}}]), Value::Null),
            (json!([{"a": [1]}, {"a": [2]}]), Value::Null),
            (json!([{"a": [1]}]), Value::Null),
        ] {
            let mut new = json!({"list": list});
            copy_unknown(&schema, &old, &mut new);
            let expected = if expected.is_null() { list } else { expected };
            assert_eq!(new["list"], expected);
        }
    }

    #[test]
    fn a_type_may_hold_itself() {
        let schema = Schema::from_openapi(&json!({
            "properties": {"child": {"$ref": "#/definitions/Node"}},
            "definitions": {"Node": {"properties": {"child": {"$ref": "#/definitions/Node"}}}},
        }));
        let nested = |inmost: Value| (0..60).fold(inmost, |inner, _| json!({"child": inner}));
        let mut value = nested(json!({"child": {}, "new": 1}));
        prune_unknown(&schema, &mut value);
        assert_eq!(value, nested(json!({"child": {}})));
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
