//! Lists and events of a store, decoded for the cache's state.

use futures::TryStreamExt as _;
use tokio::task;

use super::{
    super::storage::{self, Key, Revision, StoreEntry, StoreEvent},
    Cache, EventType,
    object::SharedDecodeResult,
    state::CacheState,
};

/// Lists a resource, as of now or of the revision `at_revision`, page by page. Caches take turns:
/// one page at a time is in memory, in addition to the objects that are made of it.
pub(super) async fn list_resource(
    cache: &Cache,
    at_revision: Option<Revision>,
    decode: impl Fn(&StoreEntry) -> SharedDecodeResult,
) -> Result<CacheState, storage::Error> {
    let mut decoded_entries = Vec::new();
    let mut pages = cache.storage.scan(&cache.prefix, at_revision);
    let mut revision = at_revision.unwrap_or_default();
    loop {
        let permit = cache.turns.acquire().await;
        let Some(page) = pages.try_next().await? else { break };
        revision = page.revision;
        for entry in page.entries {
            let decode_result = decode(&entry);
            decoded_entries.push((entry.key, decode_result));
            // Decoding a page takes long, and requests wait meanwhile.
            task::yield_now().await;
        }
        drop(permit);
    }
    Ok(CacheState::from_list(decoded_entries, revision))
}

/// An event of the store with its object decoded, so that applying it under the lock is quick.
pub(super) enum DecodedEvent {
    Put { key: Key, reading: SharedDecodeResult, revision: Revision },
    Delete { key: Key, revision: Revision },
    Progress(Revision),
}

impl DecodedEvent {
    pub(super) fn from_store_event(
        event: StoreEvent,
        decode: impl Fn(&StoreEntry, EventType) -> SharedDecodeResult,
    ) -> Self {
        match event {
            StoreEvent::Put { entry, created } => {
                let event_type = if created { EventType::Added } else { EventType::Modified };
                let decode_result = decode(&entry, event_type);
                Self::Put { key: entry.key, reading: decode_result, revision: entry.revision }
            }
            StoreEvent::Delete { key, revision } => Self::Delete { key, revision },
            StoreEvent::Progress(revision) => Self::Progress(revision),
        }
    }

    pub(super) fn apply(self, state: &mut CacheState) {
        match self {
            Self::Put { key, reading, revision } => state.put(key, reading, revision),
            Self::Delete { key, revision } => state.delete(key, revision),
            Self::Progress(revision) => state.advance_revision(revision),
        }
    }
}

/// Tells whether a watch cannot go on from where it ended, so that the resource has to be listed
/// again. A revision in the future means that the store was put back to an earlier state.
pub(super) fn requires_relist(error: &storage::Error) -> bool {
    match error {
        storage::Error::Compacted { .. }
        | storage::Error::FutureRevision { .. }
        | storage::Error::Replaced { .. }
        | storage::Error::Corrupt { .. } => true,
        storage::Error::Unavailable { .. }
        | storage::Error::NotFound(_)
        | storage::Error::Exists(_)
        | storage::Error::Conflict { .. }
        | storage::Error::TooLarge { .. } => false,
    }
}

pub(super) fn watch_ended_error() -> storage::Error {
    storage::Error::Unavailable { source: "the watch ended".into() }
}
