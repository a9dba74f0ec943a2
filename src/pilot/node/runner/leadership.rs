//! The lead among the cluster's pilots: eligibility for it, and the duties of the one that leads.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use super::{context::RunnerContext, reporting::ReportPublisher};
use crate::{
    api::v1beta1::{LeaderLease, Pilot, PilotStatus},
    error::chain,
    pilot::{
        driver::LeaderPermit,
        kube::{
            intent,
            leader::{self, LeaderEligibility, PilotsLease},
            name_holder::NameHolder,
            pilot_api::PilotApi,
        },
        node::machine::NodeMachine,
    },
    runtime::{
        Shutdown,
        events::{EventNotice, EventQueue},
        leader::LeaderClaim,
    },
};

/// Pause between two rounds of the leader's duties.
const DUTIES_EVERY: Duration = Duration::from_secs(4);
/// How long one round of the leader's duties may take: a database may need half a minute to change
/// a quorum.
const DUTIES_LIMIT: Duration = Duration::from_secs(60);
const PEERS_LIMIT: Duration = Duration::from_secs(5);

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
    pub(super) fn begin(
        &mut self,
        ctx: &RunnerContext,
        pilot: &Pilot,
        report: &ReportPublisher,
        intent: intent::IntentReceiver,
    ) {
        let database = ctx.settings.database;
        let cluster = ctx.cluster.clone().zip(pilot.spec.cluster_ref.as_ref());
        let lease = cluster.map(|(cluster, of)| {
            let name = (database.names.leader_lease)(&of.name);
            let lease = PilotsLease::new(cluster, name.clone(), pilot.clone());
            let lease = if (database.joins_elsewhere)(pilot) {
                lease
            } else {
                lease.keeping(ctx.records.clone())
            };
            (lease, name)
        });
        self.shared = lease.is_some();
        let (claim, claimed) = watch::channel(LeaderClaim::Waiting);
        let (lease, name) = lease.unzip();
        let (eligibility, shutdown) = (self.eligibility.subscribe(), ctx.rt.shutdown());
        let election = leader::campaign(lease, eligibility, claim, shutdown.clone());
        ctx.rt.tasks().spawn("leader", election);
        let duties = LeadDuties {
            cluster: ctx.cluster.clone().filter(|_| self.shared),
            ctx: ctx.clone(),
            intent,
            reported: report.subscribe(),
            events: report.events().zip(name),
        };
        ctx.rt.tasks().spawn("lead-duties", duties.run(claimed, shutdown));
    }

    pub(super) fn update(&self, state: &NodeMachine, holder: &NameHolder) {
        let now = match (state.eligibility(self.shared), holder) {
            (eligibility, NameHolder::Ours) => eligibility,
            (LeaderEligibility::Yes | LeaderEligibility::Faltering, NameHolder::Open) => {
                LeaderEligibility::Faltering
            }
            _ => LeaderEligibility::No,
        };
        self.eligibility.send_if_modified(|known| std::mem::replace(known, now) != now);
    }
}

/// What a leader does, as long as it leads.
struct LeadDuties {
    ctx: RunnerContext,
    /// The API, where the lead is shared with other pilots.
    cluster: Option<PilotApi>,
    intent: intent::IntentReceiver,
    reported: watch::Receiver<PilotStatus>,
    /// The queue of events, and the name of the lease that they are about.
    events: Option<(EventQueue, String)>,
}

impl LeadDuties {
    async fn run(self, mut claim: watch::Receiver<LeaderClaim>, shutdown: Shutdown) {
        loop {
            tokio::select! {
                held = claim.wait_for(|claim| claim.is_held()) => if held.is_err() { return },
                () = shutdown.triggered() => return,
            }
            self.changed(true);
            // A round may be dropped at any await: the next leader looks at what is there.
            tokio::select! {
                () = self.lead(LeaderPermit::new(claim.clone())) => {}
                _ = claim.wait_for(|claim| !claim.is_held()) => {}
                () = shutdown.triggered() => {}
            }
            self.changed(false);
        }
    }

    async fn lead(&self, lead: LeaderPermit) {
        if !self.ctx.driver.has_lead_duties() {
            // Without duties the leader need not ask the API about its peers.
            return std::future::pending().await;
        }
        let mut last = String::new();
        loop {
            let round = timeout(DUTIES_LIMIT, self.round(&lead)).await;
            let failure = round.unwrap_or_else(|_| Some("it took too long".to_owned()));
            if let Some(error) = failure
                && last != error
            {
                // A failure is logged once; the next round tries again.
                warn!(error, "Duties of the leader were not done");
                last = error;
            }
            sleep(DUTIES_EVERY.mul_f64(1.0 + rand::random::<f64>() / 4.0)).await;
        }
    }

    /// Does one round of duties: lists the peers and has the driver do the rest. Returns what went
    /// wrong.
    async fn round(&self, lead: &LeaderPermit) -> Option<String> {
        let mut pilot = self.intent.borrow().as_ref()?.pilot.clone();
        let peers = match &self.cluster {
            Some(cluster) => match timeout(PEERS_LIMIT, cluster.peers(&pilot)).await {
                Ok(Ok(peers)) => peers,
                // While the peers are not known, the leader changes nothing for them.
                Ok(Err(error)) => {
                    debug!(error = %chain(&error), "Peers cannot be listed");
                    return None;
                }
                Err(_) => return None,
            },
            None => Vec::new(),
        };
        // What this pilot knows of its own node is newer than what the server shows of it.
        let reported = self.reported.borrow().clone();
        if reported.phase.is_some() {
            pilot.status = reported;
        }
        let node = self.ctx.node(&pilot, &peers, false);
        let done = self.ctx.driver.lead_duties(&node, lead).await;
        done.err().map(|error| chain(&error).to_string())
    }

    fn changed(&self, leads: bool) {
        self.ctx.metrics.leader.set(leads.into());
        self.ctx.metrics.leader_changes.inc();
        let Some((events, lease)) = &self.events else { return };
        let name = &self.ctx.settings.name;
        let notice = if leads {
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
        events.tell(&regarding(&kind, &version), notice.clone());
        // Upstream's lock was a ConfigMap of this name.
        events.tell(&regarding("ConfigMap", "v1"), notice);
    }
}
