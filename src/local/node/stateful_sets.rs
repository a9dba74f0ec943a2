//! Makes the pods and claims of StatefulSets, as Kubernetes does for a StatefulSet whose pods start
//! in parallel. Deleted pods are replaced, and outdated ones are replaced one by one where the
//! update strategy asks for it.
//!
//! Owns which pods should exist. Every pod is made from the StatefulSet as the server has it at
//! that moment, never from a cache: a pod that was deleted to be replaced must not come back as it
//! was.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        apps::v1::{StatefulSet, StatefulSetStatus},
        core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::reflector::Store,
};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::time::sleep;
use tracing::{info, warn};

use super::{MANAGER, ignore_stale_write, watch::ChangeNotifier};
use crate::{error::chain, runtime::Shutdown};

/// Pause before a failed StatefulSet is processed again.
const RETRY: Duration = Duration::from_secs(1);

/// Finalizer that keeps a claim in use until its pod is gone.
pub(crate) const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";

/// Why a StatefulSet could not be processed and is tried again.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("a request failed")]
    Request(#[from] kube::Error),
    #[error("claim {0} is being deleted, and its pod waits for a new one")]
    ClaimGoes(String),
}

pub(crate) struct StatefulSetController {
    pub(crate) client: Client,
    pub(crate) store: Store<StatefulSet>,
    pub(crate) pods: Store<Pod>,
    pub(crate) bell: ChangeNotifier,
    /// Name of the Node that every pod is assigned to.
    pub(crate) machine: String,
    /// Once triggered, no new pods are made.
    pub(crate) stopping: Shutdown,
}

