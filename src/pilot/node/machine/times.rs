//! How long a node's life lets things take.
//!
//! What a database and a container set is in [`Limits`]; the rest is the same for every node.

use std::time::Duration;

/// Times that a database and a container set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From TERM until the container is killed.
    pub grace: Duration,
    /// How long a drain may take.
    pub drain: Duration,
    /// Silence after which a database that had answered counts as hung.
    pub silence: Duration,
}

impl Limits {
    /// The kubelet kills everything at the end of the grace period; two seconds are left for
    /// reporting it.
    pub(super) fn kill_after(self) -> Duration {
        self.grace.saturating_sub(crate::pilot::process::init::KILL_MARGIN)
    }

    /// A drain may take all but a quarter of the time, so that TERM always has some.
    pub(super) fn drain_for(self) -> Duration {
        self.drain.min(self.kill_after() * 3 / 4)
    }

    /// From CONT and the thread dump until the restart.
    pub(super) fn dump_wait(self) -> Duration {
        DUMP_WAIT.min(self.silence)
    }
}

/// [`Limits::silence`] unless somebody says otherwise: longer than the pauses of a garbage
/// collector on a large heap.
pub const SILENCE: Duration = Duration::from_secs(90);
/// From the moment that a full volume has room again until a database that does not serve by then
/// is restarted.
pub const FREED_WAIT: Duration = Duration::from_secs(30);
/// From CONT and the thread dump until the restart: a stopped process has answered by then.
const DUMP_WAIT: Duration = Duration::from_secs(20);
/// Until a refused preflight or configuration is tried again.
pub const RECHECK: Duration = Duration::from_secs(10);
/// Between two looks at a retirement.
pub const RETIRE_POLL: Duration = Duration::from_secs(2);
/// After a refused retirement.
pub const RETIRE_RETRY: Duration = Duration::from_secs(15);
/// First and longest wait before a database that crashed is started again.
pub const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
