//! A store in memory without threads of its own, for tests that stop the clock: nothing happens beside
//! the runtime whose clock it is.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use futures::{future::BoxFuture, stream};
use navigator::apiserver::storage::{
    Error, Key, KeyPrefix, PageRequest, Result, Revision, Storage, StoreEntry, StoreEvent,
    StorePage, WatchStream,
};
use tokio::sync::watch;

/// Its objects are created, and never change.
pub(super) struct MemoryStore {
    created: watch::Sender<Vec<StoreEntry>>,
}

/// The revision of an empty store.
const EMPTY: Revision = Revision(1);

fn latest(created: &[StoreEntry]) -> Revision {
    created.last().map_or(EMPTY, |entry| entry.revision)
}

fn refused<T: Send + 'static>() -> BoxFuture<'static, Result<T>> {
    let source = "objects of this store do not change".into();
    Box::pin(std::future::ready(Err(Error::Unavailable { source })))
}

impl MemoryStore {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { created: watch::Sender::default() })
    }
}

impl Storage for MemoryStore {
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<StoreEntry>>> {
        let found = self.created.borrow().iter().find(|entry| entry.key == *key).cloned();
        Box::pin(std::future::ready(Ok(found)))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        request: PageRequest,
    ) -> BoxFuture<'a, Result<StorePage>> {
        let created = self.created.borrow();
        let revision = request.at.unwrap_or_else(|| latest(&created));
        let shown = created.iter().filter(|entry| {
            let is_after = request.after.as_ref().is_none_or(|after| entry.key > *after);
            prefix.contains(&entry.key) && entry.revision <= revision && is_after
        });
        let entries: BTreeMap<_, _> = shown.map(|entry| (entry.key.clone(), entry)).collect();
        let entries = entries.into_values().cloned().collect();
        let page = StorePage { entries, revision, more: false, remaining: 0 };
        Box::pin(std::future::ready(Ok(page)))
    }

    fn create<'a>(&'a self, key: &'a Key, value: Bytes) -> BoxFuture<'a, Result<Revision>> {
        let revision = Revision(latest(&self.created.borrow()).0 + 1);
        let entry = StoreEntry { key: key.clone(), value, revision };
        self.created.send_modify(|created| created.push(entry));
        Box::pin(std::future::ready(Ok(revision)))
    }

    fn update<'a>(&'a self, _: &'a Key, _: Revision, _: Bytes) -> BoxFuture<'a, Result<Revision>> {
        refused()
    }

    fn delete<'a>(&'a self, _: &'a Key, _: Revision) -> BoxFuture<'a, Result<Revision>> {
        refused()
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        from: Revision,
    ) -> BoxFuture<'a, Result<WatchStream>> {
        let start = (self.created.subscribe(), prefix.clone(), from);
        let events = stream::unfold(start, |(mut created, prefix, seen)| async move {
            let is_news = |created: &Vec<StoreEntry>| latest(created) > seen;
            let next = created.wait_for(is_news).await.ok()?;
            let entry = next.iter().find(|entry| entry.revision > seen)?.clone();
            drop(next);
            let revision = entry.revision;
            let event = if prefix.contains(&entry.key) {
                StoreEvent::Put { entry, created: true }
            } else {
                StoreEvent::Progress(revision)
            };
            Some((Ok(event), (created, prefix, revision)))
        });
        Box::pin(std::future::ready(Ok(Box::pin(events) as WatchStream)))
    }

    fn compact(&self, _: Revision) -> BoxFuture<'_, Result<()>> {
        refused()
    }

    fn current_revision(&self) -> BoxFuture<'_, Result<Revision>> {
        let revision = latest(&self.created.borrow());
        Box::pin(std::future::ready(Ok(revision)))
    }

    fn store_id(&self) -> BoxFuture<'_, Result<String>> {
        Box::pin(std::future::ready(Ok("in-memory".to_owned())))
    }

    fn advance_revision(&self, _: Revision) -> BoxFuture<'_, Result<Revision>> {
        refused()
    }
}
