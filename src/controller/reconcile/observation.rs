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
        observe::{ClusterObjects, ObservedCluster, observe, other_store},
    },
};

/// Returns the facts according to the caches, which may lag behind.
pub(super) fn from_caches(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    now: Timestamp,
) -> ObservedCluster {
    observed(ctx, desired, &ctx.stores.objects(desired), now)
}

/// Asks for what no cache holds, where it matters now, and adds it to the facts.
pub(super) async fn ask(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    observed: &mut ObservedCluster,
) {
    ctx.causes.read(&ctx.client, desired, observed).await;
    ctx.causes.tell(desired, observed);
    expansion::ask(ctx, desired, observed).await;
    ctx.expansion.tell(desired, observed);
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
        sets: list::<StatefulSet>(ctx, desired, &params).await?,
        pods: list::<Pod>(ctx, desired, &params).await?,
        pilots: list::<Pilot>(ctx, desired, &params).await?,
        claims: list::<PersistentVolumeClaim>(ctx, desired, &params).await?,
        // The ServiceAccount comes from the cache: at worst it is older than the server's, and the
        // pods are fresh.
        account: ctx.stores.account(desired.database, &desired.namespace, &desired.name),
    };
    Ok(observed(ctx, desired, &objects, now))
}

/// Turns objects into facts, and adds what no object says: when pilots reported, which one leads,
/// and what was asked for.
fn observed(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    objects: &ClusterObjects,
    now: Timestamp,
) -> ObservedCluster {
    let mut observed = observe(desired, objects, now);
    observed.hear(|pilot| ctx.heard.of(pilot, Instant::now()));
    observed.see(|pilot, serves| ctx.heard.see(pilot, serves, Instant::now()));
    observed.leader = ctx.stores.leader(desired);
    ctx.causes.tell(desired, &mut observed);
    ctx.expansion.tell(desired, &mut observed);
    if observed.stalled.is_none() {
        observed.stalled = of_other_store(ctx, objects);
    }
    observed
}

fn of_other_store(ctx: &ControllerContext, objects: &ClusterObjects) -> Option<StallCause> {
    let sets = objects.sets.iter().map(|set| &set.metadata);
    let pilots = objects.pilots.iter().map(|pilot| &pilot.metadata);
    sets.chain(pilots).find_map(|meta| other_store(meta, &ctx.settings.store_id))
}

async fn list<K>(
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
    let listed = api.list(params).await;
    let listed = listed.map_err(|error| Error::request("list", K::KIND, &desired.name, error))?;
    Ok(listed.items.into_iter().map(Arc::new).collect())
}
