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
        ensure::own,
        events::EventNotice,
        observe::ObservedCluster,
        queue::ReconcileOutcome,
        write::{decided, delete, exactly},
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
        let held = desired.finalizers.join(", ");
        let message = format!("nothing of it is left; held by finalizers of others: {held}");
        status_writer::deleting(ctx, cluster, desired, &message).await?;
        return Ok(ReconcileOutcome::Settled);
    }
    let observed = from_server(ctx, desired, Timestamp::now()).await?;
    let found = dependents::find(ctx, desired, &observed).await?;
    let ClusterDependents { ours, strange, elsewhere, pods } = found;
    if desired.orphan {
        return orphan(ctx, cluster, desired, &ours).await;
    }
    if !desired.force_delete && !elsewhere.is_empty() {
        // If the store was exchanged, this leader has the old id, and the next leader knows better.
        let names = named(&elsewhere.iter().collect::<Vec<_>>(), &[]);
        let message = format!(
            "nothing is deleted, since these bear the mark of another store: {names}. Annotated \
             with {}=true, the cluster is let go without them",
            annotation::FORCE_DELETE
        );
        return wait(ctx, cluster, desired, &message).await;
    }
    let (sets, others): (Vec<_>, Vec<_>) = ours.iter().partition(|one| one.is::<StatefulSet>());
    // Claims of a cluster that was deleted soon after it was made bear no uid yet.
    for pool in observed.pools.iter().filter(|pool| pool.set.is_some()) {
        own(ctx, desired, pool).await?;
    }
    remove(ctx, desired, &sets).await?;
    if !desired.force_delete {
        let mut pods = pods;
        if sets.is_empty() {
            pods.extend(remove_orphans(ctx, desired, &observed).await?);
        }
        if !sets.is_empty() || !pods.is_empty() {
            let message = format!("waiting for databases to stop: {}", named(&sets, &pods));
            return wait(ctx, cluster, desired, &message).await;
        }
        remove_claims(ctx, desired, &observed, &strange).await?;
    }
    remove(ctx, desired, &others).await?;
    if !desired.force_delete && !others.is_empty() {
        let message = format!("waiting for these to go: {}", named(&others, &[]));
        return wait(ctx, cluster, desired, &message).await;
    }
    let strange: Vec<DependentObject> = strange.into_iter().chain(elsewhere).collect();
    if !strange.is_empty() {
        tell_what_stays(ctx, desired, &strange).await;
    }
    let_go(ctx, cluster, desired).await
}

/// Writes to the status what the deletion waits for; the message names the finalizers that hold
/// objects.
async fn wait(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
    message: &str,
) -> Result<ReconcileOutcome, Error> {
    status_writer::deleting(ctx, cluster, desired, message).await?;
    Ok(ReconcileOutcome::Again(WHILE_WAITING))
}

/// Lists the names of objects, each with the finalizers that hold it, and of pods.
fn named(objects: &[&DependentObject], pods: &[String]) -> String {
    let one = |one: &&DependentObject| {
        let held = one.meta.finalizers.as_deref().unwrap_or_default();
        let by =
            if held.is_empty() { String::new() } else { format!(" (held by {})", held.join(", ")) };
        format!("{one}{by}")
    };
    let pods = pods.iter().map(|pod| format!("Pod {pod}"));
    objects.iter().map(one).chain(pods).collect::<Vec<_>>().join(", ")
}

/// Deletes `objects`, without those that are being deleted already.
async fn remove(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    objects: &[&DependentObject],
) -> Result<(), Error> {
    for one in objects.iter().filter(|one| one.meta.deletion_timestamp.is_none()) {
        delete(ctx, desired, &one.resource, one.name(), exactly(&one.meta)).await?;
        let (namespace, kind, name) = (&desired.namespace, &one.resource.kind, one.name());
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
    let mut left = Vec::new();
    for member in observed.pools.iter().flat_map(|pool| pool.members.values()) {
        let (Some(pod), Some(pilot)) = (&member.pod, &member.pilot) else { continue };
        if !pilot.owned || !pod.orphan {
            continue;
        }
        left.push(member.name.clone());
        if !pod.terminating {
            let preconditions = decided(&pod.uid, Some(&pod.resource_version));
            delete(ctx, desired, &resource, &member.name, preconditions).await?;
            info!(namespace = desired.namespace, pod = member.name, "Deleted a pod without owner");
        }
    }
    Ok(left)
}

/// Deletes the claims that are to go with the cluster: those that bear its uid, and only while no
/// StatefulSet or Pilot of these names is another cluster's, since its database may run on them.
async fn remove_claims(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    strange: &[DependentObject],
) -> Result<(), Error> {
    if observed.stalled.is_some() || strange.iter().any(DependentObject::is::<StatefulSet>) {
        return Ok(());
    }
    let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
    let goes = |name: &str| desired.pool(name).is_some_and(DesiredPool::delete_claim_when_deleted);
    for pool in observed.pools.iter().filter(|pool| goes(&pool.name)) {
        let claims = pool.members.values().filter_map(|member| member.claim.as_ref());
        for claim in claims.filter(|claim| !claim.terminating && claim.is_of(desired)) {
            let preconditions = decided(&claim.uid, Some(&claim.resource_version));
            delete(ctx, desired, &resource, &claim.name, preconditions).await?;
            info!(namespace = desired.namespace, claim = claim.name, "Deleted claim");
        }
    }
    Ok(())
}

/// Leaves all objects in place, reports them, and removes our marks from them. A cluster that is
/// made later under this name does not take them over.
async fn orphan(
    ctx: &ControllerContext,
    cluster: &DynamicObject,
    desired: &DesiredCluster,
    ours: &[DependentObject],
) -> Result<ReconcileOutcome, Error> {
    // The event comes first: a later pass does not find what was left.
    if !ours.is_empty() {
        let names = ours.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
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
    for one in ours {
        dependents::release(ctx, desired, one).await?;
    }
    let_go(ctx, cluster, desired).await
}

/// Publishes the names of objects that carry the cluster's labels and are not surely its own. They
/// stay.
async fn tell_what_stays(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    strange: &[DependentObject],
) {
    let names = strange.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
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
async fn let_go(
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
    let api = ctx.write(&desired.database.resource(), &desired.namespace)?;
    match api.patch(&desired.name, &params, &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => {
            Err(Error::request("patch", desired.database.names.kind, &desired.name, error))
        }
    }
}
