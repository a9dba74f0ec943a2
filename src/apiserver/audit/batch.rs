//! Queue of the webhook: events go in without waiting, and come out in batches.

use std::{future::pending, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use crate::runtime::Shutdown;

/// Most events that may wait in the queue; further events are lost.
const BUFFER: usize = 10_000;
/// Most events of a batch.
const MAX_SIZE: usize = 400;
/// Longest time that the first event of a batch waits for others.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Receiving end of the queue: gathers events into batches.
pub(super) struct BatchQueue<T> {
    queue: mpsc::Receiver<T>,
    shutdown: Shutdown,
    closing: bool,
}

impl<T> BatchQueue<T> {
    pub(super) fn new(shutdown: Shutdown) -> (mpsc::Sender<T>, Self) {
        let (sender, queue) = mpsc::channel(BUFFER);
        (sender, Self { queue, shutdown, closing: false })
    }

    /// Returns the next batch; `None` when shutdown was asked for and the queue is empty.
    pub(super) async fn next(&mut self) -> Option<Vec<T>> {
        let mut events = Vec::new();
        let mut deadline = None;
        while events.len() < MAX_SIZE {
            let deadline_timer = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => pending().await,
                }
            };
            // A `recv` that is dropped has taken no event out.
            tokio::select! {
                event = self.queue.recv() => match event {
                    Some(event) => events.push(event),
                    None => break,
                },
                () = deadline_timer => break,
                () = self.shutdown.triggered(), if !self.closing => {
                    self.closing = true;
                    self.queue.close();
                }
            }
            deadline = deadline.or_else(|| Some(Instant::now() + MAX_WAIT));
        }
        (!events.is_empty()).then_some(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(sender: &mpsc::Sender<char>, count: usize) {
        for _ in 0..count {
            sender.try_send('x').unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_full_or_has_waited_and_the_last_one_comes_at_once() {
        let shutdown = Shutdown::new();
        let (sender, mut batches) = BatchQueue::new(shutdown.clone());
        let begun = Instant::now();
        offer(&sender, MAX_SIZE + 1);
        assert_eq!(batches.next().await.unwrap().len(), MAX_SIZE);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(batches.next().await.unwrap().len(), 1);
        assert_eq!(begun.elapsed(), MAX_WAIT);
        offer(&sender, 2);
        shutdown.trigger();
        assert_eq!(batches.next().await.unwrap().len(), 2);
        assert!(batches.next().await.is_none());
        assert_eq!(begun.elapsed(), MAX_WAIT);
        assert!(sender.try_send('x').is_err(), "the queue is closed");
    }
}
