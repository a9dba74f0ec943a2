//! Builds the Kubernetes objects that a cluster needs, one kind a file: pure.
//!
//! Owns names, labels, annotations and shapes (a public contract, `docs/api`). Which objects are
//! wanted follows from [`DesiredCluster`] alone; the current size of a pool, and the fields of a
//! StatefulSet that cannot be changed, are taken from [`ObservedCluster`].

mod budget;
mod claim;
mod merge;
mod network_policy;
mod pilot;
pub(crate) mod pod;
mod rbac;
mod services;
mod stateful_set;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ApiResource;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    desired_state::{DesiredCluster, DesiredPool, ObjectSettings, hash},
    observe::{ObservedCluster, ObservedPool},
};
use crate::api::names::{annotation, label};

pub(crate) use budget::{disruption_budget, former_budget};
pub(crate) use claim::claim_templates;
pub(crate) use pilot::{pilot_body, pilot_resource, spec_patch};
pub(crate) use pod::ephemeral_installer;
pub(crate) use stateful_set::stateful_set;

/// An object that the cluster needs.
#[derive(Clone, Debug)]
pub(crate) enum DesiredObject {
    /// A StatefulSet. The plan sets its size, and some of its fields cannot be changed. So it is
    /// compared with the observed StatefulSet, and written over that version alone.
    StatefulSet(PreparedObject),
    /// An object of any other kind. It is compared with the caches, and overwritten whenever it
    /// differs.
    Other(PreparedObject),
}

/// An object in the form in which it is applied.
#[derive(Clone, Debug)]
pub(crate) struct PreparedObject {
    pub(crate) resource: ApiResource,
    pub(crate) name: String,
    pub(crate) body: Value,
}

/// Labels, annotations or a selector.
type Labels = BTreeMap<String, String>;

impl From<DesiredObject> for PreparedObject {
    fn from(resource: DesiredObject) -> Self {
        match resource {
            DesiredObject::StatefulSet(prepared) | DesiredObject::Other(prepared) => prepared,
        }
    }
}

impl DesiredObject {
    fn from_object<K>(object: &K) -> Self
    where
        K: kube::Resource<DynamicType = ()> + Serialize,
    {
        Self::Other(PreparedObject::from_object(object))
    }
}

impl PreparedObject {
    /// Makes a prepared object of what an object should be.
    pub(crate) fn from_object<K>(object: &K) -> Self
    where
        K: kube::Resource<DynamicType = ()> + Serialize,
    {
        Self::new::<K>(json!(object), &hash(object))
    }

    /// Makes a prepared object. `hash` says what the body was made from; it goes into the
    /// annotation config-hash.
    fn new<K>(mut body: Value, hash: &str) -> Self
    where
        K: kube::Resource<DynamicType = ()>,
    {
        body["metadata"]["annotations"][annotation::CONFIG_HASH] = json!(hash);
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        Self { resource: ApiResource::erase::<K>(&()), name, body }
    }

    pub(crate) fn hash(&self) -> &str {
        self.body["metadata"]["annotations"][annotation::CONFIG_HASH].as_str().unwrap_or_default()
    }
}

/// Returns the objects that a cluster needs, without Pilots and the budget, in the order in which
/// they are made. `pin_of` returns the config hash of the older template that a pool keeps, if any.
pub(crate) fn build_resources<'a>(
    desired: &DesiredCluster,
    observed: &'a ObservedCluster,
    settings: &ObjectSettings,
    pin_of: impl Fn(&'a ObservedPool) -> Option<&'a str>,
) -> Vec<DesiredObject> {
    let mut resources = services::build_services(desired, settings);
    resources.extend(network_policy::network_policy(desired, settings));
    resources.extend(rbac::pilot_rbac(desired, settings));
    for pool in &desired.pools {
        resources.push(services::pods_service(desired, settings, pool));
    }
    // StatefulSets come last: the objects that they name exist by then.
    for pool in &desired.pools {
        let observed_pool = observed.pools.iter().find(|other| other.name == pool.name);
        let pin = observed_pool.and_then(&pin_of);
        let set = stateful_set(
            desired,
            settings,
            pool,
            observed_pool,
            observed_pool.map_or(0, current_replicas),
            pin,
        );
        resources.push(DesiredObject::StatefulSet(set));
    }
    resources
}

/// Returns the replicas of a pool's StatefulSet: only the plan changes the size of an existing one.
fn current_replicas(pool: &ObservedPool) -> u32 {
    pool.set.as_ref().map_or_else(|| pool.initial_replicas(), |set| set.replicas)
}

/// Builds the metadata of an object, with the cluster's uid and the store's identity.
fn build_metadata(
    desired: &DesiredCluster,
    settings: &ObjectSettings,
    name: &str,
    labels: Labels,
    mut annotations: Labels,
) -> ObjectMeta {
    annotations.insert(annotation::CLUSTER_UID.to_owned(), desired.uid.clone());
    annotations.insert(annotation::STORE_ID.to_owned(), settings.store_id.clone());
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(desired.namespace.clone()),
        owner_references: settings.owner_references.then(|| vec![desired.owner_reference()]),
        labels: Some(labels),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    }
}

/// Builds the metadata of an object that belongs to a whole cluster.
pub(crate) fn cluster_metadata(
    desired: &DesiredCluster,
    settings: &ObjectSettings,
    name: &str,
) -> ObjectMeta {
    build_metadata(desired, settings, name, cluster_labels(desired), Labels::new())
}

/// Returns the labels of everything that belongs to a cluster.
pub(crate) fn cluster_labels(desired: &DesiredCluster) -> Labels {
    let database = desired.database;
    let own_labels = [
        (database.names.cluster_label, desired.name.as_str()),
        (label::K8S_NAME, database.names.word),
        (label::K8S_INSTANCE, &desired.name),
        (label::K8S_COMPONENT, "database"),
        (label::K8S_PART_OF, &desired.name),
        (label::K8S_MANAGED_BY, "navigator"),
    ];
    let all_labels = own_labels.into_iter().chain(database.labels.iter().copied());
    all_labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

pub(crate) fn pool_labels(desired: &DesiredCluster, pool: &DesiredPool) -> Labels {
    let mut labels = cluster_labels(desired);
    labels.insert(desired.database.names.pool_label.to_owned(), pool.name.clone());
    labels.extend(pool.labels.iter().cloned());
    labels
}

/// Builds a selector from the cluster and pool labels only.
fn selector_labels(desired: &DesiredCluster, pool: Option<&DesiredPool>) -> Labels {
    let database = desired.database;
    let mut selector =
        Labels::from([(database.names.cluster_label.to_owned(), desired.name.clone())]);
    if let Some(pool) = pool {
        selector.insert(database.names.pool_label.to_owned(), pool.name.clone());
    }
    selector
}
