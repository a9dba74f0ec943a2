//! What is done about a panic in the pilot: the same program begins anew in the same process,
//! and the database runs on.
//!
//! No other task does the work of one that panicked, and a pilot that went on without it would be
//! deaf to whatever that task heard. All that the pilot knows is handed over as to a newer program
//! (see [`takeover`](crate::pilot::process::takeover)). Where the hand-over cannot be in time, or
//! did not help, the database is stopped in order and the pilot ends, so that its container is
//! started again.

use std::time::Duration;

use nix::libc::{SIGINT, SIGKILL, SIGTERM};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tracing::{error, warn};

use super::{NodeRunner, RunnerMessage, handover::NextProgram};
use crate::{
    error::exit::SOFTWARE,
    pilot::{
        node::machine::MachineEvent,
        process::supervisor::{SignalStream, write_termination_log},
    },
    runtime::TaskGroup,
};

/// Most new beginnings in a row: they do not help against a panic that comes back each time.
const MOST: u32 = 5;
/// How long a program must run without a panic for the next one to count as the first again.
const FORGIVEN: Duration = Duration::from_secs(600);
/// How long the pilot waits for a moment in which it can hand the database over, and the pause
/// between two looks.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(250);
/// How long beyond its grace period the pilot waits for a database that is stopped for good.
const MARGIN: Duration = Duration::from_secs(5);

pub(super) struct PanicRecovery {
    panics: watch::Receiver<u32>,
    /// How often in a row this program began anew; that counts until `until`.
    times: u32,
    until: Instant,
    stage: RecoveryStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecoveryStage {
    Whole,
    /// A task has panicked. The pilot waits for a moment to hand the database over.
    Broken {
        until: Instant,
        next: Instant,
    },
    /// The database is being stopped for good.
    Ending {
        until: Instant,
    },
}

impl PanicRecovery {
    pub(super) fn new(tasks: &TaskGroup) -> Self {
        let until = Instant::now() + FORGIVEN;
        Self { panics: tasks.subscribe_panics(), times: 0, until, stage: RecoveryStage::Whole }
    }

    /// Records that this program began anew for the `times`-th time in a row.
    pub(super) fn set_times(&mut self, times: u32) {
        self.times = times;
    }

    /// Waits until something is to be done. Cancel-safe.
    pub(super) async fn wait_until_due(&mut self) {
        match self.stage {
            RecoveryStage::Whole => {
                if self.panics.wait_for(|count| *count > 0).await.is_err() {
                    // Without a sender no task can panic any more.
                    std::future::pending::<()>().await;
                }
            }
            RecoveryStage::Broken { next, .. } => sleep_until(next).await,
            RecoveryStage::Ending { until } => sleep_until(until).await,
        }
    }

    /// Returns the exit code, where the machine says `code`: after the pilot gave up it is never 0.
    pub(super) fn exit_code(&self, code: u8) -> u8 {
        let has_failed = matches!(self.stage, RecoveryStage::Ending { .. }) && code == 0;
        if has_failed { SOFTWARE } else { code }
    }

    /// Returns the number of the next beginning anew; `None` when there were enough.
    fn next(&self) -> Option<u32> {
        let times = if Instant::now() < self.until { self.times } else { 0 };
        (times < MOST).then_some(times + 1)
    }
}

impl NodeRunner {
    /// Takes the next step after a panic. Returns the exit code when nothing else is left.
    pub(super) async fn recover_from_panic(&mut self) -> Option<u8> {
        let now = Instant::now();
        match (self.recovery.stage, self.recovery.next()) {
            (RecoveryStage::Ending { .. }, _) => {
                error!("Database does not end");
                return Some(SOFTWARE);
            }
            (_, None) => self.give_up("panicked again and again"),
            (RecoveryStage::Whole, Some(panics)) => {
                warn!(panics, "A task panicked; the pilot begins anew beside its database");
                self.recovery.stage = RecoveryStage::Broken { until: now + PATIENCE, next: now };
            }
            (RecoveryStage::Broken { until, .. }, _) if now >= until => {
                self.give_up("panicked, and could not hand over its database");
            }
            (RecoveryStage::Broken { until, .. }, Some(panics)) => {
                self.pass_on(NextProgram::Itself { panics }).await;
                self.recovery.stage = RecoveryStage::Broken { until, next: now + LOOK };
            }
        }
        None
    }

    /// Gives up: stops the database and the pilot in order, as on a TERM.
    fn give_up(&mut self, reason: &str) {
        self.leave_reason(reason);
        let until = Instant::now() + self.ctx.settings.grace + MARGIN;
        self.recovery.stage = RecoveryStage::Ending { until };
        self.handle_event(MachineEvent::Signal(SIGTERM));
    }

    fn leave_reason(&self, why: &str) {
        error!(why, "Pilot gives up; the database is stopped");
        let text = format!("the pilot {why}; its log says where");
        if let Err(error) = write_termination_log(&self.ctx.settings.termination_log, &text) {
            warn!(%error, "Termination log cannot be written");
        }
    }

    /// Goes on after a panic of the loop itself, whose last step is half done: tries to begin anew,
    /// or stops the database with as little as that takes. Returns the exit code.
    pub(super) async fn survive_loop_panic(&mut self, signals: &mut SignalStream) -> u8 {
        error!("The pilot's loop panicked");
        let deadline = Instant::now() + PATIENCE;
        while let Some(panics) = self.recovery.next().filter(|_| Instant::now() < deadline) {
            self.pass_on(NextProgram::Itself { panics }).await;
            tokio::select! {
                Some(message) = self.inbox.recv() => self.hear_out(message),
                signal = self.ctx.supervisor.next_signal(signals) => {
                    if matches!(signal.number, SIGTERM | SIGINT) {
                        break;
                    }
                    if let Some(child) = &self.running.child {
                        self.ctx.supervisor.signal_child(child.pid, signal.number);
                    }
                }
                _ = self.running.wait_for_exit() => {
                    self.running.child = None;
                    break;
                }
                () = sleep(LOOK) => {}
            }
        }
        self.leave_reason("panicked, and could not hand over its database");
        let Some(pid) = self.running.child.as_ref().map(|child| child.pid) else { return SOFTWARE };
        let limits = self.state.limits();
        let kill_time = Instant::now() + limits.kill_after();
        for step in 0.. {
            let Some(signal) = limits.stop_signal(step) else { break };
            self.ctx.supervisor.signal_child(pid, signal);
            let deadline = limits.signal_for(step).map_or(kill_time, |wait| Instant::now() + wait);
            if timeout_at(deadline, self.child_ends(signals)).await.is_ok() {
                self.ctx.supervisor.signal_group(pid, SIGKILL);
                return SOFTWARE;
            }
        }
        self.ctx.supervisor.signal_group(pid, SIGKILL);
        self.child_ends(signals).await;
        SOFTWARE
    }

    /// Takes the only message that matters to the next program after a panic of the loop: a
    /// database that was taken over can be handed over again only when the records on its volume
    /// were read.
    fn hear_out(&mut self, message: RunnerMessage) {
        if let RunnerMessage::Recalled(recalled) = message
            && self.running.child.is_some()
        {
            self.ledger.take_recalled(*recalled);
            self.wanted.take_update();
        }
    }

    /// Waits for the child's end. Signals are of no interest any more, and must be read for the
    /// child to be reaped.
    async fn child_ends(&mut self, signals: &mut SignalStream) {
        loop {
            tokio::select! {
                _ = self.running.wait_for_exit() => return,
                _ = self.ctx.supervisor.next_signal(signals) => {}
            }
        }
    }
}
