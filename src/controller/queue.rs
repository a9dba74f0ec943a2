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
    fn pause(&mut self, key: &ClusterKey, first: Duration) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let pause = first.saturating_mul(1 << (*failures).min(10)).min(BACKOFF_MAX);
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
    pub(crate) fn within(self, time: Duration) -> Self {
        match self {
            Self::Settled => Self::Again(time),
            Self::Again(after) => Self::Again(after.min(time)),
            Self::Failed | Self::Conflict | Self::Gone => self,
        }
    }
}

impl WorkQueue {
    /// Makes the cluster due now.
    pub(crate) fn add(&self, key: ClusterKey) {
        self.add_at(key, Instant::now());
    }

    fn add_at(&self, key: ClusterKey, at: Instant) {
        self.with(|state| {
            let due = state.due.entry(key).or_insert(at);
            *due = at.min(*due);
        });
        self.0.changed.notify_waiters();
    }

    /// Waits for the next cluster that is due and that no worker reconciles. Cancel-safe. Every key
    /// that is taken is given back with [`WorkQueue::done`].
    pub(crate) async fn take(&self) -> ClusterKey {
        loop {
            // Registered before the queue is read, so that no change in between is missed.
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let now = Instant::now();
            let next = self.with(|state| {
                let waiting =
                    || state.due.iter().filter(|(key, _)| !state.running.contains_key(*key));
                let (key, at) = waiting().min_by_key(|(_, at)| **at)?;
                let (key, at) = (key.clone(), *at);
                if at > now {
                    return Some(Err(at));
                }
                state.due.remove(&key);
                state.running.insert(key.clone(), now);
                Some(Ok(key))
            });
            match next {
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
    pub(crate) fn done(&self, key: ClusterKey, outcome: ReconcileOutcome) {
        let now = Instant::now();
        self.with(|state| {
            state.running.remove(&key);
            let again = match outcome {
                ReconcileOutcome::Settled | ReconcileOutcome::Gone => {
                    state.failures.remove(&key);
                    None
                }
                ReconcileOutcome::Again(after) => {
                    state.failures.remove(&key);
                    Some(after)
                }
                ReconcileOutcome::Failed => Some(state.pause(&key, BACKOFF_FIRST)),
                ReconcileOutcome::Conflict => Some(state.pause(&key, CONFLICT_FIRST)),
            };
            let failures = state.failures.get(&key).copied().unwrap_or_default();
            if let Some(after) = again {
                let at = now + after;
                let due = state.due.entry(key).or_insert(at);
                // After a failure, an event that came meanwhile waits for the backoff too. A
                // conflict is often over with the next event.
                let waits = match outcome {
                    ReconcileOutcome::Failed => true,
                    ReconcileOutcome::Conflict => failures > PATIENT,
                    _ => false,
                };
                *due = if waits { at } else { at.min(*due) };
            }
        });
        self.0.changed.notify_waiters();
    }

    /// Returns how many reconciles of the cluster in a row failed or met a conflict.
    pub(crate) fn failures(&self, key: &ClusterKey) -> u32 {
        self.with(|state| state.failures.get(key).copied().unwrap_or_default())
    }

    /// Returns the number of clusters that are due now and not being reconciled.
    pub(crate) fn depth(&self) -> usize {
        let now = Instant::now();
        self.with(|state| state.due.values().filter(|at| **at <= now).count())
    }

    /// Returns the cluster whose reconcile has lasted longest, and when that began.
    pub(crate) fn longest(&self) -> Option<(ClusterKey, Instant)> {
        self.with(|state| {
            let (key, since) = state.running.iter().min_by_key(|(_, since)| **since)?;
            Some((key.clone(), *since))
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut QueueState) -> T) -> T {
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
        assert_eq!(queue.take().await, key("a"));
        assert_eq!(queue.depth(), 0);
        // Added while it is reconciled: due again, but not to a second worker.
        queue.add(key("a"));
        let second = tokio::time::timeout(Duration::from_secs(1), queue.take()).await;
        assert!(second.is_err(), "{second:?}");
        queue.done(key("a"), ReconcileOutcome::Settled);
        assert_eq!(queue.take().await, key("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_each_time_and_success_forgets_them() {
        let queue = WorkQueue::default();
        queue.add(key("a"));
        let mut pauses = Vec::new();
        for _ in 0..10 {
            let before = Instant::now();
            let taken = queue.take().await;
            pauses.push(before.elapsed().as_millis());
            queue.done(taken, ReconcileOutcome::Failed);
        }
        // The first is due at once; tokio's clock ticks in milliseconds.
        assert_eq!(pauses[0], 0);
        // Twice as long each time, and up to a fifth longer at random.
        assert!(pauses[..8].windows(2).all(|pair| pair[1] >= pair[0]), "{pauses:?}");
        assert!((60_000..=72_001).contains(&pauses[9]), "{pauses:?}");
        let taken = queue.take().await;
        queue.done(taken, ReconcileOutcome::Settled);
        queue.add(key("a"));
        let taken = queue.take().await;
        queue.done(taken, ReconcileOutcome::Failed);
        let before = Instant::now();
        queue.take().await;
        assert!(before.elapsed() <= Duration::from_millis(601));
    }
}
