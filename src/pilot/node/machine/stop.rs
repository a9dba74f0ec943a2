//! How a node's process, and the pilot with it, come to their end.
//!
//! Owns the order: flush, the signals of the database, KILL; a TERM for the pilot, and a second
//! TERM.

use nix::libc;

use super::{
    ChildExit, MachineEffect, MachineTimer, NodeMachine, NodePhase, StopStage, TimeLimits,
};

impl NodeMachine {
    pub(super) fn handle_signal(&mut self, signal: i32, effects: &mut Vec<MachineEffect>) {
        let is_end_request = matches!(signal, libc::SIGTERM | libc::SIGINT);
        if !is_end_request {
            effects.extend(self.pid().map(|pid| MachineEffect::Signal { pid, signal }));
            return;
        }
        let is_repeated = std::mem::replace(&mut self.ending, true);
        match &mut self.life {
            NodePhase::Up(up) => {
                let pid = up.pid;
                self.stop_process(pid, effects);
            }
            // A second TERM asks not to wait: the next step of the stop comes at once.
            NodePhase::Stopping { .. } if is_repeated => self.advance_stop(effects),
            // The container's clock runs from now, whenever this stop began.
            NodePhase::Stopping { .. } => {
                let limits = self.stop_limits();
                effects.push(MachineEffect::Arm(MachineTimer::Kill, limits.kill_after()));
            }
            NodePhase::Preparing { .. } => self.cancel_preparation(effects),
            // Answered by Spawned or SpawnFailed at once.
            NodePhase::Spawning | NodePhase::Exited(_) => {}
            _ => self.exit_pilot(0, effects),
        }
    }

    /// Stops in order: flush, signals, KILL.
    pub(super) fn stop_process(&mut self, pid: i32, effects: &mut Vec<MachineEffect>) {
        if self.limits.stop.flush.is_zero() {
            self.terminate_process(pid, effects);
            return;
        }
        disarm_timers(effects);
        self.life = NodePhase::Stopping { pid, stage: StopStage::Flush };
        effects.push(MachineEffect::Arm(MachineTimer::Flush, self.limits.flush_for()));
        effects.push(MachineEffect::Arm(MachineTimer::Kill, self.limits.kill_after()));
        effects.push(MachineEffect::Flush);
    }

    /// Stops without a flush: the database would not hear of one, or there is nothing to flush.
    pub(super) fn terminate_process(&mut self, pid: i32, effects: &mut Vec<MachineEffect>) {
        disarm_timers(effects);
        let limits = self.stop_limits();
        effects.push(MachineEffect::Arm(MachineTimer::Kill, limits.kill_after()));
        self.ask_to_end(pid, 0, effects);
    }

    /// Goes to the next step of a stop without waiting for the last one: from the flush to the
    /// first signal, from a signal to a stronger one, or to the last one again.
    pub(super) fn advance_stop(&mut self, effects: &mut Vec<MachineEffect>) {
        let NodePhase::Stopping { pid, stage } = self.life else { return };
        let last_step = self.limits.stop.then.len();
        match stage {
            StopStage::Flush => {
                effects.push(MachineEffect::Disarm(MachineTimer::Flush));
                self.ask_to_end(pid, 0, effects);
            }
            StopStage::Signal(step) => self.ask_to_end(pid, (step + 1).min(last_step), effects),
            StopStage::Kill => {}
        }
    }

    /// Returns the limits of the present stop. A database that hangs is not waited for long, nor one
    /// whose node has left: it holds nothing any more.
    fn stop_limits(&self) -> TimeLimits {
        self.limits.for_stop(self.hung || self.decommissioned)
    }

    fn ask_to_end(&mut self, pid: i32, step: usize, effects: &mut Vec<MachineEffect>) {
        self.life = NodePhase::Stopping { pid, stage: StopStage::Signal(step) };
        let limits = self.stop_limits();
        effects
            .extend(limits.stop_signal(step).map(|signal| MachineEffect::Signal { pid, signal }));
        effects.extend(
            limits.signal_for(step).map(|wait| MachineEffect::Arm(MachineTimer::Signal, wait)),
        );
    }

    /// Kills a process that has outlived its time.
    pub(super) fn kill_process(&mut self, effects: &mut Vec<MachineEffect>) {
        if matches!(self.life, NodePhase::Stopping { stage: StopStage::Flush, .. }) {
            self.advance_stop(effects);
        }
        let NodePhase::Stopping { pid, stage } = &mut self.life else { return };
        *stage = StopStage::Kill;
        effects.push(MachineEffect::Disarm(MachineTimer::Signal));
        effects.push(MachineEffect::SignalGroup { pid: *pid, signal: libc::SIGKILL });
    }

    /// Cleans up after a child that has ended, as it was asked to or by itself. No process of its
    /// group may outlive it, or the next child would find the data in use.
    pub(super) fn handle_exit(
        &mut self,
        pid: i32,
        exit: ChildExit,
        effects: &mut Vec<MachineEffect>,
    ) {
        disarm_timers(effects);
        self.hung = false;
        effects.extend(
            [MachineTimer::Flush, MachineTimer::Signal, MachineTimer::Kill]
                .map(MachineEffect::Disarm),
        );
        effects.push(MachineEffect::SignalGroup { pid, signal: libc::SIGKILL });
        if self.ending {
            self.exit_pilot(exit.pilot_exit_code(self.limits.stop.success), effects);
        }
    }

    pub(super) fn exit_pilot(&mut self, code: u8, effects: &mut Vec<MachineEffect>) {
        self.life = NodePhase::Exited(code);
        effects.push(MachineEffect::Exit(code));
    }
}

/// Disarms the timers of a running database: one that is being stopped is not asked anything.
fn disarm_timers(effects: &mut Vec<MachineEffect>) {
    let timers = [
        MachineTimer::Hung,
        MachineTimer::Decommission,
        MachineTimer::Recheck,
        MachineTimer::Freed,
    ];
    effects.extend(timers.map(MachineEffect::Disarm));
}
