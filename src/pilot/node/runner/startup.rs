//! What comes before a start: checks, the turn, the configuration, and programs to run.
//!
//! Nothing here waits on the loop: whatever touches the volume is done where a volume that
//! hangs holds up neither signals nor probes.

mod programs;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(super) use self::programs::{PreparationError, handle_preparation};
use super::{RunnerMessage, context::RunnerContext};
use crate::{
    api::v1beta1::{Pilot, PilotSecurity},
    error::chain,
    pilot::{
        driver::{self, DatabaseNode, FailedCheck, ProcessSpec},
        kube::{
            founding::{self, StartApplicant, StartTurn},
            peer_addresses, peers,
        },
        node::{
            disk_shortage::DiskShortage,
            machine::{AttemptId, MachineEvent},
            preflight,
            report::NodeFacts,
        },
        security::StartSecurity,
        volume::{data_volume::VolumeTimeout, ownership},
    },
};

pub(super) struct NodeStartup {
    pub(super) peers: Vec<Pilot>,
    /// The permission with which the node was last let start.
    allowed: founding::StartPermit,
    /// The data on the volume were of another ring when the node last took its turn.
    foreign: bool,
    pub(super) shortage: DiskShortage,
    /// The process that was configured last.
    pub(super) process: Option<ProcessSpec>,
    /// Cancels the task that prepares a start.
    preparing: CancellationToken,
    /// Ends the programs that come before the database.
    programs: CancellationToken,
}

impl NodeStartup {
    pub(super) fn new() -> Self {
        Self {
            peers: Vec::new(),
            allowed: founding::StartPermit::default(),
            foreign: false,
            shortage: DiskShortage::default(),
            process: None,
            preparing: CancellationToken::new(),
            programs: CancellationToken::new(),
        }
    }

    pub(super) fn may_found(&self) -> bool {
        self.allowed.may_found
    }

    /// Goes on with a node that an earlier program of this process started.
    pub(super) fn taken_over(&mut self, may_found: bool) {
        self.allowed.may_found = may_found;
    }

    /// Cancels the task that prepares a start. Called when no start is wanted any more.
    pub(super) fn cancel_start(&self) {
        self.preparing.cancel();
    }

