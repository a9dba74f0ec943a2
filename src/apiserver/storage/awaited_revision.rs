//! The revision that readers wait for watches to reach.

use tokio::sync::watch;

use super::Revision;

/// The latest revision that readers wait for watches to reach. Clones share it.
#[derive(Clone, Default)]
pub(super) struct AwaitedRevision(watch::Sender<Revision>);

impl AwaitedRevision {
    /// Wakes watches that have not come to `revision`, unless a later one is waited for already.
    pub(super) fn raise_to(&self, revision: Revision) {
        self.0.send_if_modified(|current| {
            let is_later = revision > *current;
            *current = revision.max(*current);
            is_later
        });
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Revision> {
        self.0.subscribe()
    }
}
