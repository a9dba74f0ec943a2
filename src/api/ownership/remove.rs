//! An object without some of its fields and items, or with these alone.

use serde_json::{Map as Object, Value};

use super::{
    element::{ElementPath, PathElement},
    items::element_of,
    set::PathSet,
};
use crate::api::schema::compiled::{ListSchema, MapSchema, Schema, SchemaForm, TypeRef};

/// The object without these paths. A value that loses everything becomes `null`.
pub fn remove(schema: &Schema, value: &Value, paths: &PathSet) -> Value {
    RemovingWalker { schema, keep: false }.value(Some(schema.root()), value, paths)
}

/// The object with these paths alone.
pub fn extract(schema: &Schema, value: &Value, paths: &PathSet) -> Value {
    RemovingWalker { schema, keep: true }.value(Some(schema.root()), value, paths)
}

/// The paths, and the keys of each item that a path of the object leads through: without the keys
/// no client could apply what was extracted. `present` are the paths of the object.
pub fn with_keys(paths: &PathSet, present: &PathSet) -> PathSet {
    let mut keys = PathSet::default();
    for path in paths.paths().iter().filter(|path| present.contains(path)) {
        for (at, element) in path.iter().enumerate() {
            let PathElement::Key(fields) = element else { continue };
            for (name, _) in fields {
                let mut key: ElementPath = path[..=at].to_vec();
                key.push(PathElement::field(name));
                keys.insert(&key);
            }
        }
    }
    paths.union(&keys)
}

struct RemovingWalker<'a> {
    schema: &'a Schema,
    /// Are the paths those that stay?
    keep: bool,
}

impl RemovingWalker<'_> {
    fn value(&self, type_: Option<TypeRef>, value: &Value, paths: &PathSet) -> Value {
        match (self.schema.form(type_, Some(value)), value) {
            (Some(SchemaForm::Scalar(_)), value) => value.clone(),
            (Some(SchemaForm::List(list)), Value::Array(items)) if !items.is_empty() => {
                if list.atomic {
                    return if self.keep { value.clone() } else { Value::Null };
                }
                let items = self.list(list, items, paths);
                if items.is_empty() { Value::Null } else { Value::Array(items) }
            }
            (Some(SchemaForm::Map(map)), Value::Object(fields)) if !fields.is_empty() => {
                if map.atomic {
                    return if self.keep { value.clone() } else { Value::Null };
                }
                let fields = self.map(map, fields, paths);
                if fields.is_empty() { Value::Null } else { Value::Object(fields) }
            }
            _ => Value::Null,
        }
    }

    /// What becomes of a value to which a step leads; `None` when it goes.
    fn inner(
        &self,
        element: &PathElement,
        type_: Option<TypeRef>,
        value: &Value,
        paths: &PathSet,
    ) -> Option<Value> {
        match (paths.has(element), self.keep, paths.below(element)) {
            (true, false, _) => None,
            (true, true, below) => {
                let nothing = PathSet::default();
                Some(self.value(type_, value, below.unwrap_or(&nothing)))
            }
            (false, _, Some(below)) => Some(self.value(type_, value, below)),
            (false, keep, None) => (!keep).then(|| value.clone()),
        }
    }

    fn list(&self, list: &ListSchema, items: &[Value], paths: &PathSet) -> Vec<Value> {
        let item = |item: &Value| match element_of(self.schema, list, item) {
            Ok(element) => self.inner(&element, list.items, item, paths),
            Err(_) => Some(item.clone()),
        };
        items.iter().filter_map(item).collect()
    }

    fn map(
        &self,
        map: &MapSchema,
        fields: &Object<String, Value>,
        paths: &PathSet,
    ) -> Object<String, Value> {
        let field = |(name, value): (&String, &Value)| {
            let element = PathElement::field(name);
            let inner = self.inner(&element, map.of_field(name), value, paths)?;
            Some((name.clone(), inner))
        };
        fields.iter().filter_map(field).collect()
    }
}
