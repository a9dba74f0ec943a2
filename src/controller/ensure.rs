//! Creates the objects of a cluster as `resources` builds them, and repairs what another client
//! changed in them.
//!
//! Invariants: an object that is already as built is not written; an object of another owner is not
//! touched.

mod adopt;
mod claims;
mod pilot;
mod template;

use k8s_openapi::{
    api::{
        core::v1::{Namespace, Pod, Service},
        networking::v1::NetworkPolicy,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use tracing::{info, warn};

pub(crate) use self::{claims::own, pilot::ensure_pilot, template::pinned_set};
use super::{
    context::{ControllerContext, Error, MANAGER, refused, unwritten},
    desired_state::{DesiredCluster, StallCause},
    events::EventNotice,
    observe::{ObservedCluster, ObservedPool, foreign, other_store, owned},
    ownership::is_left_behind,
    plan::pinned,
    resources::{DesiredObject, PreparedObject, resources},
    write::{change, create, delete, disown, exactly},
};
use crate::{api::names::annotation, machinery::quantity};

/// Makes every object of the cluster as it should be, and every Pilot that a node needs. The
/// refusal of one object does not hold up the others, and of a cluster with nodes neither does one
/// of another owner; the first is returned. A refused Pilot of a kept volume is an error instead: no
/// pod may start before that Pilot exists. While a StatefulSet, a Pilot or a claim is not known to be
/// the cluster's, these and what pools need beside them are left alone.
pub(crate) async fn ensure(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> Result<Option<StallCause>, Error> {
    // Pilots for volumes that were kept are made before any pod, in all pools. A node whose own
    // volume is lost founds a new cluster once all Pilots report empty volumes, so a refusal here
    // holds all up.
    let without_set = |pool: &&ObservedPool| pool.set.is_none() && observed.stalled.is_none();
    for pool in observed.pools.iter().filter(without_set) {
        let Some(wanted) = desired.pool(&pool.name) else { continue };
        for ordinal in 0..pool.initial() {
            ensure_pilot(ctx, desired, observed, wanted, ordinal).await?;
        }
    }
    let mut first = None;
    let mut note = |done: Result<(), Error>, judge: fn(Error) -> Result<StallCause, Error>| {
        let Err(error) = done else { return Ok::<_, Error>(()) };
        let cause = judge(error)?;
        let (name, message) = (&desired.name, &cause.message);
        warn!(
            namespace = desired.namespace,
            name,
            explanation = message,
            "An object was not written"
        );
        first.get_or_insert(cause);
        Ok(())
    };
    let pin = |pool| pinned(desired, observed, pool);
    let of_one = if observed.has_nodes() { unwritten } else { refused };
    for resource in resources(desired, observed, &ctx.settings, pin) {
        match &resource {
            DesiredObject::Other(object) if is_of_known_pool(desired, observed, object) => {
                note(ensure_object(ctx, desired, object).await, of_one)?;
            }
            DesiredObject::StatefulSet(set) if observed.stalled.is_none() => {
                note(ensure_set(ctx, desired, observed, set).await, refused)?;
            }
            DesiredObject::Other(_) | DesiredObject::StatefulSet(_) => {}
        }
    }
    if observed.stalled.is_some() {
        return Ok(first);
    }
    let mut note = |done| note(done, refused);
    note(remove_services(ctx, desired, observed).await)?;
    note(remove_policy(ctx, desired).await)?;
    for pool in &observed.pools {
        note(adopt::members(ctx, desired, pool).await)?;
        note(claims::own(ctx, desired, pool).await)?;
        note(claims::mark(ctx, desired, pool).await)?;
        let Some(wanted) = desired.pool(&pool.name) else { continue };
        // While all nodes are stopped, the Pilots of all pools get the new spec before one node starts.
        let told = if desired.round.all_stopped { pool.returning() } else { pool.replicas() };
        for ordinal in 0..told {
            note(ensure_pilot(ctx, desired, observed, wanted, ordinal).await)?;
        }
    }
    note(label_nodes(ctx, desired).await)?;
    Ok(first)
}

/// May the object be made while some StatefulSets, Pilots or claims are not known to be the cluster's?
/// One that belongs to a pool waits for the pool's StatefulSet.
fn is_of_known_pool(
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    object: &PreparedObject,
) -> bool {
    let pool = object.body["metadata"]["labels"][desired.database.names.pool_label].as_str();
    let has_set =
        |name: &str| observed.pools.iter().any(|pool| pool.name == name && pool.set.is_some());
    observed.stalled.is_none() || pool.is_none_or(has_set)
}

/// Makes one object as it was built, or repairs what another client changed in it.
pub(crate) async fn ensure_object(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    object: &PreparedObject,
) -> Result<(), Error> {
    match may_write(ctx, desired, object).await? {
        Some(known) if current(object, &json!(known)) => Ok(()),
        _ => change(ctx, desired, object, None).await,
    }
}

/// Fails where an object of this name is another's. Returns what the caches know of it.
pub(crate) async fn may_write(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    object: &PreparedObject,
) -> Result<Option<DynamicObject>, Error> {
    let PreparedObject { resource, name, .. } = object;
    let known = ctx.object(resource, &desired.namespace, name).await?;
    if let Some(known) = &known {
        ours_or_former(ctx, desired, object, &known.metadata)?;
    } else if unknown(ctx, desired, object).await?.is_none() {
        not_terminating(ctx, desired).await?;
    }
    Ok(known)
}

async fn ensure_set(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    set: &PreparedObject,
) -> Result<(), Error> {
    let name = &set.name;
    let pool = observed.pools.iter().find(|pool| pool.set_name == *name);
    if let Some(known) = pool.and_then(|pool| pool.set.as_ref()?.object.as_deref()) {
        ours(desired, set, &known.metadata)?;
        if current(set, &json!(known)) {
            return Ok(());
        }
        let set = &with_template(ctx, desired, observed, set).await?;
        if current(set, &json!(known)) {
            return Ok(());
        }
        let annotations = known.metadata.annotations.as_ref();
        let finished = annotations.is_some_and(|all| all.contains_key(annotation::CONFIG_HASH));
        let mut version = known.metadata.resource_version.clone();
        if !finished {
            // The StatefulSet was created and never finished. Its create made us owner of fields by
            // update.
            version = disown(ctx, desired, set, &known.metadata).await?.resource_version;
        }
        return change(ctx, desired, set, version).await;
    }
    if let Some(found) = unknown(ctx, desired, set).await? {
        // The body was built without regard to the existing set, so only its labels are right.
        let labels = &set.body["metadata"]["labels"];
        adopt::relabel(ctx, desired, &set.resource, &found, labels).await?;
        return Err(Error::Conflict { kind: set.resource.kind.clone(), name: name.clone() });
    }
    not_terminating(ctx, desired).await?;
    let pods = pool.map_or(0, ObservedPool::living);
    let made = create(ctx, desired, set, &unborn(&set.body, pods)).await?;
    change(ctx, desired, set, made.resource_version).await?;
    info!(namespace = desired.namespace, name, "Created node pool");
    let notice = EventNotice::normal("CreateNodePool", format!("made StatefulSet {name}"));
    ctx.events.publish(desired, &notice).await;
    Ok(())
}

/// Returns the StatefulSet with the template that its pods are pinned to, where they are.
async fn with_template(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    set: &PreparedObject,
) -> Result<PreparedObject, Error> {
    let found = observed.pools.iter().find(|pool| pool.set_name == set.name);
    let Some((found, wanted)) = found.and_then(|found| Some((found, desired.pool(&found.name)?)))
    else {
        return Ok(set.clone());
    };
    match pinned(desired, observed, found) {
        Some(pin) => pinned_set(ctx, desired, wanted, found, found.replicas(), Some(pin)).await,
        None => Ok(set.clone()),
    }
}

/// Returns the StatefulSet as it is created: with replicas for the pods that live without one, which
/// it would end else, and without the hash that marks a finished one. A create is used because an
/// apply of a former leader that arrives late would reset the size of the StatefulSet.
fn unborn(body: &Value, pods: u32) -> Value {
    let mut body = body.clone();
    body["spec"]["replicas"] = json!(pods);
    if let Some(annotations) = body["metadata"]["annotations"].as_object_mut() {
        annotations.remove(annotation::CONFIG_HASH);
    }
    body
}

/// Fails unless the object that was found is this cluster's, or an earlier cluster's of this name,
/// which is taken over. StatefulSets are not taken over (see `ours`): their pods run, and a person
/// must say whose data they hold.
pub(crate) fn ours_or_former(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    object: &PreparedObject,
    found: &ObjectMeta,
) -> Result<(), Error> {
    if is_left_behind(&ctx.stores, desired, found) { Ok(()) } else { ours(desired, object, found) }
}

fn ours(
    desired: &DesiredCluster,
    object: &PreparedObject,
    found: &ObjectMeta,
) -> Result<(), Error> {
    if owned(found, desired) {
        return Ok(());
    }
    Err(Error::Foreign(foreign(&object.resource.kind, found, desired)))
}

/// Asks the server for an object that the caches lack: it may have lost the labels by which we
/// watch, or be too new for the caches. Without this check an apply would take over an object that
/// another client made.
async fn unknown(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    object: &PreparedObject,
) -> Result<Option<ObjectMeta>, Error> {
    let PreparedObject { resource, name, .. } = object;
    let found = ctx.read(resource, &desired.namespace).get_opt(name).await;
    let found = found.map_err(|error| Error::request("get", &resource.kind, name, error))?;
    let Some(found) = found.map(|found| found.metadata) else { return Ok(None) };
    ours(desired, object, &found)?;
    if let Some(stalled) = other_store(&found, &ctx.settings.store_id) {
        return Err(Error::Foreign(stalled));
    }
    Ok(Some(found))
}

/// Is the object as it was built? The hash says what it was made from; the comparison finds what
/// another client changed since.
fn current(prepared: &PreparedObject, found: &Value) -> bool {
    let hash = found["metadata"]["annotations"][annotation::CONFIG_HASH].as_str();
    hash == Some(prepared.hash()) && holds(found, &without_kind(&prepared.body))
}

/// Returns an object without its kind, which items of lists do not have.
fn without_kind(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(object) = object.as_object_mut() {
        object.retain(|key, _| !["apiVersion", "kind"].contains(&key.as_str()));
    }
    object
}

/// Does `found` have everything that `wanted` has? The server adds defaults and rewrites
/// quantities.
fn holds(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            found.get(key).map_or(is_empty(wanted), |found| holds(found, wanted))
        }),
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len() && found.iter().zip(wanted).all(|(f, w)| holds(f, w))
        }
        (Value::String(found), Value::String(wanted)) => {
            let value = |text: &str| quantity::nanos(text);
            found == wanted || value(found).is_some_and(|v| value(wanted) == Some(v))
        }
        (found, wanted) => found == wanted,
    }
}

