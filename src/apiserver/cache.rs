//! A cache for each resource: the store's objects, decoded, and their latest changes, for lists and
//! watches that need not ask the store.
//!
//! Owns the promise that a watcher sees each change of its range once, in revision order, or its
//! watch ends with an error and the client has to list again. Works with any store. Leaves
//! selectors, versions and encoding to the handlers; writes go to the store directly.
//!
//! A consistent read is [`Cache::catch_up`] followed by a read.

mod decoded_events;
mod encoded_object;
mod forms;
mod object;
mod pending_writes;
mod range;
mod reflector;
mod revision_lookup;
mod startup_history;
mod state;
mod tally;
mod watcher;

use std::{
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, Semaphore, watch},
    time,
};

pub use self::{
    encoded_object::{EncodedObject, EventType},
    object::{CachedObject, ObjectForm},
    pending_writes::PendingWriteGuard,
    range::KeyRange,
    state::CacheEvent,
    tally::{ConsistentReadOutcome, ListCounts, ReadTally, WAITS},
    watcher::CacheWatcher,
};
use self::{
    object::{DecodeResult, SharedDecodeResult},
    pending_writes::PendingWrites,
    range::WaitingWatchers,
    revision_lookup::RevisionLookup,
    startup_history::StartupHistory,
    state::CacheState,
};
use super::{
    account::{self, MemoryShare, MemoryUse},
    capacity::{CountedCache, StoredBytes},
    request_cost,
    status::ApiError,
    storage::{self, Key, KeyPrefix, PageRequest, Revision, Storage, StoreEntry},
};
use crate::runtime::{Shutdown, readiness};

/// Longest time that a read waits until the cache shows a revision: upstream's `blockTimeout`.
const FRESHNESS_WAIT: Duration = Duration::from_secs(3);

/// Copies of an object's bytes in memory while the store is read: the store's, and the decoded one.
const COPIES: usize = 2;

/// Longest time that a watch waits for the changes from before the cache was ready.
const PAST_WAIT: Duration = Duration::from_secs(10);

/// Why the cache did not answer a read or a watch.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The first list is not done, or earlier changes are not known yet: 429 with Retry-After.
    #[error("the cache is not ready")]
    NotReady,
    /// The cache does not show the revision in time: 504 `Timeout`, cause
    /// `ResourceVersionTooLarge`.
    #[error("revision {asked} is not here yet; the latest is {latest}")]
    NotYet { asked: Revision, latest: Revision },
    /// The changes after the revision are no longer kept: 410, the client has to list again.
    #[error("too old resource version: {asked} ({oldest})")]
    TooOld { asked: Revision, oldest: Revision },
    /// The store holds an object in the range in a form that this binary cannot read. Leaving it
    /// out would look like a deletion, so the whole read fails.
    #[error(
        "stored object {:?} cannot be read: {reason}; restore it, run a release that reads it, or \
         remove it with: navigator apiserver store forget {} (docs/store.md)",
        key.as_str(),
        key.name()
    )]
    Undecodable { key: Key, reason: String },
    #[error("failed to read the store")]
    Store(#[from] storage::Error),
    /// The read of the store is too large, or too many large reads are under way: 413 or 429.
    #[error(transparent)]
    NoRoom(#[from] ApiError),
}

/// Part of a resource, ordered by key, as of `revision`.
#[derive(Debug)]
pub struct CacheListing {
    pub objects: Vec<Arc<CachedObject>>,
    pub revision: Revision,
    /// More objects follow the last one of `objects`.
    pub more: bool,
    /// How many objects follow the last one, if the request asked to count them.
    pub remaining: usize,
    /// The objects were read from the store.
    pub from_store: bool,
    /// Memory taken from the request budget for the objects; none when the cache itself holds them.
    pub share: MemoryShare,
}

/// Sizes and counts of a cache, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct CacheStatistics {
    pub objects: usize,
    pub revision: u64,
    /// How often the whole resource was listed since the server began.
    pub lists: u64,
    /// Changes that the cache has taken in since the server began.
    pub changes: u64,
}

/// Decodes stored bytes, or says why they cannot be read.
pub type ObjectDecoder = dyn Fn(&[u8]) -> Result<ObjectForm, String> + Send + Sync;

