//! An object of the cache: its JSON, made once and shared by its readers, and next to it what
//! selectors read. No tree of JSON values is kept: that would be eight times as large.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::{
    encoded_object::{EncodedObject, EventType},
    forms,
};
use crate::{
    apiserver::{
        capacity,
        selector::ObjectFacets,
        storage::{Key, Revision},
    },
    machinery::{
        decode::weight,
        ownership::{RawManagedFields, RevisionGap, join_but_revision, split_json},
    },
};

/// An object as its kind's first version shows it, before the store has given it a revision.
#[derive(Debug)]
pub struct ObjectForm {
    json: Bytes,
    gap: RevisionGap,
    facets: ObjectFacets,
    weight: usize,
    whole: bool,
}

impl ObjectForm {
    /// Encodes `object`, which is as the kind's first version shows it, without managed fields
    /// (`owners`). `fields` are the values of the kind's selectable fields, in their order. `whole`
    /// means that the store holds nothing of the object that is not shown.
    pub fn new(
        object: &Value,
        owners: Option<&RawManagedFields>,
        fields: Vec<String>,
        whole: bool,
    ) -> Result<Self, String> {
        let (json, gap) = join_but_revision(object, owners);
        let gap = gap.ok_or("it has no metadata")?;
        let facets = ObjectFacets::from_metadata(&object["metadata"], fields);
        let owners_weight =
            owners.map_or(0, |owners| weight::estimate_json(owners.text().as_bytes()));
        Ok(Self {
            json: json.into(),
            gap,
            facets,
            weight: weight::value_bytes(object) + owners_weight,
            whole,
        })
    }

    /// Returns the bytes that a store keeps of the object, if the form shows all of it.
    pub fn stored_bytes(&self) -> Option<Bytes> {
        self.whole.then(|| self.json.clone())
    }
}

/// One object at one revision. A new revision is a new value.
#[derive(Debug)]
pub struct CachedObject {
    pub key: Key,
    pub revision: Revision,
    pub facets: ObjectFacets,
    /// Bytes of memory that the object takes as a tree of JSON values.
    pub weight: usize,
    /// Set when the store holds nothing of the object that is not shown.
    pub whole: bool,
    /// Event that most watchers get for this revision.
    event: EventType,
    shown: EncodedObject,
    /// Place of the revision in the JSON.
    gap: RevisionGap,
    older: forms::CachedForm,
    partial: forms::CachedForm,
}

/// A decoded object, or the reason why it cannot be decoded.
pub(super) type DecodeResult = Result<CachedObject, String>;
/// A decoded object that several owners may hold, or the reason why it cannot be decoded.
pub(super) type SharedDecodeResult = Result<Arc<CachedObject>, String>;

impl CachedObject {
    /// Creates the object at `revision` from its form.
    pub fn new(key: Key, form: ObjectForm, revision: Revision, event: EventType) -> Self {
        let ObjectForm { json, gap, facets, weight, whole } = form;
        let encoded_object =
            EncodedObject::with_revision(event, json.split_at(gap.at), gap, revision);
        let (older, partial) = (forms::CachedForm::default(), forms::CachedForm::default());
        Self {
            key,
            revision,
            facets,
            weight,
            whole,
            event,
            shown: encoded_object,
            gap,
            older,
            partial,
        }
    }

    /// Tells whether a store keeps the object as the bytes `stored`. False for an object that is
    /// not shown whole.
    pub fn is_kept_as(&self, stored: &[u8]) -> bool {
        let (json_before, json_after) = self.split_at_revision();
        self.whole
            && json_before.len() + json_after.len() == stored.len()
            && stored.starts_with(json_before)
            && stored.ends_with(json_after)
    }

    /// Returns the JSON before the revision and the JSON behind it.
    fn split_at_revision(&self) -> (&[u8], &[u8]) {
        let json = self.json();
        (&json[..self.gap.at], &json[self.gap.at + self.gap.fill_text(self.revision.0).len()..])
    }

    /// Returns the object for a DELETED event: at `revision`, the change that took it from a
    /// watcher's sight.
    #[must_use]
    pub fn last_seen(&self, revision: Revision) -> Self {
        let encoded_object = EncodedObject::with_revision(
            EventType::Deleted,
            self.split_at_revision(),
            self.gap,
            revision,
        );
        Self {
            key: self.key.clone(),
            revision,
            facets: self.facets.clone(),
            weight: self.weight,
            whole: self.whole,
            event: EventType::Deleted,
            shown: encoded_object,
            gap: self.gap,
            older: forms::CachedForm::default(),
            partial: forms::CachedForm::default(),
        }
    }

    /// Returns the encoded object in the kind's first version.
    pub fn encoded_object(&self) -> &EncodedObject {
        &self.shown
    }

    /// Returns the object's JSON in the kind's first version.
    pub fn json(&self) -> &[u8] {
        self.shown.json_bytes()
    }

    /// Parses the object in the kind's first version into a tree of JSON values.
    pub fn to_value(&self) -> Value {
        self.shown.to_value()
    }

    /// Parses the object into a tree of JSON values, with its managed fields next to it.
    pub fn split_managed_fields(&self) -> (Value, Option<RawManagedFields>) {
        split_json(self.json()).expect("it was written by serde_json")
    }

    fn encode_form(&self, convert: impl FnOnce(&Value) -> Value) -> EncodedObject {
        let (object, owners) = self.split_managed_fields();
        EncodedObject::new(self.event, &convert(&object), owners.as_ref())
    }

    /// Returns the encoded object in the kind's older version, made by `convert` unless kept.
    pub fn older_version(&self, convert: impl FnOnce(&Value) -> Value) -> EncodedObject {
        self.older.get(|| self.encode_form(convert))
    }

    /// Returns the object's metadata, encoded, in the kind's first version, made by
    /// `convert` unless kept.
    pub fn partial_metadata(&self, convert: impl FnOnce(&Value) -> Value) -> EncodedObject {
        self.partial.get(|| self.encode_form(convert))
    }

    pub fn name(&self) -> &str {
        &self.facets.name
    }

    /// Returns about how many bytes the object keeps in memory.
    pub(super) fn size(&self) -> usize {
        OVERHEAD + self.shown.len()
    }

    /// Returns the bytes of the JSON without its revision.
    pub fn stored_len(&self) -> usize {
        self.json().len() - self.gap.fill_text(self.revision.0).len()
    }

    /// Returns the bytes by which the object counts against the storage capacity.
    pub(super) fn counted_bytes(&self) -> usize {
        capacity::counted_bytes(self.stored_len())
    }
}

/// Bytes that an object is estimated to take in addition to its JSON: key, labels, counts.
const OVERHEAD: usize = 512;
