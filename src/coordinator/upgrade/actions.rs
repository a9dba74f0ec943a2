//! Carries one action out.

use k8s_openapi::{
    api::{
        core::v1::{Node, Pod, Taint},
        policy::v1::Eviction,
    },
    apimachinery::pkg::apis::meta::v1,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};

use super::{MANAGER, UpgradeCoordinator, describe_upgrade};
use crate::{
    api::{
        containership::{ClusterUpgrade, name},
        names::annotation::LEAVE,
        v1beta1::Pilot,
    },
    coordinator::{fleet::FleetReading, look_error::LookError},
    engine::machines::{MemberPilot, UpgradeAction, requesting_upgrade},
};

/// An upgrade as our writes need it: they follow one another, each against the version that the one
/// before made.
pub(super) struct RunHandle {
    pub(super) name: String,
    pub(super) version: String,
    uid: Option<String>,
    finalizers: Vec<String>,
}

impl RunHandle {
    pub(super) fn from_upgrade(upgrade: &ClusterUpgrade) -> Self {
        let meta = &upgrade.metadata;
        Self {
            name: meta.name.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            uid: meta.uid.clone(),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
        }
    }
}

impl UpgradeCoordinator {
    /// Changes the upgrade itself. Returns it as it is then; `None` once it is gone.
    pub(super) async fn change_upgrade(
        &self,
        handle: &RunHandle,
        action: &UpgradeAction,
    ) -> Result<Option<RunHandle>, LookError> {
        let api = self.upgrade_api(&self.writer);
        let request_error =
            |verb, error| LookError::for_request(verb, &describe_upgrade(&handle.name), error);
        if *action == UpgradeAction::Delete {
            let preconditions = Preconditions {
                uid: handle.uid.clone(),
                resource_version: Some(handle.version.clone()),
            };
            let params =
                DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            return match api.delete(&handle.name, &params).await {
                Ok(answer) => Ok(answer.left().as_ref().map(RunHandle::from_upgrade)),
                Err(error) => Err(request_error("delete", error)),
            };
        }
        let mut finalizers = handle.finalizers.clone();
        finalizers.retain(|finalizer| finalizer != name::UPGRADE_FINALIZER);
        if *action == UpgradeAction::AddFinalizer {
            finalizers.push(name::UPGRADE_FINALIZER.to_owned());
        }
        let patch = json!({"metadata": {
            "resourceVersion": handle.version, "finalizers": finalizers,
        }});
        match api.patch(&handle.name, &patch_params(), &Patch::Merge(patch)).await {
            Ok(updated_upgrade) => Ok(Some(RunHandle::from_upgrade(&updated_upgrade))),
            Err(error) => Err(request_error("patch", error)),
        }
    }

