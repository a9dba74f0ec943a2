//! What a new intent means in each part of a node's life.

use super::{Effect, Held, Life, State, Timer, Want};

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
                let up = (up.pid, up.answered, up.retiring);
                self.intent_while_up(want, up, effects);
                if (changed || asked) && matches!(self.life, Life::Up(_)) {
                    self.judge(effects);
                }
            }
            // What follows is decided when these are done.
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

    fn intent_while_up(
        &mut self,
        want: Want,
        (pid, answered, retiring): (i32, bool, bool),
        effects: &mut Vec<Effect>,
    ) {
        match want {
            Want::Stopped | Want::Fenced => self.stop(pid, effects),
            Want::Decommissioned if !retiring && answered => {
                self.set_retiring(true);
                effects.push(Effect::Retire);
            }
            Want::Running if retiring => {
                self.set_retiring(false);
                effects.push(Effect::Disarm(Timer::Retire));
                effects.push(Effect::CancelRetirement);
            }
            Want::Running | Want::Decommissioned => {}
        }
    }

    fn set_retiring(&mut self, retiring: bool) {
        if let Life::Up(up) = &mut self.life {
            up.retiring = retiring;
        }
    }

    /// Asks what is to be thought of the wanted configuration, while the process runs on.
    pub(super) fn judge(&mut self, effects: &mut Vec<Effect>) {
        self.attempt += 1;
        effects.extend([Effect::Disarm(Timer::Recheck), Effect::Judge(self.attempt)]);
    }
}
