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
    silence::is_silent_reason,
    v1beta1::{
        Blocker, ForgottenNode, Health, NodeChange, Pilot, PilotIntent, PilotPhase,
        PilotSecurityStatus, PilotSpec, PilotStatus,
    },
};

/// Annotation on a Pilot: the controller wrote `spec.phase`, not a user.
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
    /// Desired pools in the order of the spec, then pools that are no longer desired.
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
    /// Returns whether the cluster has a Pilot of its own. Until then nothing runs that an object
    /// of doubtful origin could block.
    pub(crate) fn has_nodes(&self) -> bool {
        let mut members = self.pools.iter().flat_map(|pool| pool.members.values());
        members.any(|member| member.pilot.as_ref().is_some_and(|pilot| pilot.owned))
    }

    /// Returns whether the controller writes nothing for the cluster. That is so while one of its
    /// objects is of another store. Before its first node, it is also so while a name that the
    /// cluster needs is taken.
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
    /// Whether the controller wrote `spec.phase`, not a user.
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
    /// Age of the pilot's report, which no object says; see [`ObservedCluster::set_heartbeats`].
    pub(crate) hearing: HeartbeatAge,
    /// The node is, or was, a member of the database cluster.
    pub(crate) identity: bool,
    /// Uid of the pod whose pilot reported last, and name of its machine.
    pub(crate) instance: Option<String>,
    pub(crate) machine: Option<String>,
    /// The database answered its pilot at least once, so it may have joined the other nodes.
    pub(crate) answered: bool,
    /// Whether the pilot reports that no process of the database runs.
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
    /// Config hash that was desired when the database was started; `None` for a pilot that does not
    /// act on `spec.restart_for`.
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
    /// Uid of the claim or pod whose data the user discarded.
    pub(crate) given_up: Option<String>,
    /// Id of the database cluster that the node may form again, as the user approved.
    pub(crate) unsafe_bootstrap: Option<String>,
    /// Whether the pilot reports that its volume holds no data of a database.
    pub(crate) emptied: bool,
    /// Config hash of the template of which the node's next pod is made, where the node has not had
    /// its turn in a change.
    pub(crate) pinned: Option<String>,
    /// A request to evict a pod of the node, and what the eviction was last reported to wait for.
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
    /// Returns whether the pilot is about to restart its database, or is restarting it.
    pub(crate) fn is_restarting(&self) -> bool {
        let is_restart_requested =
            self.spec.restart_for.is_some() && self.spec.restart_for == self.spec.config_hash;
        let is_restart_pending =
            self.started_for.is_some() && self.started_for != self.spec.restart_for;
        let is_rejected = matches!(self.validated, Some(Err(_)));
        is_restart_requested && is_restart_pending && !is_rejected && !self.hearing.is_over()
    }
}

impl BlockerFacts {
    /// Makes a blocker as released pilots report it: against a stop of their node.
    #[cfg(test)]
    pub(crate) fn of_stop(predicate: &str, message: &str) -> Self {
        let (predicate, message) = (predicate.to_owned(), message.to_owned());
        Self { predicate, message, against: vec![NodeChange::Stop] }
    }

    pub(crate) fn blocks_change(&self, change: &NodeChange) -> bool {
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
    fn from_report(report: BehindReplica, pilot: &ObjectMeta, now: Timestamp) -> Option<Self> {
        let repair = RepairReport::from_metadata(pilot, report.since, now);
        let report_flaw = repair.rejection_reason();
        (repair != RepairReport::Repaired).then_some(Self { report, report_flaw })
    }
}

impl ObservedCluster {
    /// Returns the facts on which the specs of Pilots depend.
    pub(crate) fn existing_pools(&self) -> Vec<ExistingPool> {
        let existing_pool = |pool: &ObservedPool| ExistingPool {
            pool: pool.name.clone(),
            eligible: pool.count_staying(|member| member.is_some_and(Member::is_eligible)),
            unknown: pool
                .count_staying(|member| member.is_none_or(|member| member.pilot.is_none())),
            parts: pool.pilots().next().map(|pilot| pilot.spec.parts.clone()),
        };
        self.pools.iter().map(existing_pool).collect()
    }

    /// Adds the age of each pilot's report; `heartbeat_of` returns it by the uid of the Pilot.
    pub(crate) fn set_heartbeats(&mut self, heartbeat_of: impl Fn(&str) -> HeartbeatAge) {
        for member in self.pools.iter_mut().flat_map(|pool| pool.members.values_mut()) {
            if let Some(pilot) = &mut member.pilot {
                pilot.hearing = heartbeat_of(&pilot.uid);
            }
            clear_expected_failure(member);
        }
    }

