//! Keeps a cache's state equal to the store's: lists, then watches, and starts over when the
//! watch cannot go on.
//!
//! After an outage the store's watch goes on where it ended, so watchers see no gap. When the store
//! no longer has the changes from there, the resource is listed again, which ends the watchers.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::StreamExt;
use rand::Rng;
use tokio::time;
use tracing::{info, warn};

use super::{
    super::storage::{self, Revision, StoreEntry, WatchStream},
    Cache, EventType,
    decoded_events::{DecodedEvent, list_resource, requires_relist, watch_ended_error},
    object::SharedDecodeResult,
    startup_history::StartupHistory,
};
use crate::{error::chain, runtime::readiness};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Keeps the cache up to date: lists and watches the store, again after each failure. Does not
/// return.
pub(super) async fn run_reflector(cache: &Cache, readiness_handle: readiness::ReadinessHandle) {
    let mut readiness_handle = Some(readiness_handle);
    let mut pause = FIRST_PAUSE;
    // Revision where the next watch begins; absent when the resource has to be listed.
    let mut next_revision = None;
    loop {
        let watch_error =
            run_session(cache, &mut next_revision, &mut readiness_handle, &mut pause).await;
        cache.follows.store(false, Ordering::SeqCst);
        if requires_relist(&watch_error) {
            next_revision = None;
        }
        warn!(
            error = %chain(&watch_error),
            resource = cache.prefix.as_str(),
            list_again = next_revision.is_none(),
            "Watch of the store ended"
        );
        let jittered_pause = rand::rng().random_range(pause / 2..=pause);
        time::sleep(jittered_pause).await;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

/// Lists the store if there is no revision to go on from, then applies events until the watch ends.
async fn run_session(
    cache: &Cache,
    next_revision: &mut Option<Revision>,
    readiness_handle: &mut Option<readiness::ReadinessHandle>,
    pause: &mut Duration,
) -> storage::Error {
    let watch_result = match *next_revision {
        Some(from) => cache.storage.watch(&cache.prefix, from).await,
        None => start_watch(cache).await.map(|(revision, events)| {
            *next_revision = Some(revision);
            events
        }),
    };
    let mut events = match watch_result {
        Ok(events) => events,
        Err(error) => return error,
    };
    cache.follows.store(true, Ordering::SeqCst);
    drop(readiness_handle.take());
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                *next_revision = Some(event.revision());
                *pause = FIRST_PAUSE;
                let change = DecodedEvent::from_store_event(event, |entry, event| {
                    read_entry(cache, entry, event)
                });
                cache.update_state(|state| change.apply(state));
            }
            Err(error) => return error,
        }
    }
    watch_ended_error()
}

/// Lists the store and opens a watch from the list's revision.
async fn start_watch(cache: &Cache) -> Result<(Revision, WatchStream), storage::Error> {
    let state = list_resource(cache, None, |entry| read_listed(cache, entry)).await?;
    let (objects, revision) = (state.len(), state.revision());
    let events = cache.storage.watch(&cache.prefix, revision).await?;
    // Set before the state is ready, and so before a watch can ask for the history.
    cache.unknown.send_replace(Some(Arc::new(StartupHistory::from_state(&state))));
    cache.update_state(|current| current.start_over(state));
    info!(resource = cache.prefix.as_str(), objects, revision = revision.0, "Listed the store");
    Ok((revision, events))
}

/// Returns the object of a listed entry. An object that the cache knows at this revision is not
/// decoded again. So the shown objects stay in memory while the cache lists the store again.
fn read_listed(cache: &Cache, entry: &StoreEntry) -> SharedDecodeResult {
    let cached_object = cache.read_state().get_at_revision(&entry.key, entry.revision);
    cached_object.map_or_else(|| read_entry(cache, entry, EventType::Added), Ok)
}

fn read_entry(cache: &Cache, entry: &StoreEntry, event: EventType) -> SharedDecodeResult {
    let reading = cache.read_entry(entry, event);
    if let Err(reason) = &reading {
        warn!(key = entry.key.as_str(), reason, "Stored object cannot be read");
    }
    reading
}
