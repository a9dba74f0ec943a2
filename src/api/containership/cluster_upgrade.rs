//! ClusterUpgrade: the machines of a cluster are brought to another version of Kubernetes, or are
//! rebooted, one after the other.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{label_requirement::LabelRequirement, upgrade_status::ClusterUpgradeStatus};

/// What is asked of machines, and how.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[kube(
    group = "provision.containership.io",
    version = "v3",
    kind = "ClusterUpgrade",
    plural = "clusterupgrades",
    singular = "clusterupgrade",
    shortname = "cup",
    category = "containership",
    namespaced,
    status = "ClusterUpgradeStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Machines of a cluster that are brought to another version of Kubernetes, or rebooted, in order: control planes first, and no machine before the databases on it let it go.",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.targetVersion"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.currentNode"),
    printcolumn(name = "Done", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failed"),
    printcolumn(name = "Waits-For", type_ = "string", json_path = ".status.waitsForText"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new(fixed()).message(FIXED_MESSAGE)
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.type != 'kubernetes' || (has(self.targetVersion) && self.targetVersion.matches('^v[0-9]+[.][0-9]+[.][0-9]+$'))",
    "message": "targetVersion must be a release of Kubernetes, such as v1.34.4",
}]))]
pub struct ClusterUpgradeSpec {
    /// Id of the upgrade, as its author knows it. Navigator goes by the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub id: Option<String>,
    /// `kubernetes` or `reboot`. `etcd` is accepted and not carried out.
    #[serde(rename = "type", default)]
    pub type_: UpgradeType,
    /// Release of Kubernetes to bring the machines to, such as `v1.34.4`. A reboot has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub target_version: Option<String>,
    /// Requirements that a machine's labels must all meet; without any, all machines are meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub label_selector: Option<Vec<LabelRequirement>>,
    /// Seconds that one machine may take from the end of its drain until it runs as wanted; 0 stands
    /// for 600.
    #[serde(default = "node_timeout")]
    #[schemars(range(min = 0, max = 604_800))]
    pub node_timeout_seconds: i32,
    /// Words about the upgrade, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub description: Option<String>,
    /// When the upgrade was added, in the words of its author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub added_at: Option<String>,
    /// No further machine begins while this is true. Those under way are finished.
    #[serde(default)]
    pub paused: bool,
    /// What follows when a machine fails: `Stop` leaves the rest as they are, `Continue` goes on. A
    /// control plane that fails always stops an upgrade of Kubernetes.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// Machines that may be under way at once. The first machine goes alone, and control planes
    /// always do.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_unavailable: i32,
    /// Lets machines go back to an older release, by one minor version at most.
    #[serde(default)]
    pub allow_downgrade: bool,
    /// How pods leave a machine before it is changed.
    #[serde(default)]
    pub drain: DrainPolicy,
    /// When machines may begin; at any time without a window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<MaintenanceWindow>,
    /// What holds a machine before it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gates: Option<UpgradeGates>,
    /// Who changes the machines.
    #[serde(default)]
    pub runner: UpgradeRunner,
    /// Seconds after its end at which the object is deleted; never without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// What programs of 2019 write here is ignored: status is a subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub status: Option<Value>,
}

/// Fields that stay as they are once a run was accepted: to change one, make another upgrade.
const FIXED: [&str; 14] = [
    "id",
    "type",
    "targetVersion",
    "labelSelector",
    "nodeTimeoutSeconds",
    "description",
    "addedAt",
    "maxUnavailable",
    "allowDowngrade",
    "drain",
    "window",
    "gates",
    "runner",
    "ttlSecondsAfterFinished",
];
const FIXED_MESSAGE: &str = "spec of an accepted upgrade is immutable, but for paused and \
                             failurePolicy: make another ClusterUpgrade";

/// Rule by which [`FIXED`] stays. kube-apiserver takes no shorter one: it cannot tell beforehand what
/// it costs to compare optional values.
fn fixed() -> String {
    let not_accepted_rule = "!has(oldSelf.status) || !has(oldSelf.status.phase) || \
                  oldSelf.status.phase in ['Pending', 'Preflight']";
    let unchanged_rules = FIXED.map(|field| {
        let (new, old) = (format!("self.spec.{field}"), format!("oldSelf.spec.{field}"));
        format!("has({new}) == has({old}) && (!has({new}) || {new} == {old})")
    });
    format!("{not_accepted_rule} || ({})", unchanged_rules.join(" && "))
}

/// Schema of an object of any content, absent or null.
fn anything(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "nullable": true,
        "x-kubernetes-preserve-unknown-fields": true,
        "description": "What programs of 2019 write here is ignored: status is a subresource.",
    })
}

/// Seconds that a machine may take where nothing is said.
const NODE_TIMEOUT_SECONDS: i32 = 600;

fn node_timeout() -> i32 {
    NODE_TIMEOUT_SECONDS
}

fn one() -> i32 {
    1
}

impl ClusterUpgradeSpec {
    /// Returns the seconds that one machine may take.
    pub fn node_timeout(&self) -> i32 {
        if self.node_timeout_seconds > 0 { self.node_timeout_seconds } else { NODE_TIMEOUT_SECONDS }
    }
}

/// What is done to machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UpgradeType {
    #[default]
    Kubernetes,
    Reboot,
    Etcd,
}

/// What follows when a machine fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum FailurePolicy {
    #[default]
    Stop,
    Continue,
}