/// Is the value empty? The server treats absent and empty values alike.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_empty),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

async fn not_terminating(ctx: &ControllerContext, desired: &DesiredCluster) -> Result<(), Error> {
    let api: Api<Namespace> = Api::all(ctx.client.clone());
    let name = &desired.namespace;
    let namespace = api.get(name).await.map_err(|e| Error::request("get", "Namespace", name, e))?;
    if namespace.metadata.deletion_timestamp.is_some() {
        return Err(Error::NamespaceTerminating(name.clone()));
    }
    Ok(())
}

/// Deletes Services that the cluster does not want any more, and those of pools that are gone.
async fn remove_services(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> Result<(), Error> {
    let resource = ApiResource::erase::<Service>(&());
    let living = |pool: &str| {
        let found = observed.pools.iter().find(|found| found.name == pool);
        pool.is_empty()
            || desired.pool(pool).is_some()
            || found.is_some_and(|found| found.set.is_some())
    };
    for found in ctx.stores.others(&resource, desired) {
        let labels = found.labels.as_ref();
        let pool = labels.and_then(|all| all.get(desired.database.names.pool_label));
        let name = found.name.as_deref().unwrap_or_default();
        if owned(&found, desired) && !living(pool.map_or("", String::as_str)) {
            delete(ctx, desired, &resource, name, exactly(&found)).await?;
            info!(
                namespace = desired.namespace,
                name, "Removed the Service of a pool that is gone"
            );
        }
    }
    for service in (desired.database.services)(desired) {
        let found = ctx.stores.made("Service", &desired.namespace, &service.name);
        if let Some(found) = found.filter(|found| !service.wanted && owned(found, desired)) {
            delete(ctx, desired, &resource, &service.name, exactly(&found)).await?;
        }
    }
    Ok(())
}

/// Deletes the NetworkPolicy of a cluster that wants none any more.
async fn remove_policy(ctx: &ControllerContext, desired: &DesiredCluster) -> Result<(), Error> {
    let resource = ApiResource::erase::<NetworkPolicy>(&());
    let name = desired.database.names.network_policy(&desired.name);
    let found = ctx.stores.made("NetworkPolicy", &desired.namespace, &name);
    let ours = found.filter(|found| owned(found, desired));
    let Some(found) = ours.filter(|_| desired.network.is_none()) else { return Ok(()) };
    delete(ctx, desired, &resource, &name, exactly(&found)).await?;
    info!(namespace = desired.namespace, name, "Removed the NetworkPolicy");
    Ok(())
}

/// Gives pods the labels that differ from node to node, which a pod template cannot express.
async fn label_nodes(ctx: &ControllerContext, desired: &DesiredCluster) -> Result<(), Error> {
    let objects = ctx.stores.objects(desired);
    for pod in &objects.pods {
        let meta = &pod.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        let ordinal = desired.pools.iter().find_map(|pool| ordinal(&pool.set, name));
        let Some(ordinal) = ordinal.filter(|_| meta.deletion_timestamp.is_none()) else { continue };
        let pilot =
            objects.pilots.iter().find(|pilot| pilot.metadata.name.as_deref() == Some(name));
        let mut labels = serde_json::Map::new();
        let wanted = (desired.database.node_labels)(ordinal, pilot.map(|pilot| &**pilot));
        for (key, value) in wanted {
            let found = meta.labels.as_ref().and_then(|labels| labels.get(&*key));
            if found.map(String::as_str) != value {
                labels.insert(key.into_owned(), json!(value));
            }
        }
        if labels.is_empty() {
            continue;
        }
        let patch = json!({"metadata": {"uid": meta.uid, "labels": labels}});
        let api = ctx.write(&ApiResource::erase::<Pod>(&()), &desired.namespace)?;
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        api.patch(name, &params, &Patch::Merge(&patch))
            .await
            .map_err(|error| Error::request("patch", "Pod", name, error))?;
    }
    Ok(())
}

/// Returns the ordinal of a pod of the StatefulSet `set`.
fn ordinal(set: &str, pod: &str) -> Option<u32> {
    pod.strip_prefix(set)?.strip_prefix('-')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_rewritten_quantities_are_no_difference() {
        let found = json!({
            "spec": {"a": 1, "added": true, "cpu": "1", "list": [{"x": 1, "protocol": "TCP"}]},
        });
        let wanted = json!({"spec": {"a": 1, "cpu": "1000m", "list": [{"x": 1}], "none": {}}});
        assert!(holds(&found, &wanted));
        assert!(!holds(&found, &json!({"spec": {"a": 2}})));
        assert!(!holds(&found, &json!({"spec": {"list": []}})));
        assert!(!holds(&found, &json!({"spec": {"missing": 1}})));
    }
}
