//! What the loop reads from the volume and writes down there: in order, and without waiting for
//! it.
//!
//! What an earlier pilot left is read as soon as the volume answers, and before any intent is
//! acted upon. Signals and probes are answered meanwhile.

use std::{io, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::{sync::mpsc, time::sleep};
use tracing::{info, warn};

use super::{RunnerMessage, context::RunnerContext, intent_tracker::IntentTracker};
use crate::{
    api::v1beta1::{Identity, Pilot, PilotSecurity, PilotStatus},
    pilot::volume::pilot_files::{DatabaseRun, PilotFiles, VolumeMark},
};

/// Most entries that wait to be written to a volume that hangs; further ones are lost, with a
/// warning.
const QUEUE: usize = 64;

/// How often the pilot tries to write down that the node left, and the pause between two tries.
const LEFT_TRIES: u32 = 24;
const LEFT_EVERY: Duration = Duration::from_secs(5);

pub(super) struct VolumeLedger {
    notes: mpsc::Sender<LedgerEntry>,
    recalled: RecallState,
    /// The checks passed once: the volume is locked and this node's.
    pub(super) ours: bool,
    /// The database's id of the node, as the volume's mark has it.
    pub(super) marked: Option<VolumeMark>,
}

/// How far the pilot is with reading what an earlier pilot left on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecallState {
    /// Still to be read. The run in the records, if any, is one that was lost.
    Due,
    /// Still to be read. The run in the records belongs to an earlier program of this process, and
    /// goes on.
    DueAfterTakeover,
    Done,
}

/// What an earlier pilot left on the volume.
#[derive(Debug)]
pub(super) struct RecalledRecords {
    decommissioned: io::Result<bool>,
    mark: io::Result<Option<VolumeMark>>,
    run: io::Result<Option<DatabaseRun>>,
}

/// What the records of an earlier pilot mean for this one.
#[derive(Debug, Default)]
pub(super) struct NodeHistory {
    pub(super) decommissioned: bool,
    pub(super) identity: Option<Identity>,
    /// A run whose end no pilot has seen.
    pub(super) lost: Option<DatabaseRun>,
}

#[derive(Clone, Debug)]
pub(super) enum LedgerEntry {
    /// A run of the database has begun.
    Begun(DatabaseRun),
    /// The run has ended, and this pilot saw it.
    Ended,
    /// The intent, for a start without the API.
    Intent(Box<Pilot>),
}

impl LedgerEntry {
    fn write_to(self, files: &PilotFiles) -> io::Result<()> {
        match self {
            Self::Begun(run) => files.begin_run(&run),
            Self::Ended => files.end_run(),
            Self::Intent(pilot) => files.set_intent(&pilot),
        }
    }

    /// Revision of the `spec.security` that the entry holds, if any.
    fn security_revision(&self) -> Option<String> {
        match self {
            Self::Intent(pilot) => pilot.spec.security.as_ref().map(PilotSecurity::revision),
            Self::Begun(_) | Self::Ended => None,
        }
    }

    fn description(&self) -> &'static str {
        match self {
            Self::Begun(_) => "the run",
            Self::Ended => "the end of the run",
            Self::Intent(_) => "the intent",
        }
    }
}

impl VolumeLedger {
    /// Makes the ledger, with a task that writes entries to the volume until shutdown, and then
    /// those that still wait.
    pub(super) fn new(ctx: &RunnerContext) -> Self {
        let (notes, mut note_receiver) = mpsc::channel::<LedgerEntry>(QUEUE);
        let (records, shutdown) = (ctx.records.clone(), ctx.rt.shutdown());
        let messages = ctx.messages.clone();
        ctx.rt.tasks().spawn("notes", async move {
            loop {
                let next = tokio::select! {
                    biased;
                    next = note_receiver.recv() => next,
                    () = shutdown.triggered() => return,
                };
                let Some(note) = next else { return };
                let (what, security_revision) = (note.description(), note.security_revision());
                loop {
                    let note = note.clone();
                    match records.visit(move |files| note.write_to(files)).await {
                        Ok(Ok(())) => {
                            if let Some(revision) = security_revision {
                                let message = RunnerMessage::SecurityStored(revision);
                                // An error means that the loop is gone.
                                drop(messages.send(message).await);
                            }
                            break;
                        }
                        Ok(Err(error)) => {
                            warn!(what, %error, "Not written down");
                            break;
                        }
                        // Each time that the volume does not answer is logged; the loop does not
                        // wait for this task.
                        Err(error) => warn!(what, %error, "Not written down yet"),
                    }
                }
            }
        });
        Self { notes, recalled: RecallState::Due, ours: false, marked: None }
    }

    /// Goes on with the volume of an earlier program of this process.
    pub(super) fn taken_over(&mut self, ours: bool) {
        self.recalled = RecallState::DueAfterTakeover;
        self.ours = ours;
    }

