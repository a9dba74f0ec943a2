//! What a cluster should be, in terms that every database shares.
//!
//! Owns the types that the plan reads: pools, images, hashes. Each database turns its own kind into
//! a [`DesiredCluster`]; everything after that is the same code for all databases. Pure.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::ResourceRequirements,
    apimachinery::pkg::{
        api::resource::Quantity, apis::meta::v1::OwnerReference, util::intstr::IntOrString,
    },
    jiff::Timestamp,
};
use kube::api::{ApiResource, DynamicObject};
use serde::Serialize;
use sha2::{Digest, Sha256};

mod round;

pub use self::round::SecurityRound;
use super::queue::ClusterKey;
use crate::{
    api::{
        GROUP,
        database_names::DatabaseNames,
        pilot_part::PilotParts,
        v1beta1::{
            API_VERSION, ClusterSecurity, ClusterStatus, ImageSpec, NetworkAccess, Persistence,
            Pilot, PilotSpec, PilotStatus, PodTemplate, SecurityRungs, Services, UpdateStrategy,
            VERSION,
        },
    },
    engine::{password::PasswordHashing, users::DocumentedRole},
    machinery::quantity,
};

/// Settings of the controller that go into the objects of clusters.
#[derive(Clone, Debug)]
pub struct ObjectSettings {
    /// Image that holds the pilot, for clusters whose spec names no pilot image.
    pub pilot_image: String,
    /// Identity of our store, put on every object that we own.
    pub store_id: String,
    /// Name clusters as owners of the objects made for them, as releases before 0.3 did and expect.
    pub owner_references: bool,
}

/// What the controller reads of a cluster, whatever its kind.
#[derive(Clone, Debug)]
pub struct DesiredCluster {
    pub database: &'static ManagedDatabase,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub generation: i64,
    /// Whether the cluster is being deleted: the controller no longer creates or changes anything.
    pub deleted: bool,
    pub force_delete: bool,
    /// Deletion of the cluster leaves the objects that were made for it.
    pub orphan: bool,
    pub finalizers: Vec<String>,
    /// When the cluster was created.
    pub created: Option<Timestamp>,
    /// Uids of Secrets that the user allows the cluster to use, whatever their origin.
    pub accepted_secrets: Vec<String>,
    pub paused: bool,
    pub stopped: bool,
    pub version: String,
    /// Image of the database, from the spec or by default.
    pub image: Image,
    pub pilot_image: Image,
    pub run_as_user: i64,
    pub services: Services,
    /// Who may connect to the pods; `None` where everybody may, as far as we are concerned.
    pub network: Option<NetworkAccess>,
    /// Encryption and authentication as in the spec; `None` if the cluster is open, and no node has
    /// another mode.
    pub security: Option<ClusterSecurity>,
    /// Roles that the spec declares, for the database's own part of pilots.
    pub roles: Vec<DocumentedRole>,
    /// Where the nodes go next on their way there.
    pub round: SecurityRound,
    /// The cluster joins nodes that are not of its own pods.
    pub nodes_elsewhere: bool,
    pub pools: Vec<DesiredPool>,
    pub strategy: RolloutStrategy,
    /// Why nothing can be done for this cluster, found in its spec alone.
    pub stalled: Option<StallCause>,
    /// Status as it was last written.
    pub status: ClusterStatus,
}

