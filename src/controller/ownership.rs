//! Owners of objects and claims, and whether another cluster has a name that this one needs.
//!
//! A name never decides: cluster `logs` with pool `prod-hot` and cluster `logs-prod` with pool
//! `hot` need the same names, and claims outlive their clusters. A claim is ours if it has the
//! cluster's uid. Another claim may have no uid of a living cluster, and labels that name exactly
//! this cluster and pool. It is of an earlier cluster of this name, or a release before 0.3 created
//! it. The controller adopts it and adds the uid.

use k8s_openapi::{
    api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::api::ApiResource;

use super::{
    context::{ControllerContext, Error},
    desired_state::{DesiredCluster, StallCause},
    object_caches::ObjectCaches,
    observe::{
        ClaimMarks, ObservedCluster, ObservedPool, RENAME, foreign_cause, is_from_earlier_cluster,
        is_owned_by, owner_uid,
    },
};
use crate::api::{
    database_names::ObjectName,
    names::{self, annotation},
    v1beta1::Authentication,
};

/// Whose a claim is, for one pool of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClaimOwner {
    /// The claim has the cluster's uid.
    Ours,
    /// Its labels name this cluster and pool, and it has the uid of no living cluster.
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
    if let Some((kind, name)) = claim.uid.as_ref().and_then(|uid| stores.find_cluster_by_uid(uid)) {
        return ClaimOwner::Other(format!("{kind} {name:?}"));
    }
    let kind = desired.database.names.kind;
    match (&claim.cluster, &claim.pool) {
        (Some(cluster), _) if *cluster != desired.name => {
            ClaimOwner::Other(format!("{kind} {cluster:?}"))
        }
        (Some(_), Some(other_pool)) if other_pool == pool => ClaimOwner::Free,
        (Some(_), Some(other_pool)) => {
            ClaimOwner::Other(format!("node pool {other_pool:?} of this cluster"))
        }
        (None, _) | (_, None) => ClaimOwner::Unmarked,
    }
}

/// Returns whether the object was created for an earlier cluster of this name, which is gone.
pub(crate) fn is_left_behind(
    stores: &ObjectCaches,
    desired: &DesiredCluster,
    meta: &ObjectMeta,
) -> bool {
    is_from_earlier_cluster(meta, desired)
        && owner_uid(meta).is_none_or(|uid| stores.find_cluster_by_uid(uid).is_none())
}

