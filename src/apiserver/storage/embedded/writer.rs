//! The one thread that writes: takes the changes that wait, commits them together, publishes
//! the revision, answers.
//!
//! Owns the order commit (with fsync) → publish → answer, so nobody is told of a write that a
//! crash could undo. When the file fails under it, everything waiting is answered
//! `Unavailable` and the store is opened again; what the disk then holds is the truth, and
//! watchers read it from the log.

use std::{
    io,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::sync::{mpsc, oneshot};
use tracing::{error, info};

use super::{
    super::{Error, Key, Result, Revision},
    History, Shared,
    layout::{Batch, Change, Limits, failed},
    open,
};
use crate::error::chain;

/// Writes that one commit takes at most. One commit costs one or two fsyncs, about as long as
/// applying some hundred small writes.
const BATCH: usize = 256;
/// History records that go with one batch at most: more than a batch can add.
const TRIM_STEP: usize = 4 * BATCH;
/// Between two attempts to open a store whose file failed.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// What the thread is asked to do.
pub(super) enum Command {
    Write { key: Key, change: Change, reply: oneshot::Sender<Result<Revision>> },
    Compact { revision: Revision, reply: oneshot::Sender<Result<()>> },
}

pub(super) struct Writer {
    pub shared: Arc<Shared>,
    pub commands: mpsc::Receiver<Command>,
    pub history: History,
    pub file: PathBuf,
    pub log_bytes: u64,
}

/// What becomes of a command once the batch is committed.
enum Outcome {
    Written(Result<Revision>),
    Compacted(Result<()>),
}

impl Writer {
    /// Runs until every sender is gone.
    pub(super) fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        while self.commands.blocking_recv_many(&mut batch, BATCH) > 0 {
            match self.commit(&batch) {
                Ok(outcomes) => {
                    for (command, outcome) in batch.drain(..).zip(outcomes) {
                        answer(command, outcome);
                    }
                }
                Err(error) => {
                    error!(error = %chain(&error), "Store failed; opening it again");
                    batch.drain(..).for_each(refuse);
                    self.reopen();
                }
            }
        }
    }

    /// One transaction. An error means that the file failed: no outcome is known.
    fn commit(&mut self, batch: &[Command]) -> Result<Vec<Outcome>> {
        let database = self.shared.database()?;
        let transaction = database.begin_write().map_err(failed)?;
        let mut tables = Batch::begin(&transaction, self.log_bytes)?;
        let before = (tables.revision, tables.compacted);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut outcomes = Vec::with_capacity(batch.len());
        for command in batch {
            outcomes.push(match command {
                Command::Write { key, change, .. } => {
                    Outcome::Written(sorted(tables.apply(key, change, now))?)
                }
                Command::Compact { revision, .. } => {
                    Outcome::Compacted(sorted(tables.compact(*revision))?)
                }
            });
        }
        if before == (tables.revision, tables.compacted) {
            // Every write was refused. What was seen is committed, so there is nothing to sync.
            drop(tables);
            transaction.abort().map_err(failed)?;
            return Ok(outcomes);
        }
        tables.trim(Limits {
            events: self.history.events,
            bytes: self.history.bytes,
            since: now.saturating_sub(self.history.age.as_secs()),
            step: TRIM_STEP,
        })?;
        let (revision, log_bytes) = (tables.revision, tables.log_bytes);
        tables.finish()?;
        transaction.commit().map_err(failed)?;
        self.log_bytes = log_bytes;
        self.shared.publish(Revision(revision));
        Ok(outcomes)
    }

    /// Opens the file again, until that works or nobody is left to serve. redb refuses all work
    /// on a file after an I/O error, such as a full disk, until then.
    fn reopen(&mut self) {
        self.shared.close();
        loop {
            // Readers let go of the old handle within one read; until then the file is locked.
            thread::sleep(REOPEN_AFTER);
            loop {
                match self.commands.try_recv() {
                    Ok(command) => refuse(command),
                    Err(mpsc::error::TryRecvError::Empty) => break,
                    Err(mpsc::error::TryRecvError::Disconnected) => return,
                }
            }
            match open::reopen(&self.file) {
                Ok(opened) => {
                    info!(revision = opened.summary.revision.0, "Store works again");
                    self.log_bytes = opened.summary.log_bytes;
                    self.shared.replace(opened.database, opened.summary.revision);
                    return;
                }
                Err(error) => error!(error = %chain(&error), "Store does not open"),
            }
        }
    }
}

impl Drop for Writer {
    /// Also when the thread panics: a store that cannot write says so to everybody.
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// Tells failures of the file (the outer result) from answers to one command (the inner one).
fn sorted<T>(result: Result<T>) -> Result<Result<T>> {
    match result {
        Err(error @ (Error::Unavailable { .. } | Error::Corrupt { .. })) => Err(error),
        answer => Ok(answer),
    }
}

fn answer(command: Command, outcome: Outcome) {
    // Who does not wait for the answer any more has given up on it.
    match (command, outcome) {
        (Command::Write { reply, .. }, Outcome::Written(result)) => drop(reply.send(result)),
        (Command::Compact { reply, .. }, Outcome::Compacted(result)) => drop(reply.send(result)),
        (command, _) => refuse(command),
    }
}

fn refuse(command: Command) {
    let unavailable = || Error::Unavailable {
        source: io::Error::other("the store's file failed; it is opened again").into(),
    };
    match command {
        Command::Write { reply, .. } => drop(reply.send(Err(unavailable()))),
        Command::Compact { reply, .. } => drop(reply.send(Err(unavailable()))),
    }
}