/// What the controller must know of a database: names, constants, and functions that differ.
#[derive(Debug)]
pub struct ManagedDatabase {
    pub names: &'static DatabaseNames,
    /// Labels that all objects of a cluster carry in addition to Navigator's own.
    pub labels: &'static [(&'static str, &'static str)],
    pub termination_grace: Duration,
    /// Describes a cluster object in the terms that every database shares. Without a
    /// [`SecurityRound`], its nodes have the desired modes.
    pub desired: fn(
        &DynamicObject,
        &ObjectSettings,
        Option<SecurityRound>,
    ) -> Result<DesiredCluster, serde_json::Error>,
    /// Services of a cluster in addition to the one that each pool has.
    pub services: fn(&DesiredCluster) -> Vec<ClusterService>,
    /// Annotations of StatefulSets that only this database has.
    pub set_annotations: fn(&DesiredCluster) -> Vec<(&'static str, String)>,
    /// Labels of one node's pod and Pilot in addition to those of its pool, from the node's ordinal
    /// and its Pilot. The controller removes a label without a value.
    pub node_labels: fn(u32, Option<&Pilot>) -> Vec<NodeLabel>,
    /// Adapts the specs of Pilots to the nodes that exist.
    pub fit: fn(&mut DesiredCluster, &[ExistingPool]),
    /// Hash of the part of a Pilot's spec whose change needs a restart of the node.
    pub config_hash: fn(&PilotSpec) -> String,
    /// Returns whether a node with this spec may be elected to lead its peers.
    pub eligible: fn(&PilotSpec) -> bool,
    /// Returns the place of a node with this spec, where the database keeps copies of its data by
    /// place.
    pub place: fn(&PilotSpec) -> Option<NodePlace>,
    /// Returns whether a node with this spec keeps data that must not be lost.
    pub keeps_data: fn(&PilotSpec) -> bool,
    /// What a pilot reports of its node.
    pub reports: fn(&PilotStatus) -> NodeReport,
    /// Fields of the database's part of a Pilot's status that change all the time: no reason to
    /// reconcile a cluster.
    pub gauges: &'static [&'static str],
    /// Pilots of this database report `DataOutlivesPod` while no other node has a copy of the data.
    /// Without that report, there is a copy.
    pub knows_copies: bool,
    /// The cluster's id, where the database has none of its own, is the cluster object's uid.
    pub id_is_uid: bool,
    /// Quorum of masters in the spec of a node, where the database has one.
    pub minimum_masters: fn(&PilotSpec) -> Option<i32>,
    /// Returns whether a node with this spec can run an unsafe bootstrap, if a quorum of voters is
    /// lost permanently.
    pub begins_anew: fn(&PilotSpec) -> bool,
    /// Nodes change TLS between them and logins all at once, stopped.
    pub switches_at_once: bool,
    /// Nodes serve each other and clients on one port, with the certificate for clients: nothing shows
    /// the one for other nodes.
    pub one_port: bool,
    /// How clients log in; `None` for a database that cannot be secured yet.
    pub login: Option<&'static LoginNames>,
    /// Status, reason and message of the condition Secured of an open cluster: who can reach the
    /// data.
    pub secured: fn(&DesiredCluster) -> SecuredCondition,
}

/// What a database says of its logins.
#[derive(Debug)]
pub struct LoginNames {
    /// Name of the administrator, where its Secret says none.
    pub admin: &'static str,
    /// Names that no administrator may have, in addition to Navigator's own.
    pub reserved: &'static [&'static str],
    /// Type of the service, as the Service Binding specification has it.
    pub binding: &'static str,
    /// Name of the port that clients use.
    pub client_port: &'static str,
    /// Schemes of a client's URI, with TLS and without; `None` where clients use none.
    pub schemes: Option<[&'static str; 2]>,
    /// What else a client has to say as it connects: keys of the Secrets that applications mount.
    pub more: fn(&DesiredCluster) -> Vec<(&'static str, String)>,
    /// Whether all pilots of a cluster log in as one user, whose credentials only they receive. The
    /// database keeps its users in tables, or pilots send requests to each other's nodes.
    pub shared_by_pilots: bool,
    /// How the database checks passwords.
    pub hashing: PasswordHashing,
}

/// Status, reason and message of the condition Secured.
pub type SecuredCondition = (&'static str, &'static str, &'static str);

/// Key of a label, and its value; `None` where the node must not have the label.
pub type NodeLabel = (Cow<'static, str>, Option<&'static str>);

/// What a pilot reports of its node, in the terms that every database shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// Name of the database cluster that the node is in.
    pub cluster_name: Option<String>,
    /// The node is the elected leader of its peers.
    pub elected: bool,
    /// The report holds something that the database itself answered.
    pub answered: bool,
    /// Data are streamed to or from this node.
    pub moves_data: bool,
    /// The node never was a member of the database cluster, whatever else the report holds. So it
    /// has no data that other nodes lack.
    pub outsider: bool,
    /// The node may lack writes that other nodes have.
    pub behind: Option<BehindReplica>,
    /// The data of the node, where the database tells.
    pub load: Option<NodeLoad>,
}

/// Where a node is, as its database sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// The nodes of each datacenter have a quorum of their own.
    pub datacenter: String,
    /// Copies of a row are in different racks of the datacenter, as long as there are enough.
    pub rack: Option<String>,
}

