//! Looks at the data volume while the pilot lives: its size, and whether it is full.
//!
//! A database that is stopped on a full volume does not come up again, so a full volume speaks
//! against a stop; a database that serves is left alone. The machine restarts a database that a
//! full volume silenced, once there is room.

use std::time::Duration;

use tokio::time::sleep;

use super::{RunnerMessage, context::RunnerContext};
use crate::pilot::node::preflight::space;

/// Pause between two looks at the volume; `EVERY_FULL` while it is full: then a user waits for the
/// result.
const EVERY: Duration = Duration::from_secs(30);
const EVERY_FULL: Duration = Duration::from_secs(5);

pub(super) fn watch(ctx: &RunnerContext) {
    let (data, messages) = (ctx.settings.data.clone(), ctx.messages.clone());
    let (volume, shutdown) = (ctx.volume.clone(), ctx.rt.shutdown());
    ctx.rt.tasks().spawn("storage", async move {
        loop {
            let data = data.clone();
            let look = async {
                let seen = volume.visit(move |_| space(&data).ok()).await.ok().flatten();
                let full = seen.as_ref().is_some_and(|space| space.full.is_some());
                drop(messages.send(RunnerMessage::Space(seen)).await);
                sleep(if full { EVERY_FULL } else { EVERY }).await;
            };
            tokio::select! {
                () = shutdown.triggered() => return,
                () = look => {}
            }
        }
    });
}
