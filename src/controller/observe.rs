//! The facts about a cluster's objects that the plan decides by.
//!
//! Owns the reading of StatefulSets, Pods, Pilots and claims. [`ClusterObjects`] are gathered from
//! the caches, or fresh from the server before a step; turning them into [`ObservedCluster`] is
//! pure.

mod installer;
#[cfg(test)]
mod tests;
mod volume;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference},
    jiff::Timestamp,
};

use self::volume::claim_facts;
pub(crate) use self::{
    installer::{InstallState, InstallerContainer, installer_name},
    volume::{ClaimFacts, ClaimMarks, ClaimTemplate},
};
use super::{
    desired_state::{
        BehindReplica, DesiredCluster, ExistingPool, ManagedDatabase, NodeLoad, NodeReport,
        STORE_MISMATCH, StallCause,
    },
    heartbeats::HeartbeatAge,
    security_findings::SecurityFindings,
    token_renewal::renewed_by,
};
use crate::api::{
    leave_request::LeaveRequest,
    names::{
        self, annotation,
        condition::{CLEANUP_DUE, VOLUME_HOLDS_DATA},
    },
    predicate::DATA_OUTLIVES_POD,
    repair_report::RepairReport,
    silence::says_unheard,
    v1beta1::{
        Blocker, ForgottenNode, Health, NodeChange, Pilot, PilotIntent, PilotPhase,
        PilotSecurityStatus, PilotSpec, PilotStatus,
    },
};

/// Annotation on a Pilot: the controller wrote `spec.phase`, not a person.
pub(crate) const PHASE_OWNER: &str = "navigator.jetstack.io/phase-owner";

/// The objects of one cluster, as the caches or the server have them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterObjects {
    pub(crate) sets: Vec<Arc<StatefulSet>>,
    pub(crate) pods: Vec<Arc<Pod>>,
    pub(crate) pilots: Vec<Arc<Pilot>>,
    pub(crate) claims: Vec<Arc<PersistentVolumeClaim>>,
    /// The ServiceAccount of the pods.
    pub(crate) account: Option<ObjectMeta>,
}

/// The facts about a cluster that the plan and the status are made from.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedCluster {
    /// Wanted pools in the order of the spec, then pools that are no longer wanted.
    pub(crate) pools: Vec<ObservedPool>,
    /// A StatefulSet, Pilot or claim with a name that the cluster needs has another owner, or is of
    /// another store: no step is taken. Before the first node, any object counts.
    pub(crate) stalled: Option<StallCause>,
    /// Why an object was not written: the server's refusal, or another owner. Only what needs that
    /// object waits.
    pub(crate) refused: Option<StallCause>,
    /// The pilot that holds the cluster's LeaderLease.
    pub(crate) leader: Option<String>,
    /// What was found of Secrets and certificates, where the cluster is not open.
    pub(crate) security: SecurityFindings,
}

impl ObservedCluster {
    /// Has the cluster a Pilot of its own? Until then nothing runs that an object of doubtful origin
    /// could hold up.
    pub(crate) fn has_nodes(&self) -> bool {
        let mut members = self.pools.iter().flat_map(|pool| pool.members.values());
        members.any(|member| member.pilot.as_ref().is_some_and(|pilot| pilot.owned))
    }

