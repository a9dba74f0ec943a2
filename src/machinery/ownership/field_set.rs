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
    Ok(FieldSetWalker { schema }.value_fields(Some(schema.root()), value)?.below)
}

/// The part of a field set that one value yields: whether its own path is a member, and the members
/// below it.
struct ValueFields {
    member: bool,
    below: PathSet,
}

impl ValueFields {
    fn for_leaf() -> Self {
        Self { member: true, below: PathSet::default() }
    }

    fn from_below(below: PathSet) -> Self {
        Self { member: false, below }
    }
}

struct FieldSetWalker<'a> {
    schema: &'a Schema,
}

impl FieldSetWalker<'_> {
    fn value_fields(
        &self,
        type_: Option<TypeRef>,
        value: &Value,
    ) -> Result<ValueFields, SchemaMismatches> {
        match self.schema.form(type_, Some(value)) {
            None => Err(SchemaMismatches::new(NO_FORM)),
            Some(SchemaForm::Scalar(_)) => Ok(ValueFields::for_leaf()),
            Some(SchemaForm::List(list)) if list.atomic => Ok(ValueFields::for_leaf()),
            Some(SchemaForm::Map(map)) if map.atomic => Ok(ValueFields::for_leaf()),
            Some(SchemaForm::List(list)) => self.list_fields(list, value),
            Some(SchemaForm::Map(map)) => self.map_fields(map, value),
        }
    }

    fn list_fields(
        &self,
        list: &ListSchema,
        value: &Value,
    ) -> Result<ValueFields, SchemaMismatches> {
        let items = value.as_array().map_or(&[][..], Vec::as_slice);
        let mut mismatches = MismatchCollector::default();
        let mut elements = Vec::with_capacity(items.len());
        for (position, item) in items.iter().enumerate() {
            let element = element_of(self.schema, list, item)
                .map_err(|reason| SchemaMismatches::new(format!("element {position}: {reason}")));
            elements.extend(mismatches.record_mismatches(element).map(|element| (element, item)));
        }
        let mut seen_elements = BTreeSet::new();
        let repeated_elements: BTreeSet<&PathElement> = elements
            .iter()
            .map(|(element, _)| element)
            .filter(|e| !seen_elements.insert(*e))
            .collect();
        let mut set = PathSet::default();
        for (element, item) in &elements {
            // Items that are there twice cannot be told apart, so nothing below them is owned.
            let below = if repeated_elements.contains(element) {
                Some(PathSet::default())
            } else {
                let fields = self.value_fields(list.items, item);
                mismatches
                    .record_mismatches(fields.map_err(|p| p.prefix_path(element)))
                    .map(|fields| fields.below)
            };
            set.add_step(element.clone(), true, below.unwrap_or_default());
        }
        mismatches.into_result()?;
        Ok(ValueFields::from_below(set))
    }

    fn map_fields(&self, map: &MapSchema, value: &Value) -> Result<ValueFields, SchemaMismatches> {
        let mut mismatches = MismatchCollector::default();
        let mut set = PathSet::default();
        for (name, value) in value.as_object().into_iter().flatten() {
            let element = PathElement::field(name);
            let fields =
                self.value_fields(map.field_type(name), value).map_err(|p| p.prefix_path(&element));
            let Some(fields) = mismatches.record_mismatches(fields) else { continue };
            let is_empty =
                value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
            let is_map_entry = map.fields.get(name).is_none();
            set.add_step(element, fields.member || is_empty || is_map_entry, fields.below);
        }
        mismatches.into_result()?;
        Ok(ValueFields::from_below(set))
    }
}
