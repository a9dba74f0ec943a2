//! Label and field selectors: which objects a list, a watch or a delete is about.
//!
//! Owns their notation (apimachinery `pkg/labels`, `pkg/fields`). Which fields may be selected
//! is the kind's; what a match leads to is the registry's.

mod label;

use serde_json::Value;

pub use label::LabelSelector;

use super::status::{ApiError, Result};
use crate::api::scheme::Kind;

/// Both selectors of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selector {
    /// Parses both; either text may be empty.
    pub fn parse(kind: &dyn Kind, labels: &str, fields: &str) -> Result<Self> {
        Ok(Self {
            labels: LabelSelector::parse(labels).map_err(ApiError::bad_request)?,
            fields: FieldSelector::parse(kind, fields).map_err(ApiError::bad_request)?,
        })
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.0.is_empty()
    }

    pub fn matches(&self, kind: &dyn Kind, hub: &Value) -> bool {
        self.fields.matches(kind, hub) && self.labels.matches(&hub["metadata"]["labels"])
    }
}

/// Equalities between fields and values, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<FieldTerm>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldTerm {
    path: String,
    equal: bool,
    value: String,
}

const METADATA_FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];

impl FieldSelector {
    fn parse(kind: &dyn Kind, text: &str) -> Result<Self, String> {
        let mut terms = Vec::new();
        for part in split_unescaped(text) {
            if part.is_empty() {
                continue;
            }
            let (path, equal, value) = split_term(part)
                .ok_or_else(|| format!("invalid selector: '{text}'; can't understand '{part}'"))?;
            let known = kind.selectable_fields();
            if !METADATA_FIELDS.contains(&path) && !known.contains(&path) {
                let names = METADATA_FIELDS.iter().chain(known).map(|name| format!("{name:?}"));
                return Err(format!(
                    "{path:?} is not a known field selector: only {}",
                    names.collect::<Vec<_>>().join(", ")
                ));
            }
            terms.push(FieldTerm { path: path.to_owned(), equal, value: unescape(value)? });
        }
        Ok(Self(terms))
    }

    fn matches(&self, kind: &dyn Kind, hub: &Value) -> bool {
        self.0.iter().all(|term| {
            let holds = match term.path.as_str() {
                "metadata.name" => hub["metadata"]["name"] == term.value.as_str(),
                "metadata.namespace" => hub["metadata"]["namespace"] == term.value.as_str(),
                path => kind.field(hub, path) == term.value,
            };
            holds == term.equal
        })
    }
}

fn split_term(part: &str) -> Option<(&str, bool, &str)> {
    let at = part.find(['=', '!'])?;
    let (path, rest) = part.split_at(at);
    if let Some(value) = rest.strip_prefix("!=") {
        return Some((path, false, value));
    }
    let value = rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?;
    Some((path, true, value))
}

/// Splits at commas that no backslash precedes.
fn split_unescaped(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn unescape(value: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => plain.push(c),
                other => {
                    let sequence = other.map(String::from).unwrap_or_default();
                    return Err(format!(
                        "invalid field selector: invalid escape sequence: \\{sequence}"
                    ));
                }
            },
            ',' | '=' => {
                return Err(format!("invalid field selector: unescaped character in value: {c}"));
            }
            c => plain.push(c),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::scheme::kind_by_plural;

    fn pilots() -> &'static dyn Kind {
        kind_by_plural("pilots").unwrap()
    }

    #[test]
    fn field_selectors_match_by_equality() {
        let hub = json!({"metadata": {"name": "a,b", "namespace": "x"}, "spec": {}});
        for (text, expected) in [
            ("", true),
            ("metadata.name=a\\,b", true),
            ("metadata.name==a\\,b,metadata.namespace=x", true),
            ("metadata.name!=a\\,b", false),
            ("metadata.namespace!=y", true),
            ("metadata.namespace=", false),
        ] {
            let selector = FieldSelector::parse(pilots(), text).unwrap();
            assert_eq!(selector.matches(pilots(), &hub), expected, "{text}");
        }
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
