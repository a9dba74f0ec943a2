//! One effect, one act: processes, timers, and tasks that ask the database or the API.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::{Message, Note, Runner, node};
use crate::{
    api::v1beta1::{Identity, Pilot, Process},
    error::chain,
    pilot::{
        driver::{self, Observation},
        node::machine::{Effect, Event, Life},
        process::supervisor::{Command, release_program, signal_name},
        volume::{
            files::{Files, Mark, Run},
            lock::Volume,
        },
    },
    runtime::build,
};

/// Between two questions, until it serves and then.
const OBSERVE_STARTING: Duration = Duration::from_secs(1);
const OBSERVE_SERVING: Duration = Duration::from_secs(5);
/// Answers in a row that say so, after which what a start needs is not needed: half a minute.
const SETTLED: u32 = 6;
/// A database that takes longer to say how it is does not answer.
const OBSERVE_LIMIT: Duration = Duration::from_secs(10);
/// How long one that did not answer may take to answer in another way.
const SECOND_OPINION: Duration = Duration::from_secs(2);
/// Between two looks at the peers.
const PEERS_EVERY: Duration = Duration::from_secs(30);

impl Runner {
    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Preflight(attempt) => self.preflight(attempt),
            Effect::TakeTurn(attempt) => self.take_turn(attempt),
            Effect::Configure { attempt, may_found } => self.configure(attempt, may_found),
            Effect::Prepare(attempt) => self.run_programs(attempt),
            Effect::CancelPreparation => self.programs.cancel(),
            Effect::Validate(attempt) => self.validate(attempt),
            Effect::Spawn => self.spawn(),
            Effect::Signal { pid, signal } => {
                debug!(pid, signal = %signal_name(signal), "Signalling the database");
                self.supervisor.signal(pid, signal);
            }
            Effect::SignalGroup { pid, signal } => {
                if signal == nix::libc::SIGKILL && self.state.pid() == Some(pid) {
                    warn!(pid, "Database outlived its time; killing its process group");
                }
                self.supervisor.signal_group(pid, signal);
            }
            Effect::Continue { pid } => {
                warn!(pid, "Database does not answer");
                self.metrics.hangs.inc();
                self.supervisor.signal_group(pid, nix::libc::SIGCONT);
            }
            Effect::Dump { pid, dump } => {
                info!(pid, signal = %signal_name(dump.signal), "Asking for a thread dump");
                self.supervisor.signal_named(pid, dump.children, dump.signal);
            }
            Effect::Flush => self.flush(),
            Effect::Decommission => self.decommission(),
            Effect::CancelDecommission => self.cancel_decommission(),
            Effect::RecordDecommissioned => {
                info!("Node left its database cluster");
                self.write_down(Note::Decommissioned(Time(Timestamp::now())));
            }
            Effect::Arm(timer, delay) => {
                self.timers.insert(timer, Instant::now() + delay);
            }
            Effect::Disarm(timer) => {
                self.timers.remove(&timer);
            }
            Effect::Exit(code) => {
                info!(code, "Ending");
                self.preparing.cancel();
                self.following.cancel();
            }
        }
    }

    /// A task about the running process, ended with it. An error means that the loop is gone.
    pub(super) fn follow<F>(&self, name: &'static str, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let token = self.following.clone();
        self.rt.tasks().spawn(name, async move {
            tokio::select! {
                () = token.cancelled() => {}
                () = work => {}
            }
        });
    }

    fn spawn(&mut self) {
        let Some(process) = self.process.clone() else {
            self.step(Event::SpawnFailed);
            return;
        };
        let command = Command { user: self.settings.user, ..Command::from(&process) };
        self.oom_kills = crate::pilot::process::cgroup::oom_kills();
        match self.supervisor.spawn(&command) {
            Ok(child) => {
                let pid = child.pid;
                info!(pid, program = %process.program.display(), "Started the database");
                self.restarts += 1;
                self.metrics.starts.inc();
                self.facts.holds = Some(true);
                let start_time = Time(Timestamp::now());
                let run = Run {
                    pid,
                    start_time: start_time.clone(),
                    pilot_version: build::VERSION.to_owned(),
                };
                self.write_down(Note::Begun(run));
                let restarts = self.restarts;
                self.facts.process = Some(Process { pid, start_time: Some(start_time), restarts });
                let intended = self.pilot.as_ref().and_then(|pilot| pilot.spec.config_hash.clone());
                self.facts.running_hash = Some(intended.unwrap_or(process.config_hash));
                // Addresses and figures of the last run stand until this one has its own.
                let Observation { version, endpoints, detail, .. } =
                    std::mem::take(&mut self.facts.observation);
                self.facts.observation =
                    Observation { version, endpoints, detail, ..Observation::default() };
                self.child = Some(child);
                self.begin_following(pid);
                self.step(Event::Spawned { pid });
            }
            Err(error) => {
                error!(program = %process.program.display(), %error, "Database cannot be started");
                self.facts.rejected =
                    Some(format!("{} cannot be started: {error}", process.program.display()));
                self.step(Event::SpawnFailed);
            }
        }
    }

    /// Goes on with a database that an earlier program of this process started.
    pub(super) fn go_on(&mut self) {
        let effects = std::mem::take(&mut self.resumed);
        if let Some(pid) = self.child.as_ref().map(|child| child.pid) {
            self.facts.holds = Some(true);
            self.begin_following(pid);
        }
        for effect in effects {
            self.carry_out(effect);
        }
    }

    fn begin_following(&mut self, pid: i32) {
        self.following = CancellationToken::new();
        self.observe(pid);
        self.watch_peers();
    }

    fn observe(&self, pid: i32) {
        let (driver, messages) = (self.driver.clone(), self.messages.clone());
        let (files, volume) = (self.files.clone(), self.volume.clone());
        let mut marked = self.marked.clone();
        self.follow("observe", async move {
            let mut served = 0_u32;
            loop {
                let answer = timeout(OBSERVE_LIMIT, driver.observe()).await;
                let mut result = answer.unwrap_or_else(|late| Err(late.into()));
                if result.as_ref().is_err_and(driver::Error::is_silence)
                    && timeout(SECOND_OPINION, driver.lives()).await == Ok(true)
                {
                    result = Err(driver::Error::Evasive);
                }
                let mark = match &mut result {
                    Ok(observation) => {
                        establish_identity(observation, marked.as_ref(), &files, &volume).await
                    }
                    Err(_) => None,
                };
                if let Some(mark) = &mark {
                    marked.clone_from(&mark.node_id);
                }
                let serving = result.as_ref().is_ok_and(|observation| observation.serving);
                served = if serving { served.saturating_add(1) } else { 0 };
                if served == SETTLED {
                    // Nothing much happens for long now.
                    if let Err(error) = release_program() {
                        debug!(%error, "Memory of the start cannot be given back");
                    }
                }
                let result = Box::new(result);
                if messages.send(Message::Observed { pid, result, mark }).await.is_err() {
                    return;
                }
                sleep(if serving { OBSERVE_SERVING } else { OBSERVE_STARTING }).await;
            }
        });
    }

    fn watch_peers(&self) {
        let (Some(cluster), Some(pilot)) = (self.cluster.clone(), self.pilot.clone()) else {
            return;
        };
        let messages = self.messages.clone();
        self.follow("peers", async move {
            loop {
                // Jitter keeps the pilots of a cluster from asking in step.
                sleep(PEERS_EVERY.mul_f64(0.75 + rand::random::<f64>() / 2.0)).await;
                match cluster.peers(&pilot).await {
                    Ok(peers) => drop(messages.send(Message::Peers(peers)).await),
                    Err(error) => debug!(error = %chain(&error), "Peers cannot be listed"),
                }
            }
        });
    }

    /// Tells a running database what is new about its peers.
    pub(super) fn refresh(&self) {
        let Some(pilot) = &self.pilot else { return };
        if !matches!(self.state.life, Life::Up(_)) {
            return;
        }
        let node = node(&self.settings, pilot, &self.peers, self.start.may_found);
        let (driver, volume) = (self.driver.clone(), self.volume.clone());
        self.follow("refresh", async move {
            let told = match volume.during(async move { driver.refresh(&node).await }).await {
                Ok(told) => told.map_err(|error| chain(&error).to_string()),
                Err(hangs) => Err(hangs.to_string()),
            };
            if let Err(error) = told {
                debug!(error, "Database was not told about its peers");
            }
        });
    }

    fn flush(&mut self) {
        info!("Flushing the database");
        let (driver, messages) = (self.driver.clone(), self.messages.clone());
        self.follow("flush", async move {
            match driver.flush().await {
                Ok(()) => info!("Flushed the database"),
                Err(error) => warn!(error = %chain(&error), "Flush failed; stopping without"),
            }
            drop(messages.send(Message::Flushed).await);
        });
    }

    pub(super) fn marked_as(&mut self, mark: Option<Mark>) {
        let Some(mark) = mark else { return };
        info!(node_id = mark.node_id, cluster_id = mark.cluster_id, "Node has its identity");
        self.marked.clone_from(&mark.node_id);
        self.facts.identity = identity(&mark);
    }

    /// Keeps the intent on the disk, for a start without the API. Only when the volume is ours.
    pub(super) fn remember_intent(&self) {
        let Some(pilot) = self.pilot.as_ref().filter(|_| self.ours && !self.remembered) else {
            return;
        };
        let kept = Pilot { status: crate::api::v1beta1::PilotStatus::default(), ..pilot.clone() };
        self.write_down(Note::Intent(Box::new(kept)));
    }
}

