//! State of a cache: the objects, and a window of the latest changes.
//!
//! Does no I/O: applies what the feed reads, and answers readers. The objects are those of
//! `revision`, and the window holds the changes after `oldest`, except deletions of unreadable
//! objects.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
};

use super::{
    super::{
        account::MemoryShare,
        capacity::{CapacityBounds, StoredBytes},
        storage::{Key, KeyPrefix, PageRequest, Revision},
    },
    CacheListing, CachedObject, Error,
    object::SharedDecodeResult,
    range::KeyRange,
};

/// Returns how many bytes of changes are kept for watchers. A hundred pilots that write a heartbeat
/// of 3 KiB every 10 s fill 4 MiB in two minutes.
pub(super) fn window_bytes() -> usize {
    CapacityBounds::for_process().window
}

/// One change of one object.
#[derive(Clone, Debug)]
pub enum CacheEvent {
    Put {
        object: Arc<CachedObject>,
        /// Absent when the object was created.
        previous: Option<Arc<CachedObject>>,
    },
    Deleted {
        /// The object's last state, at the revision of the deletion.
        object: Arc<CachedObject>,
        /// The object's last state as it was stored.
        previous: Arc<CachedObject>,
    },
}

impl CacheEvent {
    pub fn object(&self) -> &Arc<CachedObject> {
        match self {
            Self::Put { object, .. } | Self::Deleted { object, .. } => object,
        }
    }

    /// Returns the bytes that this event alone may keep in memory: the cache has the present
    /// objects anyway.
    fn size(&self) -> usize {
        match self {
            Self::Put { object, previous } => {
                object.size().max(previous.as_ref().map_or(0, |previous| previous.size()))
            }
            Self::Deleted { object, previous } => object.size() + previous.size(),
        }
    }
}

/// One change in the window.
struct WindowEntry {
    key: Key,
    revision: Revision,
    size: usize,
    /// The change, or the reason why its object cannot be read.
    event: Result<CacheEvent, String>,
}

#[derive(Default)]
pub(super) struct CacheState {
    objects: BTreeMap<Key, Arc<CachedObject>>,
    /// Bytes by which the objects count against the storage capacity, in all and by namespace.
    sums: StoredBytes,
    /// Reasons why objects cannot be read, by key.
    broken: BTreeMap<Key, String>,
    window: VecDeque<WindowEntry>,
    /// Bytes of the objects in the window.
    kept: usize,
    oldest: Revision,
    revision: Revision,
    /// How often the resource was listed. A watcher from before a list cannot know what it missed.
    lists: u64,
    /// How many changes were recorded so far.
    changes: u64,
}

/// The next changes for a watcher.
pub(super) struct ChangeBatch {
    pub events: Vec<CacheEvent>,
    /// Every change up to this revision was looked at.
    pub reached: Revision,
    /// The window holds later changes, which may be of the range or not.
    pub more: bool,
    /// Error that ends the watch after `events`.
    pub failure: Option<Error>,
}

