//! The form in which a Kubernetes object stores one of our own objects.
//!
//! Owns names, labels and fields. A key is longer than a name may be and holds other characters. So
//! an object is named by the key's hash and carries the key inside, where it is compared. Objects
//! below a prefix are found by labels, which hold hashes too.

use std::fmt::Write;

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::super::{Error, Key, KeyPrefix, Result, Revision, StoreEntry};

/// Name of the object that stands for the store, and its value of every label: it belongs to
/// every range, so each list and each watch carries it.
pub(super) const STORE: &str = "store";
/// Name of the label of objects that were deleted but not yet removed.
const DELETED: &str = "deleted";

/// Names of the labels that hold hashes of prefixes, by the depth of the prefix.
const RANGES: [&str; 3] = ["group", "resource", "namespace"];

/// The kind in which Kubernetes keeps our objects, one for each key.
#[derive(Debug)]
pub struct StoredObjectKind {
    /// The kind's group, which labels have as their prefix, too.
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
}

/// A list of objects, or a part of one.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoredObjectList {
    pub(super) metadata: StoredListMetadata,
    pub(super) items: Vec<StoredObject>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoredListMetadata {
    #[serde(default)]
    pub(super) resource_version: String,
    /// The `continue` token of the next part; empty in the last part.
    #[serde(default, rename = "continue")]
    pub(super) more: String,
}

/// An object as Kubernetes shows it, with the fields that are read.
#[derive(Deserialize)]
pub(super) struct StoredObject {
    pub(super) metadata: StoredObjectMetadata,
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    pub(super) deleted: bool,
    #[serde(default)]
    pub(super) store: Option<StoreMark>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoredObjectMetadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    resource_version: String,
}

/// What the store's object says about the store.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct StoreMark {
    #[serde(default)]
    pub(super) id: String,
    /// Revision before which reads are refused.
    #[serde(default)]
    pub(super) floor: u64,
    /// How writes were lost; empty once an administrator has accepted the loss.
    #[serde(default)]
    pub(super) lost: String,
}

impl StoredObject {
    pub(super) fn revision(&self) -> Result<Revision> {
        parse_revision(&self.metadata.resource_version)
    }

    /// Tells whether the object stands for the store.
    pub(super) fn is_store(&self) -> bool {
        self.metadata.name == STORE
    }

    pub(super) fn key(&self) -> Result<Key> {
        let key = Key::from_stored(self.key.clone());
        if object_name(&key) == self.metadata.name {
            return Ok(key);
        }
        let (stored_key, actual_name) = (&self.key, &self.metadata.name);
        Err(Error::Corrupt {
            reason: format!("the object {actual_name:?} holds the key {stored_key:?}"),
        })
    }

    pub(super) fn decode_value(&self) -> Result<Bytes> {
        let value = BASE64_STANDARD.decode(&self.value);
        value.map(Bytes::from).map_err(|error| Error::Corrupt {
            reason: format!("the value of {:?} is no base64: {error}", self.key),
        })
    }

    pub(super) fn to_entry(&self) -> Result<StoreEntry> {
        Ok(StoreEntry { key: self.key()?, value: self.decode_value()?, revision: self.revision()? })
    }
}

/// Reads a resource version of Kubernetes: etcd's revision, as text.
pub(super) fn parse_revision(text: &str) -> Result<Revision> {
    let number = text.parse().ok();
    number.map(Revision).ok_or_else(|| Error::Corrupt {
        reason: format!("the resource version {text:?} is no number"),
    })
}

/// Returns the name of the object that holds a key: a SHA-256, as two keys with one name are not to
/// be found.
pub(super) fn object_name(key: &Key) -> String {
    encode_hex(&Sha256::digest(key.as_str()))
}

fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

/// Returns the value of a label for a prefix: a part of its SHA-256, as a whole one would not fit.
fn hash(prefix: &str) -> String {
    encode_hex(&Sha256::digest(prefix)[..20])
}

impl StoredObjectKind {
    fn label_key(&self, range: &str) -> String {
        format!("{}/{range}", self.group)
    }

    /// Returns the label selector for the objects below a prefix, and for the object of the store.
    pub(super) fn range_selector(&self, prefix: &KeyPrefix) -> String {
        let prefix = prefix.as_str();
        let depth = prefix.matches('/').count().clamp(1, RANGES.len());
        format!("{} in ({},{STORE})", self.label_key(RANGES[depth - 1]), hash(prefix))
    }

