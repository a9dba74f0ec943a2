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

use super::{Recall, Runner, wanted_by};
use crate::{
    api::v1beta1::{Pilot, PilotStatus},
    pilot::{
        node::machine::{Decommissioning, Life, State, Up, Want},
        process::{
            supervisor::{HandedChild, Parked, inherited},
            takeover::{HandedNode, Handoff, PARK_LIMIT},
        },
        volume::lock::Lock,
    },
};

/// Whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// The program that proved that it can take over.
    Accepted,
    /// The one that runs, for the so many-th time in a row.
    Itself { panics: u32 },
}

impl Runner {
    /// Lets an accepted program take over, when it is its time. Comes back only when it is
    /// not, or when that failed; then nothing has changed.
    pub(super) async fn hand_over(&mut self) {
        if self.takeover.is_due(self.child.is_some()) && self.pass_on(Next::Accepted).await {
            self.takeover.postpone();
        }
    }

    /// Becomes the next program, when nothing is under way that this would disturb. Comes back
    /// only when it did not, and says whether it was tried; then nothing has changed.
    pub(super) async fn pass_on(&mut self, next: Next) -> bool {
        let quiet = self.supervisor.watches_only(self.child.as_ref());
        let settled = self.recalled == Recall::Done && self.has_written();
        if !quiet || !settled || !self.state.may_be_handed_over() {
            return false;
        }
        let parked = match &self.child {
            Some(child) => child.park(PARK_LIMIT).await,
            None => Some(Parked::default()),
        };
        let Some(parked) = parked else {
            debug!("Output of the database stalls; the new program has to wait");
            return true;
        };
        // While that was awaited another task may have started a helper. A thread that waits
        // for a volume that hangs could not be ended, and would hold up the exec for ever.
        let idle = self.volume.idle();
        if let Some(lock) = &idle
            && self.supervisor.watches_only(self.child.as_ref())
        {
            let handoff = self.handoff(&parked, lock.as_ref());
            let streams = [&parked.stdout, &parked.stderr];
            let mut keep: Vec<BorrowedFd<'_>> =
                streams.into_iter().flatten().map(|file| file.as_fd()).collect();
            keep.extend(lock.as_ref().map(|lock| lock.as_fd()));
            keep.extend(self.listeners.values().map(AsFd::as_fd));
            match next {
                Next::Accepted => self.takeover.become_accepted(&handoff, &keep),
                Next::Itself { panics } => {
                    let handoff = Handoff { panics, ..handoff };
                    let error = self.takeover.become_itself(&handoff, &keep);
                    warn!(%error, "Pilot cannot begin anew");
                }
            }
        }
        if let Some(child) = &self.child {
            child.resume();
        }
        true
    }

    /// What the next program needs. For a check without descriptors, which it does not touch.
    pub(super) fn handoff(&self, parked: &Parked, lock: Option<&Lock>) -> Handoff {
        let child = self.child.as_ref().map(|child| self.supervisor.hand_over(child, parked));
        let up = match &self.state.life {
            Life::Up(up) => Some(up),
            _ => None,
        };
        let status = self.reports.borrow().clone();
        let node = HandedNode {
            database: self.settings.database.name.to_owned(),
            pilot: self.pilot.as_ref().map(|pilot| Pilot { status, ..pilot.clone() }),
            remembered: self.remembered,
            answered: up.is_some_and(|up| up.answered),
            serving: up.is_some_and(|up| up.serving),
            decommissioning: self.state.is_decommissioning(),
            restart: up.is_some_and(|up| up.restart),
            may_found: self.start.may_found,
            failures: self.state.failures(),
            restarts: self.restarts,
            oom_kills: self.oom_kills,
            rejected: self.facts.rejected.clone(),
            refused: self.facts.refused.clone(),
            ours: self.ours,
            lock: lock.map(|lock| lock.as_raw_fd()),
            listeners: self
                .listeners
                .iter()
                .map(|(name, socket)| (name.clone(), socket.as_raw_fd()))
                .collect(),
        };
        Handoff { child, node: Some(node), ..Handoff::default() }
    }

    /// Goes on where an earlier program of this process left off. The Pilot comes through the
    /// channel of intents, as any other; the sockets were taken before.
    ///
    /// # Errors
    /// When a descriptor that was handed over is not there.
    pub(super) fn succeed(
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
        self.restarts = restarts;
        self.start.may_found = may_found;
        self.oom_kills = oom_kills;
        let locked = |number| -> io::Result<Lock> {
            let folder = File::from(inherited(number)?);
            // It is the same open file: it is locked already.
            Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error.into())
        };
        self.volume.keep(lock.map(locked).transpose()?);
        self.recalled = Recall::DueAfterTakeover;
        self.ours = ours;
        let (Some(child), Some(pilot)) = (child, pilot) else {
            info!(version, "Took over from another program, without a database");
            return Ok(());
        };
        let pid = child.pid;
        self.child = Some(self.supervisor.adopt(child)?);
        let PilotStatus {
            observed_generation,
            config_hash,
            health,
            blockers,
            process,
            storage,
            decommission,
            ..
        } = pilot.status;
        self.facts.generation = observed_generation;
        self.facts.wanted_hash.clone_from(&pilot.spec.config_hash);
        self.facts.running_hash = config_hash;
        self.facts.observation.health = health;
        self.facts.observation.blockers = blockers;
        self.facts.process = process;
        self.facts.storage = storage;
        self.facts.decommission = decommission;
        self.facts.preflight = Some(vec![]);
        self.facts.rejected = rejected;
        self.facts.refused = refused;
        let decommissioning = decommissioning.then_some(Decommissioning::ASKING);
        // Whether the volume is full is looked at again at once.
        let (served, full, suspected) = (serving, false, false);
        let up = Up { pid, answered, served, full, serving, decommissioning, suspected, restart };
        let (limits, decommissioned) = (self.state.limits(), self.state.is_decommissioned());
        let (want, restart) = wanted_by(&pilot.spec);
        // It runs already: what a later release wants does not stop it.
        let wanted = (want.unwrap_or(Want::Running), restart);
        let (state, effects) = State::resumed(limits, decommissioned, wanted, failures, up);
        self.state = state;
        self.resumed = effects;
        info!(version, pid, "Took over a running database from another program");
        Ok(())
    }
}
