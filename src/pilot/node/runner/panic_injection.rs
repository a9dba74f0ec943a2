//! Panics on demand, for tests. Not in a released program.

use std::time::Duration;

use tokio::time::sleep;

use super::{RunnerMessage, context::RunnerContext};

/// Panics as soon as the file of `--panic-file` appears, and removes the file first: in the loop
/// when the file says so, and otherwise in a task.
pub(super) fn watch_panic_file(ctx: &RunnerContext) {
    let Some(path) = ctx.settings.panic_file.clone() else { return };
    let messages = ctx.messages.clone();
    ctx.rt.tasks().spawn("faults", async move {
        loop {
            sleep(Duration::from_millis(20)).await;
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            drop(std::fs::remove_file(&path));
            assert!(text == "loop", "the task was asked to");
            drop(messages.send(RunnerMessage::Fault).await);
        }
    });
}
