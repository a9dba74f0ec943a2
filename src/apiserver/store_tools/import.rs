//! Fills a store from JSON lines.
//!
//! Everything is read and judged before anything is written. The new store has the id of the
//! exported one, so that the databases' objects stay its own, but other revisions; an API server
//! may serve it only once a person has accepted it.

use std::{io::BufRead, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use serde_json::Value;

use super::{
    Error,
    export::{ExportEnd, ExportHead, ExportLine, FORMAT},
    unreadable,
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
pub async fn import(
    store: &StoreConfig,
    scheme: &ServedKinds,
    input: impl BufRead,
    skip_unreadable: bool,
) -> Result<ImportReport, Error> {
    let group = scheme.group().name;
    let (head, mut entries) = read(group, input)?;
    let mut skipped = Vec::new();
    for entry in &entries {
        let Some(why) = unreadable(scheme, entry) else { continue };
        let key = entry.key.as_str().to_owned();
        if !skip_unreadable {
            return Err(Error::Unreadable { key, why });
        }
        skipped.push((key, why));
    }
    entries.retain(|entry| !skipped.iter().any(|(key, _)| key == entry.key.as_str()));
    let store = make(store, &head).await?;
    let all = KeyPrefix::group(group).expect("a served group is a valid part of a key");
    let one = PageRequest { limit: Some(1), ..PageRequest::default() };
    if !store.list(&all, one).await?.entries.is_empty() {
        return Err(Error::NotEmpty);
    }
    let objects = entries.len();
    for StoreEntry { key, value, revision: _ } in entries {
        store.create(&key, value).await?;
    }
    Ok(ImportReport { id: head.store, objects, skipped })
}

async fn make(store: &StoreConfig, head: &ExportHead) -> Result<Arc<dyn Storage>, Error> {
    let why = format!("it was imported from an export of revision {}", head.revision);
    Ok(match store {
        StoreConfig::Embedded(path) => {
            Arc::new(embedded::EmbeddedStore::make(path, &head.store, &why).await?)
        }
        StoreConfig::Etcd(config) => {
            let store = etcd::EtcdStore::connect(config).await?;
            let found = store.establish_as(&head.store).await?;
            if found != head.store {
                return Err(Error::OtherStore { found, exported: head.store.clone() });
            }
            Arc::new(store)
        }
        StoreConfig::Kubernetes(config) => {
            let store = kubernetes::KubernetesStore::connect(config).await?;
            let found = store.establish_as(&head.store, &why).await?;
            if found != head.store {
                return Err(Error::OtherStore { found, exported: head.store.clone() });
            }
            Arc::new(store)
        }
    })
}

fn read(group: &str, input: impl BufRead) -> Result<(ExportHead, Vec<StoreEntry>), Error> {
    let mut head = None;
    let mut entries = Vec::new();
    let mut ended = false;
    for (number, line) in input.lines().enumerate() {
        let line = line.map_err(Error::Read)?;
        let form = |why: String| Error::Form { line: number + 1, why };
        if ended {
            return Err(form("nothing follows the last line".to_owned()));
        }
        let wrong = |error: serde_json::Error| form(error.to_string());
        if head.is_none() {
            let found: ExportHead = serde_json::from_str(&line).map_err(wrong)?;
            if found.format != FORMAT {
                let why = format!("its format is {}, this binary reads {FORMAT}", found.format);
                return Err(form(why));
            }
            head = Some(found);
            continue;
        }
        let fields: Value = serde_json::from_str(&line).map_err(wrong)?;
        if fields.get("key").is_none() {
            let ExportEnd { objects } = serde_json::from_str(&line).map_err(wrong)?;
            if objects != entries.len() {
                return Err(form(format!(
                    "{objects} objects were exported, not {}",
                    entries.len()
                )));
            }
            ended = true;
            continue;
        }
        let ExportLine { key, revision, value, base64 } =
            serde_json::from_str(&line).map_err(wrong)?;
        let value = match (value, base64) {
            (Some(value), None) => Bytes::copy_from_slice(value.get().as_bytes()),
            (None, Some(base64)) => {
                BASE64_STANDARD.decode(base64).map_err(|error| form(error.to_string()))?.into()
            }
            _ => return Err(form("it has not one value".to_owned())),
        };
        let key = parse(group, &key).ok_or_else(|| form(format!("{key:?} is no key of ours")))?;
        entries.push(StoreEntry { key, value, revision: Revision(revision) });
    }
    match head {
        Some(head) if ended => Ok((head, entries)),
        _ => Err(Error::CutShort { objects: entries.len() }),
    }
}

fn parse(group: &str, key: &str) -> Option<Key> {
    let [found, resource, namespace, name] = key.split('/').collect::<Vec<_>>()[..] else {
        return None;
    };
    if found != group {
        return None;
    }
    Key::new(group, resource, namespace, name).ok()
}
