//! Carries out what [`machine`](crate::pilot::node::machine) decides, and tells it what happened.
//!
//! Owns the one loop: signals, the child's end, timers, the intent and the answers of what runs
//! beside it. The loop never waits for a database or an API: whatever takes time is a named
//! task that answers by a message, and is cancelled when its answer is no longer wanted.

mod decommission;
mod effects;
mod ending;
#[cfg(debug_assertions)]
mod faults;
mod lead;
mod notes;
mod preparing;
mod recall;
mod recovery;
mod reporting;
mod settings;
mod start;
mod storage;
mod succession;

use std::{
    collections::BTreeMap, io, panic::AssertUnwindSafe, path::PathBuf, sync::Arc, time::Duration,
};

use futures::FutureExt;
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub use self::settings::{Api, Settings};
use self::{
    notes::Note,
    recall::{Recall, Recalled},
    recovery::Recovery,
};
use crate::{
    api::v1beta1::{DatabaseStatus, Pilot, PilotIntent, PilotSpec, PilotStatus},
    error::chain,
    pilot::{
        driver::{
            self, DecommissionState, Driver, FailedCheck, Node, Observation, ProcessSpec, Role,
        },
        kube::{
            cluster::{self, Cluster},
            founding::{Start, Turn},
            intent::{self, Intent},
            leader::Eligibility,
            namesake::{self, Holder},
            registration, reporter,
        },
        node::{
            blockers::Blockers,
            machine::{Attempt, Effect, Event, Held, Life, Limits, State, Timer, Want},
            metrics::Metrics,
            preflight::Space,
            probes::{self, Answers},
            report::{self, Facts},
        },
        process::{
            supervisor::{Child, Exit, Parked, Signals, Supervisor, inherited},
            takeover::{self, Handoff, Policy, Takeover},
        },
        volume::{
            files::{Files, Mark},
            lock::Volume,
        },
    },
    runtime::{Runtime, events},
};

/// Answers of everything that runs beside the loop: a handful of tasks with one each.
const QUEUE: usize = 64;

/// What tasks tell the loop.
#[derive(Debug)]
enum Message {
    Checked {
        attempt: Attempt,
        failed: Vec<FailedCheck>,
        holds: Option<bool>,
    },
    Turn {
        attempt: Attempt,
        turn: Turn,
    },
    Waiting(String),
    Configured {
        attempt: Attempt,
        peers: Vec<Pilot>,
        result: Result<ProcessSpec, driver::Error>,
    },
    /// Peers that a start waits for have changed.
    PeersMoved,
    Preparing {
        attempt: Attempt,
        detail: DatabaseStatus,
    },
    Prepared {
        attempt: Attempt,
        result: Result<(), preparing::Failure>,
    },
    Validated {
        attempt: Attempt,
        rejected: Option<String>,
    },
    Observed {
        pid: i32,
        result: Box<Result<Observation, driver::Error>>,
        /// What was written down of the node's identity before it is said that it serves.
        mark: Option<Mark>,
    },
    Recalled(Box<Recalled>),
    Decommission(Result<DecommissionState, driver::Error>),
    Cancelled(Result<(), driver::Error>),
    Flushed,
    Peers(Vec<Pilot>),
    LastState(Option<cluster::LastState>),
    Space(Option<Space>),
    #[cfg(debug_assertions)]
    Fault,
}

