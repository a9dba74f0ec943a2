//! The one thread that writes: takes the changes that wait, commits them together, publishes the
//! revision, answers.
//!
//! Owns the order commit (with fsync) → publish → answer, so no client receives an answer for a
//! write that a crash could undo. A reader that sees the commit first publishes it. If a write
//! fails, for example because the disk is full, the writer answers every waiting command with
//! `Unavailable` and opens the store again. What the disk then holds is the truth, and watchers
//! read it from the log. After a failed sync, and after a panic, no data that is read back can be
//! trusted: then the process has to end.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::sync::{mpsc, oneshot};
use tracing::{error, info};

use super::{
    super::{Error, Key, Result, Revision},
    HistoryLimits, SharedDatabase,
    disk::SyncFailure,
    layout::{self, EntryChange, TrimLimits, WriteBatch, store_error},
    open,
};
use crate::error::chain;

/// Most commands that one commit takes. One commit costs one or two fsyncs, about as long as
/// applying some hundred small writes.
const BATCH: usize = 256;
/// Most history records over the limits that one batch trims: more than a batch can add. A
/// compaction that was asked for is not bounded by it.
const TRIM_STEP: usize = 4 * BATCH;
/// Pause between two attempts to open a store whose file failed.
const REOPEN_AFTER: Duration = Duration::from_secs(1);
const LOST: &str = "the store's file lacks writes that were acknowledged";

/// A command for the writer's thread.
pub(super) enum WriterCommand {
    Write { key: Key, change: EntryChange, reply: oneshot::Sender<Result<Revision>> },
    Compact { revision: Revision, reply: oneshot::Sender<Result<()>> },
    Advance { past: Revision, reply: oneshot::Sender<Result<Revision>> },
}

pub(super) struct StoreWriter {
    pub shared: Arc<SharedDatabase>,
    pub commands: mpsc::Receiver<WriterCommand>,
    pub history: HistoryLimits,
    /// The store's file; absent for a store that is in no file.
    pub file: Option<PathBuf>,
    pub log_bytes: u64,
    pub sync_failed: SyncFailure,
}

/// The answer to a command once the batch is committed.
enum CommandOutcome {
    Written(Result<Revision>),
    Compacted(Result<()>),
    Advanced(Result<Revision>),
}

