//! What an earlier pilot left on the volume: read as soon as the volume answers, and before any
//! intent is acted upon. Signals and probes are answered meanwhile.

use std::io;

use tracing::warn;

use super::{Message, Runner, effects::identity};
use crate::pilot::{
    node::machine::Event,
    volume::files::{Mark, Run},
};

/// How far that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recall {
    /// To be read; nobody else's run goes on.
    Due,
    /// To be read, with the run of an earlier program of this process, which is no lost one.
    DueAfterTakeover,
    Done,
}

#[derive(Debug)]
pub(super) struct Recalled {
    decommissioned: io::Result<bool>,
    mark: io::Result<Option<Mark>>,
    run: io::Result<Option<Run>>,
}

impl Runner {
    pub(super) fn recall(&self) {
        let (driver, files) = (self.driver.clone(), self.files.clone());
        let (volume, messages, shutdown) =
            (self.volume.clone(), self.messages.clone(), self.rt.shutdown());
        self.rt.tasks().spawn("recall", async move {
            let recalled = async {
                loop {
                    let (driver, files) = (driver.clone(), files.clone());
                    let read = volume.visit(move |_| {
                        driver.recall();
                        let (decommissioned, mark) = (files.is_decommissioned(), files.mark());
                        Box::new(Recalled { decommissioned, mark, run: files.open_run() })
                    });
                    match read.await {
                        Ok(recalled) => return recalled,
                        Err(error) => warn!(%error, "Waiting for the data volume"),
                    }
                }
            };
            tokio::select! {
                () = shutdown.triggered() => {}
                // An error means that the loop is gone.
                recalled = recalled => drop(messages.send(Message::Recalled(recalled)).await),
            }
        });
    }

    pub(super) fn take_recalled(&mut self, recalled: Recalled) {
        let Recalled { decommissioned, mark, run } = recalled;
        match decommissioned {
            Ok(true) => self.step(Event::Decommissioned),
            Ok(false) => {}
            Err(error) => warn!(%error, "Cannot tell whether the node left its cluster"),
        }
        match mark {
            Ok(mark) => {
                self.facts.identity = mark.as_ref().and_then(identity);
                self.marked = mark.and_then(|mark| mark.node_id);
            }
            Err(error) => warn!(%error, "Mark of the data cannot be read"),
        }
        if let (Recall::Due, Ok(Some(run))) = (self.recalled, run) {
            self.lost(run);
        }
        self.recalled = Recall::Done;
        self.take_intent();
        self.go_on();
    }
}
