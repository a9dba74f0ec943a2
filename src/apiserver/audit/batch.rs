//! Queue of a backend in mode batch: events go in without waiting, and come out in batches.

use std::{future::pending, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use crate::runtime::Shutdown;

/// How events are gathered into batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchConfig {
    /// Most events that may wait in the queue; further events are lost.
    pub buffer: usize,
    /// Most events of a batch.
    pub max_size: usize,
    /// Longest time that the first event of a batch waits for others.
    pub max_wait: Duration,
    pub throttle: Option<BatchThrottle>,
}

/// Rate limit of the batches that are handed to a backend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchThrottle {
    /// Batches per second, in the long run.
    pub rate: f64,
    /// Most batches at one time, after a pause.
    pub burst: u32,
}

/// Receiving end of the queue: gathers events into batches.
pub(super) struct BatchQueue<T> {
    queue: mpsc::Receiver<T>,
    batch: BatchConfig,
    bucket: Option<TokenBucket>,
    shutdown: Shutdown,
    closing: bool,
}

impl<T> BatchQueue<T> {
    pub(super) fn new(batch: BatchConfig, shutdown: Shutdown) -> (mpsc::Sender<T>, Self) {
        let (sender, queue) = mpsc::channel(batch.buffer);
        let bucket = batch.throttle.map(TokenBucket::new);
        (sender, Self { queue, batch, bucket, shutdown, closing: false })
    }

    /// Returns the next batch; `None` when shutdown was asked for and the queue is empty.
    pub(super) async fn next(&mut self) -> Option<Vec<T>> {
        let mut events = Vec::new();
        let mut due = None;
        while events.len() < self.batch.max_size {
            let ripe = async {
                match due {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            // A `recv` that is dropped has taken no event out.
            tokio::select! {
                event = self.queue.recv() => match event {
                    Some(event) => events.push(event),
                    None => break,
                },
                () = ripe => break,
                () = self.shutdown.triggered(), if !self.closing => {
                    self.closing = true;
                    self.queue.close();
                }
            }
            due = due.or_else(|| Some(Instant::now() + self.batch.max_wait));
        }
        if events.is_empty() {
            return None;
        }
        if let Some(bucket) = &mut self.bucket {
            tokio::select! {
                () = bucket.take() => {}
                () = self.shutdown.triggered() => {}
            }
        }
        Some(events)
    }
}

/// Token bucket that limits the rate of batches.
struct TokenBucket {
    throttle: BatchThrottle,
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    fn new(throttle: BatchThrottle) -> Self {
        Self { throttle, tokens: f64::from(throttle.burst), at: Instant::now() }
    }

    /// Takes a token, and waits if there is none.
    async fn take(&mut self) {
        let now = Instant::now();
        let earned = (now - self.at).as_secs_f64() * self.throttle.rate;
        self.tokens = (self.tokens + earned).min(f64::from(self.throttle.burst)) - 1.0;
        self.at = now;
        if self.tokens < 0.0 {
            let wait = Duration::try_from_secs_f64(-self.tokens / self.throttle.rate);
            sleep(wait.unwrap_or(Duration::MAX)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(
        max_size: usize,
        throttle: Option<BatchThrottle>,
    ) -> (mpsc::Sender<char>, BatchQueue<char>, Shutdown) {
        let shutdown = Shutdown::new();
        let batch =
            BatchConfig { buffer: 100, max_size, max_wait: Duration::from_secs(30), throttle };
        let (sender, batches) = BatchQueue::new(batch, shutdown.clone());
        (sender, batches, shutdown)
    }

    fn offer(sender: &mpsc::Sender<char>, count: usize) {
        for _ in 0..count {
            sender.try_send('x').unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_full_or_has_waited_and_the_last_one_comes_at_once() {
        let (sender, mut batches, shutdown) = batches(4, None);
        let begun = Instant::now();
        offer(&sender, 5);
        assert_eq!(batches.next().await.unwrap().len(), 4);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(batches.next().await.unwrap().len(), 1);
        assert_eq!(begun.elapsed(), Duration::from_secs(30));
        offer(&sender, 2);
        shutdown.trigger();
        assert_eq!(batches.next().await.unwrap().len(), 2);
        assert!(batches.next().await.is_none());
        assert_eq!(begun.elapsed(), Duration::from_secs(30));
        assert!(sender.try_send('x').is_err(), "nobody would take it out");
    }

    #[tokio::test(start_paused = true)]
    async fn batches_are_throttled_until_the_end() {
        let (sender, mut batches, shutdown) =
            batches(1, Some(BatchThrottle { rate: 2.0, burst: 3 }));
        let begun = Instant::now();
        offer(&sender, 8);
        for expected in [0, 0, 0, 500, 1000] {
            batches.next().await.unwrap();
            let elapsed = begun.elapsed().as_millis();
            assert!(elapsed.abs_diff(expected) <= 2, "{elapsed} ms, not {expected}");
        }
        shutdown.trigger();
        for _ in 0..3 {
            batches.next().await.unwrap();
        }
        assert!(begun.elapsed() < Duration::from_millis(1010));
    }
}
