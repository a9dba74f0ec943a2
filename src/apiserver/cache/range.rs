//! The keys that a watcher looks at, and which watchers a change wakes.
//!
//! A change wakes the watchers of its object, of its namespace and of the whole resource, and no
//! others: with a thousand pilots that each watch their own Pilot, a heartbeat wakes one of them.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use tokio::sync::watch;

use super::super::storage::{Key, KeyPrefix};

/// Keys that a watch is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRange {
    Under(KeyPrefix),
    One(Key),
}

impl KeyRange {
    pub fn contains(&self, key: &Key) -> bool {
        match self {
            Self::Under(prefix) => prefix.contains(key),
            Self::One(watched_key) => watched_key == key,
        }
    }

    fn as_str(&self) -> &str {
        match self {
            Self::Under(prefix) => prefix.as_str(),
            Self::One(key) => key.as_str(),
        }
    }
}

/// Wake-up channels of watchers, by the range that they watch.
#[derive(Default)]
pub(super) struct WaitingWatchers(Mutex<HashMap<Box<str>, watch::Sender<()>>>);

impl WaitingWatchers {
    pub(super) fn subscribe(&self, range: &KeyRange) -> watch::Receiver<()> {
        let mut senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        senders.entry(range.as_str().into()).or_default().subscribe()
    }

    /// Returns how many watchers a range has.
    pub(super) fn count_watchers(&self, range: &KeyRange) -> usize {
        let senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        senders.get(range.as_str()).map_or(0, watch::Sender::receiver_count)
    }

    /// Forgets a range that no watcher waits for.
    pub(super) fn remove_unwatched(&self, range: &KeyRange) {
        let mut senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if senders.get(range.as_str()).is_some_and(|sender| sender.receiver_count() == 0) {
            senders.remove(range.as_str());
        }
    }

    pub(super) fn wake_all(&self) {
        let senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for sender in senders.values() {
            sender.send_replace(());
        }
    }

    /// Wakes the watchers whose range has one of the keys.
    pub(super) fn wake_watchers<'a>(&self, keys: impl Iterator<Item = &'a Key>) {
        let senders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for key in keys {
            let key = key.as_str();
            // The key itself, and each prefix of it that ends with a slash.
            let ends = key.match_indices('/').map(|(index, _)| index + 1).chain([key.len()]);
            for sender in ends.filter_map(|end| senders.get(&key[..end])) {
                sender.send_replace(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_wakes_those_alone_who_look_at_it() {
        let key = |namespace: &str, name: &str| Key::new("g", "pilots", namespace, name).unwrap();
        let ranges = [
            KeyRange::Under(KeyPrefix::for_resource("g", "pilots").unwrap()),
            KeyRange::Under(KeyPrefix::for_namespace("g", "pilots", "a").unwrap()),
            KeyRange::Under(KeyPrefix::for_namespace("g", "pilots", "a2").unwrap()),
            KeyRange::One(key("a", "x")),
            KeyRange::One(key("a", "x2")),
        ];
        let waiting = WaitingWatchers::default();
        let woken = |keys: &[Key]| {
            let receivers = ranges.each_ref().map(|range| waiting.subscribe(range));
            waiting.wake_watchers(keys.iter());
            receivers.map(|receiver| receiver.has_changed().unwrap())
        };
        assert_eq!(woken(&[key("a", "x")]), [true, true, false, true, false]);
        assert_eq!(woken(&[key("a2", "x")]), [true, false, true, false, false]);
        assert_eq!(woken(&[key("b", "x")]), [true, false, false, false, false]);
        assert_eq!(woken(&[]), [false; 5]);
    }

    #[test]
    fn a_range_is_forgotten_with_its_last_watcher() {
        let range = KeyRange::Under(KeyPrefix::for_resource("g", "pilots").unwrap());
        let waiting = WaitingWatchers::default();
        let (one, other) = (waiting.subscribe(&range), waiting.subscribe(&range));
        assert_eq!(waiting.count_watchers(&range), 2);
        drop(one);
        waiting.remove_unwatched(&range);
        assert_eq!(waiting.count_watchers(&range), 1);
        drop(other);
        waiting.remove_unwatched(&range);
        assert_eq!(waiting.count_watchers(&range), 0);
        assert_eq!(waiting.0.lock().unwrap().len(), 0);
    }
}