impl StatefulSetController {
    pub(crate) async fn run(self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = self.bell.wait_for_change() => {}
                () = shutdown.triggered() => return,
            }
            for set in self.store.state() {
                if let Err(error) = self.reconcile(&set).await {
                    let name = set.metadata.name.as_deref().unwrap_or_default();
                    warn!(name, error = %chain(&error), "StatefulSet is looked at again");
                    sleep(RETRY).await;
                    self.bell.notify();
                }
            }
        }
    }

    async fn reconcile(&self, set: &StatefulSet) -> Result<(), Error> {
        let all_pods = self.pods.state();
        let is_owned =
            |pod: &&Arc<Pod>| controller_uid(&pod.metadata) == set.metadata.uid.as_deref();
        let pods: Vec<_> = all_pods.iter().filter(is_owned).collect();
        if set.metadata.deletion_timestamp.is_none() {
            for pod in all_pods.iter().filter(|pod| is_orphan(set, &pod.metadata)) {
                self.adopt_pod(set, &pod.metadata).await?;
            }
            let desired_replicas = spec_replicas(set);
            for pod in &pods {
                if pod_ordinal(set, &pod.metadata).is_none_or(|ordinal| ordinal >= desired_replicas)
                {
                    self.delete_pod(&pod.metadata).await?;
                }
            }
            let existing_ordinals: Vec<_> =
                pods.iter().filter_map(|pod| pod_ordinal(set, &pod.metadata)).collect();
            let desired_replicas = if self.stopping.is_triggered() { 0 } else { desired_replicas };
            for missing_ordinal in
                (0..desired_replicas).filter(|ordinal| !existing_ordinals.contains(ordinal))
            {
                self.create_pod(&set.metadata, missing_ordinal).await?;
            }
            if next_to_replace(set, &pods).is_some()
                && let Some(current_set) = self.read_current(&set.metadata).await?
                && let Some(outdated_pod) = next_to_replace(&current_set, &pods)
            {
                self.delete_pod(&outdated_pod.metadata).await?;
            }
        }
        let pods: Vec<&Pod> = pods.into_iter().map(AsRef::as_ref).collect();
        Ok(self.report_status(set, &pods).await?)
    }

    /// Reads the StatefulSet from the server; `None` when it is gone or being deleted.
    async fn read_current(
        &self,
        set_meta: &ObjectMeta,
    ) -> Result<Option<StatefulSet>, kube::Error> {
        let (namespace, name) = object_key(set_meta);
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), namespace);
        let is_alive = |set: &StatefulSet| {
            set.metadata.deletion_timestamp.is_none() && set.metadata.uid == set_meta.uid
        };
        Ok(api.get_opt(name).await?.filter(is_alive))
    }

    async fn create_pod(&self, set_meta: &ObjectMeta, ordinal: i32) -> Result<(), Error> {
        let namespace = object_key(set_meta).0;
        let Some(set) = self.read_current(set_meta).await? else { return Ok(()) };
        if ordinal >= spec_replicas(&set) {
            return Ok(());
        }
        for claim in build_claims(&set, ordinal) {
            let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
            let name = claim.metadata.name.clone().unwrap_or_default();
            if !check_created(api.create(&PostParams::default(), &claim).await)?
                && let Some(existing_claim) = api.get_opt(&name).await?
                && existing_claim.metadata.deletion_timestamp.is_some()
            {
                // A new pod would keep the claim until the pod ends, and then lose its data with
                // the claim.
                return Err(Error::ClaimGoes(name));
            }
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pod = build_pod(&set, ordinal, &self.machine);
        if check_created(api.create(&PostParams::default(), &pod).await)? {
            info!(namespace, name = pod.metadata.name, "Made a pod");
        }
        Ok(())
    }

    /// Makes the StatefulSet the pod's controller; the change of the pod makes the StatefulSet due
    /// again.
    async fn adopt_pod(&self, set: &StatefulSet, pod: &ObjectMeta) -> Result<(), kube::Error> {
        // A set that is being deleted may just have orphaned the pod.
        if self.read_current(&set.metadata).await?.is_none() {
            return Ok(());
        }
        let (namespace, name) = object_key(pod);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let mut owners = pod.owner_references.clone().unwrap_or_default();
        owners.push(owner_reference(set));
        let patch = json!({"metadata": {
            "uid": pod.uid, "resourceVersion": pod.resource_version, "ownerReferences": owners,
        }});
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        ignore_stale_write(
            api.patch_metadata(name, &params, &Patch::Merge(&patch)).await.map(drop),
        )?;
        info!(namespace, name, "Took over a pod");
        Ok(())
    }

    async fn delete_pod(&self, pod: &ObjectMeta) -> Result<(), kube::Error> {
        if pod.deletion_timestamp.is_some() {
            return Ok(());
        }
        let (namespace, name) = object_key(pod);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let preconditions = Preconditions { uid: pod.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        ignore_stale_write(api.delete(name, &params).await.map(drop))?;
        info!(namespace, name, "Took a pod away");
        Ok(())
    }

    async fn report_status(&self, set: &StatefulSet, pods: &[&Pod]) -> Result<(), kube::Error> {
        let status = build_status(set, pods);
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let (namespace, name) = object_key(&set.metadata);
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), namespace);
        let patch = json!({"metadata": {"uid": set.metadata.uid}, "status": status});
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        ignore_stale_write(api.patch_status(name, &params, &Patch::Merge(&patch)).await.map(drop))
    }
}

/// Returns whether the object was created now; an object that already exists is no error.
fn check_created<T>(result: Result<T, kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(false),
        Err(error) => Err(error),
    }
}

fn object_key(meta: &ObjectMeta) -> (&str, &str) {
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

fn controller_uid(meta: &ObjectMeta) -> Option<&str> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}

/// Was this pod orphaned by an earlier StatefulSet of this name, and has it no controller now?
fn is_orphan(set: &StatefulSet, pod: &ObjectMeta) -> bool {
    let selector = set.spec.as_ref().map(|spec| spec.selector.clone()).unwrap_or_default();
    let labels = pod.labels.clone().unwrap_or_default();
    let match_labels = selector.match_labels.unwrap_or_default();
    let is_selected = !match_labels.is_empty()
        && selector.match_expressions.is_none()
        && match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
    pod.namespace == set.metadata.namespace
        && pod.deletion_timestamp.is_none()
        && controller_uid(pod).is_none()
        && pod_ordinal(set, pod).is_some()
        && is_selected
}

