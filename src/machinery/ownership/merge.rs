//! Merges an applied object into a live one: nothing is removed, and the applied values win.

use std::collections::BTreeMap;

use serde_json::{Map as Object, Value};

use super::{
    compare::names,
    list_items::element_of,
    path_element::PathElement,
    schema_mismatch::{MismatchCollector, SchemaMismatches},
    validate::{NO_FORM, scalar_problem},
};
use crate::machinery::schema::compiled::{ListSchema, MapSchema, Schema, SchemaForm, TypeRef};

/// Returns `live` with `applied` merged into it. In a list that both have, items of the applied
/// list keep its order.
pub fn merge(schema: &Schema, live: &Value, applied: &Value) -> Result<Value, SchemaMismatches> {
    let merged = MergingWalker { schema }.pair(Some(schema.root()), Some(live), Some(applied))?;
    Ok(merged.unwrap_or_default())
}

struct MergingWalker<'a> {
    schema: &'a Schema,
}

impl<'a> MergingWalker<'a> {
    fn pair(
        &self,
        type_: Option<TypeRef>,
        live: Option<&Value>,
        applied: Option<&Value>,
    ) -> Result<Option<Value>, SchemaMismatches> {
        let by_live =
            self.schema.form(type_, live).ok_or_else(|| SchemaMismatches::new(NO_FORM))?;
        let by_applied =
            self.schema.form(type_, applied).ok_or_else(|| SchemaMismatches::new(NO_FORM))?;
        let form = if applied.is_none() { by_live } else { by_applied };
        self.form(form, live, applied)
    }

    fn form(
        &self,
        form: SchemaForm<'a>,
        live: Option<&Value>,
        applied: Option<&Value>,
    ) -> Result<Option<Value>, SchemaMismatches> {
        let leaf = || applied.or(live).cloned();
        match form {
            SchemaForm::Scalar(scalar) => {
                match (scalar_problem(scalar, live), scalar_problem(scalar, applied)) {
                    (Some(live), Some(applied)) => {
                        Err(SchemaMismatches::new(format!("live: {live}, applied: {applied}")))
                    }
                    _ => Ok(leaf()),
                }
            }
            SchemaForm::List(list) => {
                let (old, new) = (
                    live.and_then(Value::as_array).map_or(&[][..], Vec::as_slice),
                    applied.and_then(Value::as_array).map_or(&[][..], Vec::as_slice),
                );
                if list.atomic || old.is_empty() && new.is_empty() {
                    return Ok(leaf());
                }
                let merged = self.list(list, old, new)?;
                Ok((!merged.is_empty()).then_some(Value::Array(merged)))
            }
            SchemaForm::Map(map) => {
                let old = live.and_then(Value::as_object);
                let new = applied.and_then(Value::as_object);
                let empty =
                    |object: Option<&Object<String, Value>>| object.is_none_or(Object::is_empty);
                if map.atomic || empty(old) && empty(new) {
                    return Ok(leaf());
                }
                let merged = self.map(map, old, new)?;
                Ok((!merged.is_empty()).then_some(Value::Object(merged)))
            }
        }
    }

    fn map(
        &self,
        map: &MapSchema,
        live: Option<&Object<String, Value>>,
        applied: Option<&Object<String, Value>>,
    ) -> Result<Object<String, Value>, SchemaMismatches> {
        let mut found = MismatchCollector::default();
        let mut merged = Object::new();
        for name in names(live, applied) {
            let (old, new) = (live.and_then(|o| o.get(name)), applied.and_then(|n| n.get(name)));
            let value = match (old, new, map.of_field(name)) {
                // The live value has nothing to be merged with, so it is copied without a walk.
                (Some(old), None, Some(_)) => Ok(Some(old.clone())),
                (old, new, type_) => self.pair(type_, old, new),
            };
            let value = found.take(value.map_err(|p| p.below(&PathElement::field(name))));
            if let Some(value) = value.flatten() {
                merged.insert(name.to_owned(), value);
            }
        }
        found.end()?;
        Ok(merged)
    }

