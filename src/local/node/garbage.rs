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

use super::{MANAGER, gone, watch};
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
            for (resource, can) in group.recommended_resources() {
                let all = [verbs::LIST, verbs::WATCH, verbs::DELETE];
                // Two groups serve the same Events, so one of them is enough.
                let twice = resource.kind == "Event" && resource.group.is_empty();
                if twice || !all.iter().all(|verb| can.supports_operation(verb)) {
                    continue;
                }
                let api = Api::all_with(client.clone(), &resource);
                let store = watch::watch(rt, "watch-owned", api, resource.clone(), &[&bell]);
                let namespaced = can.scope == Scope::Namespaced;
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
                () = self.bell.rung() => {}
                () = shutdown.triggered() => return,
            }
            sleep(TOGETHER).await;
            if let Err(error) = self.look().await {
                warn!(error = %chain(&error), "What is left over is looked at again");
                sleep(RETRY).await;
                self.bell.ring();
            }
        }
    }

    async fn look(&self) -> Result<(), kube::Error> {
        let all: Vec<(&WatchedKind, Arc<DynamicObject>)> = self
            .kinds
            .iter()
            .flat_map(|kind| kind.store.state().into_iter().map(move |object| (kind, object)))
            .collect();
        let known: HashSet<String> = all.iter().filter_map(|(_, object)| object.uid()).collect();
        let mut owned: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, (_, object)) in all.iter().enumerate() {
            for owner in object.owner_references() {
                owned.entry(&owner.uid).or_default().push(index);
            }
        }
        let waiting: HashSet<&str> = all
            .iter()
            .filter(|(_, object)| waits(object))
            .filter_map(|(_, object)| object.meta().uid.as_deref())
            .collect();
        let mut absent: HashMap<String, bool> = HashMap::new();
        for (kind, object) in &all {
            self.collect(kind, object, &known, &mut absent).await?;
            let uid = object.uid().unwrap_or_default();
            let dependents = owned.get(uid.as_str()).into_iter().flatten();
            let dependents: Vec<_> = dependents.map(|index| &all[*index]).collect();
            self.finalize(kind, object, &dependents, &waiting).await?;
        }
        self.end_namespaces(&all).await
    }

    /// Deletes an object all of whose owners are gone.
    async fn collect(
        &self,
        kind: &WatchedKind,
        object: &DynamicObject,
        known: &HashSet<String>,
        absent: &mut HashMap<String, bool>,
    ) -> Result<(), kube::Error> {
        let owners = object.owner_references();
        if owners.is_empty() || object.meta().deletion_timestamp.is_some() {
            return Ok(());
        }
        let mut left = Vec::new();
        for owner in owners {
            let is_absent = match absent.get(&owner.uid) {
                Some(known) => *known,
                None if known.contains(&owner.uid) => false,
                None => {
                    let found = self.is_gone(owner, object.meta()).await?;
                    absent.insert(owner.uid.clone(), found);
                    found
                }
            };
            if !is_absent {
                left.push(owner.clone());
            }
        }
        if left.len() == owners.len() {
            return Ok(());
        }
        if left.is_empty() {
            let name = object.name_any();
            info!(kind = kind.resource.kind, namespace = object.namespace(), name, "Collected");
            return self.delete(kind, object.meta(), DeleteParams::background()).await;
        }
        self.patch(kind, object.meta(), &json!({"ownerReferences": left})).await
    }

    /// Is `owner` gone, or replaced by another object of its name?
    async fn is_gone(
        &self,
        owner: &OwnerReference,
        dependent: &ObjectMeta,
    ) -> Result<bool, kube::Error> {
        let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let is =
            |kind: &&WatchedKind| kind.resource.group == group && kind.resource.kind == owner.kind;
        // The owner's kind is not served here, so whether the owner exists is unknown: it counts as
        // existing.
        let Some(kind) = self.kinds.iter().find(is) else { return Ok(false) };
        let found = self.api(kind, dependent.namespace.as_deref()).get_opt(&owner.name).await?;
        Ok(found.is_none_or(|found| found.uid().as_ref() != Some(&owner.uid)))
    }

    /// Deletes or releases the dependents of an owner that is being deleted, then removes its
    /// finalizer.
    async fn finalize(
        &self,
        kind: &WatchedKind,
        object: &DynamicObject,
        dependents: &[&(&WatchedKind, Arc<DynamicObject>)],
        waiting: &HashSet<&str>,
    ) -> Result<(), kube::Error> {
        let meta = object.meta();
        let finalizers = object.finalizers();
        let orphans = is_ending_by(object, ORPHAN);
        if !orphans && !waits(object) {
            return Ok(());
        }
        for (kind, dependent) in dependents {
            let is = |owner: &&OwnerReference| Some(&owner.uid) == meta.uid.as_ref();
            let others = dependent.owner_references().iter().filter(|owner| !is(owner));
            let others: Vec<_> = others.cloned().collect();
            let left = (!others.is_empty()).then_some(&others);
            if orphans || self.is_held(&others, dependent.meta(), waiting).await? {
                self.patch(kind, dependent.meta(), &json!({"ownerReferences": left})).await?;
            } else if dependent.meta().deletion_timestamp.is_none() {
                self.delete(kind, dependent.meta(), DeleteParams::foreground()).await?;
            }
        }
        let blocks = |dependent: &DynamicObject| {
            let owners = dependent.owner_references();
            let mut owners = owners.iter().filter(|owner| Some(&owner.uid) == meta.uid.as_ref());
            owners.any(|owner| owner.block_owner_deletion == Some(true))
        };
        if !orphans && dependents.iter().any(|(_, dependent)| blocks(dependent)) {
            return Ok(());
        }
        let done = if orphans { ORPHAN } else { FOREGROUND };
        let left: Vec<_> = finalizers.iter().filter(|finalizer| *finalizer != done).collect();
        self.patch(kind, meta, &json!({"finalizers": left})).await
    }

    /// Does one of `owners` stay, so that the dependent stays, too?
    async fn is_held(
        &self,
        owners: &[OwnerReference],
        dependent: &ObjectMeta,
        waiting: &HashSet<&str>,
    ) -> Result<bool, kube::Error> {
        for owner in owners {
            if !waiting.contains(owner.uid.as_str()) && !self.is_gone(owner, dependent).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Deletes the objects in namespaces that are being deleted: pods and StatefulSets first, then
    /// the rest.
    async fn end_namespaces(
        &self,
        all: &[(&WatchedKind, Arc<DynamicObject>)],
    ) -> Result<(), kube::Error> {
        for (kind, namespace) in all {
            let ends = kind.resource.kind == "Namespace"
                && kind.resource.group.is_empty()
                && namespace.meta().deletion_timestamp.is_some();
            if !ends {
                continue;
            }
            let name = namespace.name_any();
            let inside: Vec<_> = all
                .iter()
                .filter(|(kind, object)| {
                    kind.namespaced && object.namespace().as_ref() == Some(&name)
                })
                .collect();
            let pods: Vec<_> =
                inside.iter().filter(|(kind, _)| kind.resource.kind == "Pod").copied().collect();
            // StatefulSets are deleted with the pods, because they would make new ones.
            let now = if pods.is_empty() {
                inside.clone()
            } else {
                let makes = |kind: &WatchedKind| {
                    ["Pod", "StatefulSet"].contains(&kind.resource.kind.as_str())
                };
                inside.iter().filter(|(kind, _)| makes(kind)).copied().collect()
            };
            for (kind, object) in now {
                if object.meta().deletion_timestamp.is_none() {
                    self.delete(kind, object.meta(), DeleteParams::background()).await?;
                }
            }
            if inside.is_empty() {
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
        let written =
            api.replace_subresource("finalize", name, &PostParams::default(), &namespace).await;
        gone(written.map(drop))
    }

    fn api(&self, kind: &WatchedKind, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace.filter(|_| kind.namespaced) {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind.resource),
            None => Api::all_with(self.client.clone(), &kind.resource),
        }
    }

    async fn delete(
        &self,
        kind: &WatchedKind,
        meta: &ObjectMeta,
        params: DeleteParams,
    ) -> Result<(), kube::Error> {
        let name = meta.name.as_deref().unwrap_or_default();
        let preconditions = Preconditions { uid: meta.uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..params };
        let api = self.api(kind, meta.namespace.as_deref());
        gone(api.delete(name, &params).await.map(drop))
    }

    /// Patches metadata at the version that was read; after a conflict the watch brings the newer
    /// object.
    async fn patch(
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
            other => gone(other.map(drop)),
        }
    }
}

/// Is this object deleted as soon as its dependents are gone?
fn waits(object: &DynamicObject) -> bool {
    is_ending_by(object, FOREGROUND)
}

fn is_ending_by(object: &DynamicObject, finalizer: &str) -> bool {
    object.meta().deletion_timestamp.is_some()
        && object.finalizers().iter().any(|known| known == finalizer)
}
