//! Decides whether an object of its new size may be stored: creates and updates ask here.
//!
//! Owns what counts as growth. A kind has a largest object, and all objects together have the
//! bounds of [`capacity`](crate::apiserver::capacity). Deletions never ask.

use std::sync::Arc;

use super::{Registry, RegistryObject, StorableObject};
use crate::{
    apiserver::{
        capacity::{CapacityClaim, CapacityError, GrowthClass, counted},
        status::ApiError,
        storage::{self, Key},
    },
    machinery::{ownership::RawManagedFields, served_kind::ObjectPart},
};

/// Bytes by which a slight change makes an object larger: by a finalizer, an annotation by which a
/// controller works, or one more digit.
const SLIGHT: usize = 512;

/// Why an object of its new size may not be stored.
#[derive(Debug)]
pub(super) enum SizeRefusal {
    TooLarge(storage::Error),
    Full(CapacityError),
}

/// Bytes of an object as it is stored.
#[derive(Clone, Copy, Debug, Default)]
struct ObjectSize {
    all: usize,
    /// Bytes of its `managedFields`.
    owners: usize,
}

impl ObjectSize {
    fn new(all: usize, owners: Option<&RawManagedFields>) -> Self {
        Self { all, owners: owners.map_or(0, |owners| owners.text().len()) }
    }

    fn without_owners(self) -> usize {
        self.all.saturating_sub(self.owners)
    }
}

impl Registry {
    /// Returns the right to store an object in place of `current`, or why it is refused.
    pub(super) fn room(
        &self,
        key: &Key,
        part: ObjectPart,
        current: Option<&RegistryObject>,
        new: (&StorableObject, Option<&RawManagedFields>),
    ) -> Result<CapacityClaim<'_>, SizeRefusal> {
        let (ready, owners) = new;
        let new = ObjectSize::new(ready.stored.len(), owners);
        let old = current.map(|current| ObjectSize::new(current.size, current.owners.as_ref()));
        let before = old.map_or(0, |old| old.all);
        if new.all > self.kind.largest().max(before) {
            return Err(SizeRefusal::TooLarge(storage::Error::TooLarge { size: new.all }));
        }
        let grown = counted(new.all).saturating_sub(old.map_or(0, |old| counted(old.all)));
        let slight = old.is_some_and(|old| new.without_owners() <= old.without_owners() + SLIGHT);
        let growth = if part == ObjectPart::Status || self.kind.is_vital() || slight {
            GrowthClass::Reserved
        } else {
            GrowthClass::Ordinary
        };
        let cache = Arc::clone(&self.cache) as _;
        self.capacity.claim(cache, key, growth, grown).map_err(SizeRefusal::Full)
    }

    /// Turns a refusal into an error for the client.
    pub(super) fn refused(&self, name: &str, refused: SizeRefusal) -> ApiError {
        match refused {
            SizeRefusal::TooLarge(error) => self.store_error(name, &error),
            SizeRefusal::Full(full) => ApiError::forbidden(self.resource(), name, full),
        }
    }
}
