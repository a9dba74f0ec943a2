//! Label and field selectors: which objects a list, a watch or a delete is about.
//!
//! Owns their notation (apimachinery `pkg/labels`, `pkg/fields`). The kind says which fields may be
//! selected; the registry decides what a match leads to.

mod label;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldSelectorRequirement;
use serde_json::Value;

pub use label::{LabelSelector, ObjectLabels};

use super::status::{ApiError, Result};
use crate::machinery::served_kind::ServedKind;

/// Most bytes of one selector of a request.
const LONGEST: usize = 8 * 1024;

/// Fails for a selector that is too long to be kept and compared.
fn check_length(selector_name: &str, text: &str) -> Result<(), String> {
    if text.len() <= LONGEST {
        return Ok(());
    }
    let length = text.len();
    Err(format!(
        "{selector_name} has {length} bytes; at most {LONGEST} are read: ask for fewer values at a time"
    ))
}

/// Both selectors of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selector {
    /// Parses both selectors; either text may be empty.
    pub fn parse(kind: &dyn ServedKind, labels: &str, fields: &str) -> Result<Self> {
        Ok(Self {
            labels: LabelSelector::parse(labels).map_err(ApiError::bad_request)?,
            fields: FieldSelector::parse(kind, fields).map_err(ApiError::bad_request)?,
        })
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.0.is_empty()
    }

    /// Returns the bytes of memory that the selector keeps.
    pub fn weight(&self) -> usize {
        let fields = self.fields.0.iter().map(|term| size_of::<FieldTerm>() + term.value.len());
        self.labels.weight() + fields.sum::<usize>()
    }

    /// Returns the cost of comparing the selector with `objects` objects, in bytes of work.
    pub fn comparison_cost(&self, objects: usize) -> usize {
        /// Bytes of work of one comparison.
        const BYTES: usize = 16;
        let terms = self.labels.value_count() + self.fields.0.len();
        terms.saturating_mul(objects).saturating_mul(BYTES)
    }

    pub fn matches(&self, facets: &ObjectFacets) -> bool {
        self.fields.matches(facets) && self.labels.matches(&facets.labels)
    }
}

/// The parts of an object that selectors are compared with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectFacets {
    pub name: Box<str>,
    pub namespace: Box<str>,
    pub labels: ObjectLabels,
    /// Values of the kind's selectable fields, in their order.
    fields: Box<[Box<str>]>,
}

impl ObjectFacets {
    pub fn from_metadata(metadata: &Value, fields: Vec<String>) -> Self {
        let text = |name: &str| metadata[name].as_str().unwrap_or_default().into();
        Self {
            name: text("name"),
            namespace: text("namespace"),
            labels: ObjectLabels::from_json(&metadata["labels"]),
            fields: fields.into_iter().map(String::into_boxed_str).collect(),
        }
    }

    fn field(&self, field: SelectableField) -> &str {
        match field {
            SelectableField::Name => &self.name,
            SelectableField::Namespace => &self.namespace,
            SelectableField::Own(index) => self.fields.get(index).map_or("", AsRef::as_ref),
        }
    }
}

/// Terms of a field selector, all of which must hold: a field has a value, or has it not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<FieldTerm>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldTerm {
    field: SelectableField,
    equal: bool,
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SelectableField {
    Name,
    Namespace,
    /// The field at this place of the kind's selectable fields.
    Own(usize),
}

/// Returns the name that a field selector demands, whatever the kind: authorization looks at it.
/// `None` when the selector demands no name, or one that no object can have.
pub fn exact_name(text: &str) -> Option<String> {
    let mut terms = parse_terms(text)?.into_iter();
    let name_term = terms.find(|(path, equal, _)| *path == "metadata.name" && *equal);
    name_term.map(|(.., name)| name).filter(|name| {
        !name.is_empty() && !matches!(name.as_str(), "." | "..") && !name.contains(['/', '%'])
    })
}

/// Returns all that a field selector demands, whatever the kind, in the form that authorization
/// receives. A text that cannot be parsed demands nothing here: the handler reports the error to an
/// authorized client.
pub fn field_requirements(text: &str) -> Vec<FieldSelectorRequirement> {
    let terms = parse_terms(text).unwrap_or_default().into_iter();
    let requirements = terms.map(|(path, equal, value)| FieldSelectorRequirement {
        key: path.to_owned(),
        operator: if equal { "In" } else { "NotIn" }.to_owned(),
        values: Some(vec![value]),
    });
    requirements.collect()
}

/// Splits a field selector into terms: path, whether it has to be equal, and the value.
fn parse_terms(text: &str) -> Option<Vec<(&str, bool, String)>> {
    check_length("fieldSelector", text).ok()?;
    let parts = split_unescaped(text).into_iter().filter(|part| !part.is_empty());
    let terms = parts.map(|part| {
        let (path, equal, value) = split_term(part).filter(|(path, ..)| !path.is_empty())?;
        Some((path, equal, unescape_value(value).ok()?))
    });
    terms.collect()
}

const METADATA_FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];

impl SelectableField {
    fn parse(kind: &dyn ServedKind, path: &str) -> Option<Self> {
        match path {
            "metadata.name" => Some(Self::Name),
            "metadata.namespace" => Some(Self::Namespace),
            path => kind
                .selectable_fields()
                .iter()
                .position(|field_path| *field_path == path)
                .map(Self::Own),
        }
    }
}

