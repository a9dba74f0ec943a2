//! What a cluster's deletion needs beyond garbage collection: claims that are to go with it.
//!
//! Everything else is owned by the cluster and collected when it is gone. Nothing is created or
//! changed for a cluster that is being deleted. Claims are found by name, so they go only while
//! everything else of these names is this cluster's own.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use serde_json::json;
use tracing::info;

use super::{
    context::{Context, Error, MANAGER},
    desired::Desired,
    observe::{ClaimFacts, Observed},
    queue::Outcome,
};
use crate::api::names::FINALIZER_TEARDOWN;

/// Puts the finalizer on a cluster whose deletion needs it, and takes it off one that does not.
pub(crate) async fn keep_finalizer(
    ctx: &Context,
    cluster: &DynamicObject,
    desired: &Desired,
) -> Result<(), Error> {
    let has = desired.finalizers.iter().any(|finalizer| finalizer == FINALIZER_TEARDOWN);
    if has == desired.needs_teardown() {
        return Ok(());
    }
    let mut finalizers = desired.finalizers.clone();
    if has {
        finalizers.retain(|finalizer| finalizer != FINALIZER_TEARDOWN);
    } else {
        finalizers.push(FINALIZER_TEARDOWN.to_owned());
    }
    write_finalizers(ctx, cluster, desired, finalizers).await?;
    // The copy at hand is old now; the watch brings the new one.
    Err(Error::Conflict {
        kind: desired.database.names.kind.to_owned(),
        name: desired.name.clone(),
    })
}

/// Deletes the claims that are to go with the cluster, then lets it go. A claim in use is kept by
/// Kubernetes until its pod is gone.
pub(crate) async fn tear_down(
    ctx: &Context,
    cluster: &DynamicObject,
    desired: &Desired,
    observed: &Observed,
) -> Result<Outcome, Error> {
    if !desired.finalizers.iter().any(|finalizer| finalizer == FINALIZER_TEARDOWN) {
        return Ok(Outcome::Settled);
    }
    if let Some(stalled) = &observed.stalled {
        // A database of an earlier cluster of this name, or of a lost store, may run on them.
        let (name, reason) = (&desired.name, &stalled.message);
        info!(namespace = desired.namespace, name, reason, "Kept the claims of a cluster");
    } else if !desired.force_delete {
        for pool in &observed.pools {
            if !desired
                .pool(&pool.name)
                .is_some_and(super::desired::Pool::delete_claim_when_deleted)
            {
                continue;
            }
            for claim in pool.members.values().filter_map(|member| member.claim.as_ref()) {
                if claim.terminating {
                    continue;
                }
                delete_claim(ctx, desired, claim).await?;
                info!(namespace = desired.namespace, claim = claim.name, "Deleted claim");
            }
        }
    }
    let mut finalizers = desired.finalizers.clone();
    finalizers.retain(|finalizer| finalizer != FINALIZER_TEARDOWN);
    write_finalizers(ctx, cluster, desired, finalizers).await?;
    Ok(Outcome::Settled)
}

async fn delete_claim(ctx: &Context, desired: &Desired, claim: &ClaimFacts) -> Result<(), Error> {
    let ClaimFacts { name, uid, resource_version, .. } = claim;
    let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
    let preconditions = Some(Preconditions {
        uid: Some(uid.clone()),
        resource_version: Some(resource_version.clone()),
    });
    let params = DeleteParams { preconditions, ..DeleteParams::default() };
    match ctx.write(&resource, &desired.namespace)?.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::request("delete", "PersistentVolumeClaim", name, error)),
    }
}

/// The list is written as a whole, so it must be the one that was read: other finalizers in it
/// belong to others.
async fn write_finalizers(
    ctx: &Context,
    cluster: &DynamicObject,
    desired: &Desired,
    finalizers: Vec<String>,
) -> Result<(), Error> {
    let version = &cluster.metadata.resource_version;
    let patch = json!({
        "metadata": {"uid": desired.uid, "resourceVersion": version, "finalizers": finalizers},
    });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let api = ctx.write(&desired.database.resource(), &desired.namespace)?;
    match api.patch(&desired.name, &params, &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => {
            Err(Error::request("patch", desired.database.names.kind, &desired.name, error))
        }
    }
}