/// Runs one node until the pilot is asked to end; returns what to end with. `start` may hold
/// a node that an earlier program of this process ran: then it goes on with that.
///
/// # Errors
/// When signals or the probes' ports cannot be had. Nothing was started then.
pub async fn run(settings: Settings, start: takeover::Start) -> io::Result<u8> {
    let mut signals = Signals::new()?;
    let supervisor = Supervisor::new()?;
    let rt = Runtime::enduring();
    let takeover::Start { program, every, handed } = start;
    let takeover = Takeover::new(program, every);
    let Handoff { version, child, node, panics, .. } = handed.unwrap_or_default();
    let ready = node.as_ref().is_some_and(|node| node.serving);
    let (answers, told) = watch::channel(Answers { live: true, ready, ..Answers::default() });
    let open = node.iter().flat_map(|node| &node.listeners);
    let open = open.map(|(name, number)| Ok((name.clone(), inherited(*number)?)));
    let open = open.collect::<io::Result<_>>()?;
    let listeners = probes::serve(&rt, settings.bind, settings.ports, &told, open).await?;

    let (files, volume) = (Files::of(&settings.data), Volume::default());
    let (intents, intent) = watch::channel(None);
    let (reports, wanted) = watch::channel(PilotStatus::default());
    let cluster = match &settings.api {
        Api::Alone(pilot) => {
            let pilot = Pilot::clone(pilot);
            intents.send_replace(Some(Intent { pilot, remembered: false }));
            None
        }
        Api::Client { client, missing } => {
            let (database, namespace) = (settings.database, &settings.namespace);
            let cluster = Cluster::new(client, database, namespace, &settings.name);
            let absence = missing.as_ref().map(|pilot| {
                let pilot = Pilot::clone(pilot);
                let pilot = registration::complete(pilot, database, namespace, &settings.name);
                let absence = Arc::new(Notify::new());
                let (seen, told) = (intent.clone(), absence.clone());
                let make = registration::run(cluster.clone(), pilot, seen, told, rt.shutdown());
                rt.tasks().spawn("registration", make);
                absence
            });
            let follow = intent::follow(
                cluster.clone(),
                (files, volume.clone()),
                intents.clone(),
                absence,
                rt.shutdown(),
            );
            rt.tasks().spawn("intent", follow);
            Some(cluster)
        }
    };
    if let Some((pilot, remembered)) =
        node.as_ref().and_then(|node| Some((node.pilot.clone()?, node.remembered)))
    {
        intents.send_replace(Some(Intent { pilot, remembered }));
    }
    let namesake = match &cluster {
        Some(cluster) => {
            let (holder, namesake) = watch::channel(Holder::Open);
            let (own, seen) = (settings.instance(), intent.clone());
            let watch = namesake::run(own, cluster.clone(), seen, holder, rt.shutdown());
            rt.tasks().spawn("namesake", watch);
            let (seen, held) = (intent.clone(), namesake.clone());
            let report = reporter::run(cluster.clone(), wanted, seen, held, rt.shutdown());
            rt.tasks().spawn("reporter", report);
            namesake
        }
        None => namesake::alone(),
    };
    let channels = Channels { intent, namesake, reports, answers, volume };
    let succession = (takeover, listeners);
    let mut runner = Runner::new(settings, supervisor, rt.clone(), cluster, channels, succession);
    if let Some(node) = node {
        runner.succeed(&version, node, child)?;
    }
    runner.recovery.begun_anew(panics);
    #[cfg(debug_assertions)]
    runner.watch_for_faults();
    let turned = AssertUnwindSafe(runner.turn(&mut signals)).catch_unwind().await;
    let code = match turned {
        Ok(code) => code,
        Err(_) => runner.survive(&mut signals).await,
    };
    rt.shutdown().trigger();
    // A moment for the last report; the database is down already.
    if tokio::time::timeout(Duration::from_millis(1500), rt.tasks().join()).await.is_err() {
        warn!("Some tasks did not end in time");
    }
    drop(intents);
    Ok(code)
}

/// The loop's ends: what is wanted, what is reported, what probes are answered.
struct Channels {
    intent: intent::Receiver,
    namesake: namesake::Receiver,
    reports: watch::Sender<PilotStatus>,
    answers: watch::Sender<Answers>,
    volume: Volume,
}

struct Runner {
    settings: Settings,
    driver: Arc<dyn Driver>,
    supervisor: Supervisor,
    rt: Runtime,
    cluster: Option<Cluster>,
    files: Files,
    metrics: Metrics,

    state: State,
    facts: Facts,
    intent: intent::Receiver,
    /// Whose the name is. As long as it is not ours nothing that is wanted of it is done.
    namesake: namesake::Receiver,
    name: Holder,
    /// The database was stopped because of that, whatever was wanted.
    displaced: bool,
    /// The Pilot as last seen, and its spec when it was last acted upon.
    pilot: Option<Pilot>,
    peers: Vec<Pilot>,
    /// How the node was let start last.
    start: Start,
    /// The data on the volume were of another ring when the node last took its turn.
    foreign: bool,
    process: Option<ProcessSpec>,
    child: Option<Child>,
    restarts: i32,
    oom_kills: u64,
    volume: Volume,
    notes: mpsc::Sender<Note>,
    recalled: Recall,
    /// The checks passed once: the volume is locked and this node's.
    ours: bool,
    /// The latest intent is being validated while the process runs.
    validating: bool,
    remembered: bool,
    headroom: Blockers,
    /// The node's id as its disk has it.
    marked: Option<String>,

    takeover: Takeover,
    /// Second handles of the sockets that listen, for the next program.
    listeners: probes::Listeners,
    /// What it takes to go on with a database that an earlier program started.
    resumed: Vec<Effect>,
    recovery: Recovery,

