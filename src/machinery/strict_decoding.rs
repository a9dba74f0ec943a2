//! Compares a body with its schema and reports unknown fields, duplicates and wrong types.
//!
//! Owns upstream's texts (`unknown field "spec.foo"`; for types those of CustomResources) and the
//! forms in which Go's decoder takes the same value: `null` for absent, a number for a quantity.
//! Validates form only; values are validated by `validation`.

use serde_json::{Map, Value};

use super::{
    decode::{MAX_FINDINGS, ParsedBody},
    field_error::{ErrorList, FieldError, FieldErrorKind},
    schema::{
        compiled::{FieldLookup, JsonType, Schema, SchemaAtom, TypeOrigin, ValueFormat},
        field_location::FieldLocation,
    },
};

/// Differences between a body and its schema.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StrictFindings {
    /// Unknown fields, then duplicates: `unknown field "spec.foo"`, `duplicate field "spec.bar"`.
    /// The caller refuses, warns or ignores, by `fieldValidation`.
    pub fields: Vec<String>,
    /// Values of a wrong type and required fields that are absent; the request is always refused.
    pub type_errors: ErrorList,
}

/// Compares `document` with the schema of its kind.
pub fn check_document(schema: &Schema, document: &ParsedBody) -> StrictFindings {
    let mut findings = StrictFindings::default();
    let root = schema.atom(schema.root());
    StrictWalker { schema, document }.check_value(
        root,
        &document.value,
        &FieldLocation::Root(""),
        &mut findings,
    );
    for path in &document.duplicates {
        if findings.fields.len() < MAX_FINDINGS {
            findings.fields.push(format!("duplicate field {path:?}"));
        }
    }
    findings
}

/// Rewrites values that Go's decoder takes in several forms into the form that Navigator's types
/// read: fields that are `null` are removed, quantities that are numbers become strings with the
/// digits that were written (T7). Databases' own settings and pod templates, in which `null` has a
/// meaning, stay as they are.
pub fn canonicalize_document(schema: &Schema, document: &mut ParsedBody) {
    let mut value = document.value.take();
    let root = schema.atom(schema.root());
    StrictWalker { schema, document }.canonicalize_value(
        root,
        &mut value,
        &FieldLocation::Root(""),
    );
    document.value = value;
}

struct StrictWalker<'a> {
    schema: &'a Schema,
    document: &'a ParsedBody,
}