/// How pods leave a machine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainPolicy {
    /// `Auto` drains for another minor version and for a reboot, and not for a patch release;
    /// `Always`; or `Never`.
    #[serde(default)]
    pub mode: DrainMode,
    /// Seconds that a drain may take before the machine fails.
    #[serde(default = "drain_timeout")]
    #[schemars(range(min = 1, max = 604_800))]
    pub timeout_seconds: i32,
    /// Evicts pods that keep data in an emptyDir, which are lost with the pod.
    #[serde(default)]
    pub delete_empty_dir_data: bool,
    /// Requirements that a pod's labels must all meet to be drained; all pods without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub pod_selector: Vec<LabelRequirement>,
}

fn drain_timeout() -> i32 {
    3600
}

impl Default for DrainPolicy {
    fn default() -> Self {
        Self {
            mode: DrainMode::Auto,
            timeout_seconds: drain_timeout(),
            delete_empty_dir_data: false,
            pod_selector: Vec::new(),
        }
    }
}

/// When machines are drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum DrainMode {
    #[default]
    Auto,
    Always,
    Never,
}

/// Hours in which machines may begin, in UTC. A window whose end is before its start ends on the next
/// day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.start != self.end",
    "message": "start and end of a window must differ",
}]))]
pub struct MaintenanceWindow {
    /// Days on which the window begins; every day without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub days: Vec<WindowDay>,
    /// Hour and minute at which the window begins, such as `22:30`.
    #[schemars(length(max = 5), regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// Hour and minute at which it ends.
    #[schemars(length(max = 5), regex(pattern = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub end: String,
}

/// Day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum WindowDay {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

/// What holds a machine before it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeGates {
    /// While a pod on the machine meets all requirements of one of these, the machine does not begin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub blocking_pod_selectors: Vec<BlockingPods>,
}

/// Pods that hold the machine on which they run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlockingPods {
    /// Requirements on the labels of a pod.
    #[schemars(length(min = 1, max = 16))]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub labels: Vec<LabelRequirement>,
}

/// Who changes the machines.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeRunner {
    /// `External`: a tool of your own, while Navigator does everything around that. `Kubeadm`:
    /// Navigator's agent, by kubeadm.
    #[serde(default)]
    pub mode: RunnerMode,
    /// Lets kubeadm upgrade the etcd beside a control plane.
    #[serde(default = "yes")]
    pub etcd_upgrade: bool,
    /// Where the agent takes the programs from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<RunnerArtifacts>,
}

fn yes() -> bool {
    true
}

impl Default for UpgradeRunner {
    fn default() -> Self {
        Self { mode: RunnerMode::External, etcd_upgrade: true, artifacts: None }
    }
}

/// Who changes a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum RunnerMode {
    #[default]
    External,
    Kubeadm,
}

/// Programs that the agent fetches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.baseURL.startsWith('https://')",
    "message": "baseURL must begin with https://",
}]))]
pub struct RunnerArtifacts {
    /// Address below which the programs lie; HTTPS only.
    #[serde(rename = "baseURL")]
    #[schemars(length(max = 2048))]
    pub base_url: String,
    /// SHA-256 of the programs.
    pub sha256: ProgramDigests,
}

/// SHA-256 of each program, in 64 hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgramDigests {
    #[schemars(length(max = 64), regex(pattern = r"^[0-9a-f]{64}$"))]
    pub kubelet: String,
    #[schemars(length(max = 64), regex(pattern = r"^[0-9a-f]{64}$"))]
    pub kubeadm: String,
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt as _;
    use serde_json::{Value, json};

    use super::*;

    /// What the cluster manager of 2019 itself wrote, with Go's zero values.
    #[test]
    fn an_upgrade_of_2019_is_read() {
        let written = json!({
            "apiVersion": "provision.containership.io/v3", "kind": "ClusterUpgrade",
            "metadata": {
                "name": "f595244e-c2a6-49f9-9b54-7050c258aa8f", "namespace": "containership-core",
            },
            "spec": {
                "id": "f595244e-c2a6-49f9-9b54-7050c258aa8f", "type": "kubernetes",
                "addedAt": "1547475212", "description": "", "targetVersion": "v1.12.3",
                "labelSelector": null, "nodeTimeoutSeconds": 0,
                "status": {
                    "clusterStatus": "", "nodeStatuses": null, "currentNode": "",
                    "currentStartTime": "",
                },
            },
        });
        let read: ClusterUpgrade = serde_json::from_value(written).unwrap();
        assert_eq!(read.spec.node_timeout(), 600);
        assert_eq!(read.spec.target_version.as_deref(), Some("v1.12.3"));
        assert_eq!(read.status, None);
    }

    #[test]
    fn the_definition_has_a_status_of_its_own_and_a_line_for_people() {
        let definition = serde_json::to_value(ClusterUpgrade::crd()).unwrap();
        let version = &definition["spec"]["versions"][0];
        assert_eq!(version["subresources"]["status"], json!({}));
        let columns = version["additionalPrinterColumns"].as_array().unwrap();
        let names: Vec<&Value> = columns.iter().map(|column| &column["name"]).collect();
        let wanted = ["Type", "Target", "Phase", "Node", "Done", "Failed", "Waits-For", "Age"];
        assert_eq!(names, wanted);
        assert_eq!(definition["spec"]["names"]["shortNames"], json!(["cup"]));
        assert_eq!(definition["spec"]["group"], crate::api::containership::PROVISION_GROUP);
    }
}
