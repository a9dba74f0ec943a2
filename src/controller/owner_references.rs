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
    observe::{is_cluster, owner_uid, owners_but_ours},
};
use crate::{
    api::names::{FINALIZER_TEARDOWN, annotation},
    error::chain,
    runtime::Shutdown,
};

const CHECK_EVERY: Duration = Duration::from_secs(10);

/// Checks our objects for references to clusters every ten seconds until shutdown.
pub(crate) async fn watch_over(ctx: Arc<ControllerContext>, shutdown: Shutdown) {
    let mut orphan_reports = OrphanReports::default();
    loop {
        match remove_owner_references(&ctx).await {
            Ok(()) => {}
            Err(Error::NotLeading) => return,
            Err(error) => warn!(error = %chain(&error), "Failed to take owner references away"),
        }
        for set in orphan_reports.record_orphans(find_orphans(&ctx)) {
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
pub(crate) async fn remove_owner_references(ctx: &ControllerContext) -> Result<(), Error> {
    if ctx.settings.owner_references {
        return Ok(());
    }
    let mut first_error = None;
    for ManagedObject { resource, meta } in ctx.stores.managed_objects() {
        let is_owned = meta.owner_references.iter().flatten().any(is_cluster);
        let lacks_finalizer =
            || find_cluster(ctx, &meta).is_some_and(|cluster| !has_finalizer(&cluster));
        if !is_owned || meta.deletion_timestamp.is_some() || lacks_finalizer() {
            continue;
        }
        match rewrite_owners(ctx, &resource, &meta).await {
            Err(Error::NotLeading) => return Err(Error::NotLeading),
            // The cached object is old, or gone: the next check sees that.
            Ok(()) | Err(Error::Conflict { .. }) => {}
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    first_error.map_or(Ok(()), Err)
}

async fn rewrite_owners(
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
        "annotations": {annotation::CLUSTER_UID: owner_uid(meta)},
    }});
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    match ctx.write_api(resource, namespace)?.patch(name, &params, &Patch::Merge(&patch)).await {
        Ok(_) => info!(namespace, kind, name, "Took the owner reference of an older release away"),
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => return Err(Error::from_request("patch", kind, name, error)),
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
pub(crate) fn find_orphans(ctx: &ControllerContext) -> BTreeSet<OrphanStatefulSet> {
    let mut orphans = BTreeSet::new();
    for set in ctx.stores.sets.all_objects() {
        let meta = &set.metadata;
        let (Some(key), Some(uid)) = (ctx.stores.key_of(meta), owner_uid(meta)) else { continue };
        if find_cluster(ctx, meta).is_none() {
            orphans.insert(OrphanStatefulSet {
                namespace: key.namespace,
                name: meta.name.clone().unwrap_or_default(),
                kind: key.kind,
                cluster: key.name,
                uid: uid.to_owned(),
            });
        }
    }
    orphans
}

/// Returns the cluster that an object was made for, if it is in the caches.
fn find_cluster(ctx: &ControllerContext, meta: &ObjectMeta) -> Option<Arc<DynamicObject>> {
    let (key, uid) = (ctx.stores.key_of(meta)?, owner_uid(meta)?);
    let database = ctx.stores.databases().find(|other| other.names.kind == key.kind)?;
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
    fn record_orphans(&mut self, current: BTreeSet<OrphanStatefulSet>) -> Vec<OrphanStatefulSet> {
        let lasting_orphans: BTreeSet<_> = current.intersection(&self.seen).cloned().collect();
        let new_orphans = lasting_orphans.difference(&self.told).cloned().collect();
        self.told = lasting_orphans;
        self.seen = current;
        new_orphans
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
        assert_eq!(alone.record_orphans(is.clone()), none, "a cache may be behind another");
        assert_eq!(alone.record_orphans(is.clone()), std::slice::from_ref(&one));
        assert_eq!(alone.record_orphans(is.clone()), none, "it was told");
        assert_eq!(alone.record_orphans(BTreeSet::new()), none);
        alone.record_orphans(is.clone());
        assert_eq!(alone.record_orphans(is), [one], "it was gone, and is there again");
    }
}