/// The data of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeLoad {
    pub bytes: i64,
    /// Most copies that a row has in the node's datacenter, each in a rack of its own as long as there
    /// are enough; `None` while that is not known, and where racks do not matter.
    pub copies: Option<usize>,
}

/// Since when a replica may lack writes that others have, and how it is repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BehindReplica {
    /// When the node came back, or joined as the replacement of a lost one. A later repair counts.
    pub since: Timestamp,
    /// When the node became unavailable; `None` if it joined as the replacement of a lost one.
    pub away_since: Option<Timestamp>,
    /// The command that repairs the replica, typed in its container.
    pub repair: &'static str,
    /// The same while other replicas are down.
    pub repair_beside_lost: &'static str,
}

/// A Service of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterService {
    pub name: String,
    /// Names of the [`DatabaseNames::ports`] that the Service exposes.
    pub ports: &'static [&'static str],
    pub reach: ServiceExposure,
    /// Labels of the Service and of its selector, in addition to those of the cluster.
    pub marks: &'static [(&'static str, &'static str)],
    /// Whether the Service should exist; the controller removes one that should not.
    pub wanted: bool,
}

impl ClusterService {
    /// Returns whether clients connect to this Service.
    pub(crate) fn is_for_clients(&self) -> bool {
        self.wanted && self.reach != ServiceExposure::AllPods
    }
}

/// How a Service is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceExposure {
    /// By the addresses of its pods.
    Pods,
    /// By the addresses of its pods, ready or not.
    AllPods,
    /// In the way that `spec.services.client` says.
    Client,
}

/// A pool as it exists, as far as the specs of Pilots depend on it.
#[derive(Clone, Debug)]
pub struct ExistingPool {
    pub pool: String,
    /// Number of nodes that exist, or come back, were not asked to leave, and may be elected to lead
    /// by the specs of their Pilots.
    pub eligible: u32,
    /// Number of such nodes that have no Pilot.
    pub unknown: u32,
    /// The databases' parts of the spec of its first Pilot, where it has one.
    pub parts: Option<PilotParts>,
}

impl ManagedDatabase {
    /// The API resource of this database's clusters.
    pub fn api_resource(&self) -> ApiResource {
        let (group, version) = (GROUP.to_owned(), VERSION.to_owned());
        ApiResource {
            group,
            version,
            api_version: API_VERSION.to_owned(),
            kind: self.names.kind.to_owned(),
            plural: self.names.plural.to_owned(),
        }
    }
}

/// A container image and its pull policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub reference: String,
    pub pull_policy: String,
}

impl Image {
    pub fn from_spec(spec: &ImageSpec) -> Self {
        let ImageSpec { repository, tag, digest, pull_policy } = spec;
        let reference = match (digest, tag) {
            (Some(digest), _) => format!("{repository}@{digest}"),
            (None, Some(tag)) => format!("{repository}:{tag}"),
            (None, None) => repository.clone(),
        };
        let pull_policy = pull_policy.clone().unwrap_or_else(|| "IfNotPresent".to_owned());
        Self { reference, pull_policy }
    }

