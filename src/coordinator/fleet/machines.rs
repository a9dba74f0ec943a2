//! Machines: Nodes, and the parts of the control plane that run on them as pods of the kubelet.

use k8s_openapi::api::core::v1::{Node, Pod};

use crate::{
    api::containership::name,
    engine::machines::{KubeVersion, MachineFacts},
};

const CONTROL_PLANE: [&str; 2] =
    ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// Label of the kubelet's own pods that names a part of the control plane.
const COMPONENT: &str = "component";
const API_SERVER: &str = "kube-apiserver";
const ETCD: &str = "etcd";
/// Parts that are of one version with the API server beside them.
const VERSIONED: [&str; 3] = [API_SERVER, "kube-controller-manager", "kube-scheduler"];

/// Is the pod a part of a control plane, run by the kubelet?
pub(super) fn is_control_plane(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    let tier = labels.and_then(|labels| labels.get("tier"));
    pod.metadata.namespace.as_deref() == Some("kube-system")
        && tier.is_some_and(|tier| tier == "control-plane")
}

/// Returns what is known of a machine. `control_planes` are the pods of [`is_control_plane`].
pub(super) fn machine_facts(node: &Node, control_planes: &[Pod]) -> MachineFacts {
    let meta = &node.metadata;
    let (name, labels) =
        (meta.name.clone().unwrap_or_default(), meta.labels.clone().unwrap_or_default());
    let annotation =
        |key: &str| meta.annotations.as_ref().and_then(|annotations| annotations.get(key)).cloned();
    let status = node.status.as_ref();
    let info = status.and_then(|status| status.node_info.as_ref());
    let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_on_machine = |pod: &&Pod| {
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(name.as_str())
    };
    let parts: Vec<&Pod> = control_planes.iter().filter(is_on_machine).collect();
    let part = |component: &str| parts.iter().copied().find(|pod| is_part(pod, component));
    let api_server = part(API_SERVER).and_then(image_version);
    MachineFacts {
        version: meta.resource_version.clone().unwrap_or_default(),
        control_plane: CONTROL_PLANE.iter().any(|role| labels.contains_key(*role)),
        ready: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        cordoned: node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true),
        cordoned_by: annotation(name::CORDONED_BY),
        tainted_by: annotation(name::TAINTED_BY),
        kubelet: info.map(|info| info.kubelet_version.clone()).unwrap_or_default(),
        boot_id: info.map(|info| info.boot_id.clone()).unwrap_or_default(),
        control_plane_healthy: is_healthy(&parts, api_server.as_ref()),
        api_server,
        etcd_ready: part(ETCD).map(is_ready),
        upgrade: annotation(name::UPGRADE).and_then(|text| serde_json::from_str(&text).ok()),
        labels,
        name,
    }
}

/// Do all parts answer, and is none of another version? Where no part runs as a pod, nothing speaks
/// against it.
fn is_healthy(parts: &[&Pod], api_server: Option<&KubeVersion>) -> bool {
    let is_versioned = |pod: &&&Pod| VERSIONED.iter().any(|component| is_part(pod, component));
    parts.is_empty()
        || (api_server.is_some()
            && parts.iter().all(|pod| is_ready(pod))
            && parts
                .iter()
                .filter(is_versioned)
                .all(|pod| image_version(pod).as_ref() == api_server))
}

fn is_part(pod: &Pod, component: &str) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(COMPONENT)).is_some_and(|value| value == component)
}

fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns the version that the image of a pod's first container is tagged with.
fn image_version(pod: &Pod) -> Option<KubeVersion> {
    let image = pod.spec.as_ref()?.containers.first()?.image.as_deref()?;
    let (_, tag) = image.split('@').next()?.rsplit_once(':')?;
    KubeVersion::parse(tag)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(more: &Value) -> Node {
        let mut node = json!({
            "metadata": {"name": "m-1", "resourceVersion": "7", "labels": {"pool": "a"}},
            "status": {
                "conditions": [
                    {"type": "MemoryPressure", "status": "False"},
                    {"type": "Ready", "status": "True"},
                ],
                "nodeInfo": {
                    "kubeletVersion": "v1.33.13", "bootID": "boot-1", "architecture": "",
                    "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
                },
            },
        });
        json_patch::merge(&mut node, more);
        serde_json::from_value(node).unwrap()
    }

    fn part(component: &str, image: &str, ready: bool) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": format!("{component}-m-1"), "namespace": "kube-system",
                "labels": {"component": component, "tier": "control-plane"},
            },
            "spec": {"nodeName": "m-1", "containers": [{"name": component, "image": image}]},
            "status": {"conditions": [
                {"type": "Ready", "status": if ready { "True" } else { "False" }},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn a_node_is_read_as_a_machine() {
        let facts = machine_facts(&node(&json!({})), &[]);
        assert_eq!(facts.name, "m-1");
        assert_eq!(facts.version, "7");
        assert!(facts.ready && !facts.cordoned && !facts.control_plane);
        assert_eq!((facts.kubelet.as_str(), facts.boot_id.as_str()), ("v1.33.13", "boot-1"));
        assert_eq!((facts.cordoned_by, facts.tainted_by), (None, None));
        let marked = node(&json!({
            "metadata": {
                "labels": {"node-role.kubernetes.io/control-plane": ""},
                "annotations": {
                    "containership.io/cordoned-by": "a", "containership.io/tainted-by": "b",
                },
            },
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]},
        }));
        let facts = machine_facts(&marked, &[]);
        assert!(!facts.ready && facts.cordoned && facts.control_plane);
        assert_eq!(
            (facts.cordoned_by.as_deref(), facts.tainted_by.as_deref()),
            (Some("a"), Some("b"))
        );
        assert!(facts.control_plane_healthy, "no part runs as a pod");
    }

    #[test]
    fn a_control_plane_is_healthy_when_all_parts_answer_in_one_version() {
        let old = "registry.k8s.io/kube-scheduler:v1.33.13";
        let new = "registry.example:5000/kube-apiserver:v1.34.4@sha256:00";
        let etcd = "registry.k8s.io/etcd:3.6.4-0";
        for (parts, version, etcd_ready, healthy) in [
            (vec![part("kube-apiserver", new, true)], Some("v1.34.4"), None, true),
            (
                vec![part("kube-apiserver", new, true), part("etcd", etcd, true)],
                Some("v1.34.4"),
                Some(true),
                true,
            ),
            (
                vec![part("kube-apiserver", new, true), part("etcd", etcd, false)],
                Some("v1.34.4"),
                Some(false),
                false,
            ),
            (
                vec![part("kube-apiserver", new, true), part("kube-scheduler", old, true)],
                Some("v1.34.4"),
                None,
                false,
            ),
            (vec![part("kube-apiserver", new, false)], Some("v1.34.4"), None, false),
            (vec![part("kube-scheduler", old, true)], None, None, false),
        ] {
            assert!(parts.iter().all(is_control_plane));
            let facts = machine_facts(&node(&json!({})), &parts);
            let told = facts.api_server.map(|version| version.to_string());
            assert_eq!(told.as_deref(), version);
            assert_eq!((facts.etcd_ready, facts.control_plane_healthy), (etcd_ready, healthy));
        }
    }
}
