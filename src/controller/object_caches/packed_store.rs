//! A cache that holds its objects packed, and finds them by cluster.
//!
//! Ten thousand pods, claims and Pilots as the types of their kinds take more than half a gibibyte.
//! Most of that is room for fields that are not set. As compact JSON they take a quarter of that.
//! The cache unpacks them when they are read; a read of one cluster unpacks only the objects of
//! that cluster. The [`ObjectOutline`] of an object holds what is read of all objects at once.

use std::{
    collections::{BTreeSet, HashMap},
    marker::PhantomData,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, runtime::watcher::Event};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;
use tracing::warn;

use super::{ManagedDatabase, cluster_keys};
use crate::controller::queue::ClusterKey;

/// An object that can be packed.
pub(crate) trait Packable:
    Resource + Clone + Serialize + DeserializeOwned + 'static
{
}

impl<K: Resource + Clone + Serialize + DeserializeOwned + 'static> Packable for K {}

/// What is known of an object without unpacking it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectOutline {
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) uid: Box<str>,
}

impl ObjectOutline {
    fn from_metadata(meta: &ObjectMeta) -> Self {
        let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
        Self { namespace: text(&meta.namespace), name: text(&meta.name), uid: text(&meta.uid) }
    }

    fn key(&self) -> ObjectKey {
        ObjectKey(Arc::new((self.namespace.clone(), self.name.clone())))
    }
}

/// Namespace and name. Clones share them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ObjectKey(Arc<(Box<str>, Box<str>)>);

impl ObjectKey {
    fn new(namespace: &str, name: &str) -> Self {
        Self(Arc::new((namespace.into(), name.into())))
    }
}

#[derive(Debug)]
struct PackedObject {
    outline: ObjectOutline,
    /// How many clusters its labels name.
    clusters: usize,
    json: Box<str>,
}

#[derive(Debug, Default)]
struct PackedObjects {
    objects: HashMap<ObjectKey, PackedObject>,
    clusters: HashMap<ClusterKey, BTreeSet<ObjectKey>>,
    /// Bytes of JSON of each namespace, and of all.
    of_namespaces: HashMap<Box<str>, usize>,
    bytes: usize,
    /// Namespaces whose objects took too much room, and are not here.
    left_out: BTreeSet<Box<str>>,
}

impl PackedObjects {
    /// Leaves out the namespace that takes the most, until there is room for so many bytes more in
    /// `namespace`. Is that one left out?
    fn leaves_out(&mut self, namespace: &str, added_bytes: usize, room: usize) -> bool {
        while !self.left_out.contains(namespace) && self.bytes + added_bytes > room {
            let namespace_bytes =
                self.of_namespaces.get(namespace).copied().unwrap_or_default() + added_bytes;
            let largest = self.of_namespaces.iter().max_by_key(|(_, bytes)| **bytes);
            let largest =
                largest.filter(|(_, bytes)| **bytes > namespace_bytes).map(|(name, _)| &**name);
            let largest: Box<str> = largest.unwrap_or(namespace).into();
            warn!(
                namespace = %largest,
                "Objects with the label of Navigator take too much memory, and are left out"
            );
            self.objects.retain(|key, _| key.0.0 != largest);
            self.clusters.retain(|cluster, _| *cluster.namespace != *largest);
            self.bytes -= self.of_namespaces.remove(&largest).unwrap_or_default();
            self.left_out.insert(largest);
        }
        self.left_out.contains(namespace)
    }

    fn add_bytes(&mut self, namespace: &str, added_bytes: usize, removed_bytes: usize) {
        self.bytes = self.bytes + added_bytes - removed_bytes;
        let namespace_bytes = self.of_namespaces.entry(namespace.into()).or_default();
        *namespace_bytes = *namespace_bytes + added_bytes - removed_bytes;
    }