    pub fn from_reference(reference: impl Into<String>) -> Self {
        Self { reference: reference.into(), pull_policy: "IfNotPresent".to_owned() }
    }
}

/// A node pool of the spec: nodes that are equal to each other.
#[derive(Clone, Debug)]
pub struct DesiredPool {
    pub name: String,
    /// Name of the StatefulSet.
    pub set: String,
    pub replicas: u32,
    pub zone: Option<String>,
    pub resources: ResourceRequirements,
    pub persistence: Option<Persistence>,
    /// Overlays of the cluster and of the pool, in the order in which they are merged.
    pub overlays: Vec<PodTemplate>,
    /// Spec of every Pilot of the pool; `phase` is not part of it.
    pub pilot: PilotSpec,
    /// Hash of the inputs from the spec that the pods are made of; see [`PodInputs::hash`].
    pub pod_hash: String,
    /// Hashes of pods whose inputs are equal and were spelled differently; see
    /// [`PodInputs::equivalent_hashes`].
    pub pods_alike: Vec<String>,
    /// The nodes of the pool may be elected to lead the others.
    pub eligible: bool,
    /// Labels that only this database knows, for example a role.
    pub labels: Vec<(String, String)>,
    /// See [`NodePool::topology`](crate::api::v1beta1::NodePool::topology_fields).
    pub topology: BTreeMap<String, String>,
}

impl DesiredPool {
    /// Returns the hash that the pool's Pilots carry as `spec.configHash`.
    pub fn config_hash(&self) -> &str {
        self.pilot.config_hash.as_deref().unwrap_or_default()
    }

    /// Returns whether a pod with the hash `pod_hash` was created from the desired inputs.
    pub fn matches_pod_hash(&self, pod_hash: &str) -> bool {
        self.pod_hash == pod_hash || self.pods_alike.iter().any(|other_hash| other_hash == pod_hash)
    }

    /// Returns whether the data are on a claim, rather than in the pod.
    pub fn is_persistent(&self) -> bool {
        self.persistence.as_ref().is_some_and(|p| p.enabled != Some(false) && p.size.is_some())
    }

    /// Returns the desired size of the pool's volumes; `None` if its data are in its pods.
    pub fn volume_size(&self) -> Option<&str> {
        let size = self.persistence.as_ref().filter(|_| self.is_persistent())?.size.as_ref()?;
        Some(&size.0)
    }

    pub fn delete_claim_when_scaled(&self) -> bool {
        let retention = self.persistence.as_ref().and_then(|p| p.retention.as_ref());
        retention.and_then(|r| r.when_scaled.as_deref()) != Some("Retain")
    }

    pub fn delete_claim_when_deleted(&self) -> bool {
        let retention = self.persistence.as_ref().and_then(|p| p.retention.as_ref());
        self.is_persistent() && retention.and_then(|r| r.when_deleted.as_deref()) == Some("Delete")
    }
}

/// How changes reach running nodes; from `spec.updateStrategy`.
#[derive(Clone, Debug)]
pub struct RolloutStrategy {
    /// Changes reach a node only when its pod is deleted by hand.
    pub on_delete: bool,
    /// A restart that the pod's own inputs do not need keeps the pod.
    pub restarts_in_place: bool,
    /// A newer pilot program is brought into running pods.
    pub deliver_pilots: bool,
    /// Pools that take part in a canary roll (empty for all pools), and the number of updated nodes
    /// at which it is held.
    pub canary: Option<(BTreeSet<String>, u32)>,
    pub skip_predicates: BTreeSet<String>,
    /// Nodes that may be down at a time: a number, or a percentage of all.
    pub unavailable: IntOrString,
    pub progress_deadline: Duration,
}