/// The cache of one resource.
pub struct Cache {
    storage: Arc<dyn Storage>,
    prefix: KeyPrefix,
    decode: Box<ObjectDecoder>,
    /// Semaphore of the server's caches: its holder reads one page of a first list into memory.
    turns: Arc<Semaphore>,
    state: RwLock<CacheState>,
    /// Set while a watch of the store is open, so that the cache sees the store's writes.
    follows: AtomicBool,
    /// History before the latest list, while its changes are still to be learned; then `None`.
    unknown: watch::Sender<Option<Arc<StartupHistory>>>,
    /// Notified when a watch waits for the changes of that history.
    past_asked: Notify,
    /// Asks the store for its latest revision, once for concurrent readers.
    now: RevisionLookup,
    /// Latest revision that `state` shows, for readers that wait for a revision.
    revision: watch::Sender<Revision>,
    /// Watchers by their range, to be woken by changes.
    waiting: WaitingWatchers,
    /// Objects that the registry is writing and that the store's watch has not shown yet.
    offers: PendingWrites,
    tally: ReadTally,
}

impl CountedCache for Cache {
    fn revision(&self) -> Revision {
        self.revision()
    }

    fn visit_stored_bytes(&self, visitor: &mut dyn FnMut(&StoredBytes)) {
        visitor(self.read_state().stored_bytes());
    }
}

impl Cache {
    pub fn new(
        storage: Arc<dyn Storage>,
        prefix: KeyPrefix,
        decode: Box<ObjectDecoder>,
        turns: Arc<Semaphore>,
    ) -> Arc<Self> {
        Arc::new(Self {
            storage,
            prefix,
            decode,
            turns,
            state: RwLock::default(),
            follows: AtomicBool::new(false),
            unknown: watch::Sender::default(),
            past_asked: Notify::new(),
            now: RevisionLookup::default(),
            revision: watch::Sender::default(),
            waiting: WaitingWatchers::default(),
            offers: PendingWrites::default(),
            tally: ReadTally::default(),
        })
    }

    /// Keeps the cache up to date until shutdown. Drops `ready` after the first list.
    pub async fn run(
        self: Arc<Self>,
        shutdown: Shutdown,
        readiness_handle: readiness::ReadinessHandle,
    ) {
        tokio::select! {
            () = shutdown.triggered() => {}
            // Dropped half-way, `run_reflector` leaves the state between two events: a state the
            // store had.
            () = reflector::run_reflector(&self, readiness_handle) => {}
            () = startup_history::learn_histories(&self) => {}
        }
    }

    pub fn is_ready(&self) -> bool {
        self.read_state().is_ready()
    }

    /// The cache's numbers, for metrics.
    pub fn statistics(&self) -> CacheStatistics {
        let state = self.read_state();
        let (lists, changes) = state.version();
        CacheStatistics { objects: state.len(), revision: state.revision().0, lists, changes }
    }

    /// Returns the counters of how the cache was read. A handler adds what became of a list's
    /// objects.
    pub fn tally(&self) -> &ReadTally {
        &self.tally
    }

    /// Returns the latest revision that the cache shows.
    pub fn revision(&self) -> Revision {
        *self.revision.borrow()
    }

    /// Returns the object under `key`, at the revision `at_least` or later.
    pub async fn get(
        &self,
        key: &Key,
        at_least: Option<Revision>,
    ) -> Result<Option<Arc<CachedObject>>, Error> {
        self.wait_for(at_least).await?;
        self.read_state().get(key)
    }

    /// Returns the object as the cache shows it now. `None` also when it cannot be read, and while
    /// no watch of the store is open.
    pub fn cached_object(&self, key: &Key) -> Option<Arc<CachedObject>> {
        if !self.follows.load(Ordering::SeqCst) {
            return None;
        }
        self.read_state().get(key).ok().flatten()
    }

    /// Returns the keys of a range as the cache shows it now, those of unreadable objects included.
    pub fn keys(&self, range: &KeyPrefix) -> Vec<Key> {
        self.read_state().keys(range)
    }

    /// Returns the object as the store has it now. The outer `None` means that the cache is behind
    /// or follows no watch, and that the store has to be asked.
    pub async fn latest_object(
        &self,
        key: &Key,
    ) -> Result<Option<Option<Arc<CachedObject>>>, Error> {
        if !self.follows.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let latest = self.now.latest_revision(&*self.storage).await?;
        let state = self.read_state();
        if state.is_ready() && state.revision() >= latest {
            return state.get(key).map(Some);
        }
        Ok(None)
    }

    /// Lists the objects of a range, at the revision `at_least` or later, without paging.
    pub async fn list(
        &self,
        range: &KeyPrefix,
        at_least: Option<Revision>,
    ) -> Result<CacheListing, Error> {
        self.wait_for(at_least).await?;
        self.read_state().list(range)
    }

