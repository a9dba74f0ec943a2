//! Carries out what [`machine`](crate::pilot::node::machine) decides, and tells it what happened.
//!
//! Owns the one loop: wait for a message (a signal, the child's end, a timer, an intent, the answer
//! of a task), step the machine, carry out its effects, report. The loop never waits for a database
//! or an API: whatever takes time is a named task that answers by a message, and is cancelled when
//! its answer is no longer wanted.
//!
//! Each part of the loop's state has an owner: the desired state ([`intent_tracker`]), what comes before
//! a start ([`startup`]), the process ([`database_process`]), records on the volume ([`ledger`]),
//! reports ([`reporting`]), leadership ([`leadership`]), the next program ([`handover`]), and the
//! recovery from a panic ([`panic_recovery`]).

mod context;
mod database_process;
mod effects;
mod handover;
mod intent_tracker;
mod leadership;
mod ledger;
mod messages;
#[cfg(debug_assertions)]
mod panic_injection;
mod panic_recovery;
mod process_exit;
mod reporting;
mod settings;
mod startup;
mod storage;
mod timers;

use std::{io, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::sync::{Notify, mpsc, watch};
use tracing::{info, warn};

pub use self::settings::{IntentSource, RunnerSettings};
use self::{
    context::{KnownPeers, RunnerContext},
    database_process::DatabaseProcess,
    handover::ProgramHandover,
    intent_tracker::{IntentTracker, IntentUpdate, is_restart_ordered},
    leadership::LeaderCandidacy,
    ledger::VolumeLedger,
    messages::RunnerMessage,
    panic_recovery::PanicRecovery,
    reporting::ReportPublisher,
    startup::NodeStartup,
    timers::MachineTimers,
};
use crate::{
    api::v1beta1::{Pilot, PilotStatus},
    pilot::{
        kube::{
            intent::{self, IntentSnapshot},
            name_holder::{self, NameHolder},
            pilot_api::PilotApi,
            registration, reporter,
        },
        node::{
            machine::{MachineEvent, NodeMachine, NodePhase, TimeLimits},
            metrics::Metrics,
            metrics_tls,
            probes::{self, ProbeAnswers},
            report,
        },
        process::{
            supervisor::{ParkedPipes, SignalStream, Supervisor, inherit_descriptor},
            takeover::{self, ProgramHandoff, ProgramTakeover, TakeoverPolicy},
        },
        security::NodeSecurity,
        volume::{data_volume::Volume, pilot_files::PilotFiles, records::VolumeRecords},
    },
    runtime::{Runtime, admin::PortSecurity},
};

/// Most messages of tasks that wait for the loop: a handful of tasks run beside it, with one
/// message each.
const QUEUE: usize = 64;

/// Runs one node until the pilot is asked to end; returns the exit code. `start` may hold a node
/// that an earlier program of this process ran: then this program goes on with that node.
///
/// # Errors
/// When signals, the probes' ports or a descriptor that was handed over cannot be had. No database
/// was started then.
pub async fn run_node(settings: RunnerSettings, start: takeover::ProcessStart) -> io::Result<u8> {
    let mut signals = SignalStream::new()?;
    let records = settings.records.then_some(settings.database.names.word);
    let supervisor = Supervisor::with_records(records)?;
    let rt = Runtime::new_panic_tolerant();
    let takeover::ProcessStart { program, every, handed } = start;
    let takeover = ProgramTakeover::new(program, every);
    let ProgramHandoff { version, child, node, panics, .. } = handed.unwrap_or_default();
    let ready = node.as_ref().is_some_and(|node| node.serving);
    let (answers, answers_receiver) =
        watch::channel(ProbeAnswers { live: true, ready, ..ProbeAnswers::default() });
    let open_listeners = node.iter().flat_map(|node| &node.listeners);
    let open_listeners =
        open_listeners.map(|(name, number)| Ok((name.clone(), inherit_descriptor(*number)?)));
    let open_listeners = open_listeners.collect::<io::Result<_>>()?;
    let (metrics_port, port_security) = watch::channel(PortSecurity::Plain);
    let (bind, ports) = (settings.bind, settings.ports);
    let listeners =
        probes::serve_probes(&rt, bind, ports, &answers_receiver, &port_security, open_listeners)
            .await?;

    let volume = Volume::default();
    let records = VolumeRecords::new(&settings.data, &volume);
    let security = NodeSecurity::new(
        PilotFiles::for_directory(&settings.data),
        settings.config.clone(),
        settings.users.clone(),
        settings.user,
    );
    let (intents, intent) = watch::channel(None);
    let (reports, status_updates) = watch::channel(PilotStatus::default());
    let cluster = match &settings.api {
        IntentSource::Alone(pilot) => {
            let pilot = Pilot::clone(pilot);
            intents.send_replace(Some(IntentSnapshot { pilot, remembered: false }));
            None
        }
        IntentSource::Client { client, missing } => {
            let (database, namespace) = (settings.database, &settings.namespace);
            let cluster = PilotApi::new(client, database, namespace, &settings.name);
            let absence = missing.as_ref().map(|pilot| {
                let pilot = Pilot::clone(pilot);
                let pilot =
                    registration::complete_pilot(pilot, database, namespace, &settings.name);
                let absence = Arc::new(Notify::new());
                let (intent_receiver, absence_notify) = (intent.clone(), absence.clone());
                let registration_task = registration::run_registration(
                    cluster.clone(),
                    pilot,
                    intent_receiver,
                    absence_notify,
                    rt.shutdown(),
                );
                rt.tasks().spawn("registration", registration_task);
                absence
            });
            let watch_task = intent::watch_intent(
                cluster.clone(),
                records.clone(),
                intents.clone(),
                absence,
                rt.shutdown(),
            );
            rt.tasks().spawn("intent", watch_task);
            Some(cluster)
        }
    };
    if let Some((pilot, remembered)) =
        node.as_ref().and_then(|node| Some((node.pilot.clone()?, node.remembered)))
    {
        intents.send_replace(Some(IntentSnapshot { pilot, remembered }));
    }
    let port_task = metrics_tls::maintain_port(
        security.clone(),
        volume.clone(),
        intent.clone(),
        metrics_port,
        rt.shutdown(),
    );
    rt.tasks().spawn("metrics-tls", port_task);
    let metrics = Metrics::register(rt.metrics());
    let namesake = match &cluster {
        Some(cluster) => {
            let (holder, namesake) = watch::channel(NameHolder::Open);
            let (own_instance, intent_receiver) = (settings.instance(), intent.clone());
            let holder_task = name_holder::track_holder(
                own_instance,
                cluster.clone(),
                intent_receiver,
                holder,
                rt.shutdown(),
            );
            rt.tasks().spawn("namesake", holder_task);
            let (intent_sender, holder_receiver) = (intents.clone(), namesake.clone());
            let heartbeat = metrics.heartbeat.clone();
            let report = reporter::run_reporter(
                cluster.clone(),
                status_updates,
                intent_sender,
                holder_receiver,
                heartbeat,
                rt.shutdown(),
            );
            rt.tasks().spawn("reporter", report);
            namesake
        }
        None => name_holder::sole_holder(),
    };
    let (messages, inbox) = mpsc::channel(QUEUE);
    let data = settings.data.clone();
    let driver = (settings.database.make)(settings.config.clone(), data, volume.clone());
    let instance = settings.instance();
    let settings = Arc::new(settings);
    let ctx = RunnerContext {
        settings,
        driver,
        supervisor,
        rt: rt.clone(),
        cluster,
        volume,
        records,
        security,
        metrics,
        messages,
        known_peers: KnownPeers::default(),
    };
    let installation = takeover.installation().to_owned();
    let report = ReportPublisher::new(&ctx, reports, answers, (instance, installation));
    let tracker = IntentTracker::new(intent, namesake);
    let succession = ProgramHandover { takeover, listeners, resumed: Vec::new() };
    let mut runner = NodeRunner::new(ctx, inbox, tracker, report, succession);
    if let Some(node) = node {
        runner.resume_node(&version, node, child)?;
    }
    runner.recovery.set_times(panics);
    #[cfg(debug_assertions)]
    panic_injection::watch_panic_file(&runner.ctx);
    let loop_result = AssertUnwindSafe(runner.run_loop(&mut signals)).catch_unwind().await;
    let code = match loop_result {
        Ok(code) => code,
        Err(_) => runner.survive_loop_panic(&mut signals).await,
    };
    rt.shutdown().trigger();
    // A moment for the last report; the database is down already.
    if tokio::time::timeout(Duration::from_millis(1500), rt.tasks().join()).await.is_err() {
        warn!("Some tasks did not end in time");
    }
    drop(intents);
    Ok(code)
}

struct NodeRunner {
    ctx: RunnerContext,
    state: NodeMachine,
    timers: MachineTimers,
    inbox: mpsc::Receiver<RunnerMessage>,
    wanted: IntentTracker,
    starting: NodeStartup,
    running: DatabaseProcess,
    ledger: VolumeLedger,
    report: ReportPublisher,
    leading: LeaderCandidacy,
    succession: ProgramHandover,
    recovery: PanicRecovery,
}

impl NodeRunner {
    fn new(
        ctx: RunnerContext,
        inbox: mpsc::Receiver<RunnerMessage>,
        tracker: IntentTracker,
        report: ReportPublisher,
        succession: ProgramHandover,
    ) -> Self {
        let limits = TimeLimits {
            grace: ctx.settings.grace,
            stop: ctx.driver.stop_plan(),
            silence: ctx.settings.silence,
            dump: ctx.driver.dump_signal(),
        };
        Self {
            // Whether the node has left its cluster is read as soon as the volume answers.
            state: NodeMachine::new(limits, false),
            timers: MachineTimers::default(),
            inbox,
            wanted: tracker,
            starting: NodeStartup::new(),
            running: DatabaseProcess::new(),
            ledger: VolumeLedger::new(&ctx),
            report,
            leading: LeaderCandidacy::new(),
            succession,
            recovery: PanicRecovery::new(ctx.rt.tasks()),
            ctx,
        }
    }

    /// Loops until the machine says which exit code to end with.
    async fn run_loop(&mut self, signals: &mut SignalStream) -> u8 {
        storage::watch_storage(&self.ctx);
        VolumeLedger::recall_records(&self.ctx);
        loop {
            if let NodePhase::Exited(code) = self.state.life {
                if self.ctx.settings.pod_uid.is_none() {
                    // The next process for this node need not wait for signs of life of this one.
                    self.report.facts.instance = None;
                }
                self.publish_report();
                return self.recovery.exit_code(code);
            }
            self.publish_report();
            self.hand_over().await;
            // Dropped futures lose nothing: signals stay in the kernel, the exit and messages
            // in their channels, the timers in their table.
            tokio::select! {
                biased;
                signal = self.ctx.supervisor.next_signal(signals) => {
                    self.handle_event(MachineEvent::Signal(signal.number));
                }
                exit = self.running.wait_for_exit() => self.handle_exit(exit).await,
                Some(message) = self.inbox.recv() => self.handle_message(message),
                Ok(()) = self.wanted.intent.changed(), if self.ledger.is_recalled() => {
                    self.take_intent();
                }
                Ok(()) = self.wanted.namesake.changed() => self.heed_namesake(),
                timer = self.timers.next_due() => self.handle_event(MachineEvent::Timer(timer)),
                found = self.succession.takeover.next() => self.heed_program(found),
                () = self.recovery.wait_until_due() => if let Some(code) = self.recover_from_panic().await {
                    return code;
                },
            }
        }
    }

    fn handle_event(&mut self, event: MachineEvent) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let old_phase = report::pilot_phase(&self.state, &self.report.facts);
            let (state, effects) = self.state.clone().step(event);
            self.state = state;
            let phase = report::pilot_phase(&self.state, &self.report.facts);
            if phase != old_phase {
                info!(%phase, "Entered a new phase of the node's life");
            }
            for effect in effects {
                // Only the effect that starts the database is answered at once.
                next = self.carry_out(effect).or(next);
            }
        }
    }

    fn publish_report(&mut self) {
        let successor = self.succession.takeover.successor();
        self.report.publish_status(&self.ctx, &self.state, &self.wanted, successor);
        self.leading.update_eligibility(&self.state, &self.wanted.holder);
    }

    fn heed_namesake(&mut self) {
        if let Some(stop) = self.wanted.heed_namesake() {
            self.handle_event(stop);
        }
        if self.ledger.is_recalled() {
            self.take_intent();
        }
    }

    fn heed_program(&mut self, event: takeover::TakeoverEvent) {
        if let takeover::TakeoverEvent::Appeared(candidate) = event {
            let handoff = self.build_handoff(&ParkedPipes::default(), None);
            self.succession.takeover.check_candidate(candidate, &self.ctx.supervisor, &handoff);
        }
    }

    fn take_intent(&mut self) {
        let Some(IntentUpdate { first, changed, goes_on, want, restart }) =
            self.wanted.take_update()
        else {
            return;
        };
        let Some(pilot) = &self.wanted.pilot else { return };
        let policy = TakeoverPolicy::from_spec(pilot.spec.pilot_update.as_deref());
        self.succession.takeover.set_policy(policy);
        let silence = self.ctx.settings.silence_limit(&pilot.spec);
        if silence != self.state.limits().silence {
            info!(seconds = silence.as_secs(), "Another limit of silence counts");
            self.handle_event(MachineEvent::SilenceLimit(silence));
        }
        let Some(pilot) = &self.wanted.pilot else { return };
        self.report.set_security(pilot.spec.security.as_ref(), self.wanted.remembered);
        if first {
            self.report.continue_from(&self.ctx, pilot);
            let intent = self.wanted.intent.clone();
            self.leading.start_election(&self.ctx, pilot, &self.report, intent);
        }
        if !changed && !goes_on {
            return;
        }
        self.ledger.remember_intent(&self.wanted);
        // A phase that a later release added neither starts nor stops anything here.
        let Some(want) = want.or(self.state.desired_intent()) else {
            let phase = pilot.spec.phase.as_ref().map(ToString::to_string).unwrap_or_default();
            warn!(phase, "The phase that is wanted is not known; nothing is started");
            self.report.facts.waiting = Some(format!(
                "spec.phase {phase:?} is not known to this pilot, and nothing is started; set \
                 another"
            ));
            return;
        };
        let is_ordered = is_restart_ordered(&pilot.spec, self.report.facts.started_for.as_deref());
        self.handle_event(MachineEvent::RestartOrdered(is_ordered));
        self.handle_event(MachineEvent::Intent { want, restart, changed });
        self.refresh_peers();
    }
}
