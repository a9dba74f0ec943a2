//! Tools that work on a store without serving it: `navigator apiserver store …`.
//!
//! Owns the form of an export: JSON lines, a head with the store's id and revision, one line for
//! each object with the bytes as they are stored, and an end that counts them, so that an export
//! that was cut short is noticed. Opens a store at once or not at all.

mod export;
mod import;

use std::sync::Arc;

use futures::TryStreamExt as _;
use serde_json::Value;

pub use self::{
    export::{ExportReport, export_store},
    import::{ImportReport, import_store},
};
use super::{
    run::StoreConfig,
    storage::{self, Key, KeyPrefix, Storage, StoreEntry, embedded, etcd, kubernetes},
};
use crate::machinery::served_kinds::ServedKinds;

/// Why a tool did not do its task, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to open the embedded store")]
    Embedded(#[from] embedded::StoreOpenError),
    #[error("the connection to etcd cannot be set up")]
    Etcd(#[from] etcd::EtcdConnectError),
    #[error("the connection to the store cannot be set up")]
    Kubernetes(#[from] kubernetes::KubernetesConnectError),
    #[error("failed to read or write the store")]
    Store(#[from] storage::Error),
    #[error("there is no store of ours there, under this prefix of etcd or in this namespace")]
    NoStore,
    #[error("failed to write the export")]
    Write(#[source] std::io::Error),
    #[error("failed to read the export")]
    Read(#[source] std::io::Error),
    #[error("line {line} of the export: {why}")]
    Form { line: usize, why: String },
    #[error("the export ends after {objects} objects without its last line: it was cut short")]
    CutShort { objects: usize },
    #[error("the store holds objects already; import into an empty one")]
    NotEmpty,
    #[error(
        "the store {found:?} is there, the export is of {exported:?}; use another prefix or \
         namespace"
    )]
    OtherStore { found: String, exported: String },
    #[error(
        "{key:?} cannot be read: {why}. Nothing was imported; to leave out what cannot be read, \
         add --skip-unreadable"
    )]
    Unreadable { key: String, why: String },
    #[error("{0:?} names no object; write RESOURCE/NAMESPACE/NAME, for example pilots/db/a")]
    Name(String),
    #[error("there is no object {0:?} in the store")]
    NotFound(String),
    #[error(
        "{0:?} can be read; delete it with kubectl, so that what belongs to it goes, too. Where no \
         server can start, add --even-readable: its database then runs on without it"
    )]
    Readable(String),
}

/// What `navigator apiserver store identity` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    pub id: String,
    pub revision: u64,
    pub objects: usize,
    /// Key and reason of each object that cannot be read.
    pub unreadable: Vec<(String, String)>,
}

/// Returns what the store is, and which of its objects cannot be read.
pub async fn read_identity(
    store: &StoreConfig,
    scheme: &ServedKinds,
) -> Result<StoreIdentity, Error> {
    let store = open_store(store).await?;
    let status = store.store_status().await?;
    let id = status.id.ok_or(Error::NoStore)?;
    let mut identity =
        StoreIdentity { id, revision: status.revision.0, objects: 0, unreadable: Vec::new() };
    visit_objects(&*store, scheme.group().name, |entry| {
        identity.objects += 1;
        if let Some(reason) = unreadable_reason(scheme, &entry) {
            identity.unreadable.push((entry.key.as_str().to_owned(), reason));
        }
        Ok(())
    })
    .await?;
    Ok(identity)
}

/// Removes objects that cannot be read, for which every list that covers them fails; readable ones
/// only with `even_readable`. Returns the lines that an export has of them. Nothing is removed
/// unless each of them may be.
pub async fn remove_objects(
    store: &StoreConfig,
    scheme: &ServedKinds,
    names: &[String],
    even_readable: bool,
) -> Result<Vec<String>, Error> {
    let keys = names
        .iter()
        .map(|name| parse_key(scheme.group().name, name))
        .collect::<Result<Vec<_>, _>>()?;
    let store = open_store(store).await?;
    let mut entries = Vec::new();
    for key in keys {
        let Some(entry) = store.get(&key).await? else {
            return Err(Error::NotFound(key.as_str().to_owned()));
        };
        if !even_readable && unreadable_reason(scheme, &entry).is_none() {
            return Err(Error::Readable(key.as_str().to_owned()));
        }
        entries.push(entry);
    }
    let mut lines = Vec::new();
    for entry in entries {
        store.delete(&entry.key, entry.revision).await?;
        lines.push(export::format_line(&entry));
    }
    Ok(lines)
}

/// Returns the key of an object that people name by `<resource>/<namespace>/<name>`.
fn parse_key(group: &str, name: &str) -> Result<Key, Error> {
    let invalid_name = || Error::Name(name.to_owned());
    let path = name.strip_prefix(group).map_or(name, |rest| rest.trim_start_matches('/'));
    let [resource, namespace, object] = path.split('/').collect::<Vec<_>>()[..] else {
        return Err(invalid_name());
    };
    Key::new(group, resource, namespace, object).map_err(|_| invalid_name())
}

async fn open_store(store: &StoreConfig) -> Result<Arc<dyn Storage>, Error> {
    Ok(match store {
        StoreConfig::Embedded(path) => {
            let history = embedded::HistoryLimits::default();
            Arc::new(embedded::EmbeddedStore::open_present(path, history).await?)
        }
        StoreConfig::Etcd(config) => Arc::new(etcd::EtcdStore::connect(config).await?),
        StoreConfig::Kubernetes(config) => {
            Arc::new(kubernetes::KubernetesStore::connect(config).await?)
        }
    })
}

/// Visits every object as of one revision, and returns that revision. Keys come in order, unless
/// the store scans in none.
async fn visit_objects(
    store: &dyn Storage,
    group: &str,
    mut visit: impl FnMut(StoreEntry) -> Result<(), Error>,
) -> Result<storage::Revision, Error> {
    let group_prefix =
        KeyPrefix::for_group(group).expect("a served group is a valid part of a key");
    let mut pages = store.scan(&group_prefix, None);
    let mut revision = storage::Revision::default();
    while let Some(page) = pages.try_next().await? {
        revision = page.revision;
        page.entries.into_iter().try_for_each(&mut visit)?;
    }
    Ok(revision)
}

/// Returns why this binary cannot read an object; `None` if it can.
fn unreadable_reason(scheme: &ServedKinds, entry: &StoreEntry) -> Option<String> {
    let plural = entry.key.as_str().split('/').nth(1).unwrap_or_default();
    let Some(kind) = scheme.by_plural(plural) else {
        return Some(format!("this release knows no {plural}"));
    };
    let parsed_value =
        serde_json::from_slice::<Value>(&entry.value).map_err(|error| error.to_string());
    match parsed_value
        .and_then(|value| kind.decode_stored(value).map_err(|error| error.to_string()))
    {
        Ok(hub) if hub["metadata"].is_object() => None,
        Ok(_) => Some("it has no metadata".to_owned()),
        Err(reason) => Some(reason),
    }
}
