//! How a node gives its data away, and how that is taken back.
//!
//! Owns the questions: one is under way at a time, and an intent that changes meanwhile is
//! heeded when it is answered. A retirement ends when the node has left or when the database
//! confirmed that it stays; once it is too late to stay, it is followed to its end whatever is
//! wanted.

use super::{Effect, Event, Life, RETIRE_POLL, RETIRE_RETRY, State, Timer, Want};

/// Where a retirement stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retiring {
    /// The database is being asked, to leave or to stay.
    asking: bool,
    /// It is too late to stay.
    binding: bool,
}

impl Retiring {
    /// The database is being asked; nothing else is known.
    pub const ASKING: Self = Self { asking: true, binding: false };
}

impl State {
    pub fn is_retiring(&self) -> bool {
        matches!(&self.life, Life::Up(up) if up.retiring.is_some())
    }

    /// The intent may have changed, or the database answers.
    pub(super) fn review_retirement(&mut self, effects: &mut Vec<Effect>) {
        let leaves = self.want == Some(Want::Decommissioned);
        let Life::Up(up) = &mut self.life else { return };
        match &mut up.retiring {
            None if leaves && up.answered => {
                up.retiring = Some(Retiring::ASKING);
                effects.push(Effect::Retire);
            }
            Some(retiring) if !leaves && !retiring.asking && !retiring.binding => {
                retiring.asking = true;
                effects.extend([Effect::Disarm(Timer::Retire), Effect::CancelRetirement]);
            }
            _ => {}
        }
    }

    /// An answer, or the time to ask again.
    pub(super) fn retirement(&mut self, event: &Event, effects: &mut Vec<Effect>) {
        let leaves = self.want == Some(Want::Decommissioned);
        let Life::Up(up) = &mut self.life else { return };
        let (pid, Some(retiring)) = (up.pid, &mut up.retiring) else { return };
        let effect = match event {
            Event::RetirementLeft => {
                self.left = true;
                effects.push(Effect::RememberLeft);
                // There is nothing left to flush.
                self.terminate(pid, effects);
                return;
            }
            Event::RetirementCancelled if !leaves => {
                up.retiring = None;
                return;
            }
            Event::RetirementBinding => {
                retiring.binding = true;
                Effect::Retire
            }
            Event::RetirementMoving | Event::RetirementRefused if !leaves && !retiring.binding => {
                Effect::CancelRetirement
            }
            Event::RetirementMoving => Effect::Arm(Timer::Retire, RETIRE_POLL),
            Event::RetirementRefused | Event::CancelFailed => {
                Effect::Arm(Timer::Retire, RETIRE_RETRY)
            }
            _ if leaves => Effect::Retire,
            _ => Effect::CancelRetirement,
        };
        retiring.asking = !matches!(effect, Effect::Arm(..));
        effects.push(effect);
    }
}
