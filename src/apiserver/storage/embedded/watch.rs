//! Watches of the embedded store: every watcher reads the log at its own pace.
//!
//! The store sends watchers only the latest revision, so a slow watcher delays no other one and
//! needs no buffer. If history is compacted faster than a watcher reads, it ends with `Compacted`.

use std::{collections::VecDeque, sync::Arc};

use futures::stream;
use tokio::sync::watch;

use super::{
    super::{KeyPrefix, Result, Revision, StoreEvent, WatchStream},
    SharedDatabase, closed_error, run_blocking,
};

/// Most records of the log that one read looks at: this keeps a read short and bounds what a
/// watcher holds.
const CHUNK: usize = 512;

struct EmbeddedWatcher {
    shared: Arc<SharedDatabase>,
    published: watch::Receiver<Revision>,
    prefix: KeyPrefix,
    /// Revision up to which every record of the log was read.
    reached: Revision,
    ready: VecDeque<StoreEvent>,
    ended: bool,
}

/// Returns the events after `start_revision`, a revision that the caller has checked.
pub(super) fn watch_events(
    shared: Arc<SharedDatabase>,
    prefix: KeyPrefix,
    start_revision: Revision,
) -> WatchStream {
    let published = shared.subscribe();
    let ready = VecDeque::new();
    let watcher =
        EmbeddedWatcher { shared, published, prefix, reached: start_revision, ready, ended: false };
    Box::pin(stream::unfold(watcher, |mut watcher| async {
        if watcher.ended {
            return None;
        }
        let next_event = watcher.next().await;
        watcher.ended = next_event.is_err();
        Some((next_event, watcher))
    }))
}

impl EmbeddedWatcher {
    async fn next(&mut self) -> Result<StoreEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let latest = *self.published.borrow_and_update();
            if latest > self.reached {
                self.read_events().await?;
            } else {
                // Fails once the store is closed, which also counts as a change.
                drop(self.shared.database()?);
                self.published.changed().await.map_err(|_| closed_error())?;
            }
        }
    }

    async fn read_events(&mut self) -> Result<()> {
        let (shared, prefix, start_revision) =
            (self.shared.clone(), self.prefix.clone(), self.reached);
        let log_events =
            run_blocking(move || shared.snapshot()?.read_events(&prefix, start_revision, CHUNK))
                .await?;
        self.reached = log_events.reached;
        let last_revision = log_events.events.last().map(StoreEvent::revision);
        self.ready.extend(log_events.events);
        if last_revision != Some(log_events.reached) {
            self.ready.push_back(StoreEvent::Progress(log_events.reached));
        }
        Ok(())
    }
}
