//! Names that are a contract: labels, annotations, finalizers, ports, and the names of the
//! objects that belong to a cluster. Changing one is a breaking change.

/// Prefix of Navigator's labels, annotations and finalizers.
pub const DOMAIN: &str = "navigator.jetstack.io";

/// Labels on generated objects, pods and Pilots. Selectors use the cluster and pool labels only.
pub mod label {
    /// Label with an empty value on every pod that a pilot runs in.
    pub const HAS_PILOT: &str = "navigator.jetstack.io/has-pilot";
    /// Label `app`, with the value that upstream gives it.
    pub const APP: &str = "app";

    pub const K8S_NAME: &str = "app.kubernetes.io/name";
    pub const K8S_INSTANCE: &str = "app.kubernetes.io/instance";
    pub const K8S_COMPONENT: &str = "app.kubernetes.io/component";
    pub const K8S_PART_OF: &str = "app.kubernetes.io/part-of";
    pub const K8S_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Label with the Kubernetes version, on StatefulSets only: in a pod template, a new value
    /// would restart pods.
    pub const K8S_VERSION: &str = "app.kubernetes.io/version";
}

/// Annotations that Navigator reads or writes.
pub mod annotation {
    /// Annotation with the fields that v1alpha1 cannot say, shown to its readers and never stored.
    pub const SURPLUS: &str = "navigator.jetstack.io/v1beta1";
    /// Annotation with a comma-separated list of safety rules that one write may break.
    pub const ALLOW_UNSAFE: &str = "navigator.jetstack.io/allow-unsafe";
    /// Annotation `"true"` on a cluster: its deletion waits for nothing, and keeps claims.
    pub const FORCE_DELETE: &str = "navigator.jetstack.io/force-delete";
    /// Annotation `"true"` on a cluster: its deletion leaves the objects that were made for it.
    /// Navigator's API server writes the annotation where a deletion asks for orphans.
    pub const ORPHAN: &str = "navigator.jetstack.io/orphan";
    /// Annotation with the cluster's `metadata.uid`, on the Kubernetes objects that were made for
    /// it, and on the claims of its nodes.
    pub const CLUSTER_UID: &str = "navigator.jetstack.io/cluster-uid";
    /// Annotation `"true"` on a Pilot: a person says that data without a mark belong to this node.
    pub const ADOPT_DATA: &str = "navigator.jetstack.io/adopt-data";
    /// Annotation on a Pilot: a person says that the data of the ring of this id are lost for good,
    /// so that this node may found another ring in its place.
    pub const FOUND_ANEW: &str = "navigator.jetstack.io/found-anew";
    /// Annotation on a Pilot: a person says that the data on this volume are lost for good. The
    /// value is the uid of the node's claim, or of its pod where the pod holds the data, so the
    /// word means nothing once that is gone.
    pub const GIVE_UP: &str = "navigator.jetstack.io/give-up";
    /// Annotation on a Pilot: a person says that a quorum of the database's voters is lost for good,
    /// and that this node begins the cluster anew from what it has. The value is the id of the
    /// database cluster, as `status.identity.clusterID` has it, so the word means nothing once that
    /// is another.
    pub const UNSAFE_BOOTSTRAP: &str = "navigator.jetstack.io/unsafe-bootstrap";
    /// Annotation on a Pilot: a request that its node leave its machine, as the uid of its pod and
    /// who asks. The request means nothing once that pod is gone.
    pub const LEAVE: &str = "navigator.jetstack.io/leave";
    /// Annotation on a Pilot whose node is asked to leave its machine: what that waits for. The
    /// controller writes it.
    pub const LEAVE_WAITS: &str = "navigator.jetstack.io/leave-waits";
    /// Annotation on a Node of Kubernetes: the program that cordoned it.
    pub const CORDONED_BY: &str = "navigator.jetstack.io/cordoned-by";
    /// Annotation on the ConfigMap that records the store's identity: id of the store that a person
    /// accepts as it is.
    pub const ACCEPT_STORE: &str = "navigator.jetstack.io/accept-store";
    /// Annotation `"true"` on the namespace of an install or on its claim: a person allows the
    /// store to be deleted with that object.
    pub const DELETE_STORE: &str = "navigator.jetstack.io/delete-store";
    /// Annotation on an audit event: how many refusals of requests from the client's address were
    /// not recorded since the last event.
    pub const UNRECORDED: &str = "navigator.jetstack.io/unrecorded-refusals";
    /// Annotation with the identity of the API server's store, on every object that Navigator owns.
    pub const STORE_ID: &str = "navigator.jetstack.io/store-id";
    /// Annotation on a Pilot: uid of the claim that existed when the Pilot was made, or empty. Data
    /// on that claim may be older than the Pilot.
    pub const EARLIER_CLAIM: &str = "navigator.jetstack.io/earlier-claim";
    /// Annotation on a StatefulSet: hash of the claim template that it was made with. A policy may
    /// have changed the template on its way.
    pub const CLAIM_TEMPLATE: &str = "navigator.jetstack.io/claim-template";
    /// Annotation on a Pilot whose node has not had its turn in a change: config hash of the
    /// template of which the node's next pod is made.
    pub const PINNED_POD: &str = "navigator.jetstack.io/pinned-pod";
    /// Annotation on a cluster's PodDisruptionBudget: the rule and the node that hold every
    /// eviction off.
    pub const DRAINABLE_WHY: &str = "navigator.jetstack.io/drainable-why";
    /// Annotation on a Pilot: SHA-256 of a key that a person accepts as the node's own, in place of
    /// the one on record.
    pub const ACCEPT_KEY: &str = "navigator.jetstack.io/accept-key";
    /// Annotation on a claim, or on a pod without one: SHA-256 of the node's key that was signed, and the
    /// time of that. A Pilot that is made again has no record of it.
    pub const SIGNED_KEY: &str = "navigator.jetstack.io/signed-key";
    /// Annotation on a Secret that Navigator wrote: by it the controller knows the Secret again.
    pub const SEAL: &str = "navigator.jetstack.io/seal";
    /// Annotation on the Secret that was made for a user: uid of the cluster that uses it. Unlike
    /// [`CLUSTER_UID`] it does not have the Secret deleted with the cluster.
    pub const USED_BY: &str = "navigator.jetstack.io/used-by";
    /// Annotation on a cluster: uids of Secrets, with commas between them, that a person lets it use
    /// though nothing shows that Navigator made them.
    pub const ACCEPT_SECRETS: &str = "navigator.jetstack.io/accept-secrets";
    /// Annotation on a pod: revision of the users that its node is to have. A change has the kubelet
    /// look at once at what it mounts.
    pub const USERS: &str = "navigator.jetstack.io/users";
    pub const CONFIG_HASH: &str = "navigator.jetstack.io/config-hash";
    /// Annotation on a Pilot: a person asks to remove rows of ranges that other nodes own now. The
    /// value is a time: it tells one request from the next, and the earliest goes first.
    pub const CLEANUP: &str = "navigator.jetstack.io/cleanup";
    /// Annotation on a Pilot: a user reports that the replica on this node was repaired. The value is
    /// the time of that, as in RFC 3339.
    pub const REPAIRED: &str = "navigator.jetstack.io/repaired";
}

