//! Deletes a cluster's objects, in an order in which its pilots stop cleanly, and then removes its
//! finalizer.
//!
//! First the StatefulSets, whose pods stop their databases while their Pilots, Services and rights
//! still exist; then claims that are to go with the cluster; then the rest. Pilots and the
//! LeaderLease go with the cluster object, which owns them: they are in one store.
//!
//! Invariants: only objects that bear the cluster's uid and no other store's identity, as the
//! server shows them at that moment, are deleted; claims, which have no owner, only under the
//! conditions of `remove_claims`. Each pass does what is left to do, so the next pass repairs a
//! crash anywhere. The status says what is waited for; an event names what stays.

mod dependents;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    jiff::Timestamp,
};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use serde_json::json;
use tracing::{info, warn};

use self::dependents::{ClusterDependents, DependentObject};
use super::{WHILE_WAITING, observation::from_server, status_writer};
use crate::{
    api::names::{FINALIZER_TEARDOWN, annotation},
    controller::{
        context::{ControllerContext, Error, MANAGER},
        desired_state::{DesiredCluster, DesiredPool},
        ensure::adopt_claims,
        events::EventNotice,
        observe::ObservedCluster,
        queue::ReconcileOutcome,
        write::{delete_object, exact_preconditions, uid_preconditions},
    },
};

/// Puts the finalizer on a cluster, before anything is made for it.
pub(super) async fn keep_finalizer(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
) -> Result<(), Error> {
    if has_finalizer(desired) {
        return Ok(());
    }
    let mut finalizers = desired.finalizers.clone();
    finalizers.push(FINALIZER_TEARDOWN.to_owned());
    write_finalizers(ctx, cluster, desired, finalizers).await?;
    // `cluster` is out of date now. The conflict ends this pass; the next pass has the new object
    // from the watch.
    Err(Error::Conflict {
        kind: desired.database.names.kind.to_owned(),
        name: desired.name.clone(),
    })
}

fn has_finalizer(desired: &DesiredCluster) -> bool {
    desired.finalizers.iter().any(|finalizer| finalizer == FINALIZER_TEARDOWN)
}

/// Runs one pass of the deletion. Removes the finalizer when nothing is left to do.
pub(super) async fn tear_down(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
) -> Result<ReconcileOutcome, Error> {
    if !has_finalizer(desired) {
        let other_finalizers = desired.finalizers.join(", ");
        let message =
            format!("nothing of it is left; held by finalizers of others: {other_finalizers}");
        status_writer::write_deleting(ctx, cluster, desired, &message).await?;
        return Ok(ReconcileOutcome::Settled);
    }
    let observed = from_server(ctx, desired, Timestamp::now()).await?;
    let dependents = dependents::find_dependents(ctx, desired, &observed).await?;
    let ClusterDependents {
        ours: owned_objects,
        strange: foreign_objects,
        elsewhere: other_store_objects,
        pods,
    } = dependents;
    if desired.orphan {
        return orphan_objects(ctx, cluster, desired, &owned_objects).await;
    }
    if !desired.force_delete && !other_store_objects.is_empty() {
        // If the store was exchanged, this leader has the old id, and the next leader knows better.
        let names = list_names(&other_store_objects.iter().collect::<Vec<_>>(), &[]);
        let message = format!(
            "nothing is deleted, since these bear the mark of another store: {names}. Annotated \
             with {}=true, the cluster is let go without them",
            annotation::FORCE_DELETE
        );
        return report_waiting(ctx, cluster, desired, &message).await;
    }
    let (sets, other_objects): (Vec<_>, Vec<_>) =
        owned_objects.iter().partition(|object| object.is_kind::<StatefulSet>());
    // Claims of a cluster that was deleted soon after it was made bear no uid yet.
    for pool in observed.pools.iter().filter(|pool| pool.set.is_some()) {
        adopt_claims(ctx, desired, pool).await?;
    }
    delete_objects(ctx, desired, &sets).await?;
    if !desired.force_delete {
        let mut pods = pods;
        if sets.is_empty() {
            pods.extend(remove_orphans(ctx, desired, &observed).await?);
        }
        if !sets.is_empty() || !pods.is_empty() {
            let message = format!("waiting for databases to stop: {}", list_names(&sets, &pods));
            return report_waiting(ctx, cluster, desired, &message).await;
        }
        remove_claims(ctx, desired, &observed, &foreign_objects).await?;
    }
    delete_objects(ctx, desired, &other_objects).await?;
    if !desired.force_delete && !other_objects.is_empty() {
        let message = format!("waiting for these to go: {}", list_names(&other_objects, &[]));
        return report_waiting(ctx, cluster, desired, &message).await;
    }
    let foreign_objects: Vec<DependentObject> =
        foreign_objects.into_iter().chain(other_store_objects).collect();
    if !foreign_objects.is_empty() {
        report_foreign_objects(ctx, desired, &foreign_objects).await;
    }
    remove_finalizer(ctx, cluster, desired).await
}

/// Writes to the status what the deletion waits for; the message names the finalizers that hold
/// objects.
async fn report_waiting(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
    message: &str,
) -> Result<ReconcileOutcome, Error> {
    status_writer::write_deleting(ctx, cluster, desired, message).await?;
    Ok(ReconcileOutcome::Again(WHILE_WAITING))
}

