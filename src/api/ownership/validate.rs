//! Does a value fit its schema, as far as merging needs it to?
//!
//! The texts are upstream's. Values themselves are judged by `api::validation`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    element::Element,
    items::element_of,
    problem::{Found, Problems},
    value::text,
};
use crate::api::schema::compiled::{Form, List, Map, Scalar, Schema, Type};

/// May sets and list maps hold an item twice? What is stored already may; what is applied may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    Allowed,
    Refused,
}

/// Compares a whole object with its schema.
pub fn validate(schema: &Schema, value: &Value, duplicates: Duplicates) -> Result<(), Problems> {
    Check { schema, duplicates }.value(Some(schema.root()), value)
}

pub(super) const NO_FORM: &str = "schema error: invalid atom: inlined";

/// Why a value is no scalar of this type; `null` and absent are.
pub(super) fn scalar_problem(scalar: Scalar, value: Option<&Value>) -> Option<String> {
    let value = value?;
    let expected = match (scalar, value) {
        (_, Value::Null)
        | (Scalar::Numeric | Scalar::Any, Value::Number(_))
        | (Scalar::String | Scalar::Any, Value::String(_))
        | (Scalar::Boolean | Scalar::Any, Value::Bool(_)) => return None,
        (Scalar::Numeric, _) => "numeric (int or float)",
        (Scalar::String, _) => "string",
        (Scalar::Boolean, _) => "boolean",
        (Scalar::Any, _) => "any scalar",
    };
    let got = match (scalar, value) {
        // Upstream tells the type here, by Go's name.
        (Scalar::Numeric, Value::String(_)) => "string".to_owned(),
        (Scalar::Numeric, Value::Bool(_)) => "bool".to_owned(),
        (Scalar::Numeric, Value::Array(_)) => "[]interface {}".to_owned(),
        (Scalar::Numeric, Value::Object(_)) => "map[string]interface {}".to_owned(),
        _ => text(value),
    };
    Some(format!("expected {expected}, got {got}"))
}

struct Check<'a> {
    schema: &'a Schema,
    duplicates: Duplicates,
}

impl Check<'_> {
    fn value(&self, type_: Option<Type>, value: &Value) -> Result<(), Problems> {
        match self.schema.form(type_, Some(value)) {
            None => Err(Problems::new(NO_FORM)),
            Some(Form::Scalar(scalar)) => {
                scalar_problem(scalar, Some(value)).map_or(Ok(()), |text| Err(Problems::new(text)))
            }
            Some(Form::List(list)) => self.list(list, value),
            Some(Form::Map(map)) => self.map(map, value),
        }
    }

    fn list(&self, list: &List, value: &Value) -> Result<(), Problems> {
        let items = match value {
            Value::Null => return Ok(()),
            Value::Array(items) => items,
            other => return Err(Problems::new(format!("expected list, got {}", text(other)))),
        };
        let mut found = Found::default();
        let mut seen = BTreeSet::new();
        for (at, item) in items.iter().enumerate() {
            let element = if list.atomic {
                Element::Index(i64::try_from(at).unwrap_or(i64::MAX))
            } else {
                let element = element_of(self.schema, list, item)
                    .map_err(|why| Problems::new(format!("element {at}: {why}")));
                let Some(element) = found.take(element) else { break };
                element
            };
            found.take(self.value(list.items, item).map_err(|problems| problems.below(&element)));
            let key = element.to_string();
            if !list.atomic && !seen.insert(element) && self.duplicates == Duplicates::Refused {
                found.take::<()>(Err(Problems::new(format!("duplicate entries for key {key}"))));
            }
        }
        found.end()
    }

    fn map(&self, map: &Map, value: &Value) -> Result<(), Problems> {
        let fields = match value {
            Value::Null => return Ok(()),
            Value::Object(fields) => fields,
            other => return Err(Problems::new(format!("expected map, got {}", text(other)))),
        };
        let mut found = Found::default();
        for (name, value) in fields {
            let outcome = match map.of_field(name) {
                None => Err(Problems::new("field not declared in schema")),
                type_ => self.value(type_, value),
            };
            found.take(outcome.map_err(|problems| problems.below(&Element::field(name))));
        }
        found.end()
    }
}