    timers: BTreeMap<Timer, Instant>,
    /// Cancels what prepares a start, what follows the running process, what looks at peers.
    preparing: CancellationToken,
    following: CancellationToken,
    /// Ends the programs that come before the database.
    programs: CancellationToken,
    messages: mpsc::Sender<Message>,
    inbox: mpsc::Receiver<Message>,
    reports: watch::Sender<PilotStatus>,
    answers: watch::Sender<Answers>,

    /// May this pilot lead those of its cluster, and are there any.
    eligibility: watch::Sender<Eligibility>,
    shares_lead: bool,
    events: Option<events::Queue>,
    /// The report whose changes were told last.
    told: PilotStatus,
}

impl Runner {
    fn new(
        settings: Settings,
        supervisor: Supervisor,
        rt: Runtime,
        cluster: Option<Cluster>,
        Channels { intent, namesake, reports, answers, volume }: Channels,
        (takeover, listeners): (Takeover, probes::Listeners),
    ) -> Self {
        let (config, data) = (settings.config.clone(), settings.data.clone());
        let driver = (settings.database.make)(config, data, volume.clone());
        let files = Files::of(&settings.data);
        let notes = notes::keep(rt.tasks(), &files, &volume, rt.shutdown());
        let limits = Limits {
            grace: settings.grace,
            stop: driver.stop_plan(),
            silence: settings.silence,
            dump: driver.dump(),
        };
        let (messages, inbox) = mpsc::channel(QUEUE);
        let metrics = Metrics::register(rt.metrics());
        let events = cluster.as_ref().map(|cluster| {
            let (queue, work) = reporting::events(cluster, &metrics, rt.shutdown());
            rt.tasks().spawn("events", work);
            queue
        });
        let recovery = Recovery::new(rt.tasks());
        let name = namesake.borrow().clone();
        Self {
            metrics,
            // Whether the node has left its cluster is read as soon as the volume answers.
            state: State::new(limits, false),
            facts: Facts {
                instance: Some(settings.instance()),
                program: Some(takeover.installation().to_owned()),
                ..Facts::default()
            },
            settings,
            driver,
            supervisor,
            rt,
            cluster,
            files,
            intent,
            name,
            namesake,
            displaced: false,
            pilot: None,
            peers: Vec::new(),
            start: Start::default(),
            foreign: false,
            process: None,
            child: None,
            restarts: -1,
            oom_kills: 0,
            volume,
            notes,
            recalled: Recall::Due,
            ours: false,
            validating: false,
            remembered: false,
            headroom: Blockers::default(),
            marked: None,
            takeover,
            listeners,
            resumed: Vec::new(),
            recovery,
            timers: BTreeMap::new(),
            preparing: CancellationToken::new(),
            following: CancellationToken::new(),
            programs: CancellationToken::new(),
            messages,
            inbox,
            reports,
            answers,
            eligibility: watch::Sender::new(Eligibility::No),
            shares_lead: false,
            events,
            told: PilotStatus::default(),
        }
    }

    /// Loops until the machine says what to end with.
    async fn turn(&mut self, signals: &mut Signals) -> u8 {
        self.watch_storage();
        self.recall();
        loop {
            if let Life::Exited(code) = self.state.life {
                if self.settings.pod_uid.is_none() {
                    // Whoever is this node next need not wait for signs of life.
                    self.facts.instance = None;
                }
                self.report();
                return self.recovery.answer(code);
            }
            self.report();
            self.hand_over().await;
            let timer =
                self.timers.iter().min_by_key(|(_, at)| **at).map(|(timer, at)| (*timer, *at));
            // Dropped futures lose nothing: signals stay in the kernel, the exit and messages
            // in their channels, the timers in their table.
            tokio::select! {
                biased;
                signal = self.supervisor.next_signal(signals) => {
                    self.step(Event::Signal(signal.number));
                }
                exit = exited(&mut self.child) => self.ended(exit).await,
                Some(message) = self.inbox.recv() => self.hear(message),
                Ok(()) = self.intent.changed(), if self.recalled == Recall::Done => {
                    self.take_intent();
                }
                Ok(()) = self.namesake.changed() => self.heed_namesake(),
                timer = due(timer) => {
                    self.timers.remove(&timer);
                    self.step(Event::Timer(timer));
                }
                found = self.takeover.next() => if let takeover::Finding::Appeared(candidate) = found {
                    let handoff = self.handoff(&Parked::default(), None);
                    self.takeover.check(candidate, &self.supervisor, &handoff);
                },
                () = self.recovery.due() => if let Some(code) = self.recover().await {
                    return code;
                },
            }
        }
    }

