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
    pub(super) fn new(store_name: &'static str) -> Self {
        Self {
            who: store_name,
            id: OnceLock::new(),
            lost: OnceLock::new(),
            latest: AtomicU64::new(0),
            alarm: OnceLock::new(),
        }
    }

    /// Keeps the id of the store that was found first, and returns it: this store stays the one
    /// that is meant.
    pub(super) fn pin_id(&self, id: String) -> String {
        self.id.get_or_init(|| id).clone()
    }

    /// Returns the id that every answer must come with; `None` until the store is opened.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.get().map(String::as_str)
    }

    pub(super) fn latest_revision(&self) -> Revision {
        Revision(self.latest.load(Ordering::SeqCst))
    }

    /// Records that the store that was opened has shown `revision`.
    pub(super) fn record_revision(&self, revision: Revision) {
        self.latest.fetch_max(revision.0, Ordering::SeqCst);
    }

    /// Fails if the store is known to have lost writes.
    pub(super) fn check_loss(&self) -> Result<()> {
        match self.lost.get() {
            Some(write_loss) => Err(self.replaced_error(write_loss.why.clone())),
            None => Ok(()),
        }
    }

    /// Returns the sign of loss in an answer at `answer_revision`, if `answer_revision` is below
    /// `min_revision`, the lowest revision that it can show.
    pub(super) fn detect_rollback(
        &self,
        min_revision: Revision,
        answer_revision: Revision,
    ) -> Option<WriteLoss> {
        let (store_name, reached) = (self.who, self.latest_revision());
        (self.id.get().is_some() && answer_revision < min_revision).then(|| {
            let reason = format!(
                "{store_name} answered at revision {answer_revision} and was at {reached} before: it was wiped or \
                 restored"
            );
            WriteLoss { why: reason, reached }
        })
    }

    /// Remembers the first sign that the store lost writes, until the process ends, and returns it.
    pub(super) fn first_loss(&self, write_loss: Option<WriteLoss>) -> Option<WriteLoss> {
        if let Some(write_loss) = write_loss {
            drop(self.lost.set(write_loss));
        }
        self.lost.get().cloned()
    }

    /// Returns why the store that was found is not the one that was opened; `None` if it is.
    pub(super) fn id_mismatch(&self, actual_id: Option<&str>) -> Option<String> {
        let store_name = self.who;
        match (self.id(), actual_id) {
            (None, _) => None,
            (Some(expected_id), Some(actual_id)) if expected_id == actual_id => None,
            (Some(expected_id), Some(actual_id)) => Some(format!(
                "{store_name} holds the store {actual_id:?}, not {expected_id:?} as before"
            )),
            (Some(expected_id), None) => {
                Some(format!("{}, where {expected_id:?} was", self.missing_reason()))
            }
        }
    }

    /// Returns the reason for an error where no store was ever made.
    fn missing_reason(&self) -> String {
        format!("{} holds no store of ours", self.who)
    }

    /// Returns the error for a store that was never made.
    pub(super) fn missing_error(&self) -> Error {
        Error::Replaced { reason: self.missing_reason() }
    }

    /// Returns the id of the store that was seen. Fails if that store was lost or replaced.
    pub(super) fn require_id(&self, status: StoreStatus) -> Result<String> {
        let StoreStatus { id, revision: _, other, lost } = status;
        match other.or(lost.map(|lost| lost.why)) {
            Some(reason) => Err(Error::Replaced { reason }),
            None => id.ok_or_else(|| self.missing_error()),
        }
    }

    /// Returns the error for a replaced store. Raises the alarm before the caller gets its answer.
    pub(super) fn replaced_error(&self, reason: String) -> Error {
        if let Some(alarm) = self.alarm.get() {
            alarm(&reason);
        }
        Error::Replaced { reason }
    }

    pub(super) fn on_replaced(&self, alarm: ReplacementAlarm) {
        // A store has one guard; a second one would receive no alarm.
        drop(self.alarm.set(alarm));
    }
}