impl FieldSelector {
    fn parse(kind: &dyn ServedKind, text: &str) -> Result<Self, String> {
        check_length("fieldSelector", text)?;
        let mut terms = Vec::new();
        for part in split_unescaped(text) {
            if part.is_empty() {
                continue;
            }
            let (path, equal, value) = split_term(part)
                .ok_or_else(|| format!("invalid selector: '{text}'; can't understand '{part}'"))?;
            let Some(field) = SelectableField::parse(kind, path) else {
                let kind_fields = kind.selectable_fields();
                let names =
                    METADATA_FIELDS.iter().chain(kind_fields).map(|name| format!("{name:?}"));
                return Err(format!(
                    "{path:?} is not a known field selector: only {}",
                    names.collect::<Vec<_>>().join(", ")
                ));
            };
            terms.push(FieldTerm { field, equal, value: unescape_value(value)? });
        }
        Ok(Self(terms))
    }

    /// Returns the first name that the selector demands.
    pub fn name(&self) -> Option<&str> {
        let is_name_term = |term: &&FieldTerm| term.equal && term.field == SelectableField::Name;
        self.0.iter().find(is_name_term).map(|term| term.value.as_str())
    }

    /// Makes an empty selector demand `name`, which was authorized. Fails when the selector demands
    /// another name, or has other fields and demands no name.
    pub fn require_name(&mut self, name: &str) -> Result<()> {
        if self.0.is_empty() {
            self.0.push(FieldTerm {
                field: SelectableField::Name,
                equal: true,
                value: name.to_owned(),
            });
        }
        if self.name() == Some(name) {
            return Ok(());
        }
        let message = "field selector metadata.name doesn't match requested name";
        Err(ApiError::bad_request(message))
    }

    fn matches(&self, facets: &ObjectFacets) -> bool {
        self.0.iter().all(|term| (facets.field(term.field) == term.value) == term.equal)
    }
}

fn split_term(part: &str) -> Option<(&str, bool, &str)> {
    let index = part.find(['=', '!'])?;
    let (path, rest) = part.split_at(index);
    if let Some(value) = rest.strip_prefix("!=") {
        return Some((path, false, value));
    }
    let value = rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?;
    Some((path, true, value))
}

/// Splits at commas that no backslash precedes.
fn split_unescaped(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut is_escaped) = (0, false);
    for (index, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ',' => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn unescape_value(value: &str) -> Result<String, String> {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => text.push(c),
                next_char => {
                    let sequence = next_char.map(String::from).unwrap_or_default();
                    return Err(format!(
                        "invalid field selector: invalid escape sequence: \\{sequence}"
                    ));
                }
            },
            ',' | '=' => {
                return Err(format!("invalid field selector: unescaped character in value: {c}"));
            }
            c => text.push(c),
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::scheme::Scheme;

    fn pilots() -> &'static dyn ServedKind {
        Scheme::new(&[]).by_plural("pilots").unwrap()
    }

    #[test]
    fn field_selectors_match_by_equality() {
        let metadata = json!({"name": "a,b", "namespace": "x"});
        let fields = pilots().selectable_fields().iter().map(|path| match *path {
            "spec.nodePool" => "a".to_owned(),
            _ => String::new(),
        });
        let facets = ObjectFacets::from_metadata(&metadata, fields.collect());
        for (text, expected) in [
            ("", true),
            ("metadata.name=a\\,b", true),
            ("metadata.name==a\\,b,metadata.namespace=x", true),
            ("metadata.name!=a\\,b", false),
            ("metadata.namespace!=y", true),
            ("metadata.namespace=", false),
            ("spec.nodePool=a,status.phase=", true),
            ("spec.nodePool=,status.phase=", false),
        ] {
            let selector = FieldSelector::parse(pilots(), text).unwrap();
            assert_eq!(selector.matches(&facets), expected, "{text}");
        }
    }

    #[test]
    fn the_name_that_authorization_sees_is_the_one_that_is_selected() {
        for (text, expected) in [
            ("metadata.name=a", Some("a")),
            ("metadata.namespace=x,metadata.name==a", Some("a")),
            ("metadata.name=a,metadata.name=b", Some("a")),
            ("metadata.name=a\\,b", Some("a,b")),
            ("metadata.name!=a", None),
            ("metadata.name=", None),
            ("metadata.name=..", None),
            ("metadata.name=a/b", None),
            ("", None),
        ] {
            assert_eq!(exact_name(text).as_deref(), expected, "{text}");
            let mut selector = FieldSelector::parse(pilots(), text).unwrap();
            if let Some(name) = expected {
                assert!(selector.require_name(name).is_ok(), "{text}");
                assert!(selector.require_name("other").is_err(), "{text}");
            }
        }
        // A selector that cannot be read names no object, and the list itself is refused.
        for text in ["metadata.name=a,", "metadata.name=a,x", "metadata.name=a=b"] {
            let readable = FieldSelector::parse(pilots(), text).is_ok();
            assert_eq!(exact_name(text).is_some(), readable, "{text}");
        }
        let mut everything = FieldSelector::default();
        everything.require_name("a").unwrap();
        assert_eq!(everything.name(), Some("a"), "a name in the path selects");
    }

    #[test]
    fn an_unknown_field_is_refused_with_the_known_ones() {
        let error = FieldSelector::parse(pilots(), "spec.nope=x").unwrap_err();
        assert!(
            error.starts_with(
                "\"spec.nope\" is not a known field selector: only \"metadata.name\", \
                 \"metadata.namespace\""
            ),
            "{error}"
        );
        assert_eq!(
            FieldSelector::parse(pilots(), "metadata.name").unwrap_err(),
            "invalid selector: 'metadata.name'; can't understand 'metadata.name'"
        );
    }
}
