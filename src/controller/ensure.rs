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

pub(crate) use self::{claims::adopt_claims, pilot::ensure_pilot, template::pinned_set};
use super::{
    context::{ControllerContext, Error, MANAGER, stall_for_refusal, stall_for_write_error},
    desired_state::{DesiredCluster, StallCause},
    events::EventNotice,
    observe::{ObservedCluster, ObservedPool, foreign_cause, is_owned_by, store_mismatch},
    ownership::is_left_behind,
    plan::pinned_template,
    resources::{DesiredObject, PreparedObject, build_resources},
    write::{
        apply_object, clear_managed_fields, create_object, delete_object, exact_preconditions,
    },
};
use crate::{api::names::annotation, machinery::quantity};

/// Creates and corrects every object of the cluster, and every Pilot that a node needs. If an
/// object is refused, the others are still written. In a cluster with nodes, the same is true for
/// an object with another owner. Returns the first refusal. A refused Pilot of an existing volume
/// is an error instead: no pod may start before that Pilot exists. While a StatefulSet, a Pilot or
/// a claim is not known to be the cluster's, all of these stay unchanged. So do the other objects
/// that pools need.
pub(crate) async fn ensure_objects(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> Result<Option<StallCause>, Error> {
    // The controller creates Pilots for existing volumes before any pod, in all pools. A node whose
    // own volume is lost bootstraps a new cluster once all Pilots report empty volumes, so a
    // refusal here blocks everything.
    let without_set = |pool: &&ObservedPool| pool.set.is_none() && observed.stalled.is_none();
    for pool in observed.pools.iter().filter(without_set) {
        let Some(desired_pool) = desired.pool(&pool.name) else { continue };
        for ordinal in 0..pool.initial_replicas() {
            ensure_pilot(ctx, desired, observed, desired_pool, ordinal).await?;
        }
    }
    let mut first_cause = None;
    let mut record_cause =
        |result: Result<(), Error>, convert_error: fn(Error) -> Result<StallCause, Error>| {
            let Err(error) = result else { return Ok::<_, Error>(()) };
            let cause = convert_error(error)?;
            let (name, message) = (&desired.name, &cause.message);
            warn!(
                namespace = desired.namespace,
                name,
                explanation = message,
                "An object was not written"
            );
            first_cause.get_or_insert(cause);
            Ok(())
        };
    let pin = |pool| pinned_template(desired, observed, pool);
    let convert_object_error =
        if observed.has_nodes() { stall_for_write_error } else { stall_for_refusal };
    for resource in build_resources(desired, observed, &ctx.settings, pin) {
        match &resource {
            DesiredObject::Other(object) if is_of_known_pool(desired, observed, object) => {
                record_cause(ensure_object(ctx, desired, object).await, convert_object_error)?;
            }
            DesiredObject::StatefulSet(set) if observed.stalled.is_none() => {
                record_cause(ensure_set(ctx, desired, observed, set).await, stall_for_refusal)?;
            }
            DesiredObject::Other(_) | DesiredObject::StatefulSet(_) => {}
        }
    }
    if observed.stalled.is_some() {
        return Ok(first_cause);
    }
    let mut record_refusal = |result| record_cause(result, stall_for_refusal);
    record_refusal(remove_services(ctx, desired, observed).await)?;
    record_refusal(remove_policy(ctx, desired).await)?;
    for pool in &observed.pools {
        record_refusal(adopt::restore_node_labels(ctx, desired, pool).await)?;
        record_refusal(claims::adopt_claims(ctx, desired, pool).await)?;
        record_refusal(claims::label_claims(ctx, desired, pool).await)?;
        let Some(desired_pool) = desired.pool(&pool.name) else { continue };
        // While all nodes are stopped, the Pilots of all pools get the new spec before one node starts.
        let replicas =
            if desired.round.all_stopped { pool.returning_replicas() } else { pool.replicas() };
        for ordinal in 0..replicas {
            record_refusal(ensure_pilot(ctx, desired, observed, desired_pool, ordinal).await)?;
        }
    }
    record_refusal(label_nodes(ctx, desired).await)?;
    Ok(first_cause)
}

/// Returns whether the object may be created while some StatefulSets, Pilots or claims are not
/// known to be the cluster's. An object that belongs to a pool waits for the pool's StatefulSet.
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
        Some(existing) if is_current(object, &json!(existing)) => Ok(()),
        _ => apply_object(ctx, desired, object, None).await,
    }
}

