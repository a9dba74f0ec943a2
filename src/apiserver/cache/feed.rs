//! Keeps a cache's state equal to the store's: lists, then watches, and starts over when the
//! watch cannot go on.
//!
//! After an outage the watch goes on where it ended, so watchers notice nothing. Only when the
//! store forgot that place is everything listed again, which ends the watchers.

use std::{sync::atomic::Ordering, time::Duration};

use futures::StreamExt;
use rand::Rng;
use tokio::time;
use tracing::{debug, info, warn};

use super::{
    super::storage::{self, Event, PageRequest, Revision},
    Cache,
};
use crate::{error::chain, runtime::readiness};

/// Objects that one request to the store reads.
const PAGE: usize = 500;
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

/// Lists when it has to, then applies events until the watch ends.
async fn session(
    cache: &Cache,
    at: &mut Option<Revision>,
    ready: &mut Option<readiness::Handle>,
    pause: &mut Duration,
) -> storage::Error {
    let from = match *at {
        Some(from) => from,
        None => match list(cache).await {
            Ok(revision) => revision,
            Err(error) => return error,
        },
    };
    *at = Some(from);
    drop(ready.take());
    let mut events = match cache.storage.watch(&cache.prefix, from).await {
        Ok(events) => events,
        Err(error) => return error,
    };
    cache.follows.store(true, Ordering::SeqCst);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                *at = Some(event.revision());
                *pause = FIRST_PAUSE;
                apply(cache, event);
            }
            Err(error) => return error,
        }
    }
    storage::Error::Unavailable { source: "the watch ended".into() }
}

async fn list(cache: &Cache) -> Result<Revision, storage::Error> {
    let mut read = Vec::new();
    let mut request = PageRequest { limit: Some(PAGE), ..PageRequest::default() };
    loop {
        let page = cache.storage.list(&cache.prefix, request.clone()).await?;
        request.at = Some(page.revision);
        request.after = page.entries.last().map(|entry| entry.key.clone());
        for entry in page.entries {
            let reading = cache.decode(&entry.key, &entry.value, entry.revision);
            if let Err(reason) = &reading {
                warn!(key = entry.key.as_str(), reason, "Stored object cannot be read");
            }
            read.push((entry.key, reading));
        }
        if !page.more {
            let (objects, revision) = (read.len(), page.revision);
            cache.update(|state| state.replace(read, revision));
            info!(
                resource = cache.prefix.as_str(),
                objects,
                revision = revision.0,
                "Listed the store"
            );
            return Ok(revision);
        }
    }
}

fn apply(cache: &Cache, event: Event) {
    match event {
        Event::Put { entry, .. } => {
            let reading = cache.decode(&entry.key, &entry.value, entry.revision);
            if let Err(reason) = &reading {
                warn!(key = entry.key.as_str(), reason, "Stored object cannot be read");
            }
            cache.update(|state| state.put(entry.key, reading, entry.revision));
        }
        Event::Delete { key, revision, .. } => cache.update(|state| state.delete(key, revision)),
        Event::Progress(revision) => {
            debug!(resource = cache.prefix.as_str(), revision = revision.0, "Progress");
            cache.update(|state| state.progress(revision));
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
