//! An object of the cache: its JSON, made once and shared by all who read it, and beside it what
//! selectors look at. No tree is kept: that would be eight times as large.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::Value;

use super::super::{
    selector::Facets,
    storage::{Key, Revision},
};
use crate::api::{
    decode::weight,
    ownership::{Entries, join, split},
};

/// An object as its kind read it.
#[derive(Debug)]
pub struct Form {
    /// As the kind's first version shows it, without its owners.
    pub object: Value,
    pub owners: Option<Entries>,
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
    /// The event that most watchers get of it.
    event: EventType,
    shown: Encoded,
    older: OnceLock<Encoded>,
    partial: OnceLock<Encoded>,
}

/// What happened to an object, as a watch calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Added,
    Modified,
    Deleted,
}

impl EventType {
    fn begin(self) -> &'static [u8] {
        match self {
            Self::Added => br#"{"type":"ADDED","object":"#,
            Self::Modified => br#"{"type":"MODIFIED","object":"#,
            Self::Deleted => br#"{"type":"DELETED","object":"#,
        }
    }
}

const END: &[u8] = b"}\n";

/// JSON of an object within the line of a watch that most watchers are sent. Made once; its
/// readers share it whole or without the frame.
#[derive(Clone, Debug)]
pub struct Encoded {
    line: Bytes,
    type_: EventType,
}

impl Encoded {
    pub fn new(type_: EventType, object: &Value, owners: Option<&Entries>) -> Self {
        let owned = owners.map_or(0, |owners| owners.text().len());
        let mut line = Vec::with_capacity(2048 + owned);
        line.extend_from_slice(type_.begin());
        join(&mut line, object, owners);
        line.extend_from_slice(END);
        line.shrink_to_fit();
        Self { line: line.into(), type_ }
    }

    pub fn json(&self) -> Bytes {
        self.line.slice(self.type_.begin().len()..self.line.len() - END.len())
    }

    fn bytes(&self) -> &[u8] {
        &self.line[self.type_.begin().len()..self.line.len() - END.len()]
    }

    /// The line of a watch. Only a watcher whose selector sees something else than what happened
    /// has one of its own.
    pub fn line(&self, type_: EventType) -> Bytes {
        if type_ == self.type_ {
            return self.line.clone();
        }
        [type_.begin(), self.bytes(), END].concat().into()
    }
}

/// An object that was read, or why it could not be.
pub(super) type Reading = Result<Cached, String>;
/// The same, of an object that others may hold, too.
pub(super) type Shared = Result<Arc<Cached>, String>;

impl Cached {
    /// The object under its revision.
    pub fn new(key: Key, form: Form, revision: Revision, event: EventType) -> Result<Self, String> {
        let Form { mut object, owners, fields, whole } = form;
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        let metadata = metadata.ok_or("it has no metadata")?;
        metadata.insert("resourceVersion".to_owned(), revision.to_string().into());
        let facets = Facets::of(&object["metadata"], fields);
        let seen = owners.as_ref().map_or(0, |owners| weight::foresee(owners.text().as_bytes()));
        let weight = weight::of(&object) + seen;
        let shown = Encoded::new(event, &object, owners.as_ref());
        let (older, partial) = (OnceLock::new(), OnceLock::new());
        Ok(Self { key, revision, facets, weight, whole, event, shown, older, partial })
    }

    /// The same under the revision of a change that took it from its reader's sight.
    #[must_use]
    pub fn last_seen(&self, revision: Revision) -> Self {
        let (mut object, owners) = self.apart();
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        Self {
            key: self.key.clone(),
            revision,
            facets: self.facets.clone(),
            weight: self.weight,
            whole: self.whole,
            event: EventType::Deleted,
            shown: Encoded::new(EventType::Deleted, &object, owners.as_ref()),
            older: OnceLock::new(),
            partial: OnceLock::new(),
        }
    }

    /// As the kind's first version shows the object.
    pub fn shown(&self) -> &Encoded {
        &self.shown
    }

    /// JSON, as the kind's first version shows the object.
    pub fn json(&self) -> &[u8] {
        self.shown.bytes()
    }

    /// The object as the kind's first version shows it.
    pub fn tree(&self) -> Value {
        serde_json::from_slice(self.json()).expect("it was written by serde_json")
    }

    /// The same, and its owners beside it.
    pub fn apart(&self) -> (Value, Option<Entries>) {
        split(self.json()).expect("it was written by serde_json")
    }

    fn encoded(&self, show: impl FnOnce(&Value) -> Value) -> Encoded {
        let (object, owners) = self.apart();
        Encoded::new(self.event, &show(&object), owners.as_ref())
    }

    /// The object in the kind's older version, made by whoever asks first.
    pub fn older(&self, show: impl FnOnce(&Value) -> Value) -> &Encoded {
        self.older.get_or_init(|| self.encoded(show))
    }

    /// The object's metadata in the kind's first version, made by whoever asks first.
    pub fn partial(&self, show: impl FnOnce(&Value) -> Value) -> &Encoded {
        self.partial.get_or_init(|| self.encoded(show))
    }

    pub fn name(&self) -> &str {
        &self.facets.name
    }

    /// Bytes that it keeps.
    pub(super) fn size(&self) -> usize {
        let made = |form: &OnceLock<Encoded>| form.get().map_or(0, |form| form.line.len());
        OVERHEAD + self.shown.line.len() + made(&self.older) + made(&self.partial)
    }
}

/// Bytes beside the JSON: key, labels, counts.
const OVERHEAD: usize = 512;
