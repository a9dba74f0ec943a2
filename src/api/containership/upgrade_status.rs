//! How far a ClusterUpgrade is, and what it waits for. The coordinator alone writes it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far an upgrade is. All that is known of a run stands here, and nothing in memory: whoever
/// leads next goes on from this.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterUpgradeStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How far the run is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<UpgradePhase>,
    /// Why the run ended as it did, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How far the run is, in the words of 2019.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_status: Option<UpgradeVerdict>,
    /// Machine that is under way; the first, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_node: Option<String>,
    /// When that machine began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_start_time: Option<Time>,
    /// Machines that began, in the words of 2019.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_statuses: BTreeMap<String, UpgradeVerdict>,
    /// Machines that were chosen, in the order in which they begin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub nodes: Vec<MachineStatus>,
    /// Machines that are as wanted.
    #[serde(default)]
    pub done: i32,
    /// Machines that were chosen and still exist.
    #[serde(default)]
    pub total: i32,
    /// Both, as `3/7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Machines that failed.
    #[serde(default)]
    pub failed: i32,
    /// What is waited for, on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for_text: Option<String>,
    /// What is waited for, at most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub waits_for: Vec<MachineWait>,
    /// What was found before the run began, and did not hold it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub warnings: Vec<String>,
    /// When the run was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Value of the annotation `containership.io/retry` that was heeded last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retried: Option<String>,
    /// Ready, Reconciling and Stalled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl ClusterUpgradeStatus {
    /// Has the run ended?
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Some(UpgradePhase::Success | UpgradePhase::Failed))
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum UpgradePhase {
    /// Waits for another run.
    Pending,
    /// Waits until it may be accepted; nothing was touched.
    Preflight,
    InProgress,
    /// No further machine begins, and none is under way.
    Paused,
    Success,
    Failed,
}

/// How far a run or a machine is, in the words of 2019.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum UpgradeVerdict {
    InProgress,
    Success,
    Failed,
}

/// How far a machine is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// Name of the Node.
    pub name: String,
    #[serde(default)]
    pub phase: MachinePhase,
    /// The machine runs a part of Kubernetes' control plane.
    #[serde(default, skip_serializing_if = "is_false")]
    pub control_plane: bool,
    /// The kubelet's version before, or the id of the boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Version that the machine is brought to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The machine may bear a cordon or a taint of this run. Said before either is made.
    #[serde(default, skip_serializing_if = "is_false")]
    pub marked: bool,
    /// When the machine began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the phase must have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// Since when all is seen that the phase waits for; it must stay so for a while.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stable_since: Option<Time>,
    /// When the machine ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// How often the machine began.
    #[serde(default)]
    pub attempt: i32,
    /// Database clusters that had members on the machine when its drain began, as
    /// `namespace/kind/name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub clusters: Vec<String>,
    /// Pilots that are asked to leave the machine, as `namespace/name`. Said before they are asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub asked: Vec<String>,
    /// How it ended, or what is special, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// How far a machine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum MachinePhase {
    /// Has not begun.
    #[default]
    Pending,
    Cordon,
    Drain,
    /// Is being changed.
    Run,
    Verify,
    Uncordon,
    /// Its databases come back.
    Settle,
    Done,
    Failed,
    /// Its Node was deleted before it began.
    Gone,
}

impl MachinePhase {
    /// Has the machine begun, and not ended?
    pub fn is_under_way(self) -> bool {
        !matches!(self, Self::Pending) && !self.has_ended()
    }

    /// Has the machine ended, well or not?
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Gone)
    }
}

/// One thing that is waited for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineWait {
    /// Machine that waits; none where the whole run does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Database cluster that is waited for, as `namespace/kind/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Pilot or pod that is waited for, as `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pilot: Option<String>,
    /// Rule that holds.
    #[serde(default)]
    pub predicate: String,
    /// What was found, in a sentence.
    #[serde(default)]
    pub message: String,
    /// Since when the rule holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}