    /// Is nothing written for the cluster? That is so while something of it is of another store, and
    /// before its first node while a name that it needs is taken.
    pub(crate) fn is_left_alone(&self) -> bool {
        let stalled = self.stalled.as_ref();
        stalled.is_some_and(|cause| cause.reason == STORE_MISMATCH || !self.has_nodes())
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedPool {
    pub(crate) name: String,
    pub(crate) set_name: String,
    pub(crate) set: Option<ObservedStatefulSet>,
    /// The spec has no such pool, and its StatefulSet was deleted: only Pilots are left of it.
    pub(crate) orphan: bool,
    /// Nodes by ordinal; every ordinal that has a pod, a Pilot or a claim.
    pub(crate) members: BTreeMap<u32, Member>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedStatefulSet {
    pub(crate) uid: String,
    pub(crate) replicas: u32,
    pub(crate) resource_version: String,
    pub(crate) object: Option<Arc<StatefulSet>>,
    /// Config hash of the template.
    pub(crate) template: String,
    pub(crate) terminating: bool,
    /// Hash of the claim template that the set was made with, where it was noted.
    pub(crate) claim_asked: Option<String>,
    /// What new claims are made of, where nodes have claims.
    pub(crate) claim: Option<ClaimTemplate>,
}

/// One database node: its pod, its Pilot, its claim.
#[derive(Clone, Debug, Default)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) pod: Option<PodFacts>,
    pub(crate) pilot: Option<PilotFacts>,
    pub(crate) claim: Option<ClaimFacts>,
    /// Why Kubernetes does not create the pod, as its Events tell.
    pub(crate) refused: Option<PodFailure>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PodFacts {
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    /// Name of the machine that the pod is bound to.
    pub(crate) machine: Option<String>,
    pub(crate) ready: bool,
    pub(crate) terminating: bool,
    /// No StatefulSet owns the pod.
    pub(crate) orphan: bool,
    /// The pod should have ended some time ago: its machine may be gone.
    pub(crate) overdue: bool,
    /// The data volume is part of the pod, and is deleted with it.
    pub(crate) holds_data: bool,
    /// The users of the database are mounted into the pod.
    pub(crate) mounts_users: bool,
    /// The database container was started at least once.
    pub(crate) started: bool,
    /// The pod's annotation config-hash: the hash of what it is made of.
    pub(crate) hash: String,
    /// Annotation config-hash of the StatefulSet's template, if the pod was made from that
    /// template.
    pub(crate) template: Option<String>,
    /// Containers that brought pilots into the pod; the first is the init container.
    pub(crate) installers: Vec<InstallerContainer>,
    /// Why the pod does not become ready without help.
    pub(crate) trouble: Option<PodFailure>,
    /// Time until which the pod's token may be of an earlier ServiceAccount; `None` if it is not.
    pub(crate) token_renewed_by: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodFailure {
    /// Reason that the cluster's conditions give.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// The failure has lasted longer than a slow registry or a new machine would take.
    pub(crate) lasts: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PilotFacts {
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) spec: PilotSpec,
    /// The controller wrote `spec.phase`, not a person.
    pub(crate) phase_ours: bool,
    /// The Pilot is owned by this cluster; false for one that can be adopted.
    pub(crate) owned: bool,
    /// The node is the elected leader of its peers, where a database has one.
    pub(crate) elected: bool,
    /// The other nodes may elect this node to lead.
    pub(crate) eligible: bool,
    /// The node keeps data that must not be lost.
    pub(crate) keeps_data: bool,
    pub(crate) ready: bool,
    /// Age of the pilot's report, which no object says; see [`ObservedCluster::hear`].
    pub(crate) hearing: HeartbeatAge,
    /// The node is, or was, a member of the database cluster.
    pub(crate) identity: bool,
    /// Uid of the pod whose pilot reported last, and name of its machine.
    pub(crate) instance: Option<String>,
    pub(crate) machine: Option<String>,
    /// The database answered its pilot at least once, so it may have joined the other nodes.
    pub(crate) answered: bool,
    /// The pilot says that no process of the database runs.
    pub(crate) idle: bool,
    /// The host passed the pilot's checks, which include whose data are on the volume.
    pub(crate) checked: bool,
    /// Uid of the claim that existed before the Pilot, empty if there was none; `None` where the
    /// Pilot does not say.
    pub(crate) earlier_claim: Option<String>,
    pub(crate) decommissioned: bool,
    pub(crate) stopped: bool,
    pub(crate) irreversible: bool,
    /// The node moves data because it joins or leaves, so no deadline applies to it.
    pub(crate) at_work: bool,
    /// Progress or refusal of a decommission, in a sentence.
    pub(crate) progress: Option<String>,
    /// What the node uses of certificates and users.
    pub(crate) security: Option<PilotSecurityStatus>,
    /// Reason and message of the conditions CertificatesValid and UsersApplied, while not True.
    pub(crate) certificates: Option<(String, String)>,
    pub(crate) users: Option<(String, String)>,
    pub(crate) running_hash: Option<String>,
    /// Config hash that was wanted when the database was started; `None` for a pilot that does not act
    /// on `spec.restart_for`.
    pub(crate) started_for: Option<String>,
    /// The pilot reports that the database cannot be run with the spec of the Pilot.
    pub(crate) failed: bool,
    /// The pilot's verdict on the newest spec; `None` until it has judged that spec.
    pub(crate) validated: Option<Result<(), String>>,
    pub(crate) version: Option<String>,
    /// Id of the installation of the pilot's program that runs.
    pub(crate) program: Option<String>,
    /// Reason and message of the condition ProgramCurrent while another program is installed.
    pub(crate) successor: Option<(String, String)>,
    pub(crate) health: Option<Health>,
    /// Why the node's database takes no writes, or soon will not: the volume is full.
    pub(crate) full: Option<String>,
    pub(crate) cluster_id: Option<String>,
    /// Name of the database cluster that the node is in.
    pub(crate) cluster_name: Option<String>,
    /// Whether the node has rows of ranges that other nodes own now; `None` where the database does
    /// not tell.
    pub(crate) cleanup: Option<CleanupFacts>,
    /// The node may lack writes that other nodes have, and no user has reported its repair.
    pub(crate) behind: Option<BehindFacts>,
    pub(crate) load: Option<NodeLoad>,
    /// What the pilot has against a change of its cluster.
    pub(crate) blockers: Vec<BlockerFacts>,
    /// The id that the database gave to the node.
    pub(crate) node_id: Option<String>,
    /// How far the node's database is with forgetting other nodes.
    pub(crate) forgotten: Vec<ForgottenNode>,
    /// Uid of the claim or pod whose data a person gave up.
    pub(crate) given_up: Option<String>,
    /// Id of the database cluster that the node begins anew, as a person says.
    pub(crate) unsafe_bootstrap: Option<String>,
    /// The pilot says that its volume holds no data of a database.
    pub(crate) emptied: bool,
    /// Config hash of the template of which the node's next pod is made, where the node has not had
    /// its turn in a change.
    pub(crate) pinned: Option<String>,
    /// A request that a pod of the node leave its machine, and what the answer was said to wait for.
    pub(crate) leave: Option<LeaveRequest>,
    pub(crate) leave_waits: Option<String>,
    /// Message of the Ready condition while that is not True.
    pub(crate) not_ready: Option<String>,
    /// Its database runs and has waited in vain for others for longer than an election takes.
    pub(crate) joins_in_vain: bool,
    /// The controller wrote the Ready condition, because the pilot had not reported for long.
    pub(crate) marked_unheard: bool,
}

/// What a pilot reports against a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockerFacts {
    pub(crate) predicate: String,
    pub(crate) message: String,
    pub(crate) against: Vec<NodeChange>,
}

impl PilotFacts {
    /// Is the pilot about to restart its database, or at it?
    pub(crate) fn restarts(&self) -> bool {
        let told =
            self.spec.restart_for.is_some() && self.spec.restart_for == self.spec.config_hash;
        let due = self.started_for.is_some() && self.started_for != self.spec.restart_for;
        let rejected = matches!(self.validated, Some(Err(_)));
        told && due && !rejected && !self.hearing.is_over()
    }
}

impl BlockerFacts {
    /// Makes a blocker as released pilots report it: against a stop of their node.
    #[cfg(test)]
    pub(crate) fn of_stop(predicate: &str, message: &str) -> Self {
        let (predicate, message) = (predicate.to_owned(), message.to_owned());
        Self { predicate, message, against: vec![NodeChange::Stop] }
    }

    pub(crate) fn speaks_against(&self, change: &NodeChange) -> bool {
        self.against.contains(change)
    }
}

/// What a pilot reports about rows of ranges that other nodes own now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CleanupFacts {
    /// The node has such rows, or the pilot does not know.
    pub(crate) due: bool,
    pub(crate) message: String,
}

/// What a pilot reports about writes that its node may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BehindFacts {
    pub(crate) report: BehindReplica,
    /// Why a user's report of the repair does not count, where there is one.
    pub(crate) report_flaw: Option<&'static str>,
}

impl BehindFacts {
    /// Returns the facts unless `pilot` has a user's report that counts.
    fn of(report: BehindReplica, pilot: &ObjectMeta, now: Timestamp) -> Option<Self> {
        let repair = RepairReport::read(pilot, report.since, now);
        let report_flaw = repair.flaw();
        (repair != RepairReport::Repaired).then_some(Self { report, report_flaw })
    }
}

impl ObservedCluster {
    /// Returns the facts on which the specs of Pilots depend.
    pub(crate) fn existing(&self) -> Vec<ExistingPool> {
        let one = |pool: &ObservedPool| ExistingPool {
            pool: pool.name.clone(),
            eligible: pool.staying(|member| member.is_some_and(Member::eligible)),
            unknown: pool.staying(|member| member.is_none_or(|member| member.pilot.is_none())),
            parts: pool.pilots().next().map(|pilot| pilot.spec.parts.clone()),
        };
        self.pools.iter().map(one).collect()
    }

