//! What a process knows of a store that others can change, to tell whether the store that answers
//! is the one that it opened.
//!
//! etcd, also the one below a kube-apiserver, can lose its data under a running server, be restored
//! from a backup, or make room for another one at the same address. Each such etcd answers that an
//! object which it lacks does not exist, and Kubernetes' garbage collector believes it. So a store
//! has an id, made once, and revisions never go back. Owns the comparison of both; how they are
//! asked for is the store's.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use super::{Error, ReplacementAlarm, Result, Revision, StoreStatus, WriteLoss};

pub(super) struct StoreTrust {
    /// The server that answers, as messages name it.
    who: &'static str,
    /// The id of the store that was opened; absent until then, and nothing is compared before.
    id: OnceLock<String>,
    /// How it showed that writes were lost, if they were. A lost store that is written to soon
    /// looks whole.
    lost: OnceLock<WriteLoss>,
    /// The latest revision that the opened store, and certainly no other, has shown.
    latest: AtomicU64,
    alarm: OnceLock<ReplacementAlarm>,
}

impl StoreTrust {
    pub(super) fn new(who: &'static str) -> Self {
        Self {
            who,
            id: OnceLock::new(),
            lost: OnceLock::new(),
            latest: AtomicU64::new(0),
            alarm: OnceLock::new(),
        }
    }

    /// Keeps the id of the store that was found first, and returns it: this store stays the one
    /// that is meant.
    pub(super) fn open(&self, id: String) -> String {
        self.id.get_or_init(|| id).clone()
    }

    /// Returns the id that every answer must come with; `None` until the store is opened.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.get().map(String::as_str)
    }

    pub(super) fn latest(&self) -> Revision {
        Revision(self.latest.load(Ordering::SeqCst))
    }

    /// Records that the store that was opened has shown `revision`.
    pub(super) fn reached(&self, revision: Revision) {
        self.latest.fetch_max(revision.0, Ordering::SeqCst);
    }

    /// Fails if the store is known to have lost writes.
    pub(super) fn whole(&self) -> Result<()> {
        match self.lost.get() {
            Some(lost) => Err(self.replaced(lost.why.clone())),
            None => Ok(()),
        }
    }

    /// Returns the sign of loss in an answer at `now`, if `now` is below `least`, the lowest
    /// revision that it can show.
    pub(super) fn went_back(&self, least: Revision, now: Revision) -> Option<WriteLoss> {
        let (who, reached) = (self.who, self.latest());
        (self.id.get().is_some() && now < least).then(|| {
            let why = format!(
                "{who} answered at revision {now} and was at {reached} before: it was wiped or \
                 restored"
            );
            WriteLoss { why, reached }
        })
    }

    /// Remembers the first sign that the store lost writes, until the process ends, and returns it.
    pub(super) fn lost(&self, sign: Option<WriteLoss>) -> Option<WriteLoss> {
        if let Some(sign) = sign {
            drop(self.lost.set(sign));
        }
        self.lost.get().cloned()
    }

    /// Returns why the store that was found is not the one that was opened; `None` if it is.
    pub(super) fn differs(&self, found: Option<&str>) -> Option<String> {
        let who = self.who;
        match (self.id(), found) {
            (None, _) => None,
            (Some(known), Some(found)) if known == found => None,
            (Some(known), Some(found)) => {
                Some(format!("{who} holds the store {found:?}, not {known:?} as before"))
            }
            (Some(known), None) => Some(format!("{}, where {known:?} was", self.nothing())),
        }
    }

    /// Returns the reason for an error where no store was ever made.
    fn nothing(&self) -> String {
        format!("{} holds no store of ours", self.who)
    }

    /// Returns the error for a store that was never made.
    pub(super) fn absent(&self) -> Error {
        Error::Replaced { reason: self.nothing() }
    }

    /// Returns the id of the store that was seen. Fails if that store was lost or replaced.
    pub(super) fn id_of(&self, sight: StoreStatus) -> Result<String> {
        let StoreStatus { id, revision: _, other, lost } = sight;
        match other.or(lost.map(|lost| lost.why)) {
            Some(reason) => Err(Error::Replaced { reason }),
            None => id.ok_or_else(|| self.absent()),
        }
    }

    /// Returns the error for a replaced store. Raises the alarm before the caller gets its answer.
    pub(super) fn replaced(&self, reason: String) -> Error {
        if let Some(alarm) = self.alarm.get() {
            alarm(&reason);
        }
        Error::Replaced { reason }
    }

    pub(super) fn on_replaced(&self, alarm: ReplacementAlarm) {
        // One guard watches over a store; a second one would be told nothing.
        drop(self.alarm.set(alarm));
    }
}
