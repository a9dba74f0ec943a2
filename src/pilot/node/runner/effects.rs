//! One effect of the machine, one act of whoever it belongs to.

use tracing::{debug, error, info, warn};

use super::{Runner, ledger::Note};
use crate::pilot::{
    driver::Node,
    node::machine::{Attempt, Effect, Event, Life},
    process::supervisor::signal_name,
};

impl Runner {
    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Preflight(attempt) => {
                let Some(node) = self.node() else { return };
                self.starting.preflight(&self.ctx, node, attempt);
            }
            Effect::TakeTurn(attempt) => {
                let Some(node) = self.node() else { return };
                self.starting.take_turn(&self.ctx, node, attempt);
            }
            Effect::Configure { attempt, may_found } => {
                let Some(node) = self.node() else { return };
                self.starting.configure(&self.ctx, Node { may_found, ..node }, attempt);
            }
            Effect::Prepare(attempt) => self.run_programs(attempt),
            Effect::CancelPreparation => self.starting.cancel_programs(),
            Effect::Validate(attempt) => {
                let Some(node) = self.node() else { return };
                self.report.validating = true;
                self.running.validate(&self.ctx, node, attempt);
            }
            Effect::Spawn => self.spawn(),
            Effect::Signal { pid, signal } => {
                debug!(pid, signal = %signal_name(signal), "Signalling the database");
                self.ctx.supervisor.signal(pid, signal);
            }
            Effect::SignalGroup { pid, signal } => {
                if signal == nix::libc::SIGKILL && self.state.pid() == Some(pid) {
                    warn!(pid, "Database outlived its time; killing its process group");
                }
                self.ctx.supervisor.signal_group(pid, signal);
            }
            Effect::Continue { pid } => {
                warn!(pid, "Database does not answer");
                self.ctx.metrics.hangs.inc();
                self.ctx.supervisor.signal_group(pid, nix::libc::SIGCONT);
            }
            Effect::Dump { pid, dump } => {
                info!(pid, signal = %signal_name(dump.signal), "Asking for a thread dump");
                self.ctx.supervisor.signal_named(pid, dump.children, dump.signal);
            }
            Effect::Flush => self.running.flush(&self.ctx),
            Effect::Decommission => {
                let Some(node) = self.node() else { return };
                self.running.decommission(&self.ctx, node);
            }
            Effect::CancelDecommission => {
                let Some(node) = self.node() else { return };
                self.running.cancel_decommission(&self.ctx, node);
            }
            Effect::RecordDecommissioned => self.ledger.decommissioned(),
            Effect::Arm(timer, delay) => self.timers.arm(timer, delay),
            Effect::Disarm(timer) => self.timers.disarm(timer),
            Effect::Exit(code) => {
                info!(code, "Ending");
                self.starting.cancel();
                self.running.cease_following();
            }
        }
    }

    /// As the database sees it; `None` before its Pilot was seen.
    fn node(&self) -> Option<Node> {
        let pilot = self.wanted.pilot.as_ref()?;
        Some(self.ctx.node(pilot, &self.starting.peers, self.starting.may_found()))
    }

    fn run_programs(&mut self, attempt: Attempt) {
        let Some(node) = self.node() else { return };
        let detail = self.report.facts.observation.detail.clone();
        self.starting.run_programs(&self.ctx, node, detail, attempt);
    }

    fn spawn(&mut self) {
        let Some(process) = self.starting.process.clone() else {
            self.step(Event::SpawnFailed);
            return;
        };
        match self.running.spawn(&self.ctx, &process) {
            Ok(run) => {
                let pid = run.pid;
                let intended = self.wanted.pilot.as_ref();
                let intended = intended.and_then(|pilot| pilot.spec.config_hash.clone());
                let hash = intended.unwrap_or(process.config_hash);
                self.report.begun(&run, self.running.restarts, hash);
                self.ledger.write_down(Note::Begun(run));
                self.begin_following();
                self.step(Event::Spawned { pid });
            }
            Err(error) => {
                error!(program = %process.program.display(), %error, "Database cannot be started");
                self.report.facts.rejected =
                    Some(format!("{} cannot be started: {error}", process.program.display()));
                self.step(Event::SpawnFailed);
            }
        }
    }

    /// Goes on with a database that an earlier program of this process started.
    pub(super) fn go_on(&mut self) {
        let effects = std::mem::take(&mut self.succession.resumed);
        if self.running.child.is_some() {
            self.report.facts.holds = Some(true);
            self.begin_following();
        }
        for effect in effects {
            self.carry_out(effect);
        }
    }

    fn begin_following(&mut self) {
        let (pilot, marked) = (self.wanted.pilot.as_ref(), self.ledger.marked.clone());
        self.running.begin_following(&self.ctx, pilot, marked);
    }

    /// Tells a running database what is new about its peers.
    pub(super) fn refresh(&self) {
        if let Some(node) = self.node()
            && matches!(self.state.life, Life::Up(_))
        {
            self.running.refresh(&self.ctx, node);
        }
    }
}
