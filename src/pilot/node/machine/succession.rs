//! How one program of the pilot leaves a node's life to the next (see `pilot::takeover`).

use super::{Effect, Life, Limits, State, Timer, Up, Want};

impl State {
    /// Is nothing under way that another program could not go on with? Without a child the other
    /// program begins anew; a stop, a crash and a suspicion are seen to their end first.
    pub fn may_be_handed_over(&self) -> bool {
        !self.ending
            && match &self.life {
                Life::Up(up) => !up.suspected,
                Life::Waiting
                | Life::Preflight
                | Life::Refused
                | Life::Turn
                | Life::Configuring
                | Life::Rejected
                | Life::Unprepared
                | Life::Held(_) => true,
                Life::Preparing { .. }
                | Life::Spawning
                | Life::Stopping { .. }
                | Life::Backoff
                | Life::Exited(_) => false,
            }
    }

    /// Crashes in a row without having served.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The life of a node whose database an earlier program started, with `want` and `restart` as
    /// that program had acted upon them; and the effects with which this program goes on.
    pub fn resumed(
        limits: Limits,
        decommissioned: bool,
        (want, restart): (Want, Option<String>),
        failures: u32,
        up: Up,
    ) -> (Self, Vec<Effect>) {
        let mut effects = Vec::new();
        if up.answered {
            effects.push(Effect::Arm(Timer::Hung, limits.silence));
        }
        if up.decommissioning.is_some() {
            // The decommission was taken back, or is past that: the database says which.
            let leaves = want == Want::Decommissioned;
            effects.push(if leaves { Effect::Decommission } else { Effect::CancelDecommission });
        }
        let fresh = Self::new(limits, decommissioned);
        (Self { want: Some(want), restart, failures, life: Life::Up(up), ..fresh }, effects)
    }
}
