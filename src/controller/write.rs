//! Writes objects of a cluster: apply, patch and delete.
//!
//! Invariant: a write that depends on what was read carries the resource version that was read. So
//! a stale cache leads to a conflict, and undoes no change of another client.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use serde_json::{Value, json};

use super::{
    context::{ControllerContext, Error, MANAGER},
    desired_state::DesiredCluster,
    resources::{PreparedObject, pilot_resource},
};

/// Writes the object by server-side apply. `version` makes it a compare-and-swap.
pub(crate) async fn apply_object(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    object: &PreparedObject,
    version: Option<String>,
) -> Result<(), Error> {
    let PreparedObject { resource, name, body } = object;
    let mut body = body.clone();
    if let Some(version) = version {
        body["metadata"]["resourceVersion"] = json!(version);
    }
    let api = ctx.write_api(resource, &desired.namespace)?;
    let params = PatchParams::apply(MANAGER).force();
    api.patch(name, &params, &Patch::Apply(&body))
        .await
        .map_err(|error| Error::from_request("apply", &resource.kind, name, error))?;
    Ok(())
}

/// Creates an object that does not exist. It has no config hash yet: [`apply_object`] finishes it. A
/// create that the server carries out late finds the object there, and changes nothing.
pub(crate) async fn create_object(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    object: &PreparedObject,
    body: &Value,
) -> Result<ObjectMeta, Error> {
    let PreparedObject { resource, name, .. } = object;
    let body = serde_json::from_value(body.clone()).expect("it has metadata and string keys");
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let result = ctx.write_api(resource, &desired.namespace)?.create(&params, &body).await;
    let created_object: DynamicObject =
        result.map_err(|error| Error::from_request("create", &resource.kind, name, error))?;
    clear_managed_fields(ctx, desired, object, &created_object.metadata).await
}

/// Asks the server whether it would create an object of this name; one that exists counts as
/// created.
pub(crate) async fn try_create(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    object: &PreparedObject,
) -> Result<(), Error> {
    let PreparedObject { resource, name, body } = object;
    let body: DynamicObject =
        serde_json::from_value(body.clone()).expect("it has metadata and string keys");
    let params = PostParams { dry_run: true, field_manager: Some(MANAGER.to_owned()) };
    match ctx.write_api(resource, &desired.namespace)?.create(&params, &body).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        Err(error) => Err(Error::from_request("create", &resource.kind, name, error)),
    }
}

/// Resets `managedFields`, so that no field manager owns a field of the object. A create makes its
/// client own fields by update, which no later apply gives up: a field that is wanted no more would
/// stay.
pub(crate) async fn clear_managed_fields(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    object: &PreparedObject,
    meta: &ObjectMeta,
) -> Result<ObjectMeta, Error> {
    let PreparedObject { resource, name, .. } = object;
    let ObjectMeta { uid, resource_version, .. } = meta;
    let patch = json!({"metadata": {
        "uid": uid, "resourceVersion": resource_version, "managedFields": [{}],
    }});
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let api = ctx.write_api(resource, &desired.namespace)?;
    let result = api.patch(name, &params, &Patch::Merge(&patch)).await;
    let patched_object =
        result.map_err(|error| Error::from_request("patch", &resource.kind, name, error))?;
    Ok(patched_object.metadata)
}

/// Changes a Pilot by a merge patch of our own fields, as a compare-and-swap on `version`.
pub(crate) async fn patch_pilot(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    name: &str,
    version: &str,
    mut patch: Value,
) -> Result<(), Error> {
    patch["metadata"]["resourceVersion"] = json!(version);
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let api = ctx.write_api(&pilot_resource(), &desired.namespace)?;
    api.patch(name, &params, &Patch::Merge(&patch))
        .await
        .map_err(|error| Error::from_request("patch", "Pilot", name, error))?;
    Ok(())
}

/// Deletes the object that was read. An object that is gone already is no error.
pub(crate) async fn delete_object(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    resource: &ApiResource,
    name: &str,
    preconditions: Preconditions,
) -> Result<(), Error> {
    delete_with(ctx, desired, resource, name, preconditions, DeleteParams::background()).await
}

/// Deletes the StatefulSet that was read, and leaves its pods.
pub(crate) async fn delete_without_pods(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    resource: &ApiResource,
    name: &str,
    preconditions: Preconditions,
) -> Result<(), Error> {
    delete_with(ctx, desired, resource, name, preconditions, DeleteParams::orphan()).await
}

async fn delete_with(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    resource: &ApiResource,
    name: &str,
    preconditions: Preconditions,
    params: DeleteParams,
) -> Result<(), Error> {
    let params = DeleteParams { preconditions: Some(preconditions), ..params };
    match ctx.write_api(resource, &desired.namespace)?.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::from_request("delete", &resource.kind, name, error)),
    }
}

/// Returns preconditions for the object `meta` at the version that was read.
pub(crate) fn exact_preconditions(meta: &ObjectMeta) -> Preconditions {
    let ObjectMeta { uid, resource_version, .. } = meta;
    Preconditions { uid: uid.clone(), resource_version: resource_version.clone() }
}

/// Returns preconditions for the object of a step, at the version at which the step was decided.
pub(crate) fn uid_preconditions(uid: &str, version: Option<&String>) -> Preconditions {
    Preconditions { uid: Some(uid.to_owned()), resource_version: version.cloned() }
}
