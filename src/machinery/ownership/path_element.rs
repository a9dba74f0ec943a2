//! One step of a path: a field, or an item of a list by its keys, its value or its place.
//!
//! Owns both texts of a step: the key in FieldsV1 (`f:spec`, `k:{"name":"a"}`, `v:"x"`, `i:0`), and
//! the one that people read (`.spec`, `[name="a"]`, `[="x"]`, `[0]`).

use std::{cmp::Ordering, fmt};

use serde_json::Value;

use super::value_order::{order_values, value_text};

/// A step from a value to one below it.
#[derive(Clone, Debug)]
pub enum PathElement {
    Field(Box<str>),
    /// The item of a list map in which these fields have these values; sorted by name.
    Key(Box<[(Box<str>, Value)]>),
    /// The item of a set, by its value.
    Value(Box<Value>),
    /// The item of any other list, by its index.
    Index(i64),
}

/// The steps from the root of an object to a value.
pub type ElementPath = Vec<PathElement>;

/// Returns a path as users read it: `.spec.nodePools[name="a"].replicas`.
pub fn path_text(path: &[PathElement]) -> String {
    path.iter().map(PathElement::to_string).collect()
}

impl PathElement {
    pub fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    pub fn key(mut fields: Vec<(Box<str>, Value)>) -> Self {
        fields.sort_by(|(left, _), (right, _)| left.cmp(right));
        Self::Key(fields.into())
    }

    /// Parses a key of FieldsV1. `None` when the key's prefix is unknown: a newer server may know
    /// it.
    pub fn parse(key: &str) -> Result<Option<Self>, String> {
        let Some((kind, rest)) = key.split_at_checked(2) else {
            return Err("key must be 2 characters long:".to_owned());
        };
        if !kind.ends_with(':') {
            return Err(format!("missing colon: {key}"));
        }
        let parse_error = |error: serde_json::Error| format!("{key}: {error}");
        Ok(Some(match kind {
            "f:" => Self::field(rest),
            "v:" => Self::Value(serde_json::from_str(rest).map_err(parse_error)?),
            "k:" => {
                let fields: serde_json::Map<String, Value> =
                    serde_json::from_str(rest).map_err(parse_error)?;
                Self::key(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
            }
            "i:" => Self::Index(rest.parse().map_err(|error| format!("{key}: {error}"))?),
            _ => return Ok(None),
        }))
    }

    /// Returns the step as a key of FieldsV1.
    pub fn to_key(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(fields) => {
                let mut key = String::from("k:{");
                for (index, (name, value)) in fields.iter().enumerate() {
                    if index > 0 {
                        key.push(',');
                    }
                    key.push_str(&Value::from(&**name).to_string());
                    key.push(':');
                    key.push_str(&to_go_json(value));
                }
                key.push('}');
                key
            }
            Self::Value(value) => format!("v:{}", to_go_json(value)),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

/// Returns JSON as Go writes it: `<`, `>`, `&` and the line separators are escaped.
fn to_go_json(value: &Value) -> String {
    let json = value.to_string();
    if !json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return json;
    }
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                text.extend(format!("\\u{:04x}", u32::from(c)).chars());
            }
            _ => text.push(c),
        }
    }
    text
}

impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                let pair =
                    |(name, value): &(Box<str>, Value)| format!("{name}={}", value_text(value));
                let pairs: Vec<String> = fields.iter().map(pair).collect();
                write!(f, "[{}]", pairs.join(","))
            }
            Self::Value(value) => write!(f, "[={}]", value_text(value)),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(left), Self::Field(right)) => left.cmp(right),
            (Self::Key(left), Self::Key(right)) => {
                let pairs = left.iter().zip(right).map(|((name, value), (other, right))| {
                    name.cmp(other).then_with(|| order_values(value, right))
                });
                let first_difference = pairs.into_iter().find(|order| order.is_ne());
                first_difference.unwrap_or(Ordering::Equal).then(left.len().cmp(&right.len()))
            }
            (Self::Value(left), Self::Value(right)) => order_values(left, right),
            (Self::Index(left), Self::Index(right)) => left.cmp(right),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}