/// Returns why a name that the cluster needs cannot be used: an object or a claim of this name is
/// another cluster's, or nothing says whose it is. Asked before anything is made. Of a cluster that
/// has nodes, StatefulSets and claims alone are asked for here: any other object stops only what
/// needs it, as who writes it finds out.
pub(super) async fn name_conflict(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> Result<Option<StallCause>, Error> {
    let has_nodes = observed.has_nodes();
    let mut objects = required_objects(desired);
    objects.retain(|object| !has_nodes || object.kind == "StatefulSet");
    for ObjectName { kind, name } in objects {
        let Some(existing) = ctx.stores.object_metadata(kind, &desired.namespace, &name) else {
            continue;
        };
        let can_be_adopted =
            kind != "StatefulSet" && is_left_behind(&ctx.stores, desired, &existing);
        if is_owned_by(&existing, desired) || can_be_adopted {
            continue;
        }
        let conflict = if kind == "Secret" && owner_uid(&existing).is_none() {
            secret_conflict(&ctx.stores, desired, &existing)
        } else {
            Some(foreign_cause(kind, &existing, desired))
        };
        if conflict.is_some() {
            return Ok(conflict);
        }
    }
    for pool in &observed.pools {
        let Some(desired_pool) =
            desired.pool(&pool.name).filter(|desired_pool| desired_pool.is_persistent())
        else {
            continue;
        };
        for ordinal in 0..desired_pool.replicas.max(pool.initial_replicas()) {
            if let Some(stalled) = claim_conflict(ctx, desired, pool, ordinal).await? {
                return Ok(Some(stalled));
            }
        }
    }
    Ok(None)
}

/// Returns why a Secret cannot be used: it is another cluster's. Secrets of users outlive their
/// cluster and have no uid, so their label decides.
pub(crate) fn secret_conflict(
    stores: &ObjectCaches,
    desired: &DesiredCluster,
    existing: &ObjectMeta,
) -> Option<StallCause> {
    let (kind, name) = match owner_uid(existing) {
        Some(uid) if uid == desired.uid => return None,
        Some(uid) => stores.find_cluster_by_uid(uid)?,
        None => {
            let cluster = ClaimMarks::from_metadata(existing, desired.database.names).cluster;
            let other = cluster.filter(|cluster| *cluster != desired.name)?;
            (desired.database.names.kind, other)
        }
    };
    let secret = existing.name.as_deref().unwrap_or_default();
    Some(name_conflict_cause("Secret", secret, &format!("{kind} {name:?}")))
}

/// Returns the names of the objects that are created for the cluster as it is desired now.
pub(crate) fn required_objects(desired: &DesiredCluster) -> Vec<ObjectName> {
    let (names, cluster) = (desired.database.names, desired.name.as_str());
    let modes = &desired.round.in_force;
    let (is_encrypted, requires_password) =
        (modes.has_encryption(), modes.authentication == Authentication::Password);
    let security = desired.security.as_ref();
    let has_managed_admin = security.is_none_or(|security| security.admin_secret.is_none());
    let services = (desired.database.services)(desired);
    let mut objects = names.cluster_objects(cluster);
    objects.retain(|ObjectName { kind, name }| match *kind {
        "Service" => services.iter().any(|service| service.wanted && service.name == *name),
        "NetworkPolicy" => desired.network.is_some(),
        "Secret" if *name == names.admin_secret(cluster) => requires_password && has_managed_admin,
        "Secret" if *name == names.pilot_secret(cluster) => requires_password,
        "ConfigMap" | "Secret" => is_encrypted,
        _ => true,
    });
    objects.extend(desired.pools.iter().flat_map(|pool| names.pool_objects(cluster, &pool.name)));
    let users = security.iter().flat_map(|security| &security.users).filter(|_| requires_password);
    let managed_users = users.filter(|user| user.password_secret.is_none());
    objects.extend(managed_users.map(|user| names.user_object(cluster, &user.name)));
    objects
}

async fn claim_conflict(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    pool: &ObservedPool,
    ordinal: u32,
) -> Result<Option<StallCause>, Error> {
    let name = claim_name(desired, &pool.set_name, ordinal);
    let has_pod = pool.members.get(&ordinal).is_some_and(|member| member.pod.is_some());
    // The StatefulSet makes no claim of a later node yet: nodes are added one by one.
    let is_later = pool.set.is_some() && ordinal > pool.replicas().max(pool.returning_replicas());
    let existing = match ctx.stores.claims.get_object(&desired.namespace, &name) {
        Some(claim) => Some(claim.metadata.clone()),
        // The node's pod uses it already.
        None if has_pod || is_later => None,
        // No cache holds a claim without our labels.
        None => {
            let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
            let result = ctx.read_api(&resource, &desired.namespace).get_opt(&name).await;
            let response =
                result.map_err(|e| Error::from_request("get", &resource.kind, &name, e))?;
            response.map(|claim| claim.metadata)
        }
    };
    let Some(existing) = existing else { return Ok(None) };
    let marks = ClaimMarks::from_metadata(&existing, desired.database.names);
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
        ClaimOwner::Other(owner) => {
            return Ok(Some(name_conflict_cause("PersistentVolumeClaim", &name, &owner)));
        }
    };
    Ok(Some(StallCause { reason, message }))
}

fn name_conflict_cause(kind: &str, name: &str, owner: &str) -> StallCause {
    let message = format!("{kind} {name:?} belongs to {owner}, and is left alone: {RENAME}");
    StallCause { reason: "NameConflict", message }
}

/// Returns the name of the claim of a node, which Kubernetes makes of the names of the volume and of
/// the pod.
pub(crate) fn claim_name(desired: &DesiredCluster, set: &str, ordinal: u32) -> String {
    format!("{}-{}", desired.database.names.data_volume, names::pilot_name(set, ordinal))
}
