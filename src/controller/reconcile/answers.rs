//! Writes into Pilots what requests that their nodes leave their machines wait for.

use serde_json::json;

use crate::{
    api::names::annotation,
    controller::{
        context::{ControllerContext, Error},
        desired_state::DesiredCluster,
        observe::ObservedCluster,
        plan::{LeaveAnswer, Plan, eviction_answers},
        write::patch_pilot,
    },
};

/// Writes the answers that differ. Where an object of another owner is in the way, nothing is
/// written: the Pilots may be another's.
pub(super) async fn answer_requests(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    plan: &Plan,
) -> Result<(), Error> {
    if observed.stalled.is_some() {
        return Ok(());
    }
    for LeaveAnswer { pilot, resource_version, waits } in eviction_answers(desired, observed, plan)
    {
        let patch = json!({"metadata": {"annotations": {annotation::LEAVE_WAITS: waits}}});
        patch_pilot(ctx, desired, &pilot, &resource_version, patch).await?;
    }
    Ok(())
}
