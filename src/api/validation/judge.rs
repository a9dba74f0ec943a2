//! Collects what is wrong with an object, in upstream's words.

use serde_json::Value;

use crate::api::{
    field::{ErrorList, FieldError, Path, Problem},
    scheme::{Verdict, Version},
};

/// Most problems, and most warnings, that are collected: an object with more is hostile, and
/// nobody is told of them all.
const MOST: usize = 1000;

/// Collects problems and warnings of one object.
pub(super) struct Judge {
    /// The version in which the object was written.
    pub(super) version: Version,
    pub(super) errors: ErrorList,
    pub(super) warnings: Vec<String>,
}

impl Judge {
    pub(super) fn new(version: Version) -> Self {
        Self { version, errors: Vec::new(), warnings: Vec::new() }
    }

    /// Are there more problems than were collected, perhaps?
    pub(super) fn is_full(&self) -> bool {
        self.errors.len() >= MOST
    }

    fn error(&mut self, path: &Path, problem: Problem, detail: &str) {
        if self.errors.len() < MOST {
            self.errors.push(FieldError::new(path, problem, detail));
        }
    }

    pub(super) fn required(&mut self, path: &Path, detail: &str) {
        self.error(path, Problem::Required, detail);
    }

    pub(super) fn invalid(&mut self, path: &Path, value: impl Into<Value>, detail: &str) {
        self.error(path, Problem::Invalid(value.into()), detail);
    }

    pub(super) fn forbidden(&mut self, path: &Path, detail: &str) {
        self.error(path, Problem::Forbidden, detail);
    }

    pub(super) fn not_found(&mut self, path: &Path, value: impl Into<Value>) {
        self.error(path, Problem::NotFound(value.into()), "");
    }

    pub(super) fn duplicate(&mut self, path: &Path, value: impl Into<Value>) {
        self.error(path, Problem::Duplicate(value.into()), "");
    }

    pub(super) fn unsupported(&mut self, path: &Path, value: impl Into<Value>, known: &[&str]) {
        let known = known.iter().map(|text| (*text).to_owned()).collect();
        self.error(path, Problem::NotSupported(value.into(), known), "");
    }

    /// V5: text of at most `limit` bytes.
    pub(super) fn too_long(&mut self, path: &Path, limit: usize) {
        self.error(path, Problem::TooLong(limit), "");
    }

    /// V5: list of at most `limit` items.
    pub(super) fn too_many(&mut self, path: &Path, actual: usize, limit: usize) {
        self.error(path, Problem::TooMany { actual, limit }, "");
    }

    /// Each message is an Invalid of `value`.
    pub(super) fn invalid_each(&mut self, path: &Path, value: &str, messages: &[String]) {
        for message in messages {
            self.invalid(path, value, message);
        }
    }

    /// Runs rules that upstream did not have: errors in v1beta1, warnings in v1alpha1 (β).
    pub(super) fn beta(&mut self, rules: impl FnOnce(&mut Self)) {
        let before = self.errors.len();
        rules(self);
        if self.version == Version::V1alpha1 {
            let softened: Vec<_> = self.errors.drain(before..).collect();
            for error in softened {
                self.warn(error.to_string());
            }
        }
    }

    pub(super) fn warn(&mut self, text: String) {
        if self.warnings.len() < MOST {
            self.warnings.push(text);
        }
    }

    /// The verdict, in the words of the version in which the object was written.
    pub(super) fn verdict(mut self) -> Verdict {
        if self.version == Version::V1alpha1 {
            for error in &mut self.errors {
                error.path = Path::new(&older_path(&error.path.to_string()));
            }
        }
        Verdict { errors: self.errors, warnings: self.warnings }
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
