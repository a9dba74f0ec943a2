//! Puts the cluster's uid on the claims of its nodes, and the labels and annotations that the spec
//! names: a StatefulSet gives the latter only to claims that it makes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ApiResource, Patch, PatchParams};
use serde_json::{Map, Value, json};

use crate::{
    api::names::annotation,
    controller::{
        context::{ControllerContext, Error, MANAGER},
        desired_state::DesiredCluster,
        observe::ObservedPool,
        ownership::{ClaimOwner, claim_owner},
        resources::claim_templates,
    },
};

/// Puts the cluster's uid on those claims of a pool that the cluster takes up; see
/// [`claim_owner`](crate::controller::ownership::claim_owner).
pub(crate) async fn adopt_claims(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    pool: &ObservedPool,
) -> Result<(), Error> {
    let claims = pool.members.values().filter_map(|member| member.claim.as_ref());
    for claim in claims.filter(|claim| !claim.terminating) {
        if claim_owner(&ctx.stores, desired, &pool.name, &claim.marks) != ClaimOwner::Free {
            continue;
        }
        let patch = json!({"metadata": {
            "uid": claim.uid,
            "resourceVersion": claim.resource_version,
            "annotations": {annotation::CLUSTER_UID: desired.uid},
        }});
        patch_claim(ctx, desired, &claim.name, &patch).await?;
    }
    Ok(())
}

async fn patch_claim(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    name: &str,
    patch: &Value,
) -> Result<(), Error> {
    let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let result = ctx
        .write_api(&resource, &desired.namespace)?
        .patch(name, &params, &Patch::Merge(patch))
        .await;
    match result {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::from_request("label", &resource.kind, name, error)),
    }
}

/// Adds what a pool's claims lack. A label or annotation that is no longer in the spec stays, since
/// another client may have written it.
pub(super) async fn label_claims(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    pool: &ObservedPool,
) -> Result<(), Error> {
    let desired_pool = desired.pool(&pool.name);
    let Some(template) =
        desired_pool.and_then(|desired_pool| claim_templates(desired, desired_pool).pop())
    else {
        return Ok(());
    };
    let persistence = desired_pool.and_then(|desired_pool| desired_pool.persistence.as_ref());
    let is_unlabeled = persistence.is_none_or(|persistence| {
        persistence.labels.is_empty() && persistence.annotations.is_empty()
    });
    let members = pool.nodes().filter_map(|(_, member)| member?.claim.as_ref());
    for claim in members.filter(|claim| !claim.terminating && !is_unlabeled) {
        let cached_claim = ctx.stores.claims.get_object(&desired.namespace, &claim.name);
        let Some(cached_claim) = cached_claim else { continue };
        let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
        let full_claim = ctx.full_object(&resource, &cached_claim.metadata).await?;
        let Some(full_claim) = full_claim else { continue };
        let labels =
            missing_entries(full_claim.metadata.labels.as_ref(), template.metadata.labels.as_ref());
        let annotations = missing_entries(
            full_claim.metadata.annotations.as_ref(),
            template.metadata.annotations.as_ref(),
        );
        if labels.is_empty() && annotations.is_empty() {
            continue;
        }
        let patch = json!({
            "metadata": {"uid": claim.uid, "labels": labels, "annotations": annotations},
        });
        patch_claim(ctx, desired, &claim.name, &patch).await?;
    }
    Ok(())
}

/// Returns the entries of `desired` that `existing` has not, or has with other values.
fn missing_entries(
    existing: Option<&BTreeMap<String, String>>,
    desired: Option<&BTreeMap<String, String>>,
) -> Map<String, Value> {
    let existing_value = |key: &String| existing.and_then(|existing| existing.get(key));
    let missing_pairs =
        desired.into_iter().flatten().filter(|(key, value)| existing_value(key) != Some(value));
    missing_pairs.map(|(key, value)| (key.clone(), json!(value))).collect()
}
