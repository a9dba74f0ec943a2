//! Compares a body with its schema: unknown fields, duplicates and wrong types, all of them.
//!
//! Owns upstream's texts (`unknown field "spec.foo"`; for types those of CustomResources) and
//! the forms in which Go's decoder takes the same value: `null` for absent, a number for a
//! quantity. Validates form only; values are validated by `validation`.

use serde_json::{Map, Value};

use super::{
    decode::{Document, MAX_FINDINGS},
    field::{ErrorList, FieldError, Path, Problem},
    schema::REF_PREFIX,
};

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";

/// What a body has beside what its schema allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strict {
    /// Unknown fields, then duplicates: `unknown field "spec.foo"`, `duplicate field "spec.bar"`.
    /// The caller refuses, warns or ignores, by `fieldValidation`.
    pub fields: Vec<String>,
    /// Values of a wrong type and required fields that are absent; never acceptable.
    pub type_errors: ErrorList,
}

/// Compares `document` with the root schema of its kind.
pub fn check(schema: &Value, document: &Document) -> Strict {
    let mut found = Strict::default();
    let check = Check { definitions: &schema["definitions"], document };
    check.value(&Place { schema, ours: true }, &document.value, &Path::new(""), &mut found);
    for path in &document.duplicates {
        if found.fields.len() < MAX_FINDINGS {
            found.fields.push(format!("duplicate field {path:?}"));
        }
    }
    found
}

/// Rewrites what Go's decoder takes in several forms into the one that our types read: fields
/// that are `null` are removed, quantities that are numbers become strings with the digits that
/// were written (T7). Databases' own settings and pod templates, in which `null` has a meaning,
/// stay as they are.
pub fn canonicalise(schema: &Value, document: &mut Document) {
    let mut value = document.value.take();
    let check = Check { definitions: &schema["definitions"], document };
    check.canonicalise(schema, &mut value, &Path::new(""));
    document.value = value;
}

/// A schema, and whether missing required fields are ours to report: the fields of core types
/// are validated where those types are served.
struct Place<'a> {
    schema: &'a Value,
    ours: bool,
}

struct Check<'a> {
    definitions: &'a Value,
    document: &'a Document,
}

impl Check<'_> {
    fn resolve<'s>(&'s self, place: &Place<'s>) -> Place<'s> {
        match reference(place.schema) {
            Some(name) => {
                Place { schema: &self.definitions[name], ours: name.starts_with("com.jetstack.") }
            }
            None => Place { schema: place.schema, ours: place.ours },
        }
    }

    fn value(&self, place: &Place<'_>, value: &Value, path: &Path, found: &mut Strict) {
        let quantity = reference(place.schema) == Some(QUANTITY);
        let place = self.resolve(place);
        let schema = place.schema;
        let format = schema["format"].as_str();
        match (schema["type"].as_str(), value) {
            (Some("object"), Value::Object(fields)) => self.object(&place, fields, path, found),
            (Some("array"), Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    let inner = Place { schema: &schema["items"], ours: place.ours };
                    self.value(&inner, item, &path.index(index), found);
                }
            }
            (Some("string"), Value::String(text)) => {
                if format == Some("date-time") && text.parse::<jiff::Timestamp>().is_err() {
                    wrong_type(path, "date-time", value.clone(), found);
                }
            }
            (Some("string"), Value::Number(number)) => {
                let allowed = quantity
                    || format == Some("int-or-string")
                        && number.as_i64().is_some_and(|number| i32::try_from(number).is_ok());
                if !allowed {
                    unquoted(path, self.document.digits(&path.to_string(), number), found);
                }
            }
            (Some("string"), Value::Bool(value)) => unquoted(path, value.to_string(), found),
            (Some("integer"), Value::Number(number)) => match number.as_i64() {
                None => wrong_type(path, "integer", type_name(value).into(), found),
                Some(number) if format == Some("int32") && i32::try_from(number).is_err() => {
                    wrong_type(path, "int32", value.clone(), found);
                }
                Some(_) => {}
            },
            (Some("boolean"), Value::Bool(_)) | (Some("number"), Value::Number(_)) | (None, _) => {}
            (Some(expected), _) => wrong_type(path, expected, type_name(value).into(), found),
        }
    }

    fn object(
        &self,
        place: &Place<'_>,
        fields: &Map<String, Value>,
        path: &Path,
        found: &mut Strict,
    ) {
        let schema = place.schema;
        for (name, value) in fields {
            let inner = match field_schema(schema, name) {
                Field::Known(schema) => schema,
                Field::Free => continue,
                Field::Unknown => {
                    if found.fields.len() < MAX_FINDINGS {
                        found
                            .fields
                            .push(format!("unknown field {:?}", path.child(name).to_string()));
                    }
                    continue;
                }
            };
            // Go takes null for an absent field.
            if !value.is_null() {
                let inner = Place { schema: inner, ours: place.ours };
                self.value(&inner, value, &path.child(name), found);
            }
        }
        let required = schema["required"].as_array().filter(|_| place.ours);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            let absent = fields.get(name).is_none_or(Value::is_null);
            if absent && found.type_errors.len() < MAX_FINDINGS {
                found.type_errors.push(FieldError::new(&path.child(name), Problem::Required, ""));
            }
        }
    }

    fn canonicalise(&self, schema: &Value, value: &mut Value, path: &Path) {
        let reference = reference(schema);
        if reference == Some(QUANTITY)
            && let Value::Number(number) = value
        {
            *value = self.document.digits(&path.to_string(), number).into();
            return;
        }
        if reference.is_some_and(|name| name.ends_with(".PodTemplate")) {
            return;
        }
        let schema = self.resolve(&Place { schema, ours: false }).schema;
        match value {
            Value::Object(fields) => {
                fields.retain(|name, value| {
                    !value.is_null() || !matches!(field_schema(schema, name), Field::Known(_))
                });
                for (name, value) in fields {
                    if let Field::Known(inner) = field_schema(schema, name) {
                        self.canonicalise(inner, value, &path.child(name));
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.canonicalise(&schema["items"], item, &path.index(index));
                }
            }
            _ => {}
        }
    }
}

enum Field<'a> {
    Known(&'a Value),
    /// The object may hold anything.
    Free,
    Unknown,
}

fn field_schema<'a>(schema: &'a Value, name: &str) -> Field<'a> {
    if let Some(known) = schema["properties"].get(name) {
        return Field::Known(known);
    }
    if let Some(any) = schema.get("additionalProperties") {
        return Field::Known(any);
    }
    let keeps = schema["x-kubernetes-preserve-unknown-fields"] == true;
    if keeps || schema.get("properties").is_none() { Field::Free } else { Field::Unknown }
}

fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix(REF_PREFIX)
}

fn wrong_type(path: &Path, expected: &str, value: Value, found: &mut Strict) {
    if found.type_errors.len() < MAX_FINDINGS {
        let detail = format!("{path} in body must be of type {expected}: {value}");
        found.type_errors.push(FieldError::new(path, Problem::TypeInvalid(value), detail));
    }
}

/// A text that YAML takes for something else.
fn unquoted(path: &Path, written: String, found: &mut Strict) {
    if found.type_errors.len() < MAX_FINDINGS {
        let detail = format!("{path} in body must be of type string: write it in quotes");
        let problem = Problem::TypeInvalid(written.into());
        found.type_errors.push(FieldError::new(path, problem, detail));
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
