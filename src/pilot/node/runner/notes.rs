//! What the loop writes down on the volume: in order, and without waiting for it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::mpsc;
use tracing::warn;

use super::Runner;
use crate::{
    api::v1beta1::Pilot,
    pilot::volume::{
        files::{Files, Run},
        lock::Volume,
    },
    runtime::{Shutdown, Tasks},
};

/// A volume that hangs while more than this happens has other troubles.
const QUEUE: usize = 64;

#[derive(Clone, Debug)]
pub(super) enum Note {
    /// A run of the database has begun.
    Begun(Run),
    /// It has ended, and somebody saw it.
    Ended,
    /// The node left its cluster for good.
    Decommissioned(Time),
    /// The intent, for a start without the API.
    Intent(Box<Pilot>),
}

impl Note {
    fn write(self, files: &Files) -> std::io::Result<()> {
        match self {
            Self::Begun(run) => files.begin_run(&run),
            Self::Ended => files.end_run(),
            Self::Decommissioned(time) => files.set_decommissioned(time),
            Self::Intent(pilot) => files.set_intent(&pilot),
        }
    }

    fn what(&self) -> &'static str {
        match self {
            Self::Begun(_) => "the run",
            Self::Ended => "the end of the run",
            // The database itself knows, and the next decommission says so again.
            Self::Decommissioned(_) => "that the node left its cluster",
            Self::Intent(_) => "the intent",
        }
    }
}

/// Writes notes down until shutdown, and then those that wait.
pub(super) fn keep(
    tasks: &Tasks,
    files: &Files,
    volume: &Volume,
    shutdown: Shutdown,
) -> mpsc::Sender<Note> {
    let (notes, mut taken) = mpsc::channel::<Note>(QUEUE);
    let (files, volume) = (files.clone(), volume.clone());
    tasks.spawn("notes", async move {
        loop {
            let next = tokio::select! {
                biased;
                next = taken.recv() => next,
                () = shutdown.triggered() => return,
            };
            let Some(note) = next else { return };
            let what = note.what();
            loop {
                let (files, note) = (files.clone(), note.clone());
                match volume.visit(move |_| note.write(&files)).await {
                    Ok(Ok(())) => break,
                    Ok(Err(error)) => {
                        warn!(what, %error, "Not written down");
                        break;
                    }
                    // Each time that it does not answer is said; nobody waits for this.
                    Err(error) => warn!(what, %error, "Not written down yet"),
                }
            }
        }
    });
    notes
}

impl Runner {
    pub(super) fn write_down(&self, note: Note) {
        if let Err(error) = self.notes.try_send(note) {
            warn!(%error, "The data volume hangs; what happened is not written down");
        }
    }

    /// Is everything written down, or at least begun?
    pub(super) fn has_written(&self) -> bool {
        self.notes.capacity() == self.notes.max_capacity()
    }
}
