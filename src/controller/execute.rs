//! Carries out one step of the plan.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaim, Pod, Service},
};
use kube::api::{ApiResource, Patch, PatchParams};
use serde_json::{Value, json};

use super::{
    context::{ControllerContext, Error, MANAGER},
    desired_state::DesiredCluster,
    ensure::{ensure_pilot, pinned_set},
    expansion::ExpansionQuestion,
    observe::{Member, ObservedCluster, ObservedPool, PHASE_OWNER, PilotFacts, is_owned_by},
    plan::{ClaimRef, PlannedStep, pinned_template, without_restart},
    resources::{ephemeral_installer, pilot_resource, spec_patch, stateful_set},
    write::{
        apply_object, delete_object, delete_without_pods, exact_preconditions, patch_pilot,
        try_create, uid_preconditions,
    },
};
use crate::api::{
    names::{self, annotation},
    v1beta1::{PilotIntent, PilotSpec},
};

/// Carries out one step. `observed` must be fresh from the server.
pub(crate) async fn execute_step(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    step: &PlannedStep,
) -> Result<(), Error> {
    match step {
        PlannedStep::Raise { pool, to }
        | PlannedStep::Return { pool, to }
        | PlannedStep::Remove { pool, to, .. } => {
            resize_pool(ctx, desired, observed, pool, *to).await
        }
        PlannedStep::Empty { pool } => resize_pool(ctx, desired, observed, pool, 0).await,
        PlannedStep::Configure { pilot } => {
            give_spec(ctx, desired, observed, pilot, |pilot, desired_spec| {
                without_restart(desired.database, pilot, desired_spec)
            })
            .await
        }
        PlannedStep::Replace { pilot, pod } | PlannedStep::Restart { pilot, pod } => {
            give_spec(ctx, desired, observed, pilot, |_, desired_spec| desired_spec.clone())
                .await?;
            give_template(ctx, desired, observed, pilot).await?;
            delete_pod(ctx, desired, observed, pilot, pod).await
        }
        PlannedStep::Recreate { pilot, pod } | PlannedStep::Vacate { pilot, pod, by: _ } => {
            delete_pod(ctx, desired, observed, pilot, pod).await
        }
        PlannedStep::Renew { pilot, claim, pod } => {
            if let Some(claim) = claim {
                delete_claim(ctx, desired, observed, pilot, claim).await?;
            }
            match pod {
                Some(pod) => delete_pod(ctx, desired, observed, pilot, pod).await,
                None => Ok(()),
            }
        }
        PlannedStep::RestartInPlace { pilot } => {
            give_spec(ctx, desired, observed, pilot, |_, desired_spec| PilotSpec {
                restart_for: desired_spec.config_hash.clone(),
                ..desired_spec.clone()
            })
            .await
        }
        PlannedStep::Decommission { pilot } => {
            set_phase(ctx, desired, observed, pilot, &PilotIntent::Decommissioned).await
        }
        PlannedStep::Keep { pilot } => {
            set_phase(ctx, desired, observed, pilot, &PilotIntent::Running).await
        }
        PlannedStep::Stop { pilots } => {
            for pilot in pilots {
                set_phase(ctx, desired, observed, pilot, &PilotIntent::Stopped).await?;
            }
            Ok(())
        }
        PlannedStep::Start { pilots } => {
            for pilot in pilots {
                set_phase(ctx, desired, observed, pilot, &PilotIntent::Running).await?;
            }
            Ok(())
        }
        PlannedStep::Deliver { pilot, pod, container, image: _ } => {
            start_pilot_update(ctx, desired, pilot, pod, container).await
        }
        PlannedStep::Forget { pilot, nodes } => {
            let patch = json!({"spec": {"forget": nodes}});
            patch_known(ctx, desired, observed, pilot, patch).await
        }
        PlannedStep::BeginAnew { pilot, cluster } => {
            let patch = json!({"spec": {"unsafeBootstrap": cluster}});
            patch_known(ctx, desired, observed, pilot, patch).await
        }
        PlannedStep::TakeWordBack { pilot, request } => {
            let word = Value::Null;
            let mut patch =
                json!({"metadata": {"annotations": {annotation::UNSAFE_BOOTSTRAP: word}}});
            if *request {
                patch["spec"]["unsafeBootstrap"] = Value::Null;
            }
            patch_known(ctx, desired, observed, pilot, patch).await
        }
        PlannedStep::KeepData { pilot } => {
            let word = Value::Null;
            let patch = json!({"metadata": {"annotations": {annotation::GIVE_UP: word}}});
            patch_known(ctx, desired, observed, pilot, patch).await
        }
        PlannedStep::DeleteClaim { pilot, claim } => {
            delete_claim(ctx, desired, observed, pilot, claim).await
        }
        PlannedStep::ResizeClaim { pilot, claim, size } => {
            resize_claim(ctx, desired, observed, pilot, claim, size).await
        }
        PlannedStep::RenewSet { set, uid } => {
            let observed_pool = observed.pools.iter().find(|pool| pool.set_name == *set);
            let version =
                observed_pool.and_then(|pool| pool.set.as_ref()).map(|set| &set.resource_version);
            let resource = ApiResource::erase::<StatefulSet>(&());
            let desired_pool = observed_pool.and_then(|pool| desired.pool(&pool.name));
            if let (Some(pool), Some(desired_pool)) = (observed_pool, desired_pool) {
                let replicas = pool.replicas();
                let new_set =
                    stateful_set(desired, &ctx.settings, desired_pool, None, replicas, None);
                try_create(ctx, desired, &new_set).await?;
            }
            delete_without_pods(ctx, desired, &resource, set, uid_preconditions(uid, version)).await
        }
        PlannedStep::DeletePilot { pilot, uid } => {
            let observed_pilot =
                find_node(observed, pilot).and_then(|(_, member)| member.pilot.as_ref());
            let version = observed_pilot.map(|pilot| &pilot.resource_version);
            delete_object(ctx, desired, &pilot_resource(), pilot, uid_preconditions(uid, version))
                .await
        }
        PlannedStep::DeletePool { pool: _, set } => {
            let service = ApiResource::erase::<Service>(&());
            let pods = names::pods_service(set);
            if let Some(service_metadata) =
                ctx.stores.object_metadata("Service", &desired.namespace, &pods)
                && is_owned_by(&service_metadata, desired)
            {
                delete_object(
                    ctx,
                    desired,
                    &service,
                    &pods,
                    exact_preconditions(&service_metadata),
                )
                .await?;
            }
            let observed_pool = observed.pools.iter().find(|pool| pool.set_name == *set);
            let object = observed_pool.and_then(|pool| pool.set.as_ref()?.object.as_deref());
            let Some(object) = object else { return Ok(()) };
            let resource = ApiResource::erase::<StatefulSet>(&());
            delete_object(ctx, desired, &resource, set, exact_preconditions(&object.metadata)).await
        }
    }
}

