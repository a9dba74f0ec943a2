//! The lead among the cluster's pilots: eligibility for it, whether there is a duty that needs a
//! leader, and the duties of the one that leads.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};

use super::{context::RunnerContext, reporting::ReportPublisher};
use crate::{
    api::v1beta1::{LeaderLease, Pilot, PilotStatus},
    error::chain,
    pilot::{
        driver::{DatabaseNode, LeaderDuty, LeaderPermit},
        kube::{
            intent,
            leader::{self, LeaderEligibility, PilotsLease},
            name_holder::NameHolder,
        },
        node::machine::NodeMachine,
    },
    runtime::{
        Shutdown,
        events::{EventNotice, EventQueue},
        leader::LeaderClaim,
    },
};

/// Pause between two rounds of the leader's duties, and between two looks for duties. Up to a
/// quarter more is jitter.
const DUTIES_EVERY: Duration = Duration::from_secs(4);
/// How long one round of the leader's duties may take: a database may need half a minute to change
/// a quorum.
const DUTIES_LIMIT: Duration = Duration::from_secs(60);
/// How long a look for duties may take.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// How long a pilot competes or leads on after the last look that found a duty: another one often
/// follows.
const HELD_ON: Duration = Duration::from_secs(30);

/// This pilot's part in the election.
pub(super) struct LeaderCandidacy {
    /// May this pilot lead the cluster's pilots?
    eligibility: watch::Sender<LeaderEligibility>,
    /// Is the lead shared with other pilots by a lease? That takes an API and a cluster.
    shared: bool,
}

impl LeaderCandidacy {
    pub(super) fn new() -> Self {
        Self { eligibility: watch::Sender::new(LeaderEligibility::No), shared: false }
    }

    /// Takes part in the election from now on: the Pilot has been seen for the first time.
    pub(super) fn start_election(
        &mut self,
        ctx: &RunnerContext,
        pilot: &Pilot,
        report: &ReportPublisher,
        intent: intent::IntentReceiver,
    ) {
        let database = ctx.settings.database;
        let cluster = ctx.cluster.clone().zip(pilot.spec.cluster_ref.as_ref());
        let lease = cluster.map(|(cluster, cluster_ref)| {
            let name = (database.names.leader_lease)(&cluster_ref.name);
            let lease = PilotsLease::new(cluster, name.clone(), pilot.clone());
            let lease = if (database.joins_elsewhere)(pilot) {
                lease
            } else {
                lease.with_records(ctx.records.clone())
            };
            (lease, name)
        });
        self.shared = lease.is_some();
        let (lease, name) = lease.unzip();
        let (eligibility, shutdown) = (&self.eligibility, ctx.rt.shutdown());
        if let Some(lease) = lease.clone().filter(PilotsLease::is_keeping) {
            let record_task = leader::keep_record(lease, eligibility.subscribe(), shutdown.clone());
            ctx.rt.tasks().spawn("ring-record", record_task);
        }
        if !ctx.driver.has_lead_duties() {
            return;
        }
        let (claim, claim_receiver) = watch::channel(LeaderClaim::Waiting);
        let (duty, duty_receiver) = watch::channel(LeaderDuty::None);
        let (candidacy, candidacy_receiver) = watch::channel(LeaderEligibility::No);
        let candidacy_task = leader::compete_for_duties(
            eligibility.subscribe(),
            duty_receiver,
            candidacy,
            shutdown.clone(),
        );
        ctx.rt.tasks().spawn("candidacy", candidacy_task);
        let election = leader::campaign(lease, candidacy_receiver, claim, shutdown.clone());
        ctx.rt.tasks().spawn("leader", election);
        let duties = LeadDuties {
            ctx: ctx.clone(),
            shared: self.shared,
            intent,
            reported: report.subscribe(),
            eligibility: eligibility.subscribe(),
            duty,
            events: report.event_queue().zip(name),
        };
        ctx.rt.tasks().spawn("lead-duties", duties.run_duties(claim_receiver, shutdown));
    }

