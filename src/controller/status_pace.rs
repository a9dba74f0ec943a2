//! How soon the words of a cluster's status are written again.
//!
//! A node that starts says something new every few seconds, and each sentence written costs the API
//! server as much as one that matters. What changes in more than words and counts is written at
//! once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::queue::ClusterKey;
use crate::api::v1beta1::{ClusterStatus, Operation};

/// Shortest time between two writes of which the second one changes words alone.
const WORDS_EVERY: Duration = Duration::from_secs(15);

/// When the status of each cluster was last written.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatusPace(Arc<Mutex<HashMap<ClusterKey, Instant>>>);

impl StatusPace {
    /// Returns for how long the write of a status can wait that differs from the stored one in words
    /// alone; `None` where it is due.
    pub(crate) fn remaining_delay(
        &self,
        key: &ClusterKey,
        old_status: &ClusterStatus,
        new_status: &ClusterStatus,
    ) -> Option<Duration> {
        let written_at = *self.lock().get(key)?;
        let remaining = WORDS_EVERY
            .checked_sub(written_at.elapsed())
            .filter(|remaining| !remaining.is_zero())?;
        (status_outline(old_status) == status_outline(new_status)).then_some(remaining)
    }

    pub(crate) fn record_write(&self, key: ClusterKey) {
        self.lock().insert(key, Instant::now());
    }

    pub(crate) fn remove_cluster(&self, key: &ClusterKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ClusterKey, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what a status says apart from its sentences, and from counts that go with them.
fn status_outline(status: &ClusterStatus) -> ClusterStatus {
    let mut outline = status.clone();
    for condition in &mut outline.conditions {
        condition.message.clear();
    }
    for operation in outline.operation.iter_mut().chain(&mut outline.last_operation) {
        let Operation { message, steps, blocked_by, .. } = operation;
        *message = None;
        steps.clear();
        for blocker in blocked_by {
            (blocker.step, blocker.message) = (None, None);
        }
    }
    (outline.replicas, outline.versions) = (None, Vec::new());
    for pool in outline.node_pools.values_mut() {
        (pool.replicas, pool.updated_replicas, pool.version) = (None, None, None);
    }
    outline
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::testing::sample;

    fn said(message: &str, status: &str) -> ClusterStatus {
        let mut ready = sample::initialized();
        (ready.message, ready.status) = (message.to_owned(), status.to_owned());
        ClusterStatus { conditions: vec![ready], ..ClusterStatus::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn words_alone_wait_for_their_time_and_anything_else_does_not() {
        let (pace, key) = (StatusPace::default(), sample::desired(&[("a", 1)], "x").key());
        let (starts, joins) = (said("starts", "False"), said("joins", "False"));
        assert_eq!(pace.remaining_delay(&key, &starts, &joins), None, "nothing was written yet");
        pace.record_write(key.clone());
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(pace.remaining_delay(&key, &starts, &joins), Some(Duration::from_secs(11)));
        assert_eq!(pace.remaining_delay(&key, &joins, &said("serves", "True")), None);
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(pace.remaining_delay(&key, &starts, &joins), None);
    }
}