impl StrictWalker<'_> {
    fn check_value(
        &self,
        atom: &SchemaAtom,
        value: &Value,
        place: &FieldLocation<'_>,
        findings: &mut StrictFindings,
    ) {
        let Some(json_type) = atom.facts.word else { return };
        let format = atom.facts.format;
        match (json_type, value) {
            (JsonType::Object, Value::Object(fields)) => {
                self.check_object(atom, fields, place, findings);
            }
            (JsonType::Array, Value::Array(items)) => {
                let Some(item_type) = self.schema.item_type(atom) else { return };
                for (index, item) in items.iter().enumerate() {
                    self.check_value(item_type, item, &FieldLocation::Item(place, index), findings);
                }
            }
            (JsonType::String, Value::String(text)) => {
                if format == ValueFormat::DateTime && text.parse::<jiff::Timestamp>().is_err() {
                    report_wrong_type(place, "date-time", || value.clone(), findings);
                }
            }
            (JsonType::String, Value::Number(number)) => {
                let is_int32 = number.as_i64().is_some_and(|n| i32::try_from(n).is_ok());
                match format {
                    ValueFormat::Quantity => {}
                    ValueFormat::IntOrString if is_int32 => {}
                    _ => {
                        report_unquoted(place, |path| self.document.digits(path, number), findings);
                    }
                }
            }
            (JsonType::String, Value::Bool(value)) => {
                report_unquoted(place, |_| value.to_string(), findings);
            }
            (JsonType::Integer, Value::Number(number)) => match number.as_i64() {
                None => report_wrong_type(place, "integer", || type_name(value).into(), findings),
                Some(number) if format == ValueFormat::Int32 && i32::try_from(number).is_err() => {
                    report_wrong_type(place, "int32", || value.clone(), findings);
                }
                Some(_) => {}
            },
            (JsonType::Boolean, Value::Bool(_)) | (JsonType::Number, Value::Number(_)) => {}
            (json_type, _) => {
                report_wrong_type(place, json_type.as_str(), || type_name(value).into(), findings);
            }
        }
    }

    fn check_object(
        &self,
        atom: &SchemaAtom,
        fields: &Map<String, Value>,
        place: &FieldLocation<'_>,
        findings: &mut StrictFindings,
    ) {
        for (name, value) in fields {
            let place = FieldLocation::Field(place, name);
            match self.schema.find_field(atom, name) {
                // Go takes null for an absent field.
                FieldLookup::Type(field_type) if !value.is_null() => {
                    self.check_value(field_type, value, &place, findings);
                }
                FieldLookup::Type(_) | FieldLookup::Free => {}
                FieldLookup::Unknown => {
                    if findings.fields.len() < MAX_FINDINGS {
                        let path = place.path().to_string();
                        findings.fields.push(format!("unknown field {path:?}"));
                    }
                }
            }
        }
        // The fields of core types are validated where those types are served.
        if atom.facts.origin == TypeOrigin::Core {
            return;
        }
        for name in &atom.facts.required {
            let is_absent = fields.get(&**name).is_none_or(Value::is_null);
            if is_absent && findings.type_errors.len() < MAX_FINDINGS {
                let path = FieldLocation::Field(place, name).path();
                findings.type_errors.push(FieldError::new(&path, FieldErrorKind::Required, ""));
            }
        }
    }

    fn canonicalize_value(&self, atom: &SchemaAtom, value: &mut Value, place: &FieldLocation<'_>) {
        if atom.facts.format == ValueFormat::Quantity
            && let Value::Number(number) = value
        {
            *value = self.document.digits(&place.path().to_string(), number).into();
            return;
        }
        if atom.facts.origin == TypeOrigin::PodTemplate {
            return;
        }
        match value {
            Value::Object(fields) => {
                let mut has_null = false;
                for (name, value) in fields.iter_mut() {
                    has_null |= value.is_null();
                    if let FieldLookup::Type(field_type) = self.schema.find_field(atom, name) {
                        self.canonicalize_value(
                            field_type,
                            value,
                            &FieldLocation::Field(place, name),
                        );
                    }
                }
                if has_null {
                    fields.retain(|name, value| {
                        let field_lookup = self.schema.find_field(atom, name);
                        !value.is_null() || !matches!(field_lookup, FieldLookup::Type(_))
                    });
                }
            }
            Value::Array(items) => {
                let Some(item_type) = self.schema.item_type(atom) else { return };
                for (index, item) in items.iter_mut().enumerate() {
                    self.canonicalize_value(item_type, item, &FieldLocation::Item(place, index));
                }
            }
            _ => {}
        }
    }
}

fn report_wrong_type(
    place: &FieldLocation<'_>,
    expected: &str,
    value: impl FnOnce() -> Value,
    findings: &mut StrictFindings,
) {
    if findings.type_errors.len() < MAX_FINDINGS {
        let (path, value) = (place.path(), value());
        let detail = format!("{path} in body must be of type {expected}: {value}");
        findings.type_errors.push(FieldError::new(
            &path,
            FieldErrorKind::TypeInvalid(value),
            detail,
        ));
    }
}

/// Reports a value that should be a text and that YAML takes for a number or boolean, because its
/// quotes are missing.
fn report_unquoted(
    place: &FieldLocation<'_>,
    format_value: impl FnOnce(&str) -> String,
    findings: &mut StrictFindings,
) {
    if findings.type_errors.len() < MAX_FINDINGS {
        let path = place.path();
        let detail = format!("{path} in body must be of type string: write it in quotes");
        let problem = FieldErrorKind::TypeInvalid(format_value(&path.to_string()).into());
        findings.type_errors.push(FieldError::new(&path, problem, detail));
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