/// Fails where an object of this name is another's. Returns what the caches know of it.
pub(crate) async fn may_write(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    object: &PreparedObject,
) -> Result<Option<DynamicObject>, Error> {
    let PreparedObject { resource, name, .. } = object;
    let existing = ctx.get_object(resource, &desired.namespace, name).await?;
    if let Some(existing) = &existing {
        check_owned_or_left_behind(ctx, desired, object, &existing.metadata)?;
    } else if get_uncached(ctx, desired, object).await?.is_none() {
        check_not_terminating(ctx, desired).await?;
    }
    Ok(existing)
}

async fn ensure_set(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
    set: &PreparedObject,
) -> Result<(), Error> {
    let name = &set.name;
    let pool = observed.pools.iter().find(|pool| pool.set_name == *name);
    if let Some(existing_set) = pool.and_then(|pool| pool.set.as_ref()?.object.as_deref()) {
        check_owned(desired, set, &existing_set.metadata)?;
        if is_current(set, &json!(existing_set)) {
            return Ok(());
        }
        let set = &with_template(ctx, desired, observed, set).await?;
        if is_current(set, &json!(existing_set)) {
            return Ok(());
        }
        let annotations = existing_set.metadata.annotations.as_ref();
        let is_finished =
            annotations.is_some_and(|entries| entries.contains_key(annotation::CONFIG_HASH));
        let mut version = existing_set.metadata.resource_version.clone();
        if !is_finished {
            // The StatefulSet was created and never finished. Its create made us owner of fields by
            // update.
            version = clear_managed_fields(ctx, desired, set, &existing_set.metadata)
                .await?
                .resource_version;
        }
        return apply_object(ctx, desired, set, version).await;
    }
    if let Some(metadata) = get_uncached(ctx, desired, set).await? {
        // The body was built without regard to the existing set, so only its labels are right.
        let labels = &set.body["metadata"]["labels"];
        adopt::restore_labels(ctx, desired, &set.resource, &metadata, labels).await?;
        return Err(Error::Conflict { kind: set.resource.kind.clone(), name: name.clone() });
    }
    check_not_terminating(ctx, desired).await?;
    let pods = pool.map_or(0, ObservedPool::living_replicas);
    let created_set =
        create_object(ctx, desired, set, &initial_stateful_set(&set.body, pods)).await?;
    apply_object(ctx, desired, set, created_set.resource_version).await?;
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
    let observed_pool = observed.pools.iter().find(|pool| pool.set_name == set.name);
    let Some((observed_pool, desired_pool)) =
        observed_pool.and_then(|pool| Some((pool, desired.pool(&pool.name)?)))
    else {
        return Ok(set.clone());
    };
    match pinned_template(desired, observed, observed_pool) {
        Some(pin) => {
            pinned_set(
                ctx,
                desired,
                desired_pool,
                observed_pool,
                observed_pool.replicas(),
                Some(pin),
            )
            .await
        }
        None => Ok(set.clone()),
    }
}

/// Returns the StatefulSet as it is created: with replicas for the pods that live without one, which
/// it would end else, and without the hash that marks a finished one. A create is used because an
/// apply of a former leader that arrives late would reset the size of the StatefulSet.
fn initial_stateful_set(body: &Value, pods: u32) -> Value {
    let mut body = body.clone();
    body["spec"]["replicas"] = json!(pods);
    if let Some(annotations) = body["metadata"]["annotations"].as_object_mut() {
        annotations.remove(annotation::CONFIG_HASH);
    }
    body
}