    /// Adds for how long each node has not served; `unavailable_for` receives the uid of the Pilot
    /// and whether its node serves.
    pub(crate) fn record_unavailability(
        &mut self,
        unavailable_for: impl Fn(&str, bool) -> Duration,
    ) {
        for member in self.pools.iter_mut().flat_map(|pool| pool.members.values_mut()) {
            let is_serving = member.is_serving();
            if let Some(pilot) = &mut member.pilot {
                pilot.hearing.gone = unavailable_for(&pilot.uid, is_serving);
            }
        }
    }

    /// Returns the cluster as it would be with `to` replicas in `pool`.
    pub(crate) fn with_replicas(&self, pool: &str, replicas: u32) -> Self {
        let mut cluster = self.clone();
        for set in cluster.pools.iter_mut().filter(|other| other.name == pool) {
            if let Some(set) = &mut set.set {
                set.replicas = replicas;
            }
        }
        cluster
    }
}

impl Member {
    /// Returns whether the node serves, according to both the kubelet and its own pilot. A node
    /// whose pilot is about to restart it already counts as unavailable.
    pub(crate) fn is_serving(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.ready && !pod.terminating)
            && self.pilot.as_ref().is_some_and(|pilot| pilot.ready && !pilot.is_restarting())
    }

    pub(crate) fn intent(&self) -> PilotIntent {
        self.pilot.as_ref().and_then(|pilot| pilot.spec.phase.clone()).unwrap_or_default()
    }

    /// Returns whether `intent` is the node's intended phase, and the controller wrote it.
    pub(crate) fn has_intent(&self, intent: &PilotIntent) -> bool {
        self.intent() == *intent && self.pilot.as_ref().is_some_and(|pilot| pilot.phase_ours)
    }

    /// Returns the phase that a user wrote, which the controller therefore does not change.
    pub(crate) fn user_intent(&self) -> Option<PilotIntent> {
        let pilot = self.pilot.as_ref()?;
        let intent = self.intent();
        let has_effect = matches!(
            intent,
            PilotIntent::Fenced | PilotIntent::Stopped | PilotIntent::Decommissioned
        );
        (has_effect && !pilot.phase_ours).then_some(intent)
    }

    /// Returns whether a user or the controller requested the decommission of the node.
    pub(crate) fn is_decommission_requested(&self) -> bool {
        self.intent() == PilotIntent::Decommissioned
    }

    /// Returns the uid of what holds the node's data: its claim, or its pod.
    pub(crate) fn data_uid(&self) -> Option<String> {
        match (&self.claim, &self.pod) {
            (Some(claim), _) => Some(claim.uid.clone()),
            (None, Some(pod)) if pod.holds_data => Some(pod.uid.clone()),
            (None, _) => None,
        }
    }

    /// Returns whether the user discarded the data that the node has now, or had last. Data of a
    /// node that serves are not lost, whatever the user declares.
    pub(crate) fn is_data_discarded(&self) -> bool {
        let discarded_uid = self.pilot.as_ref().and_then(|pilot| pilot.given_up.as_ref());
        discarded_uid.is_some_and(|uid| self.data_uid().is_none_or(|data| data == *uid))
            && !self.is_serving()
    }

    /// Returns whether a node that does not serve has been unavailable for longer than a start or a
    /// restart takes.
    pub(crate) fn has_lasting_failure(&self) -> bool {
        let pilot = self.pilot.as_ref();
        match &self.pod {
            _ if self.user_intent().is_some() => true,
            None => {
                let has_lasting_refusal =
                    self.refused.as_ref().is_some_and(|failure| failure.lasts);
                has_lasting_refusal || pilot.is_some_and(|pilot| pilot.hearing.is_over())
            }
            Some(pod) if pod.terminating => pod.overdue,
            Some(pod) => {
                self.has_failed() || pod.trouble.as_ref().is_some_and(|failure| failure.lasts)
            }
        }
    }

    /// Returns whether the pilot is silent, although the kubelet finds the pod ready.
    pub(crate) fn is_silent(&self) -> bool {
        let is_ready = self.pod.as_ref().is_some_and(|pod| pod.ready && !pod.terminating);
        let is_pilot_silent = |pilot: &PilotFacts| pilot.hearing.is_over() || pilot.marked_unheard;
        is_ready && self.pilot.as_ref().is_some_and(is_pilot_silent)
    }

    /// Returns when the pod has a valid token again, at the latest. `None` unless the API rejects
    /// the pilot because its ServiceAccount was deleted and recreated.
    pub(crate) fn unauthorized_until(&self) -> Option<Timestamp> {
        let pod = self.pod.as_ref().filter(|pod| pod.started && !pod.terminating)?;
        let is_silent = self.pilot.as_ref().is_some_and(|pilot| pilot.marked_unheard);
        pod.token_renewed_by.filter(|_| is_silent)
    }

