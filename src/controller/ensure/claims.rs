//! Puts the labels and annotations that the spec names on claims that exist: a StatefulSet gives
//! them only to claims that it makes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ApiResource, Patch, PatchParams};
use serde_json::{Map, Value, json};

use crate::controller::{
    context::{ControllerContext, Error, MANAGER},
    desired_state::DesiredCluster,
    observe::ObservedPool,
    resources::claim_templates,
};

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
        let found = ctx.stores.claims.named(&desired.namespace, &claim.name);
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
        let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        ctx.write(&resource, &desired.namespace)?
            .patch(&claim.name, &params, &Patch::Merge(&patch))
            .await
            .map_err(|error| Error::request("label", &resource.kind, &claim.name, error))?;
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
