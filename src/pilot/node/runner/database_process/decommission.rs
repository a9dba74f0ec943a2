//! Asking the database to leave its cluster, or to stay after all, and what it says to that.

use std::time::Duration;

use tokio::time::{error::Elapsed, timeout};
use tracing::{info, warn};

use super::{super::reporting::ReportPublisher, DatabaseProcess, RunnerContext, RunnerMessage};
use crate::{
    api::predicate::DEPARTURE_ACCEPTED,
    error::chain,
    pilot::{
        driver::{self, DatabaseNode, DecommissionState, DepartureRefusal},
        node::machine::MachineEvent,
        volume::data_volume::VolumeTimeout,
    },
};

const LIMIT: Duration = Duration::from_secs(60);

impl DatabaseProcess {
    pub(in super::super) fn request_decommission(
        &self,
        ctx: &RunnerContext,
        mut node: Box<DatabaseNode>,
    ) {
        let context = ctx.clone();
        self.spawn_task(ctx, "decommission", async move {
            // The peers' latest reports decide whether they have room for the data.
            context.refresh_peers(&mut node).await;
            let driver = context.driver.clone();
            let request = async move { timeout(LIMIT, driver.decommission(&node)).await };
            let result = flatten_answer(context.volume.visit_async(request).await);
            context.send_message(RunnerMessage::Decommission(result)).await;
        });
    }

    pub(in super::super) fn cancel_decommission(
        &self,
        ctx: &RunnerContext,
        node: Box<DatabaseNode>,
    ) {
        let context = ctx.clone();
        self.spawn_task(ctx, "cancel-decommission", async move {
            let driver = context.driver.clone();
            let request = async move { timeout(LIMIT, driver.cancel_decommission(&node)).await };
            let result = flatten_answer(context.volume.visit_async(request).await);
            context.send_message(RunnerMessage::Cancelled(result)).await;
        });
    }
}

/// Takes the database's answer to the request to leave, and returns the event for the machine;
/// `is_desired`: the decommission is still wanted.
pub(in super::super) fn handle_decommission_answer(
    report: &mut ReportPublisher,
    is_desired: bool,
    result: Result<DecommissionState, driver::Error>,
) -> MachineEvent {
    report.set_refusal(departure_refusal(&result));
    let facts = &mut report.facts;
    // Why a decommission goes on although it is no longer wanted stays in the report.
    if is_desired {
        facts.refused = None;
    }
    match result {
        Ok(DecommissionState::Moving(progress) | DecommissionState::Stuck(progress, _)) => {
            facts.decommission = Some(progress);
            MachineEvent::DecommissionMoving
        }
        Ok(DecommissionState::Done) => MachineEvent::DecommissionDone,
        Ok(DecommissionState::Refused(DepartureRefusal { why, .. })) => {
            warn!(why, "Decommission is refused");
            // The leading pilot helps a node to leave while it reports progress; a refused one
            // reports none.
            facts.decommission = None;
            facts.refused = Some(why);
            MachineEvent::DecommissionRefused
        }
        Err(error) => {
            let text = chain(&error).to_string();
            warn!(error = text, "Decommission does not go on");
            facts.refused = Some(text);
            MachineEvent::DecommissionRefused
        }
    }
}

/// Returns why the node does not leave, from the database's answer to the request to leave.
fn departure_refusal(
    result: &Result<DecommissionState, driver::Error>,
) -> Option<DepartureRefusal> {
    match result {
        Ok(DecommissionState::Moving(_) | DecommissionState::Done) => None,
        Ok(DecommissionState::Stuck(_, refusal) | DecommissionState::Refused(refusal)) => {
            Some(refusal.clone())
        }
        Err(error) => Some(DepartureRefusal::new(&DEPARTURE_ACCEPTED, chain(error).to_string())),
    }
}

/// Takes the database's answer to the request to stay, and returns the event for the machine.
pub(in super::super) fn handle_cancel_answer(
    report: &mut ReportPublisher,
    result: Result<(), driver::Error>,
) -> MachineEvent {
    report.set_refusal(None);
    let facts = &mut report.facts;
    match result {
        Ok(()) => {
            info!("Decommission was taken back");
            facts.decommission = None;
            facts.refused = None;
            MachineEvent::DecommissionCancelled
        }
        Err(error) => {
            let text = chain(&error).to_string();
            if facts.refused.as_ref() != Some(&text) {
                warn!(error = text, "Decommission is not taken back");
            }
            facts.refused = Some(text);
            match error {
                driver::Error::TooLate(_) => MachineEvent::DecommissionIrreversible,
                _ => MachineEvent::CancelFailed,
            }
        }
    }
}

fn flatten_answer<T>(
    outcome: Result<Result<Result<T, driver::Error>, Elapsed>, VolumeTimeout>,
) -> Result<T, driver::Error> {
    match outcome {
        Ok(Ok(answer)) => answer,
        Ok(Err(elapsed)) => Err(elapsed.into()),
        Err(volume_timeout) => Err(driver::Error::NotYet(volume_timeout.to_string())),
    }
}