    pub(super) fn is_recalled(&self) -> bool {
        self.recalled == RecallState::Done
    }

    /// Were the records of an earlier pilot read, and does no entry wait to be written? The last
    /// one may be under way.
    pub(super) fn is_settled(&self) -> bool {
        self.is_recalled() && self.notes.capacity() == self.notes.max_capacity()
    }

    pub(super) fn write_down(&self, note: LedgerEntry) {
        if let Err(error) = self.notes.try_send(note) {
            warn!(%error, "The data volume hangs; what happened is not written down");
        }
    }

    /// Writes down that the node left its cluster for good, and tells the loop when no power cut
    /// can take that back. A volume that takes no file for two minutes or more holds nothing up:
    /// then the database alone knows that the node left.
    pub(super) fn record_decommission(ctx: &RunnerContext) {
        info!("Node left its database cluster");
        let (ctx, time) = (ctx.clone(), Time(Timestamp::now()));
        let tasks = ctx.rt.tasks().clone();
        tasks.spawn("left", async move {
            for _ in 0..LEFT_TRIES {
                let time = time.clone();
                let reason =
                    match ctx.records.visit(move |files| files.set_decommissioned(time)).await {
                        Ok(Ok(())) => return ctx.send_message(RunnerMessage::Left).await,
                        Ok(Err(error)) => error.to_string(),
                        Err(volume_timeout) => volume_timeout.to_string(),
                    };
                warn!(error = reason, "Not written down that the node left its cluster");
                ctx.send_message(RunnerMessage::LeftUnsaid(reason)).await;
                sleep(LEFT_EVERY).await;
            }
            ctx.send_message(RunnerMessage::Left).await;
        });
    }

    /// Keeps the intent on the disk, for a start without the API. Only when the volume is ours.
    pub(super) fn remember_intent(&self, tracker: &IntentTracker) {
        let Some(pilot) = tracker.pilot.as_ref().filter(|_| self.ours && !tracker.remembered)
        else {
            return;
        };
        let pilot_intent = Pilot { status: PilotStatus::default(), ..pilot.clone() };
        self.write_down(LedgerEntry::Intent(Box::new(pilot_intent)));
    }

    /// Reads what an earlier pilot left on the volume, and sends it to the loop.
    pub(super) fn recall_records(ctx: &RunnerContext) {
        let (ctx, shutdown) = (ctx.clone(), ctx.rt.shutdown());
        let tasks = ctx.rt.tasks().clone();
        tasks.spawn("recall", async move {
            let recalled = async {
                loop {
                    let driver = ctx.driver.clone();
                    let visit = ctx.records.visit(move |files| {
                        driver.restore_state();
                        let (decommissioned, mark) = (files.is_decommissioned(), files.read_mark());
                        Box::new(RecalledRecords { decommissioned, mark, run: files.open_run() })
                    });
                    match visit.await {
                        Ok(records) => return records,
                        Err(error) => warn!(%error, "Waiting for the data volume"),
                    }
                }
            };
            tokio::select! {
                () = shutdown.triggered() => {}
                recalled = recalled => ctx.send_message(RunnerMessage::Recalled(recalled)).await,
            }
        });
    }

    pub(super) fn take_recalled(&mut self, recalled: RecalledRecords) -> NodeHistory {
        let RecalledRecords { decommissioned, mark, run } = recalled;
        let mut history = NodeHistory::default();
        match decommissioned {
            Ok(is_decommissioned) => history.decommissioned = is_decommissioned,
            Err(error) => warn!(%error, "Cannot tell whether the node left its cluster"),
        }
        match mark {
            Ok(mark) => {
                history.identity = mark.as_ref().and_then(reported_identity);
                self.marked = mark.filter(|mark| mark.node_id.is_some());
            }
            Err(error) => warn!(%error, "Mark of the data cannot be read"),
        }
        if let (RecallState::Due, Ok(Some(run))) = (self.recalled, run) {
            history.lost = Some(run);
        }
        self.recalled = RecallState::Done;
        history
    }

    /// Takes the node's identity that was written to the volume, and returns it as the API shows
    /// it.
    pub(super) fn marked_as(&mut self, mark: &VolumeMark) -> Option<Identity> {
        info!(node_id = mark.node_id, cluster_id = mark.cluster_id, "Node has its identity");
        self.marked = Some(mark.clone());
        reported_identity(mark)
    }
}

/// Returns the identity in a volume's mark, as the API shows it.
fn reported_identity(mark: &VolumeMark) -> Option<Identity> {
    mark.node_id.as_ref()?;
    Some(Identity {
        cluster_id: mark.cluster_id.clone(),
        node_id: mark.node_id.clone(),
        since: mark.since.clone(),
        ring_id: mark.ring.clone(),
    })
}