/// Returns the pod that a rolling update replaces next: all pods of higher ordinals are of the new
/// revision and ready.
fn next_to_replace<'a>(set: &StatefulSet, pods: &[&'a Arc<Pod>]) -> Option<&'a Pod> {
    let strategy = set.spec.as_ref()?.update_strategy.as_ref()?;
    if strategy.type_.as_deref() != Some("RollingUpdate") {
        return None;
    }
    let partition = strategy.rolling_update.as_ref().and_then(|rolling| rolling.partition);
    let revision = template_revision(set);
    for ordinal in (partition.unwrap_or(0)..spec_replicas(set)).rev() {
        let mut candidates = pods.iter();
        let pod = candidates.find(|pod| self::pod_ordinal(set, &pod.metadata) == Some(ordinal))?;
        if !is_at_revision(&revision, pod) {
            return Some(pod);
        }
        if !is_ready(pod) {
            return None;
        }
    }
    None
}

/// Returns the owner reference that makes the StatefulSet a pod's controller.
fn owner_reference(set: &StatefulSet) -> OwnerReference {
    OwnerReference {
        api_version: "apps/v1".to_owned(),
        kind: "StatefulSet".to_owned(),
        name: set.metadata.name.clone().unwrap_or_default(),
        uid: set.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn spec_replicas(set: &StatefulSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn pod_ordinal(set: &StatefulSet, pod: &ObjectMeta) -> Option<i32> {
    let name = set.metadata.name.as_deref()?;
    pod.name.as_deref()?.strip_prefix(name)?.strip_prefix('-')?.parse().ok()
}

/// Returns the name of the revision of the StatefulSet's template.
fn template_revision(set: &StatefulSet) -> String {
    let template = set.spec.as_ref().map(|spec| json!(spec.template)).unwrap_or_default();
    let hash = Sha256::digest(template.to_string());
    let hash = hash.iter().take(5).fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    format!("{}-{hash}", set.metadata.name.as_deref().unwrap_or_default())
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn is_at_revision(revision: &str, pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get("controller-revision-hash"))
        .is_some_and(|hash| hash == revision)
}

fn build_status(set: &StatefulSet, pods: &[&Pod]) -> StatefulSetStatus {
    let count = |is_match: &dyn Fn(&Pod) -> bool| {
        i32::try_from(pods.iter().filter(|pod| is_match(pod)).count()).unwrap_or(i32::MAX)
    };
    let revision = template_revision(set);
    let updated_count = count(&|pod| is_at_revision(&revision, pod));
    let total = count(&|_| true);
    let previous_revision = set.status.as_ref().and_then(|status| status.current_revision.clone());
    // Pods are of the older revision until the last of them was replaced.
    let current_revision =
        previous_revision.filter(|_| updated_count < total).unwrap_or_else(|| revision.clone());
    StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: total,
        ready_replicas: Some(count(&is_ready)),
        available_replicas: Some(count(&is_ready)),
        current_replicas: Some(if current_revision == revision {
            updated_count
        } else {
            total - updated_count
        }),
        updated_replicas: Some(updated_count),
        current_revision: Some(current_revision),
        update_revision: Some(revision),
        collision_count: Some(0),
        conditions: None,
    }
}

/// Builds the claims of the pod with this ordinal.
fn build_claims(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let Some(spec) = &set.spec else { return Vec::new() };
    let (namespace, name) = object_key(&set.metadata);
    let selector = spec.selector.match_labels.clone().unwrap_or_default();
    let templates = spec.volume_claim_templates.iter().flatten();
    templates
        .map(|template| {
            let mut labels = template.metadata.labels.clone().unwrap_or_default();
            labels.extend(selector.clone());
            let volume = template.metadata.name.as_deref().unwrap_or_default();
            PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(format!("{volume}-{name}-{ordinal}")),
                    namespace: Some(namespace.to_owned()),
                    labels: Some(labels),
                    annotations: template.metadata.annotations.clone(),
                    finalizers: Some(vec![CLAIM_FINALIZER.to_owned()]),
                    ..ObjectMeta::default()
                },
                spec: template.spec.clone(),
                status: None,
            }
        })
        .collect()
}

