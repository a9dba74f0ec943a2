//! How one program of the pilot leaves a node's life to the next (see `pilot::takeover`).

use super::{
    MachineEffect, MachineTimer, NodeIntent, NodeMachine, NodePhase, RunningNode, TimeLimits,
};

impl NodeMachine {
    /// Is nothing under way that another program could not go on with? Without a child the other
    /// program begins anew; a stop, a crash and a suspicion are seen to their end first.
    pub fn may_be_handed_over(&self) -> bool {
        !self.ending
            && match &self.life {
                NodePhase::Up(up) => !up.suspected,
                NodePhase::Waiting
                | NodePhase::Preflight
                | NodePhase::Refused
                | NodePhase::Turn
                | NodePhase::Configuring
                | NodePhase::Rejected
                | NodePhase::Unprepared
                | NodePhase::Held(_) => true,
                NodePhase::Preparing { .. }
                | NodePhase::Spawning
                | NodePhase::Stopping { .. }
                | NodePhase::Backoff
                | NodePhase::Exited(_) => false,
            }
    }

    /// Returns the count of crashes, failed spawns and failed preparations in a row.
    pub fn failure_count(&self) -> u32 {
        self.failures
    }

    /// Makes the machine of a node whose database an earlier program started, with `want` and
    /// `restart` as that program had acted upon them; and the effects with which this program goes
    /// on.
    pub fn from_handover(
        limits: TimeLimits,
        decommissioned: bool,
        (want, restart): (NodeIntent, Option<String>),
        failures: u32,
        up: RunningNode,
    ) -> (Self, Vec<MachineEffect>) {
        let mut effects = Vec::new();
        if up.answered {
            effects.push(MachineEffect::Arm(MachineTimer::Hung, limits.silence));
        }
        if up.decommissioning.is_some() {
            // The decommission was taken back, or is past that: the database says which.
            let is_decommission_desired = want == NodeIntent::Decommissioned;
            effects.push(if is_decommission_desired {
                MachineEffect::Decommission
            } else {
                MachineEffect::CancelDecommission
            });
        }
        let machine = Self::new(limits, decommissioned);
        (Self { want: Some(want), restart, failures, life: NodePhase::Up(up), ..machine }, effects)
    }
}