    /// Lists a range that holds only `key`, at the revision `at_least` or later.
    pub async fn list_one(
        &self,
        key: &Key,
        at_least: Option<Revision>,
    ) -> Result<CacheListing, Error> {
        self.wait_for(at_least).await?;
        self.read_state().list_one(key)
    }

    /// Returns a page of the latest state or of an exact revision. The cache answers as far back as
    /// its window reaches. The store answers for earlier revisions, and for revisions that the
    /// cache does not show yet; objects that the cache has at the same revision are not decoded
    /// again.
    pub async fn list_page(
        &self,
        range: &KeyPrefix,
        request: PageRequest,
    ) -> Result<CacheListing, Error> {
        let cache_revision = match request.at {
            None => self.catch_up().await.ok(),
            Some(revision) => Some(revision).filter(|_| self.follows.load(Ordering::SeqCst)),
        };
        if let Some(page) = cache_revision.and_then(|revision| {
            let state = self.read_state();
            state.list_page(range, request.at.map_or(state.revision(), |_| revision), &request)
        }) {
            if request.at.is_none() {
                self.tally.count_consistent_read(ConsistentReadOutcome::Cache);
            }
            return Ok(page);
        }
        let is_latest = request.at.is_none();
        let estimated_bytes = self.read_state().estimate_read_bytes(range, &request);
        let mut share = account::acquire_memory(MemoryUse::Objects, estimated_bytes).await?;
        let page = self.storage.list(range, request).await;
        if is_latest {
            let outcome = if page.is_ok() {
                ConsistentReadOutcome::Store
            } else {
                ConsistentReadOutcome::StoreFailed
            };
            self.tally.count_consistent_read(outcome);
        }
        let page = page?;
        let cached_objects: Vec<_> = {
            let state = self.read_state();
            page.entries
                .iter()
                .map(|entry| state.get_at_revision(&entry.key, entry.revision))
                .collect()
        };
        let bytes: usize = page.entries.iter().map(|entry| entry.value.len()).sum();
        // Objects at an earlier revision may have been larger than they are now.
        let missing_bytes = (COPIES * bytes).saturating_sub(estimated_bytes);
        if missing_bytes > 0 && !share.try_grow(MemoryUse::Objects, missing_bytes) {
            let text = "Too many large lists of the past, please try again later.";
            return Err(ApiError::too_many_requests(text, 1).into());
        }
        share.shrink(COPIES * bytes);
        let objects =
            page.entries.iter().zip(cached_objects).map(
                |(entry, cached_object)| match cached_object {
                    Some(object) => Ok(object),
                    None => self
                        .decode(entry, EventType::Added)
                        .map(Arc::new)
                        .map_err(|reason| Error::Undecodable { key: entry.key.clone(), reason }),
                },
            );
        let objects = request_cost::run_blocking(bytes, || objects.collect::<Result<_, _>>())?;
        let (revision, has_more, remaining) = (page.revision, page.more, page.remaining);
        Ok(CacheListing { objects, revision, more: has_more, remaining, from_store: true, share })
    }

    /// Starts a watch of the changes of a range after the revision `from`.
    pub async fn watch(
        self: &Arc<Self>,
        range: KeyRange,
        from: Revision,
    ) -> Result<CacheWatcher, Error> {
        self.wait_until(from).await?;
        self.wait_for_past(from).await?;
        CacheWatcher::start(Arc::clone(self), range, from)
    }

    /// Waits until the changes after `from` are known, if the cache is still learning them.
    async fn wait_for_past(&self, from: Revision) -> Result<(), Error> {
        let mut unknown_history = self.unknown.subscribe();
        if self.read_state().oldest_revision() <= from {
            return Ok(());
        }
        self.past_asked.notify_one();
        match time::timeout(PAST_WAIT, unknown_history.wait_for(Option::is_none)).await {
            // The sender cannot be dropped: `self` holds it.
            Ok(_) => Ok(()),
            Err(_) => Err(Error::NotReady),
        }
    }

    /// Waits until the cache shows the writes acknowledged so far, and returns the store's
    /// revision.
    pub async fn catch_up(&self) -> Result<Revision, Error> {
        let latest = self.now.latest_revision(&*self.storage).await?;
        self.wait_until_shown(latest).await?;
        Ok(latest)
    }

