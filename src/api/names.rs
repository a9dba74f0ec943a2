//! Names that are a contract: labels, annotations, finalizers, ports, and the names of the
//! objects that belong to a cluster. Changing one is a breaking change.

/// Prefix of our labels, annotations and finalizers.
pub const DOMAIN: &str = "navigator.jetstack.io";

/// Labels on generated objects, pods and Pilots. Selectors use the cluster and pool labels only.
pub mod label {
    /// Empty value, on every pod that a pilot runs in.
    pub const HAS_PILOT: &str = "navigator.jetstack.io/has-pilot";
    /// As upstream has it.
    pub const APP: &str = "app";

    pub const K8S_NAME: &str = "app.kubernetes.io/name";
    pub const K8S_INSTANCE: &str = "app.kubernetes.io/instance";
    pub const K8S_COMPONENT: &str = "app.kubernetes.io/component";
    pub const K8S_PART_OF: &str = "app.kubernetes.io/part-of";
    pub const K8S_MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// On StatefulSets only, never in a pod template: it would restart pods.
    pub const K8S_VERSION: &str = "app.kubernetes.io/version";
}

/// Annotations that we read or write.
pub mod annotation {
    /// What v1alpha1 cannot say, shown to its readers and never stored.
    pub const SURPLUS: &str = "navigator.jetstack.io/v1beta1";
    /// Comma list of safety rules that one write may break.
    pub const ALLOW_UNSAFE: &str = "navigator.jetstack.io/allow-unsafe";
    /// `"true"`: deletion waits for nothing, and keeps claims.
    pub const FORCE_DELETE: &str = "navigator.jetstack.io/force-delete";
    /// `"true"`: deletion of the cluster leaves everything that was made for it. Our API server
    /// writes it where a deletion asks for orphans.
    pub const ORPHAN: &str = "navigator.jetstack.io/orphan";
    /// `metadata.uid` of the cluster, on every object of Kubernetes that was made for it.
    pub const CLUSTER_UID: &str = "navigator.jetstack.io/cluster-uid";
    /// `"true"` on a Pilot: a person says that data without a mark are this node's.
    pub const ADOPT_DATA: &str = "navigator.jetstack.io/adopt-data";
    /// On the record of the store: the id of the store that a person accepts as it is.
    pub const ACCEPT_STORE: &str = "navigator.jetstack.io/accept-store";
    /// `"true"` on the namespace of an install or on its claim: a person lets the store go with it.
    pub const DELETE_STORE: &str = "navigator.jetstack.io/delete-store";
    /// On an event of the audit trail: how many refusals of the client's address were not recorded
    /// since the last event.
    pub const UNRECORDED: &str = "navigator.jetstack.io/unrecorded-refusals";
    /// Identity of our store, on every object that we own.
    pub const STORE_ID: &str = "navigator.jetstack.io/store-id";
    /// On a Pilot: uid of the claim that was there when the Pilot was made, or empty. Data on that
    /// claim may be older than the Pilot.
    pub const EARLIER_CLAIM: &str = "navigator.jetstack.io/earlier-claim";
    /// On a cluster's PodDisruptionBudget: the rule and the node that hold every eviction off.
    pub const DRAINABLE_WHY: &str = "navigator.jetstack.io/drainable-why";
    pub const CONFIG_HASH: &str = "navigator.jetstack.io/config-hash";
    /// On a Pilot: a person asks to remove rows of ranges that other nodes own now. The value is a
    /// time: it tells one request from the next, and the earliest goes first.
    pub const CLEANUP: &str = "navigator.jetstack.io/cleanup";
}

/// Conditions of Pilots that other components read.
pub mod condition {
    /// The node has rows of ranges that other nodes own now; `Unknown` while the database does not
    /// say.
    pub const CLEANUP_DUE: &str = "CleanupDue";
}

/// Finalizer of clusters: the controller deletes what it made for them.
pub const FINALIZER_TEARDOWN: &str = "navigator.jetstack.io/teardown";

/// TCP ports that are part of the contract.
pub mod port {
    /// Pilot, liveness probe, HTTP at `/`.
    pub const PILOT_LIVENESS: u16 = 12000;
    /// Pilot, readiness probe, HTTP at `/`.
    pub const PILOT_READINESS: u16 = 12001;
    /// Pilot, startup probe, HTTP at `/`.
    pub const PILOT_STARTUP: u16 = 12002;
    /// Pilot and controller, Prometheus metrics at `/metrics` (pilot: and at `/`).
    pub const METRICS: u16 = 8080;
    /// API server, HTTPS; its Service listens on 443.
    pub const APISERVER: u16 = 8443;
}

/// Headless Service that gives the pods of a StatefulSet their DNS names.
pub fn pods_service(stateful_set: &str) -> String {
    format!("{stateful_set}-pods")
}

/// Name of a pod, and of its Pilot.
pub fn pilot(stateful_set: &str, ordinal: u32) -> String {
    format!("{stateful_set}-{ordinal}")
}

/// Init container that copies the pilot beside the database. Ephemeral containers that bring a
/// newer one add a number to the name.
pub const INSTALL_CONTAINER: &str = "install-pilot";
/// Volume that the pilot is copied into, and where it is mounted.
pub const SHARED_VOLUME: &str = "shared";
pub const SHARED_DIR: &str = "/shared";
/// Namespace of the default install.
pub const NAMESPACE: &str = "navigator";
/// Name of the API server's Deployment, Service, ServiceAccount and claim.
pub const APISERVER: &str = "navigator-apiserver";
/// Name of the controller's Deployment, ServiceAccount and lease.
pub const CONTROLLER: &str = "navigator-controller";
/// ConfigMap, in the install's namespace, that records the identity of our store.
pub const STORE_CONFIG_MAP: &str = "navigator-store";
/// Uid and gid of every process of our own image.
pub const UID: i64 = 65532;
/// Secret, in the install's namespace, with our own CA and serving certificate.
pub const TLS_SECRET: &str = "navigator-apiserver-tls";
/// Image of the default install. The tag is this build's version.
pub const IMAGE: &str = concat!("quay.io/jetstack/navigator:v", env!("CARGO_PKG_VERSION"));
