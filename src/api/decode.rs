//! Reading request bodies, JSON and YAML, so that nothing which was written goes unseen:
//! duplicate keys, numbers digit by digit.

use serde_json::Value;

/// A parsed body.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The body, the last of duplicate keys winning, as Go's decoder has it.
    pub value: Value,
    /// Paths of keys that occurred more than once, as `spec.nodePools[0].name`.
    pub duplicates: Vec<String>,
}

impl From<Value> for Document {
    fn from(value: Value) -> Self {
        Self { value, duplicates: Vec::new() }
    }
}