    /// Returns whether the pilot of the current pod reports that its database cannot be run.
    pub(crate) fn has_failed(&self) -> bool {
        let (Some(pod), Some(pilot)) = (&self.pod, &self.pilot) else { return false };
        pilot.failed && !pilot.hearing.is_over() && pilot.instance.as_ref() == Some(&pod.uid)
    }

    /// Returns whether the pilot of the current pod reports that its database runs and does not
    /// serve. Returns false while data are streamed to or from the node, or while it is about to
    /// restart.
    pub(crate) fn runs_without_serving(&self) -> bool {
        let (Some(pod), Some(pilot)) = (&self.pod, &self.pilot) else { return false };
        let is_reporting = pilot.hearing.is_fresh() && pilot.instance.as_ref() == Some(&pod.uid);
        let is_running = !pilot.idle && !pilot.ready && !pilot.failed && !pilot.stopped;
        is_reporting
            && is_running
            && !self.at_work()
            && !pilot.is_restarting()
            && !pilot.decommissioned
    }

    /// Returns whether a current report of the pilot shows that data are streamed to or from the
    /// node.
    pub(crate) fn at_work(&self) -> bool {
        self.pilot.as_ref().is_some_and(|pilot| pilot.at_work && !pilot.hearing.is_over())
    }

    /// Would the data of this node be deleted with its pod?
    pub(crate) fn dies_with_pod(&self) -> bool {
        // Without a Pilot there is no report that the pod holds no data.
        let may_have_identity =
            self.pilot.as_ref().is_none_or(|pilot| pilot.identity && !pilot.decommissioned);
        let keeps_data = self.pilot.as_ref().is_none_or(|pilot| pilot.keeps_data);
        may_have_identity
            && keeps_data
            && self.pod.as_ref().is_some_and(|pod| pod.holds_data && pod.started)
    }

    /// Returns whether the other nodes may elect this node.
    pub(crate) fn is_eligible(&self) -> bool {
        self.pilot.as_ref().is_some_and(|pilot| pilot.eligible)
    }

    pub(crate) fn is_decommissioned(&self) -> bool {
        self.pilot.as_ref().is_some_and(|pilot| pilot.decommissioned)
    }

    /// Returns whether the node is a member of the database cluster, or was one.
    pub(crate) fn has_identity(&self) -> bool {
        self.pilot.as_ref().is_some_and(|pilot| pilot.identity)
    }

    /// Returns whether the pilot of the node's current pod reports that its volume holds no data.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { pod: Some(pod), pilot: Some(pilot), .. } = self else { return false };
        pilot.emptied && pilot.instance.as_ref() == Some(&pod.uid)
    }

    /// Returns whether the database never ran on this node. Then nothing can be lost with the node.
    pub(crate) fn never_ran(&self) -> bool {
        let has_started = self.pod.as_ref().is_some_and(|pod| pod.started || pod.ready);
        !has_started && !self.has_identity() && self.is_first_life()
    }

    /// Returns whether the node holds, or may hold, data of the database cluster. It may if its
    /// volume is older than its Pilot, and no pilot has reported yet what the volume holds.
    pub(crate) fn may_be_member(&self) -> bool {
        let is_unread = self.pilot.as_ref().is_some_and(|pilot| !pilot.checked);
        self.has_identity() || (is_unread && !self.is_first_life())
    }

    /// Returns whether the node has no pod, and a volume that existed before its Pilot or a pod of
    /// it, and that no pilot has read. A StatefulSet creates claims together with pods, so such a
    /// claim is of an earlier life of the cluster. The cluster was recreated, or restored from a
    /// copy of its objects. What the Pilot notes of earlier claims does not count, since it may be
    /// of that copy.
    fn has_unread_volume(&self) -> bool {
        let has_data = self.claim.as_ref().is_some_and(|claim| claim.holds_data);
        let is_unread = self.pilot.as_ref().is_none_or(|pilot| !pilot.checked);
        self.pod.is_none()
            && has_data
            && is_unread
            && !self.is_decommissioned()
            && !self.is_data_discarded()
    }

    /// Returns whether the volume was created later than this Pilot. An older volume may hold data
    /// of an earlier node of this name. Creation times do not show this: claim and Pilot are on
    /// servers with clocks of their own.
    pub(crate) fn is_first_life(&self) -> bool {
        let Some(claim) = self.claim.as_ref().filter(|claim| claim.holds_data) else { return true };
        let has_other_claim = |pilot: &PilotFacts| {
            pilot.earlier_claim.as_ref().is_some_and(|earlier_uid| *earlier_uid != claim.uid)
        };
        self.pilot.as_ref().is_none_or(has_other_claim)
    }

    /// Returns whether the database never answered its pilot, and is not running now. Then it never
    /// joined the other nodes, and nothing can be lost with the node.
    ///
    /// Only the pilot of the current pod can report this, and only while it reports. If the volume
    /// is older than the Pilot, the pilot must also have read whose data the volume holds.
    pub(crate) fn never_served(&self) -> bool {
        let (Some(pod), Some(pilot)) = (&self.pod, &self.pilot) else { return false };
        let is_reporting = pilot.instance.as_ref() == Some(&pod.uid) && pilot.hearing.is_fresh();
        let knows_data = self.is_first_life() || pilot.checked;
        let never_up = !pod.ready && !pilot.ready && pilot.idle;
        is_reporting && knows_data && never_up && !pilot.answered && !pilot.identity
    }
}

