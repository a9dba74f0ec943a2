//! Asks the API server whether claims can grow, by patches that change nothing.
//!
//! The admission of the server knows the class of a claim and its quotas, so no right on
//! StorageClasses is needed.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ApiResource, Patch, PatchParams};
use serde_json::json;
use tracing::debug;

use crate::{
    controller::{
        context::{ControllerContext, Error, MANAGER, stall_for_refusal},
        desired_state::DesiredCluster,
        expansion::ExpansionQuestion,
        observe::ObservedCluster,
    },
    error::chain,
};

/// Asks for each claim that must grow, unless a fresh answer is known.
pub(super) async fn check_expansions(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) {
    for question in ctx.expansion.pending_questions(desired, observed) {
        if let Some(answer) = try_size(ctx, desired, &question).await {
            ctx.expansion.record_answer(desired, question, answer);
        }
    }
}

/// Returns whether the server would take the size; `None` where its answer says nothing of that.
async fn try_size(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    question: &ExpansionQuestion,
) -> Option<Result<(), String>> {
    let ExpansionQuestion { claim, uid, size } = question;
    let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
    let api = ctx.write_api(&resource, &desired.namespace).ok()?;
    let patch = json!({
        "metadata": {"uid": uid}, "spec": {"resources": {"requests": {"storage": size}}},
    });
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        dry_run: true,
        ..PatchParams::default()
    };
    let Err(error) = api.patch(claim, &params, &Patch::Merge(&patch)).await else {
        return Some(Ok(()));
    };
    if let kube::Error::Api(status) = &error
        && matches!(status.code, 403 | 422)
    {
        return Some(Err(status.message.clone()));
    }
    match stall_for_refusal(Error::from_request("enlarge", &resource.kind, claim, error)) {
        Ok(refusal) => Some(Err(refusal.message)),
        Err(error) => {
            debug!(claim, error = %chain(&error), "Failed to ask whether a claim can grow");
            None
        }
    }
}