    /// Changes a Node or a Pilot, or evicts a pod.
    pub(super) async fn apply_action(
        &mut self,
        action: &UpgradeAction,
        fleet: &FleetReading,
    ) -> Result<(), LookError> {
        match action {
            UpgradeAction::Taint { machine, version, by } => {
                let patch = |node: &Node| {
                    let mut taints = other_taints(node);
                    taints.push(Taint {
                        key: name::UPGRADE_PENDING.to_owned(),
                        effect: "PreferNoSchedule".to_owned(),
                        ..Taint::default()
                    });
                    json!({
                        "metadata": {"annotations": {name::TAINTED_BY: by}},
                        "spec": {"taints": taints},
                    })
                };
                self.patch_node(fleet, machine, version, patch).await
            }
            UpgradeAction::Cordon { machine, version, by } => {
                let patch = |node: &Node| {
                    if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
                        return json!({});
                    }
                    json!({
                        "metadata": {"annotations": {name::CORDONED_BY: by}},
                        "spec": {"unschedulable": true},
                    })
                };
                self.patch_node(fleet, machine, version, patch).await
            }
            UpgradeAction::Release { machine, version, by, uncordon } => {
                let patch = |node: &Node| release_patch(node, by, *uncordon);
                self.patch_node(fleet, machine, version, patch).await
            }
            UpgradeAction::Evict { namespace, pod, uid } => {
                self.evict_pod(namespace, pod, uid).await
            }
            UpgradeAction::Ask { namespace, pilot, version, request } => {
                let annotations = json!({LEAVE: request.to_string()});
                self.patch_pilot(namespace, pilot, version, annotations).await
            }
            UpgradeAction::Withdraw { namespace, pilot, version, by } => {
                let is_requested_pilot = |candidate: &&MemberPilot| {
                    candidate.namespace == *namespace && candidate.name == *pilot
                };
                let member_pilot = fleet.view.pilots.iter().find(is_requested_pilot);
                let is_own = member_pilot.and_then(requesting_upgrade) == Some(by);
                let annotations = if is_own { json!({LEAVE: null}) } else { json!({}) };
                self.patch_pilot(namespace, pilot, version, annotations).await
            }
            // Those are for the run itself: see `change_upgrade`.
            UpgradeAction::AddFinalizer
            | UpgradeAction::RemoveFinalizer
            | UpgradeAction::Delete => Ok(()),
        }
    }

    /// Changes a Node that still has this version. A patch that changes nothing is sent all the same:
    /// the server then says whether the Node has that version.
    async fn patch_node(
        &self,
        fleet: &FleetReading,
        machine: &str,
        version: &str,
        patch: impl FnOnce(&Node) -> Value,
    ) -> Result<(), LookError> {
        let subject = format!("node {machine:?}");
        let node = fleet.nodes.get(machine);
        let is_current = |node: &&Node| node.metadata.resource_version.as_deref() == Some(version);
        let Some(node) = node.filter(is_current) else { return Err(LookError::Stale(subject)) };
        let mut patch = patch(node);
        patch["metadata"]["resourceVersion"] = json!(version);
        let api: Api<Node> = Api::all(self.writer.clone());
        let patch_result = api.patch(machine, &patch_params(), &Patch::Merge(patch)).await;
        patch_result.map(drop).map_err(|error| LookError::for_request("patch", &subject, error))
    }

    async fn patch_pilot(
        &self,
        namespace: &str,
        pilot: &str,
        version: &str,
        annotations: Value,
    ) -> Result<(), LookError> {
        let subject = format!("pilot \"{namespace}/{pilot}\"");
        // Without a version, the patch would change whatever is there.
        if version.is_empty() {
            return Err(LookError::Stale(subject));
        }
        let patch = json!({"metadata": {"resourceVersion": version, "annotations": annotations}});
        let api: Api<Pilot> = Api::namespaced(self.writer.clone(), namespace);
        let patch_result = api.patch(pilot, &patch_params(), &Patch::Merge(patch)).await;
        patch_result.map(drop).map_err(|error| LookError::for_request("patch", &subject, error))
    }

    /// Evicts a pod of this uid. That the server refuses is no failure, and is remembered for people.
    pub(super) async fn evict_pod(
        &mut self,
        namespace: &str,
        pod: &str,
        uid: &str,
    ) -> Result<(), LookError> {
        // `Api::evict` of kube 5 sends `delete_options`, a field that no server reads.
        let preconditions = v1::Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let options = v1::DeleteOptions {
            preconditions: Some(preconditions),
            ..v1::DeleteOptions::default()
        };
        let mut eviction = Eviction { delete_options: Some(options), ..Eviction::default() };
        eviction.metadata.name = Some(pod.to_owned());
        let api: Api<Pod> = Api::namespaced(self.writer.clone(), namespace);
        let eviction_result: kube::Result<Value> =
            api.create_subresource("eviction", pod, &PostParams::default(), &eviction).await;
        let result = match eviction_result {
            Ok(_) => {
                self.refusals.remove(uid);
                "accepted"
            }
            // Another pod has its name, or none.
            Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => "gone",
            // A budget, a policy, or two budgets over one pod, which the server answers with 500.
            Err(kube::Error::Api(answer)) if matches!(answer.code, 403 | 422 | 429 | 500) => {
                let refusal = format!("pod {namespace}/{pod}: {}", answer.message);
                self.refusals.insert(uid.to_owned(), refusal);
                "refused"
            }
            Err(error) => {
                let subject = format!("pod \"{namespace}/{pod}\"");
                return Err(LookError::for_request("evict", &subject, error));
            }
        };
        self.metrics.evictions.with_label_values(&[result]).inc();
        Ok(())
    }
}

fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

/// Returns the taints of a Node without ours.
fn other_taints(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    taints.into_iter().filter(|taint| taint.key != name::UPGRADE_PENDING).collect()
}

/// Returns the patch that takes off a Node what the run `by` put on it.
fn release_patch(node: &Node, by: &str, uncordon: bool) -> Value {
    let has_mark = |mark: &str| {
        node.metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(mark))
            .is_some_and(|owner| owner == by)
    };
    let mut patch = json!({});
    if has_mark(name::TAINTED_BY) {
        let taints = other_taints(node);
        patch["metadata"]["annotations"][name::TAINTED_BY] = Value::Null;
        patch["spec"]["taints"] = if taints.is_empty() { Value::Null } else { json!(taints) };
    }
    if has_mark(name::CORDONED_BY) {
        patch["metadata"]["annotations"][name::CORDONED_BY] = Value::Null;
        if uncordon {
            patch["spec"]["unschedulable"] = Value::Null;
        }
    }
    patch
}
