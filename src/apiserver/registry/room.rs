//! Whether an object may be stored as large as it is to be: asked in one place by all writes.
//!
//! Owns what counts as growth. A kind has a largest object, and all objects together have the
//! bounds of [`capacity`](crate::apiserver::capacity). Deletions never ask.

use std::sync::Arc;

use super::{Object, Ready, Registry};
use crate::{
    api::{kind::Part, ownership::Entries},
    apiserver::{
        capacity::{Claim, Full, Growth, counted},
        status::ApiError,
        storage::{self, Key},
    },
};

/// Bytes that a finalizer, an annotation by which a controller works, or one more digit adds.
const SLIGHT: usize = 512;

/// Why an object may not be stored as large as it is to be.
#[derive(Debug)]
pub(super) enum Refused {
    TooLarge(storage::Error),
    Full(Full),
}

/// Bytes of an object as it is stored.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    all: usize,
    /// Bytes of its `managedFields`.
    owners: usize,
}

impl Size {
    fn new(all: usize, owners: Option<&Entries>) -> Self {
        Self { all, owners: owners.map_or(0, |owners| owners.text().len()) }
    }

    fn without_owners(self) -> usize {
        self.all.saturating_sub(self.owners)
    }
}

impl Registry {
    /// The right to store an object in place of `current`, if there is one.
    pub(super) fn room(
        &self,
        key: &Key,
        part: Part,
        current: Option<&Object>,
        new: (&Ready, Option<&Entries>),
    ) -> Result<Claim<'_>, Refused> {
        let (ready, owners) = new;
        let new = Size::new(ready.stored.len(), owners);
        let old = current.map(|current| Size::new(current.size, current.owners.as_ref()));
        let before = old.map_or(0, |old| old.all);
        if new.all > self.kind.largest().max(before) {
            return Err(Refused::TooLarge(storage::Error::TooLarge { size: new.all }));
        }
        let grown = counted(new.all).saturating_sub(old.map_or(0, |old| counted(old.all)));
        let slight = old.is_some_and(|old| new.without_owners() <= old.without_owners() + SLIGHT);
        let growth = if part == Part::Status || self.kind.is_vital() || slight {
            Growth::Reserved
        } else {
            Growth::Ordinary
        };
        let cache = Arc::clone(&self.cache) as _;
        self.capacity.claim(cache, key, growth, grown).map_err(Refused::Full)
    }

    /// The refusal, for the client.
    pub(super) fn refused(&self, name: &str, refused: Refused) -> ApiError {
        match refused {
            Refused::TooLarge(error) => self.store_error(name, &error),
            Refused::Full(full) => ApiError::forbidden(self.resource(), name, full),
        }
    }
}
