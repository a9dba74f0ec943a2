//! An object of the cache: its JSON, made once and shared by all who read it, and beside it what
//! selectors look at. No tree is kept: that would be eight times as large.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::{
    super::{
        capacity,
        selector::ObjectFacets,
        storage::{Key, Revision},
    },
    encoded::{EncodedObject, EventType},
    forms,
};
use crate::api::{
    decode::weight,
    ownership::{RawManagedFields, RevisionGap, join_but_revision, split},
};

/// An object as its kind shows it, without the revision that it gets.
#[derive(Debug)]
pub struct ObjectForm {
    json: Bytes,
    gap: RevisionGap,
    facets: ObjectFacets,
    weight: usize,
    whole: bool,
}

impl ObjectForm {
    /// `object` as the kind's first version shows it, without its owners; `fields`: values of the
    /// kind's selectable fields, in their order; `whole`: the store holds nothing of the object
    /// that is not shown.
    pub fn new(
        object: &Value,
        owners: Option<&RawManagedFields>,
        fields: Vec<String>,
        whole: bool,
    ) -> Result<Self, String> {
        let (json, gap) = join_but_revision(object, owners);
        let gap = gap.ok_or("it has no metadata")?;
        let facets = ObjectFacets::of(&object["metadata"], fields);
        let seen = owners.map_or(0, |owners| weight::foresee(owners.text().as_bytes()));
        Ok(Self { json: json.into(), gap, facets, weight: weight::of(object) + seen, whole })
    }

    /// The bytes that a store keeps of the object, if the form shows all of it.
    pub fn stored(&self) -> Option<Bytes> {
        self.whole.then(|| self.json.clone())
    }
}

/// One object at one revision; never changes.
#[derive(Debug)]
pub struct CachedObject {
    pub key: Key,
    pub revision: Revision,
    pub facets: ObjectFacets,
    /// The memory that the object takes as a tree.
    pub weight: usize,
    /// The store holds nothing of the object that is not shown.
    pub whole: bool,
    /// The event that most watchers get of this revision.
    event: EventType,
    shown: EncodedObject,
    /// Where the revision stands in the JSON.
    gap: RevisionGap,
    older: forms::CachedForm,
    partial: forms::CachedForm,
}

/// An object that was read, or why it could not be.
pub(super) type DecodeResult = Result<CachedObject, String>;
/// An object that was read and that others may hold, too, or why it could not be read.
pub(super) type SharedDecodeResult = Result<Arc<CachedObject>, String>;

impl CachedObject {
    /// The object under its revision.
    pub fn new(key: Key, form: ObjectForm, revision: Revision, event: EventType) -> Self {
        let ObjectForm { json, gap, facets, weight, whole } = form;
        let shown = EncodedObject::filled(event, json.split_at(gap.at), gap, revision);
        let (older, partial) = (forms::CachedForm::default(), forms::CachedForm::default());
        Self { key, revision, facets, weight, whole, event, shown, gap, older, partial }
    }

    /// Does a store keep the object in these bytes? Known only of an object that is shown whole.
    pub fn is_kept_as(&self, stored: &[u8]) -> bool {
        let (before, behind) = self.around();
        self.whole
            && before.len() + behind.len() == stored.len()
            && stored.starts_with(before)
            && stored.ends_with(behind)
    }

    /// The JSON before and behind the revision.
    fn around(&self) -> (&[u8], &[u8]) {
        let json = self.json();
        (&json[..self.gap.at], &json[self.gap.at + self.gap.filling(self.revision.0).len()..])
    }

    /// The object as deleted: under the revision of the change that took it from a watcher's sight.
    #[must_use]
    pub fn last_seen(&self, revision: Revision) -> Self {
        let shown = EncodedObject::filled(EventType::Deleted, self.around(), self.gap, revision);
        Self {
            key: self.key.clone(),
            revision,
            facets: self.facets.clone(),
            weight: self.weight,
            whole: self.whole,
            event: EventType::Deleted,
            shown,
            gap: self.gap,
            older: forms::CachedForm::default(),
            partial: forms::CachedForm::default(),
        }
    }

    /// As the kind's first version shows the object.
    pub fn shown(&self) -> &EncodedObject {
        &self.shown
    }

    /// JSON, as the kind's first version shows the object.
    pub fn json(&self) -> &[u8] {
        self.shown.bytes()
    }

    /// The object as the kind's first version shows it.
    pub fn tree(&self) -> Value {
        self.shown.tree()
    }

    /// The object as a tree, and its owners beside it.
    pub fn apart(&self) -> (Value, Option<RawManagedFields>) {
        split(self.json()).expect("it was written by serde_json")
    }

    fn encoded(&self, show: impl FnOnce(&Value) -> Value) -> EncodedObject {
        let (object, owners) = self.apart();
        EncodedObject::new(self.event, &show(&object), owners.as_ref())
    }

    /// The object in the kind's older version.
    pub fn older(&self, show: impl FnOnce(&Value) -> Value) -> EncodedObject {
        self.older.get(|| self.encoded(show))
    }

    /// The object's metadata in the kind's first version.
    pub fn partial(&self, show: impl FnOnce(&Value) -> Value) -> EncodedObject {
        self.partial.get(|| self.encoded(show))
    }

    pub fn name(&self) -> &str {
        &self.facets.name
    }

    /// Bytes that the object keeps in memory.
    pub(super) fn size(&self) -> usize {
        OVERHEAD + self.shown.len()
    }

    /// Bytes of the JSON without its revision.
    pub fn stored_len(&self) -> usize {
        self.json().len() - self.gap.filling(self.revision.0).len()
    }

    /// Bytes that the object counts of the capacity.
    pub(super) fn counted(&self) -> usize {
        capacity::counted(self.stored_len())
    }
}

/// Bytes beside the JSON: key, labels, counts.
const OVERHEAD: usize = 512;
