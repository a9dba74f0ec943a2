//! The fields that an object has: what its writer comes to own.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    element::Element,
    items::element_of,
    problem::{Found, Problems},
    set::Set,
    validate::NO_FORM,
};
use crate::api::schema::compiled::{Form, List, Map, Schema, Type};

/// Every leaf of an object, every item of its sets and list maps, and every entry of its maps.
pub fn field_set(schema: &Schema, value: &Value) -> Result<Set, Problems> {
    Ok(Walk { schema }.value(Some(schema.root()), value)?.below)
}

/// What a value adds at its own path.
struct Fields {
    member: bool,
    below: Set,
}

impl Fields {
    fn leaf() -> Self {
        Self { member: true, below: Set::default() }
    }

    fn below(below: Set) -> Self {
        Self { member: false, below }
    }
}

struct Walk<'a> {
    schema: &'a Schema,
}

impl Walk<'_> {
    fn value(&self, type_: Option<Type>, value: &Value) -> Result<Fields, Problems> {
        match self.schema.form(type_, Some(value)) {
            None => Err(Problems::new(NO_FORM)),
            Some(Form::Scalar(_)) => Ok(Fields::leaf()),
            Some(Form::List(list)) if list.atomic => Ok(Fields::leaf()),
            Some(Form::Map(map)) if map.atomic => Ok(Fields::leaf()),
            Some(Form::List(list)) => self.list(list, value),
            Some(Form::Map(map)) => self.map(map, value),
        }
    }

    fn list(&self, list: &List, value: &Value) -> Result<Fields, Problems> {
        let items = value.as_array().map_or(&[][..], Vec::as_slice);
        let mut found = Found::default();
        let mut elements = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            let element = element_of(self.schema, list, item)
                .map_err(|why| Problems::new(format!("element {at}: {why}")));
            elements.extend(found.take(element).map(|element| (element, item)));
        }
        let mut seen = BTreeSet::new();
        let twice: BTreeSet<&Element> =
            elements.iter().map(|(element, _)| element).filter(|e| !seen.insert(*e)).collect();
        let mut set = Set::default();
        for (element, item) in &elements {
            // Items that are there twice cannot be told apart, so nothing below them is owned.
            let below = if twice.contains(element) {
                Some(Set::default())
            } else {
                let fields = self.value(list.items, item);
                found.take(fields.map_err(|p| p.below(element))).map(|fields| fields.below)
            };
            set.add(element.clone(), true, below.unwrap_or_default());
        }
        found.end()?;
        Ok(Fields::below(set))
    }

    fn map(&self, map: &Map, value: &Value) -> Result<Fields, Problems> {
        let mut found = Found::default();
        let mut set = Set::default();
        for (name, value) in value.as_object().into_iter().flatten() {
            let element = Element::field(name);
            let fields = self.value(map.of_field(name), value).map_err(|p| p.below(&element));
            let Some(fields) = found.take(fields) else { continue };
            let bare = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
            let entry = map.fields.get(name).is_none();
            set.add(element, fields.member || bare || entry, fields.below);
        }
        found.end()?;
        Ok(Fields::below(set))
    }
}
