//! The backend that writes the audit log to a file or to standard output.
//!
//! One task writes, so that a disk that hangs blocks only the requests that wait for it. Lines that
//! wait at the same time are written together.

use std::{
    io::{self, Write},
    path::PathBuf,
    sync::Arc,
};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info};

use super::{
    file::{FileRotation, RotatingFile, WriteOutcome},
    line::AuditLine,
};
use crate::{apiserver::metrics::Metrics, runtime::Shutdown};

/// Name of the backend in metrics.
pub(super) const PLUGIN: &str = "log";

/// Most lines that are written together.
const TOGETHER: usize = 256;

/// Where the audit log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditLogTarget {
    Stdout,
    File(PathBuf),
}

enum AuditLogSink {
    Stdout,
    File(RotatingFile),
}

/// A line, and the sender that ends the wait of its request.
pub(super) struct AwaitedLine {
    pub(super) line: AuditLine,
    pub(super) done: oneshot::Sender<()>,
}

/// Writes lines to a file or to standard output.
pub(super) struct AuditLog {
    /// `None` only after a write that panicked.
    sink: Option<AuditLogSink>,
    /// Whether the last write failed.
    failing: bool,
    metrics: Arc<Metrics>,
}

impl AuditLog {
    pub(super) fn open(
        target: AuditLogTarget,
        rotation: FileRotation,
        metrics: Arc<Metrics>,
    ) -> io::Result<Self> {
        let sink = match target {
            AuditLogTarget::Stdout => AuditLogSink::Stdout,
            AuditLogTarget::File(path) => AuditLogSink::File(RotatingFile::open(path, rotation)?),
        };
        Ok(Self { sink: Some(sink), failing: false, metrics })
    }

    /// Writes lines until shutdown was asked for and the last line is written.
    pub(super) async fn write_lines(
        mut self,
        mut queue: mpsc::Receiver<AwaitedLine>,
        shutdown: Shutdown,
    ) {
        let mut closing = false;
        loop {
            let mut awaited_lines = Vec::with_capacity(TOGETHER);
            // A receive that is dropped has taken no line out.
            tokio::select! {
                count = queue.recv_many(&mut awaited_lines, TOGETHER) => if count == 0 { return },
                () = shutdown.triggered(), if !closing => {
                    closing = true;
                    queue.close();
                    continue;
                }
            }
            let (lines, senders): (Vec<_>, Vec<_>) =
                awaited_lines.into_iter().map(|AwaitedLine { line, done }| (line, done)).unzip();
            self.write_batch(lines).await;
            for sender in senders {
                // The request that waited may be gone.
                let _gone = sender.send(());
            }
        }
    }

    /// Writes the lines, or counts them as lost.
    async fn write_batch(&mut self, lines: Vec<AuditLine>) {
        let count = lines.len();
        let Some(mut sink) = self.sink.take() else { return };
        let write_task = tokio::task::spawn_blocking(move || {
            let texts: Vec<_> = lines.iter().map(|line| line.text.clone()).collect();
            let outcome = sink.write(&texts);
            (sink, outcome)
        });
        let (written_lines, failure) = match write_task.await {
            Ok((sink, outcome)) => {
                self.sink = Some(sink);
                outcome
            }
            Err(panic) => (0, Some(io::Error::other(panic))),
        };
        // Logged when failures begin and when they end; lines lost between are counted.
        match failure {
            Some(error) => {
                self.metrics.lost_events(PLUGIN, count - written_lines);
                if !self.failing {
                    error!(%error, "Failed to write to the audit trail; events are lost");
                }
                self.failing = true;
            }
            None if self.failing => {
                info!("The audit trail is written again");
                self.failing = false;
            }
            None => {}
        }
    }
}

impl AuditLogSink {
    fn write(&mut self, lines: &[Bytes]) -> WriteOutcome {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                let write_result = out.write_all(&lines.concat()).and_then(|()| out.flush());
                match write_result {
                    Ok(()) => (lines.len(), None),
                    Err(error) => (0, Some(error)),
                }
            }
            Self::File(file) => file.write(lines),
        }
    }
}
