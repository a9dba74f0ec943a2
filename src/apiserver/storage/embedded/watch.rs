//! Watches of the embedded store: every watcher reads the log at its own pace.
//!
//! Watchers are sent nothing but the latest revision, so a slow one holds up no other and needs no
//! buffer; when history is forgotten faster than a watcher reads, it ends with `Compacted`.

use std::{collections::VecDeque, sync::Arc};

use futures::stream;
use tokio::sync::watch;

use super::{
    super::{KeyPrefix, Result, Revision, StoreEvent, WatchStream},
    SharedDatabase, blocking, closed,
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

/// Returns the events after `from`, a revision that the caller has checked.
pub(super) fn events(
    shared: Arc<SharedDatabase>,
    prefix: KeyPrefix,
    from: Revision,
) -> WatchStream {
    let published = shared.subscribe();
    let ready = VecDeque::new();
    let watcher = EmbeddedWatcher { shared, published, prefix, reached: from, ready, ended: false };
    Box::pin(stream::unfold(watcher, |mut watcher| async {
        if watcher.ended {
            return None;
        }
        let next = watcher.next().await;
        watcher.ended = next.is_err();
        Some((next, watcher))
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
                self.read().await?;
            } else {
                // Fails once the store is closed, which also counts as a change.
                drop(self.shared.database()?);
                self.published.changed().await.map_err(|_| closed())?;
            }
        }
    }

    async fn read(&mut self) -> Result<()> {
        let (shared, prefix, from) = (self.shared.clone(), self.prefix.clone(), self.reached);
        let found = blocking(move || shared.snapshot()?.events(&prefix, from, CHUNK)).await?;
        self.reached = found.reached;
        let last = found.events.last().map(StoreEvent::revision);
        self.ready.extend(found.events);
        if last != Some(found.reached) {
            self.ready.push_back(StoreEvent::Progress(found.reached));
        }
        Ok(())
    }
}
