//! Gives the node to another program of this pilot, and takes it from an earlier one.
//!
//! Most of what the pilot knows is on the disk, in the API and in the database, and is read
//! there again; the handoff carries the rest, with the Pilot as last seen and last reported.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use nix::fcntl::{Flock, FlockArg};
use tracing::{debug, info, warn};

use super::{NodeRunner, intent_tracker::wanted_by};
use crate::{
    api::v1beta1::{Pilot, PilotStatus},
    pilot::{
        node::{
            machine::{
                MachineEffect, NodeIntent, NodeMachine, NodePhase, PendingDecommission, RunningNode,
            },
            probes::ProbeListeners,
        },
        process::{
            supervisor::{HandedChild, ParkedPipes, inherit_descriptor},
            takeover::{HandedNode, PARK_LIMIT, ProgramHandoff, ProgramTakeover},
        },
        volume::data_volume::VolumeLock,
    },
};

/// What this program keeps of the one before it, and for the one after it.
pub(super) struct ProgramHandover {
    pub(super) takeover: ProgramTakeover,
    /// Second handles of the sockets that listen, for the next program.
    pub(super) listeners: ProbeListeners,
    /// The effects with which this program goes on with a database that an earlier program started.
    pub(super) resumed: Vec<MachineEffect>,
}

/// The program that this process becomes next.
#[derive(Clone, Copy, Debug)]
pub(super) enum NextProgram {
    /// The program that proved that it can take over.
    Accepted,
    /// The program that runs now, which begins anew after a panic, for the `panics`-th time in a
    /// row.
    Itself { panics: u32 },
}

impl NodeRunner {
    /// Lets an accepted program take over, when that is due. Returns only when it is not, or when
    /// the takeover failed; then nothing has changed.
    pub(super) async fn hand_over(&mut self) {
        if self.succession.takeover.is_due(self.running.child.is_some())
            && self.pass_on(NextProgram::Accepted).await
        {
            self.succession.takeover.postpone();
        }
    }

    /// Becomes the next program, when nothing is under way that an exec would disturb. Returns only
    /// when the exec did not happen, and says whether it was tried; then nothing has changed.
    pub(super) async fn pass_on(&mut self, next: NextProgram) -> bool {
        let is_quiet = self.ctx.supervisor.watches_only(self.running.child.as_ref());
        let is_settled = self.ledger.is_settled();
        if !is_quiet || !is_settled || !self.state.may_be_handed_over() {
            return false;
        }
        let parked_pipes = match &self.running.child {
            Some(child) => child.park_output(PARK_LIMIT).await,
            None => Some(ParkedPipes::default()),
        };
        let Some(parked_pipes) = parked_pipes else {
            debug!("Output of the database stalls; the new program has to wait");
            return true;
        };
        // While the output was being parked, another task may have started a helper. A thread that
        // waits for a volume that hangs could not be ended, and would hold up the exec for ever.
        let idle_lock = self.ctx.volume.lock_if_idle();
        if let Some(lock) = &idle_lock
            && self.ctx.supervisor.watches_only(self.running.child.as_ref())
        {
            let handoff = self.build_handoff(&parked_pipes, lock.as_ref());
            let streams = [&parked_pipes.stdout, &parked_pipes.stderr];
            let mut kept_descriptors: Vec<BorrowedFd<'_>> =
                streams.into_iter().flatten().map(|file| file.as_fd()).collect();
            kept_descriptors.extend(lock.as_ref().map(|lock| lock.as_fd()));
            kept_descriptors.extend(self.succession.listeners.values().map(AsFd::as_fd));
            match next {
                NextProgram::Accepted => {
                    self.succession.takeover.become_accepted(&handoff, &kept_descriptors);
                }
                NextProgram::Itself { panics } => {
                    let handoff = ProgramHandoff { panics, ..handoff };
                    let error = self.succession.takeover.become_itself(&handoff, &kept_descriptors);
                    warn!(%error, "Pilot cannot begin anew");
                }
            }
        }
        if let Some(child) = &self.running.child {
            child.resume_output();
        }
        true
    }