    /// Adds the age of each pilot's report; `heard` returns it by the uid of the Pilot.
    pub(crate) fn hear(&mut self, heard: impl Fn(&str) -> HeartbeatAge) {
        for member in self.pools.iter_mut().flat_map(|pool| pool.members.values_mut()) {
            if let Some(pilot) = &mut member.pilot {
                pilot.hearing = heard(&pilot.uid);
            }
            excuse(member);
        }
    }

    /// Adds for how long each node has not served; `see` is told by the uid of the Pilot whether it
    /// serves.
    pub(crate) fn see(&mut self, see: impl Fn(&str, bool) -> Duration) {
        for member in self.pools.iter_mut().flat_map(|pool| pool.members.values_mut()) {
            let serves = member.serving();
            if let Some(pilot) = &mut member.pilot {
                pilot.hearing.gone = see(&pilot.uid, serves);
            }
        }
    }

    /// Returns the cluster as it would be with `to` replicas in `pool`.
    pub(crate) fn resized(&self, pool: &str, to: u32) -> Self {
        let mut resized = self.clone();
        for set in resized.pools.iter_mut().filter(|found| found.name == pool) {
            if let Some(set) = &mut set.set {
                set.replicas = to;
            }
        }
        resized
    }
}

impl Member {
    /// Does the node serve, according to both the kubelet and its own pilot? One whose pilot is
    /// about to restart it counts as down already.
    pub(crate) fn serving(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.ready && !pod.terminating)
            && self.pilot.as_ref().is_some_and(|pilot| pilot.ready && !pilot.restarts())
    }

    pub(crate) fn intent(&self) -> PilotIntent {
        self.pilot.as_ref().and_then(|pilot| pilot.spec.phase.clone()).unwrap_or_default()
    }

    /// Is `intent` the node's intended phase, and did the controller write it?
    pub(crate) fn intends(&self, intent: &PilotIntent) -> bool {
        self.intent() == *intent && self.pilot.as_ref().is_some_and(|pilot| pilot.phase_ours)
    }

    /// Returns the phase that a person wrote, which the controller therefore leaves alone.
    pub(crate) fn held(&self) -> Option<PilotIntent> {
        let pilot = self.pilot.as_ref()?;
        let intent = self.intent();
        let acts = matches!(
            intent,
            PilotIntent::Fenced | PilotIntent::Stopped | PilotIntent::Decommissioned
        );
        (acts && !pilot.phase_ours).then_some(intent)
    }

    /// Is the node asked to leave, by a person or by the controller?
    pub(crate) fn asked_to_leave(&self) -> bool {
        self.intent() == PilotIntent::Decommissioned
    }

    /// Returns the uid of what holds the node's data: its claim, or its pod.
    pub(crate) fn data(&self) -> Option<String> {
        match (&self.claim, &self.pod) {
            (Some(claim), _) => Some(claim.uid.clone()),
            (None, Some(pod)) if pod.holds_data => Some(pod.uid.clone()),
            (None, _) => None,
        }
    }

    /// Did a person give up the data that the node has now, or had last? Data of a node that serves are
    /// not lost, whatever a person says.
    pub(crate) fn abandoned(&self) -> bool {
        let word = self.pilot.as_ref().and_then(|pilot| pilot.given_up.as_ref());
        word.is_some_and(|word| self.data().is_none_or(|data| data == *word)) && !self.serving()
    }

    /// Has a node that does not serve been away for longer than a start or a restart takes?
    pub(crate) fn lasts_away(&self) -> bool {
        let pilot = self.pilot.as_ref();
        match &self.pod {
            _ if self.held().is_some() => true,
            None => {
                let refused = self.refused.as_ref().is_some_and(|refused| refused.lasts);
                refused || pilot.is_some_and(|pilot| pilot.hearing.is_over())
            }
            Some(pod) if pod.terminating => pod.overdue,
            Some(pod) => self.fails() || pod.trouble.as_ref().is_some_and(|found| found.lasts),
        }
    }

    /// Does the controller get no report from the pilot, although the kubelet finds the pod ready?
    pub(crate) fn unheard(&self) -> bool {
        let ready = self.pod.as_ref().is_some_and(|pod| pod.ready && !pod.terminating);
        let silent = |pilot: &PilotFacts| pilot.hearing.is_over() || pilot.marked_unheard;
        ready && self.pilot.as_ref().is_some_and(silent)
    }

    /// Returns when the pod has a valid token again, at the latest. `None` unless the API rejects
    /// the pilot because its ServiceAccount was deleted and made again.
    pub(crate) fn turned_away(&self) -> Option<Timestamp> {
        let pod = self.pod.as_ref().filter(|pod| pod.started && !pod.terminating)?;
        let unheard = self.pilot.as_ref().is_some_and(|pilot| pilot.marked_unheard);
        pod.token_renewed_by.filter(|_| unheard)
    }

    /// Does the pilot of the current pod report that its database cannot be run?
    pub(crate) fn fails(&self) -> bool {
        let (Some(pod), Some(pilot)) = (&self.pod, &self.pilot) else { return false };
        pilot.failed && !pilot.hearing.is_over() && pilot.instance.as_ref() == Some(&pod.uid)
    }

