//! The record of the store in use: a ConfigMap, outside of the store.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::super::storage::Revision;
use crate::apiserver::installation::InstallationNames;

const ID: &str = "id";
const REVISION: &str = "revision";
const LOST: &str = "lost";

/// The record of the store in use.
#[derive(Clone, Debug, Default)]
pub(super) struct StoreRecord {
    pub id: String,
    /// A revision that the store has reached; absent in records of older releases.
    pub revision: Option<Revision>,
    /// How a loss of writes showed; absent again once an administrator accepted the store.
    pub lost: Option<String>,
    /// The id of the store that an administrator accepts as it is.
    pub accepted: Option<String>,
    /// The ConfigMap as it was read, to be written back.
    pub read: ConfigMap,
}

impl StoreRecord {
    pub(super) fn new(names: &InstallationNames, id: &str, revision: Revision) -> Self {
        let metadata =
            ObjectMeta { name: Some(names.store_record.to_owned()), ..ObjectMeta::default() };
        let config_map = ConfigMap { metadata, ..ConfigMap::default() };
        Self { id: id.to_owned(), revision: Some(revision), read: config_map, ..Self::default() }
    }

    /// Returns the ConfigMap to write. What other writers put into the ConfigMap that was read
    /// stays.
    pub(super) fn into_config_map(self, names: &InstallationNames) -> ConfigMap {
        let Self { id, revision, lost, accepted, mut read } = self;
        let data = read.data.get_or_insert_default();
        let texts = [(ID, Some(id)), (REVISION, revision.map(|r| r.to_string())), (LOST, lost)];
        for (key, text) in texts {
            set_text(data, key, text);
        }
        let annotations = read.metadata.annotations.get_or_insert_default();
        set_text(annotations, names.accept_store, accepted);
        read
    }
}

impl StoreRecord {
    pub(super) fn from_config_map(names: &InstallationNames, config_map: ConfigMap) -> Self {
        let data = |key| config_map.data.as_ref().and_then(|data| data.get(key)).cloned();
        let annotations = config_map.metadata.annotations.as_ref();
        Self {
            id: data(ID).unwrap_or_default(),
            // A revision beyond what any store counts to is a mistake in the ConfigMap.
            revision: data(REVISION)
                .and_then(|text| text.parse().ok())
                .filter(|revision| *revision < u64::MAX / 4)
                .map(Revision),
            lost: data(LOST),
            accepted: annotations
                .and_then(|annotations| annotations.get(names.accept_store))
                .cloned(),
            read: config_map,
        }
    }
}

fn set_text(texts: &mut BTreeMap<String, String>, key: &str, text: Option<String>) {
    match text {
        Some(text) => drop(texts.insert(key.to_owned(), text)),
        None => drop(texts.remove(key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::role::NAMES;

    #[test]
    fn a_record_keeps_what_others_wrote_and_loses_what_is_settled() {
        let mut config_map = StoreRecord::new(&NAMES, "a", Revision(7)).into_config_map(&NAMES);
        config_map.data.get_or_insert_default().insert("note".into(), "mine".into());
        let annotations = config_map.metadata.annotations.get_or_insert_default();
        annotations.insert(NAMES.accept_store.into(), "a".into());
        annotations.insert("other".into(), "stays".into());
        let record = StoreRecord::from_config_map(&NAMES, config_map);
        assert_eq!((record.id.as_str(), record.revision), ("a", Some(Revision(7))));
        assert_eq!(record.accepted.as_deref(), Some("a"));
        let settled = StoreRecord { revision: Some(Revision(9)), accepted: None, ..record };
        let config_map = settled.into_config_map(&NAMES);
        let data = config_map.data.unwrap();
        assert_eq!((data["note"].as_str(), data["revision"].as_str()), ("mine", "9"));
        let annotations = config_map.metadata.annotations.unwrap();
        assert_eq!(annotations.keys().collect::<Vec<_>>(), ["other"]);
    }

    #[test]
    fn a_record_of_an_older_release_has_no_revision_and_nonsense_is_none() {
        for text in [None, Some("x"), Some("-1"), Some("18446744073709551615")] {
            let mut config_map = StoreRecord::new(&NAMES, "a", Revision(1)).into_config_map(&NAMES);
            set_text(config_map.data.get_or_insert_default(), REVISION, text.map(str::to_owned));
            assert_eq!(StoreRecord::from_config_map(&NAMES, config_map).revision, None, "{text:?}");
        }
    }
}