    /// Makes the handoff to the next program. A check of that program needs no descriptors, as it
    /// touches none.
    pub(super) fn build_handoff(
        &self,
        parked_pipes: &ParkedPipes,
        lock: Option<&VolumeLock>,
    ) -> ProgramHandoff {
        let child = self
            .running
            .child
            .as_ref()
            .map(|child| self.ctx.supervisor.hand_over(child, parked_pipes));
        let up = match &self.state.life {
            NodePhase::Up(up) => Some(up),
            _ => None,
        };
        let status = self.report.status();
        let node = HandedNode {
            database: self.ctx.settings.database.names.word.to_owned(),
            pilot: self.wanted.pilot.as_ref().map(|pilot| Pilot { status, ..pilot.clone() }),
            remembered: self.wanted.remembered,
            answered: up.is_some_and(|up| up.answered),
            serving: up.is_some_and(|up| up.serving),
            decommissioning: self.state.is_decommissioning(),
            restart: up.is_some_and(|up| up.restart),
            may_found: self.starting.may_found(),
            failures: self.state.failure_count(),
            restarts: self.running.restarts,
            oom_kills: self.running.oom_kills,
            rejected: self.report.facts.rejected.clone(),
            refused: self.report.facts.refused.clone(),
            ours: self.ledger.ours,
            lock: lock.map(|lock| lock.as_raw_fd()),
            listeners: self
                .succession
                .listeners
                .iter()
                .map(|(name, socket)| (name.clone(), socket.as_raw_fd()))
                .collect(),
        };
        ProgramHandoff { child, node: Some(node), ..ProgramHandoff::default() }
    }

    /// Goes on where an earlier program of this process left off. The Pilot comes through the
    /// channel of intents, as any other; the sockets were taken before.
    ///
    /// # Errors
    /// When a descriptor that was handed over is not there.
    pub(super) fn resume_node(
        &mut self,
        version: &str,
        node: HandedNode,
        child: Option<HandedChild>,
    ) -> io::Result<()> {
        let HandedNode {
            database: _,
            pilot,
            remembered: _,
            answered,
            serving,
            decommissioning,
            restart,
            may_found,
            failures,
            restarts,
            oom_kills,
            rejected,
            refused,
            ours,
            lock,
            listeners: _,
        } = node;
        self.running.restarts = restarts;
        self.starting.taken_over(may_found);
        self.running.oom_kills = oom_kills;
        let lock_directory = |number| -> io::Result<VolumeLock> {
            let folder = File::from(inherit_descriptor(number)?);
            // The descriptor is of the same open file, whose lock this process holds already.
            Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error.into())
        };
        self.ctx.volume.set_lock(lock.map(lock_directory).transpose()?);
        self.ledger.taken_over(ours);
        let (Some(child), Some(pilot)) = (child, pilot) else {
            info!(version, "Took over from another program, without a database");
            return Ok(());
        };
        let pid = child.pid;
        self.running.child = Some(self.ctx.supervisor.adopt_child(child)?);
        let PilotStatus {
            observed_generation,
            config_hash,
            started_for,
            health,
            blockers,
            process,
            storage,
            decommission,
            security,
            ..
        } = pilot.status;
        self.report.facts.generation = observed_generation;
        self.report.facts.wanted_hash.clone_from(&pilot.spec.config_hash);
        // A program of an earlier release does not say for what it started the process.
        self.report.facts.started_for = started_for.or_else(|| config_hash.clone());
        self.report.facts.running_hash = config_hash;
        let running_modes = security.and_then(|security| security.rungs);
        self.report.facts.running_rungs = running_modes.unwrap_or_default();
        self.report.facts.observation.health = health;
        self.report.resume_blockers(blockers);
        self.report.facts.process = process;
        self.report.facts.storage = storage;
        self.report.facts.decommission = decommission;
        self.report.facts.preflight = Some(vec![]);
        self.report.facts.rejected = rejected;
        self.report.facts.refused = refused;
        let decommissioning = decommissioning.then_some(PendingDecommission::ASKING);
        // Whether the volume is full is looked at again at once.
        let (served, full, suspected) = (serving, false, false);
        let up = RunningNode {
            pid,
            answered,
            served,
            full,
            serving,
            decommissioning,
            suspected,
            restart,
            // What is wanted now says so again at once.
            ordered: false,
        };
        let (limits, decommissioned) = (self.state.limits(), self.state.is_decommissioned());
        let (want, restart) = wanted_by(&pilot.spec);
        // The database runs already: a phase that a later release added does not stop it.
        let desired_intent = (want.unwrap_or(NodeIntent::Running), restart);
        let (state, effects) =
            NodeMachine::from_handover(limits, decommissioned, desired_intent, failures, up);
        self.state = state;
        self.succession.resumed = effects;
        info!(version, pid, "Took over a running database from another program");
        Ok(())
    }
}
