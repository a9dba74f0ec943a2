//! Validates values by the schema's own limits: list-map keys and sets without repetition (V4),
//! bounds (V5), closed lists of values (V6). One walk serves every kind.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::validator::Validator;
use crate::{
    api::V1BETA1,
    machinery::schema::{
        compiled::{ListSchema, Schema, SchemaAtom, TypeOrigin},
        field_location::FieldLocation,
    },
};

/// Whether values are compared with closed lists.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EnumPolicy {
    Check,
    /// Values are not compared: newer programs may write words into a status that this server does
    /// not know.
    Ignore,
}

/// Validates `value`, which is the field `name` of a kind.
pub(super) fn validate_schema(
    validator: &mut Validator,
    kind: &str,
    name: &str,
    value: &Value,
    enums: EnumPolicy,
) {
    let schema = validator.schemas.kind_schema(V1BETA1, kind);
    let fields = schema.atom(schema.root()).map.as_ref().map(|map| &map.fields);
    if let Some(field) = fields.and_then(|fields| fields.get(name)) {
        let atom = schema.atom(field.type_);
        ConstraintWalker { validator, schema, enums }.walk_value(
            atom,
            field.max_bytes,
            value,
            &FieldLocation::Root(name),
        );
    }
}

struct ConstraintWalker<'a> {
    validator: &'a mut Validator,
    schema: &'a Schema,
    enums: EnumPolicy,
}

impl ConstraintWalker<'_> {
    /// Validates a value and the values below it. `limit`: most bytes of this text, or of each text
    /// of this list.
    fn walk_value(
        &mut self,
        atom: &SchemaAtom,
        limit: Option<usize>,
        value: &Value,
        place: &FieldLocation<'_>,
    ) {
        // Core types are validated where they are served.
        if atom.facts.origin != TypeOrigin::Ours {
            return;
        }
        match value {
            Value::Object(fields) => {
                self.check_count(atom.facts.max_properties, fields.len(), place);
                self.walk_object(atom, fields, place);
            }
            Value::Array(items) => {
                self.check_count(atom.facts.max_items, items.len(), place);
                if let Some(list) = atom.list.as_ref().filter(|list| !list.atomic) {
                    self.check_duplicates(list, items, place);
                }
                let Some(inner) = self.schema.item_type(atom) else { return };
                for (index, item) in items.iter().enumerate() {
                    self.walk_value(inner, limit, item, &FieldLocation::Item(place, index));
                }
            }
            Value::String(text) => {
                if let Some(limit) = limit.filter(|limit| text.len() > *limit) {
                    self.validator.too_long(&place.path(), limit);
                }
                if let Some(allowed_values) = &atom.facts.values
                    && self.enums == EnumPolicy::Check
                    && !allowed_values.iter().any(|candidate| **candidate == **text)
                {
                    let allowed_texts: Vec<&str> =
                        allowed_values.iter().map(|candidate| &**candidate).collect();
                    self.validator.unsupported(&place.path(), text.as_str(), &allowed_texts);
                }
            }
            _ => {}
        }
    }

    fn walk_object(
        &mut self,
        atom: &SchemaAtom,
        fields: &Map<String, Value>,
        place: &FieldLocation<'_>,
    ) {
        let (schema, entries) = (self.schema, self.schema.entry_type(atom));
        for (name, value) in fields {
            let field = atom.map.as_ref().and_then(|map| map.fields.get(name));
            if let Some(field) = field {
                let inner = schema.atom(field.type_);
                self.walk_value(inner, field.max_bytes, value, &FieldLocation::Field(place, name));
            } else if let Some(inner) = entries {
                self.walk_value(inner, None, value, &FieldLocation::Key(place, name));
            }
        }
    }

    fn check_count(&mut self, limit: Option<usize>, actual: usize, place: &FieldLocation<'_>) {
        if let Some(limit) = limit.filter(|limit| actual > *limit) {
            self.validator.too_many(&place.path(), actual, limit);
        }
    }

    /// Reports items of a set, or list-map keys, that occur twice (V4).
    fn check_duplicates(&mut self, list: &ListSchema, items: &[Value], place: &FieldLocation<'_>) {
        let key = list.keys.first().map(|key| &**key);
        let mut seen_keys = HashSet::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let Some(part) = key.map_or(Some(item), |key| item.get(key)) else { continue };
            let is_new = match part {
                Value::String(text) => seen_keys.insert(ItemKey::Text(text)),
                other => seen_keys.insert(ItemKey::Other(other.to_string())),
            };
            if !is_new {
                let path = FieldLocation::Item(place, index).path();
                let path = key.map_or(path.clone(), |key| path.child(key));
                self.validator.duplicate(&path, part.clone());
            }
        }
    }
}

/// The part of an item that must be unique in its list.
#[derive(PartialEq, Eq, Hash)]
enum ItemKey<'a> {
    Text(&'a str),
    Other(String),
}
