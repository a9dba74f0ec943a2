//! Decides whether an object of its new size may be stored: creates and updates ask here.
//!
//! Owns what counts as growth. A kind has a largest object, and all objects together have the
//! bounds of [`capacity`](crate::apiserver::capacity). Deletions never ask.

use std::sync::Arc;

use super::{Registry, RegistryObject, StorableObject};
use crate::{
    apiserver::{
        capacity::{CapacityClaim, CapacityError, GrowthClass, counted_bytes},
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
    fn new(total_bytes: usize, owners: Option<&RawManagedFields>) -> Self {
        Self { all: total_bytes, owners: owners.map_or(0, |owners| owners.text().len()) }
    }

    fn without_owners(self) -> usize {
        self.all.saturating_sub(self.owners)
    }
}

impl Registry {
    /// Returns the right to store an object that replaces `current`, or why the server refuses it.
    pub(super) fn claim_capacity(
        &self,
        key: &Key,
        part: ObjectPart,
        current: Option<&RegistryObject>,
        new_object: (&StorableObject, Option<&RawManagedFields>),
    ) -> Result<CapacityClaim<'_>, SizeRefusal> {
        let (storable, owners) = new_object;
        let new_size = ObjectSize::new(storable.stored.len(), owners);
        let old_size =
            current.map(|current| ObjectSize::new(current.size, current.owners.as_ref()));
        let old_bytes = old_size.map_or(0, |size| size.all);
        if new_size.all > self.kind.max_size().max(old_bytes) {
            return Err(SizeRefusal::TooLarge(storage::Error::TooLarge { size: new_size.all }));
        }
        let growth_bytes = counted_bytes(new_size.all)
            .saturating_sub(old_size.map_or(0, |size| counted_bytes(size.all)));
        let is_slight = old_size
            .is_some_and(|size| new_size.without_owners() <= size.without_owners() + SLIGHT);
        let growth = if part == ObjectPart::Status || self.kind.is_vital() || is_slight {
            GrowthClass::Reserved
        } else {
            GrowthClass::Ordinary
        };
        let cache = Arc::clone(&self.cache) as _;
        self.capacity.claim(cache, key, growth, growth_bytes).map_err(SizeRefusal::Full)
    }

    /// Turns a refusal into an error for the client.
    pub(super) fn size_error(&self, name: &str, refusal: SizeRefusal) -> ApiError {
        match refusal {
            SizeRefusal::TooLarge(error) => self.store_error(name, &error),
            SizeRefusal::Full(capacity_error) => {
                ApiError::forbidden(self.resource(), name, capacity_error)
            }
        }
    }
}
