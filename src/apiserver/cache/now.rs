//! The store's latest revision, asked for once by all who want it at the same time.
//!
//! A consistent read needs a revision that the store stated after the read began. Readers that come
//! while one reader asks wait, and share the next answer, which any one of them asks for; so a
//! thousand readers cost the store no more than two questions.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use super::super::storage::{Error, Revision, Storage};
use crate::error::chain;

#[derive(Default)]
pub(super) struct RevisionLookup {
    /// Readers that came so far.
    came: AtomicU64,
    /// Held by the reader that asks the store.
    answer: Mutex<RevisionAnswer>,
}

/// What the store said last.
#[derive(Default)]
struct RevisionAnswer {
    /// How many readers had come when the store was asked.
    readers: u64,
    said: Option<Result<Revision, SharedError>>,
}

/// An error that several readers get. Only this matters to them: was the store replaced?
struct SharedError {
    replaced: bool,
    reason: String,
}

impl RevisionLookup {
    /// A revision that the store stated as its latest after this was called.
    pub(super) async fn revision(&self, store: &dyn Storage) -> Result<Revision, Error> {
        let own = self.came.fetch_add(1, Ordering::SeqCst) + 1;
        let mut answer = self.answer.lock().await;
        if answer.readers >= own
            && let Some(said) = &answer.said
        {
            return said.as_ref().copied().map_err(SharedError::error);
        }
        let readers = self.came.load(Ordering::SeqCst);
        let said = store.current_revision().await;
        let shared = said.as_ref().copied().map_err(SharedError::new);
        *answer = RevisionAnswer { readers, said: Some(shared) };
        said
    }
}

impl SharedError {
    fn new(error: &Error) -> Self {
        match error {
            Error::Replaced { reason } => Self { replaced: true, reason: reason.clone() },
            error => Self { replaced: false, reason: chain(error).to_string() },
        }
    }

    fn error(&self) -> Error {
        let reason = self.reason.clone();
        if self.replaced {
            Error::Replaced { reason }
        } else {
            Error::Unavailable { source: reason.into() }
        }
    }
}
