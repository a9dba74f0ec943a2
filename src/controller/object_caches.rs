//! Caches of the objects that the controller watches, and the rules by which a change in them makes
//! a cluster due.
//!
//! Objects are stripped as they arrive ([`stripping`]) and held packed, by name and by cluster
//! ([`packed_store`]). For objects that the controller only compares with what they should be, it
//! watches the metadata ([`metadata`]). It reads the rest by name when a cluster needs it
//! ([`contents`]).
//!
//! Invariant: a heartbeat or a renewed lease makes no cluster due. [`changes`] decides which
//! changes do, and serializes no object for it.

mod changes;
mod contents;
mod metadata;
mod packed_store;
mod stripping;

use std::{fmt::Debug, hash::Hash, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::{
    Resource,
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount},
        networking::v1::NetworkPolicy,
        policy::v1::PodDisruptionBudget,
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    core::DynamicResourceScope,
    runtime::{WatchStreamExt, watcher},
};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::{Instant, sleep_until},
};
use tracing::warn;

pub(crate) use self::packed_store::{ObjectOutline, PackedStore};
use self::{
    contents::{ContentKey, ReadContents},
    metadata::ObjectMetadata,
    packed_store::{Packable, StoreWriter},
};
use super::{
    desired_state::{DesiredCluster, ManagedDatabase},
    heartbeats::HeartbeatTracker,
    observe::ClusterObjects,
    queue::{ClusterKey, WorkQueue},
};
use crate::{
    api::v1beta1::{LeaderLease, Pilot},
    error::chain,
    runtime::{Runtime, Shutdown, cgroup::memory_limit, readiness},
};

#[derive(Clone)]
pub(crate) struct ObjectCaches {
    /// Clusters of each database.
    clusters: Vec<(&'static ManagedDatabase, PackedStore<DynamicObject>)>,
    pub(crate) pilots: PackedStore<Pilot>,
    leases: PackedStore<LeaderLease>,
    pub(crate) sets: PackedStore<StatefulSet>,
    pub(crate) pods: PackedStore<Pod>,
    pub(crate) claims: PackedStore<PersistentVolumeClaim>,
    /// Metadata of objects of other kinds, which the controller only compares with what they should
    /// be.
    others: Vec<(ApiResource, PackedStore<ObjectMetadata>)>,
    /// What was read of those.
    contents: ReadContents,
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
    /// Client that asks for metadata alone.
    metadata: Client,
    namespace: Option<String>,
    queue: WorkQueue,
    /// Held by the watch whose list is being read.
    listing: Arc<Mutex<()>>,
    room: CacheRoom,
}

/// Bytes of JSON that objects may take, as parts of the memory that the process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CacheRoom {
    /// All objects of a kind.
    objects: usize,
    /// The same of a kind of which only the metadata are watched.
    metadata: usize,
    /// What is read by name.
    contents: usize,
}

impl CacheRoom {
    /// `limit`: the memory limit in bytes; where there is none, it is as with 4 GiB.
    fn from_limit(limit: Option<u64>) -> Self {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(4 << 30);
        Self { objects: limit / 16 * 3, metadata: limit / 32, contents: limit / 8 }
    }
}