    /// Does the pilot of the current pod report that its database runs, and that it does not serve? Not
    /// while data are streamed to or from the node, or while it is about to restart.
    pub(crate) fn runs_without_serving(&self) -> bool {
        let (Some(pod), Some(pilot)) = (&self.pod, &self.pilot) else { return false };
        let speaks = pilot.hearing.is_fresh() && pilot.instance.as_ref() == Some(&pod.uid);
        let runs = !pilot.idle && !pilot.ready && !pilot.failed && !pilot.stopped;
        speaks && runs && !self.at_work() && !pilot.restarts() && !pilot.decommissioned
    }

    /// Does a current report of the pilot say that data are streamed to or from the node?
    pub(crate) fn at_work(&self) -> bool {
        self.pilot.as_ref().is_some_and(|pilot| pilot.at_work && !pilot.hearing.is_over())
    }

    /// Would the data of this node be deleted with its pod?
    pub(crate) fn dies_with_pod(&self) -> bool {
        // Without a Pilot there is no report that the pod holds no data.
        let has = self.pilot.as_ref().is_none_or(|pilot| pilot.identity && !pilot.decommissioned);
        let keeps = self.pilot.as_ref().is_none_or(|pilot| pilot.keeps_data);
        has && keeps && self.pod.as_ref().is_some_and(|pod| pod.holds_data && pod.started)
    }

    /// May the other nodes elect this node?
    pub(crate) fn eligible(&self) -> bool {
        self.pilot.as_ref().is_some_and(|pilot| pilot.eligible)
    }

    pub(crate) fn decommissioned(&self) -> bool {
        self.pilot.as_ref().is_some_and(|pilot| pilot.decommissioned)
    }

    /// Is the node a member of the database cluster, or was it one?
    pub(crate) fn has_identity(&self) -> bool {
        self.pilot.as_ref().is_some_and(|pilot| pilot.identity)
    }

    /// Does the pilot of the node's current pod say that no data lie on its volume?
    pub(crate) fn is_empty(&self) -> bool {
        let Self { pod: Some(pod), pilot: Some(pilot), .. } = self else { return false };
        pilot.emptied && pilot.instance.as_ref() == Some(&pod.uid)
    }

    /// Did the database never run on this node? Then nothing can be lost with the node.
    pub(crate) fn never_ran(&self) -> bool {
        let started = self.pod.as_ref().is_some_and(|pod| pod.started || pod.ready);
        !started && !self.has_identity() && self.is_first_life()
    }

    /// Does the node hold data of the database cluster, or may it? It may where its volume is older
    /// than its Pilot, and no pilot has reported yet what the volume holds.
    pub(crate) fn may_be_member(&self) -> bool {
        let unread = self.pilot.as_ref().is_some_and(|pilot| !pilot.checked);
        self.has_identity() || (unread && !self.is_first_life())
    }

    /// Returns whether the node has no pod, and a volume that was there before its Pilot or a pod of
    /// it, and that no pilot has read. A StatefulSet makes claims together with pods, so such a claim
    /// is of an earlier life of the cluster: it was made again, or put back from a copy of its
    /// objects. What the Pilot notes of earlier claims does not count, since it may be of that copy.
    fn has_unread_volume(&self) -> bool {
        let kept = self.claim.as_ref().is_some_and(|claim| claim.holds_data);
        let unread = self.pilot.as_ref().is_none_or(|pilot| !pilot.checked);
        self.pod.is_none() && kept && unread && !self.decommissioned() && !self.abandoned()
    }

    /// Was the volume made later than this Pilot? An older volume may hold data of an earlier node
    /// of this name. Creation times do not tell: claim and Pilot are on servers with clocks of
    /// their own.
    pub(crate) fn is_first_life(&self) -> bool {
        let Some(claim) = self.claim.as_ref().filter(|claim| claim.holds_data) else { return true };
        let noted = |pilot: &PilotFacts| {
            pilot.earlier_claim.as_ref().is_some_and(|earlier| *earlier != claim.uid)
        };
        self.pilot.as_ref().is_none_or(noted)
    }

    /// Did the database never answer its pilot, and is it not running now? Then it never joined the
    /// other nodes, and nothing can be lost with the node.
    ///
    /// Only the pilot of the current pod can tell, and only while it reports. If the volume is
    /// older than the Pilot, the pilot must also have read whose data the volume holds.
    pub(crate) fn never_served(&self) -> bool {
        let (Some(pod), Some(pilot)) = (&self.pod, &self.pilot) else { return false };
        let speaks = pilot.instance.as_ref() == Some(&pod.uid) && pilot.hearing.is_fresh();
        let knows_data = self.is_first_life() || pilot.checked;
        let never_up = !pod.ready && !pilot.ready && pilot.idle;
        speaks && knows_data && never_up && !pilot.answered && !pilot.identity
    }
}

impl ObservedPool {
    /// Returns the number of nodes that exist, or come back, and were not asked to leave, of those
    /// that `is` is true of.
    fn staying(&self, is: impl Fn(Option<&Member>) -> bool) -> u32 {
        let nodes = self.replicas().max(self.returning());
        let members = (0..nodes).map(|ordinal| self.members.get(&ordinal));
        let leaves = |member: &Member| member.intends(&PilotIntent::Decommissioned);
        let staying = members.filter(|member| !member.is_some_and(leaves) && is(*member)).count();
        u32::try_from(staying).unwrap_or(u32::MAX)
    }

    fn pilots(&self) -> impl Iterator<Item = &PilotFacts> {
        self.members.values().filter_map(|member| member.pilot.as_ref())
    }

    /// May at least one node of the pool be elected?
    pub(crate) fn eligible(&self) -> bool {
        self.members.values().any(Member::eligible)
    }

    pub(crate) fn replicas(&self) -> u32 {
        self.set.as_ref().map_or(0, |set| set.replicas)
    }

    /// Returns the replicas that the StatefulSet needs, at least, to have a pod for every node that
    /// joined the database cluster and did not leave it. With fewer, data would be unavailable.
    pub(crate) fn returning(&self) -> u32 {
        if self.orphan {
            return 0;
        }
        let gone = |member: &Member| member.decommissioned() || member.abandoned();
        self.one_past_last(|member| member.may_be_member() && !gone(member))
    }