fn find_node<'a>(
    observed: &'a ObservedCluster,
    name: &str,
) -> Option<(&'a ObservedPool, &'a Member)> {
    observed.pools.iter().find_map(|pool| {
        let member = pool.members.values().find(|member| member.name == name)?;
        Some((pool, member))
    })
}

/// Patches a Pilot over the version at which the step was decided.
async fn patch_known(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    pilot: &str,
    patch: Value,
) -> Result<(), Error> {
    let observed_pilot = find_node(observed, pilot).and_then(|(_, member)| member.pilot.as_ref());
    let Some(facts) = observed_pilot else { return Ok(()) };
    patch_pilot(ctx, desired, pilot, &facts.resource_version, patch).await
}

async fn delete_pod(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    name: &str,
    uid: &str,
) -> Result<(), Error> {
    let observed_pod = find_node(observed, name).and_then(|(_, member)| member.pod.as_ref());
    let version = observed_pod.map(|pod| &pod.resource_version);
    let resource = ApiResource::erase::<Pod>(&());
    delete_object(ctx, desired, &resource, name, uid_preconditions(uid, version)).await
}

async fn delete_claim(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    pilot: &str,
    claim: &ClaimRef,
) -> Result<(), Error> {
    let observed_claim = find_node(observed, pilot).and_then(|(_, member)| member.claim.as_ref());
    let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
    if !observed_claim.is_some_and(|observed_claim| observed_claim.is_of(desired)) {
        // `ensure` gives it the cluster's uid first, or says whose it is.
        return Err(Error::Conflict { kind: resource.kind, name: claim.name.clone() });
    }
    let version = observed_claim.map(|claim| &claim.resource_version);
    delete_object(ctx, desired, &resource, &claim.name, uid_preconditions(&claim.uid, version))
        .await
}

/// Enlarges a claim, over the version at which the step was decided.
async fn resize_claim(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    pilot: &str,
    claim: &ClaimRef,
    size: &str,
) -> Result<(), Error> {
    let observed_claim = find_node(observed, pilot).and_then(|(_, member)| member.claim.as_ref());
    let version = observed_claim.map(|claim| &claim.resource_version);
    let patch = json!({
        "metadata": {"uid": claim.uid, "resourceVersion": version},
        "spec": {"resources": {"requests": {"storage": size}}},
    });
    let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let result = ctx
        .write_api(&resource, &desired.namespace)?
        .patch(&claim.name, &params, &Patch::Merge(&patch))
        .await;
    let Err(error) = result else { return Ok(()) };
    if let kube::Error::Api(status) = &error
        && matches!(status.code, 403 | 422)
    {
        // Each claim alone would have had room in a quota.
        let (claim, uid, size) = (claim.name.clone(), claim.uid.clone(), size.to_owned());
        let question = ExpansionQuestion { claim, uid, size };
        ctx.expansion.record_answer(desired, question, Err(status.message.clone()));
        return Ok(());
    }
    Err(Error::from_request("enlarge", &resource.kind, &claim.name, error))
}