impl ObjectCaches {
    /// Starts the watches. Readiness waits until each cache was filled once.
    pub(crate) fn start_watches(
        databases: &[&'static ManagedDatabase],
        runtime: &Runtime,
        client: Client,
        namespace: Option<String>,
        queue: WorkQueue,
        heartbeats: &HeartbeatTracker,
    ) -> Self {
        let managed_databases: Arc<[&'static ManagedDatabase]> = databases.into();
        let watches = WatchFactory {
            databases: managed_databases,
            runtime: runtime.clone(),
            metadata: metadata::metadata_client(client.clone()),
            client,
            namespace,
            queue,
            listing: Arc::default(),
            room: CacheRoom::from_limit(memory_limit()),
        };
        let all_objects = || watcher::Config::default().page_size(PAGE);
        let managed_objects = || all_objects().labels("app.kubernetes.io/managed-by=navigator");
        // Our API server sends what is there as one stream of one revision. Pages of many Pilots take
        // longer than it knows that revision: their heartbeats are the changes that it keeps.
        let streamed_lists = || watcher::Config::default().streaming_lists();
        Self {
            clusters: databases
                .iter()
                .map(|database| (*database, watches.watch_clusters(database, streamed_lists())))
                .collect(),
            // Unmanaged Pilots too: silent ones are marked and abandoned ones collected.
            pilots: watches.watch_pilots(streamed_lists(), heartbeats),
            leases: watches.watch_leases(all_objects()),
            sets: watches.watch_typed("watch-statefulsets", managed_objects(), |_| {}),
            pods: watches.watch_typed("watch-pods", managed_objects(), stripping::strip_pod),
            claims: watches.watch_typed("watch-claims", managed_objects(), stripping::strip_claim),
            others: vec![
                watches.watch_metadata::<Service>("watch-services", managed_objects()),
                watches
                    .watch_metadata::<ServiceAccount>("watch-serviceaccounts", managed_objects()),
                watches.watch_metadata::<Role>("watch-roles", managed_objects()),
                watches.watch_metadata::<RoleBinding>("watch-rolebindings", managed_objects()),
                watches.watch_metadata::<PodDisruptionBudget>("watch-budgets", managed_objects()),
                watches.watch_metadata::<NetworkPolicy>("watch-networkpolicies", managed_objects()),
                watches.watch_metadata::<ConfigMap>("watch-configmaps", managed_objects()),
                watches.watch_metadata::<Secret>("watch-secrets", managed_objects()),
            ],
            contents: ReadContents::new(watches.room.contents),
        }
    }

    /// Waits until the caches hold what the server held.
    pub(crate) async fn wait_until_filled(&self) {
        let Self { clusters, pilots, leases, sets, pods, claims, others, .. } = self;
        for (_, store) in clusters {
            store.until_filled().await;
        }
        pilots.until_filled().await;
        leases.until_filled().await;
        sets.until_filled().await;
        pods.until_filled().await;
        claims.until_filled().await;
        for (_, store) in others {
            store.until_filled().await;
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
        let with_database =
            |(database, store): &(&'static ManagedDatabase, PackedStore<DynamicObject>)| {
                let database = *database;
                store.all_objects().into_iter().map(move |cluster| (database, cluster))
            };
        self.clusters.iter().flat_map(with_database)
    }

    /// Returns a cluster from the caches.
    pub(crate) fn cluster(
        &self,
        database: &ManagedDatabase,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<DynamicObject>> {
        let (_, store) =
            self.clusters.iter().find(|(other, _)| other.names.kind == database.names.kind)?;
        store.get_object(namespace, name)
    }

    /// Returns kind and name of the cluster that has this uid, if there is one.
    pub(crate) fn find_cluster_by_uid(&self, uid: &str) -> Option<(&'static str, String)> {
        let has_uid = |cluster: &DynamicObject| cluster.metadata.uid.as_deref() == Some(uid);
        let entry = self.all_clusters().find(|(_, cluster)| has_uid(cluster));
        entry.map(|(database, cluster)| {
            (database.names.kind, cluster.metadata.name.clone().unwrap_or_default())
        })
    }

    /// Returns the metadata of an object that was made for a cluster, by kind and name: a StatefulSet
    /// or an object of one of the other kinds.
    pub(crate) fn object_metadata(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Option<ObjectMeta> {
        if kind == StatefulSet::KIND {
            return self.sets.get_object(namespace, name).map(|set| set.metadata.clone());
        }
        let (_, store) = self.others.iter().find(|(resource, _)| resource.kind == kind)?;
        store.get_object(namespace, name).map(|object| object.metadata.clone())
    }

    /// Returns an object as it was read, if the watch knows no other version of it.
    pub(super) fn cached_object(
        &self,
        resource: &ApiResource,
        cached: &ObjectMeta,
    ) -> Option<DynamicObject> {
        let version = cached.resource_version.as_deref().unwrap_or_default();
        self.contents.of_version(&content_key(resource, cached), version)
    }

    /// Keeps an object that was read.
    pub(super) fn cache_object(&self, resource: &ApiResource, object: &mut DynamicObject) {
        stripping::strip_notes(&mut object.metadata);
        self.contents.insert_object(content_key(resource, &object.metadata), object);
    }

    /// Returns the objects of a cluster from the caches.
    pub(crate) fn cluster_objects(&self, desired: &DesiredCluster) -> ClusterObjects {
        let key = desired.key();
        ClusterObjects {
            sets: self.sets.of_cluster(&key),
            pods: self.pods.of_cluster(&key),
            pilots: self.pilots.of_cluster(&key),
            claims: self.claims.of_cluster(&key),
            account: self.service_account(desired.database, &desired.namespace, &desired.name),
        }
    }

    /// Returns the metadata of the ServiceAccount of a cluster's pods.
    pub(crate) fn service_account(
        &self,
        database: &ManagedDatabase,
        namespace: &str,
        cluster: &str,
    ) -> Option<ObjectMeta> {
        self.object_metadata(
            ServiceAccount::KIND,
            namespace,
            &database.names.service_account(cluster),
        )
    }

    /// Returns the pilot that holds the cluster's LeaderLease.
    pub(crate) fn leader(&self, desired: &DesiredCluster) -> Option<String> {
        let name = (desired.database.names.leader_lease)(&desired.name);
        let lease = self.leases.get_object(&desired.namespace, &name)?;
        let owners = lease.metadata.owner_references.as_deref().unwrap_or_default();
        let is_owned = owners.iter().any(|owner| owner.uid == desired.uid);
        lease.spec.holder_identity.clone().filter(|holder| is_owned && !holder.is_empty())
    }

    /// Returns the kind of which the objects of a namespace took more room than there is, so that none
    /// of them are here.
    pub(crate) fn left_out(&self, namespace: &str) -> Option<&str> {
        let typed = [
            (StatefulSet::KIND, self.sets.leaves_out(namespace)),
            (Pod::KIND, self.pods.leaves_out(namespace)),
            (PersistentVolumeClaim::KIND, self.claims.leaves_out(namespace)),
        ];
        let others = self.others.iter();
        let others =
            others.map(|(resource, store)| (resource.kind.as_str(), store.leaves_out(namespace)));
        let mut kinds = typed.into_iter().chain(others);
        kinds.find_map(|(kind, is_left_out)| is_left_out.then_some(kind))
    }

    /// Returns the StatefulSets and the objects of the other kinds in the caches: what was made for
    /// clusters, without pods and claims.
    pub(crate) fn managed_objects(&self) -> Vec<ManagedObject> {
        let sets = self.sets.all_objects().into_iter().map(|set| ManagedObject {
            resource: ApiResource::erase::<StatefulSet>(&()),
            meta: set.metadata.clone(),
        });
        let others = self.others.iter().flat_map(|(resource, store)| {
            let managed_object = |object: Arc<ObjectMetadata>| ManagedObject {
                resource: resource.clone(),
                meta: object.metadata.clone(),
            };
            store.all_objects().into_iter().map(managed_object)
        });
        sets.chain(others).collect()
    }

    /// Returns the cluster that an object names by its label.
    pub(crate) fn key_of(&self, meta: &ObjectMeta) -> Option<ClusterKey> {
        let databases: Vec<_> = self.databases().collect();
        key_from_metadata(&databases, meta)
    }

    /// Returns the metadata of the objects of the kind `resource` that name the cluster by their
    /// label.
    pub(crate) fn other_objects(
        &self,
        resource: &ApiResource,
        desired: &DesiredCluster,
    ) -> Vec<ObjectMeta> {
        let cache = self.others.iter().find(|(other, _)| other == resource);
        let cluster_objects = cache.map(|(_, store)| store.of_cluster(&desired.key()));
        cluster_objects.into_iter().flatten().map(|object| object.metadata.clone()).collect()
    }
}

#[cfg(test)]
impl ObjectCaches {
    /// Makes caches that hold those of `objects` that the watches would deliver, stripped as the
    /// watches would.
    pub(crate) fn with_objects(
        databases: &[&'static ManagedDatabase],
        objects: &[serde_json::Value],
    ) -> Self {
        let held_objects = HeldObjects { databases: databases.into(), objects };
        Self {
            clusters: databases
                .iter()
                .map(|database| {
                    (*database, held_objects.fill_store(database.names.kind, true, |_| {}))
                })
                .collect(),
            pilots: held_objects.fill_store("Pilot", true, stripping::strip_pilot),
            leases: held_objects.fill_store("LeaderLease", true, |_| {}),
            sets: held_objects.fill_store("StatefulSet", false, |_| {}),
            pods: held_objects.fill_store("Pod", false, stripping::strip_pod),
            claims: held_objects.fill_store("PersistentVolumeClaim", false, stripping::strip_claim),
            others: vec![
                held_objects.metadata_store::<Service>(),
                held_objects.metadata_store::<ServiceAccount>(),
                held_objects.metadata_store::<Role>(),
                held_objects.metadata_store::<RoleBinding>(),
                held_objects.metadata_store::<PodDisruptionBudget>(),
                held_objects.metadata_store::<NetworkPolicy>(),
                held_objects.metadata_store::<ConfigMap>(),
                held_objects.metadata_store::<Secret>(),
            ],
            contents: ReadContents::new(CacheRoom::from_limit(None).contents),
        }
    }
}

fn content_key(resource: &ApiResource, meta: &ObjectMeta) -> ContentKey {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (resource.kind.clone(), text(&meta.namespace), text(&meta.name))
}

#[cfg(test)]
struct HeldObjects<'a> {
    databases: Arc<[&'static ManagedDatabase]>,
    objects: &'a [serde_json::Value],
}

#[cfg(test)]
impl HeldObjects<'_> {
    fn fill_store<K: Packable>(&self, kind: &str, all: bool, strip: fn(&mut K)) -> PackedStore<K> {
        let managed_by = crate::api::names::label::K8S_MANAGED_BY;
        let mut writer = StoreWriter::new(&self.databases)
            .with_room(CacheRoom::from_limit(Some(256 << 20)).objects);
        for object in self.objects.iter().filter(|object| object["kind"] == kind) {
            if all || object["metadata"]["labels"][managed_by] == "navigator" {
                let mut object: K =
                    serde_json::from_value(object.clone()).expect("it is of its kind");
                stripping::strip_notes(object.meta_mut());
                strip(&mut object);
                writer.apply_event(&watcher::Event::Apply(object));
            }
        }
        writer.reader()
    }

    fn metadata_store<K: kube::Resource<DynamicType = ()>>(
        &self,
    ) -> (ApiResource, PackedStore<ObjectMetadata>) {
        let resource = ApiResource::erase::<K>(&());
        (resource.clone(), self.fill_store(&resource.kind, false, |_| {}))
    }
}

/// Returns the clusters of an object, by its labels: of each database at most one.
fn cluster_keys(
    databases: &[&'static ManagedDatabase],
    meta: &ObjectMeta,
) -> impl Iterator<Item = ClusterKey> {
    let labels = meta.labels.as_ref();
    databases.iter().filter_map(move |database| {
        cluster_key(database, meta, labels?.get(database.names.cluster_label)?.clone())
    })
}

/// Returns the cluster of an object, by its label.
fn key_from_metadata(
    databases: &[&'static ManagedDatabase],
    meta: &ObjectMeta,
) -> Option<ClusterKey> {
    cluster_keys(databases, meta).next()
}

/// Returns the cluster of a Pilot, by its label or its spec. If the label is taken off, the cluster
/// must still become due.
fn key_from_pilot(databases: &[&'static ManagedDatabase], pilot: &Pilot) -> Option<ClusterKey> {
    key_from_metadata(databases, &pilot.metadata).or_else(|| {
        let cluster = pilot.spec.cluster_ref.as_ref()?;
        let database = databases.iter().find(|database| database.names.kind == cluster.kind)?;
        cluster_key(database, &pilot.metadata, cluster.name.clone())
    })
}

/// Returns the cluster of a LeaderLease, by its owner: pilots make their lease without labels.
fn key_from_lease(
    databases: &[&'static ManagedDatabase],
    lease: &LeaderLease,
) -> Option<ClusterKey> {
    let owners = lease.metadata.owner_references.as_ref()?;
    databases.iter().find_map(|database| {
        let owner = owners.iter().find(|owner| owner.kind == database.names.kind)?;
        cluster_key(database, &lease.metadata, owner.name.clone())
    })
}

fn cluster_key(database: &ManagedDatabase, meta: &ObjectMeta, name: String) -> Option<ClusterKey> {
    Some(ClusterKey { kind: database.names.kind, namespace: meta.namespace.clone()?, name })
}

type KeyOf<K> = Box<dyn Fn(&K) -> Option<ClusterKey> + Send>;
type IsDue<K> = Box<dyn Fn(&K, &K) -> bool + Send>;

/// How the objects of one watch are treated.
struct WatchRules<K> {
    task: &'static str,
    /// Takes out what the controller does not read.
    strip: fn(&mut K),
    /// Returns the cluster of an object.
    key: KeyOf<K>,
    /// Returns whether the change from one object to the other makes its cluster due.
    is_due: IsDue<K>,
    /// Hears of each object that arrives.
    hear: Box<dyn Fn(&K) + Send>,
    /// Hears that the watch failed.
    failed: Box<dyn Fn() + Send>,
    /// Held while a list is read, where anybody may write what is listed: pages of large objects of
    /// all kinds at once would take more memory than there is.
    listing: Option<Arc<Mutex<()>>>,
    /// Bytes that all objects may take.
    room: usize,
}

impl WatchFactory {
    fn watch_typed<K>(
        &self,
        task: &'static str,
        config: watcher::Config,
        strip: fn(&mut K),
    ) -> PackedStore<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Packable
            + Debug
            + Send
            + Sync,
    {
        let databases = Arc::clone(&self.databases);
        let rules = WatchRules {
            strip,
            key: Box::new(move |object: &K| key_from_metadata(&databases, object.meta())),
            is_due: Box::new(changes::is_other_version),
            listing: Some(Arc::clone(&self.listing)),
            room: self.room.objects,
            ..WatchRules::new(task)
        };
        self.spawn_watch(self.typed_api(), config, rules)
    }

    fn watch_leases(&self, config: watcher::Config) -> PackedStore<LeaderLease> {
        let databases = Arc::clone(&self.databases);
        let rules = WatchRules {
            key: Box::new(move |lease: &LeaderLease| key_from_lease(&databases, lease)),
            is_due: Box::new(changes::changes_holder),
            ..WatchRules::new("watch-leaderleases")
        };
        self.spawn_watch(self.typed_api(), config, rules)
    }

    /// Starts the watch of one database's clusters.
    fn watch_clusters(
        &self,
        database: &'static ManagedDatabase,
        config: watcher::Config,
    ) -> PackedStore<DynamicObject> {
        let resource = database.api_resource();
        let rules = WatchRules {
            key: Box::new(|cluster: &DynamicObject| {
                cluster_key(database, &cluster.metadata, cluster.metadata.name.clone()?)
            }),
            is_due: Box::new(changes::changes_desired_state),
            ..WatchRules::new("watch-clusters")
        };
        self.spawn_watch(self.dynamic_api(&self.client, &resource), config, rules)
    }

    /// Starts the watch of Pilots. Each change is recorded in `heartbeats`, also where it makes no
    /// cluster due.
    fn watch_pilots(
        &self,
        config: watcher::Config,
        heartbeats: &HeartbeatTracker,
    ) -> PackedStore<Pilot> {
        let (report_tracker, outage_tracker) = (heartbeats.clone(), heartbeats.clone());
        let (key_databases, part_databases) =
            (Arc::clone(&self.databases), Arc::clone(&self.databases));
        let rules = WatchRules {
            strip: stripping::strip_pilot,
            key: Box::new(move |pilot: &Pilot| key_from_pilot(&key_databases, pilot)),
            is_due: Box::new(move |old, new| changes::changes_plan(&part_databases, old, new)),
            hear: Box::new(move |pilot| report_tracker.record_heartbeat(pilot, Instant::now())),
            failed: Box::new(move || outage_tracker.api_is_away(Instant::now())),
            ..WatchRules::new("watch-pilots")
        };
        self.spawn_watch(self.typed_api(), config, rules)
    }

    fn watch_metadata<K: kube::Resource<DynamicType = ()>>(
        &self,
        task: &'static str,
        config: watcher::Config,
    ) -> (ApiResource, PackedStore<ObjectMetadata>) {
        let resource = ApiResource::erase::<K>(&());
        let databases = Arc::clone(&self.databases);
        let rules = WatchRules {
            key: Box::new(move |object: &ObjectMetadata| {
                key_from_metadata(&databases, &object.metadata)
            }),
            is_due: Box::new(changes::is_other_version),
            listing: Some(Arc::clone(&self.listing)),
            room: self.room.metadata,
            ..WatchRules::new(task)
        };
        let store = self.spawn_watch(self.dynamic_api(&self.metadata, &resource), config, rules);
        (resource, store)
    }

    fn typed_api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn dynamic_api<K>(&self, client: &Client, resource: &ApiResource) -> Api<K>
    where
        K: kube::Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
            None => Api::all_with(client.clone(), resource),
        }
    }

    fn spawn_watch<K>(
        &self,
        api: Api<K>,
        config: watcher::Config,
        rules: WatchRules<K>,
    ) -> PackedStore<K>
    where
        K: Packable + Debug + Send + Sync,
        K::DynamicType: Eq + Hash + Clone + Send + Sync + Unpin,
    {
        let task = rules.task;
        let writer = StoreWriter::new(&self.databases).with_room(rules.room);
        let store = writer.reader();
        let readiness_handle = self.runtime.readiness().add(task);
        let (queue, shutdown) = (self.queue.clone(), self.runtime.shutdown());
        let watch_task = run_watch(api, config, writer, queue, rules, readiness_handle, shutdown);
        self.runtime.tasks().spawn_vital(task, watch_task);
        store
    }
}

impl<K> WatchRules<K> {
    /// Returns the rules of a watch that makes nothing due.
    fn new(task: &'static str) -> Self {
        Self {
            task,
            strip: |_| {},
            key: Box::new(|_| None),
            is_due: Box::new(|_, _| false),
            hear: Box::new(|_| {}),
            failed: Box::new(|| {}),
            listing: None,
            room: usize::MAX,
        }
    }
}

/// Runs the watch that fills one cache, and makes clusters due when an object has changed in what
/// counts.
async fn run_watch<K>(
    api: Api<K>,
    config: watcher::Config,
    mut writer: StoreWriter<K>,
    queue: WorkQueue,
    rules: WatchRules<K>,
    readiness_handle: readiness::ReadinessHandle,
    shutdown: Shutdown,
) where
    K: Packable + Debug + Send + Sync,
    K::DynamicType: Eq + Hash + Clone + Send + Sync,
{
    // Dropped once the cache is filled.
    let mut readiness_handle = Some(readiness_handle);
    let mut last_error = String::new();
    let mut turn: Option<OwnedMutexGuard<()>> = None;
    let watch = || Box::pin(watcher(api.clone(), config.clone()).default_backoff());
    let (mut events, mut begun) = (watch(), Instant::now());
    // When objects of a namespace that is left out are listed again: they may have room then.
    let mut list_at: Option<Instant> = None;
    loop {
        let event = tokio::select! {
            // The stream goes on where it was when the loop polls it again.
            event = events.next() => event,
            () = sleep_until(list_at.unwrap_or(begun)), if list_at.is_some() => {
                drop(turn.take());
                (events, begun, list_at) = (watch(), Instant::now(), None);
                continue;
            }
            () = shutdown.triggered() => return,
        };
        let event = match event {
            None => return,
            Some(Err(error)) => {
                drop(turn.take());
                (rules.failed)();
                let text = chain(&error).to_string();
                if text != last_error {
                    warn!(watch = rules.task, error = text, "Watch failed, trying again");
                    last_error = text;
                }
                continue;
            }
            Some(Ok(event)) => event.modify(|object| {
                stripping::strip_notes(object.meta_mut());
                (rules.strip)(object);
            }),
        };
        let due_key = match &event {
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
                (rules.hear)(object);
                let old = writer.stored_object(object);
                let is_due = old.as_ref().is_none_or(|old| {
                    old.meta().uid != object.meta().uid || (rules.is_due)(old, object)
                });
                if is_due { (rules.key)(object) } else { None }
            }
            watcher::Event::Delete(object) => (rules.key)(object),
            watcher::Event::Init | watcher::Event::InitDone => None,
        };
        writer.apply_event(&event);
        match (&event, &rules.listing) {
            // The first page is read when the stream is polled next.
            (watcher::Event::Init, Some(listing)) => {
                turn = tokio::select! {
                    turn = Arc::clone(listing).lock_owned() => Some(turn),
                    () = shutdown.triggered() => return,
                };
            }
            (watcher::Event::InitDone, _) => drop(turn.take()),
            _ => {}
        }
        // After the cache, so that a worker that is waiting sees the change.
        if let Some(key) = due_key {
            queue.add(key);
        }
        if let watcher::Event::Delete(object) = &event
            && writer.reader().leaves_out(object.meta().namespace.as_deref().unwrap_or_default())
        {
            list_at.get_or_insert_with(|| Instant::now().max(begun + LISTS_APART));
        }
        if matches!(event, watcher::Event::InitDone) {
            last_error.clear();
            readiness_handle.take();
            // An object that was deleted while the watch was down is seen by the reconcile of its
            // cluster, as a missing object.
            for key in writer.reader().all_objects().iter().filter_map(|object| (rules.key)(object))
            {
                queue.add(key);
            }
        }
    }
}

/// How many objects a page of a list has: a page is in memory for a moment, and an object may have
/// more than a mebibyte.
const PAGE: u32 = 20;

/// Time between two lists of objects that took too much room.
const LISTS_APART: Duration = Duration::from_secs(60);

/// Pause between attempts of requests that are repeated until they succeed at start.
pub(crate) const RETRY: Duration = Duration::from_secs(2);
