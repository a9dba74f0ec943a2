//! The pod template of a StatefulSet, where that is to be an older one than the newest.

use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{ApiResource, ListParams};
use serde_json::Value;
use tracing::warn;

use crate::{
    api::names::annotation,
    controller::{
        context::{ControllerContext, Error},
        desired_state::{DesiredCluster, DesiredPool},
        observe::{ObservedPool, controller_owner},
        resources::{PreparedObject, stateful_set},
    },
};

/// Builds the StatefulSet of an existing pool. With `pin` it keeps the template of that config
/// hash, as the server has it. If the server no longer has that template, it gets the newest one.
pub(crate) async fn pinned_set(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    desired_pool: &DesiredPool,
    observed_pool: &ObservedPool,
    replicas: u32,
    pin: Option<&str>,
) -> Result<PreparedObject, Error> {
    let build = |pin| {
        stateful_set(desired, &ctx.settings, desired_pool, Some(observed_pool), replicas, pin)
    };
    let Some(hash) = pin else { return Ok(build(None)) };
    let mut set = build(pin);
    let Some(template) = find_template(ctx, desired, &set, observed_pool, hash).await? else {
        let (namespace, name) = (&desired.namespace, &set.name);
        warn!(%namespace, name, hash, "No revision has the pods' template; new pods get the newest");
        return Ok(build(None));
    };
    set.body["spec"]["template"] = template;
    Ok(set)
}

/// Returns the template with this config hash: the set's own, or the one of an earlier revision.
async fn find_template(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    set: &PreparedObject,
    observed_pool: &ObservedPool,
    hash: &str,
) -> Result<Option<Value>, Error> {
    let has_hash = |template: &Value| {
        template["metadata"]["annotations"][annotation::CONFIG_HASH].as_str() == Some(hash)
    };
    // The cache holds a typed object, which lacks fields that our types do not know.
    let result = ctx.read_api(&set.resource, &desired.namespace).get_opt(&set.name).await;
    let response =
        result.map_err(|error| Error::from_request("get", &set.resource.kind, &set.name, error))?;
    let current_template = response.map(|response| response.data["spec"]["template"].clone());
    if let Some(current_template) = current_template.filter(has_hash) {
        return Ok(Some(current_template));
    }
    let uid = observed_pool.set.as_ref().and_then(|set| set.object.as_ref()?.metadata.uid.clone());
    let resource = ApiResource::erase::<ControllerRevision>(&());
    let selector = format!("{}={}", desired.database.names.cluster_label, desired.name);
    let params = ListParams::default().labels(&selector);
    let revisions = match ctx.read_api(&resource, &desired.namespace).list(&params).await {
        // An older ClusterRole does not let us list them, and `navigator local` has none.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => return Ok(None),
        result => {
            result.map_err(|error| Error::from_request("list", &resource.kind, &set.name, error))?
        }
    };
    let set_revisions = revisions.items.into_iter().filter(|revision| {
        let owner = controller_owner(&revision.metadata).map(|owner| &owner.uid);
        uid.is_some() && owner == uid.as_ref()
    });
    let mut templates = set_revisions.map(|revision| {
        let mut template = revision.data["data"]["spec"]["template"].clone();
        if let Some(template) = template.as_object_mut() {
            // The StatefulSet controller stores a template as a patch.
            template.remove("$patch");
        }
        template
    });
    Ok(templates.find(has_hash))
}
