//! Objects that the registry wrote, until the store's watch shows them: they need not be read
//! out of their bytes again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use super::{
    super::storage::{Entry, Revision},
    Cached,
};

/// While no watch of the store is open nobody takes what is offered.
const MOST: usize = 256;

#[derive(Default)]
pub(super) struct Offers(Mutex<BTreeMap<Revision, Offer>>);

struct Offer {
    object: Arc<Cached>,
    stored: Bytes,
}

impl Offers {
    pub(super) fn add(&self, object: Arc<Cached>, stored: Bytes) {
        let mut offers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if offers.len() < MOST {
            offers.insert(object.revision, Offer { object, stored });
        }
    }

    /// The object of this entry. Forgets all that is older: the watch has passed it. A store that
    /// was put back gives a revision twice, so the bytes decide.
    pub(super) fn take(&self, entry: &Entry) -> Option<Arc<Cached>> {
        let mut offers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = offers.split_off(&entry.revision);
        *offers = rest;
        let Offer { object, stored } = offers.remove(&entry.revision)?;
        (object.key == entry.key && stored == entry.value).then_some(object)
    }
}
