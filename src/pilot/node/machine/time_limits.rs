//! The time limits in a node's life.
//!
//! What a database and a container set is in [`TimeLimits`]; the rest is the same for every node.

use std::time::Duration;

use crate::pilot::driver::{DumpSignal, StopPlan};

/// The time limits that the database and the container set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimits {
    /// From the pilot's TERM until the container is killed.
    pub grace: Duration,
    pub stop: StopPlan,
    /// Silence after which a database that had answered counts as hung.
    pub silence: Duration,
    /// How a database that hangs is asked to print what it is doing.
    pub dump: Option<DumpSignal>,
}

impl TimeLimits {
    /// Returns how long a stop may take before the process group gets KILL: two seconds less than
    /// the grace period, at whose end the kubelet kills the container, so that the end can be
    /// reported.
    pub fn kill_after(self) -> Duration {
        self.grace.saturating_sub(crate::pilot::process::init::KILL_MARGIN)
    }

    /// Returns the limits of a stop. With `is_hung`, for a database that does not answer, it has no
    /// flush and a shorter grace period.
    #[must_use]
    pub(super) fn for_stop(self, is_hung: bool) -> Self {
        let short_grace = HUNG_GRACE + crate::pilot::process::init::KILL_MARGIN;
        let stop = StopPlan { flush: Duration::ZERO, ..self.stop };
        if is_hung { Self { grace: self.grace.min(short_grace), stop, ..self } } else { self }
    }

    /// Returns how long a flush may take: at most three quarters of the time, so that signals
    /// always have some.
    pub(super) fn flush_for(self) -> Duration {
        self.stop.flush.min(self.kill_after() * 3 / 4)
    }

    /// Returns the signal of step `step` of a stop, from 0.
    pub fn stop_signal(self, step: usize) -> Option<i32> {
        let first_signal = std::iter::once(self.stop.signal);
        first_signal.chain(self.stop.then.iter().map(|(_, signal)| *signal)).nth(step)
    }

    /// Returns how long the signal of step `step` has before the next one is sent; `None`: there is
    /// no next one. All signals share the time that the flush leaves, so that each of them is sent.
    pub fn signal_for(self, step: usize) -> Option<Duration> {
        let signals = u32::try_from(self.stop.then.len()).unwrap_or(u32::MAX).saturating_add(1);
        let share = self.kill_after().saturating_sub(self.flush_for()) / signals;
        self.stop.then.get(step).map(|(wait, _)| share.min(*wait))
    }

    /// Returns the time from CONT and the dump until a database that stays silent is stopped.
    pub(super) fn dump_wait(self) -> Duration {
        DUMP_WAIT.min(self.silence)
    }
}

/// [`TimeLimits::silence`] where neither the Pilot nor the command line says otherwise: longer than
/// the pauses of a garbage collector on a large heap.
pub const SILENCE: Duration = Duration::from_secs(90);
/// How long a database may take to serve again after its full volume has room again; then it is
/// restarted.
pub const FREED_WAIT: Duration = Duration::from_secs(30);
/// Longest time from CONT and the dump until a silent database is stopped: a process that CONT woke
/// has answered by then.
const DUMP_WAIT: Duration = Duration::from_secs(20);
/// How long a database that was found hung has to end: a process that answers no request rarely
/// acts on a signal, and the rest of the grace period would only delay its restart.
const HUNG_GRACE: Duration = Duration::from_secs(30);
/// Pause before a refused preflight or configuration is tried again.
pub const RECHECK: Duration = Duration::from_secs(10);
/// Pause between two questions how far a decommission is.
pub const DECOMMISSION_POLL: Duration = Duration::from_secs(2);
/// Pause before a decommission that was refused, or could not be taken back, is asked for again.
pub const DECOMMISSION_RETRY: Duration = Duration::from_secs(15);
/// First and longest wait before a database that crashed is started again.
pub const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