    pub(super) fn update_eligibility(&self, state: &NodeMachine, holder: &NameHolder) {
        let new_eligibility = match (state.leader_eligibility(self.shared), holder) {
            (eligibility, NameHolder::Ours { .. }) => eligibility,
            (LeaderEligibility::No, NameHolder::Open) | (_, NameHolder::Theirs(_)) => {
                LeaderEligibility::No
            }
            (_, NameHolder::Open) => LeaderEligibility::Faltering,
        };
        self.eligibility.send_if_modified(|current| {
            std::mem::replace(current, new_eligibility) != new_eligibility
        });
    }
}

/// Looks for duties, and does them as long as this pilot leads.
struct LeadDuties {
    ctx: RunnerContext,
    /// Is the lead shared with other pilots?
    shared: bool,
    intent: intent::IntentReceiver,
    reported: watch::Receiver<PilotStatus>,
    eligibility: watch::Receiver<LeaderEligibility>,
    /// What this pilot would lead for. The election goes by it.
    duty: watch::Sender<LeaderDuty>,
    /// The queue of events, and the name of the lease that they are about.
    events: Option<(EventQueue, String)>,
}

impl LeadDuties {
    async fn run_duties(self, mut claim: watch::Receiver<LeaderClaim>, shutdown: Shutdown) {
        let mut last_found = Instant::now();
        loop {
            tokio::select! {
                held = claim.wait_for(|claim| claim.is_held()) => if held.is_err() { return },
                // A look may be dropped at any await: it changes nothing.
                () = self.look_out(&mut last_found) => {}
                () = shutdown.triggered() => return,
            }
            self.report_change(true);
            // A round may be dropped at any await: the next leader looks at what is there.
            tokio::select! {
                () = self.perform_duties(LeaderPermit::new(claim.clone()), &mut last_found) => {}
                _ = claim.wait_for(|claim| !claim.is_held()) => {}
                () = shutdown.triggered() => {}
            }
            self.report_change(false);
        }
    }

    /// Looks for duties again and again while this pilot may lead; never returns.
    async fn look_out(&self, last_found: &mut Instant) {
        let (mut eligibility, mut reported) = (self.eligibility.clone(), self.reported.clone());
        loop {
            let can_lead =
                eligibility.wait_for(|eligibility| *eligibility != LeaderEligibility::No);
            if can_lead.await.is_err() {
                return std::future::pending().await;
            }
            if let Some(duty) = self.find_duty().await {
                self.set_duty(duty, last_found);
            }
            let is_leaving = reported.borrow_and_update().decommission.is_some();
            tokio::select! {
                () = sleep(jittered_pause()) => {}
                // A departure that begins or is taken back is looked at once.
                Ok(_) = reported.wait_for(|now| now.decommission.is_some() != is_leaving) => {}
            }
        }
    }

    /// Returns the duty that there is now; `None` when that is not known.
    async fn find_duty(&self) -> Option<LeaderDuty> {
        let known_peers = self.ctx.known_peers.get().unwrap_or_default();
        let duty = self.query_duty(&*self.build_node(&known_peers)?).await?;
        let is_new_duty = *self.duty.borrow() == LeaderDuty::None && duty == LeaderDuty::Cluster;
        if !(is_new_duty && self.shared) {
            return Some(duty);
        }
        // What is known of the Pilots may be minutes old: before this pilot asks for the lead, it
        // asks for them.
        let pilot = self.intent.borrow().as_ref()?.pilot.clone();
        let peers = self.ctx.peers_or_empty(&pilot).await?;
        self.query_duty(&*self.build_node(&peers)?).await
    }

    async fn query_duty(&self, node: &DatabaseNode) -> Option<LeaderDuty> {
        match timeout(LOOK_LIMIT, self.ctx.driver.leader_duty(node)).await {
            Ok(Ok(duty)) => Some(duty),
            Ok(Err(error)) => {
                debug!(error = %chain(&error), "Database was not asked for duties of a leader");
                None
            }
            Err(_) => None,
        }
    }