    /// Spawns a task that prepares a start; an earlier one is cancelled.
    fn spawn_preparation<F>(&mut self, ctx: &RunnerContext, name: &'static str, work: F)
    where
        F: Future<Output = RunnerMessage> + Send + 'static,
    {
        self.preparing.cancel();
        self.preparing = CancellationToken::new();
        let (token, messages) = (self.preparing.clone(), ctx.messages.clone());
        ctx.rt.tasks().spawn(name, async move {
            tokio::select! {
                () = token.cancelled() => {}
                // An error means that the loop is gone.
                answer = work => drop(messages.send(answer).await),
            }
        });
    }

    pub(super) fn run_preflight(
        &mut self,
        ctx: &RunnerContext,
        node: Box<DatabaseNode>,
        attempt: AttemptId,
    ) {
        let database = ctx.settings.database;
        let mut host = preflight::PreflightContext {
            require_mount: ctx.settings.require_mount,
            ports: database.ports.to_vec(),
            namespace: ctx.settings.namespace.clone(),
            orders_by_time: database.orders_by_time,
            api_time: None,
            shortage: self.shortage.clone(),
        };
        let context = ctx.clone();
        let (driver, volume) = (ctx.driver.clone(), ctx.volume.clone());
        let is_low_allowed = ctx.settings.allows_low_limits(&node.pilot.spec);
        let database = ctx.settings.database;
        self.spawn_preparation(ctx, "preflight", async move {
            if host.orders_by_time {
                host.api_time = context.api_time().await;
            }
            let checked_node = node.clone();
            let check_result = volume
                .visit(move |lock| {
                    let failed_checks = preflight::check_host(&checked_node, &host, lock);
                    // Data are looked for under the lock only, when no other pilot writes to the
                    // volume.
                    (failed_checks, lock.is_some().then(|| (database.has_data)(&checked_node.data)))
                })
                .await;
            let (host_checks, holds) = match check_result {
                Ok((failed_checks, holds)) => (Ok(failed_checks), holds),
                Err(volume_timeout) => (Err(volume_timeout), None),
            };
            let all_checks = match host_checks {
                Ok(failed_checks) if failed_checks.is_empty() => {
                    volume
                        .visit_async(async move {
                            preflight::check_database(database, &*driver, &node, is_low_allowed)
                                .await
                        })
                        .await
                }
                other => other,
            };
            let failed =
                all_checks.unwrap_or_else(|volume_timeout| vec![hung_volume_check(volume_timeout)]);
            RunnerMessage::Checked { attempt, failed, holds }
        });
    }

    pub(super) fn handle_checks(
        &self,
        ctx: &RunnerContext,
        facts: &mut NodeFacts,
        attempt: AttemptId,
        failed: Vec<FailedCheck>,
    ) -> MachineEvent {
        if !failed.is_empty() {
            report_failed_checks(ctx, facts, failed);
            return MachineEvent::PreflightFailed(attempt);
        }
        if !self.foreign {
            // A report of foreign data stands until the next turn says otherwise.
            facts.preflight = Some(failed);
        }
        MachineEvent::PreflightPassed(attempt)
    }

    pub(super) fn take_turn(
        &mut self,
        ctx: &RunnerContext,
        node: Box<DatabaseNode>,
        attempt: AttemptId,
    ) {
        let context = ctx.clone();
        self.spawn_preparation(ctx, "founding", async move {
            let RunnerContext { settings, cluster, records, messages, .. } = &context;
            // A full queue only delays what is said to people.
            let report_wait = |reason| drop(messages.try_send(RunnerMessage::Waiting(reason)));
            let (database, data) = (settings.database, &settings.data);
            let applicant = StartApplicant { database, pilot: &node.pilot, records, data };
            let turn = founding::take_turn(cluster.as_ref(), applicant, report_wait).await;
            RunnerMessage::Turn { attempt, turn }
        });
    }

    pub(super) fn handle_turn(
        &mut self,
        ctx: &RunnerContext,
        facts: &mut NodeFacts,
        attempt: AttemptId,
        turn: StartTurn,
    ) -> MachineEvent {
        facts.waiting = None;
        match turn {
            StartTurn::Start(start) => {
                let may_found = start.may_found;
                self.allowed = start;
                self.foreign = false;
                facts.preflight = Some(Vec::new());
                MachineEvent::Turn { attempt, may_found }
            }
            StartTurn::Refused(check) => {
                self.foreign = true;
                report_failed_checks(ctx, facts, vec![check]);
                MachineEvent::PreflightFailed(attempt)
            }
        }
    }

    pub(super) fn configure_node(
        &mut self,
        ctx: &RunnerContext,
        mut node: Box<DatabaseNode>,
        attempt: AttemptId,
    ) {
        node.ring.clone_from(&self.allowed.ring);
        let context = ctx.clone();
        self.spawn_preparation(ctx, "configure", async move {
            context.refresh_peers(&mut node).await;
            node.addresses = peer_addresses::look_up(&node).await;
            let peers = node.peers.clone();
            let volume = context.volume.clone();
            let configuration = volume.visit_async(async move {
                let (security_report, start) =
                    context.security.before_start(&*context.driver, &node);
                let result = match start {
                    Ok(start) => write_configuration(&context, &node, start).await,
                    Err(error) => Err(error),
                };
                (security_report.map(Box::new), result)
            });
            let timeout_result = |volume_timeout| {
                (None, Err(driver::Error::NotYet(hung_volume_check(volume_timeout).message)))
            };
            let (security, result) = configuration.await.unwrap_or_else(timeout_result);
            RunnerMessage::Configured { attempt, peers, security, result }
        });
    }

    pub(super) fn handle_configuration(
        &mut self,
        ctx: &RunnerContext,
        pilot: Option<&Pilot>,
        facts: &mut NodeFacts,
        (attempt, result): (AttemptId, Result<ProcessSpec, driver::Error>),
    ) -> MachineEvent {
        match result {
            Ok(process) => {
                facts.rejected = None;
                facts.waiting = None;
                self.process = Some(process);
                return MachineEvent::Configured(attempt);
            }
            Err(driver::Error::NotYet(reason)) => {
                facts.rejected = None;
                report_waiting(facts, reason);
                self.wait_for_peers(ctx, pilot);
            }
            Err(error) => report_rejection(facts, chain(&error).to_string()),
        }
        MachineEvent::NotConfigured(attempt)
    }

    /// Waits for the peers to change, in a task: then the start is tried again.
    fn wait_for_peers(&mut self, ctx: &RunnerContext, pilot: Option<&Pilot>) {
        let (Some(cluster), Some(pilot)) = (ctx.cluster.clone(), pilot.cloned()) else {
            return;
        };
        let known_peers = self.peers.clone();
        self.spawn_preparation(ctx, "await-peers", async move {
            peers::wait_for_change(&cluster, &pilot, &known_peers).await;
            RunnerMessage::PeersMoved
        });
    }
}

/// Writes all that the database reads when it starts, and gives it to the database's user.
async fn write_configuration(
    ctx: &RunnerContext,
    node: &DatabaseNode,
    start: Option<StartSecurity>,
) -> Result<ProcessSpec, driver::Error> {
    let RunnerContext { settings, driver, security, .. } = ctx;
    let security_spec = node.pilot.spec.security.as_ref();
    let rungs = security_spec.map(PilotSecurity::security_modes).unwrap_or_default();
    let process = ProcessSpec { rungs, ..driver.configure(node).await? };
    if let (Some(start), Some(database)) = (start, driver.secured_database()) {
        security.lay_out(database, node, &start).await?;
    }
    if let Some(user) = settings.user {
        let give_error = |path, source| driver::Error::Give { path, source };
        let (config, data) = (&settings.config, &settings.data);
        // The pilot renders as root and the database reads as another user: a file with secrets is
        // readable by its owner only.
        ownership::give_directory(config, user)
            .map_err(|error| give_error(config.clone(), error))?;
        ownership::give_volume(data, user).map_err(|error| give_error(data.clone(), error))?;
    }
    Ok(process)
}

/// Reports what a start waits for, and logs it once.
pub(super) fn report_waiting(facts: &mut NodeFacts, what: String) {
    if facts.waiting.as_ref() != Some(&what) {
        info!(what, "Waiting to start");
    }
    facts.waiting = Some(what);
}

/// Reports why the wanted configuration is not the running one, and logs it once.
pub(super) fn report_rejection(facts: &mut NodeFacts, reason: String) {
    if facts.rejected.as_ref() != Some(&reason) {
        warn!(error = reason, "Configuration was rejected");
    }
    facts.rejected = Some(reason);
}

fn report_failed_checks(
    ctx: &RunnerContext,
    facts: &mut NodeFacts,
    failed_checks: Vec<FailedCheck>,
) {
    if facts.preflight.as_ref() != Some(&failed_checks) {
        for check in &failed_checks {
            warn!(reason = check.reason, explanation = check.message, "Preflight failed");
        }
    }
    ctx.metrics.preflight_failures.inc();
    facts.preflight = Some(failed_checks);
}

pub(super) fn hung_volume_check(volume_timeout: VolumeTimeout) -> FailedCheck {
    let message = format!("{volume_timeout}; see to its storage");
    FailedCheck { reason: "PreflightFailed", message }
}
