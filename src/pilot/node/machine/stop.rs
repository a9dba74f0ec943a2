//! How a node's process, and the pilot with it, come to their end.
//!
//! Owns the order: flush, the signals of the database, KILL; a TERM for the pilot, and a second
//! TERM.

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
            // A second TERM asks not to wait: the next step of the stop comes at once.
            Life::Stopping { .. } if again => self.press(effects),
            // The container's clock runs from now, whenever this stop began.
            Life::Stopping { .. } => {
                let limits = self.limits.stopping(self.hung);
                effects.push(Effect::Arm(Timer::Kill, limits.kill_after()));
            }
            Life::Preparing { .. } => self.cancel_preparation(effects),
            // Answered by Spawned or SpawnFailed at once.
            Life::Spawning | Life::Exited(_) => {}
            _ => self.exit(0, effects),
        }
    }

    /// Stops in order: flush, signals, KILL.
    pub(super) fn stop(&mut self, pid: i32, effects: &mut Vec<Effect>) {
        if self.limits.stop.flush.is_zero() {
            self.terminate(pid, effects);
            return;
        }
        silence(effects);
        self.life = Life::Stopping { pid, stage: Stage::Flush };
        effects.push(Effect::Arm(Timer::Flush, self.limits.flush_for()));
        effects.push(Effect::Arm(Timer::Kill, self.limits.kill_after()));
        effects.push(Effect::Flush);
    }

    /// Stops without a flush: the database would not hear of one, or there is nothing to flush.
    pub(super) fn terminate(&mut self, pid: i32, effects: &mut Vec<Effect>) {
        silence(effects);
        let limits = self.limits.stopping(self.hung);
        effects.push(Effect::Arm(Timer::Kill, limits.kill_after()));
        self.ask_to_end(pid, 0, effects);
    }

    /// Goes to the next step of a stop without waiting for the last one: from the flush to the
    /// first signal, from a signal to a stronger one, or to the last one again.
    pub(super) fn press(&mut self, effects: &mut Vec<Effect>) {
        let Life::Stopping { pid, stage } = self.life else { return };
        let last = self.limits.stop.then.len();
        match stage {
            Stage::Flush => {
                effects.push(Effect::Disarm(Timer::Flush));
                self.ask_to_end(pid, 0, effects);
            }
            Stage::Signal(step) => self.ask_to_end(pid, (step + 1).min(last), effects),
            Stage::Kill => {}
        }
    }

    fn ask_to_end(&mut self, pid: i32, step: usize, effects: &mut Vec<Effect>) {
        self.life = Life::Stopping { pid, stage: Stage::Signal(step) };
        let limits = self.limits.stopping(self.hung);
        effects.extend(limits.signal(step).map(|signal| Effect::Signal { pid, signal }));
        effects.extend(limits.signal_for(step).map(|wait| Effect::Arm(Timer::Signal, wait)));
    }

    /// Kills a process that has outlived its time.
    pub(super) fn kill(&mut self, effects: &mut Vec<Effect>) {
        if matches!(self.life, Life::Stopping { stage: Stage::Flush, .. }) {
            self.press(effects);
        }
        let Life::Stopping { pid, stage } = &mut self.life else { return };
        *stage = Stage::Kill;
        effects.push(Effect::Disarm(Timer::Signal));
        effects.push(Effect::SignalGroup { pid: *pid, signal: libc::SIGKILL });
    }

    /// The child has ended, as it was asked to or by itself. No process of its group may outlive
    /// it, or the next child would find the data in use.
    pub(super) fn ended(&mut self, pid: i32, exit: Exit, effects: &mut Vec<Effect>) {
        silence(effects);
        self.hung = false;
        effects.extend([Timer::Flush, Timer::Signal, Timer::Kill].map(Effect::Disarm));
        effects.push(Effect::SignalGroup { pid, signal: libc::SIGKILL });
        if self.ending {
            self.exit(exit.answer(self.limits.stop.success), effects);
        }
    }

    pub(super) fn exit(&mut self, code: u8, effects: &mut Vec<Effect>) {
        self.life = Life::Exited(code);
        effects.push(Effect::Exit(code));
    }
}

/// A database that is being stopped is not asked how it is.
fn silence(effects: &mut Vec<Effect>) {
    let timers = [Timer::Hung, Timer::Decommission, Timer::Recheck, Timer::Freed];
    effects.extend(timers.map(Effect::Disarm));
}
