//! Collects what is wrong with an object, in upstream's words.

use serde_json::Value;

use crate::api::{
    field::{ErrorList, FieldError, Path, Problem},
    kind::{Validation, Version},
    schema::Schemas,
};

/// Most problems, and most warnings, that are collected: an object with more is hostile, and the
/// client is not told of them all.
const MOST: usize = 1000;

/// Collects problems and warnings of one object.
#[derive(Debug)]
pub struct Validator {
    /// The version in which the object was written.
    pub version: Version,
    pub(super) schemas: &'static Schemas,
    pub errors: ErrorList,
    pub warnings: Vec<String>,
}

impl Validator {
    pub fn new(version: Version, schemas: &'static Schemas) -> Self {
        Self { version, schemas, errors: Vec::new(), warnings: Vec::new() }
    }

    /// Are there more problems than were collected, perhaps?
    pub fn is_full(&self) -> bool {
        self.errors.len() >= MOST
    }

    fn error(&mut self, path: &Path, problem: Problem, detail: &str) {
        if self.errors.len() < MOST {
            self.errors.push(FieldError::new(path, problem, detail));
        }
    }

    pub fn required(&mut self, path: &Path, detail: &str) {
        self.error(path, Problem::Required, detail);
    }

    pub fn invalid(&mut self, path: &Path, value: impl Into<Value>, detail: &str) {
        self.error(path, Problem::Invalid(value.into()), detail);
    }

    pub fn forbidden(&mut self, path: &Path, detail: &str) {
        self.error(path, Problem::Forbidden, detail);
    }

    pub fn not_found(&mut self, path: &Path, value: impl Into<Value>) {
        self.error(path, Problem::NotFound(value.into()), "");
    }

    pub fn duplicate(&mut self, path: &Path, value: impl Into<Value>) {
        self.error(path, Problem::Duplicate(value.into()), "");
    }

    pub fn unsupported(&mut self, path: &Path, value: impl Into<Value>, known: &[&str]) {
        let known = known.iter().map(|text| (*text).to_owned()).collect();
        self.error(path, Problem::NotSupported(value.into(), known), "");
    }

    /// V5: text of at most `limit` bytes.
    pub fn too_long(&mut self, path: &Path, limit: usize) {
        self.error(path, Problem::TooLong(limit), "");
    }

    /// V5: list of at most `limit` items.
    pub fn too_many(&mut self, path: &Path, actual: usize, limit: usize) {
        self.error(path, Problem::TooMany { actual, limit }, "");
    }

    /// Each message is an Invalid of `value`.
    pub fn invalid_each(&mut self, path: &Path, value: &str, messages: &[String]) {
        for message in messages {
            self.invalid(path, value, message);
        }
    }

    /// Runs rules that upstream did not have: errors in v1beta1, warnings in v1alpha1 (β).
    pub fn beta(&mut self, rules: impl FnOnce(&mut Self)) {
        let before = self.errors.len();
        rules(self);
        if self.version == Version::V1alpha1 {
            let softened: Vec<_> = self.errors.drain(before..).collect();
            for error in softened {
                self.warn(error.to_string());
            }
        }
    }

    pub fn warn(&mut self, text: String) {
        if self.warnings.len() < MOST {
            self.warnings.push(text);
        }
    }

    /// What was found, in the words of the version in which the object was written.
    pub fn finish(mut self) -> Validation {
        if self.version == Version::V1alpha1 {
            for error in &mut self.errors {
                error.path = Path::new(&older_path(&error.path.to_string()));
            }
        }
        Validation { errors: self.errors, warnings: self.warnings }
    }
}

/// Where a hub field stands in v1alpha1, if it stands elsewhere there.
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
