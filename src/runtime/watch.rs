//! Watches of Kubernetes: what they tell is handed on until shutdown, and kept by name where a role
//! needs the whole.

use std::{collections::BTreeMap, fmt::Debug};

use futures::{Stream, StreamExt};
use kube::{ResourceExt, runtime::watcher};
use tracing::warn;

use super::{Shutdown, readiness::ReadinessHandle};
use crate::error::chain;

/// Most objects of one answer while a watch is filled.
const PAGE: u32 = 500;

/// Returns how watches are filled: in pages.
pub fn paged_config() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// Hands on what a watch tells, until shutdown. What holds readiness back is let go once the watch is
/// filled.
pub async fn follow_watch<K: Debug>(
    task: &'static str,
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    mut handle_event: impl FnMut(&watcher::Event<K>),
    mut readiness_handle: Option<ReadinessHandle>,
    shutdown: Shutdown,
) {
    let mut last_error = String::new();
    let mut events = Box::pin(events);
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = shutdown.triggered() => return,
        };
        match event {
            None => return,
            Some(Err(error)) => {
                let text = chain(&error).to_string();
                if text != last_error {
                    warn!(watch = task, error = text, "Watch failed, trying again");
                    last_error = text;
                }
            }
            Some(Ok(event)) => {
                last_error.clear();
                handle_event(&event);
                if matches!(event, watcher::Event::InitDone) {
                    drop(readiness_handle.take());
                }
            }
        }
    }
}

/// What a watch told, by name or another key. While it is filled anew, what it told before stands: there is
/// no moment at which only a part is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedReplica<V> {
    /// `None` until the watch was filled once.
    held: Option<BTreeMap<String, V>>,
    filling: BTreeMap<String, V>,
    /// Newest resourceVersion that the watch told of. Versions of one resource grow:
    /// <https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>.
    newest: u128,
}

impl<V> Default for WatchedReplica<V> {
    fn default() -> Self {
        Self { held: None, filling: BTreeMap::new(), newest: 0 }
    }
}

impl<V: PartialEq> WatchedReplica<V> {
    /// Returns what the watch told; `None` until it was filled once.
    pub fn objects(&self) -> Option<&BTreeMap<String, V>> {
        self.held.as_ref()
    }

    /// Takes what a watch tells, by name; `value` is what is kept of an object. Returns whether something
    /// else is held now.
    pub fn apply_event<K: ResourceExt>(
        &mut self,
        event: &watcher::Event<K>,
        value: impl Fn(&K) -> V,
    ) -> bool {
        self.apply_event_by(event, ResourceExt::name_any, value)
    }

    /// Takes what a watch tells, by a key of its own, such as [`namespaced_key`].
    pub fn apply_event_by<K: ResourceExt>(
        &mut self,
        event: &watcher::Event<K>,
        key: impl Fn(&K) -> String,
        value: impl Fn(&K) -> V,
    ) -> bool {
        if let watcher::Event::InitApply(object)
        | watcher::Event::Apply(object)
        | watcher::Event::Delete(object) = event
        {
            self.newest = self.newest.max(numeric_version(object).unwrap_or(0));
        }
        self.update(event, key, value)
    }

    /// Takes the answer of a write, by name, ahead of the watch: see [`Self::record_write_by`].
    pub fn record_write<K: ResourceExt>(&mut self, answer: K, value: impl Fn(&K) -> V) -> bool {
        self.record_write_by(answer, ResourceExt::name_any, value)
    }

    /// Takes the answer of a write ahead of the watch. One that the watch is past is dropped: it told
    /// already what came of it, which may be another write or a deletion. Returns whether something
    /// else is held now.
    pub fn record_write_by<K: ResourceExt>(
        &mut self,
        answer: K,
        key: impl Fn(&K) -> String,
        value: impl Fn(&K) -> V,
    ) -> bool {
        let is_outdated = numeric_version(&answer).is_some_and(|version| version <= self.newest);
        !is_outdated && self.update(&watcher::Event::Apply(answer), key, value)
    }

