//! Carries out each effect of the machine in the part of the runner that it belongs to.

use tracing::{debug, error, info, warn};

use super::{
    NodeRunner,
    ledger::{LedgerEntry, VolumeLedger},
};
use crate::pilot::{
    driver::DatabaseNode,
    node::machine::{AttemptId, MachineEffect, MachineEvent, NodePhase},
    process::supervisor::signal_name,
};

impl NodeRunner {
    /// Carries out one effect. Returns what the machine must hear of it at once.
    pub(super) fn carry_out(&mut self, effect: MachineEffect) -> Option<MachineEvent> {
        match effect {
            MachineEffect::Preflight(attempt) => {
                let node = self.build_node()?;
                self.starting.run_preflight(&self.ctx, node, attempt);
            }
            MachineEffect::TakeTurn(attempt) => {
                let node = self.build_node()?;
                self.starting.take_turn(&self.ctx, node, attempt);
            }
            MachineEffect::Configure { attempt, may_found } => {
                let mut node = self.build_node()?;
                node.may_found = may_found;
                self.starting.configure_node(&self.ctx, node, attempt);
            }
            MachineEffect::Prepare(attempt) => self.run_programs(attempt),
            MachineEffect::CancelPreparation => self.starting.cancel_programs(),
            MachineEffect::Validate(attempt) => {
                let node = self.build_node()?;
                self.report.validating = true;
                self.running.validate(&self.ctx, node, attempt);
            }
            MachineEffect::Spawn => return Some(self.spawn_database()),
            MachineEffect::Signal { pid, signal } => {
                debug!(pid, signal = %signal_name(signal), "Signalling the database");
                self.ctx.supervisor.signal_child(pid, signal);
            }
            MachineEffect::SignalGroup { pid, signal } => {
                if signal == nix::libc::SIGKILL && self.state.pid() == Some(pid) {
                    warn!(pid, "Database outlived its time; killing its process group");
                }
                self.ctx.supervisor.signal_group(pid, signal);
            }
            MachineEffect::Continue { pid } => {
                warn!(pid, "Database does not answer");
                self.ctx.metrics.hangs.inc();
                self.ctx.supervisor.signal_group(pid, nix::libc::SIGCONT);
            }
            MachineEffect::Dump { pid, dump } => {
                info!(pid, signal = %signal_name(dump.signal), "Asking for a thread dump");
                self.ctx.supervisor.signal_named(pid, dump.children, dump.signal);
            }
            MachineEffect::Flush => self.running.flush(&self.ctx, self.build_node()),
            MachineEffect::Decommission => {
                let node = self.build_node()?;
                self.running.request_decommission(&self.ctx, node);
            }
            MachineEffect::CancelDecommission => {
                let node = self.build_node()?;
                self.running.cancel_decommission(&self.ctx, node);
            }
            MachineEffect::RecordDecommissioned => VolumeLedger::record_decommission(&self.ctx),
            MachineEffect::Arm(timer, delay) => self.timers.arm(timer, delay),
            MachineEffect::Disarm(timer) => self.timers.disarm(timer),
            MachineEffect::Exit(code) => {
                info!(code, "Ending");
                self.starting.cancel_start();
                self.running.cease_following();
            }
        }
        None
    }

    /// Makes the node as the database sees it; `None` before its Pilot was seen.
    fn build_node(&self) -> Option<Box<DatabaseNode>> {
        let pilot = self.wanted.pilot.as_ref()?;
        Some(self.ctx.build_node(pilot, &self.starting.peers, self.starting.may_found()))
    }

    fn run_programs(&mut self, attempt: AttemptId) {
        let Some(node) = self.build_node() else { return };
        let detail = self.report.facts.observation.detail.clone();
        self.starting.run_programs(&self.ctx, node, detail, attempt);
    }

    fn spawn_database(&mut self) -> MachineEvent {
        let Some(process) = self.starting.process.clone() else { return MachineEvent::SpawnFailed };
        match self.running.spawn(&self.ctx, &process) {
            Ok(run) => {
                let pid = run.pid;
                self.report.record_start(&run, self.running.restarts, &process);
                let pilot = self.wanted.pilot.as_ref();
                self.report.facts.started_for =
                    pilot.and_then(|pilot| pilot.spec.config_hash.clone());
                self.ledger.write_down(LedgerEntry::Begun(run));
                self.begin_following();
                MachineEvent::Spawned { pid }
            }
            Err(error) => {
                error!(program = %process.program.display(), %error, "Database cannot be started");
                self.report.facts.rejected =
                    Some(format!("{} cannot be started: {error}", process.program.display()));
                MachineEvent::SpawnFailed
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
            if let Some(event) = self.carry_out(effect) {
                self.handle_event(event);
            }
        }
    }

    fn begin_following(&mut self) {
        let known_mark = self.ledger.marked.clone();
        self.running.begin_following(&self.ctx, &self.wanted, known_mark);
    }

    /// Tells a running database what is new about its peers.
    pub(super) fn refresh_peers(&self) {
        if let Some(node) = self.build_node()
            && matches!(self.state.life, NodePhase::Up(_))
        {
            self.running.refresh_peers(&self.ctx, node);
        }
    }
}
