//! Leader election over a lease: at most one process acts.
//!
//! Owns one lease: takes it when it is free or expired, renews it, publishes the [`LeaderClaim`],
//! and releases it when told to. Which object carries the lease is a [`LeaseStore`]'s affair, who
//! may hold it is `core`'s, and what a leader does is the caller's.
//!
//! Invariant: a claim is `Held` only while the lease was renewed less than `renew_deadline`
//! ago by this process's own clock. A process that was paused, or cut off, fences itself before
//! another one may take over, because `renew_deadline` is shorter than the lease.

mod fence;
mod lease;
mod lease_rules;

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use self::lease_rules::{LeaseCandidate, LeaseMove};
pub use self::{
    fence::{DeposedError, fence_client, wait_for_end},
    lease::KubernetesLease,
    lease_rules::LeaseRecord,
};
use super::Shutdown;
use crate::error::chain;

/// An object that carries a lease.
pub trait LeaseStore: Send + Sync {
    type Object: Send + Sync;

    /// Name of the lease, for the log.
    fn name(&self) -> &str;
    fn read_lease(&self) -> impl Future<Output = kube::Result<Option<Self::Object>>> + Send;
    fn lease_record(object: &Self::Object) -> LeaseRecord;
    /// Returns the object's resource version, which every write changes.
    fn object_version(object: &Self::Object) -> String;
    /// Puts `record` into the object that was read, or fails with 409 when the stored object has
    /// changed since. All other fields stay as they were read. Returns the object as it is stored then.
    fn swap_record(
        &self,
        object: Option<Self::Object>,
        record: LeaseRecord,
    ) -> impl Future<Output = kube::Result<Self::Object>> + Send;
}

/// Identity and times of a candidate for a lease.
#[derive(Clone, Debug)]
pub struct ElectionConfig {
    /// Who we are; unique among the candidates at any one time.
    pub identity: String,
    /// How long others wait before they take an abandoned lease.
    pub lease_duration: Duration,
    /// How long a leader that cannot renew goes on acting; shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// Pause between attempts; shorter than `renew_deadline`. Up to a fifth more, at random.
    pub retry_period: Duration,
}

