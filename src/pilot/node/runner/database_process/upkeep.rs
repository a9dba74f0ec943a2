//! Lets a running database do the work on its data that a person asks for by annotations of its
//! Pilot.

use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

use super::RunnerContext;
use crate::{error::chain, pilot::kube::intent};

/// Pause between two looks whether a person asks for work on the data, and whether it is the node's
/// turn.
const LOOK_EVERY: Duration = Duration::from_secs(5);

pub(super) async fn run_pending_tasks(ctx: RunnerContext, intent: intent::IntentReceiver) {
    let mut last_error = String::new();
    loop {
        sleep(LOOK_EVERY).await;
        let pilot = intent.borrow().as_ref().map(|intent| intent.pilot.clone());
        let Some(pilot) = pilot.filter(|pilot| ctx.driver.has_pending_task(pilot)) else {
            continue;
        };
        // The peers' reports decide whose turn it is.
        let Some(peers) = ctx.peers_or_empty(&pilot).await else { continue };
        let node = ctx.build_node(&pilot, &peers, false);
        if let Err(error) = ctx.driver.run_task(&node).await {
            let error = chain(&error).to_string();
            // A failure is logged once; the work is tried again.
            if last_error != error {
                warn!(error, "What was asked for on the node's data is not done yet");
                last_error = error;
            }
        }
    }
}
