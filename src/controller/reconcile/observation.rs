//! Gathers the facts about a cluster, from the caches or from the server.

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::{
    Metadata, NamespaceResourceScope, Resource,
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use kube::{Api, api::ListParams};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::expansion;
use crate::{
    api::v1beta1::Pilot,
    controller::{
        context::{ControllerContext, Error},
        desired_state::{DesiredCluster, StallCause},
        observe::{ClusterObjects, ObservedCluster, observe_cluster, store_mismatch},
    },
};

/// Returns the facts according to the caches, which may lag behind.
pub(super) fn from_caches(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    now: Timestamp,
) -> ObservedCluster {
    observe_objects(ctx, desired, &ctx.stores.cluster_objects(desired), now)
}

/// Asks for what no cache holds, where it matters now, and adds it to the facts.
pub(super) async fn observe_causes(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &mut ObservedCluster,
) {
    ctx.causes.read_events(&ctx.client, desired, observed).await;
    ctx.causes.apply_causes(desired, observed);
    expansion::check_expansions(ctx, desired, observed).await;
    ctx.expansion.apply_answers(desired, observed);
}

/// Returns the facts according to the server now.
pub(super) async fn from_server(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    now: Timestamp,
) -> Result<ObservedCluster, Error> {
    let labels = format!("{}={}", desired.database.names.cluster_label, desired.name);
    let params = ListParams::default().labels(&labels);
    let objects = ClusterObjects {
        sets: list_objects::<StatefulSet>(ctx, desired, &params).await?,
        pods: list_objects::<Pod>(ctx, desired, &params).await?,
        pilots: list_objects::<Pilot>(ctx, desired, &params).await?,
        claims: list_objects::<PersistentVolumeClaim>(ctx, desired, &params).await?,
        // The ServiceAccount comes from the cache: at worst it is older than the server's, and the
        // pods are fresh.
        account: ctx.stores.service_account(desired.database, &desired.namespace, &desired.name),
    };
    Ok(observe_objects(ctx, desired, &objects, now))
}

/// Turns objects into facts, and adds what no object says: when pilots reported, which one leads,
/// and what was asked for.
fn observe_objects(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    objects: &ClusterObjects,
    now: Timestamp,
) -> ObservedCluster {
    let mut observed = observe_cluster(desired, objects, now);
    observed.set_heartbeats(|pilot| ctx.heard.heartbeat_age(pilot, Instant::now()));
    observed.record_unavailability(|pilot, is_serving| {
        ctx.heard.record_serving(pilot, is_serving, Instant::now())
    });
    observed.leader = ctx.stores.leader(desired);
    ctx.causes.apply_causes(desired, &mut observed);
    ctx.expansion.apply_answers(desired, &mut observed);
    if observed.stalled.is_none() {
        observed.stalled = find_store_mismatch(ctx, objects);
    }
    observed
}

fn find_store_mismatch(ctx: &ControllerContext, objects: &ClusterObjects) -> Option<StallCause> {
    let sets = objects.sets.iter().map(|set| &set.metadata);
    let pilots = objects.pilots.iter().map(|pilot| &pilot.metadata);
    sets.chain(pilots).find_map(|meta| store_mismatch(meta, &ctx.settings.store_id))
}

async fn list_objects<K>(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    params: &ListParams,
) -> Result<Vec<Arc<K>>, Error>
where
    K: Resource<Scope = NamespaceResourceScope>
        + Metadata<Ty = ObjectMeta>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(ctx.client.clone(), &desired.namespace);
    let result = api.list(params).await;
    let list =
        result.map_err(|error| Error::from_request("list", K::KIND, &desired.name, error))?;
    Ok(list.items.into_iter().map(Arc::new).collect())
}
