//! An object without some of its fields and items, or with these alone.

use serde_json::{Map as Object, Value};

use super::{
    element::{Element, Path},
    items::element_of,
    set::Set,
};
use crate::api::schema::compiled::{Form, List, Map, Schema, Type};

/// The object without these paths. A value that loses everything becomes `null`.
pub fn remove(schema: &Schema, value: &Value, paths: &Set) -> Value {
    Walk { schema, keep: false }.value(Some(schema.root()), value, paths)
}

/// The object with these paths alone.
pub fn extract(schema: &Schema, value: &Value, paths: &Set) -> Value {
    Walk { schema, keep: true }.value(Some(schema.root()), value, paths)
}

/// The paths, and the keys of each item that a path of the object leads through: without the keys
/// no client could apply what was extracted. `present` are the paths of the object.
pub fn with_keys(paths: &Set, present: &Set) -> Set {
    let mut keys = Set::default();
    for path in paths.paths().iter().filter(|path| present.contains(path)) {
        for (at, element) in path.iter().enumerate() {
            let Element::Key(fields) = element else { continue };
            for (name, _) in fields {
                let mut key: Path = path[..=at].to_vec();
                key.push(Element::field(name));
                keys.insert(&key);
            }
        }
    }
    paths.union(&keys)
}

struct Walk<'a> {
    schema: &'a Schema,
    /// Are the paths those that stay?
    keep: bool,
}

impl Walk<'_> {
    fn value(&self, type_: Option<Type>, value: &Value, paths: &Set) -> Value {
        match (self.schema.form(type_, Some(value)), value) {
            (Some(Form::Scalar(_)), value) => value.clone(),
            (Some(Form::List(list)), Value::Array(items)) if !items.is_empty() => {
                if list.atomic {
                    return if self.keep { value.clone() } else { Value::Null };
                }
                let items = self.list(list, items, paths);
                if items.is_empty() { Value::Null } else { Value::Array(items) }
            }
            (Some(Form::Map(map)), Value::Object(fields)) if !fields.is_empty() => {
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
        element: &Element,
        type_: Option<Type>,
        value: &Value,
        paths: &Set,
    ) -> Option<Value> {
        match (paths.has(element), self.keep, paths.below(element)) {
            (true, false, _) => None,
            (true, true, below) => {
                let nothing = Set::default();
                Some(self.value(type_, value, below.unwrap_or(&nothing)))
            }
            (false, _, Some(below)) => Some(self.value(type_, value, below)),
            (false, keep, None) => (!keep).then(|| value.clone()),
        }
    }

    fn list(&self, list: &List, items: &[Value], paths: &Set) -> Vec<Value> {
        let item = |item: &Value| match element_of(self.schema, list, item) {
            Ok(element) => self.inner(&element, list.items, item, paths),
            Err(_) => Some(item.clone()),
        };
        items.iter().filter_map(item).collect()
    }

    fn map(&self, map: &Map, fields: &Object<String, Value>, paths: &Set) -> Object<String, Value> {
        let field = |(name, value): (&String, &Value)| {
            let element = Element::field(name);
            let inner = self.inner(&element, map.of_field(name), value, paths)?;
            Some((name.clone(), inner))
        };
        fields.iter().filter_map(field).collect()
    }
}