    /// Returns the replicas that bring back each node that has data, and each of the first `wanted`
    /// nodes whose volume was kept and may hold them. The others miss such a node until it starts,
    /// and may not serve without it, so none of their reports may hold its start.
    pub(crate) fn returning_of(&self, wanted: u32) -> u32 {
        let later = self.replicas()..wanted.max(self.replicas());
        let mut later = self.members.range(later).rev();
        let last = later.find(|(_, member)| member.has_unread_volume());
        self.returning().max(last.map_or(0, |(ordinal, _)| ordinal + 1))
    }

    /// Returns the replicas with which a StatefulSet is made. Pods that a deleted StatefulSet left
    /// as orphans are kept. Volumes of an earlier cluster of this name hold the members of the
    /// database cluster: all of them start, because a quorum may need them. Those that the spec
    /// does not want move their data away and leave like any other node.
    pub(crate) fn initial(&self) -> u32 {
        let kept = |member: &Member| {
            let claim = member.claim.as_ref();
            claim.is_some_and(|claim| claim.holds_data) && !member.decommissioned()
        };
        self.returning().max(self.living()).max(self.one_past_last(kept))
    }

    /// Returns the replicas that the StatefulSet needs to end no pod that lives.
    pub(crate) fn living(&self) -> u32 {
        self.one_past_last(|member| member.pod.as_ref().is_some_and(|pod| !pod.terminating))
    }

    fn one_past_last(&self, is: impl Fn(&Member) -> bool) -> u32 {
        let last = self.members.iter().rev().find(|(_, member)| is(member));
        last.map_or(0, |(ordinal, _)| ordinal + 1)
    }

    /// Returns the ordinals that the StatefulSet runs, with the members that have an object
    /// already.
    pub(crate) fn running(&self) -> impl Iterator<Item = (u32, Option<&Member>)> {
        (0..self.replicas()).map(|ordinal| (ordinal, self.members.get(&ordinal)))
    }
}

/// Turns the objects of a cluster into facts.
pub(crate) fn observe(
    desired: &DesiredCluster,
    objects: &ClusterObjects,
    now: Timestamp,
) -> ObservedCluster {
    let mut pools: Vec<ObservedPool> = desired
        .pools
        .iter()
        .map(|pool| ObservedPool {
            name: pool.name.clone(),
            set_name: pool.set.clone(),
            ..ObservedPool::default()
        })
        .collect();
    let mut stalled = None;
    for set in &objects.sets {
        let name = set.metadata.name.clone().unwrap_or_default();
        if !owned(&set.metadata, desired) {
            if pools.iter().any(|pool| pool.set_name == name) {
                stalled = stalled.or_else(|| Some(foreign("StatefulSet", &set.metadata, desired)));
            }
            continue;
        }
        let known = pools.iter().position(|pool| pool.set_name == name);
        let index = known.unwrap_or_else(|| {
            pools.push(ObservedPool {
                name: label(&set.metadata, desired.database.names.pool_label),
                set_name: name,
                ..ObservedPool::default()
            });
            pools.len() - 1
        });
        let replicas = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        pools[index].set = Some(ObservedStatefulSet {
            uid: set.metadata.uid.clone().unwrap_or_default(),
            replicas: u32::try_from(replicas).unwrap_or_default(),
            resource_version: set.metadata.resource_version.clone().unwrap_or_default(),
            object: Some(Arc::clone(set)),
            template: template_hash(set).unwrap_or_default().to_owned(),
            terminating: set.metadata.deletion_timestamp.is_some(),
            claim_asked: annotation_of(&set.metadata, annotation::CLAIM_TEMPLATE),
            claim: ClaimTemplate::of_set(set),
        });
    }
    add_orphans(&mut pools, desired, objects);
    for pod in &objects.pods {
        if let Some(member) = member(&mut pools, pod.metadata.name.as_deref()) {
            let template = newest_template(pod, &objects.sets);
            let token_renewed_by = renewed_by(&pod.metadata, objects.account.as_ref(), now);
            let facts = pod_facts(pod, desired, now);
            member.pod = Some(PodFacts { template, token_renewed_by, ..facts });
        }
    }
    for pilot in &objects.pilots {
        let Some(member) = member(&mut pools, pilot.metadata.name.as_deref()) else { continue };
        let controller = controller(&pilot.metadata);
        if controller.is_some() && !owned(&pilot.metadata, desired) {
            stalled = stalled.or_else(|| Some(foreign("Pilot", &pilot.metadata, desired)));
            continue;
        }
        member.pilot = Some(pilot_facts(desired.database, pilot, controller.is_some(), now));
    }
    let prefix = format!("{}-", desired.database.names.data_volume);
    for claim in &objects.claims {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let Some(member) = member(&mut pools, name.strip_prefix(&prefix)) else { continue };
        member.claim = Some(claim_facts(claim, desired.database.names, now));
        tell_lost_volume(member);
    }
    ObservedCluster { pools, stalled, ..ObservedCluster::default() }
}

/// Adds the pools of which only Pilots are left.
fn add_orphans(pools: &mut Vec<ObservedPool>, desired: &DesiredCluster, objects: &ClusterObjects) {
    for pilot in objects.pilots.iter().filter(|pilot| owned(&pilot.metadata, desired)) {
        let name = label(&pilot.metadata, desired.database.names.pool_label);
        let set = pilot.metadata.name.as_deref().and_then(|name| name.rsplit_once('-'));
        let Some((set_name, _)) = set.filter(|_| !name.is_empty()) else { continue };
        if pools.iter().any(|pool| pool.set_name == set_name) {
            continue;
        }
        let set_name = set_name.to_owned();
        pools.push(ObservedPool { name, set_name, orphan: true, ..ObservedPool::default() });
    }
}

/// Tells of a pod whose volume is lost. Without this, the pod only seems to find no machine.
fn tell_lost_volume(member: &mut Member) {
    let Some(claim) = member.claim.as_ref().filter(|claim| claim.lost) else { return };
    if let Some(pod) = member.pod.as_mut().filter(|pod| !pod.ready) {
        let message = format!("{}: the volume of claim {} is lost", member.name, claim.name);
        pod.trouble = Some(PodFailure { reason: "VolumeLost", message, lasts: true });
    }
}

