//! Writes objects of a cluster: apply, patch and delete.
//!
//! Invariant: a write that depends on what was read carries its resource version, so a stale
//! cache ends in a conflict, never in a change undone.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};

use super::{
    context::{Context, Error, MANAGER},
    desired::Desired,
    resources::{Prepared, pilot_resource},
};

/// Server-side apply. `version` makes it a compare-and-swap.
pub(crate) async fn change(
    ctx: &Context,
    desired: &Desired,
    object: &Prepared,
    version: Option<String>,
) -> Result<(), Error> {
    let Prepared { resource, name, body } = object;
    let mut body = body.clone();
    if let Some(version) = version {
        body["metadata"]["resourceVersion"] = json!(version);
    }
    let api = ctx.write(resource, &desired.namespace)?;
    let params = PatchParams::apply(MANAGER).force();
    api.patch(name, &params, &Patch::Apply(&body))
        .await
        .map_err(|error| Error::request("apply", &resource.kind, name, error))?;
    Ok(())
}

/// Merge patch of our own fields, as a compare-and-swap.
pub(crate) async fn patch_pilot(
    ctx: &Context,
    desired: &Desired,
    name: &str,
    version: &str,
    mut patch: Value,
) -> Result<(), Error> {
    patch["metadata"]["resourceVersion"] = json!(version);
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let api = ctx.write(&pilot_resource(), &desired.namespace)?;
    api.patch(name, &params, &Patch::Merge(&patch))
        .await
        .map_err(|error| Error::request("patch", "Pilot", name, error))?;
    Ok(())
}

/// Deletes what was read. What is gone already is fine.
pub(crate) async fn delete(
    ctx: &Context,
    desired: &Desired,
    resource: &ApiResource,
    name: &str,
    preconditions: Preconditions,
) -> Result<(), Error> {
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    match ctx.write(resource, &desired.namespace)?.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::request("delete", &resource.kind, name, error)),
    }
}

/// This very object, as it was read.
pub(crate) fn exactly(meta: &ObjectMeta) -> Preconditions {
    let ObjectMeta { uid, resource_version, .. } = meta;
    Preconditions { uid: uid.clone(), resource_version: resource_version.clone() }
}

/// The object of the step, at the version at which the step was decided.
pub(crate) fn decided(uid: &str, version: Option<&String>) -> Preconditions {
    Preconditions { uid: Some(uid.to_owned()), resource_version: version.cloned() }
}
