//! Fills a store from JSON lines.
//!
//! The import reads and checks everything before it writes anything. The new store has the id of
//! the exported one, so that the databases' objects stay its own, but other revisions. An API
//! server may serve it only after an administrator has accepted it.

use std::{io::BufRead, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::Value;

use super::{
    Error,
    export::{ExportEnd, ExportHead, ExportLine, FORMAT},
    unreadable_reason,
};
use crate::{
    apiserver::{
        run::StoreConfig,
        storage::{
            Key, KeyPrefix, PageRequest, Revision, Storage, StoreEntry, embedded, etcd, kubernetes,
        },
    },
    machinery::served_kinds::ServedKinds,
};

/// What was imported into a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportReport {
    /// The id of the store, which is the exported one's.
    pub id: String,
    pub objects: usize,
    /// Key and reason of each object that was left out.
    pub skipped: Vec<(String, String)>,
}

/// Fills an empty store with an export.
pub async fn import_store(
    store: &StoreConfig,
    scheme: &ServedKinds,
    input: impl BufRead,
    skip_unreadable: bool,
) -> Result<ImportReport, Error> {
    let group = scheme.group().name;
    let (head, mut entries) = read_export(group, input)?;
    let mut skipped = Vec::new();
    for entry in &entries {
        let Some(reason) = unreadable_reason(scheme, entry) else { continue };
        let key = entry.key.as_str().to_owned();
        if !skip_unreadable {
            return Err(Error::Unreadable { key, why: reason });
        }
        skipped.push((key, reason));
    }
    entries.retain(|entry| !skipped.iter().any(|(key, _)| key == entry.key.as_str()));
    let store = create_store(store, &head).await?;
    let group_prefix =
        KeyPrefix::for_group(group).expect("a served group is a valid part of a key");
    let request = PageRequest { limit: Some(1), ..PageRequest::default() };
    if !store.list(&group_prefix, request).await?.entries.is_empty() {
        return Err(Error::NotEmpty);
    }
    let objects = entries.len();
    for StoreEntry { key, value, revision: _ } in entries {
        store.create(&key, value).await?;
    }
    Ok(ImportReport { id: head.store, objects, skipped })
}

async fn create_store(store: &StoreConfig, head: &ExportHead) -> Result<Arc<dyn Storage>, Error> {
    let loss_reason = format!("it was imported from an export of revision {}", head.revision);
    Ok(match store {
        StoreConfig::Embedded(path) => Arc::new(
            embedded::EmbeddedStore::create_with_id(path, &head.store, &loss_reason).await?,
        ),
        StoreConfig::Etcd(config) => {
            let store = etcd::EtcdStore::connect(config).await?;
            let existing_id = store.establish_as(&head.store).await?;
            if existing_id != head.store {
                return Err(Error::OtherStore { found: existing_id, exported: head.store.clone() });
            }
            Arc::new(store)
        }
        StoreConfig::Kubernetes(config) => {
            let store = kubernetes::KubernetesStore::connect(config).await?;
            let existing_id = store.establish_as(&head.store, &loss_reason).await?;
            if existing_id != head.store {
                return Err(Error::OtherStore { found: existing_id, exported: head.store.clone() });
            }
            Arc::new(store)
        }
    })
}

fn read_export(group: &str, input: impl BufRead) -> Result<(ExportHead, Vec<StoreEntry>), Error> {
    let mut head = None;
    let mut entries = Vec::new();
    let mut has_end = false;
    for (number, line) in input.lines().enumerate() {
        let line = line.map_err(Error::Read)?;
        let format_error = |reason: String| Error::Form { line: number + 1, why: reason };
        if has_end {
            return Err(format_error("nothing follows the last line".to_owned()));
        }
        let json_error = |error: serde_json::Error| format_error(error.to_string());
        if head.is_none() {
            let header: ExportHead = serde_json::from_str(&line).map_err(json_error)?;
            if header.format != FORMAT {
                let message =
                    format!("its format is {}, this binary reads {FORMAT}", header.format);
                return Err(format_error(message));
            }
            head = Some(header);
            continue;
        }
        let fields: Value = serde_json::from_str(&line).map_err(json_error)?;
        if fields.get("key").is_none() {
            let ExportEnd { objects } = serde_json::from_str(&line).map_err(json_error)?;
            if objects != entries.len() {
                return Err(format_error(format!(
                    "{objects} objects were exported, not {}",
                    entries.len()
                )));
            }
            has_end = true;
            continue;
        }
        let ExportLine { key, revision, value, base64 } =
            serde_json::from_str(&line).map_err(json_error)?;
        let value = match (value, base64) {
            (Some(value), None) => Bytes::copy_from_slice(value.get().as_bytes()),
            (None, Some(base64)) => BASE64_STANDARD
                .decode(base64)
                .map_err(|error| format_error(error.to_string()))?
                .into(),
            _ => return Err(format_error("it has not one value".to_owned())),
        };
        let key = parse_key(group, &key)
            .ok_or_else(|| format_error(format!("{key:?} is no key of ours")))?;
        entries.push(StoreEntry { key, value, revision: Revision(revision) });
    }
    match head {
        Some(head) if has_end => Ok((head, entries)),
        _ => Err(Error::CutShort { objects: entries.len() }),
    }
}

fn parse_key(group: &str, key: &str) -> Option<Key> {
    let [key_group, resource, namespace, name] = key.split('/').collect::<Vec<_>>()[..] else {
        return None;
    };
    if key_group != group {
        return None;
    }
    Key::new(group, resource, namespace, name).ok()
}
