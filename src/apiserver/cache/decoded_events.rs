//! Lists and events of a store, decoded for the cache's state.

use futures::TryStreamExt as _;
use tokio::task;

use super::{
    super::storage::{self, Key, Revision, StoreEntry, StoreEvent},
    Cache, EventType,
    object::SharedDecodeResult,
    state::CacheState,
};

/// Lists a resource, as of now or of the revision `at`, page by page. Caches take turns: one page
/// at a time is in memory beside the objects that are made of it.
pub(super) async fn list(
    cache: &Cache,
    at: Option<Revision>,
    reading: impl Fn(&StoreEntry) -> SharedDecodeResult,
) -> Result<CacheState, storage::Error> {
    let mut read = Vec::new();
    let mut pages = cache.storage.scan(&cache.prefix, at);
    let mut revision = at.unwrap_or_default();
    loop {
        let turn = cache.turns.acquire().await;
        let Some(page) = pages.try_next().await? else { break };
        revision = page.revision;
        for entry in page.entries {
            let reading = reading(&entry);
            read.push((entry.key, reading));
            // Decoding a page takes long, and requests wait meanwhile.
            task::yield_now().await;
        }
        drop(turn);
    }
    Ok(CacheState::listed(read, revision))
}

/// An event of the store with its object decoded, so that applying it under the lock is quick.
pub(super) enum DecodedEvent {
    Put { key: Key, reading: SharedDecodeResult, revision: Revision },
    Delete { key: Key, revision: Revision },
    Progress(Revision),
}

impl DecodedEvent {
    pub(super) fn of(
        event: StoreEvent,
        reading: impl Fn(&StoreEntry, EventType) -> SharedDecodeResult,
    ) -> Self {
        match event {
            StoreEvent::Put { entry, created } => {
                let happened = if created { EventType::Added } else { EventType::Modified };
                let reading = reading(&entry, happened);
                Self::Put { key: entry.key, reading, revision: entry.revision }
            }
            StoreEvent::Delete { key, revision } => Self::Delete { key, revision },
            StoreEvent::Progress(revision) => Self::Progress(revision),
        }
    }

    pub(super) fn apply(self, state: &mut CacheState) {
        match self {
            Self::Put { key, reading, revision } => state.put(key, reading, revision),
            Self::Delete { key, revision } => state.delete(key, revision),
            Self::Progress(revision) => state.progress(revision),
        }
    }
}

/// Tells whether a watch cannot go on from where it ended, so that the resource has to be listed
/// again. A revision in the future means that the store was put back to an earlier state.
pub(super) fn starts_over(error: &storage::Error) -> bool {
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

pub(super) fn ended() -> storage::Error {
    storage::Error::Unavailable { source: "the watch ended".into() }
}
