//! Caches of the objects that the controller watches, and the rules by which a change in them makes
//! a cluster due.
//!
//! Objects are stripped as they arrive ([`stripping`]) and held packed, by name and by cluster
//! ([`packed_store`]). Of those that the controller only compares with what they should be, the
//! metadata are watched ([`metadata`]), and the rest is read by name when a cluster needs it
//! ([`contents`]).
//!
//! Invariant: a heartbeat or a renewed lease makes no cluster due. What does is told by
//! [`changes`]: no object is serialised for it.

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
    fn of(limit: Option<u64>) -> Self {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(4 << 30);
        Self { objects: limit / 16 * 3, metadata: limit / 32, contents: limit / 8 }
    }
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
        let watches = WatchFactory {
            databases: known,
            runtime: runtime.clone(),
            metadata: metadata::client(client.clone()),
            client,
            namespace,
            queue,
            listing: Arc::default(),
            room: CacheRoom::of(memory_limit()),
        };
        let all = || watcher::Config::default().page_size(PAGE);
        let ours = || all().labels("app.kubernetes.io/managed-by=navigator");
        // Our API server sends what is there as one stream of one revision. Pages of many Pilots take
        // longer than it knows that revision: their heartbeats are the changes that it keeps.
        let streamed = || watcher::Config::default().streaming_lists();
        Self {
            clusters: databases
                .iter()
                .map(|database| (*database, watches.clusters(database, streamed())))
                .collect(),
            // Unmanaged Pilots too: silent ones are marked and abandoned ones collected.
            pilots: watches.pilots(streamed(), heard),
            leases: watches.leases(all()),
            sets: watches.typed("watch-statefulsets", ours(), |_| {}),
            pods: watches.typed("watch-pods", ours(), stripping::strip_pod),
            claims: watches.typed("watch-claims", ours(), stripping::strip_claim),
            others: vec![
                watches.other::<Service>("watch-services", ours()),
                watches.other::<ServiceAccount>("watch-serviceaccounts", ours()),
                watches.other::<Role>("watch-roles", ours()),
                watches.other::<RoleBinding>("watch-rolebindings", ours()),
                watches.other::<PodDisruptionBudget>("watch-budgets", ours()),
                watches.other::<NetworkPolicy>("watch-networkpolicies", ours()),
                watches.other::<ConfigMap>("watch-configmaps", ours()),
                watches.other::<Secret>("watch-secrets", ours()),
            ],
            contents: ReadContents::new(watches.room.contents),
        }
    }

    /// Waits until the caches hold what the server held.
    pub(crate) async fn filled(&self) {
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
        let of = |(database, store): &(&'static ManagedDatabase, PackedStore<DynamicObject>)| {
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
        let (_, store) =
            self.clusters.iter().find(|(known, _)| known.names.kind == database.names.kind)?;
        store.named(namespace, name)
    }

    /// Returns kind and name of the cluster that has this uid, if there is one.
    pub(crate) fn living(&self, uid: &str) -> Option<(&'static str, String)> {
        let has = |cluster: &DynamicObject| cluster.metadata.uid.as_deref() == Some(uid);
        let found = self.all_clusters().find(|(_, cluster)| has(cluster));
        found.map(|(database, cluster)| {
            (database.names.kind, cluster.metadata.name.clone().unwrap_or_default())
        })
    }

    /// Returns the metadata of an object that was made for a cluster, by kind and name: a StatefulSet
    /// or an object of one of the other kinds.
    pub(crate) fn made(&self, kind: &str, namespace: &str, name: &str) -> Option<ObjectMeta> {
        if kind == StatefulSet::KIND {
            return self.sets.named(namespace, name).map(|set| set.metadata.clone());
        }
        let (_, store) = self.others.iter().find(|(resource, _)| resource.kind == kind)?;
        store.named(namespace, name).map(|object| object.metadata.clone())
    }

    /// Returns an object as it was read, if the watch knows no other version of it.
    pub(super) fn as_read(
        &self,
        resource: &ApiResource,
        known: &ObjectMeta,
    ) -> Option<DynamicObject> {
        let version = known.resource_version.as_deref().unwrap_or_default();
        self.contents.of_version(&content_key(resource, known), version)
    }

    /// Keeps an object that was read.
    pub(super) fn keep_read(&self, resource: &ApiResource, object: &mut DynamicObject) {
        stripping::strip_notes(&mut object.metadata);
        self.contents.keep(content_key(resource, &object.metadata), object);
    }

    /// Returns the objects of a cluster from the caches.
    pub(crate) fn objects(&self, desired: &DesiredCluster) -> ClusterObjects {
        let key = desired.key();
        ClusterObjects {
            sets: self.sets.of_cluster(&key),
            pods: self.pods.of_cluster(&key),
            pilots: self.pilots.of_cluster(&key),
            claims: self.claims.of_cluster(&key),
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
        self.made(ServiceAccount::KIND, namespace, &database.names.service_account(cluster))
    }

    /// Returns the pilot that holds the cluster's LeaderLease.
    pub(crate) fn leader(&self, desired: &DesiredCluster) -> Option<String> {
        let name = (desired.database.names.leader_lease)(&desired.name);
        let lease = self.leases.named(&desired.namespace, &name)?;
        let owners = lease.metadata.owner_references.as_deref().unwrap_or_default();
        let ours = owners.iter().any(|owner| owner.uid == desired.uid);
        lease.spec.holder_identity.clone().filter(|holder| ours && !holder.is_empty())
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
        let others = others.map(|(of, store)| (of.kind.as_str(), store.leaves_out(namespace)));
        let mut all = typed.into_iter().chain(others);
        all.find_map(|(kind, is_left_out)| is_left_out.then_some(kind))
    }

    /// Returns the StatefulSets and the objects of the other kinds in the caches: what was made for
    /// clusters, without pods and claims.
    pub(crate) fn kept(&self) -> Vec<ManagedObject> {
        let sets = self.sets.state().into_iter().map(|set| ManagedObject {
            resource: ApiResource::erase::<StatefulSet>(&()),
            meta: set.metadata.clone(),
        });
        let others = self.others.iter().flat_map(|(resource, store)| {
            let kept = |object: Arc<ObjectMetadata>| ManagedObject {
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

    /// Returns the metadata of the objects of the kind `resource` that name the cluster by their
    /// label.
    pub(crate) fn others(
        &self,
        resource: &ApiResource,
        desired: &DesiredCluster,
    ) -> Vec<ObjectMeta> {
        let found = self.others.iter().find(|(known, _)| known == resource);
        let of_cluster = found.map(|(_, store)| store.of_cluster(&desired.key()));
        of_cluster.into_iter().flatten().map(|object| object.metadata.clone()).collect()
    }
}

#[cfg(test)]
impl ObjectCaches {
    /// Makes caches that hold those of `objects` that the watches would deliver, stripped as the
    /// watches would.
    pub(crate) fn holding(
        databases: &[&'static ManagedDatabase],
        objects: &[serde_json::Value],
    ) -> Self {
        let holding = HeldObjects { databases: databases.into(), objects };
        Self {
            clusters: databases
                .iter()
                .map(|database| (*database, holding.filled(database.names.kind, true, |_| {})))
                .collect(),
            pilots: holding.filled("Pilot", true, stripping::strip_pilot),
            leases: holding.filled("LeaderLease", true, |_| {}),
            sets: holding.filled("StatefulSet", false, |_| {}),
            pods: holding.filled("Pod", false, stripping::strip_pod),
            claims: holding.filled("PersistentVolumeClaim", false, stripping::strip_claim),
            others: vec![
                holding.other::<Service>(),
                holding.other::<ServiceAccount>(),
                holding.other::<Role>(),
                holding.other::<RoleBinding>(),
                holding.other::<PodDisruptionBudget>(),
                holding.other::<NetworkPolicy>(),
                holding.other::<ConfigMap>(),
                holding.other::<Secret>(),
            ],
            contents: ReadContents::new(CacheRoom::of(None).contents),
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
    fn filled<K: Packable>(&self, kind: &str, all: bool, strip: fn(&mut K)) -> PackedStore<K> {
        let managed_by = crate::api::names::label::K8S_MANAGED_BY;
        let mut writer =
            StoreWriter::new(&self.databases).with_room(CacheRoom::of(Some(256 << 20)).objects);
        for object in self.objects.iter().filter(|object| object["kind"] == kind) {
            if all || object["metadata"]["labels"][managed_by] == "navigator" {
                let mut object: K =
                    serde_json::from_value(object.clone()).expect("it is of its kind");
                stripping::strip_notes(object.meta_mut());
                strip(&mut object);
                writer.apply(&watcher::Event::Apply(object));
            }
        }
        writer.reader()
    }

    fn other<K: kube::Resource<DynamicType = ()>>(
        &self,
    ) -> (ApiResource, PackedStore<ObjectMetadata>) {
        let resource = ApiResource::erase::<K>(&());
        (resource.clone(), self.filled(&resource.kind, false, |_| {}))
    }
}

/// Returns the clusters of an object, by its labels: of each database at most one.
fn keys(
    databases: &[&'static ManagedDatabase],
    meta: &ObjectMeta,
) -> impl Iterator<Item = ClusterKey> {
    let labels = meta.labels.as_ref();
    databases.iter().filter_map(move |database| {
        key(database, meta, labels?.get(database.names.cluster_label)?.clone())
    })
}

/// Returns the cluster of an object, by its label.
fn of_meta(databases: &[&'static ManagedDatabase], meta: &ObjectMeta) -> Option<ClusterKey> {
    keys(databases, meta).next()
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

fn key(database: &ManagedDatabase, meta: &ObjectMeta, name: String) -> Option<ClusterKey> {
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
    /// Does the change from one object to the other make its cluster due?
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
    fn typed<K>(
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
            key: Box::new(move |object: &K| of_meta(&databases, object.meta())),
            is_due: Box::new(changes::is_other_version),
            listing: Some(Arc::clone(&self.listing)),
            room: self.room.objects,
            ..WatchRules::new(task)
        };
        self.spawn(self.api(), config, rules)
    }

    fn leases(&self, config: watcher::Config) -> PackedStore<LeaderLease> {
        let databases = Arc::clone(&self.databases);
        let rules = WatchRules {
            key: Box::new(move |lease: &LeaderLease| of_lease(&databases, lease)),
            is_due: Box::new(changes::changes_holder),
            ..WatchRules::new("watch-leaderleases")
        };
        self.spawn(self.api(), config, rules)
    }

    /// Starts the watch of one database's clusters.
    fn clusters(
        &self,
        database: &'static ManagedDatabase,
        config: watcher::Config,
    ) -> PackedStore<DynamicObject> {
        let resource = database.resource();
        let rules = WatchRules {
            key: Box::new(|cluster: &DynamicObject| {
                key(database, &cluster.metadata, cluster.metadata.name.clone()?)
            }),
            is_due: Box::new(changes::changes_wish),
            ..WatchRules::new("watch-clusters")
        };
        self.spawn(self.dynamic_api(&self.client, &resource), config, rules)
    }

    /// Starts the watch of Pilots. Each change is recorded in `heard`, also where it makes no
    /// cluster due.
    fn pilots(&self, config: watcher::Config, heard: &HeartbeatTracker) -> PackedStore<Pilot> {
        let (hears, away) = (heard.clone(), heard.clone());
        let (keys, parts) = (Arc::clone(&self.databases), Arc::clone(&self.databases));
        let rules = WatchRules {
            strip: stripping::strip_pilot,
            key: Box::new(move |pilot: &Pilot| of_pilot(&keys, pilot)),
            is_due: Box::new(move |before, now| changes::changes_plan(&parts, before, now)),
            hear: Box::new(move |pilot| hears.note(pilot, Instant::now())),
            failed: Box::new(move || away.api_is_away(Instant::now())),
            ..WatchRules::new("watch-pilots")
        };
        self.spawn(self.api(), config, rules)
    }

    fn other<K: kube::Resource<DynamicType = ()>>(
        &self,
        task: &'static str,
        config: watcher::Config,
    ) -> (ApiResource, PackedStore<ObjectMetadata>) {
        let resource = ApiResource::erase::<K>(&());
        let databases = Arc::clone(&self.databases);
        let rules = WatchRules {
            key: Box::new(move |object: &ObjectMetadata| of_meta(&databases, &object.metadata)),
            is_due: Box::new(changes::is_other_version),
            listing: Some(Arc::clone(&self.listing)),
            room: self.room.metadata,
            ..WatchRules::new(task)
        };
        let store = self.spawn(self.dynamic_api(&self.metadata, &resource), config, rules);
        (resource, store)
    }

    fn api<K>(&self) -> Api<K>
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

    fn spawn<K>(&self, api: Api<K>, config: watcher::Config, rules: WatchRules<K>) -> PackedStore<K>
    where
        K: Packable + Debug + Send + Sync,
        K::DynamicType: Eq + Hash + Clone + Send + Sync + Unpin,
    {
        let task = rules.task;
        let writer = StoreWriter::new(&self.databases).with_room(rules.room);
        let store = writer.reader();
        let ready = self.runtime.readiness().add(task);
        let (queue, shutdown) = (self.queue.clone(), self.runtime.shutdown());
        let pump = pump(api, config, writer, queue, rules, ready, shutdown);
        self.runtime.tasks().spawn_vital(task, pump);
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
async fn pump<K>(
    api: Api<K>,
    config: watcher::Config,
    mut writer: StoreWriter<K>,
    queue: WorkQueue,
    rules: WatchRules<K>,
    ready: readiness::ReadinessHandle,
    shutdown: Shutdown,
) where
    K: Packable + Debug + Send + Sync,
    K::DynamicType: Eq + Hash + Clone + Send + Sync,
{
    // Dropped once the cache is filled.
    let mut ready = Some(ready);
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
        let due = match &event {
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => {
                (rules.hear)(object);
                let before = writer.known(object);
                let is_due = before.as_ref().is_none_or(|before| {
                    before.meta().uid != object.meta().uid || (rules.is_due)(before, object)
                });
                if is_due { (rules.key)(object) } else { None }
            }
            watcher::Event::Delete(object) => (rules.key)(object),
            watcher::Event::Init | watcher::Event::InitDone => None,
        };
        writer.apply(&event);
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
        if let Some(key) = due {
            queue.add(key);
        }
        if let watcher::Event::Delete(object) = &event
            && writer.reader().leaves_out(object.meta().namespace.as_deref().unwrap_or_default())
        {
            list_at.get_or_insert_with(|| Instant::now().max(begun + LISTS_APART));
        }
        if matches!(event, watcher::Event::InitDone) {
            last_error.clear();
            ready.take();
            // An object that was deleted while the watch was down is seen by the reconcile of its
            // cluster, as a missing object.
            for key in writer.reader().state().iter().filter_map(|object| (rules.key)(object)) {
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
