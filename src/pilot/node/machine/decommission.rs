//! How a node gives its data away, and how a decommission is taken back.
//!
//! The process of a node that has left runs until the leaving is written down. Owns the questions
//! to the database: one is under way at a time, and an intent that changes meanwhile is heeded when
//! the question is answered. A decommission ends when the node has left or when the database
//! confirmed that it stays; once it is too late to stay, the decommission is followed to its end
//! whatever is wanted.

use super::{DECOMMISSION_POLL, DECOMMISSION_RETRY, Effect, Event, Life, State, Timer, Want};

/// Where a decommission stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decommissioning {
    /// The database is being asked, to leave or to stay.
    asking: bool,
    /// It is too late for the node to stay.
    binding: bool,
    /// The node has left, which is being written down; nothing else is asked.
    recording: bool,
}

impl Decommissioning {
    /// The database is being asked; nothing else is known.
    pub const ASKING: Self = Self { asking: true, binding: false, recording: false };

    /// Has the node left, with its process running on until the disk says so?
    pub(super) fn is_recording(self) -> bool {
        self.recording
    }
}

impl State {
    pub fn is_decommissioning(&self) -> bool {
        matches!(&self.life, Life::Up(up) if up.decommissioning.is_some())
    }

    /// Called when the intent may have changed, or the database answered.
    pub(super) fn review_decommission(&mut self, effects: &mut Vec<Effect>) {
        let leaves = self.want == Some(Want::Decommissioned);
        let Life::Up(up) = &mut self.life else { return };
        match &mut up.decommissioning {
            None if leaves && up.answered => {
                up.decommissioning = Some(Decommissioning::ASKING);
                effects.push(Effect::Decommission);
            }
            Some(decommissioning)
                if !leaves && !decommissioning.asking && !decommissioning.binding =>
            {
                decommissioning.asking = true;
                effects.extend([Effect::Disarm(Timer::Decommission), Effect::CancelDecommission]);
            }
            _ => {}
        }
    }

    /// The leaving of the node is on the disk: no later start can miss it.
    pub(super) fn recorded(&mut self, effects: &mut Vec<Effect>) {
        let Life::Up(up) = &self.life else { return };
        if up.decommissioning.is_some_and(Decommissioning::is_recording) {
            let pid = up.pid;
            // There is nothing left to flush.
            self.terminate(pid, effects);
        }
    }

    /// Takes an answer of the database, or the timer to ask again.
    pub(super) fn decommission_answered(&mut self, event: &Event, effects: &mut Vec<Effect>) {
        let leaves = self.want == Some(Want::Decommissioned);
        let Life::Up(up) = &mut self.life else { return };
        let Some(decommissioning) = &mut up.decommissioning else { return };
        if decommissioning.recording {
            return;
        }
        let effect = match event {
            Event::DecommissionDone => {
                self.decommissioned = true;
                *decommissioning = Decommissioning { recording: true, ..Decommissioning::ASKING };
                effects.push(Effect::RecordDecommissioned);
                return;
            }
            Event::DecommissionCancelled if !leaves => {
                up.decommissioning = None;
                return;
            }
            Event::DecommissionIrreversible => {
                decommissioning.binding = true;
                Effect::Decommission
            }
            Event::DecommissionMoving | Event::DecommissionRefused
                if !leaves && !decommissioning.binding =>
            {
                Effect::CancelDecommission
            }
            Event::DecommissionMoving => Effect::Arm(Timer::Decommission, DECOMMISSION_POLL),
            Event::DecommissionRefused | Event::CancelFailed => {
                Effect::Arm(Timer::Decommission, DECOMMISSION_RETRY)
            }
            _ if leaves => Effect::Decommission,
            _ => Effect::CancelDecommission,
        };
        decommissioning.asking = !matches!(effect, Effect::Arm(..));
        effects.push(effect);
    }
}
