//! Whose a claim is, and whether another cluster has a name that this one needs.
//!
//! A name never decides: cluster `logs` with pool `prod-hot` and cluster `logs-prod` with pool `hot`
//! need the same names, and claims outlive their clusters. A claim is ours when it bears the
//! cluster's uid. One without the uid of a living cluster, whose labels name exactly this cluster and
//! pool, is an earlier cluster's of this name, or was made by a release before 0.3: it is taken up,
//! and gets the uid.

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::PersistentVolumeClaim};
use kube::{Resource, api::ApiResource};

use super::{
    context::{ControllerContext, Error},
    desired_state::{DesiredCluster, StallCause},
    object_caches::ObjectCaches,
    observe::{ClaimMarks, ObservedCluster, ObservedPool, foreign, owned},
};
use crate::api::names::{self, annotation};

/// Whose a claim is, for one pool of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClaimOwner {
    /// The claim bears the cluster's uid.
    Ours,
    /// Its labels name this cluster and pool, and it bears the uid of no living cluster.
    Free,
    /// Neither a uid nor a label says whose it is.
    Unmarked,
    /// It is another cluster's or another pool's, which these words name.
    Other(String),
}

/// Says whose a claim is, by its uid and then by its labels.
pub(crate) fn claim_owner(
    stores: &ObjectCaches,
    desired: &DesiredCluster,
    pool: &str,
    claim: &ClaimMarks,
) -> ClaimOwner {
    if claim.uid.as_ref().is_some_and(|uid| *uid == desired.uid) {
        return ClaimOwner::Ours;
    }
    if let Some((kind, name)) = claim.uid.as_ref().and_then(|uid| stores.living(uid)) {
        return ClaimOwner::Other(format!("{kind} {name:?}"));
    }
    let kind = desired.database.names.kind;
    match (&claim.cluster, &claim.pool) {
        (Some(cluster), _) if *cluster != desired.name => {
            ClaimOwner::Other(format!("{kind} {cluster:?}"))
        }
        (Some(_), Some(of)) if of == pool => ClaimOwner::Free,
        (Some(_), Some(of)) => ClaimOwner::Other(format!("node pool {of:?} of this cluster")),
        (None, _) | (_, None) => ClaimOwner::Unmarked,
    }
}

/// Returns why a name that the cluster needs cannot be used: a StatefulSet or a claim of this name
/// is another cluster's, or nobody says whose it is. Asked before anything is made.
pub(super) async fn name_conflict(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> Result<Option<StallCause>, Error> {
    for pool in &observed.pools {
        let Some(wanted) = desired.pool(&pool.name) else { continue };
        if let Some(set) = ctx.stores.sets.named(&desired.namespace, &pool.set_name)
            && !owned(&set.metadata, desired)
        {
            return Ok(Some(foreign(StatefulSet::kind(&()).as_ref(), &set.metadata, desired)));
        }
        if !wanted.persistent() {
            continue;
        }
        for ordinal in 0..wanted.replicas.max(pool.initial()) {
            if let Some(stalled) = claim_conflict(ctx, desired, pool, ordinal).await? {
                return Ok(Some(stalled));
            }
        }
    }
    Ok(None)
}

async fn claim_conflict(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    pool: &ObservedPool,
    ordinal: u32,
) -> Result<Option<StallCause>, Error> {
    let name = claim_name(desired, &pool.set_name, ordinal);
    let has_pod = pool.members.get(&ordinal).is_some_and(|member| member.pod.is_some());
    let found = match ctx.stores.claims.named(&desired.namespace, &name) {
        Some(claim) => Some(claim.metadata.clone()),
        // The node's pod uses it already.
        None if has_pod => None,
        // No cache holds a claim without our labels.
        None => {
            let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
            let found = ctx.read(&resource, &desired.namespace).get_opt(&name).await;
            let found = found.map_err(|e| Error::request("get", &resource.kind, &name, e))?;
            found.map(|claim| claim.metadata)
        }
    };
    let Some(found) = found else { return Ok(None) };
    let marks = ClaimMarks::of(&found, desired.database.names);
    let (namespace, uid, key) = (&desired.namespace, &desired.uid, annotation::CLUSTER_UID);
    let (reason, message) = match claim_owner(&ctx.stores, desired, &pool.name, &marks) {
        ClaimOwner::Ours | ClaimOwner::Free => return Ok(None),
        ClaimOwner::Unmarked if has_pod => return Ok(None),
        ClaimOwner::Unmarked => (
            "ForeignObject",
            format!(
                "PersistentVolumeClaim {name:?} exists, and nothing says whose it is: delete it, or \
                 hand it and its data over: kubectl --namespace {namespace} annotate --overwrite \
                 persistentvolumeclaim {name} {key}={uid}"
            ),
        ),
        ClaimOwner::Other(owner) => (
            "NameConflict",
            format!(
                "PersistentVolumeClaim {name:?} belongs to {owner}, and is left alone: give this \
                 cluster or its node pool another name"
            ),
        ),
    };
    Ok(Some(StallCause { reason, message }))
}

/// Returns the name of the claim of a node, which Kubernetes makes of the names of the volume and of
/// the pod.
pub(crate) fn claim_name(desired: &DesiredCluster, set: &str, ordinal: u32) -> String {
    format!("{}-{}", desired.database.names.data_volume, names::pilot(set, ordinal))
}
