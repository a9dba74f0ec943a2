//! Finds our objects that lost the labels by which we watch, and restores those labels.
//!
//! Any client with write access can take labels off. An object without them is in none of our
//! caches: the controller would make it again and again, or wait for it without end. Such an object
//! is recognised by its name and its owner.

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Resource,
    api::{ApiResource, Patch, PatchParams},
};
use serde_json::{Value, json};
use tracing::info;

use crate::{
    api::names::{self, label},
    controller::{
        context::{ControllerContext, Error, MANAGER},
        desired_state::DesiredCluster,
        observe::{ClaimMarks, ObservedPool, foreign, made_for, other_store, owned},
        ownership::{ClaimOwner, claim_name, claim_owner},
        resources::{cluster_labels, pilot_resource},
    },
};

/// Puts `labels` on an object, beside those that it has.
pub(super) async fn relabel(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    resource: &ApiResource,
    found: &ObjectMeta,
    labels: &Value,
) -> Result<(), Error> {
    let patch = json!({"metadata": {"labels": labels}});
    patch_metadata(ctx, desired, resource, found, patch).await
}

async fn patch_metadata(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    resource: &ApiResource,
    found: &ObjectMeta,
    mut patch: Value,
) -> Result<(), Error> {
    let (kind, name) = (&resource.kind, found.name.as_deref().unwrap_or_default());
    patch["metadata"]["uid"] = json!(found.uid);
    patch["metadata"]["resourceVersion"] = json!(found.resource_version);
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    ctx.write(resource, &desired.namespace)?
        .patch(name, &params, &Patch::Merge(&patch))
        .await
        .map_err(|error| Error::request("label", kind, name, error))?;
    info!(namespace = desired.namespace, kind, name, "Gave an object its labels back");
    Ok(())
}

async fn read(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    resource: &ApiResource,
    name: &str,
) -> Result<Option<ObjectMeta>, Error> {
    let found = ctx.read(resource, &desired.namespace).get_opt(name).await;
    let found = found.map_err(|error| Error::request("get", &resource.kind, name, error))?;
    Ok(found.map(|object| object.metadata))
}

/// Adopts a Pilot that has a name the cluster needs and is not among the cluster's own, unless
/// another owner controls it. `body` is the Pilot that would have been created.
pub(super) async fn pilot(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    name: &str,
    body: &Value,
) -> Result<(), Error> {
    let resource = pilot_resource();
    let Some(found) = read(ctx, desired, &resource, name).await? else { return Ok(()) };
    let controlled =
        found.owner_references.iter().flatten().any(|owner| owner.controller == Some(true));
    let of_another = made_for(&found).is_some_and(|uid| ctx.stores.living(uid).is_some());
    if (controlled || of_another) && !owned(&found, desired) {
        return Err(Error::Foreign(foreign("Pilot", &found, desired)));
    }
    if let Some(stalled) = other_store(&found, &ctx.settings.store_id) {
        return Err(Error::Foreign(stalled));
    }
    if owned(&found, desired) && holds(&found, &body["metadata"]["labels"]) {
        // The Pilot is as it should be: the caches lag behind.
        return Ok(());
    }
    let mut patch = json!({});
    for part in ["labels", "annotations", "ownerReferences"] {
        patch["metadata"][part] = body["metadata"][part].clone();
    }
    patch_metadata(ctx, desired, &resource, &found, patch).await
}

/// Repairs the labels of a pool's pods and claims that exist and that our caches lack.
pub(super) async fn members(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    pool: &ObservedPool,
) -> Result<(), Error> {
    let Some(set) = pool.set.as_ref().and_then(|set| set.object.as_deref()) else {
        return Ok(());
    };
    let seen = pool.members.values().filter(|member| member.pod.is_some()).count();
    let counted = set.status.as_ref().map_or(0, |status| status.replicas);
    let pods_missing = usize::try_from(counted).unwrap_or_default() > seen;
    let claims = claim_labels(set);
    let of_set = |pod: &ObjectMeta| {
        let uid = set.meta().uid.as_deref();
        pod.owner_references.iter().flatten().any(|owner| Some(&*owner.uid) == uid)
    };
    for (ordinal, member) in pool.running() {
        let has_pod = member.is_some_and(|member| member.pod.is_some());
        let has_claim = member.is_some_and(|member| member.claim.is_some());
        let name = names::pilot(&pool.set_name, ordinal);
        if !has_pod && pods_missing {
            let mut labels = json!(cluster_labels(desired));
            labels[desired.database.names.pool_label] = json!(pool.name);
            let resource = ApiResource::erase::<Pod>(&());
            repair(ctx, desired, &resource, &name, of_set, &labels).await?;
        }
        if has_pod
            && !has_claim
            && let Some(labels) = &claims
        {
            // A claim without any mark is the node's while a pod of our set uses it, which the caches may
            // show for longer than it is so.
            let pod = read(ctx, desired, &ApiResource::erase::<Pod>(&()), &name).await?;
            let is_used = pod.is_some_and(|pod| pod.deletion_timestamp.is_none() && of_set(&pod));
            let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
            let name = claim_name(desired, &pool.set_name, ordinal);
            let ours = |claim: &ObjectMeta| {
                let marks = ClaimMarks::of(claim, desired.database.names);
                match claim_owner(&ctx.stores, desired, &pool.name, &marks) {
                    ClaimOwner::Ours | ClaimOwner::Free => true,
                    ClaimOwner::Unmarked => is_used,
                    ClaimOwner::Other(_) => false,
                }
            };
            repair(ctx, desired, &resource, &name, ours, labels).await?;
        }
    }
    Ok(())
}

/// Returns the labels of the claims that a StatefulSet makes.
fn claim_labels(set: &StatefulSet) -> Option<Value> {
    let template = set.spec.as_ref()?.volume_claim_templates.as_ref()?.first()?;
    template.metadata.labels.as_ref().map(|labels| json!(labels))
}

async fn repair(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    resource: &ApiResource,
    name: &str,
    ours: impl Fn(&ObjectMeta) -> bool,
    labels: &Value,
) -> Result<(), Error> {
    let Some(found) = read(ctx, desired, resource, name).await? else { return Ok(()) };
    if found.deletion_timestamp.is_some() || !ours(&found) || holds(&found, labels) {
        return Ok(());
    }
    relabel(ctx, desired, resource, &found, labels).await?;
    // The plan has to wait until the caches hold the object again.
    Err(Error::Conflict { kind: resource.kind.clone(), name: name.to_owned() })
}

/// Does the object carry the labels by which we watch and list?
fn holds(found: &ObjectMeta, labels: &Value) -> bool {
    let watched = |key: &str| key == label::K8S_MANAGED_BY || key.ends_with("cluster-name");
    let has = |key: &str, value: &Value| {
        let labels = found.labels.as_ref();
        labels.and_then(|labels| labels.get(key)).map(String::as_str) == value.as_str()
    };
    let mut wanted = labels.as_object().into_iter().flatten().filter(|(key, _)| watched(key));
    wanted.all(|(key, value)| has(key, value))
}
