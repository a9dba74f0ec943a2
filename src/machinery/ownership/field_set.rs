//! The set of fields that an object has, which its writer comes to own.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    list_items::element_of,
    path_element::PathElement,
    path_set::PathSet,
    schema_mismatch::{MismatchCollector, SchemaMismatches},
    validate::NO_FORM,
};
use crate::machinery::schema::compiled::{ListSchema, MapSchema, Schema, SchemaForm, TypeRef};

/// Returns the leaves of an object, the items of its sets and list maps, and the entries of its
/// maps.
pub fn field_set(schema: &Schema, value: &Value) -> Result<PathSet, SchemaMismatches> {
    Ok(FieldSetWalker { schema }.value(Some(schema.root()), value)?.below)
}

/// The part of a field set that one value yields: whether its own path is a member, and the members
/// below it.
struct ValueFields {
    member: bool,
    below: PathSet,
}

impl ValueFields {
    fn leaf() -> Self {
        Self { member: true, below: PathSet::default() }
    }

    fn below(below: PathSet) -> Self {
        Self { member: false, below }
    }
}

struct FieldSetWalker<'a> {
    schema: &'a Schema,
}

impl FieldSetWalker<'_> {
    fn value(
        &self,
        type_: Option<TypeRef>,
        value: &Value,
    ) -> Result<ValueFields, SchemaMismatches> {
        match self.schema.form(type_, Some(value)) {
            None => Err(SchemaMismatches::new(NO_FORM)),
            Some(SchemaForm::Scalar(_)) => Ok(ValueFields::leaf()),
            Some(SchemaForm::List(list)) if list.atomic => Ok(ValueFields::leaf()),
            Some(SchemaForm::Map(map)) if map.atomic => Ok(ValueFields::leaf()),
            Some(SchemaForm::List(list)) => self.list(list, value),
            Some(SchemaForm::Map(map)) => self.map(map, value),
        }
    }

    fn list(&self, list: &ListSchema, value: &Value) -> Result<ValueFields, SchemaMismatches> {
        let items = value.as_array().map_or(&[][..], Vec::as_slice);
        let mut found = MismatchCollector::default();
        let mut elements = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            let element = element_of(self.schema, list, item)
                .map_err(|why| SchemaMismatches::new(format!("element {at}: {why}")));
            elements.extend(found.take(element).map(|element| (element, item)));
        }
        let mut seen = BTreeSet::new();
        let twice: BTreeSet<&PathElement> =
            elements.iter().map(|(element, _)| element).filter(|e| !seen.insert(*e)).collect();
        let mut set = PathSet::default();
        for (element, item) in &elements {
            // Items that are there twice cannot be told apart, so nothing below them is owned.
            let below = if twice.contains(element) {
                Some(PathSet::default())
            } else {
                let fields = self.value(list.items, item);
                found.take(fields.map_err(|p| p.below(element))).map(|fields| fields.below)
            };
            set.add(element.clone(), true, below.unwrap_or_default());
        }
        found.end()?;
        Ok(ValueFields::below(set))
    }

    fn map(&self, map: &MapSchema, value: &Value) -> Result<ValueFields, SchemaMismatches> {
        let mut found = MismatchCollector::default();
        let mut set = PathSet::default();
        for (name, value) in value.as_object().into_iter().flatten() {
            let element = PathElement::field(name);
            let fields = self.value(map.of_field(name), value).map_err(|p| p.below(&element));
            let Some(fields) = found.take(fields) else { continue };
            let bare = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
            let entry = map.fields.get(name).is_none();
            set.add(element, fields.member || bare || entry, fields.below);
        }
        found.end()?;
        Ok(ValueFields::below(set))
    }
}