/// Clears the missed deadline of a pod whose node moves data, or is kept down by a person: such a
/// pod is not broken.
fn excuse(member: &mut Member) {
    let busy = member.held().is_some() || member.at_work();
    if let Some(pod) = member.pod.as_mut().filter(|_| busy) {
        pod.trouble.take_if(|trouble| trouble.reason == "ProgressDeadlineExceeded");
    }
}

/// Returns the member with the name `<set>-<ordinal>`; adds it for the first object of that name.
fn member<'a>(pools: &'a mut [ObservedPool], name: Option<&str>) -> Option<&'a mut Member> {
    let (set, ordinal) = name?.rsplit_once('-')?;
    let ordinal: u32 = ordinal.parse().ok()?;
    let pool = pools.iter_mut().find(|pool| pool.set_name == set)?;
    let name = names::pilot(set, ordinal);
    Some(pool.members.entry(ordinal).or_insert_with(|| Member { name, ..Member::default() }))
}

pub(crate) fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Returns the uid of the cluster that an object was made for: from its annotation, else from its
/// controller reference. Pilots have such a reference, and so has every object that a release
/// before 0.3 made.
pub(crate) fn made_for(meta: &ObjectMeta) -> Option<&str> {
    let marked = meta.annotations.as_ref().and_then(|all| all.get(annotation::CLUSTER_UID));
    let owner = || controller(meta).map(|owner| owner.uid.as_str());
    marked.map(String::as_str).or_else(owner)
}

/// Was the object made for this cluster?
pub(crate) fn owned(meta: &ObjectMeta, desired: &DesiredCluster) -> bool {
    made_for(meta) == Some(desired.uid.as_str())
}

/// Was the object made for an earlier cluster of this name? There is one cluster of a name at a
/// time, so the earlier one is gone.
pub(crate) fn former(meta: &ObjectMeta, desired: &DesiredCluster) -> bool {
    let labels = meta.labels.as_ref();
    let has = |key, value| labels.and_then(|all| all.get(key)).is_some_and(|found| found == value);
    let marked = meta.annotations.as_ref().is_some_and(|a| a.contains_key(annotation::CLUSTER_UID));
    marked
        && !owned(meta, desired)
        && has(names::label::K8S_MANAGED_BY, "navigator")
        && has(desired.database.names.cluster_label, desired.name.as_str())
}

/// Returns the owner references of an object without those to clusters, which own no object in
/// Kubernetes.
pub(crate) fn owners_but_ours(meta: &ObjectMeta) -> Vec<&OwnerReference> {
    meta.owner_references.iter().flatten().filter(|owner| !is_cluster(owner)).collect()
}

/// Is the owner of a kind that we serve?
pub(crate) fn is_cluster(owner: &OwnerReference) -> bool {
    owner.api_version.split('/').next() == Some(crate::api::GROUP)
}

/// Says why an object with a name that the cluster needs cannot be used, and what a person can do.
pub(crate) fn foreign(kind: &str, meta: &ObjectMeta, desired: &DesiredCluster) -> StallCause {
    let name = meta.name.as_deref().unwrap_or_default();
    let cluster = desired.database.names.kind;
    if former(meta, desired) {
        let uid = made_for(meta).unwrap_or_default();
        let message = format!(
            "{kind} {name:?} was made for an earlier {cluster} of this name (uid {uid}), and is \
             left alone: {}",
            ways(kind, name, desired)
        );
        return StallCause { reason: "ForeignObject", message };
    }
    match controller(meta) {
        Some(owner) if owner.kind == cluster && owner.name == desired.name => StallCause {
            reason: "ForeignObject",
            message: format!(
                "{kind} {name:?} belongs to an earlier {cluster} of this name; waiting for it to go"
            ),
        },
        Some(owner) if is_cluster(owner) => StallCause {
            reason: "NameConflict",
            message: format!("{kind} {name:?} belongs to {} {:?}", owner.kind, owner.name),
        },
        Some(owner) => StallCause {
            reason: "ForeignObject",
            message: format!("{kind} {name:?} belongs to {} {:?}", owner.kind, owner.name),
        },
        None if made_for(meta).is_some() => StallCause {
            reason: "NameConflict",
            message: match label(meta, desired.database.names.cluster_label).as_str() {
                other if other.is_empty() || other == desired.name => format!(
                    "{kind} {name:?} was made for another cluster (uid {})",
                    made_for(meta).unwrap_or_default()
                ),
                other => format!(
                    "{kind} {name:?} belongs to {cluster} {other:?}, and is left alone: {RENAME}"
                ),
            },
        },
        None => StallCause {
            reason: "ForeignObject",
            message: format!(
                "{kind} {name:?} exists and bears no mark of Navigator's: {}",
                ways(kind, name, desired)
            ),
        },
    }
}

/// What a person can do where another cluster has a name that this one needs.
pub(crate) const RENAME: &str = "give this cluster, its node pool or its user another name";

/// Says what a person can do about an object with a name that the cluster needs.
fn ways(kind: &str, name: &str, desired: &DesiredCluster) -> String {
    let kind = kind.to_lowercase();
    let (namespace, uid, key) = (&desired.namespace, &desired.uid, annotation::CLUSTER_UID);
    format!(
        "delete it, or hand it over as it is: kubectl --namespace {namespace} annotate --overwrite \
         {kind} {name} {key}={uid} {}-",
        annotation::STORE_ID
    )
}

/// Returns a stall cause if the object is marked with the identity of another store than ours.
pub(crate) fn other_store(meta: &ObjectMeta, store_id: &str) -> Option<StallCause> {
    let marked = meta.annotations.as_ref()?.get(annotation::STORE_ID)?;
    (marked != store_id).then(|| StallCause {
        reason: STORE_MISMATCH,
        message: format!(
            "{:?} was made for store {marked:?}, this is store {store_id:?}; nothing is changed",
            meta.name.as_deref().unwrap_or_default()
        ),
    })
}

fn label(meta: &ObjectMeta, key: &str) -> String {
    meta.labels.as_ref().and_then(|labels| labels.get(key)).cloned().unwrap_or_default()
}

