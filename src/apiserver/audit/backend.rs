//! One backend, a log or a webhook, and the events that wait for it.
//!
//! In mode batch an event that finds no room is lost. In the other modes its request waits for
//! room, and then until the event is written, for no longer than [`PATIENCE`] each.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{
    Delivery, LogConfig, Mode, WebhookConfig,
    batch::Batches,
    line::{Line, Room},
    log::{self, Awaited, Log},
    webhook::{self, Webhook, WebhookError},
};
use crate::{
    apiserver::metrics::Metrics,
    runtime::{Runtime, Tasks},
};

/// The buffer's name in metrics, for events that found no room.
const BUFFER: &str = "buffered";
/// How long a request waits for a disk or a webhook that hangs.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Backend {
    way: Way,
    room: Room,
    /// Bytes of an event, when larger ones are truncated.
    pub(super) max_event: Option<usize>,
    /// Must a request fail whose arrival could not be recorded?
    pub(super) is_strict: bool,
    metrics: Arc<Metrics>,
}

enum Way {
    Batched(mpsc::Sender<Line>),
    /// The queue has a place for every line that has room.
    Written(mpsc::Sender<Awaited>),
    Sent(Arc<Webhook>, Tasks),
}

/// What a request waits for after it gave an event.
pub(super) enum Receipt<'a> {
    Nothing,
    Room(Unplaced<'a>),
    Written(oneshot::Receiver<bool>),
}

/// An event for which there is no room yet. When dropped, it is counted as lost.
pub(super) struct Unplaced<'a> {
    text: Bytes,
    backend: Option<&'a Backend>,
}

impl Drop for Unplaced<'_> {
    fn drop(&mut self) {
        if let Some(backend) = self.backend {
            backend.lose();
        }
    }
}

impl Backend {
    fn new(way: Way, delivery: Delivery, metrics: &Arc<Metrics>) -> Self {
        let Delivery { mode, truncation } = delivery;
        Self {
            way,
            room: Room::new(),
            max_event: truncation.map(|truncation| truncation.max_event),
            is_strict: mode == Mode::BlockingStrict,
            metrics: Arc::clone(metrics),
        }
    }

    pub(super) fn log(
        config: &LogConfig,
        metrics: &Arc<Metrics>,
        rt: &Runtime,
    ) -> io::Result<Self> {
        let LogConfig { target, rotation, delivery } = config;
        let log = Log::open(target.clone(), *rotation, Arc::clone(metrics))?;
        let way = if let Mode::Batch(batch) = delivery.mode {
            let (queue, batches) = Batches::new(batch, rt.shutdown());
            rt.tasks().spawn("audit-log", log.write_batches(batches));
            Way::Batched(queue)
        } else {
            let (queue, awaited) = mpsc::channel(Room::MOST);
            rt.tasks().spawn("audit-log", log.write_awaited(awaited, rt.shutdown()));
            Way::Written(queue)
        };
        Ok(Self::new(way, *delivery, metrics))
    }

    pub(super) async fn webhook(
        config: &WebhookConfig,
        metrics: &Arc<Metrics>,
        rt: &Runtime,
    ) -> Result<Self, WebhookError> {
        let WebhookConfig { file, backoff, delivery } = config;
        let largest = delivery.truncation.map(|truncation| truncation.max_batch);
        let shutdown = rt.shutdown();
        let hook = Webhook::new(file, *backoff, largest, Arc::clone(metrics), shutdown).await?;
        let (hook, tasks) = (Arc::new(hook), rt.tasks().clone());
        let way = if let Mode::Batch(batch) = delivery.mode {
            let (queue, batches) = Batches::new(batch, rt.shutdown());
            rt.tasks().spawn("audit-webhook", hook.send_batches(batches, tasks));
            Way::Batched(queue)
        } else {
            Way::Sent(hook, tasks)
        };
        Ok(Self::new(way, *delivery, metrics))
    }

    /// Takes an event as far as it gets without waiting.
    pub(super) fn take(&self, text: Bytes) -> Receipt<'_> {
        let receipt = match self.room.try_take(text) {
            Ok(line) => Receipt::Written(self.carry(line)),
            Err(text) => Receipt::Room(Unplaced { text, backend: Some(self) }),
        };
        // In mode batch no request waits, neither for room nor for the write.
        if matches!(self.way, Way::Batched(_)) { Receipt::Nothing } else { receipt }
    }

    /// Waits until the backend has the event: `false` when it is lost, or takes too long.
    pub(super) async fn settle(&self, receipt: Receipt<'_>) -> bool {
        let written = match receipt {
            Receipt::Nothing => return true,
            Receipt::Written(written) => written,
            Receipt::Room(mut unplaced) => {
                let line = timeout(PATIENCE, self.room.take(unplaced.text.clone())).await;
                let Ok(line) = line else { return false };
                unplaced.backend = None;
                self.carry(line)
            }
        };
        matches!(timeout(PATIENCE, written).await, Ok(Ok(true)))
    }

    fn carry(&self, line: Line) -> oneshot::Receiver<bool> {
        let (done, written) = oneshot::channel();
        match &self.way {
            Way::Batched(queue) => {
                if queue.try_send(line).is_err() {
                    self.lose();
                }
            }
            Way::Written(queue) => {
                // The queue is closed when the process ends.
                if queue.try_send(Awaited { line, done }).is_err() {
                    self.lose();
                }
            }
            Way::Sent(hook, tasks) => {
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
            Way::Batched(_) => BUFFER,
            Way::Written(_) => log::PLUGIN,
            Way::Sent(..) => webhook::PLUGIN,
        };
        self.metrics.lost_events(plugin, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Batch, *};

    const LARGE: usize = 6 << 20;

    fn backend(way: Way, mode: Mode) -> (Backend, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new());
        (Backend::new(way, Delivery { mode, truncation: None }, &metrics), metrics)
    }

    fn lost(metrics: &Metrics, plugin: &str) -> u64 {
        metrics.audit_errors.with_label_values(&[plugin]).get()
    }

    #[tokio::test]
    async fn large_events_that_wait_in_a_buffer_are_bounded_by_their_bytes() {
        let throttle = None;
        let batch = Batch { buffer: 10_000, max_size: 400, max_wait: Duration::ZERO, throttle };
        let (queue, mut waiting) = mpsc::channel(batch.buffer);
        let (backend, metrics) = backend(Way::Batched(queue), Mode::Batch(batch));
        for _ in 0..7 {
            assert!(backend.settle(backend.take(vec![b'x'; LARGE].into())).await);
        }
        assert_eq!((waiting.len(), lost(&metrics, "buffered")), (5, 2));
        // There is still room for an event without objects, and for more when one has left.
        backend.take(vec![b'x'; 1024].into());
        drop(waiting.recv().await);
        backend.take(vec![b'x'; LARGE].into());
        assert_eq!((waiting.len(), lost(&metrics, "buffered")), (6, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_disk_that_hangs_but_not_for_ever() {
        let (queue, mut waiting) = mpsc::channel(Room::MOST);
        let (backend, metrics) = backend(Way::Written(queue), Mode::Blocking);
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
                let Awaited { line, done } = waiting.recv().await.unwrap();
                drop(line);
                let _gone = done.send(true);
            }
        });
        assert!(settled, "there was room again");
    }
}
