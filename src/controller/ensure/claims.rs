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
pub(crate) async fn own(
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
    let done =
        ctx.write(&resource, &desired.namespace)?.patch(name, &params, &Patch::Merge(patch)).await;
    match done {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::request("label", &resource.kind, name, error)),
    }
}

/// Adds what a pool's claims lack. A label or annotation that the spec names no more stays, since
/// another hand may have written it.
pub(super) async fn mark(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    pool: &ObservedPool,
) -> Result<(), Error> {
    let wanted = desired.pool(&pool.name);
    let Some(made) = wanted.and_then(|wanted| claim_templates(desired, wanted).pop()) else {
        return Ok(());
    };
    let named = wanted.and_then(|wanted| wanted.persistence.as_ref());
    let none = named.is_none_or(|named| named.labels.is_empty() && named.annotations.is_empty());
    let members = pool.running().filter_map(|(_, member)| member?.claim.as_ref());
    for claim in members.filter(|claim| !claim.terminating && !none) {
        let known = ctx.stores.claims.named(&desired.namespace, &claim.name);
        let Some(known) = known else { continue };
        let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
        let found = ctx.whole(&resource, &known.metadata).await?;
        let Some(found) = found else { continue };
        let labels = missing(found.metadata.labels.as_ref(), made.metadata.labels.as_ref());
        let annotations =
            missing(found.metadata.annotations.as_ref(), made.metadata.annotations.as_ref());
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

/// Returns the entries of `wanted` that `found` has not, or has with other values.
fn missing(
    found: Option<&BTreeMap<String, String>>,
    wanted: Option<&BTreeMap<String, String>>,
) -> Map<String, Value> {
    let has = |key: &String| found.and_then(|found| found.get(key));
    let lacks = wanted.into_iter().flatten().filter(|(key, value)| has(key) != Some(value));
    lacks.map(|(key, value)| (key.clone(), json!(value))).collect()
}
