//! What the cache knows: the objects, and a window of the latest changes.
//!
//! Pure: applies what the feed reads, answers what readers ask. The objects are always those of
//! `revision`, and the window holds every change after `oldest`.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use super::{
    super::storage::{Key, Prefix, Revision},
    Cached, Error, Listing,
    object::Reading,
};

/// Changes that are kept for watchers. A hundred pilots that write a heartbeat every 10 s fill
/// it in seven minutes.
const WINDOW: usize = 4096;

/// One change of one object.
#[derive(Clone, Debug)]
pub enum Event {
    Put {
        object: Arc<Cached>,
        /// Absent when the object was created.
        previous: Option<Arc<Cached>>,
    },
    Deleted {
        /// The last state, under the revision of the deletion.
        object: Arc<Cached>,
    },
}

impl Event {
    pub fn object(&self) -> &Arc<Cached> {
        match self {
            Self::Put { object, .. } | Self::Deleted { object } => object,
        }
    }
}

/// A line of the window.
struct Change {
    key: Key,
    revision: Revision,
    /// Or why the object cannot be read.
    event: Result<Event, String>,
}

#[derive(Default)]
pub(super) struct State {
    objects: BTreeMap<Key, Arc<Cached>>,
    /// Objects that cannot be read, and why.
    broken: BTreeMap<Key, String>,
    window: VecDeque<Change>,
    oldest: Revision,
    revision: Revision,
    /// Counts the lists. Watchers from before a list cannot know what they missed.
    lists: u64,
    /// Counts the changes of the window.
    changes: u64,
}

/// Changes for a watcher.
pub(super) struct Changes {
    pub events: Vec<Event>,
    /// Everything up to here was looked at.
    pub reached: Revision,
    /// The watch ends after the events.
    pub failure: Option<Error>,
}

impl State {
    pub(super) fn is_ready(&self) -> bool {
        self.lists > 0
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn lists(&self) -> u64 {
        self.lists
    }

    /// Differs when watchers have something to look at.
    pub(super) fn version(&self) -> (u64, u64) {
        (self.lists, self.changes)
    }

    pub(super) fn get(&self, key: &Key) -> Result<Option<Arc<Cached>>, Error> {
        match self.broken.get(key) {
            Some(reason) => Err(Error::Undecodable { key: key.clone(), reason: reason.clone() }),
            None => Ok(self.objects.get(key).cloned()),
        }
    }

    pub(super) fn list(&self, range: &Prefix) -> Result<Listing, Error> {
        if let Some((key, reason)) = self.broken.iter().find(|(key, _)| range.contains(key)) {
            return Err(Error::Undecodable { key: key.clone(), reason: reason.clone() });
        }
        let objects = self
            .objects
            .range(Key::from_stored(range.as_str().to_owned())..)
            .take_while(|(key, _)| range.contains(key))
            .map(|(_, object)| Arc::clone(object))
            .collect();
        Ok(Listing { objects, revision: self.revision, more: false })
    }

    /// Starts over with what a list of the store showed. Ends the watchers from before.
    pub(super) fn replace(&mut self, read: Vec<(Key, Reading)>, revision: Revision) {
        self.objects.clear();
        self.broken.clear();
        for (key, reading) in read {
            match reading {
                Ok(object) => drop(self.objects.insert(key, Arc::new(object))),
                Err(reason) => drop(self.broken.insert(key, reason)),
            }
        }
        self.window.clear();
        self.oldest = revision;
        self.revision = revision;
        self.lists += 1;
    }

    pub(super) fn put(&mut self, key: Key, reading: Reading, revision: Revision) {
        let event = match reading {
            Ok(object) => {
                let object = Arc::new(object);
                self.broken.remove(&key);
                let previous = self.objects.insert(key.clone(), Arc::clone(&object));
                Ok(Event::Put { object, previous })
            }
            Err(reason) => {
                self.objects.remove(&key);
                self.broken.insert(key.clone(), reason.clone());
                Err(reason)
            }
        };
        self.record(Change { key, revision, event });
    }

    pub(super) fn delete(&mut self, key: Key, revision: Revision) {
        self.broken.remove(&key);
        // An object that could not be read was shown to nobody, so nobody misses its deletion.
        if let Some(object) = self.objects.remove(&key) {
            let object = Arc::new(object.deleted(revision));
            self.record(Change { key, revision, event: Ok(Event::Deleted { object }) });
        }
        self.progress(revision);
    }

    pub(super) fn progress(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
    }

    fn record(&mut self, change: Change) {
        self.progress(change.revision);
        self.changes += 1;
        self.window.push_back(change);
        if self.window.len() > WINDOW
            && let Some(gone) = self.window.pop_front()
        {
            self.oldest = gone.revision;
        }
    }

    /// Up to `limit` changes after `reached`, those of the range.
    pub(super) fn changes(
        &self,
        range: &Prefix,
        reached: Revision,
        lists: u64,
        limit: usize,
    ) -> Result<Changes, Error> {
        if reached < self.oldest || lists != self.lists {
            return Err(Error::TooOld { asked: reached, oldest: self.oldest });
        }
        let start = self.window.partition_point(|change| change.revision <= reached);
        let mut found = Changes { events: Vec::new(), reached: self.revision, failure: None };
        for (number, change) in self.window.range(start..).enumerate() {
            if number == limit {
                break;
            }
            found.reached = change.revision;
            if !range.contains(&change.key) {
                continue;
            }
            match &change.event {
                Ok(event) => found.events.push(event.clone()),
                Err(reason) => {
                    let (key, reason) = (change.key.clone(), reason.clone());
                    found.failure = Some(Error::Undecodable { key, reason });
                    return Ok(found);
                }
            }
        }
        if start + limit >= self.window.len() {
            found.reached = self.revision;
        }
        Ok(found)
    }
}
