//! The latest write of this process, which a store that lost its latest writes lacks.

use std::sync::{Mutex, PoisonError};

use super::super::Revision;

/// A key, and a revision at or after which the key was last written.
#[derive(Clone)]
pub(super) struct WriteWitness {
    pub(super) path: String,
    pub(super) written: Revision,
}

/// The latest write of this process, unless that was a deletion.
#[derive(Default)]
pub(super) struct LatestWitness(Mutex<Option<WriteWitness>>);

impl LatestWitness {
    /// Returns the latest write, which must be there still; `None` when a later revision than its
    /// is known.
    pub(super) fn witness(&self, latest: Revision) -> Option<WriteWitness> {
        let witness = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        witness.clone().filter(|witness| witness.written >= latest)
    }

    /// Records that the store took a write at `revision`: of the key at `path`, or a deletion.
    pub(super) fn record_write(&self, path: Option<String>, revision: Revision) {
        let mut witness = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if witness.as_ref().is_none_or(|witness| witness.written < revision) {
            *witness = path.map(|path| WriteWitness { path, written: revision });
        }
    }
}
