//! Asks the server before a step is carried out. Caches lag behind, and a step that was right for
//! what they hold may be wrong by now.

use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use tracing::debug;

use super::{in_round, observation, read};
use crate::controller::{
    context::{ControllerContext, Error},
    desired_state::DesiredCluster,
    observe::ObservedCluster,
    plan::{OperationType, Plan, PlannedStep, plan},
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
/// confirmed: `planned` becomes the server's plan, without its step, and the next reconcile starts
/// over.
pub(super) async fn confirm(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    planned: &mut Plan,
    now: Timestamp,
) -> Result<Option<ConfirmedStep>, Error> {
    let Some(step) = planned.step.clone() else { return Ok(None) };
    let (object, live) = live(ctx, desired).await?;
    let observed = observation::from_server(ctx, &live, now).await?;
    let round = security_round::next(&live, &observed);
    let live = in_round(ctx, &object, &live, round)?.into_owned().fitting(&observed.existing());
    let again = plan(&live, &observed);
    if again.step.as_ref() != Some(&step) {
        debug!(
            namespace = desired.namespace,
            name = desired.name,
            cached = ?step,
            live = ?again.step,
            "The caches lag behind"
        );
        *planned = Plan { step: None, ..again };
        return Ok(None);
    }
    let operation = planned.operation;
    Ok(Some(ConfirmedStep { operation, step, desired: live, observed }))
}

/// Reads the cluster from the server. Returns a conflict if it has another uid or generation than
/// in the caches, or is being deleted.
async fn live(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
) -> Result<(DynamicObject, DesiredCluster), Error> {
    let (kind, name) = (desired.database.names.kind, &desired.name);
    let api = ctx.read(&desired.database.resource(), &desired.namespace);
    let object = api.get(name).await.map_err(|error| Error::request("get", kind, name, error))?;
    let live = read(ctx, desired.database, &object, None)?;
    if live.uid != desired.uid || live.generation != desired.generation || live.deleted {
        return Err(Error::Conflict { kind: kind.to_owned(), name: name.clone() });
    }
    Ok((object, live))
}