    /// Returns one label for each prefix of the key.
    fn range_labels(&self, key: &Key) -> Value {
        let ends = key.as_str().match_indices('/').map(|(index, _)| index + 1);
        let pairs = RANGES.iter().zip(ends);
        pairs
            .map(|(range, end)| (self.label_key(range), json!(hash(&key.as_str()[..end]))))
            .collect()
    }

    /// Makes the object that holds a value under a key; with a revision `at`, it replaces the object
    /// that was written then.
    pub(super) fn live_object(&self, key: &Key, value: &[u8], at: Option<Revision>) -> Value {
        let mut object = self.build_object(&object_name(key), &self.range_labels(key), at);
        object["key"] = json!(key.as_str());
        object["value"] = json!(BASE64_STANDARD.encode(value));
        object
    }

    /// Builds the object that marks a key as deleted. It replaces the object written at `at`.
    pub(super) fn deletion_object(&self, key: &Key, at: Revision) -> Value {
        let mut labels = self.range_labels(key);
        labels[&self.label_key(DELETED)] = json!("true");
        let mut object = self.build_object(&object_name(key), &labels, Some(at));
        object["key"] = json!(key.as_str());
        object["deleted"] = json!(true);
        object
    }

    /// Makes the object that stands for the store.
    pub(super) fn store_object(&self, mark: &StoreMark, at: Option<Revision>) -> Value {
        let labels: Value =
            RANGES.iter().map(|range| (self.label_key(range), json!(STORE))).collect();
        let mut object = self.build_object(STORE, &labels, at);
        let StoreMark { id, floor, lost } = mark;
        object["store"] = json!({"id": id, "floor": floor, "lost": lost});
        object
    }

    /// Makes an object that belongs to no range, to be written for its revision's sake.
    pub(super) fn filler_object(&self, name: &str) -> Value {
        self.build_object(name, &json!({}), None)
    }

    fn build_object(&self, name: &str, labels: &Value, at: Option<Revision>) -> Value {
        let mut metadata = json!({"name": name, "labels": labels});
        if let Some(revision) = at {
            metadata["resourceVersion"] = json!(revision.to_string());
        }
        json!({
            "apiVersion": format!("{}/{}", self.group, self.version),
            "kind": self.kind,
            "metadata": metadata,
            "write": Uuid::new_v4().to_string(),
        })
    }

    /// Returns the path of all objects in a namespace.
    pub(super) fn collection_path(&self, namespace: &str) -> String {
        let Self { group, version, plural, kind: _ } = self;
        format!("/apis/{group}/{version}/namespaces/{namespace}/{plural}")
    }

    /// Returns the selector of objects that were deleted but not yet removed.
    pub(super) fn deleted_selector(&self) -> String {
        format!("{}=true", self.label_key(DELETED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::role::STORED_OBJECTS;

    #[test]
    fn names_and_labels_are_ones_that_kubernetes_takes() {
        let key = Key::new("g", "r", "Namespace with spaces", &"ü".repeat(300)).unwrap();
        assert_eq!(object_name(&key).len(), 64);
        let labels = STORED_OBJECTS.range_labels(&key);
        let labels = labels.as_object().unwrap();
        assert_eq!(labels.len(), 3);
        assert!(labels.values().all(|value| value.as_str().unwrap().len() <= 63));
    }

    #[test]
    fn a_selector_finds_what_lies_below_its_prefix() {
        let key = Key::new("g", "r", "ns", "name").unwrap();
        for prefix in [
            KeyPrefix::for_group("g"),
            KeyPrefix::for_resource("g", "r"),
            KeyPrefix::for_namespace("g", "r", "ns"),
        ] {
            let selector = STORED_OBJECTS.range_selector(&prefix.unwrap());
            let (label, values) = selector.split_once(" in ").unwrap();
            let value = STORED_OBJECTS.range_labels(&key)[label].as_str().unwrap().to_owned();
            assert!(values.starts_with(&format!("({value},")), "{selector}");
        }
    }

    #[test]
    fn an_object_under_another_name_is_refused() {
        let key = Key::new("g", "r", "ns", "name").unwrap();
        let mut object = STORED_OBJECTS.live_object(&key, b"1", Some(Revision(7)));
        let stored: StoredObject = serde_json::from_value(object.clone()).unwrap();
        assert_eq!(stored.to_entry().unwrap().value, "1");
        object["metadata"]["name"] =
            json!(object_name(&Key::new("g", "r", "ns", "other").unwrap()));
        let stored: StoredObject = serde_json::from_value(object).unwrap();
        assert!(matches!(stored.to_entry(), Err(Error::Corrupt { .. })));
    }
}
