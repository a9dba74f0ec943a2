//! Checks that a value fits its schema, as far as merging needs it to.
//!
//! The texts are upstream's. Values themselves are judged by `api::validation`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    list_items::element_of,
    path_element::PathElement,
    schema_mismatch::{MismatchCollector, SchemaMismatches},
    value_order::value_text,
};
use crate::machinery::schema::compiled::{
    ListSchema, MapSchema, ScalarType, Schema, SchemaForm, TypeRef,
};

/// Whether sets and list maps may hold an item twice: stored objects may, applied ones may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicatePolicy {
    Allowed,
    Refused,
}

/// Checks a whole object against its schema.
pub fn validate_object(
    schema: &Schema,
    value: &Value,
    duplicates: DuplicatePolicy,
) -> Result<(), SchemaMismatches> {
    ValidatingWalker { schema, duplicates }.validate_value(Some(schema.root()), value)
}

pub(super) const NO_FORM: &str = "schema error: invalid atom: inlined";

/// Returns why `value` is not a scalar of this type; `null` and an absent value always pass.
pub(super) fn scalar_problem(scalar: ScalarType, value: Option<&Value>) -> Option<String> {
    let value = value?;
    let expected = match (scalar, value) {
        (_, Value::Null)
        | (ScalarType::Numeric | ScalarType::Any, Value::Number(_))
        | (ScalarType::String | ScalarType::Any, Value::String(_))
        | (ScalarType::Boolean | ScalarType::Any, Value::Bool(_)) => return None,
        (ScalarType::Numeric, _) => "numeric (int or float)",
        (ScalarType::String, _) => "string",
        (ScalarType::Boolean, _) => "boolean",
        (ScalarType::Any, _) => "any scalar",
    };
    let actual = match (scalar, value) {
        // Upstream names Go's type here.
        (ScalarType::Numeric, Value::String(_)) => "string".to_owned(),
        (ScalarType::Numeric, Value::Bool(_)) => "bool".to_owned(),
        (ScalarType::Numeric, Value::Array(_)) => "[]interface {}".to_owned(),
        (ScalarType::Numeric, Value::Object(_)) => "map[string]interface {}".to_owned(),
        _ => value_text(value),
    };
    Some(format!("expected {expected}, got {actual}"))
}

struct ValidatingWalker<'a> {
    schema: &'a Schema,
    duplicates: DuplicatePolicy,
}

impl ValidatingWalker<'_> {
    fn validate_value(
        &self,
        type_: Option<TypeRef>,
        value: &Value,
    ) -> Result<(), SchemaMismatches> {
        match self.schema.form(type_, Some(value)) {
            None => Err(SchemaMismatches::new(NO_FORM)),
            Some(SchemaForm::Scalar(scalar)) => scalar_problem(scalar, Some(value))
                .map_or(Ok(()), |text| Err(SchemaMismatches::new(text))),
            Some(SchemaForm::List(list)) => self.validate_list(list, value),
            Some(SchemaForm::Map(map)) => self.validate_map(map, value),
        }
    }

    fn validate_list(&self, list: &ListSchema, value: &Value) -> Result<(), SchemaMismatches> {
        let items = match value {
            Value::Null => return Ok(()),
            Value::Array(items) => items,
            other => {
                return Err(SchemaMismatches::new(format!(
                    "expected list, got {}",
                    value_text(other)
                )));
            }
        };
        let mut mismatches = MismatchCollector::default();
        let mut seen_elements = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let element = if list.atomic {
                PathElement::Index(i64::try_from(index).unwrap_or(i64::MAX))
            } else {
                let element = element_of(self.schema, list, item)
                    .map_err(|reason| SchemaMismatches::new(format!("element {index}: {reason}")));
                let Some(element) = mismatches.record_mismatches(element) else { break };
                element
            };
            mismatches.record_mismatches(
                self.validate_value(list.items, item)
                    .map_err(|problems| problems.prefix_path(&element)),
            );
            let key = element.to_string();
            if !list.atomic
                && !seen_elements.insert(element)
                && self.duplicates == DuplicatePolicy::Refused
            {
                mismatches.record_mismatches::<()>(Err(SchemaMismatches::new(format!(
                    "duplicate entries for key {key}"
                ))));
            }
        }
        mismatches.into_result()
    }

    fn validate_map(&self, map: &MapSchema, value: &Value) -> Result<(), SchemaMismatches> {
        let fields = match value {
            Value::Null => return Ok(()),
            Value::Object(fields) => fields,
            other => {
                return Err(SchemaMismatches::new(format!(
                    "expected map, got {}",
                    value_text(other)
                )));
            }
        };
        let mut mismatches = MismatchCollector::default();
        for (name, value) in fields {
            let outcome = match map.field_type(name) {
                None => Err(SchemaMismatches::new("field not declared in schema")),
                type_ => self.validate_value(type_, value),
            };
            mismatches.record_mismatches(
                outcome.map_err(|problems| problems.prefix_path(&PathElement::field(name))),
            );
        }
        mismatches.into_result()
    }
}
