//! Garbage collection, as in Kubernetes: of objects whose owners are gone, of dependents that their
//! owners wait for, and of the objects in a namespace that is being deleted.
//!
//! A cache alone is no reason to delete an object: the server is asked for the owner first.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::Namespace,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, Client, Discovery, Resource, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
    },
    discovery::{Scope, verbs},
    runtime::reflector::Store,
};
use serde_json::json;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use super::{MANAGER, ignore_stale_write, watch};
use crate::{
    error::chain,
    runtime::{Runtime, Shutdown},
};

/// How long changes are gathered before they are processed together.
const TOGETHER: Duration = Duration::from_millis(300);
const RETRY: Duration = Duration::from_secs(2);
/// Finalizers of owners that wait for their dependents, and of owners that orphan them.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
/// The finalizer that keeps a namespace until it is empty.
const NAMESPACE_FINALIZER: &str = "kubernetes";

pub(crate) struct GarbageCollector {
    client: Client,
    kinds: Vec<WatchedKind>,
    bell: watch::ChangeNotifier,
}

/// A kind that is collected, and a cache of its objects.
struct WatchedKind {
    resource: ApiResource,
    namespaced: bool,
    store: Store<DynamicObject>,
}

impl GarbageCollector {
    /// Starts to watch every kind that can be deleted.
    pub(crate) async fn start(client: Client, rt: &Runtime) -> Result<Self, kube::Error> {
        let bell = watch::ChangeNotifier::default();
        let discovery = Discovery::new(client.clone()).run().await?;
        let mut kinds = Vec::new();
        for group in discovery.groups() {
            for (resource, capabilities) in group.recommended_resources() {
                let required_verbs = [verbs::LIST, verbs::WATCH, verbs::DELETE];
                // Two groups serve the same Events, so one of them is enough.
                let is_duplicate = resource.kind == "Event" && resource.group.is_empty();
                if is_duplicate
                    || !required_verbs.iter().all(|verb| capabilities.supports_operation(verb))
                {
                    continue;
                }
                let api = Api::all_with(client.clone(), &resource);
                let store =
                    watch::watch_objects(rt, "watch-owned", api, resource.clone(), &[&bell]);
                let namespaced = capabilities.scope == Scope::Namespaced;
                kinds.push(WatchedKind { resource, namespaced, store });
            }
        }
        Ok(Self { client, kinds, bell })
    }

    pub(crate) async fn run(self, shutdown: Shutdown) {
        for kind in &self.kinds {
            // An error means that the watch ended, which ends the process.
            drop(kind.store.wait_until_ready().await);
        }
        loop {
            tokio::select! {
                () = self.bell.wait_for_change() => {}
                () = shutdown.triggered() => return,
            }
            sleep(TOGETHER).await;
            if let Err(error) = self.reconcile().await {
                warn!(error = %chain(&error), "What is left over is looked at again");
                sleep(RETRY).await;
                self.bell.notify();
            }
        }
    }

