//! What the decision goes by, as plain facts, and what it asks for.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use super::KubeVersion;
use crate::api::{
    containership::{ClusterUpgradeSpec, ClusterUpgradeStatus, UpgradeReport},
    leave_request::LeaveRequest,
};

/// One ClusterUpgrade, as the API server holds it now.
#[derive(Clone, Copy, Debug)]
pub struct RunFacts<'a> {
    pub name: &'a str,
    /// uid of the object.
    pub id: &'a str,
    pub created: Timestamp,
    pub generation: i64,
    pub spec: &'a ClusterUpgradeSpec,
    pub status: &'a ClusterUpgradeStatus,
    /// The object is being deleted.
    pub deleting: bool,
    /// Our finalizer is on the object.
    pub finalizer: bool,
    /// Value of the annotation `containership.io/retry`.
    pub retry: Option<&'a str>,
}

/// Another ClusterUpgrade that is not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherRun {
    pub name: String,
    pub created: Timestamp,
    /// The run was accepted: its status has machines.
    pub accepted: bool,
    /// A machine of it is under way.
    pub under_way: bool,
}

/// What was read of the cluster.
#[derive(Clone, Debug)]
pub struct FleetView {
    pub now: Timestamp,
    pub machines: Vec<MachineFacts>,
    pub pods: Vec<MachinePod>,
    pub volumes: Vec<MachineVolume>,
    pub pilots: Vec<MemberPilot>,
    pub clusters: Vec<DatabaseCluster>,
    pub others: Vec<OtherRun>,
    /// Version that the API server tells; counts where no control plane is a machine of the cluster.
    pub api_server: Option<KubeVersion>,
    /// Deprecated APIs that clients ask for, each in a sentence.
    pub deprecated: Vec<String>,
}

/// A machine: a Node of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    pub name: String,
    /// resourceVersion of the Node.
    pub version: String,
    pub labels: BTreeMap<String, String>,
    pub control_plane: bool,
    pub ready: bool,
    /// No further pods are scheduled there, whoever said so.
    pub cordoned: bool,
    /// Name of the run that cordoned it, by its annotation.
    pub cordoned_by: Option<String>,
    /// Name of the run that put our taint on it, by its annotation.
    pub tainted_by: Option<String>,
    /// Version of the kubelet, such as `v1.34.4`.
    pub kubelet: String,
    pub boot_id: String,
    /// Version of the API server that runs there, by the image of its pod; `None` where none does.
    pub api_server: Option<KubeVersion>,
    /// That API server and its siblings answer, and are of one version.
    pub control_plane_healthy: bool,
    /// The etcd member that runs there is ready; `None` where none runs.
    pub etcd_ready: Option<bool>,
    /// What its agent says of upgrades; `None` where no agent speaks.
    pub upgrade: Option<UpgradeReport>,
}

/// A pod, of which the last part of its life is of interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachinePod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Machine on which it is scheduled.
    pub machine: Option<String>,
    pub role: PodRole,
    /// The pod is being deleted.
    pub ends: bool,
    pub labels: BTreeMap<String, String>,
    /// Names of its PersistentVolumes.
    pub volumes: Vec<String>,
    /// A controller makes the pod again elsewhere.
    pub has_owner: bool,
    /// The pod keeps data in an emptyDir.
    pub has_local_data: bool,
    /// What the last eviction was answered, where it was refused.
    pub refusal: Option<String>,
}

/// What a drain does with a pod; in the order in which pods leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodRole {
    /// Evicted.
    Ordinary,
    /// A database runs there, under a pilot; asked to leave.
    Database,
    /// A part of Navigator.
    Navigator,
    /// The coordinator itself: another one leads then.
    Coordinator,
    /// Of a DaemonSet, of the kubelet, or finished: left alone.
    Left,
}

/// A PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineVolume {
    pub name: String,
    /// The only machine on which the volume can be used.
    pub machine: Option<String>,
}

/// The pilot of a database's node: its pod has the same namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberPilot {
    pub namespace: String,
    pub name: String,
    /// resourceVersion of the Pilot.
    pub version: String,
    /// Its cluster, as `namespace/kind/name`.
    pub cluster: String,
    pub leave: Option<LeaveRequest>,
    /// What the request waits for: a rule, a colon and a sentence.
    pub waits: Option<String>,
}