    fn step(&mut self, event: Event) {
        let before = report::phase(&self.state, &self.facts);
        let (state, effects) = self.state.clone().step(event);
        self.state = state;
        let phase = report::phase(&self.state, &self.facts);
        if phase != before {
            info!(%phase, "Entered a new phase of the node's life");
        }
        for effect in effects {
            self.carry_out(effect);
        }
    }

    fn heed_namesake(&mut self) {
        let now = self.namesake.borrow_and_update().clone();
        self.name = now;
        if let Holder::Theirs(why) = &self.name
            && !self.displaced
        {
            warn!(why, "Another pilot is this node; this one runs no database and reports nothing");
            self.displaced = true;
            let stop = Event::Intent { want: Want::Stopped, restart: None, changed: false };
            self.step(stop);
        }
        if self.recalled == Recall::Done {
            self.take_intent();
        }
    }

    fn take_intent(&mut self) {
        if self.name != Holder::Ours {
            return;
        }
        let Some(Intent { pilot, remembered }) = self.intent.borrow_and_update().clone() else {
            return;
        };
        let changed = self.pilot.as_ref().is_none_or(|known| {
            known.spec != pilot.spec || known.metadata.annotations != pilot.metadata.annotations
        });
        let goes_on = std::mem::take(&mut self.displaced);
        let (want, restart) = wanted_by(&pilot.spec);
        self.takeover.set_policy(Policy::of(pilot.spec.pilot_update.as_deref()));
        if self.pilot.is_none() {
            self.continue_report(&pilot);
            self.begin_to_campaign(&pilot);
        }
        self.pilot = Some(pilot);
        if goes_on {
            info!("The other pilot is gone");
        }
        if changed || goes_on {
            let generation = self.pilot.as_ref().and_then(|pilot| pilot.metadata.generation);
            info!(?want, remembered, generation, "Took a new intent");
            self.remembered = remembered;
            self.remember_intent();
            // What a later release wants neither starts nor stops anything here.
            let Some(want) = want.or(self.state.want()) else {
                let phase = self.pilot.as_ref().and_then(|pilot| pilot.spec.phase.as_ref());
                let phase = phase.map(ToString::to_string).unwrap_or_default();
                warn!(phase, "The phase that is wanted is not known; nothing is started");
                self.facts.waiting = Some(format!(
                    "spec.phase {phase:?} is not known to this pilot, and nothing is started; set \
                     another"
                ));
                return;
            };
            self.step(Event::Intent { want, restart, changed });
            self.refresh();
        }
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Checked { attempt, failed, holds } => self.checked(attempt, failed, holds),
            Message::Turn { attempt, turn } => self.turned(attempt, turn),
            Message::Waiting(what) => {
                if self.facts.waiting.as_ref() != Some(&what) {
                    info!(what, "Waiting to start");
                }
                self.facts.waiting = Some(what);
            }
            Message::Configured { attempt, peers, result } => {
                self.peers = peers;
                self.configured(attempt, result);
            }
            Message::PeersMoved => {
                if self.state.life == Life::Rejected {
                    self.step(Event::Timer(Timer::Recheck));
                }
            }
            Message::Preparing { attempt, detail } => self.prepares(attempt, detail),
            Message::Prepared { attempt, result } => self.prepared(attempt, result),
            Message::Validated { attempt, rejected } => self.validated(attempt, rejected),
            Message::Recalled(recalled) => self.take_recalled(*recalled),
            Message::Observed { pid, result, mark } => {
                self.marked_as(mark);
                self.observed(pid, *result);
            }
            Message::Decommission(result) => self.decommission_answered(result),
            Message::Cancelled(result) => self.cancel_answered(result),
            Message::Flushed => self.step(Event::Flushed),
            Message::Peers(peers) => {
                if self.peers != peers {
                    self.peers = peers;
                    self.refresh();
                }
            }
            Message::LastState(state) => self.explain_lost_run(state),
            Message::Space(space) => self.looked_at(space),
            #[cfg(debug_assertions)]
            Message::Fault => panic!("the loop was asked to"),
        }
    }

    fn observed(&mut self, pid: i32, result: Result<Observation, driver::Error>) {
        if self.state.pid() != Some(pid) {
            return;
        }
        match result {
            Ok(observation) => {
                let (alive, serving) = (observation.alive, observation.serving);
                self.tell_unsaved(observation.unsaved.as_ref());
                self.tell_role(observation.role);
                // What is not known yet is not news: a node that joins in a dead one's place
                // needs the old address, and its Pilot is where it stands.
                let before = std::mem::replace(&mut self.facts.observation, observation);
                let now = &mut self.facts.observation;
                if now.endpoints.is_empty() {
                    now.endpoints = before.endpoints;
                }
                now.version = now.version.take().or(before.version);
                self.step(Event::Observed { alive, serving });
            }
            Err(error) => {
                let serving = matches!(&self.state.life, Life::Up(up) if up.serving);
                let text = chain(&error).to_string();
                debug!(error = text, "Database did not say how it is");
                if matches!(error, driver::Error::Read { .. } | driver::Error::Write { .. }) {
                    self.tell_unsaved(Some(&text));
                    self.facts.observation.unsaved = Some(text.clone());
                }
                if matches!(error, driver::Error::Evasive) {
                    self.hold_unseen(text);
                }
                self.step(unobserved(&error, serving));
            }
        }
    }

    /// A node that does not say how it is shall not be stopped for anything that can wait.
    fn hold_unseen(&mut self, message: String) {
        let rule = self.settings.database.unseen;
        let blockers = &mut self.facts.observation.blockers;
        if blockers.iter().any(|known| known.predicate == rule && known.message == message) {
            return;
        }
        warn!(message, "Database is not asked to stop while it does not say how it is");
        blockers.retain(|known| known.predicate != rule);
        blockers.extend(Blockers::default().update(vec![(rule, message)]));
    }

    /// Said once per trouble.
    fn tell_unsaved(&self, why: Option<&String>) {
        if let Some(why) = why.filter(|why| self.facts.observation.unsaved.as_ref() != Some(*why)) {
            warn!(why, "State of the node cannot be saved");
        }
    }

    fn tell_role(&self, role: Option<Role>) {
        if let Some(role) = role.filter(|_| self.facts.observation.role != role) {
            info!(role = role.name(), "Node has a role among those with the same data");
        }
    }

    fn is_left(&self) -> bool {
        self.state.life == Life::Held(Held::Decommissioned)
    }
}