/// The first time that a node serves, and whenever its id changed, it is written down whose it is:
/// on its disk, and then by the report in the API. A volume that hangs is not waited for.
async fn establish_identity(
    observation: &mut Observation,
    marked: Option<&String>,
    files: &Files,
    volume: &Volume,
) -> Option<Mark> {
    let is_member = observation.serving || observation.reason == Some(driver::JOINED_EMPTY);
    let node_id = observation.node_id.clone().filter(|_| is_member)?;
    if marked == Some(&node_id) {
        return None;
    }
    let (files, own) = (files.clone(), observation.cluster_id.clone());
    let written = volume.glance(move |_| {
        let mark = files.mark()?.unwrap_or_default();
        let cluster_id = own.or(mark.cluster_uid.clone());
        let since = Some(Time(Timestamp::now()));
        let mark = Mark { cluster_id, node_id: Some(node_id), since, ..mark };
        files.set_mark(&mark)?;
        Ok::<_, std::io::Error>(mark)
    });
    let why = match written.await {
        Ok(Some(Ok(mark))) => return Some(mark),
        Ok(None) => return None,
        Ok(Some(Err(error))) => error.to_string(),
        Err(hangs) => hangs.to_string(),
    };
    observation.unsaved = Some(format!("failed to write down the identity of the node: {why}"));
    None
}

/// As the API shows it.
pub(super) fn identity(mark: &Mark) -> Option<Identity> {
    mark.node_id.as_ref()?;
    Some(Identity {
        cluster_id: mark.cluster_id.clone(),
        node_id: mark.node_id.clone(),
        since: mark.since.clone(),
        ring_id: mark.ring.clone(),
    })
}
