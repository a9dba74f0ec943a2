//! Merges an applied object into a live one: nothing is removed, and the applied values win.

use std::collections::BTreeMap;

use serde_json::{Map as Object, Value};

use super::{
    compare::field_names,
    list_items::element_of,
    path_element::PathElement,
    schema_mismatch::{MismatchCollector, SchemaMismatches},
    validate::{NO_FORM, scalar_problem},
};
use crate::machinery::schema::compiled::{ListSchema, MapSchema, Schema, SchemaForm, TypeRef};

/// Returns `live` with `applied` merged into it. In a list that both have, items of the applied
/// list keep its order.
pub fn merge_objects(
    schema: &Schema,
    live: &Value,
    applied: &Value,
) -> Result<Value, SchemaMismatches> {
    let merged_value =
        MergingWalker { schema }.merge_pair(Some(schema.root()), Some(live), Some(applied))?;
    Ok(merged_value.unwrap_or_default())
}

struct MergingWalker<'a> {
    schema: &'a Schema,
}

impl<'a> MergingWalker<'a> {
    fn merge_pair(
        &self,
        type_: Option<TypeRef>,
        live: Option<&Value>,
        applied: Option<&Value>,
    ) -> Result<Option<Value>, SchemaMismatches> {
        let live_form =
            self.schema.form(type_, live).ok_or_else(|| SchemaMismatches::new(NO_FORM))?;
        let applied_form =
            self.schema.form(type_, applied).ok_or_else(|| SchemaMismatches::new(NO_FORM))?;
        let form = if applied.is_none() { live_form } else { applied_form };
        self.merge_form(form, live, applied)
    }

    fn merge_form(
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
                let merged_items = self.merge_list(list, old, new)?;
                Ok((!merged_items.is_empty()).then_some(Value::Array(merged_items)))
            }
            SchemaForm::Map(map) => {
                let old = live.and_then(Value::as_object);
                let new = applied.and_then(Value::as_object);
                let is_empty =
                    |object: Option<&Object<String, Value>>| object.is_none_or(Object::is_empty);
                if map.atomic || is_empty(old) && is_empty(new) {
                    return Ok(leaf());
                }
                let merged_fields = self.merge_map(map, old, new)?;
                Ok((!merged_fields.is_empty()).then_some(Value::Object(merged_fields)))
            }
        }
    }

    fn merge_map(
        &self,
        map: &MapSchema,
        live: Option<&Object<String, Value>>,
        applied: Option<&Object<String, Value>>,
    ) -> Result<Object<String, Value>, SchemaMismatches> {
        let mut mismatches = MismatchCollector::default();
        let mut merged_fields = Object::new();
        for name in field_names(live, applied) {
            let (old, new) = (live.and_then(|o| o.get(name)), applied.and_then(|n| n.get(name)));
            let value = match (old, new, map.field_type(name)) {
                // The live value has nothing to be merged with, so it is copied without a walk.
                (Some(old), None, Some(_)) => Ok(Some(old.clone())),
                (old, new, type_) => self.merge_pair(type_, old, new),
            };
            let value = mismatches
                .record_mismatches(value.map_err(|p| p.prefix_path(&PathElement::field(name))));
            if let Some(value) = value.flatten() {
                merged_fields.insert(name.to_owned(), value);
            }
        }
        mismatches.into_result()?;
        Ok(merged_fields)
    }

    fn merge_list(
        &self,
        list: &ListSchema,
        live: &[Value],
        applied: &[Value],
    ) -> Result<Vec<Value>, SchemaMismatches> {
        let applied_items = ListItems::from_items(self.schema, list, applied, false)?;
        let live_items = ListItems::from_items(self.schema, list, live, true)?;
        let mut merged_items = Vec::with_capacity(live.len().max(applied.len()));
        let mut merge_item = |element: &PathElement,
                              live: Option<&Value>,
                              applied: Option<&Value>| {
            let item =
                self.merge_pair(list.items, live, applied).map_err(|p| p.prefix_path(element))?;
            merged_items.extend(item);
            Ok::<(), SchemaMismatches>(())
        };

        // Items that are in both lists, in the order of the applied list.
        let mut shared_elements = applied_items
            .elements
            .iter()
            .filter(|element| live_items.by_element.contains_key(element));
        let mut next_shared = shared_elements.next();
        let mut merged_flags: Vec<bool> = vec![false; applied_items.elements.len()];
        let (mut l, mut a) = (0, 0);
        while l < live_items.elements.len() || a < applied_items.elements.len() {
            if let (Some(live), Some(applied)) =
                (live_items.elements.get(l), applied_items.elements.get(a))
            {
                if live == applied {
                    merge_item(live, live_items.item(live), applied_items.item(live))?;
                    merged_flags[a] = true;
                    (l, a) = (l + 1, a + 1);
                    next_shared = shared_elements.next();
                    continue;
                }
                let is_next = next_shared.is_none_or(|element| element == live);
                if applied_items.by_element.contains_key(live) && !is_next {
                    // The item is added later, at its place in the applied list.
                    l += 1;
                    continue;
                }
            }
            if let Some(live) = live_items.elements.get(l) {
                match applied_items.by_element.get(live) {
                    None => {
                        merge_item(live, Some(live_items.values[l]), None)?;
                        l += 1;
                        continue;
                    }
                    Some(&(position, _)) if merged_flags[position] => l += 1,
                    Some(_) => {}
                }
            }
            if let Some(applied) = applied_items.elements.get(a) {
                merge_item(applied, live_items.item(applied), applied_items.item(applied))?;
                merged_flags[a] = true;
                a += 1;
                if next_shared == Some(applied) {
                    next_shared = shared_elements.next();
                }
            }
        }
        Ok(merged_items)
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
    fn from_items(
        schema: &Schema,
        list: &ListSchema,
        items: &'a [Value],
        allows_duplicates: bool,
    ) -> Result<Self, SchemaMismatches> {
        let mut mismatches = MismatchCollector::default();
        let mut list_items =
            Self { elements: Vec::new(), values: Vec::new(), by_element: BTreeMap::new() };
        for (position, item) in items.iter().enumerate() {
            let element = element_of(schema, list, item)
                .map_err(|reason| SchemaMismatches::new(format!("element {position}: {reason}")));
            let Some(element) = mismatches.record_mismatches(element) else { continue };
            match list_items.by_element.get_mut(&element) {
                None => {
                    let place = list_items.elements.len();
                    list_items.by_element.insert(element.clone(), (place, Some(item)));
                }
                Some((_, item)) if allows_duplicates => *item = None,
                Some(_) => {
                    let text = format!("duplicate entries for key {element}");
                    mismatches.record_mismatches::<()>(Err(SchemaMismatches::new(text)));
                    continue;
                }
            }
            list_items.elements.push(element);
            list_items.values.push(item);
        }
        mismatches.into_result()?;
        Ok(list_items)
    }

    /// Returns the item with `element`; `null` where several items have it, so that nothing is
    /// merged with it.
    fn item(&self, element: &PathElement) -> Option<&'a Value> {
        self.by_element.get(element).map(|(_, item)| item.unwrap_or(&Value::Null))
    }
}
