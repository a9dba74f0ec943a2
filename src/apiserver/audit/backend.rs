//! The two backends, and the events that wait for them.
//!
//! A request waits for room in the log's buffer, and then until its event is written, for at most
//! [`PATIENCE`] each. No request waits for the webhook: an event that finds no room in the
//! webhook's buffer is lost.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{
    AuditLogConfig, AuditWebhookConfig,
    batch::BatchQueue,
    line::{AuditLine, BufferSpace},
    log::{self, AuditLog, AwaitedLine},
    webhook::{AuditWebhook, AuditWebhookError},
};
use crate::{apiserver::metrics::Metrics, runtime::Runtime};

/// Name of the webhook's buffer in metrics, for events that found no room.
const BUFFER: &str = "buffered";
/// Longest time that a request waits for a disk that hangs.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct LogBackend {
    /// Queue of the task that writes the log. It is long enough for the lines that have room.
    queue: mpsc::Sender<AwaitedLine>,
    room: BufferSpace,
    metrics: Arc<Metrics>,
}

/// What a request has to wait for after it handed an event to the log.
pub(super) enum LogReceipt<'a> {
    Room(UnplacedEvent<'a>),
    Written(oneshot::Receiver<()>),
}

/// An event for which there is no room yet. When dropped, it is counted as lost.
pub(super) struct UnplacedEvent<'a> {
    text: Bytes,
    log: Option<&'a LogBackend>,
}

impl Drop for UnplacedEvent<'_> {
    fn drop(&mut self) {
        if let Some(log) = self.log {
            log.count_lost();
        }
    }
}

impl LogBackend {
    pub(super) fn new(
        config: &AuditLogConfig,
        metrics: &Arc<Metrics>,
        rt: &Runtime,
    ) -> io::Result<Self> {
        let AuditLogConfig { target, rotation } = config;
        let log = AuditLog::open(target.clone(), *rotation, Arc::clone(metrics))?;
        let (queue, lines) = mpsc::channel(BufferSpace::MOST);
        rt.tasks().spawn("audit-log", log.write_lines(lines, rt.shutdown()));
        Ok(Self { queue, room: BufferSpace::new(), metrics: Arc::clone(metrics) })
    }

    /// Takes an event, as far as that is possible without waiting.
    pub(super) fn submit(&self, text: Bytes) -> LogReceipt<'_> {
        match self.room.try_acquire(text) {
            Ok(line) => LogReceipt::Written(self.enqueue_line(line)),
            Err(text) => LogReceipt::Room(UnplacedEvent { text, log: Some(self) }),
        }
    }

    /// Waits until the event is written or lost, or takes too long.
    pub(super) async fn wait_until_written(&self, receipt: LogReceipt<'_>) {
        let receiver = match receipt {
            LogReceipt::Written(receiver) => receiver,
            LogReceipt::Room(mut event) => {
                let line = timeout(PATIENCE, self.room.acquire(event.text.clone())).await;
                let Ok(line) = line else { return };
                event.log = None;
                self.enqueue_line(line)
            }
        };
        // The event may still be written later.
        let _late = timeout(PATIENCE, receiver).await;
    }

    fn enqueue_line(&self, line: AuditLine) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        // The queue is closed when the process ends.
        if self.queue.try_send(AwaitedLine { line, done: sender }).is_err() {
            self.count_lost();
        }
        receiver
    }

    fn count_lost(&self) {
        self.metrics.lost_events(log::PLUGIN, 1);
    }
}

pub(super) struct WebhookBackend {
    queue: mpsc::Sender<AuditLine>,
    room: BufferSpace,
    metrics: Arc<Metrics>,
}

impl WebhookBackend {
    pub(super) async fn new(
        config: &AuditWebhookConfig,
        metrics: &Arc<Metrics>,
        rt: &Runtime,
    ) -> Result<Self, AuditWebhookError> {
        let AuditWebhookConfig { file, backoff } = config;
        let hook = AuditWebhook::new(file, *backoff, Arc::clone(metrics), rt.shutdown()).await?;
        let (queue, batches) = BatchQueue::new(rt.shutdown());
        let tasks = rt.tasks().clone();
        rt.tasks().spawn("audit-webhook", Arc::new(hook).send_batches(batches, tasks));
        Ok(Self { queue, room: BufferSpace::new(), metrics: Arc::clone(metrics) })
    }

    /// Takes an event if there is room for it.
    pub(super) fn submit(&self, text: Bytes) {
        let line = self.room.try_acquire(text).ok();
        if line.is_none_or(|line| self.queue.try_send(line).is_err()) {
            self.metrics.lost_events(BUFFER, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 6 << 20;

    fn lost(metrics: &Metrics, plugin: &str) -> u64 {
        metrics.audit_errors.with_label_values(&[plugin]).get()
    }

    #[tokio::test]
    async fn events_that_wait_for_the_webhook_are_bounded_by_their_bytes_and_their_number() {
        let (queue, mut waiting) = mpsc::channel(7);
        let metrics = Arc::new(Metrics::new());
        let backend =
            WebhookBackend { queue, room: BufferSpace::new(), metrics: Arc::clone(&metrics) };
        for _ in 0..7 {
            backend.submit(vec![b'x'; LARGE].into());
        }
        assert_eq!((waiting.len(), lost(&metrics, "buffered")), (5, 2));
        // There is still room for an event without objects, and for more when one event has left.
        backend.submit(vec![b'x'; 1024].into());
        drop(waiting.recv().await);
        backend.submit(vec![b'x'; LARGE].into());
        assert_eq!((waiting.len(), lost(&metrics, "buffered")), (6, 2));
        for _ in 0..2 {
            backend.submit(vec![b'x'; 1024].into());
        }
        assert_eq!((waiting.len(), lost(&metrics, "buffered")), (7, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_disk_that_hangs_but_not_for_ever() {
        let (queue, mut waiting) = mpsc::channel(BufferSpace::MOST);
        let metrics = Arc::new(Metrics::new());
        let backend = LogBackend { queue, room: BufferSpace::new(), metrics: Arc::clone(&metrics) };
        let event = || Bytes::from(vec![b'x'; LARGE]);
        let begun = tokio::time::Instant::now();
        for _ in 0..5 {
            // The event may still be written.
            backend.wait_until_written(backend.submit(event())).await;
        }
        assert_eq!((begun.elapsed(), lost(&metrics, "log")), (5 * PATIENCE, 0));
        backend.wait_until_written(backend.submit(event())).await;
        drop(backend.submit(event()));
        assert_eq!((begun.elapsed(), lost(&metrics, "log")), (6 * PATIENCE, 2));
        tokio::join!(backend.wait_until_written(backend.submit(event())), async {
            for _ in 0..6 {
                let AwaitedLine { line, done } = waiting.recv().await.unwrap();
                drop(line);
                let _gone = done.send(());
            }
        });
        assert_eq!(begun.elapsed(), 6 * PATIENCE, "there was room again");
    }
}