fn pod_facts(pod: &Pod, desired: &DesiredCluster, now: Timestamp) -> PodFacts {
    let status = pod.status.clone().unwrap_or_default();
    let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
    let is_ready = ready.is_some_and(|condition| condition.status == "True");
    let annotations = pod.metadata.annotations.as_ref();
    let ours = status
        .container_statuses
        .iter()
        .flatten()
        .find(|container| container.name == desired.database.names.container);
    let started = ours.is_some_and(|container| {
        let state = container.state.as_ref();
        container.restart_count > 0
            || state.is_some_and(|s| s.running.is_some() || s.terminated.is_some())
    });
    PodFacts {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        resource_version: pod.metadata.resource_version.clone().unwrap_or_default(),
        machine: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        ready: is_ready,
        terminating: pod.metadata.deletion_timestamp.is_some(),
        orphan: controller(&pod.metadata).is_none(),
        overdue: pod
            .metadata
            .deletion_timestamp
            .as_ref()
            .is_some_and(|end| age(end.0, now) > LINGERS),
        holds_data: holds_data(pod, desired),
        mounts_users: mounts_users(pod),
        started,
        hash: annotations.and_then(|a| a.get(annotation::CONFIG_HASH)).cloned().unwrap_or_default(),
        template: None,
        installers: installer::installers(pod, now),
        trouble: if is_ready { None } else { trouble(pod, desired, now) },
        token_renewed_by: None,
    }
}

/// Returns the config hash in the template that a pod was made from, if the StatefulSet has no
/// newer template. A new pod would then be made from the same template.
fn newest_template(pod: &Pod, sets: &[Arc<StatefulSet>]) -> Option<String> {
    let (name, _) = pod.metadata.name.as_deref()?.rsplit_once('-')?;
    let set = sets.iter().find(|set| set.metadata.name.as_deref() == Some(name))?;
    let status = set.status.as_ref()?;
    let made_of = pod.metadata.labels.as_ref()?.get("controller-revision-hash")?;
    let newest = status.observed_generation == set.metadata.generation
        && status.update_revision.as_ref() == Some(made_of);
    newest.then(|| template_hash(set).unwrap_or_default().to_owned())
}

fn annotation_of(meta: &ObjectMeta, key: &str) -> Option<String> {
    meta.annotations.as_ref()?.get(key).cloned()
}

fn template_hash(set: &StatefulSet) -> Option<&str> {
    let template = set.spec.as_ref()?.template.metadata.as_ref()?;
    template.annotations.as_ref()?.get(annotation::CONFIG_HASH).map(String::as_str)
}

/// Is the data volume a part of the pod? The volumes of the pod decide, not the cluster's spec:
/// persistence that is added later does not reach an existing pod.
fn mounts_users(pod: &Pod) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.any(|volume| volume.name == names::USERS_VOLUME)
}

pub(crate) fn holds_data(pod: &Pod, desired: &DesiredCluster) -> bool {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let data = volumes.into_iter().flatten().find(|v| v.name == desired.database.names.data_volume);
    data.is_some_and(|volume| volume.empty_dir.is_some() || volume.ephemeral.is_some())
}

/// Reasons of waiting containers that do not pass by themselves, each with the reason for
/// conditions.
const WAITING: &[(&str, &str)] = &[
    ("ErrImagePull", "ImagePullFailed"),
    ("ImagePullBackOff", "ImagePullFailed"),
    ("InvalidImageName", "ImagePullFailed"),
    ("ErrImageNeverPull", "ImagePullFailed"),
    ("CrashLoopBackOff", "NodesNotReady"),
    ("CreateContainerConfigError", "NodesNotReady"),
    ("CreateContainerError", "NodesNotReady"),
    ("RunContainerError", "NodesNotReady"),
];

fn trouble(pod: &Pod, desired: &DesiredCluster, now: Timestamp) -> Option<PodFailure> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref()?;
    let condition = |type_: &str| {
        status.conditions.iter().flatten().find(|c| c.type_ == type_ && c.status == "False")
    };
    let since = |type_: &str| condition(type_)?.last_transition_time.as_ref().map(|since| since.0);
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses);
    for container in containers.flatten() {
        let Some(waiting) = container.state.as_ref().and_then(|state| state.waiting.as_ref())
        else {
            continue;
        };
        let waits_for = waiting.reason.as_deref().unwrap_or_default();
        if let Some((_, reason)) = WAITING.iter().find(|(listed, _)| *listed == waits_for) {
            let message = waiting.message.as_deref().unwrap_or_default();
            let message = format!("{name}: container {}: {waits_for}: {message}", container.name);
            return Some(PodFailure { reason, message, lasts: lasts(since("Ready"), now) });
        }
    }
    if let Some(unschedulable) =
        condition("PodScheduled").filter(|c| c.reason.as_deref() == Some("Unschedulable"))
    {
        let message = unschedulable.message.as_deref().unwrap_or_default();
        let (message, lasts) = (format!("{name}: {message}"), lasts(since("PodScheduled"), now));
        return Some(PodFailure { reason: "Unschedulable", message, lasts });
    }
    let since = since("Ready")?;
    (age(since, now) > desired.strategy.progress_deadline).then(|| PodFailure {
        reason: "ProgressDeadlineExceeded",
        message: format!("{name} has not been ready since {since}"),
        lasts: true,
    })
}

/// How long after the end of its grace period a pod is expected to be gone. `deletionTimestamp` is
/// that end.
const LINGERS: Duration = Duration::from_secs(30);

/// How long a pod may wait for registries and autoscalers before its cluster is Stalled. A younger
/// wait is only reported.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Has the failure lasted long? One without a start time counts as lasting, because its age would
/// never be known.
fn lasts(since: Option<Timestamp>, now: Timestamp) -> bool {
    since.is_none_or(|since| age(since, now) >= PATIENCE)
}

fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

pub(crate) fn condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns reason and message of a pilot's condition that is there and not True.
fn untrue(status: &PilotStatus, type_: &str) -> Option<(String, String)> {
    let found = condition(&status.conditions, type_)?;
    (found.status != "True").then(|| (found.reason.clone(), found.message.clone()))
}