impl CacheState {
    pub(super) fn is_ready(&self) -> bool {
        self.lists > 0
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the revision after which the changes are known.
    pub(super) fn oldest_revision(&self) -> Revision {
        self.oldest
    }

    pub(super) fn objects(&self) -> &BTreeMap<Key, Arc<CachedObject>> {
        &self.objects
    }

    pub(super) fn stored_bytes(&self) -> &StoredBytes {
        &self.sums
    }

    fn insert(&mut self, key: Key, object: Arc<CachedObject>) -> Option<Arc<CachedObject>> {
        self.sums.add(&key, object.counted_bytes());
        let previous = self.objects.insert(key, object)?;
        self.sums.remove(&previous.key, previous.counted_bytes());
        Some(previous)
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<CachedObject>> {
        let object = self.objects.remove(key)?;
        self.sums.remove(key, object.counted_bytes());
        Some(object)
    }

    pub(super) fn list_count(&self) -> u64 {
        self.lists
    }

    /// Returns the counts of lists and changes: they differ when watchers have something to look
    /// at.
    pub(super) fn version(&self) -> (u64, u64) {
        (self.lists, self.changes)
    }

    pub(super) fn get(&self, key: &Key) -> Result<Option<Arc<CachedObject>>, Error> {
        match self.broken.get(key) {
            Some(reason) => Err(Error::Undecodable { key: key.clone(), reason: reason.clone() }),
            None => Ok(self.objects.get(key).cloned()),
        }
    }

    /// Returns the object under `key`, if it is the one at `revision`.
    pub(super) fn get_at_revision(
        &self,
        key: &Key,
        revision: Revision,
    ) -> Option<Arc<CachedObject>> {
        self.objects.get(key).filter(|object| object.revision == revision).cloned()
    }

    /// Lists a range that can hold only the object under `key`.
    pub(super) fn list_one(&self, key: &Key) -> Result<CacheListing, Error> {
        let objects = self.get(key)?.into_iter().collect();
        Ok(CacheListing {
            objects,
            revision: self.revision,
            more: false,
            remaining: 0,
            from_store: false,
            share: MemoryShare::NONE,
        })
    }

    pub(super) fn keys(&self, range: &KeyPrefix) -> Vec<Key> {
        let (begin, end) = range.bounds();
        let broken = self.broken.keys().filter(|key| range.contains(key));
        self.objects.range(begin..end).map(|(key, _)| key).chain(broken).cloned().collect()
    }

    pub(super) fn list(&self, range: &KeyPrefix) -> Result<CacheListing, Error> {
        if let Some((key, reason)) = self.broken.iter().find(|(key, _)| range.contains(key)) {
            return Err(Error::Undecodable { key: key.clone(), reason: reason.clone() });
        }
        let (begin, end) = range.bounds();
        let objects = self.objects.range(begin..end).map(|(_, object)| Arc::clone(object));
        Ok(CacheListing {
            objects: objects.collect(),
            revision: self.revision,
            more: false,
            remaining: 0,
            from_store: false,
            share: MemoryShare::NONE,
        })
    }

    /// Estimates the bytes of memory that a read of the store will take: for the objects about what
    /// they take now, and for the changes since `request.at` what a store looks at.
    pub(super) fn estimate_read_bytes(&self, range: &KeyPrefix, request: &PageRequest) -> usize {
        /// Bytes that a store holds for a change that it looks at, and the most changes that it
        /// looks at.
        const CHANGE: u64 = 160;
        const CHANGES: u64 = 20_000;
        let (begin, end) = range.bounds();
        let objects = self.objects.range((Bound::Included(&begin), Bound::Excluded(&end)));
        let (count, bytes) = objects
            .fold((0, 0), |(count, bytes), (_, object)| (count + 1, bytes + object.json().len()));
        let page_length = request.limit.unwrap_or(count).min(count);
        let part = bytes / count.max(1) * page_length;
        let change_count =
            request.at.map_or(0, |revision| self.revision.0.saturating_sub(revision.0));
        let scanned_bytes =
            usize::try_from(change_count.min(CHANGES) * CHANGE).unwrap_or(usize::MAX);
        super::COPIES * part + scanned_bytes
    }

    /// Returns a page of a range as it was at the revision `at`, from the present objects and the
    /// changes since. Absent when the window does not reach back to `at`, or an object cannot be
    /// read.
    pub(super) fn list_page(
        &self,
        range: &KeyPrefix,
        revision: Revision,
        request: &PageRequest,
    ) -> Option<CacheListing> {
        if revision < self.oldest || revision > self.revision || !self.is_ready() {
            return None;
        }
        if self.broken.keys().any(|key| range.contains(key)) {
            return None;
        }
        // For a key that changed several times, the first change after `at` says what it was
        // before.
        let mut earlier_objects: BTreeMap<&Key, Option<&Arc<CachedObject>>> = BTreeMap::new();
        for change in self.window.iter().rev().take_while(|change| change.revision > revision) {
            if range.contains(&change.key) {
                let previous = match change.event.as_ref().ok()? {
                    CacheEvent::Put { previous, .. } => previous.as_ref(),
                    CacheEvent::Deleted { previous, .. } => Some(previous),
                };
                earlier_objects.insert(&change.key, previous);
            }
        }
        let (begin, end) = range.bounds();
        let mut rest = match &request.after {
            Some(last_key) if range.contains(last_key) => {
                (Bound::Excluded(last_key), Bound::Excluded(&end))
            }
            Some(_) => return None,
            None => (Bound::Included(&begin), Bound::Excluded(&end)),
        };
        let mut changed_objects = earlier_objects
            .range::<Key, _>(rest)
            .filter_map(|(key, previous)| Some((*key, (*previous)?)))
            .peekable();
        let mut unchanged_objects = self
            .objects
            .range::<Key, _>(rest)
            .filter(|(key, _)| !earlier_objects.contains_key(key))
            .peekable();
        let page_objects =
            std::iter::from_fn(|| match (changed_objects.peek(), unchanged_objects.peek()) {
                (Some((one, _)), Some((other, _))) if one < other => changed_objects.next(),
                (_, Some(_)) => unchanged_objects.next(),
                (_, None) => changed_objects.next(),
            });
        let limit = request.limit.unwrap_or(usize::MAX);
        let (mut objects, mut has_more) = (Vec::new(), false);
        for (key, object) in page_objects {
            if objects.len() == limit {
                has_more = true;
                break;
            }
            rest.0 = Bound::Excluded(key);
            objects.push(Arc::clone(object));
        }
        // Counting compares no keys: with many objects the keys lie all over the memory.
        let remaining = if has_more && request.count {
            let changed_keys = earlier_objects.range::<Key, _>(rest);
            let presence_counts = changed_keys.map(|(key, previous)| {
                (usize::from(previous.is_some()), usize::from(self.objects.contains_key(*key)))
            });
            let (removed_count, added_count) =
                presence_counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            self.objects.range::<Key, _>(rest).count() + removed_count - added_count
        } else {
            usize::from(has_more)
        };
        Some(CacheListing {
            objects,
            revision,
            more: has_more,
            remaining,
            from_store: false,
            share: MemoryShare::NONE,
        })
    }

    /// Creates the state that a list of the store showed, without any changes yet.
    pub(super) fn from_list(entries: Vec<(Key, SharedDecodeResult)>, revision: Revision) -> Self {
        let mut state = Self { oldest: revision, revision, ..Self::default() };
        for (key, reading) in entries {
            match reading {
                Ok(object) => drop(state.insert(key, object)),
                Err(reason) => drop(state.broken.insert(key, reason)),
            }
        }
        state
    }

    /// Replaces the state by `next`, from a new list. Ends the watchers from before.
    pub(super) fn start_over(&mut self, new_state: Self) {
        let (lists, changes) = (self.lists + 1, self.changes + new_state.changes);
        *self = Self { lists, changes, ..new_state };
    }

    /// Adds as many changes of `past` as still fit, if they lead to where the window begins.
    pub(super) fn prepend(&mut self, mut past: Self) {
        if past.revision != self.oldest {
            return;
        }
        while let Some(change) = past.window.pop_back() {
            if self.kept + change.size > window_bytes() {
                self.oldest = change.revision;
                return;
            }
            self.kept += change.size;
            self.window.push_front(change);
        }
        self.oldest = past.oldest;
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len() + self.broken.len()
    }

    pub(super) fn put(&mut self, key: Key, reading: SharedDecodeResult, revision: Revision) {
        let event = match reading {
            Ok(object) => {
                self.broken.remove(&key);
                let previous = self.insert(key.clone(), Arc::clone(&object));
                Ok(CacheEvent::Put { object, previous })
            }
            Err(reason) => {
                self.remove(&key);
                self.broken.insert(key.clone(), reason.clone());
                Err(reason)
            }
        };
        self.record_change(key, revision, event);
    }

    pub(super) fn delete(&mut self, key: Key, revision: Revision) {
        self.broken.remove(&key);
        // No watcher was shown an object that could not be read, so none misses its deletion.
        if let Some(object) = self.remove(&key) {
            let (previous, object) = (Arc::clone(&object), Arc::new(object.last_seen(revision)));
            self.record_change(key, revision, Ok(CacheEvent::Deleted { object, previous }));
        }
        self.advance_revision(revision);
    }

    pub(super) fn advance_revision(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
    }

    fn record_change(&mut self, key: Key, revision: Revision, event: Result<CacheEvent, String>) {
        self.advance_revision(revision);
        self.changes += 1;
        let size = event.as_ref().map_or(0, CacheEvent::size);
        self.kept += size;
        self.window.push_back(WindowEntry { key, revision, size, event });
        // The latest change stays, however large it is: its watchers are woken only after this.
        while self.kept > window_bytes()
            && self.window.len() > 1
            && let Some(oldest_change) = self.window.pop_front()
        {
            self.kept -= oldest_change.size;
            self.oldest = oldest_change.revision;
        }
    }

    /// Returns the keys of the changes after the first `changes`; none when the window lost some of
    /// them.
    pub(super) fn changed_since(&self, changes: u64) -> Option<impl Iterator<Item = &Key>> {
        let new_count = usize::try_from(self.changes - changes).ok()?;
        let start = self.window.len().checked_sub(new_count)?;
        Some(self.window.range(start..).map(|change| &change.key))
    }

    /// Returns whether the window may have lost a change of the range after `reached`. For one
    /// object that is known: each of its states records the one before. Otherwise each heartbeat
    /// among thousands would end the watch of a pilot that sees its own Pilot only.
    fn may_have_missed(&self, range: &KeyRange, reached_revision: Revision) -> bool {
        let KeyRange::One(key) = range else { return true };
        let is_seen = |object: &CachedObject| object.revision <= reached_revision;
        let previous_object = match self.window.iter().find(|change| change.key == *key) {
            Some(WindowEntry { event: Ok(CacheEvent::Put { previous, .. }), .. }) => {
                previous.as_ref()
            }
            Some(WindowEntry { event: Ok(CacheEvent::Deleted { previous, .. }), .. }) => {
                Some(previous)
            }
            Some(WindowEntry { event: Err(_), .. }) => None,
            None => self.objects.get(key),
        };
        !previous_object.is_some_and(|object| is_seen(object))
    }

    /// The changes of a range among the next `limit` changes after `reached`.
    pub(super) fn changes_after(
        &self,
        range: &KeyRange,
        reached_revision: Revision,
        lists: u64,
        limit: usize,
    ) -> Result<ChangeBatch, Error> {
        if lists != self.lists
            || (reached_revision < self.oldest && self.may_have_missed(range, reached_revision))
        {
            return Err(Error::TooOld { asked: reached_revision, oldest: self.oldest });
        }
        let reached_revision = reached_revision.max(self.oldest);
        let start = self.window.partition_point(|change| change.revision <= reached_revision);
        let has_more = self.window.len() - start > limit;
        let mut batch = ChangeBatch {
            events: Vec::new(),
            reached: self.revision,
            more: has_more,
            failure: None,
        };
        for change in self.window.range(start..).take(limit) {
            batch.reached = change.revision;
            if !range.contains(&change.key) {
                continue;
            }
            match &change.event {
                Ok(event) => batch.events.push(event.clone()),
                Err(reason) => {
                    let (key, reason) = (change.key.clone(), reason.clone());
                    batch.failure = Some(Error::Undecodable { key, reason });
                    return Ok(batch);
                }
            }
        }
        if !has_more {
            batch.reached = self.revision;
        }
        Ok(batch)
    }
}
