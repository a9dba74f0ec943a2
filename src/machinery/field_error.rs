//! Field errors: path, problem and detail, in Kubernetes' own wording (apimachinery
//! `pkg/util/validation/field/errors.go`).

use std::fmt;

use serde_json::Value;

/// Path of a field, for example `spec.nodePools[1].persistence.size`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(String);

impl FieldPath {
    pub fn new(root: &str) -> Self {
        Self(root.to_owned())
    }

    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { Self(format!("{}.{name}", self.0)) }
    }

    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldErrorKind {
    /// The value names something that does not exist.
    NotFound(Value),
    Required,
    Duplicate(Value),
    Invalid(Value),
    /// The value is none of the supported values in the list.
    NotSupported(Value, Vec<String>),
    Forbidden,
    /// The text is longer than this many bytes.
    TooLong(usize),
    /// The list holds more than this many items.
    TooMany {
        actual: usize,
        limit: usize,
    },
    TypeInvalid(Value),
}

/// One thing that is wrong with one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub path: FieldPath,
    pub problem: FieldErrorKind,
    pub detail: String,
}

impl FieldError {
    pub fn new(path: &FieldPath, problem: FieldErrorKind, detail: impl Into<String>) -> Self {
        Self { path: path.clone(), problem, detail: detail.into() }
    }

    /// Returns the reason of this error's cause in a Status.
    pub fn reason(&self) -> &'static str {
        match self.problem {
            FieldErrorKind::NotFound(_) => "FieldValueNotFound",
            FieldErrorKind::Required => "FieldValueRequired",
            FieldErrorKind::Duplicate(_) => "FieldValueDuplicate",
            FieldErrorKind::Invalid(_) => "FieldValueInvalid",
            FieldErrorKind::NotSupported(..) => "FieldValueNotSupported",
            FieldErrorKind::Forbidden => "FieldValueForbidden",
            FieldErrorKind::TooLong(_) => "FieldValueTooLong",
            FieldErrorKind::TooMany { .. } => "FieldValueTooMany",
            FieldErrorKind::TypeInvalid(_) => "FieldValueTypeInvalid",
        }
    }

    /// Returns the message of this error's cause in a Status, which leaves out the path.
    pub fn cause_message(&self) -> String {
        let text = |value: &Value| value.to_string();
        let (problem, detail) = match &self.problem {
            FieldErrorKind::NotFound(value) => {
                (format!("Not found: {}", text(value)), self.detail.clone())
            }
            FieldErrorKind::Required => ("Required value".into(), self.detail.clone()),
            FieldErrorKind::Duplicate(value) => {
                (format!("Duplicate value: {}", text(value)), self.detail.clone())
            }
            FieldErrorKind::Invalid(value) | FieldErrorKind::TypeInvalid(value) => {
                (format!("Invalid value: {}", text(value)), self.detail.clone())
            }
            FieldErrorKind::NotSupported(value, supported) => {
                let list = supported.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>();
                let detail = format!("supported values: {}", list.join(", "));
                (format!("Unsupported value: {}", text(value)), detail)
            }
            FieldErrorKind::Forbidden => ("Forbidden".into(), self.detail.clone()),
            FieldErrorKind::TooLong(limit) => {
                ("Too long".into(), format!("may not be more than {limit} bytes"))
            }
            FieldErrorKind::TooMany { actual, limit } => {
                (format!("Too many: {actual}"), format!("must have at most {limit} items"))
            }
        };
        if detail.is_empty() { problem } else { format!("{problem}: {detail}") }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.cause_message())
    }
}

/// Field errors of one object, in the order in which they were found.
pub type ErrorList = Vec<FieldError>;

/// Most errors that one message lists; further errors are only counted.
pub const MAX_TOLD: usize = 100;

/// Joins errors into one message: `a`, or `[a, b]`, each text once. Past [`MAX_TOLD`] errors the
/// message says how many more there are.
pub fn join_errors(errors: &[FieldError]) -> String {
    let count = errors.len().min(MAX_TOLD);
    let mut texts: Vec<String> = Vec::with_capacity(count);
    for error in &errors[..count] {
        let text = error.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    if errors.len() > count {
        texts.push(format!("and {} more", errors.len() - count));
    }
    match texts.as_slice() {
        [only_text] => only_text.clone(),
        all_texts => format!("[{}]", all_texts.join(", ")),
    }
}