impl RolloutStrategy {
    /// Returns how many of `nodes` may be down at a time: at least one, or nothing could be done.
    pub fn max_unavailable(&self, nodes: usize) -> usize {
        let limit = match &self.unavailable {
            IntOrString::Int(number) => usize::try_from(*number).unwrap_or_default(),
            IntOrString::String(text) => {
                let percent = text.trim_end_matches('%').parse::<usize>().unwrap_or_default();
                nodes * percent / 100
            }
        };
        limit.max(1)
    }

    pub fn from_spec(spec: Option<&UpdateStrategy>) -> Self {
        let spec = spec.cloned().unwrap_or_default();
        let canary = spec.canary.map(|canary| {
            let replicas = u32::try_from(canary.replicas).unwrap_or_default();
            (canary.node_pools.into_iter().collect(), replicas)
        });
        let seconds = spec.progress_deadline_seconds.and_then(|s| u64::try_from(s).ok());
        Self {
            on_delete: spec.type_.as_deref() == Some("OnDelete"),
            restarts_in_place: spec.restart.as_deref() != Some("Recreate"),
            deliver_pilots: !matches!(spec.pilot_update.as_deref(), Some("OnRestart" | "Never")),
            canary,
            skip_predicates: spec.skip_predicates.into_iter().collect(),
            unavailable: spec.max_unavailable.unwrap_or(IntOrString::Int(1)),
            progress_deadline: Duration::from_secs(seconds.unwrap_or(1800)),
        }
    }

    /// Returns whether the user skips this predicate by its name. The wildcard `*` does not count
    /// here.
    pub fn is_skipped_by_name(&self, predicate: &str) -> bool {
        self.skip_predicates.contains(predicate)
    }

    /// Returns whether the user skips this predicate, by its name or by the wildcard `*`.
    pub fn is_skipped(&self, predicate: &str) -> bool {
        self.skip_predicates.contains("*") || self.skip_predicates.contains(predicate)
    }
}

/// Why nothing can be done for a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StallCause {
    pub reason: &'static str,
    pub message: String,
}

/// Reason of a cause that an object is of another store than ours.
pub(crate) const STORE_MISMATCH: &str = "StoreMismatch";
/// Reasons of causes that an object of a name that the cluster needs is not known to be the cluster's.
pub(crate) const ORIGIN_REASONS: [&str; 3] = ["ForeignObject", "NameConflict", STORE_MISMATCH];

impl StallCause {
    /// Returns whether the cause is an object that is not known to be the cluster's.
    pub(crate) fn is_about_origin(&self) -> bool {
        ORIGIN_REASONS.contains(&self.reason)
    }
}

impl DesiredCluster {
    /// Returns the owner reference for Pilots, which are in the same store as their cluster. The
    /// reference does not block the cluster's deletion: a pilot has to stop its database while its
    /// Pilot still exists.
    pub fn owner_reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: crate::api::v1beta1::API_VERSION.to_owned(),
            kind: self.database.names.kind.to_owned(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        }
    }

    /// Returns this cluster with the specs of its Pilots adapted to the existing nodes.
    #[must_use]
    pub fn fit_to_pools(mut self, existing: &[ExistingPool]) -> Self {
        (self.database.fit)(&mut self, existing);
        self
    }

    /// Returns the desired modes: what is encrypted, and whether clients must log in.
    pub(crate) fn desired_modes(&self) -> SecurityRungs {
        self.security.as_ref().map(ClusterSecurity::desired_modes).unwrap_or_default()
    }

    /// Returns whether the database requires a login by settings of its own.
    pub(crate) fn asks_by_itself(&self) -> bool {
        (self.database.secured)(self).1 != "SecurityDisabled"
    }

    /// Returns whether pods mount the users of the database. They do from the first stage on, in
    /// which nodes do not require a password yet.
    pub(crate) fn mounts_users(&self) -> bool {
        self.round.mounts_users(&self.desired_modes())
    }

    /// Returns the key of this cluster in the queue.
    pub(crate) fn key(&self) -> ClusterKey {
        ClusterKey {
            kind: self.database.names.kind,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    pub fn pool(&self, name: &str) -> Option<&DesiredPool> {
        self.pools.iter().find(|pool| pool.name == name)
    }
}

/// Returns 16 hexadecimal digits of SHA-256 over the JSON of `value`. `Value` sorts the keys of
/// objects, so their order does not count.
pub fn hash(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).expect("our own types have string keys only");
    let digest = Sha256::digest(value.to_string());
    digest.iter().take(8).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

/// The part of a cluster's spec that determines the pods of a pool.
///
/// The inputs come from the spec only. A new default image or probe of a newer controller does not
/// change the hash, so an upgrade of Navigator restarts no database. The pilot's image is not an
/// input either, even if the spec names one. Running pods get a new pilot next to their database
/// (see `plan::deliver`). The version stands for the default image that follows from it.
///
/// The hash is stored in every pod: a change in how it is computed restarts every database at the
/// next upgrade. A new field is left out while it is unset (`skip_serializing_if`), and another
/// spelling of an equal value goes into [`PodInputs::equivalent_hashes`]. The literal hashes in the tests guard
/// that.
#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodInputs<'a> {
    pub version: &'a str,
    pub image: Option<&'a ImageSpec>,
    pub run_as_user: Option<i64>,
    pub zone: Option<&'a str>,
    pub resources: Option<&'a ResourceRequirements>,
    pub persistent: bool,
    pub overlays: &'a [PodTemplate],
    /// The pods mount the users of the database.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mounts_users: bool,
}

