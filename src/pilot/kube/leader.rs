//! Which of a cluster's pilots leads, and so has the duties for the whole database cluster.
//!
//! Owns the pilots' side of the election: the LeaderLease, for which the pilots compete, and which
//! pilot may lead. At rest no pilot leads, and none asks for the lease: a pilot competes only while
//! it knows of a duty. The founder in the same object is another matter (`founding`) and stays as
//! it is; where none is recorded, a pilot whose node serves records the ring that it serves in.
//! Leaves the leader's work to
//! [`Driver::lead_duties`](crate::pilot::driver::Driver::lead_duties).
//!
//! Invariant: only a pilot whose node serves is elected, and one whose node is leaving only for its
//! own departure; a leader that cannot renew stops by itself before another pilot may begin.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::runtime::utils::Backoff as _;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};
use tracing::{debug, info, warn};

use crate::{
    api::v1beta1::{Founder, LeaderLease, Pilot},
    error::chain,
    pilot::{
        driver::LeaderDuty,
        kube::{
            backoff::RetryBackoff,
            pilot_api::{PilotApi, is_conflict, new_lease},
        },
        volume::{
            pilot_files::VolumeMark,
            records::VolumeRecords,
            ring::{self, RingMembership},
        },
    },
    runtime::{
        Shutdown,
        leader::{ElectionConfig, LeaderClaim, LeaderElector, LeaseRecord, LeaseStore},
    },
};

/// How long a leader whose node does not serve for a moment may go on: two questions that the
/// database answers late are no reason to elect anew.
const FALTERING: Duration = Duration::from_secs(12);
/// Pause between two renewals. A leader acts for 10 s after its last renewal, which leaves time for
/// two or three tries; other pilots wait for 15 s.
const RETRY: Duration = Duration::from_secs(3);

/// Pause between two looks at the founding record while the node serves: a person may have deleted
/// it. Up to a fifth more is jitter.
const RECORD_EVERY: Duration = Duration::from_secs(900);
/// Pause before another look at the record when a write of it, or the volume, was not done at once.
const RECORD_AGAIN: Duration = Duration::from_secs(3);

/// May this node's pilot lead?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderEligibility {
    No,
    /// A leader may go on for a moment; a candidate may not begin.
    Faltering,
    /// The node serves and leaves: its pilot may lead for its own departure only.
    Departing,
    Yes,
}

impl LeaderEligibility {
    /// Returns whether this pilot may compete for the lead, with this duty.
    fn for_duty(self, duty: LeaderDuty) -> Self {
        match (self, duty) {
            (_, LeaderDuty::None) | (Self::Departing, LeaderDuty::Cluster) => Self::No,
            (Self::Departing, LeaderDuty::Departure) => Self::Yes,
            (eligibility, _) => eligibility,
        }
    }
}

/// Keeps `candidacy` as `eligibility` and `duty` have it together, until shutdown.
pub async fn compete_for_duties(
    mut eligibility: watch::Receiver<LeaderEligibility>,
    mut duty: watch::Receiver<LeaderDuty>,
    candidacy: watch::Sender<LeaderEligibility>,
    shutdown: Shutdown,
) {
    loop {
        let new_eligibility = eligibility.borrow_and_update().for_duty(*duty.borrow_and_update());
        candidacy.send_if_modified(|current_eligibility| {
            std::mem::replace(current_eligibility, new_eligibility) != new_eligibility
        });
        tokio::select! {
            changed = eligibility.changed() => if changed.is_err() { return },
            changed = duty.changed() => if changed.is_err() { return },
            () = shutdown.triggered() => return,
        }
    }
}

/// Takes part in the election whenever `eligibility` allows it, until shutdown. Without a `lease`
/// there are no other candidates: then this pilot leads whenever it may.
pub async fn campaign(
    lease: Option<PilotsLease>,
    mut eligibility: watch::Receiver<LeaderEligibility>,
    claim: watch::Sender<LeaderClaim>,
    shutdown: Shutdown,
) {
    let mut elector = lease.map(|lease| {
        let config = ElectionConfig {
            retry_period: RETRY,
            ..ElectionConfig::new(lease.cluster.name().to_owned())
        };
        LeaderElector::new(lease, config)
    });
    loop {
        tokio::select! {
            able = eligibility.wait_for(|eligibility| *eligibility == LeaderEligibility::Yes) => {
                if able.is_err() {
                    return;
                }
            }
            () = shutdown.triggered() => return,
        }
        let term = shutdown.child();
        let election = async {
            if let Some(elector) = &mut elector {
                elector.run(&claim, term.clone()).await;
            } else {
                claim.send_replace(LeaderClaim::for_single_process());
                term.triggered().await;
                claim.send_replace(LeaderClaim::Lost);
            }
        };
        let withdrawal = async {
            wait_until_ineligible(&mut eligibility).await;
            term.trigger();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = election => {}
            () = withdrawal => {}
        }
    }
}

