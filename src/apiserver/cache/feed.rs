//! Keeps a cache's state equal to the store's: lists, then watches, and starts over when the
//! watch cannot go on.
//!
//! It begins in the past, as far back as the store's log and the window reach. After an outage
//! the watch goes on where it ended, so watchers notice nothing. Only when the store forgot that
//! place is everything listed again, which ends the watchers.

use std::{sync::atomic::Ordering, time::Duration};

use futures::StreamExt;
use rand::Rng;
use tokio::time;
use tracing::{debug, info, warn};

use super::{
    super::storage::{self, Entry, Event, Key, PageRequest, Revision, WatchStream},
    Cache, EventType,
    object::Shared,
    state::State,
};
use crate::{error::chain, runtime::readiness};

/// Objects that one request to the store reads.
const PAGE: usize = 500;
/// Revisions before the present at which a feed begins.
const HISTORY: u64 = 4096;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Runs for ever.
pub(super) async fn follow(cache: &Cache, ready: readiness::Handle) {
    let mut ready = Some(ready);
    let mut pause = FIRST_PAUSE;
    // Where the next watch begins; absent when everything has to be listed.
    let mut at = None;
    loop {
        let ended = session(cache, &mut at, &mut ready, &mut pause).await;
        cache.follows.store(false, Ordering::SeqCst);
        if starts_over(&ended) {
            at = None;
        }
        warn!(
            error = %chain(&ended),
            resource = cache.prefix.as_str(),
            list_again = at.is_none(),
            "Watch of the store ended"
        );
        let jittered = rand::rng().random_range(pause / 2..=pause);
        time::sleep(jittered).await;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

/// Begins when it has to, then applies events until the watch ends.
async fn session(
    cache: &Cache,
    at: &mut Option<Revision>,
    ready: &mut Option<readiness::Handle>,
    pause: &mut Duration,
) -> storage::Error {
    let begun = match *at {
        Some(from) => cache.storage.watch(&cache.prefix, from).await,
        None => begin(cache).await.map(|(revision, events)| {
            *at = Some(revision);
            events
        }),
    };
    let mut events = match begun {
        Ok(events) => events,
        Err(error) => return error,
    };
    cache.follows.store(true, Ordering::SeqCst);
    drop(ready.take());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                *at = Some(event.revision());
                *pause = FIRST_PAUSE;
                let change = Change::read(cache, event);
                cache.update(|state| change.apply(state));
            }
            Err(error) => return error,
        }
    }
    ended()
}

/// Lists the store as it was some time ago and follows its log from there to the present. So the
/// window is full when the cache is first seen, and a client that was here before a restart goes
/// on with its watch in place of listing everything.
async fn begin(cache: &Cache) -> Result<(Revision, WatchStream), storage::Error> {
    let latest = cache.storage.current_revision().await?;
    let room = Revision(latest.0.saturating_sub(HISTORY));
    let listed = match list(cache, Some(room)).await {
        Err(storage::Error::Compacted { oldest, .. }) => list(cache, Some(oldest)).await,
        listed => listed,
    };
    let mut state = match listed {
        // Compacted once more in between: the present is always there.
        Err(storage::Error::Compacted { .. }) => list(cache, None).await?,
        listed => listed?,
    };
    let from = state.revision();
    let mut events = cache.storage.watch(&cache.prefix, from).await?;
    cache.storage.request_progress(latest);
    while state.revision() < latest {
        let event = events.next().await.unwrap_or_else(|| Err(ended()))?;
        Change::read(cache, event).apply(&mut state);
    }
    let (objects, revision) = (state.len(), state.revision());
    cache.update(|current| current.start_over(state));
    info!(
        resource = cache.prefix.as_str(),
        objects,
        history_from = from.0,
        revision = revision.0,
        "Listed the store"
    );
    Ok((revision, events))
}

fn ended() -> storage::Error {
    storage::Error::Unavailable { source: "the watch ended".into() }
}

async fn list(cache: &Cache, at: Option<Revision>) -> Result<State, storage::Error> {
    let mut read = Vec::new();
    let mut request = PageRequest { at, limit: Some(PAGE), ..PageRequest::default() };
    loop {
        let page = cache.storage.list(&cache.prefix, request.clone()).await?;
        request.at = Some(page.revision);
        request.after = page.entries.last().map(|entry| entry.key.clone());
        for entry in page.entries {
            let reading = read_entry(cache, &entry, EventType::Added);
            read.push((entry.key, reading));
        }
        if !page.more {
            return Ok(State::listed(read, page.revision));
        }
    }
}

fn read_entry(cache: &Cache, entry: &Entry, event: EventType) -> Shared {
    let reading = cache.read_entry(entry, event);
    if let Err(reason) = &reading {
        warn!(key = entry.key.as_str(), reason, "Stored object cannot be read");
    }
    reading
}

/// An event of the store, decoded: what is left to do takes no time.
enum Change {
    Put { key: Key, reading: Shared, revision: Revision },
    Delete { key: Key, revision: Revision },
    Progress(Revision),
}

impl Change {
    fn read(cache: &Cache, event: Event) -> Self {
        match event {
            Event::Put { entry, created } => {
                let happened = if created { EventType::Added } else { EventType::Modified };
                let reading = read_entry(cache, &entry, happened);
                Self::Put { key: entry.key, reading, revision: entry.revision }
            }
            Event::Delete { key, revision } => Self::Delete { key, revision },
            Event::Progress(revision) => {
                debug!(resource = cache.prefix.as_str(), revision = revision.0, "Progress");
                Self::Progress(revision)
            }
        }
    }

    fn apply(self, state: &mut State) {
        match self {
            Self::Put { key, reading, revision } => state.put(key, reading, revision),
            Self::Delete { key, revision } => state.delete(key, revision),
            Self::Progress(revision) => state.progress(revision),
        }
    }
}

/// Can the watch not go on from where it ended? A revision in the future means that the store
/// was put back to an earlier state.
fn starts_over(error: &storage::Error) -> bool {
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