/// Pull policies. They do not decide which image runs, so the hash leaves them out.
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

impl PodInputs<'_> {
    /// Returns the hash that a new pod carries. Pull policy and the spelling of quantities do not
    /// count.
    pub fn hash(&self) -> String {
        let image = self.image.map(|image| with_pull_policy(image, None));
        let resources = self.resources.map(normalize_resources);
        hash(&PodInputs { image: image.as_ref(), resources: resources.as_ref(), ..self.clone() })
    }

    /// Returns the hashes that equal pods have from releases in which pull policy and spelling
    /// still counted.
    pub fn equivalent_hashes(&self) -> Vec<String> {
        let resources = self.resources.map(normalize_resources);
        let mut hashes = Vec::new();
        for resources in [self.resources, resources.as_ref()] {
            let Some(image) = self.image else {
                hashes.push(hash(&PodInputs { resources, ..self.clone() }));
                continue;
            };
            for policy in [None].into_iter().chain(PULL_POLICIES.map(Some)) {
                let image = with_pull_policy(image, policy);
                hashes.push(hash(&PodInputs { image: Some(&image), resources, ..self.clone() }));
            }
        }
        let current_hash = self.hash();
        hashes.retain(|hash| *hash != current_hash);
        hashes.sort();
        hashes.dedup();
        hashes
    }
}

fn with_pull_policy(image: &ImageSpec, policy: Option<&str>) -> ImageSpec {
    ImageSpec { pull_policy: policy.map(str::to_owned), ..image.clone() }
}

