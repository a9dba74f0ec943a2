//! What keeps a value from being read by its schema: where, and why.

use std::fmt;

use super::element::Element;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub path: String,
    pub text: String,
}

/// One problem at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(vec![Problem { path: String::new(), text: text.into() }])
    }

    /// Puts `element` before the path of each problem, for the level above.
    pub(super) fn below(mut self, element: &Element) -> Self {
        for problem in &mut self.0 {
            problem.path.insert_str(0, &element.to_string());
        }
        self
    }
}

/// Collects problems, so that all of them are told at once.
#[derive(Debug, Default)]
pub(super) struct Found(Vec<Problem>);

impl Found {
    /// The value, when there was no problem.
    pub(super) fn take<T>(&mut self, result: Result<T, Problems>) -> Option<T> {
        result.map_err(|problems| self.0.extend(problems.0)).ok()
    }

    pub(super) fn end(self) -> Result<(), Problems> {
        if self.0.is_empty() { Ok(()) } else { Err(Problems(self.0)) }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            return f.write_str(&self.text);
        }
        write!(f, "{}: {}", self.path, self.text)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = &self.0[..] {
            return only.fmt(f);
        }
        f.write_str("errors:")?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Problems {}
