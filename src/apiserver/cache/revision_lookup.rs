//! The store's latest revision, asked for once on behalf of concurrent readers.
//!
//! A consistent read needs a revision that the store stated after the read began. Readers that come
//! while the store is being asked wait, and share the answer to the next question; so a thousand
//! readers at one time cost the store no more than two questions.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use super::super::storage::{Error, Revision, Storage};
use crate::error::chain;

#[derive(Default)]
pub(super) struct RevisionLookup {
    /// How many readers came so far.
    came: AtomicU64,
    /// The latest answer, locked by the reader that asks the store.
    answer: Mutex<RevisionAnswer>,
}

/// The store's latest answer.
#[derive(Default)]
struct RevisionAnswer {
    /// How many readers had come when the store was asked: the answer is new enough for these.
    readers: u64,
    said: Option<Result<Revision, SharedError>>,
}

/// An error that several readers share. It keeps the one distinction that they need: was the store
/// replaced?
struct SharedError {
    replaced: bool,
    reason: String,
}

impl RevisionLookup {
    /// Returns a revision that the store stated as its latest after this call began.
    pub(super) async fn latest_revision(&self, store: &dyn Storage) -> Result<Revision, Error> {
        let reader_number = self.came.fetch_add(1, Ordering::SeqCst) + 1;
        let mut answer = self.answer.lock().await;
        if answer.readers >= reader_number
            && let Some(shared_result) = &answer.said
        {
            return shared_result.as_ref().copied().map_err(SharedError::to_error);
        }
        let readers = self.came.load(Ordering::SeqCst);
        let lookup_result = store.current_revision().await;
        let shared_result = lookup_result.as_ref().copied().map_err(SharedError::new);
        *answer = RevisionAnswer { readers, said: Some(shared_result) };
        lookup_result
    }
}

impl SharedError {
    fn new(error: &Error) -> Self {
        match error {
            Error::Replaced { reason } => Self { replaced: true, reason: reason.clone() },
            error => Self { replaced: false, reason: chain(error).to_string() },
        }
    }

    fn to_error(&self) -> Error {
        let reason = self.reason.clone();
        if self.replaced {
            Error::Replaced { reason }
        } else {
            Error::Unavailable { source: reason.into() }
        }
    }
}