impl ObservedPool {
    /// Returns the number of nodes that exist, or come back, and were not asked to leave, of those
    /// that `is` is true of.
    fn count_staying(&self, is_counted: impl Fn(Option<&Member>) -> bool) -> u32 {
        let nodes = self.replicas().max(self.returning_replicas());
        let members = (0..nodes).map(|ordinal| self.members.get(&ordinal));
        let is_leaving = |member: &Member| member.has_intent(&PilotIntent::Decommissioned);
        let count =
            members.filter(|member| !member.is_some_and(is_leaving) && is_counted(*member)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn pilots(&self) -> impl Iterator<Item = &PilotFacts> {
        self.members.values().filter_map(|member| member.pilot.as_ref())
    }

    /// Returns whether at least one node of the pool may be elected.
    pub(crate) fn has_eligible_node(&self) -> bool {
        self.members.values().any(Member::is_eligible)
    }

    pub(crate) fn replicas(&self) -> u32 {
        self.set.as_ref().map_or(0, |set| set.replicas)
    }

    /// Returns the replicas that the StatefulSet needs, at least, to have a pod for every node that
    /// joined the database cluster and did not leave it. With fewer, data would be unavailable.
    pub(crate) fn returning_replicas(&self) -> u32 {
        if self.orphan {
            return 0;
        }
        let is_gone = |member: &Member| member.is_decommissioned() || member.is_data_discarded();
        self.one_past_last(|member| member.may_be_member() && !is_gone(member))
    }

    /// Returns the replicas that bring back each node that has data, and each of the first
    /// `desired_replicas` nodes whose volume was kept and may hold them. The others miss such a
    /// node until it starts, and may not serve without it, so none of their reports may hold its
    /// start.
    pub(crate) fn returning_of(&self, desired_replicas: u32) -> u32 {
        let later_ordinals = self.replicas()..desired_replicas.max(self.replicas());
        let mut later_nodes = self.members.range(later_ordinals).rev();
        let last_node = later_nodes.find(|(_, member)| member.has_unread_volume());
        self.returning_replicas().max(last_node.map_or(0, |(ordinal, _)| ordinal + 1))
    }

    /// Returns the replicas with which a StatefulSet is made. Pods that a deleted StatefulSet left
    /// as orphans are kept. Volumes of an earlier cluster of this name hold the members of the
    /// database cluster: all of them start, because a quorum may need them. Those that the spec
    /// does not want move their data away and leave like any other node.
    pub(crate) fn initial_replicas(&self) -> u32 {
        let has_data = |member: &Member| {
            let claim = member.claim.as_ref();
            claim.is_some_and(|claim| claim.holds_data) && !member.is_decommissioned()
        };
        self.returning_replicas().max(self.living_replicas()).max(self.one_past_last(has_data))
    }

    /// Returns the replicas that the StatefulSet needs to end no pod that lives.
    pub(crate) fn living_replicas(&self) -> u32 {
        self.one_past_last(|member| member.pod.as_ref().is_some_and(|pod| !pod.terminating))
    }

    fn one_past_last(&self, is_counted: impl Fn(&Member) -> bool) -> u32 {
        let last_node = self.members.iter().rev().find(|(_, member)| is_counted(member));
        last_node.map_or(0, |(ordinal, _)| ordinal + 1)
    }

    /// Returns the ordinals that the StatefulSet runs, with the members that have an object
    /// already.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (u32, Option<&Member>)> {
        (0..self.replicas()).map(|ordinal| (ordinal, self.members.get(&ordinal)))
    }
}

/// Turns the objects of a cluster into facts.
pub(crate) fn observe_cluster(
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
        if !is_owned_by(&set.metadata, desired) {
            if pools.iter().any(|pool| pool.set_name == name) {
                stalled =
                    stalled.or_else(|| Some(foreign_cause("StatefulSet", &set.metadata, desired)));
            }
            continue;
        }
        let existing_index = pools.iter().position(|pool| pool.set_name == name);
        let index = existing_index.unwrap_or_else(|| {
            pools.push(ObservedPool {
                name: label_value(&set.metadata, desired.database.names.pool_label),
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
        if let Some(member) = get_or_insert_node(&mut pools, pod.metadata.name.as_deref()) {
            let template = newest_template(pod, &objects.sets);
            let token_renewed_by = renewed_by(&pod.metadata, objects.account.as_ref(), now);
            let facts = pod_facts(pod, desired, now);
            member.pod = Some(PodFacts { template, token_renewed_by, ..facts });
        }
    }
    for pilot in &objects.pilots {
        let Some(member) = get_or_insert_node(&mut pools, pilot.metadata.name.as_deref()) else {
            continue;
        };
        let controller = controller_owner(&pilot.metadata);
        if controller.is_some() && !is_owned_by(&pilot.metadata, desired) {
            stalled = stalled.or_else(|| Some(foreign_cause("Pilot", &pilot.metadata, desired)));
            continue;
        }
        member.pilot = Some(pilot_facts(desired.database, pilot, controller.is_some(), now));
    }
    let prefix = format!("{}-", desired.database.names.data_volume);
    for claim in &objects.claims {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let Some(member) = get_or_insert_node(&mut pools, name.strip_prefix(&prefix)) else {
            continue;
        };
        member.claim = Some(claim_facts(claim, desired.database.names, now));
        tell_lost_volume(member);
    }
    ObservedCluster { pools, stalled, ..ObservedCluster::default() }
}

/// Adds the pools of which only Pilots are left.
fn add_orphans(pools: &mut Vec<ObservedPool>, desired: &DesiredCluster, objects: &ClusterObjects) {
    for pilot in objects.pilots.iter().filter(|pilot| is_owned_by(&pilot.metadata, desired)) {
        let name = label_value(&pilot.metadata, desired.database.names.pool_label);
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

/// Clears the missed deadline of a pod whose node moves data, or is kept down by a user: such a pod
/// is not broken.
fn clear_expected_failure(member: &mut Member) {
    let is_busy = member.user_intent().is_some() || member.at_work();
    if let Some(pod) = member.pod.as_mut().filter(|_| is_busy) {
        pod.trouble.take_if(|trouble| trouble.reason == "ProgressDeadlineExceeded");
    }
}

/// Returns the member with the name `<set>-<ordinal>`; adds it for the first object of that name.
fn get_or_insert_node<'a>(
    pools: &'a mut [ObservedPool],
    name: Option<&str>,
) -> Option<&'a mut Member> {
    let (set, ordinal) = name?.rsplit_once('-')?;
    let ordinal: u32 = ordinal.parse().ok()?;
    let pool = pools.iter_mut().find(|pool| pool.set_name == set)?;
    let name = names::pilot_name(set, ordinal);
    Some(pool.members.entry(ordinal).or_insert_with(|| Member { name, ..Member::default() }))
}

pub(crate) fn controller_owner(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Returns the uid of the cluster that an object was made for: from its annotation, else from its
/// controller reference. Pilots have such a reference, and so has every object that a release
/// before 0.3 made.
pub(crate) fn owner_uid(meta: &ObjectMeta) -> Option<&str> {
    let annotated_uid =
        meta.annotations.as_ref().and_then(|entries| entries.get(annotation::CLUSTER_UID));
    let owner = || controller_owner(meta).map(|owner| owner.uid.as_str());
    annotated_uid.map(String::as_str).or_else(owner)
}

/// Returns whether the object was created for this cluster.
pub(crate) fn is_owned_by(meta: &ObjectMeta, desired: &DesiredCluster) -> bool {
    owner_uid(meta) == Some(desired.uid.as_str())
}

/// Returns whether the object was created for an earlier cluster of this name. There is one cluster
/// of a name at a time, so the earlier one is gone.
pub(crate) fn is_from_earlier_cluster(meta: &ObjectMeta, desired: &DesiredCluster) -> bool {
    let labels = meta.labels.as_ref();
    let has_label = |key, value| {
        labels.and_then(|entries| entries.get(key)).is_some_and(|other| other == value)
    };
    let is_marked =
        meta.annotations.as_ref().is_some_and(|a| a.contains_key(annotation::CLUSTER_UID));
    is_marked
        && !is_owned_by(meta, desired)
        && has_label(names::label::K8S_MANAGED_BY, "navigator")
        && has_label(desired.database.names.cluster_label, desired.name.as_str())
}

/// Returns the owner references of an object without those to clusters, which own no object in
/// Kubernetes.
pub(crate) fn owners_but_ours(meta: &ObjectMeta) -> Vec<&OwnerReference> {
    meta.owner_references.iter().flatten().filter(|owner| !is_cluster(owner)).collect()
}

/// Returns whether the owner is of a kind that we serve.
pub(crate) fn is_cluster(owner: &OwnerReference) -> bool {
    owner.api_version.split('/').next() == Some(crate::api::GROUP)
}

/// Returns why an object with a name that the cluster needs cannot be used, and the user's remedy.
pub(crate) fn foreign_cause(kind: &str, meta: &ObjectMeta, desired: &DesiredCluster) -> StallCause {
    let name = meta.name.as_deref().unwrap_or_default();
    let cluster = desired.database.names.kind;
    if is_from_earlier_cluster(meta, desired) {
        let uid = owner_uid(meta).unwrap_or_default();
        let message = format!(
            "{kind} {name:?} was made for an earlier {cluster} of this name (uid {uid}), and is \
             left alone: {}",
            adopt_hint(kind, name, desired)
        );
        return StallCause { reason: "ForeignObject", message };
    }
    match controller_owner(meta) {
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
        None if owner_uid(meta).is_some() => StallCause {
            reason: "NameConflict",
            message: match label_value(meta, desired.database.names.cluster_label).as_str() {
                other if other.is_empty() || other == desired.name => format!(
                    "{kind} {name:?} was made for another cluster (uid {})",
                    owner_uid(meta).unwrap_or_default()
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
                adopt_hint(kind, name, desired)
            ),
        },
    }
}

/// What the user can do if another cluster has a name that this one needs.
pub(crate) const RENAME: &str = "give this cluster, its node pool or its user another name";

/// Returns what the user can do about an object with a name that the cluster needs.
fn adopt_hint(kind: &str, name: &str, desired: &DesiredCluster) -> String {
    let kind = kind.to_lowercase();
    let (namespace, uid, key) = (&desired.namespace, &desired.uid, annotation::CLUSTER_UID);
    format!(
        "delete it, or hand it over as it is: kubectl --namespace {namespace} annotate --overwrite \
         {kind} {name} {key}={uid} {}-",
        annotation::STORE_ID
    )
}

/// Returns a stall cause if the object is marked with the identity of another store than ours.
pub(crate) fn store_mismatch(meta: &ObjectMeta, store_id: &str) -> Option<StallCause> {
    let marked_id = meta.annotations.as_ref()?.get(annotation::STORE_ID)?;
    (marked_id != store_id).then(|| StallCause {
        reason: STORE_MISMATCH,
        message: format!(
            "{:?} was made for store {marked_id:?}, this is store {store_id:?}; nothing is changed",
            meta.name.as_deref().unwrap_or_default()
        ),
    })
}

fn label_value(meta: &ObjectMeta, key: &str) -> String {
    meta.labels.as_ref().and_then(|labels| labels.get(key)).cloned().unwrap_or_default()
}

fn pod_facts(pod: &Pod, desired: &DesiredCluster, now: Timestamp) -> PodFacts {
    let status = pod.status.clone().unwrap_or_default();
    let ready_condition = status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
    let is_ready = ready_condition.is_some_and(|condition| condition.status == "True");
    let annotations = pod.metadata.annotations.as_ref();
    let database_container = status
        .container_statuses
        .iter()
        .flatten()
        .find(|container| container.name == desired.database.names.container);
    let has_started = database_container.is_some_and(|container| {
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
        orphan: controller_owner(&pod.metadata).is_none(),
        overdue: pod
            .metadata
            .deletion_timestamp
            .as_ref()
            .is_some_and(|end| age(end.0, now) > LINGERS),
        holds_data: holds_data(pod, desired),
        mounts_users: mounts_users(pod),
        started: has_started,
        hash: annotations.and_then(|a| a.get(annotation::CONFIG_HASH)).cloned().unwrap_or_default(),
        template: None,
        installers: installer::installer_containers(pod, now),
        trouble: if is_ready { None } else { pod_failure(pod, desired, now) },
        token_renewed_by: None,
    }
}

/// Returns the config hash in the template that a pod was made from, if the StatefulSet has no
/// newer template. A new pod would then be made from the same template.
fn newest_template(pod: &Pod, sets: &[Arc<StatefulSet>]) -> Option<String> {
    let (name, _) = pod.metadata.name.as_deref()?.rsplit_once('-')?;
    let set = sets.iter().find(|set| set.metadata.name.as_deref() == Some(name))?;
    let status = set.status.as_ref()?;
    let pod_revision = pod.metadata.labels.as_ref()?.get("controller-revision-hash")?;
    let is_newest = status.observed_generation == set.metadata.generation
        && status.update_revision.as_ref() == Some(pod_revision);
    is_newest.then(|| template_hash(set).unwrap_or_default().to_owned())
}

fn annotation_of(meta: &ObjectMeta, key: &str) -> Option<String> {
    meta.annotations.as_ref()?.get(key).cloned()
}

fn template_hash(set: &StatefulSet) -> Option<&str> {
    let template = set.spec.as_ref()?.template.metadata.as_ref()?;
    template.annotations.as_ref()?.get(annotation::CONFIG_HASH).map(String::as_str)
}

/// Returns whether the pod mounts the users of the database. Here and in `holds_data`, the volumes
/// of the pod decide, not the cluster's spec: persistence that is added later does not reach an
/// existing pod.
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

fn pod_failure(pod: &Pod, desired: &DesiredCluster, now: Timestamp) -> Option<PodFailure> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref()?;
    let false_condition = |type_: &str| {
        status.conditions.iter().flatten().find(|c| c.type_ == type_ && c.status == "False")
    };
    let false_since =
        |type_: &str| false_condition(type_)?.last_transition_time.as_ref().map(|since| since.0);
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses);
    for container in containers.flatten() {
        let Some(waiting_state) = container.state.as_ref().and_then(|state| state.waiting.as_ref())
        else {
            continue;
        };
        let waits_for = waiting_state.reason.as_deref().unwrap_or_default();
        if let Some((_, reason)) =
            WAITING.iter().find(|(listed_reason, _)| *listed_reason == waits_for)
        {
            let message = waiting_state.message.as_deref().unwrap_or_default();
            let message = format!("{name}: container {}: {waits_for}: {message}", container.name);
            return Some(PodFailure {
                reason,
                message,
                lasts: is_lasting(false_since("Ready"), now),
            });
        }
    }
    if let Some(unschedulable) =
        false_condition("PodScheduled").filter(|c| c.reason.as_deref() == Some("Unschedulable"))
    {
        let message = unschedulable.message.as_deref().unwrap_or_default();
        let (message, is_lasting) =
            (format!("{name}: {message}"), is_lasting(false_since("PodScheduled"), now));
        return Some(PodFailure { reason: "Unschedulable", message, lasts: is_lasting });
    }
    let since = false_since("Ready")?;
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

/// Returns whether the failure has lasted long. One without a start time counts as lasting, because
/// its age would never be known.
fn is_lasting(since: Option<Timestamp>, now: Timestamp) -> bool {
    since.is_none_or(|since| age(since, now) >= PATIENCE)
}

fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

pub(crate) fn find_condition<'a>(
    conditions: &'a [Condition],
    type_: &str,
) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns reason and message of a pilot's condition that is there and not True.
fn unmet_condition(status: &PilotStatus, type_: &str) -> Option<(String, String)> {
    let condition = find_condition(&status.conditions, type_)?;
    (condition.status != "True").then(|| (condition.reason.clone(), condition.message.clone()))
}

fn pilot_facts(
    database: &ManagedDatabase,
    pilot: &Pilot,
    is_owned: bool,
    now: Timestamp,
) -> PilotFacts {
    let (spec, status) = (&pilot.spec, &pilot.status);
    let node_report = (database.reports)(status);
    let is_true =
        |type_: &str| find_condition(&status.conditions, type_).is_some_and(|c| c.status == "True");
    let ready_condition = find_condition(&status.conditions, "Ready");
    let decommission = status.decommission.as_ref();
    let annotations = pilot.metadata.annotations.as_ref();
    PilotFacts {
        uid: pilot.metadata.uid.clone().unwrap_or_default(),
        resource_version: pilot.metadata.resource_version.clone().unwrap_or_default(),
        spec: spec.clone(),
        phase_ours: annotations.is_some_and(|a| a.contains_key(PHASE_OWNER)),
        owned: is_owned,
        elected: node_report.elected,
        eligible: (database.eligible)(spec),
        // A spec that takes data away from a node is there before the data have gone.
        keeps_data: (database.keeps_data)(spec)
            || status.blockers.iter().any(|blocker| blocker.predicate == DATA_OUTLIVES_POD.name),
        ready: ready_condition.is_some_and(|condition| condition.status == "True"),
        hearing: HeartbeatAge::default(),
        identity: status.identity.is_some(),
        instance: status.instance.as_ref().and_then(|instance| instance.uid.clone()),
        machine: status.instance.as_ref().and_then(|instance| instance.node.clone()),
        answered: has_database_answered(status, &node_report),
        idle: status.phase.is_some() && status.process.is_none(),
        checked: is_true("PreflightPassed"),
        earlier_claim: annotations
            .and_then(|entries| entries.get(annotation::EARLIER_CLAIM))
            .cloned(),
        decommissioned: is_true("Decommissioned"),
        stopped: status.phase == Some(PilotPhase::Stopped) || is_true("Stopped"),
        irreversible: decommission.is_some_and(|progress| progress.irreversible),
        // A report about a process that has ended does not count as work.
        at_work: (node_report.moves_data && status.process.is_some())
            || status.phase == Some(PilotPhase::Decommissioning),
        progress: decommission.map(|progress| {
            let bytes_left = progress.bytes_left.map(|bytes| format!(", {bytes} bytes left"));
            let percent = progress.percent.map(|percent| format!(", {percent} %"));
            let message = progress.message.as_deref().unwrap_or("moving data away");
            format!("{message}{}{}", percent.unwrap_or_default(), bytes_left.unwrap_or_default())
        }),
        security: status.security.clone(),
        certificates: unmet_condition(status, "CertificatesValid"),
        users: unmet_condition(status, "UsersApplied"),
        running_hash: status.config_hash.clone(),
        started_for: status.started_for.clone(),
        failed: status.phase == Some(PilotPhase::Failed),
        validated: validation_result(pilot),
        version: status.version.clone(),
        program: status.pilot_program.clone(),
        successor: unmet_condition(status, "ProgramCurrent"),
        health: status.health.clone(),
        full: ["Writable", "PreflightPassed"].into_iter().find_map(|type_| {
            let condition = find_condition(&status.conditions, type_)?;
            (condition.reason == "DiskFull").then(|| condition.message.clone())
        }),
        cluster_id: status.identity.as_ref().and_then(|identity| identity.cluster_id.clone()),
        // Only a member is in the cluster of this name.
        cluster_name: node_report.cluster_name.filter(|_| status.identity.is_some()),
        load: node_report.load,
        behind: node_report
            .behind
            .and_then(|report| BehindFacts::from_report(report, &pilot.metadata, now)),
        cleanup: find_condition(&status.conditions, CLEANUP_DUE).map(|condition| CleanupFacts {
            due: condition.status != "False",
            message: condition.message.clone(),
        }),
        node_id: status.identity.as_ref().and_then(|identity| identity.node_id.clone()),
        forgotten: status.forgotten.clone(),
        blockers: status.blockers.iter().map(blocker_facts).collect(),
        given_up: annotations.and_then(|entries| entries.get(annotation::GIVE_UP)).cloned(),
        unsafe_bootstrap: annotation_of(&pilot.metadata, annotation::UNSAFE_BOOTSTRAP),
        emptied: find_condition(&status.conditions, VOLUME_HOLDS_DATA)
            .is_some_and(|condition| condition.status == "False"),
        pinned: annotations.and_then(|entries| entries.get(annotation::PINNED_POD)).cloned(),
        leave: LeaveRequest::from_metadata(&pilot.metadata),
        leave_waits: annotations.and_then(|entries| entries.get(annotation::LEAVE_WAITS)).cloned(),
        not_ready: ready_condition
            .filter(|condition| condition.status != "True")
            .map(|condition| format!("{}: {}", condition.reason, condition.message)),
        joins_in_vain: ready_condition.is_some_and(|condition| joins_in_vain(condition, status)),
        marked_unheard: ready_condition
            .is_some_and(|condition| is_silent_reason(&condition.reason)),
    }
}

/// How long members of a database may wait for each other before they are taken to lack a leader:
/// some times what a start and an election take.
const ELECTION_PATIENCE: Duration = Duration::from_secs(300);

/// All times are of the pilot's clock. A node may have been stopped for long before its process began.
fn joins_in_vain(ready_condition: &Condition, status: &PilotStatus) -> bool {
    let started_at = status.process.as_ref().and_then(|process| process.start_time.as_ref());
    let (Some(last_heartbeat), Some(started_at)) = (&status.last_heartbeat_time, started_at) else {
        return false;
    };
    let since = started_at.0.max(ready_condition.last_transition_time.0);
    let is_waiting = ready_condition.status == "False" && ready_condition.reason == "Joining";
    is_waiting && age(since, last_heartbeat.0) >= ELECTION_PATIENCE
}

fn blocker_facts(blocker: &Blocker) -> BlockerFacts {
    let (predicate, message) = (blocker.predicate.clone(), blocker.message.clone());
    BlockerFacts { predicate, message, against: blocker.blocked_changes() }
}

/// Returns whether the database has ever answered its pilot. The fields that show this come from
/// the database, and the pilot keeps them over restarts of both. A node that never was a member has
/// no data, so its answers do not count.
fn has_database_answered(status: &PilotStatus, reports: &NodeReport) -> bool {
    if reports.outsider && status.identity.is_none() {
        return false;
    }
    status.version.is_some()
        || status.identity.is_some()
        || status.decommission.is_some()
        || !status.endpoints.is_empty()
        || reports.answered
}

fn validation_result(pilot: &Pilot) -> Option<Result<(), String>> {
    let is_newest = pilot.status.observed_generation == pilot.metadata.generation;
    let condition =
        find_condition(&pilot.status.conditions, "ConfigApplied").filter(|_| is_newest)?;
    Some(if condition.reason == "ConfigRejected" { Err(condition.message.clone()) } else { Ok(()) })
}
