//! One look at a cluster: observe → plan → build → apply → status.
//!
//! Invariant: a step is decided twice, from the caches and then from what the server says at
//! that moment; it is carried out only when both agree.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{DynamicObject, ListParams, PostParams, TypeMeta},
};
use serde_json::json;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    context::{Context, Error, MANAGER, refused},
    desired::{Database, Desired, Stalled},
    ensure, events, execute,
    observe::{Objects, Observed, observe, other_store},
    plan::{Plan, Step, plan},
    queue::{Key, Outcome},
    status, teardown,
};
use crate::{
    api::v1beta1::{ClusterStatus, Pilot},
    error::chain,
};

/// Watches tell of every change; this bounds what they cannot tell: time.
const WHILE_WAITING: Duration = Duration::from_secs(15);
const AFTER_A_STEP: Duration = Duration::from_secs(5);
const AFTER_A_WORD: Duration = Duration::from_millis(200);
const WHILE_FOREIGN: Duration = Duration::from_secs(30);

/// After so many looks in a row that came to nothing, the cluster's status says why.
const TOLD_AFTER: u32 = 5;

/// Looks at one cluster and says when to look again. `failures`: looks before it that came to
/// nothing, in a row.
pub(crate) async fn reconcile(
    ctx: &Context,
    database: &'static Database,
    key: &Key,
    cluster: Option<Arc<DynamicObject>>,
    failures: u32,
) -> (Outcome, &'static str) {
    let Some(cluster) = cluster else { return (Outcome::Gone, "gone") };
    let desired = match read(ctx, database, &cluster) {
        Ok(desired) => desired,
        Err(error) => {
            let text = chain(&error).to_string();
            warn!(namespace = key.namespace, name = key.name, error = text, "Sync failed");
            return (Outcome::Failed, error.outcome());
        }
    };
    match look(ctx, &cluster, &desired).await {
        Ok(outcome) => (outcome, "ok"),
        Err(error) => {
            let outcome = match &error {
                Error::Conflict { .. } => {
                    debug!(namespace = key.namespace, name = key.name, error = %error, "Conflict");
                    Outcome::Conflict
                }
                Error::NamespaceTerminating(_) => Outcome::Settled,
                // Should it lead again, the cluster is not forgotten.
                Error::NotLeading => Outcome::Failed,
                Error::Foreign(_) => Outcome::Again(WHILE_FOREIGN),
                Error::Request { .. } | Error::Unreadable { .. } => {
                    let text = chain(&error).to_string();
                    warn!(namespace = key.namespace, name = key.name, error = text, "Sync failed");
                    ctx.events.tell(&desired, &events::News::warning("ErrSync", text)).await;
                    Outcome::Failed
                }
            };
            if failures + 1 >= TOLD_AFTER
                && matches!(error, Error::Conflict { .. } | Error::Request { .. })
            {
                tell_failures(ctx, &cluster, &desired, &error).await;
            }
            (outcome, error.outcome())
        }
    }
}

/// The cluster object in shared terms.
fn read(
    ctx: &Context,
    database: &'static Database,
    cluster: &DynamicObject,
) -> Result<Desired, Error> {
    (database.desired)(cluster, &ctx.settings).map_err(|source| Error::Unreadable {
        kind: database.kind,
        name: cluster.metadata.name.clone().unwrap_or_default(),
        source,
    })
}

/// Says in status why nothing comes of the looks at a cluster. That it cannot be said either is
/// in the log already.
async fn tell_failures(ctx: &Context, cluster: &DynamicObject, desired: &Desired, error: &Error) {
    if desired.deleted {
        return;
    }
    let now = Timestamp::now();
    let mut observed = see(ctx, desired, &ctx.stores.objects(desired), now);
    let what = match error {
        Error::Conflict { .. } => "; somebody else changes it again and again, or takes off labels",
        _ => "",
    };
    let message = format!("{}{what}", chain(error));
    observed.refused = Some(Stalled { reason: "SyncFailed", message });
    let desired = desired.clone().fitting(&observed.existing());
    let planned = plan(&desired, &observed);
    let after = status::status(&desired, &observed, &planned, now);
    if let Err(error) = write_status(ctx, cluster, &desired, after, &planned).await {
        debug!(name = desired.name, error = %chain(&error), "Failed to tell of failures");
    }
}