    fn update<K>(
        &mut self,
        event: &watcher::Event<K>,
        key: impl Fn(&K) -> String,
        value: impl Fn(&K) -> V,
    ) -> bool {
        match (event, &mut self.held) {
            (watcher::Event::Init, _) => {
                self.filling.clear();
                false
            }
            (watcher::Event::InitApply(object), _) => {
                self.filling.insert(key(object), value(object));
                false
            }
            (watcher::Event::InitDone, objects) => {
                let new_objects = Some(std::mem::take(&mut self.filling));
                let has_changed = *objects != new_objects;
                *objects = new_objects;
                has_changed
            }
            (watcher::Event::Apply(object), Some(objects)) => {
                let value = value(object);
                let key = key(object);
                objects.get(&key) != Some(&value) && {
                    objects.insert(key, value);
                    true
                }
            }
            (watcher::Event::Delete(object), Some(objects)) => {
                objects.remove(&key(object)).is_some()
            }
            (watcher::Event::Apply(_) | watcher::Event::Delete(_), None) => false,
        }
    }
}

fn numeric_version<K: ResourceExt>(object: &K) -> Option<u128> {
    object.resource_version()?.parse().ok()
}

/// Key of an object among those of all namespaces: `namespace/name`.
pub fn namespaced_key<K: ResourceExt>(object: &K) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use watcher::Event;

    use super::*;

    fn object(name: &str, value: &str) -> ConfigMap {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name}, "data": {"value": value},
        }))
        .unwrap()
    }

    #[test]
    fn an_answer_that_the_watch_is_past_changes_nothing() {
        let versioned = |name: &str, value: &str, version: &str| {
            let mut object = object(name, value);
            object.metadata.resource_version = Some(version.to_owned());
            object
        };
        let value = |object: &ConfigMap| object.data.clone().unwrap_or_default()["value"].clone();
        let mut replica = WatchedReplica::default();
        replica.apply_event(&Event::InitApply(versioned("a", "old", "9")), value);
        replica.apply_event::<ConfigMap>(&Event::InitDone, value);
        let held = |replica: &WatchedReplica<String>| replica.objects().unwrap().get("a").cloned();
        assert!(replica.record_write(versioned("a", "ours", "10"), value));
        assert_eq!(held(&replica).as_deref(), Some("ours"));
        replica.apply_event(&Event::Apply(versioned("a", "theirs", "12")), value);
        assert!(!replica.record_write(versioned("a", "ours again", "11"), value));
        assert_eq!(held(&replica).as_deref(), Some("theirs"));
        replica.apply_event(&Event::Delete(versioned("a", "", "14")), value);
        assert!(!replica.record_write(versioned("a", "ours", "13"), value));
        assert_eq!(held(&replica), None);
    }

    #[test]
    fn while_a_watch_is_filled_anew_what_it_told_before_stands() {
        let mut replica = WatchedReplica::default();
        let mut take = |event| {
            let value =
                |object: &ConfigMap| object.data.clone().unwrap_or_default()["value"].clone();
            let changed = replica.apply_event(&event, value);
            let held = replica.objects().map(|held| {
                let pairs = held.iter().map(|(name, value)| format!("{name}={value}"));
                pairs.collect::<Vec<_>>().join(" ")
            });
            (changed, held)
        };
        let holds = |text: &str| Some(text.to_owned());
        assert_eq!(take(Event::Init), (false, None));
        assert_eq!(take(Event::InitApply(object("a", "1"))), (false, None));
        assert_eq!(take(Event::InitDone), (true, holds("a=1")));
        assert_eq!(take(Event::Apply(object("b", "1"))), (true, holds("a=1 b=1")));
        assert_eq!(take(Event::Apply(object("b", "1"))), (false, holds("a=1 b=1")));
        assert_eq!(take(Event::Delete(object("b", "1"))), (true, holds("a=1")));
        // A list that ends early is begun again.
        assert_eq!(take(Event::Init), (false, holds("a=1")));
        assert_eq!(take(Event::InitApply(object("c", "1"))), (false, holds("a=1")));
        assert_eq!(take(Event::Init), (false, holds("a=1")));
        assert_eq!(take(Event::InitDone), (true, holds("")));
    }
}