    /// Takes what a look has found; `last_found`: when the last one was that found something.
    fn set_duty(&self, duty: LeaderDuty, last_found: &mut Instant) {
        if duty != LeaderDuty::None {
            *last_found = Instant::now();
        }
        let is_expired = last_found.elapsed() >= HELD_ON;
        self.duty.send_if_modified(|current| {
            let next = if duty == LeaderDuty::None && !is_expired { *current } else { duty };
            std::mem::replace(current, next) != next
        });
    }

    async fn perform_duties(&self, lead: LeaderPermit, last_found: &mut Instant) {
        let mut last_error = String::new();
        loop {
            let round = timeout(DUTIES_LIMIT, self.perform_round(&lead)).await;
            let (duty, failure) = round.unwrap_or((None, Some("it took too long".to_owned())));
            if let Some(error) = failure
                && last_error != error
            {
                // A failure is logged once; the next round tries again.
                warn!(error, "Duties of the leader were not done");
                last_error = error;
            }
            if let Some(duty) = duty {
                self.set_duty(duty, last_found);
            }
            sleep(jittered_pause()).await;
        }
    }

    /// Does one round of duties: lists the peers and has the driver do the rest. Returns the duty
    /// that is left, where that is known, and what went wrong.
    async fn perform_round(&self, lead: &LeaderPermit) -> (Option<LeaderDuty>, Option<String>) {
        let peers = if self.shared {
            let Some(pilot) = self.intent.borrow().as_ref().map(|snapshot| snapshot.pilot.clone())
            else {
                return (None, None);
            };
            // While the peers are not known, the leader changes nothing for them.
            let Some(peers) = self.ctx.peers_or_empty(&pilot).await else { return (None, None) };
            peers
        } else {
            Vec::new()
        };
        let Some(node) = self.build_node(&peers) else { return (None, None) };
        let result = self.ctx.driver.lead_duties(&node, lead).await;
        let remaining_duty = if result.is_ok() { self.query_duty(&node).await } else { None };
        (remaining_duty, result.err().map(|error| chain(&error).to_string()))
    }

    /// Makes the node as the driver sees it, with these peers.
    fn build_node(&self, peers: &[Pilot]) -> Option<Box<DatabaseNode>> {
        let mut pilot = self.intent.borrow().as_ref()?.pilot.clone();
        // What this pilot knows of its own node is newer than what the server shows of it.
        let reported = self.reported.borrow().clone();
        if reported.phase.is_some() {
            pilot.status = reported;
        }
        Some(self.ctx.build_node(&pilot, peers, false))
    }

    fn report_change(&self, is_leading: bool) {
        self.ctx.metrics.leader.set(is_leading.into());
        self.ctx.metrics.leader_changes.inc();
        let Some((events, lease)) = &self.events else { return };
        let name = &self.ctx.settings.name;
        let notice = if is_leading {
            EventNotice::normal("LeaderElection", format!("{name} became leader"))
        } else {
            // By its own action this event is no repeat of the one about a new leader.
            let note = format!("{name} stopped leading");
            EventNotice { action: "StoppedLeading", ..EventNotice::normal("LeaderElection", note) }
        };
        let regarding = |kind: &str, api_version: &str| ObjectReference {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
            namespace: Some(self.ctx.settings.namespace.clone()),
            name: Some(lease.clone()),
            ..ObjectReference::default()
        };
        let (kind, version) = (LeaderLease::kind(&()), LeaderLease::api_version(&()));
        events.enqueue(&regarding(&kind, &version), notice.clone());
        // Upstream's lock was a ConfigMap of this name.
        events.enqueue(&regarding("ConfigMap", "v1"), notice);
    }
}

/// Returns the pause ahead of the next round or look.
fn jittered_pause() -> Duration {
    DUTIES_EVERY.mul_f64(1.0 + rand::random::<f64>() / 4.0)
}
