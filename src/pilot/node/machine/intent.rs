//! What a new intent means in each part of a node's life.

use super::{
    HoldReason, MachineEffect, MachineTimer, NodeIntent, NodeMachine, NodePhase,
    PendingDecommission,
};

impl NodeMachine {
    pub(super) fn intent(
        &mut self,
        want: NodeIntent,
        restart: Option<String>,
        changed: bool,
        effects: &mut Vec<MachineEffect>,
    ) {
        let first = self.want.is_none();
        let asked = !first && restart.is_some() && restart != self.restart;
        self.want = Some(want);
        self.restart = restart;
        match &mut self.life {
            NodePhase::Up(up) => {
                up.restart |= asked;
                let pid = up.pid;
                if up.decommissioning.is_some_and(PendingDecommission::is_recording) {
                    // The process of a node that left ends soon, whatever is wanted.
                } else if self.is_held_by(want) {
                    self.stop(pid, effects);
                } else {
                    self.review_decommission(effects);
                    if changed || asked {
                        self.validate(effects);
                    }
                }
            }
            // The next step is decided when the start or the stop is done.
            NodePhase::Spawning | NodePhase::Stopping { .. } | NodePhase::Exited(_) => {}
            NodePhase::Waiting => self.begin(effects),
            NodePhase::Held(held) => {
                let stays = match held {
                    HoldReason::Decommissioned => true,
                    HoldReason::Stopped => want == NodeIntent::Stopped,
                    HoldReason::Fenced => want == NodeIntent::Fenced,
                };
                if !stays {
                    self.begin(effects);
                }
            }
            NodePhase::Refused
            | NodePhase::Rejected
            | NodePhase::Unprepared
            | NodePhase::Backoff => {
                if changed || asked || self.is_held_by(want) {
                    self.failures = 0;
                    self.begin(effects);
                }
            }
            NodePhase::Preflight | NodePhase::Turn | NodePhase::Configuring => {
                if changed || self.is_held_by(want) {
                    self.begin(effects);
                }
            }
            NodePhase::Preparing { .. } => {
                if changed || self.is_held_by(want) {
                    self.failures = 0;
                    self.cancel_preparation(effects);
                }
            }
        }
    }

    /// Has the wanted configuration validated, while the process runs on.
    pub(super) fn validate(&mut self, effects: &mut Vec<MachineEffect>) {
        self.attempt += 1;
        effects.extend([
            MachineEffect::Disarm(MachineTimer::Recheck),
            MachineEffect::Validate(self.attempt),
        ]);
    }
}
