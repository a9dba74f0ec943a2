//! Changes from before a cache was ready, learned while the cache already answers requests.
//!
//! A client that watched before a restart of the server goes on with its watch and need not list
//! again, as far back as the store's log and the cache's window reach. Only such a watch waits for
//! these changes; until one comes, the first second is left to clients that list.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use rand::Rng;
use tokio::{task, time};
use tracing::{info, warn};

use super::{
    super::storage::{Error, Key, Revision, StoreEntry, StoreEvent},
    Cache, CachedObject, EventType,
    decoded_events::{self, DecodedEvent},
    object::SharedDecodeResult,
    state::{CacheState, window_bytes},
};
use crate::error::chain;

/// Pause before the store is asked for earlier changes, unless a watch waits for them.
const LULL: Duration = Duration::from_secs(1);
/// How many revisions before the list are looked at.
const REVISIONS: u64 = 4096;
/// How often the start of the history may turn out to be later: what the store answers for, what it
/// has forgotten, and what it forgets meanwhile.
const MOVES: usize = 3;
/// Longest time to read the history; a store that takes longer is not asked again.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest pause before a store that is unreachable is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// The history before a list: what the list showed, from which earlier changes are worked out.
pub(super) struct StartupHistory {
    /// Objects of the list, not decoded again where the history has them at the same revision.
    objects: BTreeMap<Key, Arc<CachedObject>>,
    /// Revision of the list, where the history ends.
    until: Revision,
}

/// Learns the changes before each list; does not return. Runs in the task that lists, so that no
/// list comes between the end of the learning and clearing `unknown`.
pub(super) async fn learn_histories(cache: &Cache) {
    let mut unknown = cache.unknown.subscribe();
    loop {
        // The sender cannot go: `cache` holds it.
        let past = unknown.wait_for(Option::is_some).await.ok().and_then(|past| past.clone());
        let Some(past) = past else { continue };
        tokio::select! {
            biased;
            // The store was listed once more, so another history has to be learned.
            _ = unknown.changed() => {}
            () = past.learn_soon(cache) => drop(cache.unknown.send_replace(None)),
        }
    }
}

impl StartupHistory {
    pub(super) fn from_state(state: &CacheState) -> Self {
        Self { objects: state.objects().clone(), until: state.revision() }
    }

    async fn learn_soon(&self, cache: &Cache) {
        // Learning begins when the time is over or when a watch asks.
        drop(time::timeout(LULL, cache.past_asked.notified()).await);
        self.learn_changes(cache).await;
    }

    /// Adds the history before the changes since the list, unless the store cannot tell it.
    async fn learn_changes(&self, cache: &Cache) {
        let resource = cache.prefix.as_str();
        let error = loop {
            match time::timeout(PATIENCE, self.read_history(cache)).await {
                Ok(Ok(past)) => {
                    let (from, until) = (past.oldest_revision().0, self.until.0);
                    cache.update_state(|state| state.prepend(past));
                    return info!(resource, from, until, "Learned what happened before");
                }
                Ok(Err(error)) if decoded_events::requires_relist(&error) => {
                    break chain(&error).to_string();
                }
                Ok(Err(error)) => {
                    warn!(resource, error = %chain(&error), "What happened before is not known yet");
                }
                Err(elapsed) => break chain(&elapsed).to_string(),
            }
            let jittered_pause = rand::rng().random_range(PAUSE / 2..=PAUSE);
            time::sleep(jittered_pause).await;
        };
        warn!(resource, %error, "Watches from before have to list again");
    }

    /// Reads the state at the first revision that the window can reach, and the changes from there
    /// until the list.
    async fn read_history(&self, cache: &Cache) -> Result<CacheState, Error> {
        let mut from = Revision(self.until.0.saturating_sub(REVISIONS));
        let mut moves = 0;
        loop {
            match self.read_since(cache, from).await {
                Err(Error::Compacted { oldest, .. })
                    if moves < MOVES && from < oldest && oldest < self.until =>
                {
                    from = oldest;
                    moves += 1;
                }
                result => return result,
            }
        }
    }

    async fn read_since(&self, cache: &Cache, from: Revision) -> Result<CacheState, Error> {
        let (from, events) = self.read_events(cache, from).await?;
        let decode = |entry: &StoreEntry, event_type| self.decode_entry(cache, entry, event_type);
        let mut past = if events.is_empty() {
            CacheState::from_list(Vec::new(), from)
        } else {
            decoded_events::list_resource(cache, Some(from), |entry| {
                decode(entry, EventType::Added)
            })
            .await?
        };
        for event in events {
            DecodedEvent::from_store_event(event, decode).apply(&mut past);
            // Requests come first.
            task::yield_now().await;
        }
        past.advance_revision(self.until);
        Ok(past)
    }

    fn decode_entry(
        &self,
        cache: &Cache,
        entry: &StoreEntry,
        event_type: EventType,
    ) -> SharedDecodeResult {
        match self.objects.get(&entry.key).filter(|object| object.revision == entry.revision) {
            Some(object) => Ok(Arc::clone(object)),
            None => cache.decode(entry, event_type).map(Arc::new),
        }
    }

    /// Reads as many of the latest changes as the window can hold, and the revision that they
    /// follow.
    async fn read_events(
        &self,
        cache: &Cache,
        mut from: Revision,
    ) -> Result<(Revision, VecDeque<StoreEvent>), Error> {
        let mut stream = cache.storage.watch(&cache.prefix, from).await?;
        cache.storage.request_progress(self.until);
        let (mut events, mut kept_bytes) = (VecDeque::new(), 0);
        let mut reached_revision = from;
        while reached_revision < self.until {
            let event =
                stream.next().await.unwrap_or_else(|| Err(decoded_events::watch_ended_error()))?;
            reached_revision = event.revision();
            if reached_revision > self.until || matches!(event, StoreEvent::Progress(_)) {
                continue;
            }
            kept_bytes += event_size(&event);
            events.push_back(event);
            while kept_bytes > window_bytes()
                && let Some(dropped_event) = events.pop_front()
            {
                kept_bytes -= event_size(&dropped_event);
                from = dropped_event.revision();
            }
        }
        Ok((from, events))
    }
}

fn event_size(event: &StoreEvent) -> usize {
    match event {
        StoreEvent::Put { entry, .. } => entry.value.len(),
        StoreEvent::Delete { .. } | StoreEvent::Progress(_) => 0,
    }
}
