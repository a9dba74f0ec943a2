//! Objects that the registry is writing, kept until the store's watch shows them, so that the cache
//! need not decode their bytes. The watch is often faster than the store's answer to the registry.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use bytes::Bytes;

use super::{
    super::storage::{Key, Revision, StoreEntry},
    CachedObject, EventType, ObjectForm,
};

/// Most offers that are kept at one time. While no watch of the store is open, none is used up.
const MOST: usize = 256;

#[derive(Default)]
pub(super) struct PendingWrites(Mutex<HashMap<Key, Vec<Arc<PendingWrite>>>>);

/// An object that the registry is writing, offered to the cache.
#[derive(Debug)]
pub(super) struct PendingWrite {
    key: Key,
    stored: Bytes,
    event: EventType,
    form: Mutex<Option<ObjectForm>>,
    /// The object at the revision that was stated first, by the registry or by the store's watch.
    made: OnceLock<Option<Arc<CachedObject>>>,
}

impl PendingWrite {
    /// Returns the object at `revision`. Absent when registry and watch state different revisions:
    /// one of them then means another write of the same bytes.
    fn object_at(&self, revision: Revision) -> Option<Arc<CachedObject>> {
        let object = self.made.get_or_init(|| {
            let form = self.form.lock().unwrap_or_else(PoisonError::into_inner).take()?;
            Some(Arc::new(CachedObject::new(self.key.clone(), form, revision, self.event)))
        });
        object.clone().filter(|object| object.revision == revision)
    }
}

/// An offer of the registry. Dropping this value withdraws the offer, unless the object was written
/// and the store's watch has yet to show it.
#[must_use = "the offer stands as long as this lives"]
pub struct PendingWriteGuard<'a> {
    offers: &'a PendingWrites,
    offer: Arc<PendingWrite>,
    stands: bool,
}

impl PendingWriteGuard<'_> {
    /// Reports that the store took the write as `revision`. `shown`: the cache shows that revision
    /// already.
    pub(super) fn confirm_write(
        mut self,
        revision: Revision,
        is_shown: bool,
    ) -> Option<Arc<CachedObject>> {
        self.stands = !is_shown;
        self.offer.object_at(revision)
    }
}

impl Drop for PendingWriteGuard<'_> {
    fn drop(&mut self) {
        if !self.stands {
            self.offers.remove(&self.offer.key, |offer| Arc::ptr_eq(offer, &self.offer));
        }
    }
}

fn count_offers(offers: &HashMap<Key, Vec<Arc<PendingWrite>>>) -> usize {
    offers.values().map(Vec::len).sum()
}

impl PendingWrites {
    pub(super) fn add(
        &self,
        key: &Key,
        form: ObjectForm,
        stored: Bytes,
        event: EventType,
        shown_revision: Revision,
    ) -> PendingWriteGuard<'_> {
        let (key, form) = (key.clone(), Mutex::new(Some(form)));
        let offer = Arc::new(PendingWrite { key, stored, event, form, made: OnceLock::new() });
        let mut offers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if count_offers(&offers) >= MOST {
            // Offers of objects that the cache shows already: they were not used while no watch was
            // open.
            offers.retain(|_, list| {
                list.retain(|offer| match offer.made.get() {
                    Some(object) => {
                        object.as_ref().is_some_and(|object| object.revision > shown_revision)
                    }
                    None => true,
                });
                !list.is_empty()
            });
        }
        if count_offers(&offers) < MOST {
            offers.entry(offer.key.clone()).or_default().push(Arc::clone(&offer));
        }
        drop(offers);
        PendingWriteGuard { offers: self, offer, stands: false }
    }

    /// Returns the object offered for a store entry, and removes the offer: the watch shows the
    /// object now.
    pub(super) fn take_object(&self, entry: &StoreEntry) -> Option<Arc<CachedObject>> {
        let is_same_write = |offer: &Arc<PendingWrite>| offer.stored == entry.value;
        self.remove(&entry.key, is_same_write)?.object_at(entry.revision)
    }

    fn remove(
        &self,
        key: &Key,
        predicate: impl Fn(&Arc<PendingWrite>) -> bool,
    ) -> Option<Arc<PendingWrite>> {
        let mut offers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let list = offers.get_mut(key)?;
        let index = list.iter().position(predicate)?;
        let offer = list.remove(index);
        if list.is_empty() {
            offers.remove(key);
        }
        Some(offer)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(name: &str) -> Key {
        Key::new("g", "pilots", "db", name).unwrap()
    }

    fn offer<'a>(
        offers: &'a PendingWrites,
        name: &str,
        text: &'static str,
    ) -> PendingWriteGuard<'a> {
        let object = json!({"metadata": {"name": name}});
        let form = ObjectForm::new(&object, None, Vec::new(), true).unwrap();
        offers.add(&key(name), form, Bytes::from(text), EventType::Modified, Revision(0))
    }

    fn standing(offers: &PendingWrites) -> usize {
        count_offers(&offers.0.lock().unwrap())
    }

    fn entry(name: &str, text: &'static str, revision: u64) -> StoreEntry {
        StoreEntry { key: key(name), value: text.into(), revision: Revision(revision) }
    }

    #[test]
    fn registry_and_watch_have_one_object_whoever_comes_first() {
        for registry_first in [true, false] {
            let offers = PendingWrites::default();
            let offered = offer(&offers, "a", "1");
            let (written, shown) = if registry_first {
                let written = offered.confirm_write(Revision(7), false).unwrap();
                (written, offers.take_object(&entry("a", "1", 7)).unwrap())
            } else {
                let shown = offers.take_object(&entry("a", "1", 7)).unwrap();
                (offered.confirm_write(Revision(7), true).unwrap(), shown)
            };
            assert!(Arc::ptr_eq(&written, &shown));
            assert_eq!((written.revision, standing(&offers)), (Revision(7), 0));
        }
    }

    #[test]
    fn the_same_bytes_under_another_revision_are_another_write() {
        let offers = PendingWrites::default();
        let written = offer(&offers, "a", "1").confirm_write(Revision(8), false);
        assert!(written.is_some() && offers.take_object(&entry("a", "1", 7)).is_none());
        assert!(offers.take_object(&entry("a", "2", 8)).is_none());
    }

    #[test]
    fn what_the_store_refused_stands_no_longer() {
        let offers = PendingWrites::default();
        drop(offer(&offers, "a", "1"));
        assert!(standing(&offers) == 0 && offers.take_object(&entry("a", "1", 7)).is_none());
    }

    #[test]
    fn what_nobody_takes_is_bounded() {
        let offers = PendingWrites::default();
        for at in 0..4 * MOST as u64 {
            assert!(offer(&offers, "a", "1").confirm_write(Revision(at + 1), false).is_some());
        }
        assert!(standing(&offers) <= MOST, "{}", standing(&offers));
    }
}