/// Returns the resources with each quantity in its plainest spelling.
fn normalize_resources(resources: &ResourceRequirements) -> ResourceRequirements {
    let normalize = |amounts: &Option<BTreeMap<String, Quantity>>| {
        let normalize_entry = |(name, amount): (&String, &Quantity)| {
            (
                name.clone(),
                Quantity(
                    quantity::simplify_quantity(&amount.0).unwrap_or_else(|| amount.0.clone()),
                ),
            )
        };
        amounts.as_ref().map(|amounts| amounts.iter().map(normalize_entry).collect())
    };
    ResourceRequirements {
        limits: normalize(&resources.limits),
        requests: normalize(&resources.requests),
        ..resources.clone()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn image(policy: Option<&str>) -> ImageSpec {
        let policy = policy.map(str::to_owned);
        ImageSpec { repository: "db".into(), pull_policy: policy, ..ImageSpec::default() }
    }

    fn resources(amounts: Value) -> ResourceRequirements {
        serde_json::from_value(amounts).unwrap()
    }

    /// Makes a pool whose pods have this image and these resources.
    fn made(image: &ImageSpec, resources: &ResourceRequirements) -> DesiredPool {
        let inputs = PodInputs {
            version: "5.0.6",
            image: Some(image),
            run_as_user: None,
            zone: None,
            resources: Some(resources),
            persistent: true,
            overlays: &[],
            mounts_users: false,
        };
        let pool = crate::controller::testing::sample::desired(&[("a", 1)], "x").pools.remove(0);
        DesiredPool { pod_hash: inputs.hash(), pods_alike: inputs.equivalent_hashes(), ..pool }
    }

    /// Running pods carry these hashes. If this test fails, an upgrade would restart every user's
    /// databases: correct the code, not the numbers.
    #[test]
    fn hashes_that_released_controllers_stored_stay_what_they_are() {
        let (image, amounts) = (image(None), resources(json!({"limits": {"memory": "4Gi"}})));
        let overlay = json!({"spec": {"priorityClassName": "databases"}});
        let overlays = [serde_json::from_value(overlay).unwrap()];
        let bare = PodInputs {
            version: "5.0.6",
            image: None,
            run_as_user: None,
            zone: None,
            resources: None,
            persistent: true,
            overlays: &[],
            mounts_users: false,
        };
        let full = PodInputs {
            version: "8.19.4",
            image: Some(&image),
            run_as_user: Some(1001),
            zone: Some("a"),
            resources: Some(&amounts),
            persistent: false,
            overlays: &overlays,
            mounts_users: false,
        };
        assert_eq!([bare.hash(), full.hash()], ["f76554c4440cacda", "4b034a7e4a8e9943"]);
    }

    #[test]
    fn a_pull_policy_or_another_spelling_of_an_amount_makes_no_other_pod() {
        let written = resources(json!({
            "limits": {"memory": "4096Mi"}, "requests": {"cpu": "1000m", "memory": "4294967296"},
        }));
        let same = resources(json!({
            "limits": {"memory": "4Gi"}, "requests": {"cpu": "1", "memory": "4Gi"},
        }));
        let more = resources(json!({
            "limits": {"memory": "4Gi"}, "requests": {"cpu": "1001m", "memory": "4Gi"},
        }));
        let wanted = made(&image(None), &same);
        let policies = [None].into_iter().chain(PULL_POLICIES.map(Some));
        for policy in policies {
            let earlier = made(&image(policy), &written);
            assert_eq!(earlier.pod_hash, wanted.pod_hash, "{policy:?}");
            assert!(wanted.matches_pod_hash(&earlier.pod_hash));
            // Pods of an earlier release carry the hash of the spec as it was spelled.
            let literal = hash(&json!({
                "version": "5.0.6", "image": image(policy), "runAsUser": null, "zone": null,
                "resources": written, "persistent": true, "overlays": [],
            }));
            assert_ne!(literal, wanted.pod_hash);
            assert!(earlier.matches_pod_hash(&literal), "{policy:?}");
            assert!(
                made(&image(Some("Always")), &written).matches_pod_hash(&literal),
                "{policy:?}"
            );
        }
        assert!(!wanted.matches_pod_hash(&made(&image(None), &more).pod_hash));
        let other = ImageSpec { tag: Some("x".into()), ..image(None) };
        assert!(!wanted.matches_pod_hash(&made(&other, &same).pod_hash));
    }

    #[test]
    fn a_digest_wins_over_the_tag() {
        let spec = ImageSpec {
            repository: "docker.io/example".into(),
            tag: Some("5.0.6".into()),
            digest: Some("sha256:abc".into()),
            pull_policy: None,
        };
        assert_eq!(Image::from_spec(&spec).reference, "docker.io/example@sha256:abc");
        assert_eq!(Image::from_spec(&spec).pull_policy, "IfNotPresent");
    }
}
