//! Asks the server before a step is carried out. Caches lag behind, and a step that was right for
//! what they hold may be wrong by now.

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use tracing::debug;

use super::{in_round, observation, parse_desired};
use crate::controller::{
    context::{ControllerContext, Error},
    desired_state::DesiredCluster,
    observe::ObservedCluster,
    plan::{OperationType, Plan, PlannedStep, plan_next_step},
    security_round,
};

/// A step on which the caches and the server agree, and what the server said about the cluster.
pub(super) struct ConfirmedStep {
    pub(super) operation: Option<OperationType>,
    pub(super) step: PlannedStep,
    pub(super) desired: DesiredCluster,
    pub(super) observed: ObservedCluster,
}

/// Plans again, from what the server says now. Where another step follows from that, nothing is
/// confirmed: `plan` becomes the server's plan, without its step, and the next reconcile starts
/// over.
pub(super) async fn confirm_step(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    plan: &mut Plan,
    now: Timestamp,
) -> Result<Option<ConfirmedStep>, Error> {
    let Some(step) = plan.step.clone() else { return Ok(None) };
    let (object, live_cluster) = read_live_cluster(ctx, desired).await?;
    let observed = observation::from_server(ctx, &live_cluster, now).await?;
    let round = security_round::next_security_round(&live_cluster, &observed);
    let live_cluster = in_round(ctx, &object, &live_cluster, round)?
        .into_owned()
        .fit_to_pools(&observed.existing_pools());
    let live_plan = plan_next_step(&live_cluster, &observed);
    if live_plan.step.as_ref() != Some(&step) {
        debug!(
            namespace = desired.namespace,
            name = desired.name,
            cached = ?step,
            live = ?live_plan.step,
            "The caches lag behind"
        );
        *plan = Plan { step: None, ..live_plan };
        return Ok(None);
    }
    let operation = plan.operation;
    Ok(Some(ConfirmedStep { operation, step, desired: live_cluster, observed }))
}

/// Reads the cluster from the server. Returns a conflict if it has another uid or generation than
/// in the caches, or is being deleted.
async fn read_live_cluster(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
) -> Result<(DynamicObject, DesiredCluster), Error> {
    let (kind, name) = (desired.database.names.kind, &desired.name);
    let api = ctx.read_api(&desired.database.api_resource(), &desired.namespace);
    let object =
        api.get(name).await.map_err(|error| Error::from_request("get", kind, name, error))?;
    let live_cluster = parse_desired(ctx, desired.database, &object, None)?;
    if live_cluster.uid != desired.uid
        || live_cluster.generation != desired.generation
        || live_cluster.deleted
    {
        return Err(Error::Conflict { kind: kind.to_owned(), name: name.clone() });
    }
    Ok((object, live_cluster))
}
