//! Makes objects as they were built, and carries steps out. With `observe`, the only part that
//! talks to the server about a cluster.
//!
//! Invariants: nothing is written that already is so; nothing that belongs to somebody else is
//! touched; a write that depends on what was read carries its resource version, so a stale
//! cache ends in a conflict, never in a change undone.

mod adopt;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{Namespace, PersistentVolumeClaim, Pod, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
    },
};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::{
    build::{self, Prepared, pilot_body, pilot_resource, spec_patch},
    context::{Context, Error, MANAGER, refused},
    desired::{Desired, Pool, Stalled},
    events::News,
    observe::{
        Member, Observed, ObservedPool, PHASE_OWNER, PilotFacts, foreign, other_store, owned,
    },
    plan::{Step, told_alone},
};
use crate::api::{
    names::{self, annotation},
    quantity,
    v1beta1::{PilotIntent, PilotSpec},
};

/// Makes every object of the cluster as it shall be, and every Pilot that a node needs. What the
/// server will not take of one object holds no other up; the first such refusal is returned.
pub(crate) async fn ensure(
    ctx: &Context,
    desired: &Desired,
    observed: &Observed,
) -> Result<Option<Stalled>, Error> {
    // Pilots of volumes that were kept come before any pod, in all pools: a node whose own volume is
    // lost founds when all Pilots have said that theirs are empty, so a refusal of one holds all up.
    for pool in observed.pools.iter().filter(|pool| pool.set.is_none()) {
        let Some(wanted) = desired.pool(&pool.name) else { continue };
        for ordinal in 0..pool.initial() {
            ensure_pilot(ctx, desired, wanted, ordinal, pool.members.get(&ordinal)).await?;
        }
    }
    let mut first = None;
    let mut note = |done: Result<(), Error>| {
        let Err(error) = done else { return Ok(()) };
        let refused = refused(error)?;
        let (name, message) = (&desired.name, &refused.message);
        warn!(namespace = desired.namespace, name, message, "An object was refused");
        first.get_or_insert(refused);
        Ok(())
    };
    for prepared in build::build(desired, observed, &ctx.settings) {
        note(ensure_object(ctx, desired, observed, prepared).await)?;
    }
    note(remove_services(ctx, desired).await)?;
    for pool in &observed.pools {
        note(adopt::members(ctx, desired, pool).await)?;
        let Some(wanted) = desired.pool(&pool.name) else { continue };
        for (ordinal, member) in pool.running() {
            note(ensure_pilot(ctx, desired, wanted, ordinal, member).await)?;
        }
    }
    note(label_nodes(ctx, desired).await)?;
    Ok(first)
}

async fn ensure_object(
    ctx: &Context,
    desired: &Desired,
    observed: &Observed,
    prepared: Prepared,
) -> Result<(), Error> {
    let Some((meta, body)) = found(ctx, desired, observed, &prepared) else {
        return make(ctx, desired, prepared).await;
    };
    if !owned(&meta, desired) {
        let kind = &prepared.resource.kind;
        return Err(Error::Foreign(foreign(kind, &meta, desired)));
    }
    if current(&prepared, &body) {
        return Ok(());
    }
    let version =
        (prepared.resource.kind == "StatefulSet").then(|| meta.resource_version.clone()).flatten();
    change(ctx, desired, prepared, version).await
}

/// The object of this name as the caches know it.
fn found(
    ctx: &Context,
    desired: &Desired,
    observed: &Observed,
    prepared: &Prepared,
) -> Option<(ObjectMeta, Value)> {
    if prepared.resource.kind == "StatefulSet" {
        let pool = observed.pools.iter().find(|pool| pool.set_name == prepared.name)?;
        let set = pool.set.as_ref()?.object.as_deref()?;
        return Some((set.metadata.clone(), json!(set)));
    }
    let object = ctx.stores.other(&prepared.resource, &desired.namespace, &prepared.name)?;
    Some((object.metadata.clone(), json!(*object)))
}

/// Is the object what was built? Its hash says what it was made from; the comparison sees what
/// somebody changed since.
fn current(prepared: &Prepared, found: &Value) -> bool {
    let hash = found["metadata"]["annotations"][annotation::CONFIG_HASH].as_str();
    hash == Some(prepared.hash()) && holds(found, &prepared.body)
}

