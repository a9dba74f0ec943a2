//! An object of the cache: decoded once, encoded at most once for each version.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::Value;

use super::super::storage::{Key, Revision};
use crate::api::kind::Version;

/// One object at one revision; never changes.
#[derive(Debug)]
pub struct Cached {
    pub key: Key,
    /// The object in hub form, with `metadata.resourceVersion`.
    pub hub: Value,
    pub revision: Revision,
    encoded: [OnceLock<Bytes>; 2],
}

/// A decoded object, or why it could not be decoded.
pub(super) type Reading = Result<Cached, String>;

impl Cached {
    pub(super) fn new(key: Key, mut hub: Value, revision: Revision) -> Reading {
        let metadata = hub.get_mut("metadata").and_then(Value::as_object_mut);
        let metadata = metadata.ok_or("it has no metadata")?;
        metadata.insert("resourceVersion".to_owned(), revision.to_string().into());
        Ok(Self { key, hub, revision, encoded: Default::default() })
    }

    /// The object as it was last, under the revision of its deletion.
    pub(super) fn deleted(self: &Arc<Self>, revision: Revision) -> Self {
        let mut hub = self.hub.clone();
        hub["metadata"]["resourceVersion"] = revision.to_string().into();
        Self { key: self.key.clone(), hub, revision, encoded: Default::default() }
    }

    /// The object's JSON in `version`, made by whoever asks first and shared by all others.
    pub fn encoded(&self, version: Version, encode: impl FnOnce(&Value) -> Bytes) -> Bytes {
        let slot = match version {
            // No kind is served in both.
            Version::V1beta1 | Version::V1 => &self.encoded[0],
            Version::V1alpha1 => &self.encoded[1],
        };
        slot.get_or_init(|| encode(&self.hub)).clone()
    }
}
