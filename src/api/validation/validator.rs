//! Collects problems and warnings of an object, in upstream's words.

use serde_json::Value;

use crate::{
    api::{V1ALPHA1, schema::SchemaSet},
    machinery::{
        field_error::{ErrorList, FieldError, FieldErrorKind, FieldPath},
        served_kind::{ServedVersion, ValidationResult},
    },
};

/// Most problems, and most warnings, that are collected for an object: an object with more is
/// hostile, and its client gets an incomplete list.
const MOST: usize = 1000;

/// Collects problems and warnings of one object.
#[derive(Debug)]
pub struct Validator {
    /// The version in which the object was written.
    pub version: ServedVersion,
    pub(super) schemas: &'static SchemaSet,
    pub errors: ErrorList,
    pub warnings: Vec<String>,
}

impl Validator {
    pub fn new(version: ServedVersion, schemas: &'static SchemaSet) -> Self {
        Self { version, schemas, errors: Vec::new(), warnings: Vec::new() }
    }

    /// Has the limit of collected problems been reached, so that some may be missing?
    pub fn is_full(&self) -> bool {
        self.errors.len() >= MOST
    }

    fn push_error(&mut self, path: &FieldPath, problem: FieldErrorKind, detail: &str) {
        if self.errors.len() < MOST {
            self.errors.push(FieldError::new(path, problem, detail));
        }
    }

    pub fn required(&mut self, path: &FieldPath, detail: &str) {
        self.push_error(path, FieldErrorKind::Required, detail);
    }

    pub fn invalid(&mut self, path: &FieldPath, value: impl Into<Value>, detail: &str) {
        self.push_error(path, FieldErrorKind::Invalid(value.into()), detail);
    }

    pub fn forbidden(&mut self, path: &FieldPath, detail: &str) {
        self.push_error(path, FieldErrorKind::Forbidden, detail);
    }

    pub fn not_found(&mut self, path: &FieldPath, value: impl Into<Value>) {
        self.push_error(path, FieldErrorKind::NotFound(value.into()), "");
    }

    pub fn duplicate(&mut self, path: &FieldPath, value: impl Into<Value>) {
        self.push_error(path, FieldErrorKind::Duplicate(value.into()), "");
    }

    pub fn unsupported(&mut self, path: &FieldPath, value: impl Into<Value>, supported: &[&str]) {
        let supported_values = supported.iter().map(|text| (*text).to_owned()).collect();
        self.push_error(path, FieldErrorKind::NotSupported(value.into(), supported_values), "");
    }

    /// V5: reports a text of more than `limit` bytes.
    pub fn too_long(&mut self, path: &FieldPath, limit: usize) {
        self.push_error(path, FieldErrorKind::TooLong(limit), "");
    }

    /// V5: reports a list of more than `limit` items.
    pub fn too_many(&mut self, path: &FieldPath, actual: usize, limit: usize) {
        self.push_error(path, FieldErrorKind::TooMany { actual, limit }, "");
    }

    /// Reports one Invalid of `value` for each message.
    pub fn invalid_each(&mut self, path: &FieldPath, value: &str, messages: &[String]) {
        for message in messages {
            self.invalid(path, value, message);
        }
    }

    /// Runs rules that upstream did not have: errors in v1beta1, warnings in v1alpha1 (β).
    pub fn require_in_beta(&mut self, rules: impl FnOnce(&mut Self)) {
        let error_count = self.errors.len();
        rules(self);
        if self.version == V1ALPHA1 {
            let demoted_errors: Vec<_> = self.errors.drain(error_count..).collect();
            for error in demoted_errors {
                self.add_warning(error.to_string());
            }
        }
    }

    pub fn add_warning(&mut self, text: String) {
        if self.warnings.len() < MOST {
            self.warnings.push(text);
        }
    }

    /// Returns what was found. Paths of errors are those of the version in which the object was
    /// written.
    pub fn into_result(mut self) -> ValidationResult {
        if self.version == V1ALPHA1 {
            for error in &mut self.errors {
                error.path = FieldPath::new(&older_path(&error.path.to_string()));
            }
        }
        ValidationResult { errors: self.errors, warnings: self.warnings }
    }
}

/// Returns the path in v1alpha1 of the hub field at `path`.
fn older_path(path: &str) -> String {
    for field in ["nodeSelector", "schedulerName"] {
        let from = format!(".podTemplate.spec.{field}");
        if path.contains(&from) {
            return path.replace(&from, &format!(".{field}"));
        }
    }
    match path.strip_prefix("spec.plugins[").and_then(|rest| rest.strip_suffix("].name")) {
        Some(index) => format!("spec.plugins[{index}]"),
        None => path.to_owned(),
    }
}
