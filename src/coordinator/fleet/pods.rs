//! Pods, and what a drain does with them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use crate::{
    api::names::label,
    engine::machines::{MachinePod, PodRole},
};

/// Annotation of a pod that the kubelet runs from a file; the API only mirrors it.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Values of the labels of Navigator's own pods.
const NAVIGATOR: &str = "navigator";
const COORDINATOR: &str = "coordinator";

/// Returns what is known of a pod. `claims` are volumes by claim, `refusals` by the pod's uid.
pub(super) fn machine_pod(
    pod: &Pod,
    claims: &BTreeMap<(String, String), String>,
    refusals: &BTreeMap<String, String>,
) -> MachinePod {
    let meta = &pod.metadata;
    let (namespace, name, uid) = (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
        meta.uid.clone().unwrap_or_default(),
    );
    let spec = pod.spec.as_ref();
    let volumes = spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let bound_volumes = volumes.clone().filter_map(|volume| {
        let claim = match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => claim.claim_name.clone(),
            (None, Some(_)) => format!("{name}-{}", volume.name),
            (None, None) => return None,
        };
        claims.get(&(namespace.clone(), claim)).cloned()
    });
    MachinePod {
        machine: spec.and_then(|spec| spec.node_name.clone()).filter(|name| !name.is_empty()),
        role: pod_role(pod),
        ends: meta.deletion_timestamp.is_some(),
        labels: meta.labels.clone().unwrap_or_default(),
        volumes: bound_volumes.collect(),
        has_owner: controller_kind(pod).is_some(),
        has_local_data: volumes.clone().any(|volume| volume.empty_dir.is_some()),
        refusal: refusals.get(&uid).cloned(),
        namespace,
        name,
        uid,
    }
}

/// Returns the kind of the controller that makes the pod again.
fn controller_kind(pod: &Pod) -> Option<&str> {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true)).map(|owner| owner.kind.as_str())
}

fn pod_role(pod: &Pod) -> PodRole {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_mirrored = pod
        .metadata
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(MIRROR));
    let label = |key: &str| pod.metadata.labels.as_ref()?.get(key).map(String::as_str);
    if matches!(phase, Some("Succeeded" | "Failed"))
        || is_mirrored
        || controller_kind(pod) == Some("DaemonSet")
    {
        PodRole::Left
    } else if label(label::HAS_PILOT).is_some() {
        PodRole::Database
    } else if label(label::K8S_PART_OF) != Some(NAVIGATOR) {
        PodRole::Ordinary
    } else if label(label::K8S_COMPONENT) == Some(COORDINATOR) {
        PodRole::Coordinator
    } else {
        PodRole::Navigator
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(more: &Value) -> MachinePod {
        let mut given = json!({
            "metadata": {
                "namespace": "shop", "name": "web-0", "uid": "u-1",
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "u-0",
                    "controller": true,
                }],
            },
            "spec": {"nodeName": "m-1", "containers": []},
            "status": {"phase": "Running"},
        });
        json_patch::merge(&mut given, more);
        let claim = |name: &str| ("shop".to_owned(), name.to_owned());
        let claims =
            [(claim("data-web-0"), "pv-1".to_owned()), (claim("web-0-tmp"), "pv-2".into())];
        let refusals = [("u-1".to_owned(), "a budget refuses it".to_owned())];
        machine_pod(&serde_json::from_value(given).unwrap(), &claims.into(), &refusals.into())
    }

    #[test]
    fn a_pod_is_read_with_its_volumes_and_what_was_answered() {
        let found = read(&json!({"spec": {"volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}},
            {"name": "other", "persistentVolumeClaim": {"claimName": "unbound"}},
            {"name": "tmp", "ephemeral": {}},
        ]}}));
        assert_eq!(found.volumes, ["pv-1", "pv-2"]);
        assert_eq!(found.machine.as_deref(), Some("m-1"));
        assert!(found.has_owner && !found.ends && !found.has_local_data);
        assert_eq!(found.refusal.as_deref(), Some("a budget refuses it"));
        let local = read(&json!({
            "metadata": {"ownerReferences": null, "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": null, "volumes": [{"name": "cache", "emptyDir": {}}]},
        }));
        assert!(!local.has_owner && local.ends && local.has_local_data);
        assert_eq!(local.machine, None);
    }

    #[test]
    fn a_drain_leaves_what_would_not_go_or_is_over() {
        let labelled = |labels: Value| json!({"metadata": {"labels": labels}});
        let daemon = json!([{
            "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "log", "uid": "u-9",
            "controller": true,
        }]);
        let ours = |component: &str| {
            labelled(json!({
                "app.kubernetes.io/part-of": "navigator", "app.kubernetes.io/component": component,
            }))
        };
        for (more, role) in [
            (json!({}), PodRole::Ordinary),
            (json!({"status": {"phase": "Succeeded"}}), PodRole::Left),
            (json!({"metadata": {"ownerReferences": daemon}}), PodRole::Left),
            (json!({"metadata": {"annotations": {MIRROR: "x"}}}), PodRole::Left),
            (labelled(json!({label::HAS_PILOT: ""})), PodRole::Database),
            (labelled(json!({"app.kubernetes.io/part-of": "shop"})), PodRole::Ordinary),
            (ours("apiserver"), PodRole::Navigator),
            (ours("coordinator"), PodRole::Coordinator),
        ] {
            assert_eq!(read(&more).role, role, "{more}");
        }
    }
}