fn pilot_facts(
    database: &ManagedDatabase,
    pilot: &Pilot,
    owned: bool,
    now: Timestamp,
) -> PilotFacts {
    let (spec, status) = (&pilot.spec, &pilot.status);
    let reports = (database.reports)(status);
    let is = |type_: &str| condition(&status.conditions, type_).is_some_and(|c| c.status == "True");
    let ready = condition(&status.conditions, "Ready");
    let decommission = status.decommission.as_ref();
    let annotations = pilot.metadata.annotations.as_ref();
    PilotFacts {
        uid: pilot.metadata.uid.clone().unwrap_or_default(),
        resource_version: pilot.metadata.resource_version.clone().unwrap_or_default(),
        spec: spec.clone(),
        phase_ours: annotations.is_some_and(|a| a.contains_key(PHASE_OWNER)),
        owned,
        elected: reports.elected,
        eligible: (database.eligible)(spec),
        // A spec that takes data away from a node is there before the data have gone.
        keeps_data: (database.keeps_data)(spec)
            || status.blockers.iter().any(|one| one.predicate == DATA_OUTLIVES_POD.name),
        ready: ready.is_some_and(|condition| condition.status == "True"),
        hearing: HeartbeatAge::default(),
        identity: status.identity.is_some(),
        instance: status.instance.as_ref().and_then(|instance| instance.uid.clone()),
        machine: status.instance.as_ref().and_then(|instance| instance.node.clone()),
        answered: answered(status, &reports),
        idle: status.phase.is_some() && status.process.is_none(),
        checked: is("PreflightPassed"),
        earlier_claim: annotations.and_then(|all| all.get(annotation::EARLIER_CLAIM)).cloned(),
        decommissioned: is("Decommissioned"),
        stopped: status.phase == Some(PilotPhase::Stopped) || is("Stopped"),
        irreversible: decommission.is_some_and(|progress| progress.irreversible),
        // A report about a process that has ended does not count as work.
        at_work: (reports.moves_data && status.process.is_some())
            || status.phase == Some(PilotPhase::Decommissioning),
        progress: decommission.map(|progress| {
            let left = progress.bytes_left.map(|bytes| format!(", {bytes} bytes left"));
            let percent = progress.percent.map(|percent| format!(", {percent} %"));
            let message = progress.message.as_deref().unwrap_or("moving data away");
            format!("{message}{}{}", percent.unwrap_or_default(), left.unwrap_or_default())
        }),
        security: status.security.clone(),
        certificates: untrue(status, "CertificatesValid"),
        users: untrue(status, "UsersApplied"),
        running_hash: status.config_hash.clone(),
        started_for: status.started_for.clone(),
        failed: status.phase == Some(PilotPhase::Failed),
        validated: validated(pilot),
        version: status.version.clone(),
        program: status.pilot_program.clone(),
        successor: untrue(status, "ProgramCurrent"),
        health: status.health.clone(),
        full: ["Writable", "PreflightPassed"].into_iter().find_map(|type_| {
            let found = condition(&status.conditions, type_)?;
            (found.reason == "DiskFull").then(|| found.message.clone())
        }),
        cluster_id: status.identity.as_ref().and_then(|identity| identity.cluster_id.clone()),
        // Only a member is in the cluster of this name.
        cluster_name: reports.cluster_name.filter(|_| status.identity.is_some()),
        load: reports.load,
        behind: reports.behind.and_then(|report| BehindFacts::of(report, &pilot.metadata, now)),
        cleanup: condition(&status.conditions, CLEANUP_DUE).map(|condition| CleanupFacts {
            due: condition.status != "False",
            message: condition.message.clone(),
        }),
        node_id: status.identity.as_ref().and_then(|identity| identity.node_id.clone()),
        forgotten: status.forgotten.clone(),
        blockers: status.blockers.iter().map(blocker_facts).collect(),
        given_up: annotations.and_then(|all| all.get(annotation::GIVE_UP)).cloned(),
        unsafe_bootstrap: annotation_of(&pilot.metadata, annotation::UNSAFE_BOOTSTRAP),
        emptied: condition(&status.conditions, VOLUME_HOLDS_DATA)
            .is_some_and(|condition| condition.status == "False"),
        pinned: annotations.and_then(|all| all.get(annotation::PINNED_POD)).cloned(),
        leave: LeaveRequest::read(&pilot.metadata),
        leave_waits: annotations.and_then(|all| all.get(annotation::LEAVE_WAITS)).cloned(),
        not_ready: ready
            .filter(|condition| condition.status != "True")
            .map(|condition| format!("{}: {}", condition.reason, condition.message)),
        joins_in_vain: ready.is_some_and(|ready| joins_in_vain(ready, status)),
        marked_unheard: ready.is_some_and(|ready| says_unheard(&ready.reason)),
    }
}

/// How long members of a database may wait for each other before they are taken to lack a leader:
/// some times what a start and an election take.
const ELECTION_PATIENCE: Duration = Duration::from_secs(300);

/// All times are of the pilot's clock. A node may have been stopped for long before its process began.
fn joins_in_vain(ready: &Condition, status: &PilotStatus) -> bool {
    let begun = status.process.as_ref().and_then(|process| process.start_time.as_ref());
    let (Some(heard), Some(begun)) = (&status.last_heartbeat_time, begun) else { return false };
    let since = begun.0.max(ready.last_transition_time.0);
    let waits = ready.status == "False" && ready.reason == "Joining";
    waits && age(since, heard.0) >= ELECTION_PATIENCE
}

fn blocker_facts(blocker: &Blocker) -> BlockerFacts {
    let (predicate, message) = (blocker.predicate.clone(), blocker.message.clone());
    BlockerFacts { predicate, message, against: blocker.changes() }
}

/// Has the database ever answered its pilot? The fields that tell come from the database, and the
/// pilot keeps them over restarts of both. A node that never was a member has no data, so its
/// answers do not count.
fn answered(status: &PilotStatus, reports: &NodeReport) -> bool {
    if reports.outsider && status.identity.is_none() {
        return false;
    }
    status.version.is_some()
        || status.identity.is_some()
        || status.decommission.is_some()
        || !status.endpoints.is_empty()
        || reports.answered
}

fn validated(pilot: &Pilot) -> Option<Result<(), String>> {
    let newest = pilot.status.observed_generation == pilot.metadata.generation;
    let applied = condition(&pilot.status.conditions, "ConfigApplied").filter(|_| newest)?;
    Some(if applied.reason == "ConfigRejected" { Err(applied.message.clone()) } else { Ok(()) })
}