    async fn reconcile(&self) -> Result<(), kube::Error> {
        let objects: Vec<(&WatchedKind, Arc<DynamicObject>)> = self
            .kinds
            .iter()
            .flat_map(|kind| kind.store.state().into_iter().map(move |object| (kind, object)))
            .collect();
        let existing_uids: HashSet<String> =
            objects.iter().filter_map(|(_, object)| object.uid()).collect();
        let mut dependents_by_owner: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, (_, object)) in objects.iter().enumerate() {
            for owner in object.owner_references() {
                dependents_by_owner.entry(&owner.uid).or_default().push(index);
            }
        }
        let waiting_uids: HashSet<&str> = objects
            .iter()
            .filter(|(_, object)| is_foreground_deletion(object))
            .filter_map(|(_, object)| object.meta().uid.as_deref())
            .collect();
        let mut absent_owners: HashMap<String, bool> = HashMap::new();
        for (kind, object) in &objects {
            self.collect_object(kind, object, &existing_uids, &mut absent_owners).await?;
            let uid = object.uid().unwrap_or_default();
            let dependents = dependents_by_owner.get(uid.as_str()).into_iter().flatten();
            let dependents: Vec<_> = dependents.map(|index| &objects[*index]).collect();
            self.finalize_owner(kind, object, &dependents, &waiting_uids).await?;
        }
        self.end_namespaces(&objects).await
    }

    /// Deletes an object all of whose owners are gone.
    async fn collect_object(
        &self,
        kind: &WatchedKind,
        object: &DynamicObject,
        existing_uids: &HashSet<String>,
        absent_owners: &mut HashMap<String, bool>,
    ) -> Result<(), kube::Error> {
        let owners = object.owner_references();
        if owners.is_empty() || object.meta().deletion_timestamp.is_some() {
            return Ok(());
        }
        let mut remaining_owners = Vec::new();
        for owner in owners {
            let is_absent = match absent_owners.get(&owner.uid) {
                Some(is_known_absent) => *is_known_absent,
                None if existing_uids.contains(&owner.uid) => false,
                None => {
                    let is_gone = self.is_gone(owner, object.meta()).await?;
                    absent_owners.insert(owner.uid.clone(), is_gone);
                    is_gone
                }
            };
            if !is_absent {
                remaining_owners.push(owner.clone());
            }
        }
        if remaining_owners.len() == owners.len() {
            return Ok(());
        }
        if remaining_owners.is_empty() {
            let name = object.name_any();
            info!(kind = kind.resource.kind, namespace = object.namespace(), name, "Collected");
            return self.delete_object(kind, object.meta(), DeleteParams::background()).await;
        }
        self.patch_metadata(kind, object.meta(), &json!({"ownerReferences": remaining_owners}))
            .await
    }

    /// Is `owner` gone, or replaced by another object of its name?
    async fn is_gone(
        &self,
        owner: &OwnerReference,
        dependent: &ObjectMeta,
    ) -> Result<bool, kube::Error> {
        let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let is_owner_kind =
            |kind: &&WatchedKind| kind.resource.group == group && kind.resource.kind == owner.kind;
        // The owner's kind is not served here, so whether the owner exists is unknown: it counts as
        // existing.
        let Some(kind) = self.kinds.iter().find(is_owner_kind) else { return Ok(false) };
        let owner_object =
            self.api(kind, dependent.namespace.as_deref()).get_opt(&owner.name).await?;
        Ok(owner_object.is_none_or(|object| object.uid().as_ref() != Some(&owner.uid)))
    }

    /// Deletes or releases the dependents of an owner that is being deleted, then removes its
    /// finalizer.
    async fn finalize_owner(
        &self,
        kind: &WatchedKind,
        object: &DynamicObject,
        dependents: &[&(&WatchedKind, Arc<DynamicObject>)],
        waiting_uids: &HashSet<&str>,
    ) -> Result<(), kube::Error> {
        let meta = object.meta();
        let finalizers = object.finalizers();
        let is_orphaning = is_ending_by(object, ORPHAN);
        if !is_orphaning && !is_foreground_deletion(object) {
            return Ok(());
        }
        for (kind, dependent) in dependents {
            let is_owner = |owner: &&OwnerReference| Some(&owner.uid) == meta.uid.as_ref();
            let other_owners = dependent.owner_references().iter().filter(|owner| !is_owner(owner));
            let other_owners: Vec<_> = other_owners.cloned().collect();
            let remaining_owners = (!other_owners.is_empty()).then_some(&other_owners);
            if is_orphaning
                || self.has_remaining_owner(&other_owners, dependent.meta(), waiting_uids).await?
            {
                self.patch_metadata(
                    kind,
                    dependent.meta(),
                    &json!({"ownerReferences": remaining_owners}),
                )
                .await?;
            } else if dependent.meta().deletion_timestamp.is_none() {
                self.delete_object(kind, dependent.meta(), DeleteParams::foreground()).await?;
            }
        }
        let is_blocking = |dependent: &DynamicObject| {
            let owners = dependent.owner_references();
            let mut owners = owners.iter().filter(|owner| Some(&owner.uid) == meta.uid.as_ref());
            owners.any(|owner| owner.block_owner_deletion == Some(true))
        };
        if !is_orphaning && dependents.iter().any(|(_, dependent)| is_blocking(dependent)) {
            return Ok(());
        }
        let finished_finalizer = if is_orphaning { ORPHAN } else { FOREGROUND };
        let remaining_finalizers: Vec<_> =
            finalizers.iter().filter(|finalizer| *finalizer != finished_finalizer).collect();
        self.patch_metadata(kind, meta, &json!({"finalizers": remaining_finalizers})).await
    }

    /// Does one of `owners` stay, so that the dependent stays, too?
    async fn has_remaining_owner(
        &self,
        owners: &[OwnerReference],
        dependent: &ObjectMeta,
        waiting_uids: &HashSet<&str>,
    ) -> Result<bool, kube::Error> {
        for owner in owners {
            if !waiting_uids.contains(owner.uid.as_str()) && !self.is_gone(owner, dependent).await?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Deletes the objects in namespaces that are being deleted: pods and StatefulSets first, then
    /// the rest.
    async fn end_namespaces(
        &self,
        objects: &[(&WatchedKind, Arc<DynamicObject>)],
    ) -> Result<(), kube::Error> {
        for (kind, namespace) in objects {
            let is_terminating = kind.resource.kind == "Namespace"
                && kind.resource.group.is_empty()
                && namespace.meta().deletion_timestamp.is_some();
            if !is_terminating {
                continue;
            }
            let name = namespace.name_any();
            let namespaced_objects: Vec<_> = objects
                .iter()
                .filter(|(kind, object)| {
                    kind.namespaced && object.namespace().as_ref() == Some(&name)
                })
                .collect();
            let pods: Vec<_> = namespaced_objects
                .iter()
                .filter(|(kind, _)| kind.resource.kind == "Pod")
                .copied()
                .collect();
            // StatefulSets are deleted with the pods, because they would make new ones.
            let next_deletions = if pods.is_empty() {
                namespaced_objects.clone()
            } else {
                let is_pod_source = |kind: &WatchedKind| {
                    ["Pod", "StatefulSet"].contains(&kind.resource.kind.as_str())
                };
                namespaced_objects.iter().filter(|(kind, _)| is_pod_source(kind)).copied().collect()
            };
            for (kind, object) in next_deletions {
                if object.meta().deletion_timestamp.is_none() {
                    self.delete_object(kind, object.meta(), DeleteParams::background()).await?;
                }
            }
            if namespaced_objects.is_empty() {
                self.release_namespace(&name).await?;
            }
        }
        Ok(())
    }

    async fn release_namespace(&self, name: &str) -> Result<(), kube::Error> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let Some(mut namespace) = api.get_opt(name).await? else { return Ok(()) };
        let Some(spec) = &mut namespace.spec else { return Ok(()) };
        let finalizers = spec.finalizers.get_or_insert_default();
        if finalizers.iter().all(|finalizer| finalizer != NAMESPACE_FINALIZER) {
            return Ok(());
        }
        finalizers.retain(|finalizer| finalizer != NAMESPACE_FINALIZER);
        info!(name, "A namespace is empty and goes");
        let result =
            api.replace_subresource("finalize", name, &PostParams::default(), &namespace).await;
        ignore_stale_write(result.map(drop))
    }

    fn api(&self, kind: &WatchedKind, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace.filter(|_| kind.namespaced) {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind.resource),
            None => Api::all_with(self.client.clone(), &kind.resource),
        }
    }

    async fn delete_object(
        &self,
        kind: &WatchedKind,
        meta: &ObjectMeta,
        params: DeleteParams,
    ) -> Result<(), kube::Error> {
        let name = meta.name.as_deref().unwrap_or_default();
        let preconditions = Preconditions { uid: meta.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..params };
        let api = self.api(kind, meta.namespace.as_deref());
        ignore_stale_write(api.delete(name, &params).await.map(drop))
    }

    /// Patches metadata at the version that was read; after a conflict the watch brings the newer
    /// object.
    async fn patch_metadata(
        &self,
        kind: &WatchedKind,
        meta: &ObjectMeta,
        change: &serde_json::Value,
    ) -> Result<(), kube::Error> {
        let mut metadata = change.clone();
        metadata["uid"] = json!(meta.uid);
        metadata["resourceVersion"] = json!(meta.resource_version);
        let name = meta.name.as_deref().unwrap_or_default();
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({"metadata": metadata}));
        let api = self.api(kind, meta.namespace.as_deref());
        match api.patch_metadata(name, &params, &patch).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                debug!(kind = kind.resource.kind, name, "Changed meanwhile");
                Ok(())
            }
            other => ignore_stale_write(other.map(drop)),
        }
    }
}

/// Is this object deleted as soon as its dependents are gone?
fn is_foreground_deletion(object: &DynamicObject) -> bool {
    is_ending_by(object, FOREGROUND)
}

fn is_ending_by(object: &DynamicObject, finalizer: &str) -> bool {
    object.meta().deletion_timestamp.is_some()
        && object.finalizers().iter().any(|name| name == finalizer)
}
