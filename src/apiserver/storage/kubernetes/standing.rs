//! What a process knows of the store that it opened: is what answers still that one?
//!
//! Owns the comparison of ids and revisions; how they are asked for is `identity`'s.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use super::super::{Alarm, Error, Loss, Revision};

/// What to say where no store was ever made.
pub(super) const NO_ID: &str = "kube-apiserver holds no store of ours";

#[derive(Default)]
pub(super) struct Standing {
    /// Absent until the store is opened: then nothing is compared.
    id: OnceLock<String>,
    /// How it showed that writes were lost. A lost store that is written to soon looks whole.
    lost: OnceLock<Loss>,
    /// The latest revision that this store, and certainly no other, has shown.
    latest: AtomicU64,
    alarm: OnceLock<Alarm>,
}

impl Standing {
    /// The store that was found first stays the one that is meant.
    pub(super) fn open(&self, id: String) -> String {
        self.id.get_or_init(|| id).clone()
    }

    pub(super) fn latest(&self) -> Revision {
        Revision(self.latest.load(Ordering::SeqCst))
    }

    /// The store that was opened has shown `revision`.
    pub(super) fn reached(&self, revision: Revision) {
        self.latest.fetch_max(revision.0, Ordering::SeqCst);
    }

    /// How an answer at `now`, which can show no revision below `least`, is a sign of loss.
    pub(super) fn went_back(&self, least: Revision, now: Revision) -> Option<Loss> {
        let reached = self.latest();
        (self.id.get().is_some() && now < least).then(|| {
            let why = format!(
                "kube-apiserver answered at revision {now} and was at {reached} before: it was wiped or \
                 restored"
            );
            Loss { why, reached }
        })
    }

    /// Remembers the first sign that the store lost writes, until the process ends.
    pub(super) fn lost(&self, sign: Option<Loss>) -> Option<Loss> {
        if let Some(sign) = sign {
            drop(self.lost.set(sign));
        }
        self.lost.get().cloned()
    }

    /// How the store that was found is not the one that was opened.
    pub(super) fn differs(&self, found: Option<&str>) -> Option<String> {
        match (self.id.get(), found) {
            (None, _) => None,
            (Some(known), Some(found)) if known == found => None,
            (Some(known), Some(found)) => {
                Some(format!("kube-apiserver holds the store {found:?}, not {known:?} as before"))
            }
            (Some(known), None) => Some(format!("{NO_ID}, where {known:?} was")),
        }
    }

    /// Tells who must know before the caller gets its answer.
    pub(super) fn replaced(&self, reason: String) -> Error {
        if let Some(alarm) = self.alarm.get() {
            alarm(&reason);
        }
        Error::Replaced { reason }
    }

    pub(super) fn on_replaced(&self, alarm: Alarm) {
        // One guard watches over a store; a second one would be told nothing.
        drop(self.alarm.set(alarm));
    }
}
