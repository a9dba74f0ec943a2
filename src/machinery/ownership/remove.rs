//! Removes fields and items from an object, or keeps them alone.

use serde_json::{Map as Object, Value};

use super::{
    list_items::element_of,
    path_element::{ElementPath, PathElement},
    path_set::PathSet,
};
use crate::machinery::schema::compiled::{ListSchema, MapSchema, Schema, SchemaForm, TypeRef};

/// Returns the object without `paths`. A value that loses all of its content becomes `null`.
pub fn remove_paths(schema: &Schema, value: &Value, paths: &PathSet) -> Value {
    RemovingWalker { schema, keep: false }.walk_value(Some(schema.root()), value, paths)
}

/// Returns the object with `paths` alone.
pub fn extract_paths(schema: &Schema, value: &Value, paths: &PathSet) -> Value {
    RemovingWalker { schema, keep: true }.walk_value(Some(schema.root()), value, paths)
}

/// Returns `paths` with the keys of each list item that one of them leads through: without the keys
/// no client could apply what was extracted. `present` are the paths of the object.
pub fn with_keys(paths: &PathSet, present: &PathSet) -> PathSet {
    let mut keys = PathSet::default();
    for path in paths.paths().iter().filter(|path| present.contains(path)) {
        for (index, element) in path.iter().enumerate() {
            let PathElement::Key(fields) = element else { continue };
            for (name, _) in fields {
                let mut key: ElementPath = path[..=index].to_vec();
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
    fn walk_value(&self, type_: Option<TypeRef>, value: &Value, paths: &PathSet) -> Value {
        match (self.schema.form(type_, Some(value)), value) {
            (Some(SchemaForm::Scalar(_)), value) => value.clone(),
            (Some(SchemaForm::List(list)), Value::Array(items)) if !items.is_empty() => {
                if list.atomic {
                    return if self.keep { value.clone() } else { Value::Null };
                }
                let items = self.walk_list(list, items, paths);
                if items.is_empty() { Value::Null } else { Value::Array(items) }
            }
            (Some(SchemaForm::Map(map)), Value::Object(fields)) if !fields.is_empty() => {
                if map.atomic {
                    return if self.keep { value.clone() } else { Value::Null };
                }
                let fields = self.walk_map(map, fields, paths);
                if fields.is_empty() { Value::Null } else { Value::Object(fields) }
            }
            _ => Value::Null,
        }
    }

    /// Returns what is left of the value that a step leads to; `None` when it goes.
    fn walk_step(
        &self,
        element: &PathElement,
        type_: Option<TypeRef>,
        value: &Value,
        paths: &PathSet,
    ) -> Option<Value> {
        match (paths.has_element(element), self.keep, paths.set_below(element)) {
            (true, false, _) => None,
            (true, true, below) => {
                let empty_set = PathSet::default();
                Some(self.walk_value(type_, value, below.unwrap_or(&empty_set)))
            }
            (false, _, Some(below)) => Some(self.walk_value(type_, value, below)),
            (false, keep, None) => (!keep).then(|| value.clone()),
        }
    }

    fn walk_list(&self, list: &ListSchema, items: &[Value], paths: &PathSet) -> Vec<Value> {
        let item = |item: &Value| match element_of(self.schema, list, item) {
            Ok(element) => self.walk_step(&element, list.items, item, paths),
            Err(_) => Some(item.clone()),
        };
        items.iter().filter_map(item).collect()
    }

    fn walk_map(
        &self,
        map: &MapSchema,
        fields: &Object<String, Value>,
        paths: &PathSet,
    ) -> Object<String, Value> {
        let field = |(name, value): (&String, &Value)| {
            let element = PathElement::field(name);
            let inner_value = self.walk_step(&element, map.field_type(name), value, paths)?;
            Some((name.clone(), inner_value))
        };
        fields.iter().filter_map(field).collect()
    }
}
