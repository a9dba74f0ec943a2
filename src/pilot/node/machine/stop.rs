//! How a node's process, and the pilot with it, come to their end.
//!
//! Owns the order: drain, TERM, KILL; a TERM for the pilot, and one that comes again.

use nix::libc;

use super::{Effect, Exit, Life, Stage, State, Timer};

impl State {
    pub(super) fn signal(&mut self, signal: i32, effects: &mut Vec<Effect>) {
        let asks_to_end = matches!(signal, libc::SIGTERM | libc::SIGINT);
        if !asks_to_end {
            effects.extend(self.pid().map(|pid| Effect::Signal { pid, signal }));
            return;
        }
        let again = std::mem::replace(&mut self.ending, true);
        match &mut self.life {
            Life::Up(up) => {
                let pid = up.pid;
                self.stop(pid, effects);
            }
            Life::Stopping { pid, stage: stage @ Stage::Drain } if again => {
                // Whoever asks twice does not want to wait for the drain.
                *stage = Stage::Term;
                effects.push(Effect::Disarm(Timer::Drain));
                effects.push(Effect::Signal { pid: *pid, signal: libc::SIGTERM });
            }
            Life::Stopping { pid, stage } => {
                if !again {
                    // The container's clock runs from now, whenever this stop began.
                    effects.push(Effect::Arm(Timer::Kill, self.limits.kill_after()));
                } else if *stage == Stage::Term {
                    effects.push(Effect::Signal { pid: *pid, signal: libc::SIGTERM });
                }
            }
            Life::Preparing { .. } => self.cancel_preparation(effects),
            // Answered by Spawned or SpawnFailed at once.
            Life::Spawning | Life::Exited(_) => {}
            _ => self.exit(0, effects),
        }
    }

    /// Stops in order: drain, TERM, KILL.
    pub(super) fn stop(&mut self, pid: i32, effects: &mut Vec<Effect>) {
        silence(effects);
        self.life = Life::Stopping { pid, stage: Stage::Drain };
        effects.push(Effect::Arm(Timer::Drain, self.limits.drain_for()));
        effects.push(Effect::Arm(Timer::Kill, self.limits.kill_after()));
        effects.push(Effect::Drain);
    }

    /// Stops without a drain: it would not be heard, or there is nothing to drain.
    pub(super) fn terminate(&mut self, pid: i32, effects: &mut Vec<Effect>) {
        silence(effects);
        self.life = Life::Stopping { pid, stage: Stage::Term };
        effects.push(Effect::Arm(Timer::Kill, self.limits.kill_after()));
        effects.push(Effect::Signal { pid, signal: libc::SIGTERM });
    }

    /// The child is gone: nothing of its group may outlive it, or the next one would find the
    /// data in use. A TERM went to it before, or it ended by itself.
    pub(super) fn ended(&mut self, pid: i32, exit: Exit, effects: &mut Vec<Effect>) {
        silence(effects);
        effects.extend([Effect::Disarm(Timer::Drain), Effect::Disarm(Timer::Kill)]);
        effects.push(Effect::SignalGroup { pid, signal: libc::SIGKILL });
        if self.ending {
            self.exit(exit.answer(true), effects);
        }
    }

    pub(super) fn exit(&mut self, code: u8, effects: &mut Vec<Effect>) {
        self.life = Life::Exited(code);
        effects.push(Effect::Exit(code));
    }
}

/// A database that is being stopped is not asked how it is.
fn silence(effects: &mut Vec<Effect>) {
    let timers = [Timer::Hung, Timer::Retire, Timer::Recheck, Timer::Freed];
    effects.extend(timers.map(Effect::Disarm));
}
