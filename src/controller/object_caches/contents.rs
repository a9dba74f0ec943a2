//! Objects that were read by name, each in the version that its watch knows.
//!
//! A cluster asks for the objects that it needs, and no others are here. There is room for some
//! bytes; where that is full, what was kept makes room, and is read again when it is needed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use kube::api::DynamicObject;

/// Bytes of the largest object that is kept. What the controller makes is smaller.
const LARGEST: usize = 256 << 10;

/// Kind, namespace and name.
pub(super) type ContentKey = (String, String, String);

/// The objects that were read. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct ReadContents(Arc<Mutex<Contents>>);

#[derive(Debug)]
struct Contents {
    /// Bytes of JSON that are kept, and how many there may be.
    bytes: usize,
    room: usize,
    objects: HashMap<ContentKey, Box<str>>,
}

impl ReadContents {
    pub(super) fn new(room: usize) -> Self {
        Self(Arc::new(Mutex::new(Contents { bytes: 0, room, objects: HashMap::new() })))
    }

    /// Returns the object, if this version of it was read.
    pub(super) fn of_version(&self, key: &ContentKey, version: &str) -> Option<DynamicObject> {
        let contents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let object: DynamicObject = serde_json::from_str(contents.objects.get(key)?).ok()?;
        (object.metadata.resource_version.as_deref() == Some(version)).then_some(object)
    }

    pub(super) fn insert_object(&self, key: ContentKey, object: &DynamicObject) {
        let mut contents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        contents.remove_object(&key);
        let Ok(json) = serde_json::to_string(object) else { return };
        if json.len() > LARGEST {
            return;
        }
        while contents.bytes + json.len() > contents.room {
            let Some(evicted_key) = contents.objects.keys().next().cloned() else { break };
            contents.remove_object(&evicted_key);
        }
        contents.bytes += json.len();
        contents.objects.insert(key, json.into());
    }
}

impl Contents {
    fn remove_object(&mut self, key: &ContentKey) {
        if let Some(json) = self.objects.remove(key) {
            self.bytes -= json.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ROOM: usize = 8 << 20;

    fn object(version: &str, bytes: usize) -> DynamicObject {
        let object = json!({
            "metadata": {"name": "s", "resourceVersion": version}, "data": {"d": "x".repeat(bytes)},
        });
        serde_json::from_value(object).unwrap()
    }

    fn key(number: usize) -> ContentKey {
        ("Secret".to_owned(), "n".to_owned(), format!("s-{number}"))
    }

    #[test]
    fn only_the_version_that_was_read_is_returned() {
        let contents = ReadContents::new(ROOM);
        contents.insert_object(key(0), &object("1", 10));
        assert_eq!(contents.of_version(&key(0), "1"), Some(object("1", 10)));
        assert_eq!(contents.of_version(&key(0), "2"), None);
        contents.insert_object(key(0), &object("2", 10));
        assert_eq!(contents.of_version(&key(0), "1"), None);
    }

    #[test]
    fn large_objects_and_many_take_no_more_than_the_room() {
        let contents = ReadContents::new(ROOM);
        contents.insert_object(key(0), &object("1", LARGEST));
        assert_eq!(contents.of_version(&key(0), "1"), None, "it is larger than any of ours");
        for number in 0..300 {
            contents.insert_object(key(number), &object("1", LARGEST - 100));
        }
        let (bytes, kept) = {
            let contents = contents.0.lock().unwrap();
            (contents.bytes, contents.objects.values().map(|json| json.len()).sum::<usize>())
        };
        assert!(bytes <= ROOM && bytes > ROOM - LARGEST, "{bytes}");
        assert_eq!(bytes, kept);
        assert!(contents.of_version(&key(299), "1").is_some(), "the newest is there");
    }
}
