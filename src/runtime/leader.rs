//! Leader election over a Lease (`coordination.k8s.io/v1`): at most one process acts.
//!
//! Owns the lease of one name: takes it when it is free or expired, renews it, publishes the
//! [`Claim`], and releases it when told to. What a leader does is left to the caller.
//!
//! Invariant: a claim is `Held` only while the lease was renewed less than `renew_deadline`
//! ago by this process's own clock. A process that was paused, or cut off, fences itself before
//! another one may take over, because `renew_deadline` is shorter than the lease.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use super::Shutdown;
use crate::error::chain;

/// Which lease is fought for, and how.
#[derive(Clone, Debug)]
pub struct Config {
    pub namespace: String,
    pub name: String,
    /// Who we are; unique among the candidates.
    pub identity: String,
    /// How long others wait before they take an abandoned lease.
    pub lease_duration: Duration,
    /// How long a leader that cannot renew goes on acting; shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// Pause between attempts; shorter than `renew_deadline`.
    pub retry_period: Duration,
}

impl Config {
    /// Upstream's 15, 10 and 2 seconds.
    pub fn new(namespace: String, name: String, identity: String) -> Self {
        Self {
            namespace,
            name,
            identity,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// What this process may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Somebody else leads, or nobody yet.
    Waiting,
    /// We lead, until this moment at least; `transition` numbers the reign.
    Held { until: Instant, transition: i32 },
    /// We led and do not any more. Final: a deposed leader ends its process.
    Lost,
}

impl Claim {
    /// May this process act now?
    pub fn is_held(self) -> bool {
        matches!(self, Self::Held { until, .. } if Instant::now() < until)
    }
}

/// Fights for the lease until the claim is lost or `shutdown`; then, if it still leads, releases
/// the lease. Trigger `shutdown` after the last write of the reign.
pub async fn run(client: Client, config: Config, claim: watch::Sender<Claim>, shutdown: Shutdown) {
    let api = Api::namespaced(client, &config.namespace);
    let mut elector = Elector { api, config, seen: None };
    // Both loops may be dropped at any await: the lease is only ever changed by one request that
    // carries the resource version, and `lead` renews what `acquire` took.
    let reign = tokio::select! {
        reign = elector.acquire() => reign,
        () = shutdown.triggered() => return,
    };
    info!(lease = elector.config.name, transition = reign.transition, "Became the leader");
    let lost = tokio::select! {
        () = elector.lead(reign, &claim) => true,
        () = shutdown.triggered() => false,
    };
    claim.send_replace(Claim::Lost);
    if lost {
        warn!(lease = elector.config.name, "Lost the leadership");
    } else {
        elector.release().await;
    }
}

#[derive(Clone, Copy)]
struct Reign {
    /// When the request was sent that made or renewed the claim.
    since: Instant,
    transition: i32,
}

struct Elector {
    api: Api<Lease>,
    config: Config,
    /// Resource version that was last seen, and when it was seen first. Expiry is counted from
    /// there: clocks of different machines are never compared.
    seen: Option<(String, Instant)>,
}

enum Attempt {
    Held(Reign),
    HeldByOther,
}

impl Elector {
    async fn acquire(&mut self) -> Reign {
        let mut last_error = String::new();
        loop {
            match self.attempt().await {
                Ok(Attempt::Held(reign)) => return reign,
                Ok(Attempt::HeldByOther) => last_error.clear(),
                Err(error) => {
                    let text = chain(&error).to_string();
                    // Said once per kind of failure, not every two seconds.
                    if text != last_error {
                        warn!(error = text, "Failed to take the leader lease");
                        last_error = text;
                    }
                }
            }
            sleep(self.config.retry_period).await;
        }
    }

    /// Renews until that fails for the whole renew deadline.
    async fn lead(&mut self, mut reign: Reign, claim: &watch::Sender<Claim>) {
        loop {
            let until = reign.since + self.config.renew_deadline;
            claim.send_replace(Claim::Held { until, transition: reign.transition });
            sleep(self.config.retry_period).await;
            loop {
                let renewed = tokio::select! {
                    // A dropped attempt may still have renewed the lease; then the next candidate
                    // waits a little longer, and we act no longer than announced.
                    renewed = timeout(self.config.retry_period, self.attempt()) => renewed,
                    () = sleep_until(until) => return,
                };
                match renewed {
                    Ok(Ok(Attempt::Held(renewed))) => {
                        reign = renewed;
                        break;
                    }
                    Ok(Ok(Attempt::HeldByOther)) => return,
                    Ok(Err(error)) => debug!(error = %chain(&error), "Failed to renew the lease"),
                    Err(_) => debug!("Renewing the lease took too long"),
                }
                tokio::select! {
                    () = sleep(self.config.retry_period) => {}
                    () = sleep_until(until) => return,
                }
            }
        }
    }

    /// One look at the lease, and one write if it is ours or free.
    async fn attempt(&mut self) -> Result<Attempt, kube::Error> {
        let since = Instant::now();
        let now = MicroTime(Timestamp::now());
        let seconds = i32::try_from(self.config.lease_duration.as_secs()).unwrap_or(i32::MAX);
        let Some(mut lease) = self.api.get_opt(&self.config.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.config.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(LeaseSpec {
                    holder_identity: Some(self.config.identity.clone()),
                    lease_duration_seconds: Some(seconds),
                    acquire_time: Some(now.clone()),
                    renew_time: Some(now),
                    lease_transitions: Some(0),
                    ..LeaseSpec::default()
                }),
            };
            return match self.api.create(&PostParams::default(), &lease).await {
                Ok(_) => Ok(Attempt::Held(Reign { since, transition: 0 })),
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(Attempt::HeldByOther),
                Err(error) => Err(error),
            };
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let first_seen = match &self.seen {
            Some((seen, at)) if *seen == version => *at,
            // From the answer: what it shows may have been written long after the question.
            _ => self.seen.insert((version, Instant::now())).1,
        };
        let spec = lease.spec.get_or_insert_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let ours = holder == self.config.identity;
        if !ours && !holder.is_empty() {
            let duration = u64::try_from(spec.lease_duration_seconds.unwrap_or(seconds));
            let expiry = first_seen + Duration::from_secs(duration.unwrap_or_default());
            if since < expiry {
                return Ok(Attempt::HeldByOther);
            }
        }
        let transition = spec.lease_transitions.unwrap_or_default() + i32::from(!ours);
        if !ours {
            spec.acquire_time = Some(now.clone());
        }
        spec.holder_identity = Some(self.config.identity.clone());
        spec.lease_duration_seconds = Some(seconds);
        spec.renew_time = Some(now);
        spec.lease_transitions = Some(transition);
        match self.api.replace(&self.config.name, &PostParams::default(), &lease).await {
            Ok(_) => Ok(Attempt::Held(Reign { since, transition })),
            // Somebody was faster. Whether it was ourselves, through a request believed lost,
            // shows at the next look.
            Err(kube::Error::Api(status)) if status.code == 409 && !ours => {
                Ok(Attempt::HeldByOther)
            }
            Err(error) => Err(error),
        }
    }

    /// Empties the holder, so that the next candidate need not wait for the expiry.
    async fn release(&self) {
        let released = timeout(self.config.retry_period, async {
            let mut lease = self.api.get(&self.config.name).await?;
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() != Some(self.config.identity.as_str()) {
                return Ok(());
            }
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
            self.api.replace(&self.config.name, &PostParams::default(), &lease).await.map(|_| ())
        });
        match released.await {
            Ok(Ok(())) => info!(lease = self.config.name, "Released the leadership"),
            Ok(Err(error)) => {
                warn!(error = %chain(&error), "Failed to release the leadership");
            }
            Err(_) => warn!(error = "timed out", "Failed to release the leadership"),
        }
    }
}

#[cfg(test)]
mod tests;
