//! Looks at the data volume while the pilot lives: its size, and whether it is full.
//!
//! A database that is stopped on a full volume does not come up again, so that speaks against a
//! stop; nothing is done to one that serves. One that a full volume silenced is restarted by the
//! machine once there is room.

use std::time::Duration;

use tokio::time::sleep;
use tracing::{info, warn};

use super::{Message, Runner};
use crate::pilot::node::{
    machine::Event,
    preflight::{Space, space},
};

/// Between two looks; while it is full somebody waits for the answer.
const EVERY: Duration = Duration::from_secs(30);
const EVERY_FULL: Duration = Duration::from_secs(5);

impl Runner {
    pub(super) fn watch_storage(&self) {
        let (data, messages) = (self.settings.data.clone(), self.messages.clone());
        let (volume, shutdown) = (self.volume.clone(), self.rt.shutdown());
        self.rt.tasks().spawn("storage", async move {
            loop {
                let data = data.clone();
                let look = async {
                    let seen = volume.visit(move |_| space(&data).ok()).await.ok().flatten();
                    let full = seen.as_ref().is_some_and(|space| space.full.is_some());
                    drop(messages.send(Message::Space(seen)).await);
                    sleep(if full { EVERY_FULL } else { EVERY }).await;
                };
                tokio::select! {
                    () = shutdown.triggered() => return,
                    () = look => {}
                }
            }
        });
    }

    pub(super) fn looked_at(&mut self, seen: Option<Space>) {
        // A volume that does not answer keeps what it said last; the checks tell of it.
        let Some(Space { storage, full }) = seen else { return };
        self.metrics.storage_capacity.set(storage.capacity_bytes);
        self.metrics.storage_used.set(storage.used_bytes);
        self.facts.storage = Some(storage);
        match (&self.facts.full, &full) {
            (None, Some(what)) => warn!(what, "Data volume is full"),
            (Some(_), None) => info!("Data volume has room again"),
            _ => {}
        }
        let told = full.as_ref().map(|_| {
            let why = "the data volume is full, so the database would not start again";
            ("DiskHeadroom", why.to_owned())
        });
        self.facts.headroom = self.headroom.update(told.into_iter().collect());
        let is_full = full.is_some();
        self.facts.full = full;
        self.step(Event::Space { full: is_full });
    }
}