    /// Waits until the cache shows the revision `asked`, for at most `FRESHNESS_WAIT`. Fails at
    /// once if the store has not reached that revision either: no client can have seen it.
    pub async fn wait_until(&self, target: Revision) -> Result<(), Error> {
        if self.is_ready() && self.revision() < target {
            match self.storage.current_revision().await {
                Ok(latest) if latest < target => {
                    return Err(Error::NotYet { asked: target, latest });
                }
                Err(error @ storage::Error::Replaced { .. }) => return Err(error.into()),
                // A store that is merely unreachable may have reached the revision before.
                Ok(_) | Err(_) => {}
            }
        }
        self.wait_until_shown(target).await
    }

    /// Waits until the cache shows `asked`, a revision that the store has reached.
    async fn wait_until_shown(&self, target: Revision) -> Result<(), Error> {
        if !self.is_ready() {
            return Err(Error::NotReady);
        }
        self.check_store_identity().await?;
        let started_at = time::Instant::now();
        let wait_result = self.wait_here(target).await;
        if target > Revision(0) {
            self.tally.observe_wait(started_at.elapsed());
        }
        wait_result
    }

    async fn wait_here(&self, target: Revision) -> Result<(), Error> {
        let mut revision = self.revision.subscribe();
        if *revision.borrow() >= target {
            return Ok(());
        }
        self.storage.request_progress(target);
        match time::timeout(
            FRESHNESS_WAIT,
            revision.wait_for(|cached_revision| *cached_revision >= target),
        )
        .await
        {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Error::NotYet { asked: target, latest: self.revision() }),
        }
    }

    /// Fails if the store was replaced. While no watch is open, the cache does not notice that by
    /// itself. A store that is merely unreachable is no error: what the cache shows was true.
    async fn check_store_identity(&self) -> Result<(), Error> {
        if self.follows.load(Ordering::SeqCst) {
            return Ok(());
        }
        match self.storage.current_revision().await {
            Err(error @ storage::Error::Replaced { .. }) => Err(error.into()),
            _ => Ok(()),
        }
    }

    async fn wait_for(&self, at_least: Option<Revision>) -> Result<(), Error> {
        self.wait_until(at_least.unwrap_or_default()).await
    }

    /// Announces the object that the registry is about to write as the bytes `stored`, so that the
    /// cache need not decode them when the store's watch shows them.
    pub fn announce_write(
        &self,
        key: &Key,
        form: ObjectForm,
        stored: Bytes,
        event: EventType,
    ) -> PendingWriteGuard<'_> {
        self.offers.add(key, form, stored, event, self.revision())
    }

    /// Returns the object that was offered, now that it is written as `revision`. Absent when the
    /// store's watch took the offer for another write of the same bytes.
    pub fn finish_write(
        &self,
        pending_write: PendingWriteGuard<'_>,
        revision: Revision,
    ) -> Option<Arc<CachedObject>> {
        pending_write.confirm_write(revision, self.revision() >= revision)
    }

    /// Returns the object of a store entry: the cache's if it has the same revision, else a decoded
    /// one.
    pub fn object_for_entry(&self, entry: &StoreEntry) -> Result<Arc<CachedObject>, Error> {
        if let Some(object) = self.read_state().get_at_revision(&entry.key, entry.revision) {
            return Ok(object);
        }
        self.decode(entry, EventType::Added)
            .map(Arc::new)
            .map_err(|reason| Error::Undecodable { key: entry.key.clone(), reason })
    }

    fn decode(&self, entry: &StoreEntry, event: EventType) -> DecodeResult {
        let form = (self.decode)(&entry.value)?;
        Ok(CachedObject::new(entry.key.clone(), form, entry.revision, event))
    }

    fn read_entry(&self, entry: &StoreEntry, event: EventType) -> SharedDecodeResult {
        let announced_object = self.offers.take_object(entry);
        let decode_entry = || self.decode(entry, event);
        match announced_object {
            Some(announced_object) => {
                debug_assert_eq!(
                    Ok(announced_object.json()),
                    decode_entry().as_ref().map(CachedObject::json)
                );
                Ok(announced_object)
            }
            None => decode_entry().map(Arc::new),
        }
    }

    fn read_state(&self) -> RwLockReadGuard<'_, CacheState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, then wakes readers and watchers that wait for the change.
    fn update_state(&self, change: impl FnOnce(&mut CacheState)) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let (lists, changes) = state.version();
        change(&mut state);
        let revision = state.revision();
        let new_keys =
            (state.list_count() == lists).then(|| state.changed_since(changes)).flatten();
        let new_keys: Option<Vec<Key>> = new_keys.map(|keys| keys.cloned().collect());
        drop(state);
        self.revision.send_replace(revision);
        match new_keys {
            Some(keys) => self.waiting.wake_watchers(keys.iter()),
            None => self.waiting.wake_all(),
        }
    }
}
