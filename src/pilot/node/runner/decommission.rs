//! Asking the database to leave its cluster, or to stay after all, and what it says to that.

use std::time::Duration;

use tokio::time::{error::Elapsed, timeout};
use tracing::{info, warn};

use super::{Message, Runner, node, start::peers_now};
use crate::{
    error::chain,
    pilot::{
        driver::{self, DecommissionState},
        node::machine::{Event, Want},
        volume::lock::Hangs,
    },
};

const LIMIT: Duration = Duration::from_secs(60);

impl Runner {
    pub(super) fn decommission(&self) {
        let Some(pilot) = self.pilot.clone() else { return };
        let (settings, known, may_found) =
            (self.settings.clone(), self.peers.clone(), self.start.may_found);
        let (cluster, driver) = (self.cluster.clone(), self.driver.clone());
        let (messages, volume) = (self.messages.clone(), self.volume.clone());
        self.follow("decommission", async move {
            // Whether they have room is decided by what they say now.
            let peers = peers_now(cluster.as_ref(), &pilot, known).await;
            let node = node(&settings, &pilot, &peers, may_found);
            let asked =
                volume.during(async move { timeout(LIMIT, driver.decommission(&node)).await });
            let result = answered(asked.await);
            drop(messages.send(Message::Decommission(result)).await);
        });
    }

    pub(super) fn decommission_answered(
        &mut self,
        result: Result<DecommissionState, driver::Error>,
    ) {
        // Why it goes on although it is no longer wanted stays said.
        if self.state.want() == Some(Want::Decommissioned) {
            self.facts.refused = None;
        }
        match result {
            Ok(DecommissionState::Moving(progress)) => {
                self.facts.decommission = Some(progress);
                self.step(Event::DecommissionMoving);
            }
            Ok(DecommissionState::Done) => self.step(Event::DecommissionDone),
            Ok(DecommissionState::Refused(why)) => {
                warn!(why, "Decommission is refused");
                // Whoever helps it leave goes by its progress.
                self.facts.decommission = None;
                self.facts.refused = Some(why);
                self.step(Event::DecommissionRefused);
            }
            Err(error) => {
                let text = chain(&error).to_string();
                warn!(error = text, "Decommission does not go on");
                self.facts.refused = Some(text);
                self.step(Event::DecommissionRefused);
            }
        }
    }

    pub(super) fn cancel_decommission(&self) {
        let Some(pilot) = &self.pilot else { return };
        let node = node(&self.settings, pilot, &self.peers, self.start.may_found);
        let (driver, messages) = (self.driver.clone(), self.messages.clone());
        let volume = self.volume.clone();
        self.follow("cancel-decommission", async move {
            let asked = async move { timeout(LIMIT, driver.cancel_decommission(&node)).await };
            let result = answered(volume.during(asked).await);
            drop(messages.send(Message::Cancelled(result)).await);
        });
    }

    pub(super) fn cancel_answered(&mut self, result: Result<(), driver::Error>) {
        let event = match result {
            Ok(()) => {
                info!("Decommission was taken back");
                self.facts.decommission = None;
                self.facts.refused = None;
                Event::DecommissionCancelled
            }
            Err(error) => {
                let text = chain(&error).to_string();
                if self.facts.refused.as_ref() != Some(&text) {
                    warn!(error = text, "Decommission is not taken back");
                }
                self.facts.refused = Some(text);
                match error {
                    driver::Error::TooLate(_) => Event::DecommissionIrreversible,
                    _ => Event::CancelFailed,
                }
            }
        };
        self.step(event);
    }
}

fn answered<T>(
    asked: Result<Result<Result<T, driver::Error>, Elapsed>, Hangs>,
) -> Result<T, driver::Error> {
    match asked {
        Ok(Ok(answer)) => answer,
        Ok(Err(late)) => Err(late.into()),
        Err(hangs) => Err(driver::Error::NotYet(hangs.to_string())),
    }
}
