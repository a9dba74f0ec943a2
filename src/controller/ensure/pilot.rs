//! Creates, adopts and updates the Pilot of a node, where that restarts nothing.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ApiResource, DynamicObject, PostParams};
use serde_json::json;
use tracing::info;

use super::{adopt, check_not_terminating};
use crate::{
    api::{
        names::{self, annotation},
        v1beta1::PilotSpec,
    },
    controller::{
        context::{ControllerContext, Error, MANAGER},
        desired_state::{DesiredCluster, DesiredPool},
        observe::ObservedCluster,
        plan::{BirthSpec, pinned_to, revision_for_new_pod},
        resources::{pilot_body, pilot_resource, spec_patch},
        write::patch_pilot,
    },
};

/// Creates the Pilot of a node, or updates it where that restarts nothing.
///
/// A change that needs a restart is held back from a node that has a pod. Otherwise a database that
/// crashes would come up with a configuration before its turn, or with a version that its image
/// does not have. The steps `Configure`, `Replace`, `Restart` and `RestartInPlace` give such a
/// change to one node.
pub(crate) async fn ensure_pilot(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    pool: &DesiredPool,
    ordinal: u32,
) -> Result<(), Error> {
    let name = names::pilot_name(&pool.set, ordinal);
    let observed_pool = observed.pools.iter().find(|other| other.name == pool.name);
    let member = observed_pool.and_then(|observed_pool| observed_pool.members.get(&ordinal));
    let Some(pilot) = member.and_then(|member| member.pilot.as_ref()) else {
        return create_pilot(ctx, desired, observed, pool, ordinal).await;
    };
    let mut patch = json!({});
    if !pilot.owned {
        // The Pilot has no controller, so the cluster that needs its name adopts it.
        let body = pilot_body(desired, pool, &name, ordinal, &ctx.settings);
        for part in ["labels", "annotations", "ownerReferences"] {
            patch["metadata"][part] = body["metadata"][part].clone();
        }
        // What it notes is of the cluster that it was made for, or of the copy that it was put back
        // from.
        let earlier_uid = earlier_claim(ctx, desired, &name).await?;
        patch["metadata"]["annotations"][annotation::EARLIER_CLAIM] = json!(earlier_uid);
    }
    let pin =
        observed_pool.and_then(|observed_pool| pinned_to(desired, observed_pool, member?, pool));
    if pilot.pinned.as_deref() != pin {
        patch["metadata"]["annotations"][annotation::PINNED_POD] = json!(pin);
    }
    // Where its next pod is made of the newest template, the configuration must be the newest too.
    let is_absent = member.is_some_and(|member| member.pod.is_none()) && pin.is_none();
    let requires_restart = pilot.spec.config_hash.as_deref() != Some(pool.config_hash());
    if (!requires_restart || is_absent)
        && let Some(spec) = spec_patch(&pilot.spec, &pool.pilot)
    {
        patch["spec"] = spec;
    }
    if patch.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(());
    }
    patch_pilot(ctx, desired, &name, &pilot.resource_version, patch).await
}

async fn create_pilot(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    pool: &DesiredPool,
    ordinal: u32,
) -> Result<(), Error> {
    check_not_terminating(ctx, desired).await?;
    let resource = pilot_resource();
    let name = &names::pilot_name(&pool.set, ordinal);
    let observed_pool = observed.pools.iter().find(|other| other.name == pool.name);
    let revision = observed_pool
        .and_then(|observed_pool| revision_for_new_pod(desired, observed, observed_pool));
    let mut body = match revision {
        Some(BirthSpec { pilot, .. }) => {
            let pilot = PilotSpec {
                forget: Vec::new(),
                unsafe_bootstrap: None,
                // What was signed for a sibling is not for this node.
                security: pilot.security.as_ref().and(pool.pilot.security.clone()),
                ..pilot.clone()
            };
            let sibling = DesiredPool { pilot, ..pool.clone() };
            pilot_body(desired, &sibling, name, ordinal, &ctx.settings)
        }
        None => pilot_body(desired, pool, name, ordinal, &ctx.settings),
    };
    if let Some(BirthSpec { template, .. }) = revision {
        body["metadata"]["annotations"][annotation::PINNED_POD] = json!(template);
    }
    let earlier_uid = earlier_claim(ctx, desired, name).await?;
    body["metadata"]["annotations"][annotation::EARLIER_CLAIM] = json!(earlier_uid);
    let object: DynamicObject =
        serde_json::from_value(body.clone()).expect("a Pilot has metadata and string keys");
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let api = ctx.write_api(&resource, &desired.namespace)?;
    match api.create(&params, &object).await {
        Ok(_) => info!(namespace = desired.namespace, name, "Created Pilot"),
        Err(error) => {
            let error = Error::from_request("create", "Pilot", name, error);
            if matches!(error, Error::Conflict { .. }) {
                adopt::adopt_pilot(ctx, desired, name, &body).await?;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Returns the uid of the node's claim as it is now, empty where there is none. The server is asked,
/// not a cache: if an older volume counted as new, its data could be given up.
async fn earlier_claim(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    pilot: &str,
) -> Result<String, Error> {
    let claim = format!("{}-{pilot}", desired.database.names.data_volume);
    let claims = ApiResource::erase::<PersistentVolumeClaim>(&());
    let result = ctx.read_api(&claims, &desired.namespace).get_opt(&claim).await;
    let response =
        result.map_err(|error| Error::from_request("get", &claims.kind, &claim, error))?;
    Ok(response.and_then(|claim| claim.metadata.uid).unwrap_or_default())
}
