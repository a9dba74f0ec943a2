//! Errors for values that do not fit their schema: path and reason.

use std::fmt;

use super::path_element::PathElement;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaMismatch {
    pub path: String,
    pub text: String,
}

/// One or more places where a value does not fit its schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaMismatches(pub Vec<SchemaMismatch>);

impl SchemaMismatches {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(vec![SchemaMismatch { path: String::new(), text: text.into() }])
    }

    /// Prefixes the path of each problem with `element`, for the caller one level above.
    pub(super) fn prefix_path(mut self, element: &PathElement) -> Self {
        for problem in &mut self.0 {
            problem.path.insert_str(0, &element.to_string());
        }
        self
    }
}

/// Collects problems, so that they are reported together.
#[derive(Debug, Default)]
pub(super) struct MismatchCollector(Vec<SchemaMismatch>);

impl MismatchCollector {
    /// Returns the value, or records the problems and returns `None`.
    pub(super) fn record_mismatches<T>(
        &mut self,
        result: Result<T, SchemaMismatches>,
    ) -> Option<T> {
        result.map_err(|problems| self.0.extend(problems.0)).ok()
    }

    pub(super) fn into_result(self) -> Result<(), SchemaMismatches> {
        if self.0.is_empty() { Ok(()) } else { Err(SchemaMismatches(self.0)) }
    }
}

impl fmt::Display for SchemaMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            return f.write_str(&self.text);
        }
        write!(f, "{}: {}", self.path, self.text)
    }
}

impl fmt::Display for SchemaMismatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [mismatch] = &self.0[..] {
            return mismatch.fmt(f);
        }
        f.write_str("errors:")?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for SchemaMismatches {}
