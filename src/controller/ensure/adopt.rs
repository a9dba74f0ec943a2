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
        observe::{
            ClaimMarks, ObservedPool, foreign_cause, is_owned_by, owner_uid, store_mismatch,
        },
        ownership::{ClaimOwner, claim_name, claim_owner},
        resources::{cluster_labels, pilot_resource},
    },
};

/// Adds `labels` to the labels of an object.
pub(super) async fn restore_labels(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    resource: &ApiResource,
    existing: &ObjectMeta,
    labels: &Value,
) -> Result<(), Error> {
    let patch = json!({"metadata": {"labels": labels}});
    patch_metadata(ctx, desired, resource, existing, patch).await
}

async fn patch_metadata(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    resource: &ApiResource,
    existing: &ObjectMeta,
    mut patch: Value,
) -> Result<(), Error> {
    let (kind, name) = (&resource.kind, existing.name.as_deref().unwrap_or_default());
    patch["metadata"]["uid"] = json!(existing.uid);
    patch["metadata"]["resourceVersion"] = json!(existing.resource_version);
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    ctx.write_api(resource, &desired.namespace)?
        .patch(name, &params, &Patch::Merge(&patch))
        .await
        .map_err(|error| Error::from_request("label", kind, name, error))?;
    info!(namespace = desired.namespace, kind, name, "Gave an object its labels back");
    Ok(())
}

async fn read_metadata(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    resource: &ApiResource,
    name: &str,
) -> Result<Option<ObjectMeta>, Error> {
    let result = ctx.read_api(resource, &desired.namespace).get_opt(name).await;
    let response =
        result.map_err(|error| Error::from_request("get", &resource.kind, name, error))?;
    Ok(response.map(|object| object.metadata))
}

/// Adopts a Pilot that has a name the cluster needs and is not among the cluster's own, unless
/// another owner controls it. `body` is the Pilot that would have been created.
pub(super) async fn adopt_pilot(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    name: &str,
    body: &Value,
) -> Result<(), Error> {
    let resource = pilot_resource();
    let Some(existing) = read_metadata(ctx, desired, &resource, name).await? else { return Ok(()) };
    let has_controller =
        existing.owner_references.iter().flatten().any(|owner| owner.controller == Some(true));
    let has_other_owner =
        owner_uid(&existing).is_some_and(|uid| ctx.stores.find_cluster_by_uid(uid).is_some());
    if (has_controller || has_other_owner) && !is_owned_by(&existing, desired) {
        return Err(Error::Foreign(foreign_cause("Pilot", &existing, desired)));
    }
    if let Some(stalled) = store_mismatch(&existing, &ctx.settings.store_id) {
        return Err(Error::Foreign(stalled));
    }
    if is_owned_by(&existing, desired) && has_labels(&existing, &body["metadata"]["labels"]) {
        // The Pilot is as it should be: the caches lag behind.
        return Ok(());
    }
    let mut patch = json!({});
    for part in ["labels", "annotations", "ownerReferences"] {
        patch["metadata"][part] = body["metadata"][part].clone();
    }
    patch_metadata(ctx, desired, &resource, &existing, patch).await
}

/// Repairs the labels of a pool's pods and claims that exist and that our caches lack.
pub(super) async fn restore_node_labels(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    pool: &ObservedPool,
) -> Result<(), Error> {
    let Some(set) = pool.set.as_ref().and_then(|set| set.object.as_deref()) else {
        return Ok(());
    };
    let observed_pods = pool.members.values().filter(|member| member.pod.is_some()).count();
    let reported_pods = set.status.as_ref().map_or(0, |status| status.replicas);
    let has_missing_pods = usize::try_from(reported_pods).unwrap_or_default() > observed_pods;
    let claims = claim_labels(set);
    let is_of_set = |pod: &ObjectMeta| {
        let uid = set.meta().uid.as_deref();
        pod.owner_references.iter().flatten().any(|owner| Some(&*owner.uid) == uid)
    };
    for (ordinal, member) in pool.nodes() {
        let has_pod = member.is_some_and(|member| member.pod.is_some());
        let has_claim = member.is_some_and(|member| member.claim.is_some());
        let name = names::pilot_name(&pool.set_name, ordinal);
        if !has_pod && has_missing_pods {
            let mut labels = json!(cluster_labels(desired));
            labels[desired.database.names.pool_label] = json!(pool.name);
            let resource = ApiResource::erase::<Pod>(&());
            restore_object_labels(ctx, desired, &resource, &name, is_of_set, &labels).await?;
        }
        if has_pod
            && !has_claim
            && let Some(labels) = &claims
        {
            // A claim without any mark is the node's while a pod of our set uses it, which the caches may
            // show for longer than it is so.
            let pod = read_metadata(ctx, desired, &ApiResource::erase::<Pod>(&()), &name).await?;
            let is_used =
                pod.is_some_and(|pod| pod.deletion_timestamp.is_none() && is_of_set(&pod));
            let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
            let name = claim_name(desired, &pool.set_name, ordinal);
            let is_adoptable = |claim: &ObjectMeta| {
                let marks = ClaimMarks::from_metadata(claim, desired.database.names);
                match claim_owner(&ctx.stores, desired, &pool.name, &marks) {
                    ClaimOwner::Ours | ClaimOwner::Free => true,
                    ClaimOwner::Unmarked => is_used,
                    ClaimOwner::Other(_) => false,
                }
            };
            restore_object_labels(ctx, desired, &resource, &name, is_adoptable, labels).await?;
        }
    }
    Ok(())
}

/// Returns the labels of the claims that a StatefulSet makes.
fn claim_labels(set: &StatefulSet) -> Option<Value> {
    let template = set.spec.as_ref()?.volume_claim_templates.as_ref()?.first()?;
    template.metadata.labels.as_ref().map(|labels| json!(labels))
}

async fn restore_object_labels(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    resource: &ApiResource,
    name: &str,
    is_adoptable: impl Fn(&ObjectMeta) -> bool,
    labels: &Value,
) -> Result<(), Error> {
    let Some(existing) = read_metadata(ctx, desired, resource, name).await? else { return Ok(()) };
    if existing.deletion_timestamp.is_some()
        || !is_adoptable(&existing)
        || has_labels(&existing, labels)
    {
        return Ok(());
    }
    restore_labels(ctx, desired, resource, &existing, labels).await?;
    // The plan has to wait until the caches hold the object again.
    Err(Error::Conflict { kind: resource.kind.clone(), name: name.to_owned() })
}

/// Returns whether the object carries the labels by which the controller watches and lists.
fn has_labels(existing: &ObjectMeta, labels: &Value) -> bool {
    let is_watched = |key: &str| key == label::K8S_MANAGED_BY || key.ends_with("cluster-name");
    let has_label = |key: &str, value: &Value| {
        let labels = existing.labels.as_ref();
        labels.and_then(|labels| labels.get(key)).map(String::as_str) == value.as_str()
    };
    let mut desired_labels =
        labels.as_object().into_iter().flatten().filter(|(key, _)| is_watched(key));
    desired_labels.all(|(key, value)| has_label(key, value))
}