/// Does `found` say everything that `wanted` says? The server adds defaults and rewrites
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

/// Absent and empty are one to the server.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_empty),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// Makes an object that the caches do not know. The server is asked first, because an apply
/// would take over what somebody else made.
async fn make(ctx: &Context, desired: &Desired, prepared: Prepared) -> Result<(), Error> {
    let (resource, name) = (prepared.resource.clone(), prepared.name.clone());
    let kind = resource.kind.as_str();
    let request = |error| Error::request("get", kind, &name, error);
    let api = ctx.read(&resource, &desired.namespace);
    if let Some(found) = api.get_opt(&name).await.map_err(request)? {
        if !owned(&found.metadata, desired) {
            return Err(Error::Foreign(foreign(kind, &found.metadata, desired)));
        }
        if let Some(stalled) = other_store(&found.metadata, &ctx.settings.store_id) {
            return Err(Error::Foreign(stalled));
        }
        // Ours, but without the labels by which we watch, or too new for the cache.
        if kind != "StatefulSet" {
            return change(ctx, desired, prepared, None).await;
        }
        // It was built without a look at what is there, so nothing but its labels is right.
        let labels = &prepared.body["metadata"]["labels"];
        adopt::relabel(ctx, desired, &resource, &found.metadata, labels).await?;
        return Err(Error::Conflict { kind: kind.to_owned(), name });
    }
    not_terminating(ctx, desired).await?;
    change(ctx, desired, prepared, None).await?;
    if kind == "StatefulSet" {
        info!(namespace = desired.namespace, name, "Created node pool");
        let news = News::normal("CreateNodePool", format!("made StatefulSet {name}"));
        ctx.events.tell(desired, &news).await;
    }
    Ok(())
}

async fn not_terminating(ctx: &Context, desired: &Desired) -> Result<(), Error> {
    let api: Api<Namespace> = Api::all(ctx.client.clone());
    let name = &desired.namespace;
    let namespace = api.get(name).await.map_err(|e| Error::request("get", "Namespace", name, e))?;
    if namespace.metadata.deletion_timestamp.is_some() {
        return Err(Error::NamespaceTerminating(name.clone()));
    }
    Ok(())
}

/// Server-side apply. `version` makes it a compare-and-swap.
async fn change(
    ctx: &Context,
    desired: &Desired,
    prepared: Prepared,
    version: Option<String>,
) -> Result<(), Error> {
    let Prepared { resource, name, mut body } = prepared;
    if let Some(version) = version {
        body["metadata"]["resourceVersion"] = json!(version);
    }
    let api = ctx.write(&resource, &desired.namespace)?;
    let params = PatchParams::apply(MANAGER).force();
    api.patch(&name, &params, &Patch::Apply(&body))
        .await
        .map_err(|error| Error::request("apply", &resource.kind, &name, error))?;
    Ok(())
}

/// Services that the cluster does not want any more.
async fn remove_services(ctx: &Context, desired: &Desired) -> Result<(), Error> {
    let resource = ApiResource::erase::<Service>(&());
    for service in (desired.database.services)(desired) {
        let found = ctx.stores.other(&resource, &desired.namespace, &service.name);
        if let Some(found) =
            found.filter(|found| !service.wanted && owned(&found.metadata, desired))
        {
            delete(ctx, desired, &resource, &service.name, exactly(&found.metadata)).await?;
        }
    }
    Ok(())
}