/// Writes to a Pilot what `part` takes of the newest spec, and that its node has had its turn.
async fn give_spec(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    pilot: &str,
    part: impl Fn(&PilotFacts, &PilotSpec) -> PilotSpec,
) -> Result<(), Error> {
    let Some((pool, member)) = find_node(observed, pilot) else { return Ok(()) };
    let (Some(desired_pool), Some(facts)) = (desired.pool(&pool.name), &member.pilot) else {
        return Ok(());
    };
    let mut patch = json!({});
    if let Some(spec) = spec_patch(&facts.spec, &part(facts, &desired_pool.pilot)) {
        patch["spec"] = spec;
    }
    if facts.pinned.is_some() {
        patch["metadata"]["annotations"][annotation::PINNED_POD] = Value::Null;
    }
    if patch.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(());
    }
    patch_pilot(ctx, desired, pilot, &facts.resource_version, patch).await
}

/// Gives the StatefulSet of a node the newest template, for the node's next pod.
async fn give_template(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    pilot: &str,
) -> Result<(), Error> {
    let Some((pool, _)) = find_node(observed, pilot) else { return Ok(()) };
    let (Some(desired_pool), Some(set)) = (desired.pool(&pool.name), &pool.set) else {
        return Ok(());
    };
    if desired_pool.matches_pod_hash(&set.template) {
        return Ok(());
    }
    let version = Some(set.resource_version.clone());
    let set = stateful_set(desired, &ctx.settings, desired_pool, Some(pool), set.replicas, None);
    apply_object(ctx, desired, &set, version).await
}

/// Adds a container that installs the desired pilot to a running pod. The server merges lists of
/// containers by name, so existing containers stay. The uid in the patch keeps it from a newer pod
/// of this name.
async fn start_pilot_update(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    pilot: &str,
    pod: &str,
    container: &str,
) -> Result<(), Error> {
    let container = ephemeral_installer(desired, container);
    let patch = json!({
        "metadata": {"uid": pod}, "spec": {"ephemeralContainers": [container]},
    });
    let api = ctx.write_api(&ApiResource::erase::<Pod>(&()), &desired.namespace)?;
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    api.patch_subresource("ephemeralcontainers", pilot, &params, &Patch::Strategic(&patch))
        .await
        .map_err(|error| Error::from_request("bring a pilot into", "Pod", pilot, error))?;
    Ok(())
}

/// Sets the replicas of a pool. The Pilots of new nodes are made first, because a pilot waits for
/// its Pilot.
async fn resize_pool(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    pool: &str,
    to: u32,
) -> Result<(), Error> {
    let Some(observed_pool) = observed.pools.iter().find(|other| other.name == pool) else {
        return Ok(());
    };
    let Some(set) = &observed_pool.set else { return Ok(()) };
    if let Some(desired_pool) = desired.pool(pool) {
        // New nodes get specs that fit the cluster as it is after the resize.
        let observed_after = observed.with_replicas(pool, to);
        let fitted = desired.clone().fit_to_pools(&observed_after.existing_pools());
        let fitted_pool = fitted.pool(pool).unwrap_or(desired_pool);
        for ordinal in set.replicas..to {
            ensure_pilot(ctx, desired, observed, fitted_pool, ordinal).await?;
        }
        let version = Some(set.resource_version.clone());
        let pool = observed_after.pools.iter().find(|other| other.name == pool);
        let pin = pool.and_then(|pool| pinned_template(desired, &observed_after, pool));
        let set = pinned_set(ctx, desired, desired_pool, observed_pool, to, pin).await?;
        return apply_object(ctx, desired, &set, version).await;
    }
    // A pool that is no longer desired keeps its last template; only its size changes.
    let patch = json!({
        "metadata": {"resourceVersion": set.resource_version}, "spec": {"replicas": to},
    });
    let api = ctx.write_api(&ApiResource::erase::<StatefulSet>(&()), &desired.namespace)?;
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    api.patch(&observed_pool.set_name, &params, &Patch::Merge(&patch)).await.map_err(|error| {
        Error::from_request("patch", "StatefulSet", &observed_pool.set_name, error)
    })?;
    Ok(())
}

/// Writes the intended phase of a node, with an annotation that the controller wrote it.
async fn set_phase(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    pilot: &str,
    phase: &PilotIntent,
) -> Result<(), Error> {
    let owner = (*phase != PilotIntent::Running).then_some(MANAGER);
    let patch = json!({
        "metadata": {"annotations": {PHASE_OWNER: owner}},
        "spec": {"phase": phase},
    });
    patch_known(ctx, desired, observed, pilot, patch).await
}
