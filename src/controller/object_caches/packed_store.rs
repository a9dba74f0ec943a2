//! A cache that holds its objects packed, and knows them by cluster.
//!
//! Ten thousand pods, claims and Pilots as the types of their kinds take more than half a gibibyte,
//! most of it room for fields that are not set. As compact JSON they take a quarter of that. They
//! are unpacked when they are read, which a look at one cluster does for the objects of that
//! cluster only.
//! What is asked of all objects at once is in their [`ObjectOutline`].

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

use super::{ManagedDatabase, keys};
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
    fn of(meta: &ObjectMeta) -> Self {
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
    fn leaves_out(&mut self, namespace: &str, more: usize, room: usize) -> bool {
        while !self.left_out.contains(namespace) && self.bytes + more > room {
            let own = self.of_namespaces.get(namespace).copied().unwrap_or_default() + more;
            let largest = self.of_namespaces.iter().max_by_key(|(_, bytes)| **bytes);
            let largest = largest.filter(|(_, bytes)| **bytes > own).map(|(name, _)| &**name);
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

    fn count(&mut self, namespace: &str, added: usize, removed: usize) {
        self.bytes = self.bytes + added - removed;
        let of_namespace = self.of_namespaces.entry(namespace.into()).or_default();
        *of_namespace = *of_namespace + added - removed;
    }

    fn insert<K: Packable>(
        &mut self,
        databases: &[&'static ManagedDatabase],
        object: &K,
        room: usize,
    ) {
        let outline = ObjectOutline::of(object.meta());
        let key = outline.key();
        let named: Vec<ClusterKey> = keys(databases, object.meta()).collect();
        // Labels seldom change, and to unpack the object for them costs more than the rest.
        let is_in = |cluster| self.clusters.get(cluster).is_some_and(|them| them.contains(&key));
        let before = self.objects.get(&key).map(|before| before.clusters);
        if before != Some(named.len()) || !named.iter().all(is_in) {
            self.remove::<K>(databases, object.meta());
        }
        let json = serde_json::to_string(object).expect("objects of Kubernetes have string keys");
        if self.leaves_out(&outline.namespace, json.len(), room) {
            return;
        }
        let clusters = named.len();
        for cluster in named {
            self.clusters.entry(cluster).or_default().insert(key.clone());
        }
        let (namespace, added) = (outline.namespace.clone(), json.len());
        let object = PackedObject { outline, clusters, json: json.into() };
        let before = self.objects.insert(key, object);
        self.count(&namespace, added, before.map_or(0, |before| before.json.len()));
    }

    fn remove<K: Packable>(&mut self, databases: &[&'static ManagedDatabase], meta: &ObjectMeta) {
        let key = ObjectOutline::of(meta).key();
        let Some(before) = self.objects.remove(&key) else { return };
        self.count(&before.outline.namespace, 0, before.json.len());
        // Its labels may have been others.
        for cluster in keys(databases, before.unpack::<K>().meta()) {
            if let Some(found) = self.clusters.get_mut(&cluster) {
                found.remove(&key);
                if found.is_empty() {
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
    fn read(&self) -> RwLockReadGuard<'_, PackedObjects> {
        self.packed.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the cache holds what the server held.
    pub(crate) async fn until_filled(&self) {
        // An error means that the watch ended, which ends the process.
        drop(self.is_filled.clone().wait_for(|is_filled| *is_filled).await);
    }

    /// Did the objects of a namespace take more room than there is? Then none of them are here.
    pub(crate) fn leaves_out(&self, namespace: &str) -> bool {
        self.read().left_out.contains(namespace)
    }

    /// Shows `look` the outline of each object.
    pub(crate) fn outlines(&self, mut look: impl FnMut(&ObjectOutline)) {
        self.read().objects.values().for_each(|object| look(&object.outline));
    }
}

impl<K: Packable> PackedStore<K> {
    pub(crate) fn named(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let key = ObjectKey::new(namespace, name);
        Some(Arc::new(self.read().objects.get(&key)?.unpack()))
    }

    /// Returns all objects, unpacked: for what is done seldom.
    pub(crate) fn state(&self) -> Vec<Arc<K>> {
        self.read().objects.values().map(|object| Arc::new(object.unpack())).collect()
    }

    /// Returns the objects whose label names the cluster, by name.
    pub(crate) fn of_cluster(&self, key: &ClusterKey) -> Vec<Arc<K>> {
        let packed = self.read();
        let found = packed.clusters.get(key).into_iter().flatten();
        found.filter_map(|key| Some(Arc::new(packed.objects.get(key)?.unpack()))).collect()
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
        let (filled, is_filled) = watch::channel(false);
        let store = PackedStore { packed: Arc::default(), is_filled, kind: PhantomData };
        let databases = Arc::clone(databases);
        Self { databases, store, is_filled: filled, listed: None, room: usize::MAX }
    }

    /// Returns the writer of a cache with room for so many bytes.
    pub(super) fn with_room(self, room: usize) -> Self {
        Self { room, ..self }
    }

    pub(super) fn reader(&self) -> PackedStore<K> {
        self.store.clone()
    }

    /// Returns the object as it was before an event about it is applied.
    pub(super) fn known(&self, object: &K) -> Option<K> {
        let key = ObjectOutline::of(object.meta()).key();
        Some(self.store.read().objects.get(&key)?.unpack())
    }

    pub(super) fn apply(&mut self, event: &Event<K>) {
        match event {
            Event::Apply(object) => {
                let databases = Arc::clone(&self.databases);
                self.write().insert(&databases, object, self.room);
            }
            Event::Delete(object) => {
                let databases = Arc::clone(&self.databases);
                self.write().remove::<K>(&databases, object.meta());
            }
            // A list is shown as a whole when it is complete.
            Event::Init => self.listed = Some(PackedObjects::default()),
            Event::InitApply(object) => {
                let listed = self.listed.get_or_insert_default();
                listed.insert(&self.databases, object, self.room);
            }
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                *self.write() = listed;
                self.is_filled.send_replace(true);
            }
        }
    }

    fn write(&self) -> RwLockWriteGuard<'_, PackedObjects> {
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
            writer.apply(&Event::Apply(in_namespace("n", "a", 1000)));
            for name in ["b", "c", "d"] {
                writer.apply(&Event::Apply(in_namespace("large", name, 2500)));
            }
            writer.apply(&Event::Apply(in_namespace("n", "f", 1000)));
        };
        // It is an object of the other namespace for which there is no room any more.
        fill(&mut writer);
        assert_eq!((store.leaves_out("large"), store.leaves_out("n")), (true, false));
        assert_eq!(store.state().len(), 2, "all of the other namespace");
        assert_eq!(names(&store, "one"), ["a", "f"]);
        // One that grows by the last object is left out itself.
        writer.apply(&Event::Apply(in_namespace("other", "g", 9000)));
        assert_eq!((store.leaves_out("other"), store.leaves_out("n")), (true, false));
        writer.apply(&Event::Apply(in_namespace("large", "b", 1)));
        assert!(store.named("large", "b").is_none(), "until it is listed again");
        writer.apply(&Event::Init);
        writer.apply(&Event::InitApply(in_namespace("large", "b", 1)));
        writer.apply(&Event::InitDone);
        assert!(!store.leaves_out("large") && store.named("large", "b").is_some());
        // What is replaced takes its room once.
        for _ in 0..100 {
            writer.apply(&Event::Apply(in_namespace("n", "a", 1000)));
        }
        assert!(!store.leaves_out("n"));
        writer.apply(&Event::Delete(in_namespace("n", "a", 1000)));
        let left = store.read().bytes;
        assert_eq!(left, serde_json::to_string(&*store.state()[0]).unwrap().len());
    }

    #[test]
    fn objects_are_found_by_name_and_by_the_cluster_that_their_label_names_now() {
        let databases: Arc<[&'static ManagedDatabase]> = [&EXAMPLE].into();
        let mut writer = StoreWriter::<ConfigMap>::new(&databases);
        let store = writer.reader();
        writer.apply(&Event::Init);
        for (name, cluster) in [("b", "one"), ("a", "one"), ("c", "other")] {
            writer.apply(&Event::InitApply(object(name, cluster, "1")));
        }
        assert_eq!(names(&store, "one"), [""; 0], "the list is not complete");
        writer.apply(&Event::InitDone);
        assert_eq!(names(&store, "one"), ["a", "b"]);
        writer.apply(&Event::Apply(object("a", "other", "2")));
        assert_eq!(
            (names(&store, "one"), names(&store, "other")),
            (vec!["b".to_owned()], vec!["a".to_owned(), "c".to_owned()])
        );
        assert_eq!(*store.named("n", "a").unwrap(), object("a", "other", "2"));
        assert_eq!(writer.known(&object("a", "", "")), Some(object("a", "other", "2")));
        writer.apply(&Event::Delete(object("a", "other", "2")));
        assert_eq!((names(&store, "other"), store.named("n", "a")), (vec!["c".to_owned()], None));
        // What is missing in a later list is gone.
        writer.apply(&Event::Init);
        writer.apply(&Event::InitApply(object("c", "other", "1")));
        writer.apply(&Event::InitDone);
        assert_eq!((names(&store, "one"), names(&store, "other").len()), (Vec::new(), 1));
        let mut seen = Vec::new();
        store.outlines(|outline| seen.push(outline.uid.clone()));
        assert_eq!(seen, ["c".into()]);
    }
}