/// Conditions of Pilots that other components read.
pub mod condition {
    /// Condition that the node has rows of ranges that other nodes own now; `Unknown` while the
    /// database does not say.
    pub const CLEANUP_DUE: &str = "CleanupDue";
    /// Condition by which a pilot says whether its volume holds data of a database.
    pub const VOLUME_HOLDS_DATA: &str = "VolumeHoldsData";
}

/// Finalizer of clusters, held until the controller has deleted what it made for them.
pub const FINALIZER_TEARDOWN: &str = "navigator.jetstack.io/teardown";

/// TCP ports that are part of the contract.
pub mod port {
    /// Port of the pilot's liveness probe, HTTP at `/`.
    pub const PILOT_LIVENESS: u16 = 12000;
    /// Port of the pilot's readiness probe, HTTP at `/`.
    pub const PILOT_READINESS: u16 = 12001;
    /// Port of the pilot's startup probe, HTTP at `/`.
    pub const PILOT_STARTUP: u16 = 12002;
    /// Port of the pilot's and the controller's Prometheus metrics, at `/metrics` (the pilot's at
    /// `/`, too).
    pub const METRICS: u16 = 8080;
    /// Port of the API server, HTTPS; its Service listens on 443.
    pub const APISERVER: u16 = 8443;
}

/// Returns the name of the headless Service that gives the pods of a StatefulSet their DNS names.
pub fn pods_service(stateful_set: &str) -> String {
    format!("{stateful_set}-pods")
}

/// Returns the name of a pod, which is the name of its Pilot, too.
pub fn pilot_name(stateful_set: &str, ordinal: u32) -> String {
    format!("{stateful_set}-{ordinal}")
}

/// Name of the init container that copies the pilot beside the database. Ephemeral containers that
/// bring a newer pilot add a number to the name.
pub const INSTALL_CONTAINER: &str = "install-pilot";
/// Name of the volume that the pilot is copied into, and the path where it is mounted.
pub const SHARED_VOLUME: &str = "shared";
pub const SHARED_DIR: &str = "/shared";
/// Folder in which the pilot renders the database's configuration; an empty volume in every pod.
pub const CONFIG_DIR: &str = "/etc/navigator";
/// The volume with the users of the database, which the kubelet keeps up to date.
pub const USERS_VOLUME: &str = "users";
/// Path where the users of a cluster's database are mounted.
pub const USERS_DIR: &str = "/etc/navigator-users";
/// Namespace of the default install.
pub const NAMESPACE: &str = "navigator";
/// Name of the API server's Deployment, Service, ServiceAccount and claim.
pub const APISERVER: &str = "navigator-apiserver";
/// Name of the controller's Deployment, ServiceAccount and lease.
pub const CONTROLLER: &str = "navigator-controller";
/// Name of the coordinator's Deployment, ServiceAccount and lease.
pub const COORDINATOR: &str = "navigator-coordinator";
/// Name of the agent's DaemonSet and ServiceAccount.
pub const AGENT: &str = "navigator-agent";
/// Namespace of the kinds of the cluster manager, of the coordinator and of the agents.
pub const CORE_NAMESPACE: &str = "containership-core";
/// Secret of the core namespace with the credentials for the hub, and where the coordinator finds them.
pub const HUB_SECRET: &str = "navigator-hub";
pub const HUB_FOLDER: &str = "/etc/navigator/hub";
/// Name of the ConfigMap, in the install's namespace, that records the identity of the API server's
/// store.
pub const STORE_CONFIG_MAP: &str = "navigator-store";
/// Secret in the install's namespace with the key of the controller's seals.
pub const SEAL_SECRET: &str = "navigator-controller-seal";
/// Uid and gid of every process of Navigator's image.
pub const UID: i64 = 65532;
/// Name of the Secret, in the install's namespace, with the API server's CA and serving
/// certificate.
pub const TLS_SECRET: &str = "navigator-apiserver-tls";
/// Image of the default install. The tag is this build's version.
pub const IMAGE: &str = concat!("quay.io/jetstack/navigator:v", env!("CARGO_PKG_VERSION"));
