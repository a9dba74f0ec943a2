//! One watch of a client: reads the cache's window of changes at its own pace.
//!
//! A watcher learns only that there are changes, so a slow one delays no other and needs no buffer.
//! When the window moves faster than the watcher reads, the watch ends with `TooOld`. The first
//! change after a pause is seen at once. Changes right behind it are taken together, or each would
//! cost every watcher a wake-up and a write to its connection. The more watchers a range has, the
//! longer the pause between two reads of the window.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{self, Instant},
};

use super::{super::storage::Revision, Cache, CacheEvent, Error, range::KeyRange};

/// Most changes that one read of the window looks at.
const CHUNK: usize = 256;

/// Shortest pause between two reads of a window that changes all the time.
const PACE: Duration = Duration::from_millis(4);
/// Pause for each watcher of a range: about twice the cost of waking and writing to one.
const PACE_EACH: Duration = Duration::from_micros(100);
/// Longest pause between two reads of the window: a client does not notice it among many changes.
const SLOWEST: Duration = Duration::from_millis(32);

/// Returns the pause between two reads of the window when a range has `watchers` watchers.
fn read_pause(watchers: usize) -> Duration {
    let watchers = u32::try_from(watchers).unwrap_or(u32::MAX);
    PACE_EACH.saturating_mul(watchers).clamp(PACE, SLOWEST)
}

/// Watch of a range: returns its changes in revision order, none missing and none twice.
pub struct CacheWatcher {
    cache: Arc<Cache>,
    range: KeyRange,
    lists: u64,
    /// Revision up to which each change was looked at.
    reached: Revision,
    /// Revision up to which each change was returned.
    returned: Revision,
    ready: VecDeque<CacheEvent>,
    /// Error that ends the watch after the events of `ready`.
    failure: Option<Error>,
    changed: watch::Receiver<()>,
    /// When the watcher last went on after a wake-up.
    found: Instant,
}

impl Drop for CacheWatcher {
    fn drop(&mut self) {
        // The watcher's own receiver goes first, or the range would still count it.
        let (_, closed_receiver) = watch::channel(());
        drop(std::mem::replace(&mut self.changed, closed_receiver));
        self.cache.waiting.remove_unwatched(&self.range);
    }
}

impl CacheWatcher {
    pub(super) fn start(cache: Arc<Cache>, range: KeyRange, from: Revision) -> Result<Self, Error> {
        let wake_receiver = cache.waiting.subscribe(&range);
        let lists = cache.read_state().list_count();
        let (ready_events, failure) = (VecDeque::new(), None);
        let (reached, returned) = (from, from);
        let last_wake = Instant::now();
        let mut watcher = Self {
            cache,
            range,
            lists,
            reached,
            returned,
            ready: ready_events,
            failure,
            changed: wake_receiver,
            found: last_wake,
        };
        watcher.read_changes()?;
        Ok(watcher)
    }

    /// Waits for the next change. An error ends the watch: its client has to list again.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Result<CacheEvent, Error> {
        loop {
            if let Some(event) = self.next_ready() {
                return Ok(event);
            }
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            self.changed.mark_unchanged();
            self.read_changes()?;
            if self.ready.is_empty() && self.failure.is_none() {
                // The sender cannot be dropped before: this watcher holds the cache.
                drop(self.changed.changed().await);
                let pause = read_pause(self.cache.waiting.count_watchers(&self.range));
                time::sleep_until(self.found + pause).await;
                self.found = Instant::now();
            }
        }
    }

    /// Returns the next change, if it was taken out of the window already.
    pub fn next_ready(&mut self) -> Option<CacheEvent> {
        let event = self.ready.pop_front()?;
        self.returned = event.object().revision;
        Some(event)
    }

    /// Returns the revision that a bookmark may state: each change up to it was returned.
    pub fn bookmark_revision(&mut self) -> Revision {
        if self.ready.is_empty() && self.failure.is_none() {
            self.failure = self.read_changes().err();
        }
        if self.ready.is_empty() && self.failure.is_none() { self.reached } else { self.returned }
    }

    /// Takes changes of the range out of the window, up to [`CHUNK`] at a time. Returns without any
    /// only when the whole window was looked at, or with an error to report: else the caller would
    /// wait in vain.
    fn read_changes(&mut self) -> Result<(), Error> {
        loop {
            self.returned = self.reached;
            let batch = self.cache.read_state().changes_after(
                &self.range,
                self.reached,
                self.lists,
                CHUNK,
            )?;
            // A watch from revision 10 must not state revision 8, also when the store was reset.
            self.reached = self.reached.max(batch.reached);
            self.ready.extend(batch.events);
            self.failure = batch.failure;
            if !batch.more || !self.ready.is_empty() || self.failure.is_some() {
                return Ok(());
            }
        }
    }
}