/// Lists the names of objects, each with the finalizers that hold it, and of pods.
fn list_names(objects: &[&DependentObject], pods: &[String]) -> String {
    let describe_object = |object: &&DependentObject| {
        let finalizers = object.meta.finalizers.as_deref().unwrap_or_default();
        let suffix = if finalizers.is_empty() {
            String::new()
        } else {
            format!(" (held by {})", finalizers.join(", "))
        };
        format!("{object}{suffix}")
    };
    let pods = pods.iter().map(|pod| format!("Pod {pod}"));
    objects.iter().map(describe_object).chain(pods).collect::<Vec<_>>().join(", ")
}

/// Deletes `objects`, without those that are being deleted already.
async fn delete_objects(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    objects: &[&DependentObject],
) -> Result<(), Error> {
    for object in objects.iter().filter(|object| object.meta.deletion_timestamp.is_none()) {
        delete_object(
            ctx,
            desired,
            &object.resource,
            object.name(),
            exact_preconditions(&object.meta),
        )
        .await?;
        let (namespace, kind, name) = (&desired.namespace, &object.resource.kind, object.name());
        info!(namespace, cluster = desired.name, kind, name, "Deleted an object of a cluster");
    }
    Ok(())
}

/// Deletes the pods that no StatefulSet owns, such as those whose set was to be made anew when the
/// cluster was deleted, and that have a Pilot of this cluster. Returns the names of those that have
/// not ended.
async fn remove_orphans(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> Result<Vec<String>, Error> {
    let resource = ApiResource::erase::<Pod>(&());
    let mut orphan_pods = Vec::new();
    for member in observed.pools.iter().flat_map(|pool| pool.members.values()) {
        let (Some(pod), Some(pilot)) = (&member.pod, &member.pilot) else { continue };
        if !pilot.owned || !pod.orphan {
            continue;
        }
        orphan_pods.push(member.name.clone());
        if !pod.terminating {
            let preconditions = uid_preconditions(&pod.uid, Some(&pod.resource_version));
            delete_object(ctx, desired, &resource, &member.name, preconditions).await?;
            info!(namespace = desired.namespace, pod = member.name, "Deleted a pod without owner");
        }
    }
    Ok(orphan_pods)
}

/// Deletes the claims that are to go with the cluster: those that bear its uid, and only while no
/// StatefulSet or Pilot of these names is another cluster's, since its database may run on them.
async fn remove_claims(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    foreign_objects: &[DependentObject],
) -> Result<(), Error> {
    if observed.stalled.is_some()
        || foreign_objects.iter().any(DependentObject::is_kind::<StatefulSet>)
    {
        return Ok(());
    }
    let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
    let is_deleted_with_cluster =
        |name: &str| desired.pool(name).is_some_and(DesiredPool::delete_claim_when_deleted);
    for pool in observed.pools.iter().filter(|pool| is_deleted_with_cluster(&pool.name)) {
        let claims = pool.members.values().filter_map(|member| member.claim.as_ref());
        for claim in claims.filter(|claim| !claim.terminating && claim.is_of(desired)) {
            let preconditions = uid_preconditions(&claim.uid, Some(&claim.resource_version));
            delete_object(ctx, desired, &resource, &claim.name, preconditions).await?;
            info!(namespace = desired.namespace, claim = claim.name, "Deleted claim");
        }
    }
    Ok(())
}

/// Leaves all objects in place, reports them, and removes our marks from them. A cluster that is
/// made later under this name does not take them over.
async fn orphan_objects(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
    owned_objects: &[DependentObject],
) -> Result<ReconcileOutcome, Error> {
    // The event comes first: a later pass does not find what was left.
    if !owned_objects.is_empty() {
        let names = owned_objects.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let (namespace, name) = (&desired.namespace, &desired.name);
        warn!(
            namespace,
            name,
            objects = names,
            "Leaving what a cluster had, as its deletion asked"
        );
        let note = format!("left as the deletion asked, and part of no cluster any more: {names}");
        ctx.events.publish(desired, &EventNotice::warning("Orphaned", note)).await;
    }
    for object in owned_objects {
        dependents::release_object(ctx, desired, object).await?;
    }
    remove_finalizer(ctx, cluster, desired).await
}

/// Publishes the names of objects that carry the cluster's labels and are not surely its own. They
/// stay.
async fn report_foreign_objects(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    foreign_objects: &[DependentObject],
) {
    let names = foreign_objects.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let (namespace, name) = (&desired.namespace, &desired.name);
    warn!(
        namespace,
        name,
        objects = names,
        "Objects of a deleted cluster's name are not its own and stay"
    );
    let note = format!("these stay, they bear the mark of another cluster or store: {names}");
    ctx.events.publish(desired, &EventNotice::warning("ForeignObject", note)).await;
}

/// Removes our finalizer from the cluster.
async fn remove_finalizer(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
) -> Result<ReconcileOutcome, Error> {
    let mut finalizers = desired.finalizers.clone();
    finalizers.retain(|finalizer| finalizer != FINALIZER_TEARDOWN);
    write_finalizers(ctx, cluster, desired, finalizers).await?;
    // Checks again later: the 404 may have been about something other than the cluster.
    Ok(ReconcileOutcome::Again(WHILE_WAITING))
}

/// Writes the list of finalizers as a whole, over the version that was read: other entries belong
/// to other controllers.
async fn write_finalizers(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
    finalizers: Vec<String>,
) -> Result<(), Error> {
    let version = &cluster.metadata.resource_version;
    let patch = json!({
        "metadata": {"uid": desired.uid, "resourceVersion": version, "finalizers": finalizers},
    });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let api = ctx.write_api(&desired.database.api_resource(), &desired.namespace)?;
    match api.patch(&desired.name, &params, &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => {
            Err(Error::from_request("patch", desired.database.names.kind, &desired.name, error))
        }
    }
}