/// What it means for the node that it could not be observed; `serving`: it served so far. Only
/// silence may lead to a restart, and what the pilot itself cannot do leaves all as it was.
fn unobserved(error: &driver::Error, serving: bool) -> Event {
    let alive = !error.is_silence();
    let refused = matches!(error, driver::Error::Refused(_));
    Event::Observed { alive, serving: alive && serving && !refused }
}

/// What a spec wants of the node, where that is known, and the restart that it asks for.
fn wanted_by(spec: &PilotSpec) -> (Option<Want>, Option<String>) {
    let want = match spec.phase.clone().unwrap_or_default() {
        PilotIntent::Decommissioned => Some(Want::Decommissioned),
        PilotIntent::Stopped => Some(Want::Stopped),
        PilotIntent::Fenced => Some(Want::Fenced),
        PilotIntent::Running => Some(Want::Running),
        PilotIntent::Other(_) => None,
    };
    (want, spec.restarted_at.as_ref().map(|time| time.0.to_string()))
}

async fn exited(child: &mut Option<Child>) -> Exit {
    match child {
        Some(child) => child.exited().await,
        None => std::future::pending().await,
    }
}

async fn due(timer: Option<(Timer, Instant)>) -> Timer {
    match timer {
        Some((timer, at)) => {
            sleep_until(at).await;
            timer
        }
        None => std::future::pending().await,
    }
}

/// The node as the database sees it.
fn node(settings: &Settings, pilot: &Pilot, peers: &[Pilot], may_found: bool) -> Node {
    let path = |path: &PathBuf| path.clone();
    Node {
        pilot: pilot.clone(),
        peers: peers.to_vec(),
        cluster_uid: cluster::owner(pilot).map(|owner| owner.uid.clone()),
        address: settings.address,
        home: path(&settings.home),
        data: path(&settings.data),
        config: path(&settings.config),
        shared: path(&settings.shared),
        memory_limit: crate::pilot::process::cgroup::memory_limit(),
        may_found,
        ring: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_silence_counts_against_the_database() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let path = || PathBuf::from("/data/.navigator/state.json");
        let rows = [
            (driver::Error::Unreachable { source: "refused".into() }, false, false),
            (driver::Error::Write { path: path(), source: full() }, true, true),
            (driver::Error::Read { path: path(), source: full() }, true, true),
            (driver::Error::Refused("401".to_owned()), true, false),
            (driver::Error::Evasive, true, true),
        ];
        for (error, alive, serving) in rows {
            assert_eq!(unobserved(&error, true), Event::Observed { alive, serving }, "{error}");
            let started = Event::Observed { alive, serving: false };
            assert_eq!(unobserved(&error, false), started, "{error}");
        }
    }
}
