//! An object of the cache: its JSON, made once and shared by all who read it, and beside it what
//! selectors look at. No tree is kept: that would be eight times as large.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::Value;

use super::super::{
    selector::Facets,
    storage::{Key, Revision},
};
use crate::api::decode::weight;

/// An object as its kind read it.
#[derive(Debug)]
pub struct Form {
    /// As the kind's first version shows it.
    pub object: Value,
    /// Values of the kind's selectable fields, in their order.
    pub fields: Vec<String>,
    /// The store holds nothing of the object that is not shown.
    pub whole: bool,
}

/// One object at one revision; never changes.
#[derive(Debug)]
pub struct Cached {
    pub key: Key,
    pub revision: Revision,
    pub facets: Facets,
    /// The memory that the object takes as a tree.
    pub weight: usize,
    /// The store holds nothing of the object that is not shown.
    pub whole: bool,
    json: Bytes,
    older: OnceLock<Bytes>,
    partial: OnceLock<Bytes>,
}

/// An object that was read, or why it could not be.
pub(super) type Reading = Result<Cached, String>;
/// The same, of an object that others may hold, too.
pub(super) type Shared = Result<Arc<Cached>, String>;

impl Cached {
    /// The object under its revision.
    pub fn new(key: Key, form: Form, revision: Revision) -> Result<Self, String> {
        let Form { mut object, fields, whole } = form;
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        let metadata = metadata.ok_or("it has no metadata")?;
        metadata.insert("resourceVersion".to_owned(), revision.to_string().into());
        let facets = Facets::of(&object["metadata"], fields);
        let weight = weight::of(&object);
        let json = encode(&object);
        let (older, partial) = (OnceLock::new(), OnceLock::new());
        Ok(Self { key, revision, facets, weight, whole, json, older, partial })
    }

    /// The same under the revision of a change that took it from its reader's sight.
    #[must_use]
    pub fn last_seen(&self, revision: Revision) -> Self {
        let mut object = self.tree();
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        Self {
            key: self.key.clone(),
            revision,
            facets: self.facets.clone(),
            weight: self.weight,
            whole: self.whole,
            json: encode(&object),
            older: OnceLock::new(),
            partial: OnceLock::new(),
        }
    }

    /// JSON, as the kind's first version shows the object.
    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// The object as the kind's first version shows it.
    pub fn tree(&self) -> Value {
        serde_json::from_slice(&self.json).expect("it was written by serde_json")
    }

    /// The object's JSON in the kind's older version, made by whoever asks first.
    pub fn older(&self, show: impl FnOnce(&Value) -> Value) -> Bytes {
        self.older.get_or_init(|| encode(&show(&self.tree()))).clone()
    }

    /// JSON of the object's metadata in the kind's first version, made by whoever asks first.
    pub fn partial(&self, show: impl FnOnce(&Value) -> Value) -> Bytes {
        self.partial.get_or_init(|| encode(&show(&self.tree()))).clone()
    }

    pub fn name(&self) -> &str {
        &self.facets.name
    }

    /// Bytes that it keeps.
    pub(super) fn size(&self) -> usize {
        let made = |bytes: &OnceLock<Bytes>| bytes.get().map_or(0, Bytes::len);
        OVERHEAD + self.json.len() + made(&self.older) + made(&self.partial)
    }
}

/// Bytes beside the JSON: key, labels, counts.
const OVERHEAD: usize = 512;

fn encode(object: &Value) -> Bytes {
    serde_json::to_vec(object).expect("a Value has string keys only").into()
}
