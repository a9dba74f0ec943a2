//! Removes from objects, as they arrive, what the controller does not read. Ten thousand pods are
//! mostly expanded templates, and notes of other clients.
//!
//! What the controller compares with the desired object is never removed: of StatefulSets, only
//! notes about them are. A field that the controller begins to read must be kept here first. The
//! tests of the controller check every object that they use against this.

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerStatus, EphemeralContainer, PersistentVolumeClaim, Pod, PodSpec, Volume,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::metadata::is_kept;
use crate::api::v1beta1::Pilot;

/// The whole object as `kubectl apply` was given it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Strips what is noted down about an object of any kind.
pub(super) fn strip_notes(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
    if let Some(annotations) = &mut meta.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

/// Strips labels and annotations that the controller does not read.
fn strip_foreign(meta: &mut ObjectMeta) {
    for entries in [&mut meta.labels, &mut meta.annotations].into_iter().flatten() {
        entries.retain(|key, value| is_kept(key, value));
    }
}

pub(super) fn strip_pilot(pilot: &mut Pilot) {
    strip_foreign(&mut pilot.metadata);
}

/// Strips a claim of what people wrote to it.
pub(super) fn strip_claim(claim: &mut PersistentVolumeClaim) {
    strip_foreign(&mut claim.metadata);
}

/// Strips a pod: of its containers the names, images and resources stay, of its volumes what tells
/// where their data live, and of its status what the kubelet says.
pub(super) fn strip_pod(pod: &mut Pod) {
    strip_foreign(&mut pod.metadata);
    if let Some(spec) = &mut pod.spec {
        strip_spec(spec);
    }
    if let Some(status) = &mut pod.status {
        for statuses in [
            &mut status.container_statuses,
            &mut status.init_container_statuses,
            &mut status.ephemeral_container_statuses,
        ] {
            statuses.iter_mut().flatten().for_each(strip_container_status);
        }
    }
}

fn strip_spec(spec: &mut PodSpec) {
    spec.containers.iter_mut().for_each(strip_container);
    spec.init_containers.iter_mut().flatten().for_each(strip_container);
    spec.ephemeral_containers.iter_mut().flatten().for_each(strip_ephemeral);
    spec.volumes.iter_mut().flatten().for_each(strip_volume);
    let PodSpec { containers, init_containers, ephemeral_containers, volumes, .. } = spec;
    *spec = PodSpec {
        containers: std::mem::take(containers),
        init_containers: init_containers.take(),
        ephemeral_containers: ephemeral_containers.take(),
        volumes: volumes.take(),
        node_name: spec.node_name.take(),
        node_selector: spec.node_selector.take(),
        affinity: spec.affinity.take(),
        tolerations: spec.tolerations.take(),
        priority: spec.priority,
        priority_class_name: spec.priority_class_name.take(),
        service_account_name: spec.service_account_name.take(),
        scheduling_gates: spec.scheduling_gates.take(),
        termination_grace_period_seconds: spec.termination_grace_period_seconds,
        ..PodSpec::default()
    };
}

fn strip_container(container: &mut Container) {
    *container = Container {
        name: std::mem::take(&mut container.name),
        image: container.image.take(),
        resources: container.resources.take(),
        ..Container::default()
    };
}

fn strip_ephemeral(container: &mut EphemeralContainer) {
    *container = EphemeralContainer {
        name: std::mem::take(&mut container.name),
        image: container.image.take(),
        ..EphemeralContainer::default()
    };
}

/// Keeps of a volume what its data depend on. Volumes of files (`configMap`, `secret`, `projected`)
/// hold no data.
fn strip_volume(volume: &mut Volume) {
    volume.config_map = None;
    volume.secret = None;
    volume.projected = None;
    volume.downward_api = None;
}

fn strip_container_status(status: &mut ContainerStatus) {
    status.allocated_resources = None;
    status.container_id = None;
    status.image_id.clear();
    status.resources = None;
    status.volume_mounts = None;
    status.user = None;
}