/// Holds the founding record and the volume's mark together while the node serves: at once, and
/// some times an hour.
pub async fn keep_record(
    lease: PilotsLease,
    mut eligibility: watch::Receiver<LeaderEligibility>,
    shutdown: Shutdown,
) {
    let mut backoff = RetryBackoff::default();
    loop {
        tokio::select! {
            able = eligibility.wait_for(|eligibility| *eligibility == LeaderEligibility::Yes) => {
                if able.is_err() {
                    return;
                }
            }
            () = shutdown.triggered() => return,
        }
        let pause = match lease.reconcile_record().await {
            Ok(is_settled) => {
                backoff.reset();
                let interval = if is_settled { RECORD_EVERY } else { RECORD_AGAIN };
                interval.mul_f64(1.0 + rand::random::<f64>() / 5.0)
            }
            // Another pilot was faster.
            Err(error) if is_conflict(&error) => RECORD_AGAIN,
            Err(error) => {
                debug!(error = %chain(&error), "The ring's record cannot be read or written");
                backoff.next_pause()
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = shutdown.triggered() => return,
        }
    }
}

/// Returns when the node may not lead any more, or has faltered for too long.
async fn wait_until_ineligible(eligibility: &mut watch::Receiver<LeaderEligibility>) {
    let mut patience = None;
    loop {
        let current = *eligibility.borrow_and_update();
        match current {
            LeaderEligibility::No | LeaderEligibility::Departing => return,
            LeaderEligibility::Yes => patience = None,
            LeaderEligibility::Faltering => {
                patience = patience.or(Some(Instant::now() + FALTERING));
            }
        }
        let change = match patience {
            Some(deadline) => timeout_at(deadline, eligibility.changed()).await.ok(),
            None => Some(eligibility.changed().await),
        };
        // The time to falter is over, or the runner is gone that says whether the node may lead.
        if !matches!(change, Some(Ok(()))) {
            return;
        }
    }
}

/// The LeaderLease of a cluster's pilots. Clones share what the volume has learned.
#[derive(Clone)]
pub struct PilotsLease {
    cluster: PilotApi,
    name: String,
    /// The node's Pilot: its cluster becomes the owner of a lease that this pilot makes.
    pilot: Pilot,
    /// Records on the volume, which keep the ring's id; `None` where this cluster has none (see
    /// `ring`).
    records: Option<VolumeRecords>,
    /// The volume needs to learn no ring id any more: it was looked at once, and written if need
    /// be.
    settled: Arc<AtomicBool>,
}

impl PilotsLease {
    pub fn new(cluster: PilotApi, name: String, pilot: Pilot) -> Self {
        Self { cluster, name, pilot, records: None, settled: Arc::default() }
    }

    /// Keeps the founding record, too: the leader writes it when it is missing, and the volumes of
    /// nodes that serve learn the ring's id.
    #[must_use]
    pub fn with_records(self, records: VolumeRecords) -> Self {
        Self { records: Some(records), ..self }
    }

    /// Does this pilot keep the founding record, too?
    pub fn is_keeping(&self) -> bool {
        self.records.is_some()
    }

    fn cluster_uid(&self) -> Option<&str> {
        ring::cluster_owner(&self.pilot).map(|owner| owner.uid.as_str())
    }

    /// Writes the id of the ring in which the node serves into a volume that was marked before
    /// rings had ids. False: the volume was busy, or took nothing.
    async fn record_ring(&self, lease: &LeaderLease) -> bool {
        let Some((records, founder)) = self
            .records
            .as_ref()
            .zip(lease.spec.founder.as_ref().map(|founder| founder.id.clone()))
        else {
            return true;
        };
        if self.settled.load(Ordering::Relaxed) || ring::is_former(lease, &self.pilot) {
            return true;
        }
        let uid = self.cluster_uid().map(str::to_owned);
        let is_recorded = records.try_visit(move |files| {
            let Ok(Some(mark)) = files.read_mark() else { return false };
            let is_ring_unknown = mark.ring.is_none() && mark.node_id.is_some();
            if is_ring_unknown && mark.cluster_uid == uid {
                match files.set_mark(&VolumeMark { ring: Some(founder.clone()), ..mark }) {
                    Ok(()) => info!(ring = founder, "Data of this node are of this ring"),
                    Err(error) => {
                        warn!(%error, "The ring's id cannot be written down");
                        return false;
                    }
                }
            }
            true
        });
        // A busy volume is asked again at the next look at the lease.
        let is_recorded = is_recorded.await == Ok(Some(true));
        self.settled.fetch_or(is_recorded, Ordering::Relaxed);
        is_recorded
    }

    /// Holds the record and the volume's mark together. False: look again soon.
    async fn reconcile_record(&self) -> kube::Result<bool> {
        let lease = self.cluster.get_lease(&self.name).await?;
        if let Some(lease) = lease.as_ref().filter(|lease| lease.spec.founder.is_some()) {
            return Ok(self.record_ring(lease).await);
        }
        let lease_exists = lease.is_some();
        let mut lease = lease.unwrap_or_else(|| new_lease(&self.name, &self.pilot));
        let founder = match self.missing_founder(&lease).await {
            Ok(Some(founder)) => founder,
            Ok(None) => return Ok(true),
            Err(VolumeBusy) => return Ok(false),
        };
        let ring = founder.id.clone();
        lease.spec.founder = Some(founder);
        if lease_exists {
            self.cluster.replace_lease(&lease).await?;
        } else {
            self.cluster.create_lease(&lease).await?;
        }
        info!(lease = self.name, ring, "Recorded the ring again");
        Ok(false)
    }

    /// Returns the founder to record, when none is recorded and this node has data of a member.
    async fn missing_founder(&self, lease: &LeaderLease) -> Result<Option<Founder>, VolumeBusy> {
        let Some(records) = &self.records else { return Ok(None) };
        if lease.spec.founder.is_some() || ring::is_former(lease, &self.pilot) {
            return Ok(None);
        }
        let Ok(Some(mark)) = records.try_visit(|files| files.read_mark().ok().flatten()).await
        else {
            return Err(VolumeBusy);
        };
        let Some(mark) = mark.filter(|mark| mark.node_id.is_some()) else { return Ok(None) };
        Ok(match ring::classify_volume(&mark, self.cluster.name(), self.cluster_uid(), None) {
            RingMembership::Unrecorded(founder) => Some(founder),
            RingMembership::Here | RingMembership::Elsewhere => None,
        })
    }
}

/// The volume did not say at once what lies on it.
struct VolumeBusy;

impl LeaseStore for PilotsLease {
    type Object = LeaderLease;

    fn name(&self) -> &str {
        &self.name
    }

    async fn read_lease(&self) -> kube::Result<Option<LeaderLease>> {
        let lease = self.cluster.get_lease(&self.name).await?;
        if let Some(lease) = &lease {
            self.record_ring(lease).await;
        }
        Ok(lease)
    }

    fn lease_record(lease: &LeaderLease) -> LeaseRecord {
        let spec = lease.spec.clone();
        LeaseRecord {
            holder: spec.holder_identity,
            seconds: spec.lease_duration_seconds,
            acquired: spec.acquire_time,
            renewed: spec.renew_time,
            transitions: spec.lease_transitions,
        }
    }

    fn object_version(lease: &LeaderLease) -> String {
        lease.metadata.resource_version.clone().unwrap_or_default()
    }

    async fn swap_record(
        &self,
        observed_lease: Option<LeaderLease>,
        record: LeaseRecord,
    ) -> kube::Result<LeaderLease> {
        let lease_exists = observed_lease.is_some();
        let mut lease = observed_lease.unwrap_or_else(|| new_lease(&self.name, &self.pilot));
        let LeaseRecord { holder, seconds, acquired, renewed, transitions } = record;
        let spec = &mut lease.spec;
        spec.holder_identity = holder;
        spec.lease_duration_seconds = seconds;
        spec.acquire_time = acquired;
        spec.renew_time = renewed;
        spec.lease_transitions = transitions;
        if let Ok(Some(founder)) = self.missing_founder(&lease).await {
            lease.spec.founder = Some(founder);
        }
        let written_lease = if lease_exists {
            self.cluster.replace_lease(&lease).await?
        } else {
            self.cluster.create_lease(&lease).await?
        };
        // A leader reads only what others changed.
        self.record_ring(&written_lease).await;
        Ok(written_lease)
    }
}

#[cfg(test)]
mod tests;
