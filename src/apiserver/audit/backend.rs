//! One backend, a log or a webhook, and the events that wait for it.
//!
//! In mode batch an event that finds no room is lost. In the other modes its request waits for
//! room, and then until the event is written, for at most [`PATIENCE`] each.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{
    AuditDelivery, AuditLogConfig, AuditWebhookConfig, DeliveryMode,
    batch::BatchQueue,
    line::{AuditLine, BufferSpace},
    log::{self, AuditLog, AwaitedLine},
    webhook::{self, AuditWebhook, AuditWebhookError},
};
use crate::{
    apiserver::metrics::Metrics,
    runtime::{Runtime, TaskGroup},
};

/// Name of the buffer in metrics, for events that found no room.
const BUFFER: &str = "buffered";
/// Longest time that a request waits for a disk or a webhook that hangs.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct AuditBackend {
    way: DeliveryChannel,
    room: BufferSpace,
    /// Most bytes of an event, if larger ones are truncated.
    pub(super) max_event: Option<usize>,
    /// Whether a request must fail when its arrival could not be recorded.
    pub(super) is_strict: bool,
    metrics: Arc<Metrics>,
}

enum DeliveryChannel {
    Batched(mpsc::Sender<AuditLine>),
    /// Queue of the task that writes the log. It is long enough for the lines that have room.
    Written(mpsc::Sender<AwaitedLine>),
    Sent(Arc<AuditWebhook>, TaskGroup),
}

/// What a request has to wait for after it handed over an event.
pub(super) enum DeliveryReceipt<'a> {
    Nothing,
    Room(UnplacedEvent<'a>),
    Written(oneshot::Receiver<bool>),
}

/// An event for which there is no room yet. When dropped, it is counted as lost.
pub(super) struct UnplacedEvent<'a> {
    text: Bytes,
    backend: Option<&'a AuditBackend>,
}

impl Drop for UnplacedEvent<'_> {
    fn drop(&mut self) {
        if let Some(backend) = self.backend {
            backend.lose();
        }
    }
}

impl AuditBackend {
    fn new(way: DeliveryChannel, delivery: AuditDelivery, metrics: &Arc<Metrics>) -> Self {
        let AuditDelivery { mode, truncation } = delivery;
        Self {
            way,
            room: BufferSpace::new(),
            max_event: truncation.map(|truncation| truncation.max_event),
            is_strict: mode == DeliveryMode::BlockingStrict,
            metrics: Arc::clone(metrics),
        }
    }

    pub(super) fn log(
        config: &AuditLogConfig,
        metrics: &Arc<Metrics>,
        rt: &Runtime,
    ) -> io::Result<Self> {
        let AuditLogConfig { target, rotation, delivery } = config;
        let log = AuditLog::open(target.clone(), *rotation, Arc::clone(metrics))?;
        let way = if let DeliveryMode::Batch(batch) = delivery.mode {
            let (queue, batches) = BatchQueue::new(batch, rt.shutdown());
            rt.tasks().spawn("audit-log", log.write_batches(batches));
            DeliveryChannel::Batched(queue)
        } else {
            let (queue, awaited) = mpsc::channel(BufferSpace::MOST);
            rt.tasks().spawn("audit-log", log.write_awaited(awaited, rt.shutdown()));
            DeliveryChannel::Written(queue)
        };
        Ok(Self::new(way, *delivery, metrics))
    }

    pub(super) async fn webhook(
        config: &AuditWebhookConfig,
        metrics: &Arc<Metrics>,
        rt: &Runtime,
    ) -> Result<Self, AuditWebhookError> {
        let AuditWebhookConfig { file, backoff, delivery } = config;
        let largest = delivery.truncation.map(|truncation| truncation.max_batch);
        let shutdown = rt.shutdown();
        let hook =
            AuditWebhook::new(file, *backoff, largest, Arc::clone(metrics), shutdown).await?;
        let (hook, tasks) = (Arc::new(hook), rt.tasks().clone());
        let way = if let DeliveryMode::Batch(batch) = delivery.mode {
            let (queue, batches) = BatchQueue::new(batch, rt.shutdown());
            rt.tasks().spawn("audit-webhook", hook.send_batches(batches, tasks));
            DeliveryChannel::Batched(queue)
        } else {
            DeliveryChannel::Sent(hook, tasks)
        };
        Ok(Self::new(way, *delivery, metrics))
    }

