//! The queue of clusters that are due to be reconciled, and when.
//!
//! Owns coalescing (a cluster is in the queue once), exclusion (one reconcile at a time per
//! cluster) and the backoff of each. Knows nothing of what a reconcile does.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// Identifies a cluster by kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClusterKey {
    pub(crate) kind: &'static str,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl QueueState {
    /// Returns how long this cluster waits after one more failure.
    fn next_backoff(&mut self, key: &ClusterKey, first_delay: Duration) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let pause = first_delay.saturating_mul(1 << (*failures).min(10)).min(BACKOFF_MAX);
        *failures += 1;
        // The random part keeps clusters that failed together from coming back together.
        pause.mul_f64(1.0 + rand::random::<f64>() / 5.0)
    }
}

impl fmt::Display for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// First pause after a failed reconcile (`BACKOFF_FIRST`), and after a conflict (`CONFLICT_FIRST`).
/// Each further failure or conflict in a row doubles the pause, up to `BACKOFF_MAX`, and up to a
/// fifth is added at random.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const CONFLICT_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Conflicts in a row up to which a lagging cache is a likely cause. After more, events wait for
/// the pause too.
const PATIENT: u32 = 3;

#[derive(Clone, Debug, Default)]
pub(crate) struct WorkQueue(Arc<QueueInner>);

#[derive(Debug, Default)]
struct QueueInner {
    state: Mutex<QueueState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    due: BTreeMap<ClusterKey, Instant>,
    /// Clusters that are being reconciled, and since when.
    running: BTreeMap<ClusterKey, Instant>,
    failures: BTreeMap<ClusterKey, u32>,
}

/// The outcome of a reconcile, which decides when the cluster is due again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReconcileOutcome {
    /// Nothing more to do until something changes.
    Settled,
    /// Reconcile again after this time at the latest.
    Again(Duration),
    /// Reconcile again, later with each failure.
    Failed,
    /// Another client was faster, or the caches lag: reconcile again, later with each conflict in a
    /// row.
    Conflict,
    /// The cluster is gone.
    Gone,
}

impl ReconcileOutcome {
    /// Returns this outcome, with another reconcile after this time at the latest.
    pub(crate) fn retry_within(self, time: Duration) -> Self {
        match self {
            Self::Settled => Self::Again(time),
            Self::Again(delay) => Self::Again(delay.min(time)),
            Self::Failed | Self::Conflict | Self::Gone => self,
        }
    }
}

impl WorkQueue {
    /// Makes the cluster due now.
    pub(crate) fn add(&self, key: ClusterKey) {
        self.add_at(key, Instant::now());
    }

    fn add_at(&self, key: ClusterKey, time: Instant) {
        self.with_state(|state| {
            let due_time = state.due.entry(key).or_insert(time);
            *due_time = time.min(*due_time);
        });
        self.0.changed.notify_waiters();
    }

