//! What a new intent means in each part of a node's life.

use super::{
    HoldReason, MachineEffect, MachineTimer, NodeIntent, NodeMachine, NodePhase,
    PendingDecommission,
};

impl NodeMachine {
    pub(super) fn apply_intent(
        &mut self,
        want: NodeIntent,
        restart: Option<String>,
        has_changed: bool,
        effects: &mut Vec<MachineEffect>,
    ) {
        let is_first_intent = self.want.is_none();
        let is_restart_requested = !is_first_intent && restart.is_some() && restart != self.restart;
        self.want = Some(want);
        self.restart = restart;
        match &mut self.life {
            NodePhase::Up(up) => {
                up.restart |= is_restart_requested;
                let pid = up.pid;
                if up.decommissioning.is_some_and(PendingDecommission::is_recording) {
                    // The process of a node that left ends soon, whatever is wanted.
                } else if self.is_held_by(want) {
                    self.stop_process(pid, effects);
                } else {
                    self.review_decommission(effects);
                    if has_changed || is_restart_requested {
                        self.request_validation(effects);
                    }
                }
            }
            // The next step is decided when the start or the stop is done.
            NodePhase::Spawning | NodePhase::Stopping { .. } | NodePhase::Exited(_) => {}
            NodePhase::Waiting => self.begin_attempt(effects),
            NodePhase::Held(reason) => {
                let is_still_held = match reason {
                    HoldReason::Decommissioned => true,
                    HoldReason::Stopped => want == NodeIntent::Stopped,
                    HoldReason::Fenced => want == NodeIntent::Fenced,
                };
                if !is_still_held {
                    self.begin_attempt(effects);
                }
            }
            NodePhase::Refused
            | NodePhase::Rejected
            | NodePhase::Unprepared
            | NodePhase::Backoff => {
                if has_changed || is_restart_requested || self.is_held_by(want) {
                    self.failures = 0;
                    self.begin_attempt(effects);
                }
            }
            NodePhase::Preflight | NodePhase::Turn | NodePhase::Configuring => {
                if has_changed || self.is_held_by(want) {
                    self.begin_attempt(effects);
                }
            }
            NodePhase::Preparing { .. } => {
                if has_changed || self.is_held_by(want) {
                    self.failures = 0;
                    self.cancel_preparation(effects);
                }
            }
        }
    }

    /// Has the wanted configuration validated, while the process runs on.
    pub(super) fn request_validation(&mut self, effects: &mut Vec<MachineEffect>) {
        self.attempt += 1;
        effects.extend([
            MachineEffect::Disarm(MachineTimer::Recheck),
            MachineEffect::Validate(self.attempt),
        ]);
    }
}