/// Builds the pod with this ordinal.
fn build_pod(set: &StatefulSet, ordinal: i32, machine: &str) -> Pod {
    let (namespace, set_name) = object_key(&set.metadata);
    let name = format!("{set_name}-{ordinal}");
    let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
    let meta = template.metadata.unwrap_or_default();
    let mut labels = meta.labels.unwrap_or_default();
    labels.extend(BTreeMap::from([
        ("statefulset.kubernetes.io/pod-name".to_owned(), name.clone()),
        ("apps.kubernetes.io/pod-index".to_owned(), ordinal.to_string()),
        ("controller-revision-hash".to_owned(), template_revision(set)),
    ]));
    let mut spec = template.spec.unwrap_or_default();
    let mut volumes = spec.volumes.take().unwrap_or_default();
    for claim in build_claims(set, ordinal) {
        let claim = claim.metadata.name.unwrap_or_default();
        let volume = claim.strip_suffix(&format!("-{name}")).unwrap_or(&claim).to_owned();
        volumes.retain(|existing_volume| existing_volume.name != volume);
        let source = PersistentVolumeClaimVolumeSource { claim_name: claim, read_only: None };
        volumes.push(Volume {
            name: volume,
            persistent_volume_claim: Some(source),
            ..Volume::default()
        });
    }
    spec.volumes = Some(volumes);
    spec.hostname = Some(name.clone());
    spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone());
    // There is one machine, and no scheduler.
    spec.node_name = Some(machine.to_owned());
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels),
            annotations: meta.annotations,
            owner_references: Some(vec![owner_reference(set)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "demo", "namespace": "shop", "uid": "u1", "generation": 3},
            "spec": {
                "replicas": 2, "serviceName": "demo-pods",
                "selector": {"matchLabels": {"app": "demo"}},
                "template": {
                    "metadata": {"labels": {"app": "demo"}, "annotations": {"hash": "h"}},
                    "spec": {"containers": [], "volumes": [{"name": "shared", "emptyDir": {}}]},
                },
                "volumeClaimTemplates": [{
                    "metadata": {"name": "data", "labels": {"own": "yes"}},
                    "spec": {"resources": {"requests": {"storage": "1Gi"}}},
                }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_has_its_ordinal_its_claim_and_its_owner() {
        let pod = build_pod(&set(), 1, "host");
        let meta = &pod.metadata;
        assert_eq!(object_key(meta), ("shop", "demo-1"));
        assert_eq!((controller_uid(meta), pod_ordinal(&set(), meta)), (Some("u1"), Some(1)));
        assert_eq!(meta.annotations.as_ref().unwrap()["hash"], "h");
        assert_eq!(meta.labels.as_ref().unwrap()["statefulset.kubernetes.io/pod-name"], "demo-1");
        let spec = pod.spec.unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("host"));
        let volumes = spec.volumes.unwrap();
        assert_eq!(volumes.len(), 2);
        let claim = volumes[1].persistent_volume_claim.as_ref().unwrap();
        assert_eq!((volumes[1].name.as_str(), claim.claim_name.as_str()), ("data", "data-demo-1"));

        let claim = build_claims(&set(), 1).remove(0);
        assert_eq!(object_key(&claim.metadata), ("shop", "data-demo-1"));
        let labels = claim.metadata.labels.unwrap();
        assert_eq!((labels["app"].as_str(), labels["own"].as_str()), ("demo", "yes"));
    }

    #[test]
    fn the_status_counts_what_is_ready_and_of_the_newest_revision() {
        let mut set = set();
        let mut pods = [build_pod(&set, 0, "host"), build_pod(&set, 1, "host")];
        pods[0].status = serde_json::from_value(json!({
            "conditions": [{"type": "Ready", "status": "True"}],
        }))
        .unwrap();
        set.status = Some(build_status(&set, &pods.each_ref()));
        let first = set.status.clone().unwrap();
        assert_eq!((first.replicas, first.ready_replicas), (2, Some(1)));
        assert_eq!((first.updated_replicas, first.current_replicas), (Some(2), Some(2)));
        assert_eq!(first.current_revision, first.update_revision);

        let template = set.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
        template.priority = Some(7);
        let newer = build_pod(&set, 1, "host");
        let second = build_status(&set, &[&pods[0], &newer]);
        assert_eq!((second.updated_replicas, second.current_replicas), (Some(1), Some(1)));
        assert_eq!(second.current_revision, first.current_revision);
        assert_ne!(second.update_revision, first.update_revision);
    }
}