async fn look(ctx: &Context, cluster: &DynamicObject, desired: &Desired) -> Result<Outcome, Error> {
    let now = Timestamp::now();
    let mut observed = see(ctx, desired, &ctx.stores.objects(desired), now);
    if desired.deleted {
        if say_deleting(ctx, cluster, desired).await? {
            return Ok(Outcome::Again(AFTER_A_WORD));
        }
        return teardown::tear_down(ctx, cluster, desired, &observed).await;
    }
    if desired.status.observed_generation.is_none() {
        // Whoever created the cluster sees at once that it was seen.
        return first_sight(ctx, cluster, desired).await;
    }
    teardown::keep_finalizer(ctx, cluster, desired).await?;
    let desired = &desired.clone().fitting(&observed.existing());
    let inert = desired.paused || desired.stalled.is_some() || observed.stalled.is_some();
    if !inert {
        match ensure::ensure(ctx, desired, &observed).await {
            Ok(refused) => observed.refused = refused,
            // Shown in status, below, like what the caches know.
            Err(Error::Foreign(stalled)) => observed.stalled = Some(stalled),
            Err(error) => return Err(error),
        }
    }
    let mut planned = plan(desired, &observed);
    if let Some(step) = planned.step.clone() {
        match carry_out(ctx, desired, &step, now).await {
            Ok(Done::Yes) => {
                info!(
                    namespace = desired.namespace,
                    name = desired.name,
                    step = step.name(),
                    detail = ?step,
                    "Carried out step"
                );
                // A step that is part of none stands for itself.
                let operation =
                    planned.operation.map_or(step.name(), super::plan::OperationType::as_str);
                ctx.metrics.steps.with_label_values(&[desired.database.kind, operation]).inc();
                ctx.events.tell(desired, &events::of_step(&step)).await;
            }
            Ok(Done::Otherwise(fresh)) => planned = fresh,
            Err(Error::Foreign(stalled)) => observed.stalled = Some(stalled),
            Err(error) => observed.refused = Some(refused(error)?),
        }
    }
    let after = status::status(desired, &observed, &planned, now);
    write_status(ctx, cluster, desired, after, &planned).await?;
    Ok(next_look(&planned, &observed, desired))
}

fn next_look(planned: &Plan, observed: &Observed, desired: &Desired) -> Outcome {
    if observed.refused.is_some() {
        Outcome::Failed
    } else if observed.stalled.is_some() {
        Outcome::Again(WHILE_FOREIGN)
    } else if planned.step.is_some() {
        Outcome::Again(AFTER_A_STEP)
    } else if desired.paused || desired.stalled.is_some() {
        Outcome::Settled
    } else if planned.operation.is_some() || planned.waiting.is_some() {
        Outcome::Again(WHILE_WAITING)
    } else {
        Outcome::Settled
    }
}

fn see(ctx: &Context, desired: &Desired, objects: &Objects, now: Timestamp) -> Observed {
    let mut observed = observe(desired, objects, now);
    observed.hear(|pilot| ctx.heard.of(pilot, Instant::now()));
    observed.leader = ctx.stores.leader(desired);
    if observed.stalled.is_none() {
        observed.stalled = of_other_store(ctx, objects);
    }
    observed
}

fn of_other_store(ctx: &Context, objects: &Objects) -> Option<Stalled> {
    let sets = objects.sets.iter().map(|set| &set.metadata);
    let pilots = objects.pilots.iter().map(|pilot| &pilot.metadata);
    sets.chain(pilots).find_map(|meta| other_store(meta, &ctx.settings.store_id))
}

enum Done {
    Yes,
    /// The server says something else than the caches: the plan that follows from it, without a
    /// step, so that the next look starts over.
    Otherwise(Plan),
}