    fn list(
        &self,
        list: &ListSchema,
        live: &[Value],
        applied: &[Value],
    ) -> Result<Vec<Value>, SchemaMismatches> {
        let new = ListItems::read(self.schema, list, applied, false)?;
        let old = ListItems::read(self.schema, list, live, true)?;
        let mut merged = Vec::with_capacity(live.len().max(applied.len()));
        let mut put = |element: &PathElement, live: Option<&Value>, applied: Option<&Value>| {
            let item = self.pair(list.items, live, applied).map_err(|p| p.below(element))?;
            merged.extend(item);
            Ok::<(), SchemaMismatches>(())
        };

        // Items that are in both lists, in the order of the applied list.
        let mut shared = new.elements.iter().filter(|element| old.by_element.contains_key(element));
        let mut next_shared = shared.next();
        let mut done: Vec<bool> = vec![false; new.elements.len()];
        let (mut l, mut a) = (0, 0);
        while l < old.elements.len() || a < new.elements.len() {
            if let (Some(live), Some(applied)) = (old.elements.get(l), new.elements.get(a)) {
                if live == applied {
                    put(live, old.item(live), new.item(live))?;
                    done[a] = true;
                    (l, a) = (l + 1, a + 1);
                    next_shared = shared.next();
                    continue;
                }
                let due = next_shared.is_none_or(|next| next == live);
                if new.by_element.contains_key(live) && !due {
                    // The item is added later, at its place in the applied list.
                    l += 1;
                    continue;
                }
            }
            if let Some(live) = old.elements.get(l) {
                match new.by_element.get(live) {
                    None => {
                        put(live, Some(old.values[l]), None)?;
                        l += 1;
                        continue;
                    }
                    Some(&(at, _)) if done[at] => l += 1,
                    Some(_) => {}
                }
            }
            if let Some(applied) = new.elements.get(a) {
                put(applied, old.item(applied), new.item(applied))?;
                done[a] = true;
                a += 1;
                if next_shared == Some(applied) {
                    next_shared = shared.next();
                }
            }
        }
        Ok(merged)
    }
}

/// The items of a list by the step that leads to them.
struct ListItems<'a> {
    elements: Vec<PathElement>,
    values: Vec<&'a Value>,
    /// Index of the first item with an element, and that item; `None` for the item where several
    /// have the element.
    by_element: BTreeMap<PathElement, (usize, Option<&'a Value>)>,
}

impl<'a> ListItems<'a> {
    fn read(
        schema: &Schema,
        list: &ListSchema,
        items: &'a [Value],
        twice: bool,
    ) -> Result<Self, SchemaMismatches> {
        let mut found = MismatchCollector::default();
        let mut read =
            Self { elements: Vec::new(), values: Vec::new(), by_element: BTreeMap::new() };
        for (at, item) in items.iter().enumerate() {
            let element = element_of(schema, list, item)
                .map_err(|why| SchemaMismatches::new(format!("element {at}: {why}")));
            let Some(element) = found.take(element) else { continue };
            match read.by_element.get_mut(&element) {
                None => {
                    let place = read.elements.len();
                    read.by_element.insert(element.clone(), (place, Some(item)));
                }
                Some((_, item)) if twice => *item = None,
                Some(_) => {
                    let text = format!("duplicate entries for key {element}");
                    found.take::<()>(Err(SchemaMismatches::new(text)));
                    continue;
                }
            }
            read.elements.push(element);
            read.values.push(item);
        }
        found.end()?;
        Ok(read)
    }

    /// Returns the item with `element`; `null` where several items have it, so that nothing is
    /// merged with it.
    fn item(&self, element: &PathElement) -> Option<&'a Value> {
        self.by_element.get(element).map(|(_, item)| item.unwrap_or(&Value::Null))
    }
}