impl StoreWriter {
    /// Runs until every sender is gone, or until the store has failed permanently.
    pub(super) fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        while self.commands.blocking_recv_many(&mut batch, BATCH) > 0 {
            match self.commit_batch(&batch) {
                Ok(outcomes) => {
                    for (command, outcome) in batch.drain(..).zip(outcomes) {
                        send_reply(command, outcome);
                    }
                }
                Err(error) => {
                    error!(error = %chain(&error), "Store failed");
                    batch.drain(..).for_each(reject_command);
                    if self.sync_failed.is_set() {
                        self.shared
                            .shut_down("the disk did not take what was written to the store");
                        return;
                    }
                    let Some(file) = self.file.clone() else {
                        self.shared.shut_down("the store failed");
                        return;
                    };
                    if !self.reopen_file(&file) {
                        return;
                    }
                }
            }
        }
    }

    /// Commits a batch in one transaction. An error means that the file failed: no outcome is
    /// known.
    fn commit_batch(&mut self, batch: &[WriterCommand]) -> Result<Vec<CommandOutcome>> {
        let database = self.shared.database()?;
        let transaction = database.begin_write().map_err(store_error)?;
        let mut tables = WriteBatch::from_transaction(&transaction, self.log_bytes)?;
        let old_revisions = (tables.revision, tables.compacted);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut is_trusted = false;
        for command in batch {
            outcomes.push(match command {
                WriterCommand::Write { key, change, .. } => CommandOutcome::Written(
                    separate_failure(tables.apply_change(key, change, now))?,
                ),
                WriterCommand::Compact { revision, .. } => {
                    CommandOutcome::Compacted(separate_failure(tables.compact(*revision))?)
                }
                WriterCommand::Advance { past, .. } => {
                    is_trusted = true;
                    CommandOutcome::Advanced(separate_failure(tables.advance_revision(*past))?)
                }
            });
        }
        if old_revisions == (tables.revision, tables.compacted) {
            // Nothing was changed. What the refusals were based on is committed, so there is
            // nothing to sync.
            drop(tables);
            transaction.abort().map_err(store_error)?;
            return Ok(outcomes);
        }
        tables.trim_history(TrimLimits {
            events: self.history.events,
            bytes: self.history.bytes,
            since: now.saturating_sub(self.history.age.as_secs()),
            step: TRIM_STEP,
        })?;
        let (revision, log_bytes) = (tables.revision, tables.log_bytes);
        tables.write_revisions()?;
        if is_trusted {
            layout::clear_doubt(&transaction)?;
        }
        transaction.commit().map_err(store_error)?;
        self.log_bytes = log_bytes;
        if is_trusted {
            self.shared.set_doubt(None);
        }
        self.shared.publish_revision(Revision(revision));
        Ok(outcomes)
    }

    /// Opens the file again until that works. Returns false when no sender is left, or when it is
    /// clear that opening never will work. After an I/O error, such as a full disk, redb refuses
    /// all work on a file until it is opened again.
    fn reopen_file(&mut self, file: &Path) -> bool {
        let acknowledged_revision = self.shared.latest_revision();
        self.shared.close();
        loop {
            // Readers release the old handle within one read; until then the file is locked.
            thread::sleep(REOPEN_AFTER);
            loop {
                match self.commands.try_recv() {
                    Ok(command) => reject_command(command),
                    Err(mpsc::error::TryRecvError::Empty) => break,
                    Err(mpsc::error::TryRecvError::Disconnected) => return false,
                }
            }
            match open::reopen_store(file) {
                Ok(opened_store) if opened_store.summary.revision < acknowledged_revision => {
                    if let Err(error) = layout::record_doubt(&opened_store.database, LOST) {
                        error!(error = %chain(&error), "Failed to note that writes were lost");
                    }
                    self.shared.shut_down(LOST);
                    return false;
                }
                Ok(opened_store) => {
                    info!(revision = opened_store.summary.revision.0, "Store works again");
                    self.log_bytes = opened_store.summary.log_bytes;
                    self.sync_failed = opened_store.sync_failed;
                    self.shared
                        .replace_database(opened_store.database, opened_store.summary.revision);
                    return true;
                }
                Err(error) => {
                    error!(error = %chain(&error), "Store does not open");
                    if error.is_final() {
                        self.shared.shut_down("the store cannot be opened again");
                        return false;
                    }
                }
            }
        }
    }
}

impl Drop for StoreWriter {
    /// Closes the store, also when the thread panics: a store that cannot write says so to every
    /// caller.
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.shut_down("the thread that writes the store panicked");
        }
        self.shared.close();
    }
}

/// Separates failures of the file (the outer result) from answers to one command (the inner one).
fn separate_failure<T>(result: Result<T>) -> Result<Result<T>> {
    match result {
        Err(error @ (Error::Unavailable { .. } | Error::Corrupt { .. })) => Err(error),
        answer => Ok(answer),
    }
}

fn send_reply(command: WriterCommand, outcome: CommandOutcome) {
    // A caller that no longer waits has given up on the answer.
    match (command, outcome) {
        (WriterCommand::Write { reply, .. }, CommandOutcome::Written(result))
        | (WriterCommand::Advance { reply, .. }, CommandOutcome::Advanced(result)) => {
            drop(reply.send(result));
        }
        (WriterCommand::Compact { reply, .. }, CommandOutcome::Compacted(result)) => {
            drop(reply.send(result));
        }
        (command, _) => reject_command(command),
    }
}

fn reject_command(command: WriterCommand) {
    let unavailable_error =
        || Error::Unavailable { source: io::Error::other("the store's file failed").into() };
    match command {
        WriterCommand::Write { reply, .. } | WriterCommand::Advance { reply, .. } => {
            drop(reply.send(Err(unavailable_error())));
        }
        WriterCommand::Compact { reply, .. } => drop(reply.send(Err(unavailable_error()))),
    }
}