/// Fails unless the existing object is this cluster's, or an earlier cluster's of this name, which
/// is adopted. StatefulSets are not adopted (see `check_owned`): their pods run, and the user must
/// decide whose data they hold.
pub(crate) fn check_owned_or_left_behind(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    object: &PreparedObject,
    existing: &ObjectMeta,
) -> Result<(), Error> {
    if is_left_behind(&ctx.stores, desired, existing) {
        Ok(())
    } else {
        check_owned(desired, object, existing)
    }
}

fn check_owned(
    desired: &DesiredCluster,
    object: &PreparedObject,
    existing: &ObjectMeta,
) -> Result<(), Error> {
    if is_owned_by(existing, desired) {
        return Ok(());
    }
    Err(Error::Foreign(foreign_cause(&object.resource.kind, existing, desired)))
}

/// Asks the server for an object that the caches lack: it may have lost the labels by which we
/// watch, or be too new for the caches. Without this check an apply would take over an object that
/// another client made.
async fn get_uncached(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    object: &PreparedObject,
) -> Result<Option<ObjectMeta>, Error> {
    let PreparedObject { resource, name, .. } = object;
    let result = ctx.read_api(resource, &desired.namespace).get_opt(name).await;
    let response =
        result.map_err(|error| Error::from_request("get", &resource.kind, name, error))?;
    let Some(metadata) = response.map(|fetched| fetched.metadata) else { return Ok(None) };
    check_owned(desired, object, &metadata)?;
    if let Some(stalled) = store_mismatch(&metadata, &ctx.settings.store_id) {
        return Err(Error::Foreign(stalled));
    }
    Ok(Some(metadata))
}

/// Returns whether the object is as it was built. The hash identifies what it was built from; the
/// comparison finds later changes by other clients.
fn is_current(prepared: &PreparedObject, existing: &Value) -> bool {
    let hash = existing["metadata"]["annotations"][annotation::CONFIG_HASH].as_str();
    hash == Some(prepared.hash()) && contains_fields(existing, &without_kind(&prepared.body))
}

/// Returns an object without its kind, which items of lists do not have.
fn without_kind(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(object) = object.as_object_mut() {
        object.retain(|key, _| !["apiVersion", "kind"].contains(&key.as_str()));
    }
    object
}

/// Returns whether `found` has everything that `wanted` has. The server adds defaults and rewrites
/// quantities.
fn contains_fields(existing: &Value, desired: &Value) -> bool {
    match (existing, desired) {
        (Value::Object(existing), Value::Object(desired)) => {
            desired.iter().all(|(key, desired)| {
                existing
                    .get(key)
                    .map_or(is_empty(desired), |existing| contains_fields(existing, desired))
            })
        }
        (Value::Array(existing), Value::Array(desired)) => {
            existing.len() == desired.len()
                && existing.iter().zip(desired).all(|(f, w)| contains_fields(f, w))
        }
        (Value::String(existing), Value::String(desired)) => {
            let parse_nanos = |text: &str| quantity::parse_nanos(text);
            existing == desired
                || parse_nanos(existing).is_some_and(|v| parse_nanos(desired) == Some(v))
        }
        (existing, desired) => existing == desired,
    }
}

/// Returns whether the value is empty. The server treats absent and empty values alike.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_empty),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

async fn check_not_terminating(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
) -> Result<(), Error> {
    let api: Api<Namespace> = Api::all(ctx.client.clone());
    let name = &desired.namespace;
    let namespace =
        api.get(name).await.map_err(|e| Error::from_request("get", "Namespace", name, e))?;
    if namespace.metadata.deletion_timestamp.is_some() {
        return Err(Error::NamespaceTerminating(name.clone()));
    }
    Ok(())
}

