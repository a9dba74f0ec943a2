//! How a node gives its data away, and how a decommission is taken back.
//!
//! The process of a node that has left runs until the leaving is written down. Owns the questions
//! to the database: one is under way at a time, and an intent that changes meanwhile is heeded when
//! the question is answered. A decommission ends when the node has left or when the database
//! confirmed that it stays; once it is too late to stay, the decommission is followed to its end
//! whatever is wanted.

use super::{
    DECOMMISSION_POLL, DECOMMISSION_RETRY, MachineEffect, MachineEvent, MachineTimer, NodeIntent,
    NodeMachine, NodePhase,
};

/// Where a decommission stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingDecommission {
    /// The database is being asked, to leave or to stay.
    asking: bool,
    /// It is too late for the node to stay.
    binding: bool,
    /// The node has left, which is being written down; nothing else is asked.
    recording: bool,
}

impl PendingDecommission {
    /// The database is being asked; nothing else is known.
    pub const ASKING: Self = Self { asking: true, binding: false, recording: false };

    /// Has the node left, with its process running on until the disk says so?
    pub(super) fn is_recording(self) -> bool {
        self.recording
    }
}

impl NodeMachine {
    pub fn is_decommissioning(&self) -> bool {
        matches!(&self.life, NodePhase::Up(up) if up.decommissioning.is_some())
    }

    /// Begins a decommission that is wanted, or takes one back that no longer is. Called when the
    /// intent may have changed, or the database answered.
    pub(super) fn review_decommission(&mut self, effects: &mut Vec<MachineEffect>) {
        let is_decommission_desired = self.want == Some(NodeIntent::Decommissioned);
        let NodePhase::Up(up) = &mut self.life else { return };
        match &mut up.decommissioning {
            None if is_decommission_desired && up.answered => {
                up.decommissioning = Some(PendingDecommission::ASKING);
                effects.push(MachineEffect::Decommission);
            }
            Some(decommissioning)
                if !is_decommission_desired
                    && !decommissioning.asking
                    && !decommissioning.binding =>
            {
                decommissioning.asking = true;
                effects.extend([
                    MachineEffect::Disarm(MachineTimer::Decommission),
                    MachineEffect::CancelDecommission,
                ]);
            }
            _ => {}
        }
    }

    /// Ends the process of a node that has left, now that the leaving is on the disk, where no
    /// later start can miss it, or could not be written there for long.
    pub(super) fn finish_decommission(&mut self, effects: &mut Vec<MachineEffect>) {
        let NodePhase::Up(up) = &self.life else { return };
        if up.decommissioning.is_some_and(PendingDecommission::is_recording) {
            let pid = up.pid;
            // There is nothing left to flush.
            self.terminate_process(pid, effects);
        }
    }

    /// Decides what to ask next, after an answer of the database or when it is time to ask again.
    pub(super) fn handle_decommission_answer(
        &mut self,
        event: &MachineEvent,
        effects: &mut Vec<MachineEffect>,
    ) {
        let is_decommission_desired = self.want == Some(NodeIntent::Decommissioned);
        let NodePhase::Up(up) = &mut self.life else { return };
        let Some(decommissioning) = &mut up.decommissioning else { return };
        if decommissioning.recording {
            return;
        }
        let effect = match event {
            MachineEvent::DecommissionDone => {
                self.decommissioned = true;
                *decommissioning =
                    PendingDecommission { recording: true, ..PendingDecommission::ASKING };
                effects.push(MachineEffect::RecordDecommissioned);
                return;
            }
            MachineEvent::DecommissionCancelled if !is_decommission_desired => {
                up.decommissioning = None;
                return;
            }
            MachineEvent::DecommissionIrreversible => {
                decommissioning.binding = true;
                MachineEffect::Decommission
            }
            MachineEvent::DecommissionMoving | MachineEvent::DecommissionRefused
                if !is_decommission_desired && !decommissioning.binding =>
            {
                MachineEffect::CancelDecommission
            }
            MachineEvent::DecommissionMoving => {
                MachineEffect::Arm(MachineTimer::Decommission, DECOMMISSION_POLL)
            }
            MachineEvent::DecommissionRefused | MachineEvent::CancelFailed => {
                MachineEffect::Arm(MachineTimer::Decommission, DECOMMISSION_RETRY)
            }
            _ if is_decommission_desired => MachineEffect::Decommission,
            _ => MachineEffect::CancelDecommission,
        };
        decommissioning.asking = !matches!(effect, MachineEffect::Arm(..));
        effects.push(effect);
    }
}