    fn insert<K: Packable>(
        &mut self,
        databases: &[&'static ManagedDatabase],
        object: &K,
        room: usize,
    ) {
        let outline = ObjectOutline::from_metadata(object.meta());
        let key = outline.key();
        let object_clusters: Vec<ClusterKey> = cluster_keys(databases, object.meta()).collect();
        // Labels rarely change, and to unpack the object for them costs more than the rest.
        let is_in = |cluster| {
            self.clusters.get(cluster).is_some_and(|object_keys| object_keys.contains(&key))
        };
        let old_clusters = self.objects.get(&key).map(|old_object| old_object.clusters);
        if old_clusters != Some(object_clusters.len()) || !object_clusters.iter().all(is_in) {
            self.remove::<K>(databases, object.meta());
        }
        let json = serde_json::to_string(object).expect("objects of Kubernetes have string keys");
        if self.leaves_out(&outline.namespace, json.len(), room) {
            return;
        }
        let clusters = object_clusters.len();
        for cluster in object_clusters {
            self.clusters.entry(cluster).or_default().insert(key.clone());
        }
        let (namespace, added_bytes) = (outline.namespace.clone(), json.len());
        let object = PackedObject { outline, clusters, json: json.into() };
        let old_object = self.objects.insert(key, object);
        self.add_bytes(
            &namespace,
            added_bytes,
            old_object.map_or(0, |old_object| old_object.json.len()),
        );
    }

    fn remove<K: Packable>(&mut self, databases: &[&'static ManagedDatabase], meta: &ObjectMeta) {
        let key = ObjectOutline::from_metadata(meta).key();
        let Some(old_object) = self.objects.remove(&key) else { return };
        self.add_bytes(&old_object.outline.namespace, 0, old_object.json.len());
        // Its labels may have been others.
        for cluster in cluster_keys(databases, old_object.unpack::<K>().meta()) {
            if let Some(object_keys) = self.clusters.get_mut(&cluster) {
                object_keys.remove(&key);
                if object_keys.is_empty() {
                    self.clusters.remove(&cluster);
                }
            }
        }
    }
}

impl PackedObject {
    fn unpack<K: Packable>(&self) -> K {
        // As text, as the client of Kubernetes reads it: another form is another reader of each type.
        serde_json::from_str(&self.json).expect("it was packed as this type")
    }
}

/// A cache of one kind. Clones share it.
#[derive(Debug)]
pub(crate) struct PackedStore<K> {
    packed: Arc<RwLock<PackedObjects>>,
    is_filled: watch::Receiver<bool>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for PackedStore<K> {
    fn clone(&self) -> Self {
        let Self { packed, is_filled, kind } = self;
        Self { packed: Arc::clone(packed), is_filled: is_filled.clone(), kind: *kind }
    }
}

impl<K> PackedStore<K> {
    fn lock_read(&self) -> RwLockReadGuard<'_, PackedObjects> {
        self.packed.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the cache holds what the server held.
    pub(crate) async fn until_filled(&self) {
        // An error means that the watch ended, which ends the process.
        drop(self.is_filled.clone().wait_for(|is_filled| *is_filled).await);
    }

    /// Returns whether the objects of a namespace were too large for the cache. Then it has none of
    /// them.
    pub(crate) fn leaves_out(&self, namespace: &str) -> bool {
        self.lock_read().left_out.contains(namespace)
    }

    /// Shows `visit` the outline of each object.
    pub(crate) fn for_each_outline(&self, mut visit: impl FnMut(&ObjectOutline)) {
        self.lock_read().objects.values().for_each(|object| visit(&object.outline));
    }
}

impl<K: Packable> PackedStore<K> {
    pub(crate) fn get_object(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let key = ObjectKey::new(namespace, name);
        Some(Arc::new(self.lock_read().objects.get(&key)?.unpack()))
    }

    /// Returns all objects, unpacked: for rare operations.
    pub(crate) fn all_objects(&self) -> Vec<Arc<K>> {
        self.lock_read().objects.values().map(|object| Arc::new(object.unpack())).collect()
    }

    /// Returns the objects whose label names the cluster, by name.
    pub(crate) fn of_cluster(&self, key: &ClusterKey) -> Vec<Arc<K>> {
        let packed = self.lock_read();
        let object_keys = packed.clusters.get(key).into_iter().flatten();
        object_keys.filter_map(|key| Some(Arc::new(packed.objects.get(key)?.unpack()))).collect()
    }
}

/// The one writer of a [`PackedStore`].
pub(super) struct StoreWriter<K> {
    databases: Arc<[&'static ManagedDatabase]>,
    store: PackedStore<K>,
    is_filled: watch::Sender<bool>,
    /// The objects of a list that is not complete yet.
    listed: Option<PackedObjects>,
    /// Bytes that all objects may take.
    room: usize,
}

impl<K: Packable> StoreWriter<K> {
    pub(super) fn new(databases: &Arc<[&'static ManagedDatabase]>) -> Self {
        let (filled_sender, is_filled) = watch::channel(false);
        let store = PackedStore { packed: Arc::default(), is_filled, kind: PhantomData };
        let databases = Arc::clone(databases);
        Self { databases, store, is_filled: filled_sender, listed: None, room: usize::MAX }
    }

    /// Returns the writer of a cache with room for so many bytes.
    pub(super) fn with_room(self, room: usize) -> Self {
        Self { room, ..self }
    }

    pub(super) fn reader(&self) -> PackedStore<K> {
        self.store.clone()
    }

    /// Returns the object as it was before an event about it is applied.
    pub(super) fn stored_object(&self, object: &K) -> Option<K> {
        let key = ObjectOutline::from_metadata(object.meta()).key();
        Some(self.store.lock_read().objects.get(&key)?.unpack())
    }

    pub(super) fn apply_event(&mut self, event: &Event<K>) {
        match event {
            Event::Apply(object) => {
                let databases = Arc::clone(&self.databases);
                self.lock_write().insert(&databases, object, self.room);
            }
            Event::Delete(object) => {
                let databases = Arc::clone(&self.databases);
                self.lock_write().remove::<K>(&databases, object.meta());
            }
            // A list is shown as a whole when it is complete.
            Event::Init => self.listed = Some(PackedObjects::default()),
            Event::InitApply(object) => {
                let listed_objects = self.listed.get_or_insert_default();
                listed_objects.insert(&self.databases, object, self.room);
            }
            Event::InitDone => {
                let listed_objects = self.listed.take().unwrap_or_default();
                *self.lock_write() = listed_objects;
                self.is_filled.send_replace(true);
            }
        }
    }

    fn lock_write(&self) -> RwLockWriteGuard<'_, PackedObjects> {
        self.store.packed.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::controller::testing::example::EXAMPLE;

    fn object(name: &str, cluster: &str, data: &str) -> ConfigMap {
        let label = EXAMPLE.names.cluster_label;
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": name, "uid": name, "labels": {(label): cluster}},
            "data": {"d": data},
        }))
        .unwrap()
    }

    fn names(store: &PackedStore<ConfigMap>, cluster: &str) -> Vec<String> {
        let (kind, namespace) = (EXAMPLE.names.kind, "n".to_owned());
        let key = ClusterKey { kind, namespace, name: cluster.to_owned() };
        store.of_cluster(&key).iter().map(|one| one.metadata.name.clone().unwrap()).collect()
    }

    #[test]
    fn the_namespace_that_takes_the_most_is_left_out() {
        let databases: Arc<[&'static ManagedDatabase]> = [&EXAMPLE].into();
        let mut writer = StoreWriter::<ConfigMap>::new(&databases).with_room(10_000);
        let store = writer.reader();
        let in_namespace = |namespace: &str, name: &str, bytes: usize| {
            let mut object = object(name, "one", &"x".repeat(bytes));
            object.metadata.namespace = Some(namespace.to_owned());
            object
        };
        let fill = |writer: &mut StoreWriter<ConfigMap>| {
            writer.apply_event(&Event::Apply(in_namespace("n", "a", 1000)));
            for name in ["b", "c", "d"] {
                writer.apply_event(&Event::Apply(in_namespace("large", name, 2500)));
            }
            writer.apply_event(&Event::Apply(in_namespace("n", "f", 1000)));
        };
        // It is an object of the other namespace for which there is no room any more.
        fill(&mut writer);
        assert_eq!((store.leaves_out("large"), store.leaves_out("n")), (true, false));
        assert_eq!(store.all_objects().len(), 2, "all of the other namespace");
        assert_eq!(names(&store, "one"), ["a", "f"]);
        // One that grows by the last object is left out itself.
        writer.apply_event(&Event::Apply(in_namespace("other", "g", 9000)));
        assert_eq!((store.leaves_out("other"), store.leaves_out("n")), (true, false));
        writer.apply_event(&Event::Apply(in_namespace("large", "b", 1)));
        assert!(store.get_object("large", "b").is_none(), "until it is listed again");
        writer.apply_event(&Event::Init);
        writer.apply_event(&Event::InitApply(in_namespace("large", "b", 1)));
        writer.apply_event(&Event::InitDone);
        assert!(!store.leaves_out("large") && store.get_object("large", "b").is_some());
        // What is replaced takes its room once.
        for _ in 0..100 {
            writer.apply_event(&Event::Apply(in_namespace("n", "a", 1000)));
        }
        assert!(!store.leaves_out("n"));
        writer.apply_event(&Event::Delete(in_namespace("n", "a", 1000)));
        let left = store.lock_read().bytes;
        assert_eq!(left, serde_json::to_string(&*store.all_objects()[0]).unwrap().len());
    }

    #[test]
    fn objects_are_found_by_name_and_by_the_cluster_that_their_label_names_now() {
        let databases: Arc<[&'static ManagedDatabase]> = [&EXAMPLE].into();
        let mut writer = StoreWriter::<ConfigMap>::new(&databases);
        let store = writer.reader();
        writer.apply_event(&Event::Init);
        for (name, cluster) in [("b", "one"), ("a", "one"), ("c", "other")] {
            writer.apply_event(&Event::InitApply(object(name, cluster, "1")));
        }
        assert_eq!(names(&store, "one"), [""; 0], "the list is not complete");
        writer.apply_event(&Event::InitDone);
        assert_eq!(names(&store, "one"), ["a", "b"]);
        writer.apply_event(&Event::Apply(object("a", "other", "2")));
        assert_eq!(
            (names(&store, "one"), names(&store, "other")),
            (vec!["b".to_owned()], vec!["a".to_owned(), "c".to_owned()])
        );
        assert_eq!(*store.get_object("n", "a").unwrap(), object("a", "other", "2"));
        assert_eq!(writer.stored_object(&object("a", "", "")), Some(object("a", "other", "2")));
        writer.apply_event(&Event::Delete(object("a", "other", "2")));
        assert_eq!(
            (names(&store, "other"), store.get_object("n", "a")),
            (vec!["c".to_owned()], None)
        );
        // What is missing in a later list is gone.
        writer.apply_event(&Event::Init);
        writer.apply_event(&Event::InitApply(object("c", "other", "1")));
        writer.apply_event(&Event::InitDone);
        assert_eq!((names(&store, "one"), names(&store, "other").len()), (Vec::new(), 1));
        let mut seen = Vec::new();
        store.for_each_outline(|outline| seen.push(outline.uid.clone()));
        assert_eq!(seen, ["c".into()]);
    }
}
