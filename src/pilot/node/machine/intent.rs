//! What a new intent means in each part of a node's life.

use super::{Decommissioning, Effect, Held, Life, State, Timer, Want};

impl State {
    pub(super) fn intent(
        &mut self,
        want: Want,
        restart: Option<String>,
        changed: bool,
        effects: &mut Vec<Effect>,
    ) {
        let first = self.want.is_none();
        let asked = !first && restart.is_some() && restart != self.restart;
        self.want = Some(want);
        self.restart = restart;
        match &mut self.life {
            Life::Up(up) => {
                up.restart |= asked;
                let pid = up.pid;
                if up.decommissioning.is_some_and(Decommissioning::is_recording) {
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
            Life::Spawning | Life::Stopping { .. } | Life::Exited(_) => {}
            Life::Waiting => self.begin(effects),
            Life::Held(held) => {
                let stays = match held {
                    Held::Decommissioned => true,
                    Held::Stopped => want == Want::Stopped,
                    Held::Fenced => want == Want::Fenced,
                };
                if !stays {
                    self.begin(effects);
                }
            }
            Life::Refused | Life::Rejected | Life::Unprepared | Life::Backoff => {
                if changed || asked || self.is_held_by(want) {
                    self.failures = 0;
                    self.begin(effects);
                }
            }
            Life::Preflight | Life::Turn | Life::Configuring => {
                if changed || self.is_held_by(want) {
                    self.begin(effects);
                }
            }
            Life::Preparing { .. } => {
                if changed || self.is_held_by(want) {
                    self.failures = 0;
                    self.cancel_preparation(effects);
                }
            }
        }
    }

    /// Has the wanted configuration validated, while the process runs on.
    pub(super) fn validate(&mut self, effects: &mut Vec<Effect>) {
        self.attempt += 1;
        effects.extend([Effect::Disarm(Timer::Recheck), Effect::Validate(self.attempt)]);
    }
}