    /// Takes an event, as far as that is possible without waiting.
    pub(super) fn take(&self, text: Bytes) -> DeliveryReceipt<'_> {
        let receipt = match self.room.try_take(text) {
            Ok(line) => DeliveryReceipt::Written(self.carry(line)),
            Err(text) => DeliveryReceipt::Room(UnplacedEvent { text, backend: Some(self) }),
        };
        // In mode batch no request waits, neither for room nor for the write.
        if matches!(self.way, DeliveryChannel::Batched(_)) {
            DeliveryReceipt::Nothing
        } else {
            receipt
        }
    }

    /// Waits until the backend has the event. `false` when the event is lost or takes too long.
    pub(super) async fn settle(&self, receipt: DeliveryReceipt<'_>) -> bool {
        let written = match receipt {
            DeliveryReceipt::Nothing => return true,
            DeliveryReceipt::Written(written) => written,
            DeliveryReceipt::Room(mut unplaced) => {
                let line = timeout(PATIENCE, self.room.take(unplaced.text.clone())).await;
                let Ok(line) = line else { return false };
                unplaced.backend = None;
                self.carry(line)
            }
        };
        matches!(timeout(PATIENCE, written).await, Ok(Ok(true)))
    }

    fn carry(&self, line: AuditLine) -> oneshot::Receiver<bool> {
        let (done, written) = oneshot::channel();
        match &self.way {
            DeliveryChannel::Batched(queue) => {
                if queue.try_send(line).is_err() {
                    self.lose();
                }
            }
            DeliveryChannel::Written(queue) => {
                // The queue is closed when the process ends.
                if queue.try_send(AwaitedLine { line, done }).is_err() {
                    self.lose();
                }
            }
            DeliveryChannel::Sent(hook, tasks) => {
                let hook = Arc::clone(hook);
                tasks.spawn("audit-webhook", async move {
                    // The request that waited may be gone.
                    let _gone = done.send(hook.send(vec![line]).await);
                });
            }
        }
        written
    }

    fn lose(&self) {
        let plugin = match self.way {
            DeliveryChannel::Batched(_) => BUFFER,
            DeliveryChannel::Written(_) => log::PLUGIN,
            DeliveryChannel::Sent(..) => webhook::PLUGIN,
        };
        self.metrics.lost_events(plugin, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::BatchConfig, *};

    const LARGE: usize = 6 << 20;

    fn backend(way: DeliveryChannel, mode: DeliveryMode) -> (AuditBackend, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new());
        (AuditBackend::new(way, AuditDelivery { mode, truncation: None }, &metrics), metrics)
    }

    fn lost(metrics: &Metrics, plugin: &str) -> u64 {
        metrics.audit_errors.with_label_values(&[plugin]).get()
    }

    #[tokio::test]
    async fn large_events_that_wait_in_a_buffer_are_bounded_by_their_bytes() {
        let throttle = None;
        let batch =
            BatchConfig { buffer: 10_000, max_size: 400, max_wait: Duration::ZERO, throttle };
        let (queue, mut waiting) = mpsc::channel(batch.buffer);
        let (backend, metrics) =
            backend(DeliveryChannel::Batched(queue), DeliveryMode::Batch(batch));
        for _ in 0..7 {
            assert!(backend.settle(backend.take(vec![b'x'; LARGE].into())).await);
        }
        assert_eq!((waiting.len(), lost(&metrics, "buffered")), (5, 2));
        // There is still room for an event without objects, and for more when one event has left.
        backend.take(vec![b'x'; 1024].into());
        drop(waiting.recv().await);
        backend.take(vec![b'x'; LARGE].into());
        assert_eq!((waiting.len(), lost(&metrics, "buffered")), (6, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_disk_that_hangs_but_not_for_ever() {
        let (queue, mut waiting) = mpsc::channel(BufferSpace::MOST);
        let (backend, metrics) = backend(DeliveryChannel::Written(queue), DeliveryMode::Blocking);
        let event = || Bytes::from(vec![b'x'; LARGE]);
        let begun = tokio::time::Instant::now();
        for _ in 0..5 {
            // The event may still be written.
            assert!(!backend.settle(backend.take(event())).await);
        }
        assert_eq!((begun.elapsed(), lost(&metrics, "log")), (5 * PATIENCE, 0));
        assert!(!backend.settle(backend.take(event())).await);
        drop(backend.take(event()));
        assert_eq!((begun.elapsed(), lost(&metrics, "log")), (6 * PATIENCE, 2));
        let (settled, ()) = tokio::join!(backend.settle(backend.take(event())), async {
            for _ in 0..6 {
                let AwaitedLine { line, done } = waiting.recv().await.unwrap();
                drop(line);
                let _gone = done.send(true);
            }
        });
        assert!(settled, "there was room again");
    }
}
