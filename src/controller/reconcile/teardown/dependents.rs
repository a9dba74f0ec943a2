//! Finds the objects of a cluster in Kubernetes, as the server shows them now: those that are
//! surely the cluster's, and those that only carry its labels.

use std::fmt;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount},
        networking::v1::NetworkPolicy,
        policy::v1::PodDisruptionBudget,
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Resource,
    api::{ApiResource, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    api::names::{annotation, label},
    controller::{
        context::{ControllerContext, Error, MANAGER},
        desired_state::DesiredCluster,
        observe::{ObservedCluster, controller, other_store, owned, owners_but_ours},
        resources::{self, PreparedObject},
    },
};

/// An object that was made for a cluster, or carries its labels.
#[derive(Clone, Debug)]
pub(super) struct DependentObject {
    pub(super) resource: ApiResource,
    pub(super) meta: ObjectMeta,
}

impl DependentObject {
    pub(super) fn name(&self) -> &str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    pub(super) fn is<K: Resource<DynamicType = ()>>(&self) -> bool {
        self.resource.kind == K::kind(&())
    }
}

impl fmt::Display for DependentObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.resource.kind, self.name())
    }
}

/// The objects of a cluster, without Pilots, pods and claims.
#[derive(Debug, Default)]
pub(super) struct ClusterDependents {
    /// Objects of this cluster and this store, in the order in which they are deleted.
    pub(super) ours: Vec<DependentObject>,
    /// Objects with the cluster's labels that were made for another cluster, or for none.
    pub(super) strange: Vec<DependentObject>,
    /// Objects of this cluster that are marked with the identity of another store.
    pub(super) elsewhere: Vec<DependentObject>,
    /// Names of the cluster's pods.
    pub(super) pods: Vec<String>,
}

/// Returns the kinds of Kubernetes objects that the controller makes, in the order in which they
/// are deleted: pilots need their rights to the end.
fn kinds() -> [ApiResource; 9] {
    [
        ApiResource::erase::<StatefulSet>(&()),
        ApiResource::erase::<PodDisruptionBudget>(&()),
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<NetworkPolicy>(&()),
        ApiResource::erase::<ConfigMap>(&()),
        ApiResource::erase::<Secret>(&()),
        ApiResource::erase::<RoleBinding>(&()),
        ApiResource::erase::<Role>(&()),
        ApiResource::erase::<ServiceAccount>(&()),
    ]
}

/// Finds the cluster's objects: lists by the cluster's label, and asks by name for those that may
/// have lost the label.
pub(super) async fn find(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> Result<ClusterDependents, Error> {
    let labels = format!("{}={}", desired.database.names.cluster_label, desired.name);
    let params = ListParams::default().labels(&labels);
    let budget = resources::disruption_budget(desired, observed, &ctx.settings, None);
    let made: Vec<PreparedObject> =
        resources::resources(desired, observed, &ctx.settings, |_| None)
            .into_iter()
            .chain([budget])
            .map(PreparedObject::from)
            .collect();
    let mut found = ClusterDependents::default();
    for resource in kinds() {
        let api = ctx.read(&resource, &desired.namespace);
        let listed = api.list(&params).await;
        let listed =
            listed.map_err(|error| Error::request("list", &resource.kind, &desired.name, error))?;
        let mut metas: Vec<ObjectMeta> = listed.items.into_iter().map(|one| one.metadata).collect();
        for PreparedObject { name, .. } in made.iter().filter(|one| one.resource == resource) {
            if metas.iter().any(|meta| meta.name.as_ref() == Some(name)) {
                continue;
            }
            let unlabelled = api.get_opt(name).await;
            let unlabelled =
                unlabelled.map_err(|error| Error::request("get", &resource.kind, name, error))?;
            metas.extend(unlabelled.map(|one| one.metadata).filter(|meta| owned(meta, desired)));
        }
        for meta in metas {
            let of_store = other_store(&meta, &ctx.settings.store_id).is_none();
            let list = match (owned(&meta, desired), of_store) {
                (true, true) => &mut found.ours,
                (true, false) => &mut found.elsewhere,
                (false, _) => &mut found.strange,
            };
            list.push(DependentObject { resource: resource.clone(), meta });
        }
    }
    found.pods = pods(ctx, desired, &params, &found.strange).await?;
    Ok(found)
}

/// Returns the cluster's remaining pods, without those of StatefulSets that are not its own. A pod
/// that no StatefulSet controls is not waited for.
async fn pods(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    params: &ListParams,
    strange: &[DependentObject],
) -> Result<Vec<String>, Error> {
    let theirs = |set: &str| strange.iter().any(|one| one.is::<StatefulSet>() && one.name() == set);
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), &desired.namespace);
    let listed = api.list_metadata(params).await;
    let listed = listed.map_err(|error| Error::request("list", "Pod", &desired.name, error))?;
    let ours = listed.items.into_iter().filter(|pod| {
        let set = controller(&pod.metadata).filter(|owner| owner.kind == "StatefulSet");
        set.is_some_and(|set| !theirs(&set.name))
    });
    Ok(ours.filter_map(|pod| pod.metadata.name).collect())
}

/// Takes our owner references, annotations and the managed-by label off an object.
pub(super) async fn release(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    one: &DependentObject,
) -> Result<(), Error> {
    let DependentObject { resource, meta } = one;
    let patch = json!({"metadata": {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "ownerReferences": owners_but_ours(meta),
        "labels": {label::K8S_MANAGED_BY: Value::Null},
        "annotations": {annotation::CLUSTER_UID: Value::Null, annotation::STORE_ID: Value::Null},
    }});
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    match ctx
        .write(resource, &desired.namespace)?
        .patch(one.name(), &params, &Patch::Merge(&patch))
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::request("patch", &resource.kind, one.name(), error)),
    }
}