    /// Waits for the next cluster that is due and that no worker reconciles. Cancel-safe. Every key
    /// that is taken is given back with [`WorkQueue::finish_reconcile`].
    pub(crate) async fn take_key(&self) -> ClusterKey {
        loop {
            // Registered before the queue is read, so that no change in between is missed.
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let now = Instant::now();
            let next_key = self.with_state(|state| {
                let waiting_keys =
                    || state.due.iter().filter(|(key, _)| !state.running.contains_key(*key));
                let (key, due_at) = waiting_keys().min_by_key(|(_, due_at)| **due_at)?;
                let (key, due_at) = (key.clone(), *due_at);
                if due_at > now {
                    return Some(Err(due_at));
                }
                state.due.remove(&key);
                state.running.insert(key.clone(), now);
                Some(Ok(key))
            });
            match next_key {
                Some(Ok(key)) => return key,
                Some(Err(at)) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    /// Gives a cluster back to the queue, and decides from `outcome` when it is due again.
    pub(crate) fn finish_reconcile(&self, key: ClusterKey, outcome: ReconcileOutcome) {
        let now = Instant::now();
        self.with_state(|state| {
            state.running.remove(&key);
            let retry_delay = match outcome {
                ReconcileOutcome::Settled | ReconcileOutcome::Gone => {
                    state.failures.remove(&key);
                    None
                }
                ReconcileOutcome::Again(delay) => {
                    state.failures.remove(&key);
                    Some(delay)
                }
                ReconcileOutcome::Failed => Some(state.next_backoff(&key, BACKOFF_FIRST)),
                ReconcileOutcome::Conflict => Some(state.next_backoff(&key, CONFLICT_FIRST)),
            };
            let failures = state.failures.get(&key).copied().unwrap_or_default();
            if let Some(delay) = retry_delay {
                let retry_at = now + delay;
                let due_time = state.due.entry(key).or_insert(retry_at);
                // After a failure, an event that came meanwhile waits for the backoff too. A
                // conflict is often over with the next event.
                let is_delayed = match outcome {
                    ReconcileOutcome::Failed => true,
                    ReconcileOutcome::Conflict => failures > PATIENT,
                    _ => false,
                };
                *due_time = if is_delayed { retry_at } else { retry_at.min(*due_time) };
            }
        });
        self.0.changed.notify_waiters();
    }

    /// Returns how many reconciles of the cluster in a row failed or met a conflict.
    pub(crate) fn failures(&self, key: &ClusterKey) -> u32 {
        self.with_state(|state| state.failures.get(key).copied().unwrap_or_default())
    }

    /// Returns the number of clusters that are due now and not being reconciled.
    pub(crate) fn depth(&self) -> usize {
        let now = Instant::now();
        self.with_state(|state| state.due.values().filter(|due_at| **due_at <= now).count())
    }

    /// Returns the cluster whose reconcile has lasted longest, and when that began.
    pub(crate) fn longest_reconcile(&self) -> Option<(ClusterKey, Instant)> {
        self.with_state(|state| {
            let (key, started_at) =
                state.running.iter().min_by_key(|(_, started_at)| **started_at)?;
            Some((key.clone(), *started_at))
        })
    }

    fn with_state<T>(&self, f: impl FnOnce(&mut QueueState) -> T) -> T {
        f(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ClusterKey {
        ClusterKey { kind: "ExampleCluster", namespace: "default".into(), name: name.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_is_looked_at_once_however_often_it_is_added() {
        let queue = WorkQueue::default();
        queue.add(key("a"));
        queue.add(key("a"));
        assert_eq!(queue.take_key().await, key("a"));
        assert_eq!(queue.depth(), 0);
        // Added while it is reconciled: due again, but not to a second worker.
        queue.add(key("a"));
        let second = tokio::time::timeout(Duration::from_secs(1), queue.take_key()).await;
        assert!(second.is_err(), "{second:?}");
        queue.finish_reconcile(key("a"), ReconcileOutcome::Settled);
        assert_eq!(queue.take_key().await, key("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_each_time_and_success_forgets_them() {
        let queue = WorkQueue::default();
        queue.add(key("a"));
        let mut pauses = Vec::new();
        for _ in 0..10 {
            let before = Instant::now();
            let taken = queue.take_key().await;
            pauses.push(before.elapsed().as_millis());
            queue.finish_reconcile(taken, ReconcileOutcome::Failed);
        }
        // The first is due at once; tokio's clock ticks in milliseconds.
        assert_eq!(pauses[0], 0);
        // Twice as long each time, and up to a fifth longer at random.
        assert!(pauses[..8].windows(2).all(|pair| pair[1] >= pair[0]), "{pauses:?}");
        assert!((60_000..=72_001).contains(&pauses[9]), "{pauses:?}");
        let taken = queue.take_key().await;
        queue.finish_reconcile(taken, ReconcileOutcome::Settled);
        queue.add(key("a"));
        let taken = queue.take_key().await;
        queue.finish_reconcile(taken, ReconcileOutcome::Failed);
        let before = Instant::now();
        queue.take_key().await;
        assert!(before.elapsed() <= Duration::from_millis(601));
    }
}