/// Looks again, at the server itself, and carries the step out if it is still the next one.
async fn carry_out(
    ctx: &Context,
    desired: &Desired,
    step: &Step,
    now: Timestamp,
) -> Result<Done, Error> {
    let kind = desired.database.kind;
    let api = ctx.read(&desired.database.resource(), &desired.namespace);
    let live = api
        .get(&desired.name)
        .await
        .map_err(|error| Error::request("get", kind, &desired.name, error))?;
    let fresh = read(ctx, desired.database, &live)?;
    if fresh.uid != desired.uid || fresh.generation != desired.generation || fresh.deleted {
        return Err(Error::Conflict { kind: kind.to_owned(), name: desired.name.clone() });
    }
    let observed = see(ctx, &fresh, &live_objects(ctx, desired).await?, now);
    let fresh = fresh.fitting(&observed.existing());
    let planned = plan(&fresh, &observed);
    if planned.step.as_ref() != Some(step) {
        debug!(
            namespace = desired.namespace,
            name = desired.name,
            cached = ?step,
            live = ?planned.step,
            "The caches lag behind"
        );
        return Ok(Done::Otherwise(Plan { step: None, ..planned }));
    }
    execute::execute(ctx, &fresh, &observed, step).await?;
    Ok(Done::Yes)
}

/// The cluster's objects as the server has them now.
async fn live_objects(ctx: &Context, desired: &Desired) -> Result<Objects, Error> {
    let labels = format!("{}={}", desired.database.cluster_label, desired.name);
    let params = ListParams::default().labels(&labels);
    Ok(Objects {
        sets: list::<StatefulSet>(ctx, desired, &params).await?,
        pods: list::<Pod>(ctx, desired, &params).await?,
        pilots: list::<Pilot>(ctx, desired, &params).await?,
        claims: list::<PersistentVolumeClaim>(ctx, desired, &params).await?,
    })
}

async fn list<K>(
    ctx: &Context,
    desired: &Desired,
    params: &ListParams,
) -> Result<Vec<Arc<K>>, Error>
where
    K: k8s_openapi::Resource<Scope = k8s_openapi::NamespaceResourceScope>
        + k8s_openapi::Metadata<Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(ctx.client.clone(), &desired.namespace);
    let listed = api.list(params).await;
    let listed = listed.map_err(|error| Error::request("list", K::KIND, &desired.name, error))?;
    Ok(listed.items.into_iter().map(Arc::new).collect())
}

async fn first_sight(
    ctx: &Context,
    cluster: &DynamicObject,
    desired: &Desired,
) -> Result<Outcome, Error> {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
    let status = ClusterStatus {
        observed_generation: Some(desired.generation),
        phase: Some("Pending".to_owned()),
        conditions: vec![Condition {
            type_: "Ready".to_owned(),
            status: "Unknown".to_owned(),
            reason: "Pending".to_owned(),
            message: "the cluster has been seen".to_owned(),
            observed_generation: Some(desired.generation),
            last_transition_time: Time(status::seconds(Timestamp::now())),
        }],
        ..ClusterStatus::default()
    };
    write_status(ctx, cluster, desired, status, &Plan::default()).await?;
    Ok(Outcome::Again(AFTER_A_WORD))
}

/// Says that the cluster is on its way out, and whether that was written just now: then the copy at
/// hand is old. Whatever else was said of it stands, and a refusal holds nothing up.
async fn say_deleting(
    ctx: &Context,
    cluster: &DynamicObject,
    desired: &Desired,
) -> Result<bool, Error> {
    let phase = Some("Deleting".to_owned());
    if desired.status.phase == phase {
        return Ok(false);
    }
    let status = ClusterStatus { phase, ..desired.status.clone() };
    match write_status(ctx, cluster, desired, status, &Plan::default()).await {
        Ok(()) => Ok(true),
        Err(error @ (Error::Conflict { .. } | Error::NotLeading)) => Err(error),
        Err(error) => {
            debug!(error = %chain(&error), "Phase Deleting was not written");
            Ok(false)
        }
    }
}

/// Replaces the status, if it differs, and tells what changed.
async fn write_status(
    ctx: &Context,
    cluster: &DynamicObject,
    desired: &Desired,
    status: ClusterStatus,
    planned: &Plan,
) -> Result<(), Error> {
    if desired.status == status {
        return Ok(());
    }
    let resource = desired.database.resource();
    let mut object = cluster.clone();
    object.types =
        Some(TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() });
    object.data["status"] = json!(status);
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let api = ctx.write(&resource, &desired.namespace)?;
    api.replace_status(&desired.name, &params, &object).await.map_err(|error| {
        Error::request("update the status of", &resource.kind, &desired.name, error)
    })?;
    for news in events::of_status(&desired.status, &status, planned) {
        ctx.events.tell(desired, &news).await;
    }
    Ok(())
}
