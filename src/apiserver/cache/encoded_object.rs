//! JSON of an object as clients get it, in lists and in lines of watches.

use bytes::Bytes;
use serde_json::Value;

use crate::{
    apiserver::storage::Revision,
    machinery::ownership::{RawManagedFields, RevisionGap, join_json, parse_whole},
};

/// What happened to an object, in the words of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Added,
    Modified,
    Deleted,
}

impl EventType {
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }

    fn line_prefix(self) -> &'static [u8] {
        match self {
            Self::Added => br#"{"type":"ADDED","object":"#,
            Self::Modified => br#"{"type":"MODIFIED","object":"#,
            Self::Deleted => br#"{"type":"DELETED","object":"#,
        }
    }
}

const END: &[u8] = b"}\n";

/// JSON of an object, kept within the watch line that most watchers are sent. The line is encoded
/// once; watches share the whole line, lists and reads the JSON within it.
#[derive(Clone, Debug)]
pub struct EncodedObject {
    line: Bytes,
    type_: EventType,
}

impl EncodedObject {
    pub fn new(type_: EventType, object: &Value, owners: Option<&RawManagedFields>) -> Self {
        let owners_len = owners.map_or(0, |owners| owners.text().len());
        let mut line = Vec::with_capacity(2048 + owners_len);
        line.extend_from_slice(type_.line_prefix());
        join_json(&mut line, object, owners);
        line.extend_from_slice(END);
        line.shrink_to_fit();
        Self { line: line.into(), type_ }
    }

    /// Encodes the line of an object. `json_parts` is the object's JSON before and behind the
    /// revision.
    pub(super) fn with_revision(
        type_: EventType,
        json_parts: (&[u8], &[u8]),
        gap: RevisionGap,
        revision: Revision,
    ) -> Self {
        let (json_before, json_after) = json_parts;
        let revision = gap.fill_text(revision.0);
        let line =
            [type_.line_prefix(), json_before, revision.as_bytes(), json_after, END].concat();
        Self { line: line.into(), type_ }
    }

    pub fn json(&self) -> Bytes {
        self.line.slice(self.type_.line_prefix().len()..self.line.len() - END.len())
    }

    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    pub fn to_value(&self) -> Value {
        parse_whole(self.json_bytes()).expect("it was written by serde_json")
    }

    pub(super) fn json_bytes(&self) -> &[u8] {
        &self.line[self.type_.line_prefix().len()..self.line.len() - END.len()]
    }

    /// Returns the watch line of the object for an event of `type_`. A new line is encoded only for
    /// a watcher whose selector turns the event into one of another type.
    pub fn watch_line(&self, type_: EventType) -> Bytes {
        if type_ == self.type_ {
            return self.line.clone();
        }
        [type_.line_prefix(), self.json_bytes(), END].concat().into()
    }
}
