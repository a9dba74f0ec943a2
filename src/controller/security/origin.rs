//! Whether a Secret under a name of Navigator's may be used. One that lay there before the cluster was
//! created may be a stranger's: who may create Secrets would choose a superuser's password.

use k8s_openapi::api::core::v1::Secret;
use kube::api::ApiResource;

use super::secrets::FoundSecret;
use crate::{
    api::names::annotation,
    controller::{
        context::ControllerContext, desired_state::DesiredCluster, observe::owner_uid,
        ownership::secret_conflict, resources::PreparedObject, security_findings::SecurityProblem,
    },
};

/// Returns why a Secret is not used: it is another cluster's; or it is older than this one, and neither its
/// seal, nor what the cluster uses already, nor a person says that it may be. `keys`: what is sealed.
pub(super) fn origin_problem(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    secret: &FoundSecret,
    keys: &[&str],
    is_in_use: bool,
) -> Option<SecurityProblem> {
    let meta = &secret.meta;
    if let Some(conflict) = secret_conflict(&ctx.stores, desired, meta) {
        return Some(conflict.into());
    }
    let uid = meta.uid.as_deref().unwrap_or_default();
    let created_at = meta.creation_timestamp.as_ref().map(|time| time.0);
    let is_younger =
        created_at.zip(desired.created).is_some_and(|(created_at, cluster)| created_at > cluster);
    // Nobody knew the cluster's uid before it was created.
    let is_own = owner_uid(meta) == Some(desired.uid.as_str());
    if is_in_use
        || is_own
        || (is_younger && owner_uid(meta).is_none())
        || is_proven(ctx, desired, secret, keys)
    {
        return None;
    }
    let (name, namespace) = (meta.name.as_deref().unwrap_or_default(), &desired.namespace);
    let (resource, cluster) = (desired.database.api_resource(), &desired.name);
    let (singular, key) = (resource.kind.to_lowercase(), annotation::ACCEPT_SECRETS);
    let message = format!(
        "Secret {name} is older than this cluster, and nothing shows that Navigator made it, so it is \
         not used. Delete it, and another is made; or, if you know who made it: kubectl annotate \
         {singular} {cluster} -n {namespace} --overwrite {key}={uid}"
    );
    Some(SecurityProblem { reason: "SecretNotConfirmed", message })
}

/// Does a person or the seal say that the Secret is the cluster's, whatever else it bears?
pub(super) fn is_proven(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    secret: &FoundSecret,
    keys: &[&str],
) -> bool {
    let uid = secret.meta.uid.as_deref().unwrap_or_default();
    desired.accepted_secrets.iter().any(|accepted| accepted == uid)
        || is_sealed(ctx, desired, secret, keys)
}

/// Does the Secret bear the seal of what is in it?
pub(super) fn is_sealed(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    secret: &FoundSecret,
    keys: &[&str],
) -> bool {
    let annotations = secret.meta.annotations.as_ref();
    let Some(seal) = annotations.and_then(|values| values.get(annotation::SEAL)) else {
        return false;
    };
    let name = secret.meta.name.as_deref().unwrap_or_default();
    let values = keys.iter().filter_map(|key| Some((*key, secret.value(key)?)));
    ctx.seals.is_valid_seal(seal, &desired.namespace, name, values)
}

/// Seals a Secret that is to be written; `values` are what it will hold under the keys that are sealed.
pub(super) fn seal_secret<'a>(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    object: &mut PreparedObject,
    values: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) {
    debug_assert_eq!(object.resource, ApiResource::erase::<Secret>(&()));
    let seal = ctx.seals.seal(&desired.namespace, &object.name, values);
    object.body["metadata"]["annotations"][annotation::SEAL] = seal.into();
}
