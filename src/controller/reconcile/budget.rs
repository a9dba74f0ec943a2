//! Keeps a cluster's PodDisruptionBudget: closed before a step of ours, open while nothing speaks
//! against an eviction.
//!
//! Invariants: a budget is deleted only after the one that replaces it was written; and while the
//! cluster has a budget, a step is carried out only after the closed one was written. Kubernetes
//! refuses every eviction from that write on, until it has counted again. While the budget is not
//! known to be the cluster's, it is not written, and only steps are carried out that take no node.

use k8s_openapi::{
    api::policy::v1::PodDisruptionBudget, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::api::ApiResource;
use tracing::info;

use crate::controller::{
    context::{ControllerContext, Error, stall_for_write_error},
    desired_state::DesiredCluster,
    ensure::ensure_object,
    observe::{ObservedCluster, is_owned_by, store_mismatch},
    ownership::is_left_behind,
    plan::{DrainHold, Plan, drain_hold},
    resources::{PreparedObject, disruption_budget, former_budget},
    write::{delete_object, exact_preconditions},
};

/// Writes the budget, if it differs, and removes others that we made for these pods. Takes the step
/// out of `plan` where an open budget may remain, or while an eviction is under way.
pub(super) async fn keep_budget(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &mut ObservedCluster,
    plan: &mut Plan,
) -> Result<(), Error> {
    let mut members = observed.pools.iter().flat_map(|pool| pool.members.values());
    if desired.paused || (desired.stalled.is_some() && !members.any(|m| m.pod.is_some())) {
        return Ok(());
    }
    let desired_budgets = build_desired_budgets(ctx, desired, observed, plan);
    for budget in &desired_budgets {
        if let Err(error) = ensure_object(ctx, desired, budget).await {
            let cause = stall_for_write_error(error)?;
            // The budget that exists may be open.
            let (kind, name) = (&budget.resource.kind, &budget.name);
            if cause.is_about_origin() {
                plan.step.take_if(|step| step.may_take_node());
            } else if ctx.stores.object_metadata(kind, &desired.namespace, name).is_some() {
                plan.step = None;
            }
            observed.refused = Some(cause);
            return Ok(());
        }
    }
    for old_budget in obsolete_budgets(ctx, desired, &desired_budgets) {
        let name = old_budget.name.as_deref().unwrap_or_default();
        delete_object(ctx, desired, &budget_resource(), name, exact_preconditions(&old_budget))
            .await?;
        info!(namespace = desired.namespace, name, "Removed a budget that another one replaces");
    }
    if is_eviction_in_progress(ctx, desired).await? {
        plan.step = None;
    }
    Ok(())
}

/// Returns the budgets that the cluster needs: one; or one for each pool, for a release before 0.3
/// to take over.
fn build_desired_budgets(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    plan: &Plan,
) -> Vec<PreparedObject> {
    let settings = &ctx.settings;
    if settings.owner_references {
        let build_former = |pool| former_budget(desired, settings, pool).into();
        return desired.pools.iter().map(build_former).collect();
    }
    let budget = |hold: Option<&DrainHold>| -> PreparedObject {
        disruption_budget(desired, observed, settings, hold).into()
    };
    let desired_budget = budget(drain_hold(desired, observed, plan).as_ref());
    if obsolete_budgets(ctx, desired, std::slice::from_ref(&desired_budget)).is_empty() {
        return vec![desired_budget];
    }
    // The new budget is closed until the other budgets are seen to be gone.
    vec![budget(Some(&DrainHold::new("BudgetReplaced", "it takes the place of others".to_owned())))]
}

/// Returns the budgets that were made for this cluster, or for an earlier one of its name, and are
/// not in `desired_budgets`.
fn obsolete_budgets(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    desired_budgets: &[PreparedObject],
) -> Vec<ObjectMeta> {
    // What a lost store left is taken over with its StatefulSets, which a person handed over.
    let is_ours = |meta: &ObjectMeta| {
        let is_in_this_store = store_mismatch(meta, &ctx.settings.store_id).is_none();
        ((is_owned_by(meta, desired) && is_in_this_store)
            || is_left_behind(&ctx.stores, desired, meta))
            && meta.deletion_timestamp.is_none()
    };
    let metas = ctx.stores.other_objects(&budget_resource(), desired).into_iter().filter(is_ours);
    metas
        .filter(|meta| {
            desired_budgets.iter().all(|budget| Some(&budget.name) != meta.name.as_ref())
        })
        .collect()
}

/// Is an eviction under way whose pod the caches may still show as running? Kubernetes notes the
/// pod in `disruptedPods` before it deletes it, and strikes it out soon after.
async fn is_eviction_in_progress(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
) -> Result<bool, Error> {
    for meta in ctx.stores.other_objects(&budget_resource(), desired) {
        let name = meta.name.as_deref().unwrap_or_default();
        let budget = ctx.get_object(&budget_resource(), &desired.namespace, name).await?;
        let pods =
            budget.as_ref().and_then(|budget| budget.data["status"]["disruptedPods"].as_object());
        if pods.is_some_and(|pods| !pods.is_empty()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn budget_resource() -> ApiResource {
    ApiResource::erase::<PodDisruptionBudget>(&())
}