/// Deletes Services that the cluster no longer needs, and those of pools that are gone.
async fn remove_services(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &ObservedCluster,
) -> Result<(), Error> {
    let resource = ApiResource::erase::<Service>(&());
    let is_living = |pool: &str| {
        let observed_pool = observed.pools.iter().find(|other| other.name == pool);
        pool.is_empty()
            || desired.pool(pool).is_some()
            || observed_pool.is_some_and(|other| other.set.is_some())
    };
    for service in ctx.stores.other_objects(&resource, desired) {
        let labels = service.labels.as_ref();
        let pool = labels.and_then(|labels| labels.get(desired.database.names.pool_label));
        let name = service.name.as_deref().unwrap_or_default();
        if is_owned_by(&service, desired) && !is_living(pool.map_or("", String::as_str)) {
            delete_object(ctx, desired, &resource, name, exact_preconditions(&service)).await?;
            info!(
                namespace = desired.namespace,
                name, "Removed the Service of a pool that is gone"
            );
        }
    }
    for service in (desired.database.services)(desired) {
        let cached = ctx.stores.object_metadata("Service", &desired.namespace, &service.name);
        if let Some(cached) =
            cached.filter(|cached| !service.wanted && is_owned_by(cached, desired))
        {
            delete_object(ctx, desired, &resource, &service.name, exact_preconditions(&cached))
                .await?;
        }
    }
    Ok(())
}

/// Deletes the NetworkPolicy of a cluster that no longer needs one.
async fn remove_policy(ctx: &ControllerContext, desired: &DesiredCluster) -> Result<(), Error> {
    let resource = ApiResource::erase::<NetworkPolicy>(&());
    let name = desired.database.names.network_policy(&desired.name);
    let cached = ctx.stores.object_metadata("NetworkPolicy", &desired.namespace, &name);
    let owned_policy = cached.filter(|cached| is_owned_by(cached, desired));
    let Some(policy) = owned_policy.filter(|_| desired.network.is_none()) else { return Ok(()) };
    delete_object(ctx, desired, &resource, &name, exact_preconditions(&policy)).await?;
    info!(namespace = desired.namespace, name, "Removed the NetworkPolicy");
    Ok(())
}

/// Gives pods the labels that differ from node to node, which a pod template cannot express.
async fn label_nodes(ctx: &ControllerContext, desired: &DesiredCluster) -> Result<(), Error> {
    let objects = ctx.stores.cluster_objects(desired);
    for pod in &objects.pods {
        let meta = &pod.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        let ordinal = desired.pools.iter().find_map(|pool| parse_ordinal(&pool.set, name));
        let Some(ordinal) = ordinal.filter(|_| meta.deletion_timestamp.is_none()) else { continue };
        let pilot =
            objects.pilots.iter().find(|pilot| pilot.metadata.name.as_deref() == Some(name));
        let mut labels = serde_json::Map::new();
        let desired_labels = (desired.database.node_labels)(ordinal, pilot.map(|pilot| &**pilot));
        for (key, value) in desired_labels {
            let current_value = meta.labels.as_ref().and_then(|labels| labels.get(&*key));
            if current_value.map(String::as_str) != value {
                labels.insert(key.into_owned(), json!(value));
            }
        }
        if labels.is_empty() {
            continue;
        }
        let patch = json!({"metadata": {"uid": meta.uid, "labels": labels}});
        let api = ctx.write_api(&ApiResource::erase::<Pod>(&()), &desired.namespace)?;
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        api.patch(name, &params, &Patch::Merge(&patch))
            .await
            .map_err(|error| Error::from_request("patch", "Pod", name, error))?;
    }
    Ok(())
}

/// Returns the ordinal of a pod of the StatefulSet `set`.
fn parse_ordinal(set: &str, pod: &str) -> Option<u32> {
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
        assert!(contains_fields(&found, &wanted));
        assert!(!contains_fields(&found, &json!({"spec": {"a": 2}})));
        assert!(!contains_fields(&found, &json!({"spec": {"list": []}})));
        assert!(!contains_fields(&found, &json!({"spec": {"missing": 1}})));
    }
}