impl ElectionConfig {
    /// Upstream's 15, 10 and 2 seconds.
    pub fn new(identity: String) -> Self {
        Self {
            identity,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Whether this process may act as the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderClaim {
    /// Another candidate leads, or none yet.
    Waiting,
    /// We lead, until this moment at least; `transition` numbers the reign.
    Held { until: Instant, transition: i32 },
    /// We led and do not any more.
    Lost,
}

impl LeaderClaim {
    /// May this process act now?
    pub fn is_held(self) -> bool {
        matches!(self, Self::Held { until, .. } if Instant::now() < until)
    }

    /// Returns the claim of a process without other candidates: held for a century.
    pub fn for_single_process() -> Self {
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        Self::Held { until: Instant::now() + century, transition: 0 }
    }
}

/// One process as a candidate for the lease.
pub struct LeaderElector<S: LeaseStore> {
    store: S,
    config: ElectionConfig,
    candidate: LeaseCandidate,
    /// The lease as our last write left it, and when that was sent. Taken by each attempt, so that one
    /// that fails or is dropped is followed by a read.
    written: Option<(S::Object, Instant)>,
}

#[derive(Clone, Copy)]
struct LeaderTerm {
    /// When the lease was asked for, ahead of the write that made or renewed the claim.
    since: Instant,
    transition: i32,
}

enum LeaseAttempt {
    Held(LeaderTerm),
    HeldByOther { until: Instant },
}

impl<S: LeaseStore> LeaderElector<S> {
    pub fn new(store: S, config: ElectionConfig) -> Self {
        let candidate = LeaseCandidate::new(config.identity.clone(), config.lease_duration);
        Self { store, config, candidate, written: None }
    }

    /// Fights for the lease until the claim is lost or `shutdown` is triggered; then, if this
    /// process still leads, releases the lease. Trigger `shutdown` after the last write of the
    /// reign. A caller that may lead again after a loss calls this again.
    pub async fn run(&mut self, claim: &watch::Sender<LeaderClaim>, shutdown: Shutdown) {
        claim.send_replace(LeaderClaim::Waiting);
        // Both loops may be dropped at any await: the lease is only ever changed by one request
        // that carries the resource version, and `renew_until_lost` renews what `acquire_lease`
        // took.
        let reign = tokio::select! {
            reign = self.acquire_lease() => reign,
            () = shutdown.triggered() => {
                // The server may have carried out the request that was dropped.
                if self.candidate.has_tried() {
                    self.release_lease().await;
                }
                return;
            }
        };
        info!(lease = self.store.name(), transition = reign.transition, "Became the leader");
        let has_lost = tokio::select! {
            () = self.renew_until_lost(reign, claim) => true,
            () = shutdown.triggered() => false,
        };
        claim.send_replace(LeaderClaim::Lost);
        if has_lost {
            warn!(lease = self.store.name(), "Lost the leadership");
        } else {
            self.release_lease().await;
        }
    }

    async fn acquire_lease(&mut self) -> LeaderTerm {
        let mut last_error = String::new();
        let mut failures = 0;
        loop {
            let pause = match timeout(self.config.renew_deadline, self.try_lease()).await {
                Ok(Ok(LeaseAttempt::Held(reign))) => return reign,
                Ok(Ok(LeaseAttempt::HeldByOther { until })) => {
                    last_error.clear();
                    failures = 0;
                    // The next attempt comes soon after the expiry at the latest; the jitter keeps
                    // the candidates from making it all at once.
                    let expiry = until.saturating_duration_since(Instant::now());
                    self.config.retry_period.min(expiry + self.config.retry_period / 10)
                }
                // Another candidate was faster, or an answer to us was lost: the next attempt shows
                // which.
                Ok(Err(error)) if is_conflict(&error) => self.config.retry_period / 10,
                Ok(Err(error)) => {
                    let text = chain(&error).to_string();
                    // A failure is logged once, not every two seconds.
                    if text != last_error {
                        warn!(error = text, "Failed to take the leader lease");
                        last_error = text;
                    }
                    failures += 1;
                    self.backoff_pause(failures)
                }
                Err(_) => {
                    failures += 1;
                    self.backoff_pause(failures)
                }
            };
            sleep(add_jitter(pause)).await;
        }
    }

    /// The pause grows while the API server is away, so that candidates do not overrun it when it
    /// returns.
    fn backoff_pause(&self, failures: u32) -> Duration {
        let pause = self.config.retry_period.saturating_mul(1 << (failures - 1).min(4));
        pause.min(self.config.lease_duration)
    }

    /// Renews the lease, until no renewal succeeded within the renew deadline, or the lease was
    /// another candidate's in between. A renewal is begun `retry_period` after the one before, however
    /// slow the answer was, and may take half of the deadline, as in client-go: a server that answers
    /// slowly is no reason to stop leading.
    async fn renew_until_lost(
        &mut self,
        mut reign: LeaderTerm,
        claim: &watch::Sender<LeaderClaim>,
    ) {
        let patience = self.config.renew_deadline / 2;
        loop {
            let until = reign.since + self.config.renew_deadline;
            claim.send_replace(LeaderClaim::Held { until, transition: reign.transition });
            let mut next_attempt = reign.since + add_jitter(self.config.retry_period);
            loop {
                sleep_until(next_attempt.min(until)).await;
                next_attempt = Instant::now() + add_jitter(self.config.retry_period);
                let attempt_result = tokio::select! {
                    // A dropped attempt may still have renewed the lease; then the next candidate
                    // waits a little longer, and we act no longer than announced.
                    result = timeout(patience, self.try_lease()) => result,
                    () = sleep_until(until) => return,
                };
                match attempt_result {
                    Ok(Ok(LeaseAttempt::Held(new_term))) => {
                        // The lease was taken anew after a pause: another candidate may have led in
                        // between.
                        if new_term.transition != reign.transition {
                            return;
                        }
                        reign = new_term;
                        break;
                    }
                    Ok(Ok(LeaseAttempt::HeldByOther { .. })) => return,
                    Ok(Err(error)) => debug!(error = %chain(&error), "Failed to renew the lease"),
                    Err(_) => debug!("Renewing the lease took too long"),
                }
            }
        }
    }

    /// Writes the lease if it is ours, free or expired. It is read before, unless it is ours as far as is
    /// known: then the write itself finds out whether it changed, and it is read after all.
    async fn try_lease(&mut self) -> kube::Result<LeaseAttempt> {
        // Whoever was stopped for longer may have a successor, whose lease is not to be tried.
        let deadline = self.config.renew_deadline;
        let last_write = self.written.take().filter(|(_, sent_at)| sent_at.elapsed() < deadline);
        if let Some((lease, _)) = last_write {
            match self.write_lease(Some(lease), Instant::now()).await {
                Err(error) if is_conflict(&error) => {}
                result => return result,
            }
        }
        let start = Instant::now();
        let lease_object = self.store.read_lease().await?;
        self.write_lease(lease_object, start).await
    }

    /// Writes the lease that was read if it is ours, free or expired.
    async fn write_lease(
        &mut self,
        lease_object: Option<S::Object>,
        since: Instant,
    ) -> kube::Result<LeaseAttempt> {
        let observed_lease = lease_object
            .as_ref()
            .map(|object| (S::lease_record(object), S::object_version(object)));
        let observed_lease =
            observed_lease.as_ref().map(|(record, version)| (record, version.as_str()));
        // A lease's age counts from the answer: the record may have been written long after the
        // request was sent.
        let record =
            match self.candidate.decide_move(observed_lease, Instant::now(), Timestamp::now()) {
                LeaseMove::Wait(until) => return Ok(LeaseAttempt::HeldByOther { until }),
                LeaseMove::Write(record) => record,
            };
        let stored_lease = self.store.swap_record(lease_object, record).await?;
        self.written = Some((stored_lease, since));
        Ok(LeaseAttempt::Held(LeaderTerm { since, transition: self.candidate.transition() }))
    }

    /// Empties the holder, so that the next candidate need not wait for the expiry.
    async fn release_lease(&self) {
        let release_attempt = timeout(self.config.retry_period, async {
            let Some(lease_object) = self.store.read_lease().await? else { return Ok(false) };
            let Some(record) = self.candidate.freed_record(&S::lease_record(&lease_object)) else {
                return Ok(false);
            };
            self.store.swap_record(Some(lease_object), record).await.map(|_| true)
        });
        let lease = self.store.name();
        let error = match release_attempt.await {
            Ok(Ok(true)) => return info!(lease, "Released the leadership"),
            Ok(Ok(false)) => return,
            Ok(Err(error)) => chain(&error).to_string(),
            Err(_) => "timed out".to_owned(),
        };
        warn!(lease, error, "Failed to release the leadership");
    }
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Returns `pause` plus up to a fifth more, so that candidates do not ask in step.
fn add_jitter(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + rand::random::<f64>() / 5.0)
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
