//! Removes clusters from the owner references of objects in Kubernetes.
//!
//! Kubernetes' garbage collector deletes objects whose owner is absent, and asks our API whether
//! the owner is there. A 404 for another reason, for example while the API is being uninstalled,
//! would make it delete running databases. Releases before 0.3 named clusters as owners. This
//! module removes those references; the annotation with the cluster's uid stays. Pods are not
//! touched.
//!
//! Also reports StatefulSets that run without a cluster. They are never changed.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use serde_json::json;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{
    context::{ControllerContext, Error, MANAGER},
    object_caches::ManagedObject,
    observe::{is_cluster, made_for, owners_but_ours},
};
use crate::{
    api::names::{FINALIZER_TEARDOWN, annotation},
    error::chain,
    runtime::Shutdown,
};

const CHECK_EVERY: Duration = Duration::from_secs(10);

/// Checks our objects for references to clusters every ten seconds until shutdown.
pub(crate) async fn watch_over(ctx: Arc<ControllerContext>, shutdown: Shutdown) {
    let mut alone = OrphanReports::default();
    loop {
        match give_up(&ctx).await {
            Ok(()) => {}
            Err(Error::NotLeading) => return,
            Err(error) => warn!(error = %chain(&error), "Failed to take owner references away"),
        }
        for set in alone.found(without_cluster(&ctx)) {
            let OrphanStatefulSet { namespace, name, kind, cluster, uid } = set;
            warn!(
                namespace,
                name,
                kind,
                cluster,
                uid,
                "A StatefulSet runs without a cluster; it is left alone (docs/store.md)"
            );
        }
        tokio::select! {
            () = sleep(CHECK_EVERY) => {}
            () = shutdown.triggered() => return,
        }
    }
}

/// Removes clusters from the owner references of objects in Kubernetes; the annotation with the
/// cluster's uid takes their place. Waits until a cluster has its finalizer: without either,
/// deleting the cluster would leave its objects behind.
pub(crate) async fn give_up(ctx: &ControllerContext) -> Result<(), Error> {
    if ctx.settings.owner_references {
        return Ok(());
    }
    let mut first = None;
    for ManagedObject { resource, meta } in ctx.stores.kept() {
        let owned = meta.owner_references.iter().flatten().any(is_cluster);
        let unready = || cluster(ctx, &meta).is_some_and(|cluster| !has_finalizer(&cluster));
        if !owned || meta.deletion_timestamp.is_some() || unready() {
            continue;
        }
        match rewrite(ctx, &resource, &meta).await {
            Err(Error::NotLeading) => return Err(Error::NotLeading),
            // The cached object is old, or gone: the next check sees that.
            Ok(()) | Err(Error::Conflict { .. }) => {}
            Err(error) => {
                first.get_or_insert(error);
            }
        }
    }
    first.map_or(Ok(()), Err)
}

async fn rewrite(
    ctx: &ControllerContext,
    resource: &ApiResource,
    meta: &ObjectMeta,
) -> Result<(), Error> {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let (kind, name) = (&resource.kind, meta.name.as_deref().unwrap_or_default());
    let patch = json!({"metadata": {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "ownerReferences": owners_but_ours(meta),
        "annotations": {annotation::CLUSTER_UID: made_for(meta)},
    }});
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    match ctx.write(resource, namespace)?.patch(name, &params, &Patch::Merge(&patch)).await {
        Ok(_) => info!(namespace, kind, name, "Took the owner reference of an older release away"),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(Error::request("patch", kind, name, error)),
    }
    Ok(())
}

/// A StatefulSet whose cluster does not exist.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OrphanStatefulSet {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) cluster: String,
    pub(crate) uid: String,
}

/// Returns the StatefulSets whose cluster is not in the caches.
pub(crate) fn without_cluster(ctx: &ControllerContext) -> BTreeSet<OrphanStatefulSet> {
    let mut found = BTreeSet::new();
    for set in ctx.stores.sets.state() {
        let meta = &set.metadata;
        let (Some(key), Some(uid)) = (ctx.stores.key_of(meta), made_for(meta)) else { continue };
        if cluster(ctx, meta).is_none() {
            found.insert(OrphanStatefulSet {
                namespace: key.namespace,
                name: meta.name.clone().unwrap_or_default(),
                kind: key.kind,
                cluster: key.name,
                uid: uid.to_owned(),
            });
        }
    }
    found
}

/// Returns the cluster that an object was made for, if it is in the caches.
fn cluster(ctx: &ControllerContext, meta: &ObjectMeta) -> Option<Arc<DynamicObject>> {
    let (key, uid) = (ctx.stores.key_of(meta)?, made_for(meta)?);
    let database = ctx.stores.databases().find(|known| known.names.kind == key.kind)?;
    let cluster = ctx.stores.cluster(database, &key.namespace, &key.name)?;
    (cluster.metadata.uid.as_deref() == Some(uid)).then_some(cluster)
}

fn has_finalizer(cluster: &DynamicObject) -> bool {
    cluster.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER_TEARDOWN)
}

/// StatefulSets without a cluster, and those that were reported. Each is reported once, after two
/// checks in a row have seen it, so that a cache that is behind another one reports nothing.
#[derive(Default)]
struct OrphanReports {
    seen: BTreeSet<OrphanStatefulSet>,
    told: BTreeSet<OrphanStatefulSet>,
}

impl OrphanReports {
    /// Returns the StatefulSets to report now, from those that this check found.
    fn found(&mut self, now: BTreeSet<OrphanStatefulSet>) -> Vec<OrphanStatefulSet> {
        let lasting: BTreeSet<_> = now.intersection(&self.seen).cloned().collect();
        let fresh = lasting.difference(&self.told).cloned().collect();
        self.told = lasting;
        self.seen = now;
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_without_a_cluster_is_told_once_and_only_when_it_stays_so() {
        let one = OrphanStatefulSet {
            namespace: "default".into(),
            name: "ex-shop-a".into(),
            kind: "ExampleCluster",
            cluster: "shop".into(),
            uid: "u".into(),
        };
        let (mut alone, is, none) =
            (OrphanReports::default(), BTreeSet::from([one.clone()]), Vec::new());
        assert_eq!(alone.found(is.clone()), none, "a cache may be behind another");
        assert_eq!(alone.found(is.clone()), std::slice::from_ref(&one));
        assert_eq!(alone.found(is.clone()), none, "it was told");
        assert_eq!(alone.found(BTreeSet::new()), none);
        alone.found(is.clone());
        assert_eq!(alone.found(is), [one], "it was gone, and is there again");
    }
}
