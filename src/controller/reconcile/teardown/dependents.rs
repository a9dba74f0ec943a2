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
        observe::{
            ObservedCluster, controller_owner, is_owned_by, owners_but_ours, store_mismatch,
        },
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

    pub(super) fn is_kind<K: Resource<DynamicType = ()>>(&self) -> bool {
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
fn dependent_kinds() -> [ApiResource; 9] {
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
pub(super) async fn find_dependents(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> Result<ClusterDependents, Error> {
    let labels = format!("{}={}", desired.database.names.cluster_label, desired.name);
    let params = ListParams::default().labels(&labels);
    let budget = resources::disruption_budget(desired, observed, &ctx.settings, None);
    let desired_objects: Vec<PreparedObject> =
        resources::build_resources(desired, observed, &ctx.settings, |_| None)
            .into_iter()
            .chain([budget])
            .map(PreparedObject::from)
            .collect();
    let mut dependents = ClusterDependents::default();
    for resource in dependent_kinds() {
        let api = ctx.read_api(&resource, &desired.namespace);
        let result = api.list(&params).await;
        let objects = result
            .map_err(|error| Error::from_request("list", &resource.kind, &desired.name, error))?;
        let mut metas: Vec<ObjectMeta> =
            objects.items.into_iter().map(|object| object.metadata).collect();
        for PreparedObject { name, .. } in
            desired_objects.iter().filter(|object| object.resource == resource)
        {
            if metas.iter().any(|meta| meta.name.as_ref() == Some(name)) {
                continue;
            }
            let result = api.get_opt(name).await;
            let object =
                result.map_err(|error| Error::from_request("get", &resource.kind, name, error))?;
            metas.extend(
                object.map(|object| object.metadata).filter(|meta| is_owned_by(meta, desired)),
            );
        }
        for meta in metas {
            let is_of_store = store_mismatch(&meta, &ctx.settings.store_id).is_none();
            let list = match (is_owned_by(&meta, desired), is_of_store) {
                (true, true) => &mut dependents.ours,
                (true, false) => &mut dependents.elsewhere,
                (false, _) => &mut dependents.strange,
            };
            list.push(DependentObject { resource: resource.clone(), meta });
        }
    }
    dependents.pods = list_pod_names(ctx, desired, &params, &dependents.strange).await?;
    Ok(dependents)
}

/// Returns the cluster's remaining pods, without those of StatefulSets that are not its own. A pod
/// that no StatefulSet controls is not waited for.
async fn list_pod_names(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    params: &ListParams,
    foreign_objects: &[DependentObject],
) -> Result<Vec<String>, Error> {
    let is_foreign_set = |set: &str| {
        foreign_objects.iter().any(|object| object.is_kind::<StatefulSet>() && object.name() == set)
    };
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), &desired.namespace);
    let result = api.list_metadata(params).await;
    let pod_list =
        result.map_err(|error| Error::from_request("list", "Pod", &desired.name, error))?;
    let remaining_pods = pod_list.items.into_iter().filter(|pod| {
        let set = controller_owner(&pod.metadata).filter(|owner| owner.kind == "StatefulSet");
        set.is_some_and(|set| !is_foreign_set(&set.name))
    });
    Ok(remaining_pods.filter_map(|pod| pod.metadata.name).collect())
}

/// Takes our owner references, annotations and the managed-by label off an object.
pub(super) async fn release_object(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    object: &DependentObject,
) -> Result<(), Error> {
    let DependentObject { resource, meta } = object;
    let patch = json!({"metadata": {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "ownerReferences": owners_but_ours(meta),
        "labels": {label::K8S_MANAGED_BY: Value::Null},
        "annotations": {annotation::CLUSTER_UID: Value::Null, annotation::STORE_ID: Value::Null},
    }});
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    match ctx
        .write_api(resource, &desired.namespace)?
        .patch(object.name(), &params, &Patch::Merge(&patch))
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::from_request("patch", &resource.kind, object.name(), error)),
    }
}