/// A database cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseCluster {
    /// As `namespace/kind/name`.
    pub name: String,
    /// Condition `Drainable`; `None` where the cluster has none.
    pub drainable: Option<bool>,
    /// Reason and message of that condition, as `PeersUp: db-a-0: …`.
    pub why: String,
    /// Every node that should run serves.
    pub serves: bool,
}

/// What is done next, and what the status says then.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// In their order, before the status is written.
    pub actions: Vec<UpgradeAction>,
    pub status: ClusterUpgradeStatus,
}

/// One write. A `version` is the resourceVersion that the object must still have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpgradeAction {
    /// Puts our finalizer on the ClusterUpgrade.
    AddFinalizer,
    RemoveFinalizer,
    /// Deletes the ClusterUpgrade.
    Delete,
    /// Puts our taint and its annotation on a machine, in the name of the run.
    Taint {
        machine: String,
        version: String,
        by: String,
    },
    /// Cordons a machine in the name of the run; does nothing where it is cordoned.
    Cordon {
        machine: String,
        version: String,
        by: String,
    },
    /// Takes off what the run `by` put on a machine. The cordon itself stays, as a person's, unless
    /// `uncordon`.
    Release {
        machine: String,
        version: String,
        by: String,
        uncordon: bool,
    },
    /// Evicts a pod by the Eviction API. A refusal is no failure.
    Evict {
        namespace: String,
        pod: String,
        uid: String,
    },
    /// Asks a pilot to leave its machine.
    Ask {
        namespace: String,
        pilot: String,
        version: String,
        request: LeaveRequest,
    },
    /// Takes back what the run `by` asked of a pilot; does nothing where another asked.
    Withdraw {
        namespace: String,
        pilot: String,
        version: String,
        by: String,
    },
}

impl OtherRun {
    /// Does this run come first, if both were accepted?
    pub(super) fn is_older(&self, run: &RunFacts<'_>) -> bool {
        (self.created, self.name.as_str()) < (run.created, run.name)
    }
}

impl MachineFacts {
    pub(super) fn release_action(&self, by: &str, uncordon: bool) -> UpgradeAction {
        UpgradeAction::Release {
            machine: self.name.clone(),
            version: self.version.clone(),
            by: by.to_owned(),
            uncordon,
        }
    }
}

impl MachinePod {
    /// Returns namespace and name, as status has it.
    pub(super) fn namespaced_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl MemberPilot {
    pub(super) fn namespaced_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    pub(super) fn withdraw_action(&self, by: &str) -> UpgradeAction {
        UpgradeAction::Withdraw {
            namespace: self.namespace.clone(),
            pilot: self.name.clone(),
            version: self.version.clone(),
            by: by.to_owned(),
        }
    }
}

impl FleetView {
    pub(super) fn find_machine(&self, name: &str) -> Option<&MachineFacts> {
        self.machines.iter().find(|machine| machine.name == name)
    }

    /// Returns the pilot of a pod.
    pub(super) fn find_pilot(&self, pod: &MachinePod) -> Option<&MemberPilot> {
        let is_same =
            |pilot: &&MemberPilot| pilot.namespace == pod.namespace && pilot.name == pod.name;
        self.pilots.iter().find(is_same)
    }

    /// Is the pod on this machine, or can it be on no other?
    pub(super) fn is_bound_to(&self, pod: &MachinePod, machine: &str) -> bool {
        let is_bound = |volume: &MachineVolume| {
            pod.volumes.contains(&volume.name) && volume.machine.as_deref() == Some(machine)
        };
        match &pod.machine {
            Some(pod_machine) => pod_machine == machine,
            None => self.volumes.iter().any(is_bound),
        }
    }

    /// Returns the database clusters that have members on a machine, by name.
    pub(super) fn clusters_on(&self, machine: &str) -> Vec<String> {
        let databases = self.pods.iter().filter(|pod| pod.role == PodRole::Database);
        let pods = databases.filter(|pod| self.is_bound_to(pod, machine));
        let mut cluster_names: Vec<String> =
            pods.filter_map(|pod| Some(self.find_pilot(pod)?.cluster.clone())).collect();
        cluster_names.sort();
        cluster_names.dedup();
        cluster_names
    }
}
