//! Caches of the objects that the controller watches, and the rules by which a change in them makes
//! a cluster due.
//!
//! Invariant: a heartbeat or a renewed lease makes no cluster due. A Pilot makes its cluster due
//! when its [`fingerprint`] changes.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    fmt::Debug,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, Pod, Service, ServiceAccount},
        policy::v1::PodDisruptionBudget,
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store, store::Writer},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;
use tracing::warn;

use super::{
    desired_state::{DesiredCluster, ManagedDatabase},
    heartbeats::HeartbeatTracker,
    observe::ClusterObjects,
    queue::{ClusterKey, WorkQueue},
};
use crate::{
    api::v1beta1::{LeaderLease, Pilot},
    error::chain,
    runtime::{Runtime, Shutdown, readiness},
};

#[derive(Clone)]
pub(crate) struct ObjectCaches {
    /// Clusters of each database.
    clusters: Vec<(&'static ManagedDatabase, Store<DynamicObject>)>,
    pub(crate) pilots: Store<Pilot>,
    leases: Store<LeaderLease>,
    pub(crate) sets: Store<StatefulSet>,
    pub(crate) pods: Store<Pod>,
    pub(crate) claims: Store<PersistentVolumeClaim>,
    /// Objects of other kinds, which the controller only compares with what they should be.
    others: Vec<(ApiResource, Store<DynamicObject>)>,
}

/// An object of Kubernetes that was made for a cluster.
#[derive(Clone, Debug)]
pub(crate) struct ManagedObject {
    pub(crate) resource: ApiResource,
    pub(crate) meta: ObjectMeta,
}

/// What each watch is started with.
#[derive(Clone)]
struct WatchFactory {
    databases: Arc<[&'static ManagedDatabase]>,
    runtime: Runtime,
    client: Client,
    namespace: Option<String>,
    queue: WorkQueue,
}

impl ObjectCaches {
    /// Starts the watches. Readiness waits until each cache was filled once.
    pub(crate) fn start(
        databases: &[&'static ManagedDatabase],
        runtime: &Runtime,
        client: Client,
        namespace: Option<String>,
        queue: WorkQueue,
        heard: &HeartbeatTracker,
    ) -> Self {
        let known: Arc<[&'static ManagedDatabase]> = databases.into();
        let watches =
            WatchFactory { databases: known, runtime: runtime.clone(), client, namespace, queue };
        let ours = || watcher::Config::default().labels("app.kubernetes.io/managed-by=navigator");
        let all = watcher::Config::default;
        Self {
            clusters: databases
                .iter()
                .map(|database| (*database, watches.clusters(database, all())))
                .collect(),
            // Unmanaged Pilots too: silent ones are marked and abandoned ones collected.
            pilots: watches.pilots(all(), heard),
            leases: watches.typed("watch-leaderleases", all(), of_lease, lease_print),
            sets: watches.typed("watch-statefulsets", ours(), of_member, version),
            pods: watches.typed("watch-pods", ours(), of_member, version),
            claims: watches.typed("watch-claims", ours(), of_member, version),
            others: vec![
                watches.other::<Service>("watch-services", ours()),
                watches.other::<ServiceAccount>("watch-serviceaccounts", ours()),
                watches.other::<Role>("watch-roles", ours()),
                watches.other::<RoleBinding>("watch-rolebindings", ours()),
                watches.other::<PodDisruptionBudget>("watch-budgets", ours()),
            ],
        }
    }

    /// Waits until the caches hold what the server held. Call it once: when two tasks wait for one
    /// store, kube's initialisation wakes only the last.
    pub(crate) async fn filled(&self) {
        let Self { clusters, pilots, leases, sets, pods, claims, others } = self;
        // An error means that the watch ended, which ends the process.
        for (_, store) in clusters {
            drop(store.wait_until_ready().await);
        }
        drop(pilots.wait_until_ready().await);
        drop(leases.wait_until_ready().await);
        drop(sets.wait_until_ready().await);
        drop(pods.wait_until_ready().await);
        drop(claims.wait_until_ready().await);
        for (_, store) in others {
            drop(store.wait_until_ready().await);
        }
    }

    /// The databases whose clusters are reconciled.
    pub(crate) fn databases(&self) -> impl Iterator<Item = &'static ManagedDatabase> {
        self.clusters.iter().map(|(database, _)| *database)
    }

    /// Returns the clusters of every database.
    pub(crate) fn all_clusters(
        &self,
    ) -> impl Iterator<Item = (&'static ManagedDatabase, Arc<DynamicObject>)> {
        let of = |(database, store): &(&'static ManagedDatabase, Store<DynamicObject>)| {
            let database = *database;
            store.state().into_iter().map(move |cluster| (database, cluster))
        };
        self.clusters.iter().flat_map(of)
    }

    /// Returns a cluster from the caches.
    pub(crate) fn cluster(
        &self,
        database: &ManagedDatabase,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<DynamicObject>> {
        let (known, store) =
            self.clusters.iter().find(|(known, _)| known.names.kind == database.names.kind)?;
        store.get(&ObjectRef::new_with(name, known.resource()).within(namespace))
    }

    /// Returns the objects of a cluster from the caches.
    pub(crate) fn objects(&self, desired: &DesiredCluster) -> ClusterObjects {
        let ours = |meta: &ObjectMeta| belongs(meta, desired);
        ClusterObjects {
            sets: self.sets.state_filter(|set| ours(&set.metadata)),
            pods: self.pods.state_filter(|pod| ours(&pod.metadata)),
            pilots: self.pilots.state_filter(|pilot| ours(&pilot.metadata)),
            claims: self.claims.state_filter(|claim| ours(&claim.metadata)),
            account: self.account(desired.database, &desired.namespace, &desired.name),
        }
    }

    /// Returns the metadata of the ServiceAccount of a cluster's pods.
    pub(crate) fn account(
        &self,
        database: &ManagedDatabase,
        namespace: &str,
        cluster: &str,
    ) -> Option<ObjectMeta> {
        let name = database.names.service_account(cluster);
        let found = self.other(&ApiResource::erase::<ServiceAccount>(&()), namespace, &name)?;
        Some(found.metadata.clone())
    }

    /// Returns the pilot that holds the cluster's LeaderLease.
    pub(crate) fn leader(&self, desired: &DesiredCluster) -> Option<String> {
        let name = (desired.database.names.leader_lease)(&desired.name);
        let lease = self.leases.get(&ObjectRef::new(&name).within(&desired.namespace))?;
        let owners = lease.metadata.owner_references.as_deref().unwrap_or_default();
        let ours = owners.iter().any(|owner| owner.uid == desired.uid);
        lease.spec.holder_identity.clone().filter(|holder| ours && !holder.is_empty())
    }

    /// Returns the StatefulSets and the objects of the other kinds in the caches: what was made for
    /// clusters, without pods and claims.
    pub(crate) fn kept(&self) -> Vec<ManagedObject> {
        let sets = self.sets.state().into_iter().map(|set| ManagedObject {
            resource: ApiResource::erase::<StatefulSet>(&()),
            meta: set.metadata.clone(),
        });
        let others = self.others.iter().flat_map(|(resource, store)| {
            let kept = |object: Arc<DynamicObject>| ManagedObject {
                resource: resource.clone(),
                meta: object.metadata.clone(),
            };
            store.state().into_iter().map(kept)
        });
        sets.chain(others).collect()
    }

    /// Returns the cluster that an object names by its label.
    pub(crate) fn key_of(&self, meta: &ObjectMeta) -> Option<ClusterKey> {
        let databases: Vec<_> = self.databases().collect();
        of_meta(&databases, meta)
    }

    /// Returns the objects of the kind `resource` that name the cluster by their label.
    pub(crate) fn others(
        &self,
        resource: &ApiResource,
        desired: &DesiredCluster,
    ) -> Vec<Arc<DynamicObject>> {
        let found = self.others.iter().find(|(known, _)| known == resource);
        found.map_or_else(Vec::new, |(_, store)| {
            store.state_filter(|object| belongs(&object.metadata, desired))
        })
    }

    /// Returns an object of one of the other kinds, by kind and name.
    pub(crate) fn other(
        &self,
        resource: &ApiResource,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<DynamicObject>> {
        let (resource, store) = self.others.iter().find(|(known, _)| known == resource)?;
        store.get(&ObjectRef::new_with(name, resource.clone()).within(namespace))
    }
}

#[cfg(test)]
impl ObjectCaches {
    /// Makes caches that hold those of `objects` that the watches would deliver.
    pub(crate) fn holding(databases: &[&'static ManagedDatabase], objects: &[Value]) -> Self {
        fn filled<K>(objects: &[Value], mut writer: Writer<K>, kind: &str, all: bool) -> Store<K>
        where
            K: kube::Resource + Clone + Debug + DeserializeOwned + 'static,
            K::DynamicType: Eq + Hash + Clone,
        {
            let managed_by = crate::api::names::label::K8S_MANAGED_BY;
            for object in objects.iter().filter(|object| object["kind"] == kind) {
                if all || object["metadata"]["labels"][managed_by] == "navigator" {
                    let object = serde_json::from_value(object.clone()).expect("it is of its kind");
                    writer.apply_watcher_event(&watcher::Event::Apply(object));
                }
            }
            writer.as_reader()
        }
        fn other<K: kube::Resource<DynamicType = ()>>(
            objects: &[Value],
        ) -> (ApiResource, Store<DynamicObject>) {
            let resource = ApiResource::erase::<K>(&());
            let writer = Writer::new(resource.clone());
            (resource.clone(), filled(objects, writer, &resource.kind, false))
        }
        Self {
            clusters: databases
                .iter()
                .map(|database| {
                    let writer = Writer::new(database.resource());
                    (*database, filled(objects, writer, database.names.kind, true))
                })
                .collect(),
            pilots: filled(objects, Writer::default(), "Pilot", true),
            leases: filled(objects, Writer::default(), "LeaderLease", true),
            sets: filled(objects, Writer::default(), "StatefulSet", false),
            pods: filled(objects, Writer::default(), "Pod", false),
            claims: filled(objects, Writer::default(), "PersistentVolumeClaim", false),
            others: vec![
                other::<Service>(objects),
                other::<ServiceAccount>(objects),
                other::<Role>(objects),
                other::<RoleBinding>(objects),
                other::<PodDisruptionBudget>(objects),
            ],
        }
    }
}

/// Does an object's label say that it belongs to the cluster?
fn belongs(meta: &ObjectMeta, desired: &DesiredCluster) -> bool {
    let labels = meta.labels.as_ref();
    meta.namespace.as_deref() == Some(desired.namespace.as_str())
        && labels.and_then(|l| l.get(desired.database.names.cluster_label)) == Some(&desired.name)
}

/// Returns the cluster of an object, by its label.
fn of_meta(databases: &[&'static ManagedDatabase], meta: &ObjectMeta) -> Option<ClusterKey> {
    let labels = meta.labels.as_ref()?;
    databases
        .iter()
        .find_map(|database| key(database, meta, labels.get(database.names.cluster_label)?.clone()))
}

fn of_member<K: k8s_openapi::Metadata<Ty = ObjectMeta>>(
    databases: &[&'static ManagedDatabase],
    object: &K,
) -> Option<ClusterKey> {
    of_meta(databases, object.metadata())
}

/// Returns the cluster of a Pilot, by its label or its spec. If the label is taken off, the cluster
/// must still become due.
fn of_pilot(databases: &[&'static ManagedDatabase], pilot: &Pilot) -> Option<ClusterKey> {
    of_meta(databases, &pilot.metadata).or_else(|| {
        let cluster = pilot.spec.cluster_ref.as_ref()?;
        let database = databases.iter().find(|database| database.names.kind == cluster.kind)?;
        key(database, &pilot.metadata, cluster.name.clone())
    })
}

/// Returns the cluster of a LeaderLease, by its owner: pilots make their lease without labels.
fn of_lease(databases: &[&'static ManagedDatabase], lease: &LeaderLease) -> Option<ClusterKey> {
    let owners = lease.metadata.owner_references.as_ref()?;
    databases.iter().find_map(|database| {
        let owner = owners.iter().find(|owner| owner.kind == database.names.kind)?;
        key(database, &lease.metadata, owner.name.clone())
    })
}

/// Returns the fingerprint of a LeaderLease: a renewal makes no cluster due.
fn lease_print(lease: &LeaderLease) -> u64 {
    digest((&lease.metadata.uid, &lease.spec.holder_identity))
}

fn key(database: &ManagedDatabase, meta: &ObjectMeta, name: String) -> Option<ClusterKey> {
    Some(ClusterKey { kind: database.names.kind, namespace: meta.namespace.clone()?, name })
}

fn digest(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

fn version<K: k8s_openapi::Metadata<Ty = ObjectMeta>>(object: &K) -> u64 {
    digest(&object.metadata().resource_version)
}

/// Returns the fingerprint of a cluster, without the status, so that our own writes of it make no
/// cluster due.
fn cluster_print(cluster: &DynamicObject) -> u64 {
    let meta = &cluster.metadata;
    digest((
        &meta.uid,
        meta.generation,
        meta.deletion_timestamp.is_some(),
        &meta.annotations,
        &meta.finalizers,
    ))
}

/// Returns a hash of what can change a plan in a Pilot: all but heartbeats, storage and gauges.
pub(crate) fn fingerprint(databases: &[&'static ManagedDatabase], pilot: &Pilot) -> u64 {
    let meta = &pilot.metadata;
    let mut status = serde_json::to_value(&pilot.status).unwrap_or_default();
    if let Some(status) = status.as_object_mut() {
        for volatile in ["lastHeartbeatTime", "storage", "observedGeneration"] {
            status.remove(volatile);
        }
        for database in databases {
            if let Some(own) = status.get_mut(database.names.word).and_then(Value::as_object_mut) {
                own.retain(|name, _| !database.gauges.contains(&name.as_str()));
            }
        }
        for blocker in
            status.get_mut("blockers").and_then(Value::as_array_mut).into_iter().flatten()
        {
            if let Some(blocker) = blocker.as_object_mut() {
                blocker.remove("observedTime");
            }
        }
    }
    let spec = serde_json::to_string(&pilot.spec).unwrap_or_default();
    let deleted = meta.deletion_timestamp.is_some();
    digest((&meta.uid, deleted, &meta.labels, &meta.annotations, spec, status.to_string()))
}

impl WatchFactory {
    fn typed<K>(
        &self,
        task: &'static str,
        config: watcher::Config,
        key: fn(&[&'static ManagedDatabase], &K) -> Option<ClusterKey>,
        print: fn(&K) -> u64,
    ) -> Store<K>
    where
        K: k8s_openapi::Metadata<Ty = ObjectMeta>
            + k8s_openapi::Resource<Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let api: Api<K> = match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let (store, writer) = reflector::store();
        let databases = Arc::clone(&self.databases);
        let key = move |object: &K| key(&databases, object);
        self.spawn(task, api, config, writer, key, print, || ());
        store
    }

    /// Starts the watch of one database's clusters.
    fn clusters(
        &self,
        database: &'static ManagedDatabase,
        config: watcher::Config,
    ) -> Store<DynamicObject> {
        let resource = database.resource();
        let api: Api<DynamicObject> = match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let writer = Writer::new(resource);
        let store = writer.as_reader();
        let of_cluster = |cluster: &DynamicObject| {
            key(database, &cluster.metadata, cluster.metadata.name.clone()?)
        };
        self.spawn("watch-clusters", api, config, writer, of_cluster, cluster_print, || ());
        store
    }

    /// Starts the watch of Pilots. Each change is recorded in `heard`, also where it makes no
    /// cluster due.
    fn pilots(&self, config: watcher::Config, heard: &HeartbeatTracker) -> Store<Pilot> {
        let api = match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let (store, writer) = reflector::store();
        let (hears, away) = (heard.clone(), heard.clone());
        let databases = Arc::clone(&self.databases);
        let keys = Arc::clone(&databases);
        let key = move |pilot: &Pilot| of_pilot(&keys, pilot);
        let print = move |pilot: &Pilot| {
            hears.note(pilot, Instant::now());
            fingerprint(&databases, pilot)
        };
        let failed = move || away.api_is_away(Instant::now());
        self.spawn("watch-pilots", api, config, writer, key, print, failed);
        store
    }

    fn other<K: kube::Resource<DynamicType = ()>>(
        &self,
        task: &'static str,
        config: watcher::Config,
    ) -> (ApiResource, Store<DynamicObject>) {
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let writer = Writer::new(resource.clone());
        let store = writer.as_reader();
        let databases = Arc::clone(&self.databases);
        let key = move |object: &DynamicObject| of_meta(&databases, &object.metadata);
        let print = |object: &DynamicObject| digest(&object.metadata.resource_version);
        self.spawn(task, api, config, writer, key, print, || ());
        (resource, store)
    }

    #[expect(clippy::too_many_arguments, reason = "what one watch needs")]
    fn spawn<K>(
        &self,
        task: &'static str,
        api: Api<K>,
        config: watcher::Config,
        writer: Writer<K>,
        key: impl Fn(&K) -> Option<ClusterKey> + Send + 'static,
        print: impl Fn(&K) -> u64 + Send + 'static,
        failed: impl Fn() + Send + 'static,
    ) where
        K: kube::Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Eq + Hash + Clone + Send + Sync + Unpin,
    {
        let ready = self.runtime.readiness().add(task);
        let (queue, shutdown) = (self.queue.clone(), self.runtime.shutdown());
        self.runtime.tasks().spawn_vital(
            task,
            pump(task, api, config, writer, queue, key, print, failed, ready, shutdown),
        );
    }
}

/// Runs the watch that fills one cache, and makes clusters due when an object's fingerprint
/// changes.
#[expect(clippy::too_many_arguments, reason = "the loop of one watch, called once")]
async fn pump<K>(
    task: &'static str,
    api: Api<K>,
    config: watcher::Config,
    mut writer: Writer<K>,
    queue: WorkQueue,
    key: impl Fn(&K) -> Option<ClusterKey> + Send,
    print: impl Fn(&K) -> u64 + Send,
    failed: impl Fn() + Send,
    ready: readiness::ReadinessHandle,
    shutdown: Shutdown,
) where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    // Dropped once the cache is filled.
    let mut ready = Some(ready);
    // Fingerprints by uid; the entry of a deleted object is removed.
    let mut prints: HashMap<String, u64> = HashMap::new();
    let mut last_error = String::new();
    let mut events = Box::pin(watcher(api, config).default_backoff());
    loop {
        let event = tokio::select! {
            // The stream goes on where it was when the loop polls it again.
            event = events.next() => event,
            () = shutdown.triggered() => return,
        };
        let event = match event {
            None => return,
            Some(Err(error)) => {
                failed();
                let text = chain(&error).to_string();
                if text != last_error {
                    warn!(watch = task, error = text, "Watch failed, trying again");
                    last_error = text;
                }
                continue;
            }
            // `managedFields` are a large part of an object, and the controller does not read them.
            Some(Ok(event)) => event.modify(|object| object.meta_mut().managed_fields = None),
        };
        writer.apply_watcher_event(&event);
        match &event {
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
                let uid = object.meta().uid.clone().unwrap_or_default();
                let now = print(object);
                if prints.insert(uid, now) != Some(now)
                    && let Some(key) = key(object)
                {
                    queue.add(key);
                }
            }
            watcher::Event::Delete(object) => {
                prints.remove(object.meta().uid.as_deref().unwrap_or_default());
                if let Some(key) = key(object) {
                    queue.add(key);
                }
            }
            watcher::Event::Init => {}
            watcher::Event::InitDone => {
                last_error.clear();
                ready.take();
                // An object that was deleted while the watch was down is seen by the reconcile of
                // its cluster, as a missing object.
                for key in writer.as_reader().state().iter().filter_map(|object| key(object)) {
                    queue.add(key);
                }
            }
        }
    }
}

/// Pause between attempts of requests that are repeated until they succeed at start.
pub(crate) const RETRY: Duration = Duration::from_secs(2);