/// Makes the Pilot of a node, or brings it up to date where that restarts nothing.
///
/// What needs a restart is held back from a node that has a pod. Should its database crash, it
/// would come up with a configuration before its turn, or with a version that its image does not
/// have. It is [`Step::Tell`], [`Step::Mend`] and [`Step::Restart`] that give it, to one node.
async fn ensure_pilot(
    ctx: &Context,
    desired: &Desired,
    pool: &Pool,
    ordinal: u32,
    member: Option<&Member>,
) -> Result<(), Error> {
    let name = names::pilot(&pool.set, ordinal);
    let Some(pilot) = member.and_then(|member| member.pilot.as_ref()) else {
        return create_pilot(ctx, desired, pool, ordinal, &name).await;
    };
    let mut patch = json!({});
    if !pilot.owned {
        // Nobody controls it: the cluster that wants its name adopts it.
        let body = pilot_body(desired, pool, &name, ordinal, &ctx.settings);
        for part in ["labels", "annotations", "ownerReferences"] {
            patch["metadata"][part] = body["metadata"][part].clone();
        }
    }
    let never_started = member.is_some_and(|member| member.pod.is_none());
    let restarts = pilot.spec.config_hash.as_deref() != Some(pool.config_hash());
    if (!restarts || never_started)
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
    ctx: &Context,
    desired: &Desired,
    pool: &Pool,
    ordinal: u32,
    name: &str,
) -> Result<(), Error> {
    not_terminating(ctx, desired).await?;
    let resource = pilot_resource();
    let body = pilot_body(desired, pool, name, ordinal, &ctx.settings);
    let object: DynamicObject =
        serde_json::from_value(body.clone()).expect("a Pilot has metadata and string keys");
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let api = ctx.write(&resource, &desired.namespace)?;
    match api.create(&params, &object).await {
        Ok(_) => info!(namespace = desired.namespace, name, "Created Pilot"),
        Err(error) => {
            let error = Error::request("create", "Pilot", name, error);
            if matches!(error, Error::Conflict { .. }) {
                adopt::pilot(ctx, desired, name, &body).await?;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Merge patch of our own fields, as a compare-and-swap.
async fn patch_pilot(
    ctx: &Context,
    desired: &Desired,
    name: &str,
    version: &str,
    mut patch: Value,
) -> Result<(), Error> {
    patch["metadata"]["resourceVersion"] = json!(version);
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let api = ctx.write(&pilot_resource(), &desired.namespace)?;
    api.patch(name, &params, &Patch::Merge(&patch))
        .await
        .map_err(|error| Error::request("patch", "Pilot", name, error))?;
    Ok(())
}

/// Gives pods the labels of single nodes, which a pod template cannot say.
async fn label_nodes(ctx: &Context, desired: &Desired) -> Result<(), Error> {
    let objects = ctx.stores.objects(desired);
    for pod in &objects.pods {
        let meta = &pod.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        let ordinal = desired.pools.iter().find_map(|pool| ordinal(&pool.set, name));
        let Some(ordinal) = ordinal.filter(|_| meta.deletion_timestamp.is_none()) else { continue };
        let pilot =
            objects.pilots.iter().find(|pilot| pilot.metadata.name.as_deref() == Some(name));
        let mut labels = serde_json::Map::new();
        let wanted = (desired.database.node_labels)(ordinal, pilot.map(|pilot| &pilot.status));
        for (key, value) in wanted {
            let found = meta.labels.as_ref().and_then(|labels| labels.get(key));
            if found.map(String::as_str) != value {
                labels.insert(key.to_owned(), json!(value));
            }
        }
        if labels.is_empty() {
            continue;
        }
        let patch = json!({"metadata": {"uid": meta.uid, "labels": labels}});
        let api = ctx.write(&ApiResource::erase::<Pod>(&()), &desired.namespace)?;
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map_err(|error| Error::request("patch", "Pod", name, error))?;
    }
    Ok(())
}

/// The ordinal of a pod of this StatefulSet.
fn ordinal(set: &str, pod: &str) -> Option<u32> {
    pod.strip_prefix(set)?.strip_prefix('-')?.parse().ok()
}

/// This very object, as it was read.
pub(crate) fn exactly(meta: &ObjectMeta) -> Preconditions {
    let ObjectMeta { uid, resource_version, .. } = meta;
    Preconditions { uid: uid.clone(), resource_version: resource_version.clone() }
}

/// The object of the step, at the version at which the step was decided.
fn decided(uid: &str, version: Option<&String>) -> Preconditions {
    Preconditions { uid: Some(uid.to_owned()), resource_version: version.cloned() }
}

/// Deletes what was read. What is gone already is fine.
async fn delete(
    ctx: &Context,
    desired: &Desired,
    resource: &ApiResource,
    name: &str,
    preconditions: Preconditions,
) -> Result<(), Error> {
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    match ctx.write(resource, &desired.namespace)?.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::request("delete", &resource.kind, name, error)),
    }
}

fn member<'a>(observed: &'a Observed, name: &str) -> Option<(&'a ObservedPool, &'a Member)> {
    observed.pools.iter().find_map(|pool| {
        let member = pool.members.values().find(|member| member.name == name)?;
        Some((pool, member))
    })
}

/// Carries one step out. `observed` must be fresh from the server.
pub(crate) async fn execute(
    ctx: &Context,
    desired: &Desired,
    observed: &Observed,
    step: &Step,
) -> Result<(), Error> {
    match step {
        Step::Raise { pool, to } | Step::Remove { pool, to, .. } => {
            resize(ctx, desired, observed, pool, *to).await
        }
        Step::Empty { pool } => resize(ctx, desired, observed, pool, 0).await,
        Step::Tell { pilot } => {
            tell(ctx, desired, observed, pilot, |pilot, wanted| {
                told_alone(desired.database, pilot, wanted)
            })
            .await
        }
        Step::Mend { pilot, pod } | Step::Restart { pilot, pod } => {
            let Some((_, member)) = member(observed, pilot) else { return Ok(()) };
            tell(ctx, desired, observed, pilot, |_, wanted| wanted.clone()).await?;
            let version = member.pod.as_ref().map(|pod| &pod.resource_version);
            let resource = ApiResource::erase::<Pod>(&());
            delete(ctx, desired, &resource, pilot, decided(pod, version)).await
        }
        Step::RestartInPlace { pilot } => restart_in_place(ctx, desired, observed, pilot).await,
        Step::Drain { pilot } => {
            set_phase(ctx, desired, observed, pilot, &PilotIntent::Decommissioned).await
        }
        Step::Keep { pilot } => {
            set_phase(ctx, desired, observed, pilot, &PilotIntent::Running).await
        }
        Step::Stop { pilots } => {
            for pilot in pilots {
                set_phase(ctx, desired, observed, pilot, &PilotIntent::Stopped).await?;
            }
            Ok(())
        }
        Step::Start { pilots } => {
            for pilot in pilots {
                set_phase(ctx, desired, observed, pilot, &PilotIntent::Running).await?;
            }
            Ok(())
        }
        Step::Deliver { pilot, pod, container, image: _ } => {
            deliver(ctx, desired, pilot, pod, container).await
        }
        Step::DeleteClaim { pilot, claim, uid } => {
            let found = member(observed, pilot).and_then(|(_, member)| member.claim.as_ref());
            let version = found.map(|claim| &claim.resource_version);
            let resource = ApiResource::erase::<PersistentVolumeClaim>(&());
            delete(ctx, desired, &resource, claim, decided(uid, version)).await
        }
        Step::DeletePilot { pilot, uid } => {
            let found = member(observed, pilot).and_then(|(_, member)| member.pilot.as_ref());
            let version = found.map(|pilot| &pilot.resource_version);
            delete(ctx, desired, &pilot_resource(), pilot, decided(uid, version)).await
        }
        Step::DeletePool { pool: _, set } => {
            let service = ApiResource::erase::<Service>(&());
            let pods = names::pods_service(set);
            let budget = ApiResource::erase::<PodDisruptionBudget>(&());
            for (resource, name) in [(service, pods), (budget, set.clone())] {
                if let Some(found) = ctx.stores.other(&resource, &desired.namespace, &name)
                    && owned(&found.metadata, desired)
                {
                    delete(ctx, desired, &resource, &name, exactly(&found.metadata)).await?;
                }
            }
            let found = observed.pools.iter().find(|pool| pool.set_name == *set);
            let object = found.and_then(|pool| pool.set.as_ref()?.object.as_deref());
            let Some(object) = object else { return Ok(()) };
            let resource = ApiResource::erase::<StatefulSet>(&());
            delete(ctx, desired, &resource, set, exactly(&object.metadata)).await
        }
    }
}

/// Gives a node of the newest spec what `part` says.
async fn tell(
    ctx: &Context,
    desired: &Desired,
    observed: &Observed,
    pilot: &str,
    part: impl Fn(&PilotFacts, &PilotSpec) -> PilotSpec,
) -> Result<(), Error> {
    let Some((pool, member)) = member(observed, pilot) else { return Ok(()) };
    if let (Some(wanted), Some(facts)) = (desired.pool(&pool.name), &member.pilot)
        && let Some(spec) = spec_patch(&facts.spec, &part(facts, &wanted.pilot))
    {
        let patch = json!({"spec": spec});
        patch_pilot(ctx, desired, pilot, &facts.resource_version, patch).await?;
    }
    Ok(())
}

/// Gives a node the newest spec and the order to stop; both at once, so that it is started with
/// the newest spec whatever happens to us.
async fn restart_in_place(
    ctx: &Context,
    desired: &Desired,
    observed: &Observed,
    pilot: &str,
) -> Result<(), Error> {
    let Some((pool, member)) = member(observed, pilot) else { return Ok(()) };
    let (Some(wanted), Some(facts)) = (desired.pool(&pool.name), &member.pilot) else {
        return Ok(());
    };
    let mut spec = spec_patch(&facts.spec, &wanted.pilot).unwrap_or_else(|| json!({}));
    spec["phase"] = json!(PilotIntent::Stopped);
    let patch = json!({"metadata": {"annotations": {PHASE_OWNER: MANAGER}}, "spec": spec});
    patch_pilot(ctx, desired, pilot, &facts.resource_version, patch).await
}

/// Adds a container that installs the wanted pilot to a running pod. The server merges lists of
/// containers by name, so what is there stays; the uid makes it this very pod.
async fn deliver(
    ctx: &Context,
    desired: &Desired,
    pilot: &str,
    pod: &str,
    container: &str,
) -> Result<(), Error> {
    let container = build::ephemeral_installer(desired, container);
    let patch = json!({
        "metadata": {"uid": pod}, "spec": {"ephemeralContainers": [container]},
    });
    let api = ctx.write(&ApiResource::erase::<Pod>(&()), &desired.namespace)?;
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    api.patch_subresource("ephemeralcontainers", pilot, &params, &Patch::Strategic(&patch))
        .await
        .map_err(|error| Error::request("bring a pilot into", "Pod", pilot, error))?;
    Ok(())
}

/// Sets the replicas of a pool, Pilots of new nodes first: a pilot waits for its Pilot.
async fn resize(
    ctx: &Context,
    desired: &Desired,
    observed: &Observed,
    pool: &str,
    to: u32,
) -> Result<(), Error> {
    let Some(found) = observed.pools.iter().find(|found| found.name == pool) else {
        return Ok(());
    };
    let Some(set) = &found.set else { return Ok(()) };
    if let Some(wanted) = desired.pool(pool) {
        // New nodes are told what fits the cluster that they make.
        let resized = desired.clone().fitting(&observed.resized(pool, to).existing());
        let fitting = resized.pool(pool).unwrap_or(wanted);
        for ordinal in set.replicas..to {
            ensure_pilot(ctx, desired, fitting, ordinal, found.members.get(&ordinal)).await?;
        }
        let version = Some(set.resource_version.clone());
        let prepared = build::resized(desired, wanted, found, to, &ctx.settings);
        return change(ctx, desired, prepared, version).await;
    }
    // A pool that is no longer wanted keeps its last template; only its size changes.
    let patch = json!({
        "metadata": {"resourceVersion": set.resource_version}, "spec": {"replicas": to},
    });
    let api = ctx.write(&ApiResource::erase::<StatefulSet>(&()), &desired.namespace)?;
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    api.patch(&found.set_name, &params, &Patch::Merge(&patch))
        .await
        .map_err(|error| Error::request("patch", "StatefulSet", &found.set_name, error))?;
    Ok(())
}

/// Writes the intent of a node and, beside it, that the intent is ours.
async fn set_phase(
    ctx: &Context,
    desired: &Desired,
    observed: &Observed,
    pilot: &str,
    phase: &PilotIntent,
) -> Result<(), Error> {
    let Some((_, member)) = member(observed, pilot) else { return Ok(()) };
    let Some(facts) = &member.pilot else { return Ok(()) };
    let owner = (*phase != PilotIntent::Running).then_some(MANAGER);
    let patch = json!({
        "metadata": {"annotations": {PHASE_OWNER: owner}},
        "spec": {"phase": phase},
    });
    patch_pilot(ctx, desired, pilot, &facts.resource_version, patch).await
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
