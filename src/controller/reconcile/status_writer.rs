//! Writes a cluster's status, and publishes events for what changed in it.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::api::{DynamicObject, PostParams, TypeMeta};
use serde_json::json;
use tracing::debug;

use super::AFTER_STATUS;
use crate::{
    api::v1beta1::ClusterStatus,
    controller::{
        context::{ControllerContext, Error, MANAGER},
        desired_state::DesiredCluster,
        events,
        plan::Plan,
        queue::ReconcileOutcome,
        status,
    },
    error::chain,
};

/// Writes a first status at once, so that the user who created the cluster sees that it was
/// noticed.
pub(super) async fn write_first_status(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
) -> Result<ReconcileOutcome, Error> {
    let status = ClusterStatus {
        observed_generation: Some(desired.generation),
        phase: Some("Pending".to_owned()),
        conditions: vec![Condition {
            type_: "Ready".to_owned(),
            status: "Unknown".to_owned(),
            reason: "Pending".to_owned(),
            message: "the cluster has been seen".to_owned(),
            observed_generation: Some(desired.generation),
            last_transition_time: Time(status::truncate_to_seconds(Timestamp::now())),
        }],
        ..ClusterStatus::default()
    };
    write_status(ctx, cluster, desired, status, &Plan::default()).await?;
    Ok(ReconcileOutcome::Again(AFTER_STATUS))
}

/// Writes to the status that the cluster is being deleted, and what the deletion waits for. The
/// rest of the status stays, and a refusal of this write does not hold up the deletion.
pub(super) async fn write_deleting(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
    message: &str,
) -> Result<(), Error> {
    let status = status::deleting_status(desired, message, Timestamp::now());
    match write_status(ctx, cluster, desired, status, &Plan::default()).await {
        Ok(_) => Ok(()),
        Err(error @ (Error::Conflict { .. } | Error::NotLeading)) => Err(error),
        Err(error) => {
            debug!(error = %chain(&error), "Phase Deleting was not written");
            Ok(())
        }
    }
}

/// Replaces the status, if it differs, and publishes events for what changed. Returns the cluster
/// as the server has it then; `None` where nothing was written.
pub(super) async fn write_status(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
    status: ClusterStatus,
    plan: &Plan,
) -> Result<Option<DynamicObject>, Error> {
    if desired.status == status {
        return Ok(None);
    }
    let resource = desired.database.api_resource();
    let mut object = cluster.clone();
    object.types =
        Some(TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() });
    object.data["status"] = json!(status);
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let api = ctx.write_api(&resource, &desired.namespace)?;
    let updated_cluster =
        api.replace_status(&desired.name, &params, &object).await.map_err(|error| {
            Error::from_request("update the status of", &resource.kind, &desired.name, error)
        })?;
    ctx.pace.record_write(desired.key());
    for notice in events::notices_for_status(&desired.status, &status, plan) {
        ctx.events.publish(desired, &notice).await;
    }
    Ok(Some(updated_cluster))
}
