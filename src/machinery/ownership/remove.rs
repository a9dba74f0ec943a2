//! Removes fields and items from an object, or keeps them alone.

use serde_json::{Map as Object, Value};

use super::{
    list_items::element_of,
    path_element::{ElementPath, PathElement},
    path_set::PathSet,
};
use crate::machinery::schema::compiled::{ListSchema, MapSchema, Schema, SchemaForm, TypeRef};

/// Returns the object without `paths`. A value that loses all of its content becomes `null`.
pub fn remove(schema: &Schema, value: &Value, paths: &PathSet) -> Value {
    RemovingWalker { schema, keep: false }.value(Some(schema.root()), value, paths)
}

/// Returns the object with `paths` alone.
pub fn extract(schema: &Schema, value: &Value, paths: &PathSet) -> Value {
    RemovingWalker { schema, keep: true }.value(Some(schema.root()), value, paths)
}

/// Returns `paths` with the keys of each list item that one of them leads through: without the keys
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
    /// True when the paths stay and the rest goes, false when the paths go.
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

    /// Returns what is left of the value that a step leads to; `None` when it goes.
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
