//! The database's process, while there is one, and the tasks about it, which end with it.

mod decommission;
mod forgetting;
mod observation;
mod security;
mod upkeep;

use std::io;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub(super) use self::decommission::{handle_cancel_answer, handle_decommission_answer};
use super::{
    RunnerMessage, context::RunnerContext, intent_tracker::IntentTracker,
    startup::hung_volume_check,
};
use crate::{
    error::chain,
    pilot::{
        driver::{self, DatabaseNode, ProcessSpec},
        kube::peer_addresses,
        node::{machine::AttemptId, preflight, report},
        process::supervisor::{ChildCommand, ChildExit, ChildProcess},
        volume::pilot_files::{DatabaseRun, VolumeMark},
    },
    runtime::{build_info, cgroup},
};

pub(super) struct DatabaseProcess {
    pub(super) child: Option<ChildProcess>,
    /// Starts beyond the first; -1 before the first.
    pub(super) restarts: i32,
    /// The kernel's count of OOM kills when the database was started.
    pub(super) oom_kills: u64,
    /// Ends the tasks that follow the process.
    following: CancellationToken,
}

impl DatabaseProcess {
    pub(super) fn new() -> Self {
        Self { child: None, restarts: -1, oom_kills: 0, following: CancellationToken::new() }
    }

    /// Waits for the process to end. Cancel-safe.
    pub(super) async fn wait_for_exit(&mut self) -> ChildExit {
        match &mut self.child {
            Some(child) => child.wait_for_exit().await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn spawn(
        &mut self,
        ctx: &RunnerContext,
        process: &ProcessSpec,
    ) -> io::Result<DatabaseRun> {
        let command = ChildCommand { user: ctx.settings.user, ..ChildCommand::from(process) };
        self.oom_kills = cgroup::oom_kills();
        let child = ctx.supervisor.spawn(&command)?;
        let pid = child.pid;
        info!(pid, program = %process.program.display(), "Started the database");
        self.restarts += 1;
        ctx.metrics.starts.inc();
        self.child = Some(child);
        Ok(DatabaseRun {
            pid,
            start_time: Time(Timestamp::now()),
            pilot_version: build_info::VERSION.to_owned(),
        })
    }

    /// Follows the process from now on: asks it how it is, lets it do upkeep, and looks at its
    /// peers.
    pub(super) fn begin_following(
        &mut self,
        ctx: &RunnerContext,
        tracker: &IntentTracker,
        known_mark: Option<VolumeMark>,
    ) {
        self.following = CancellationToken::new();
        let Some(pid) = self.child.as_ref().map(|child| child.pid) else { return };
        let (unsettled_sender, unsettled_receiver) = watch::channel(true);
        self.spawn_task(
            ctx,
            "observe",
            observation::observe_database(ctx.clone(), pid, known_mark, unsettled_sender),
        );
        self.spawn_task(
            ctx,
            "upkeep",
            upkeep::run_pending_tasks(ctx.clone(), tracker.intent.clone()),
        );
        self.spawn_task(
            ctx,
            "security",
            security::keep_security(ctx.clone(), pid, tracker.intent.clone()),
        );
        self.spawn_task(
            ctx,
            "forget",
            forgetting::forget_lost(ctx.clone(), tracker.intent.clone()),
        );
        if let (Some(_), Some(pilot)) = (&ctx.cluster, &tracker.pilot) {
            let work = observation::watch_peers(ctx.clone(), pilot.clone(), unsettled_receiver);
            self.spawn_task(ctx, "peers", work);
        }
    }

    pub(super) fn cease_following(&self) {
        self.following.cancel();
    }

    /// Spawns a task about the running process, which is cancelled when the process has ended.
    pub(super) fn spawn_task<F>(&self, ctx: &RunnerContext, name: &'static str, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let token = self.following.clone();
        ctx.rt.tasks().spawn(name, async move {
            tokio::select! {
                () = token.cancelled() => {}
                () = work => {}
            }
        });
    }

    /// Tells a running database what is new about its peers.
    pub(super) fn refresh_peers(&self, ctx: &RunnerContext, mut node: Box<DatabaseNode>) {
        let (driver, volume) = (ctx.driver.clone(), ctx.volume.clone());
        self.spawn_task(ctx, "refresh", async move {
            node.addresses = peer_addresses::look_up(&node).await;
            let refresh_result =
                match volume.visit_async(async move { driver.refresh_peers(&node).await }).await {
                    Ok(result) => result.map_err(|error| chain(&error).to_string()),
                    Err(volume_timeout) => Err(volume_timeout.to_string()),
                };
            if let Err(error) = refresh_result {
                debug!(error, "Database was not told about its peers");
            }
        });
    }

    /// Validates the wanted configuration. The running process and its files are not touched.
    pub(super) fn validate(
        &self,
        ctx: &RunnerContext,
        mut node: Box<DatabaseNode>,
        attempt: AttemptId,
    ) {
        let context = ctx.clone();
        let is_low_allowed = ctx.settings.allows_low_limits(&node.pilot.spec);
        let Some(pid) = self.child.as_ref().map(|child| child.pid) else { return };
        self.spawn_task(ctx, "validate", async move {
            let (database, driver) = (context.settings.database, context.driver.clone());
            node.addresses = peer_addresses::look_up(&node).await;
            let validation = context.volume.visit_async(async move {
                let failed_checks =
                    preflight::check_database(database, &*driver, &node, is_low_allowed).await;
                if !failed_checks.is_empty() {
                    return Some(report::join_messages(failed_checks.iter()));
                }
                match driver.validate(&node).await {
                    // What must happen elsewhere first is waited for when the database starts.
                    Ok(()) | Err(driver::Error::NotYet(_)) => None,
                    Err(error) => Some(chain(&error).to_string()),
                }
            });
            let rejected = validation
                .await
                .unwrap_or_else(|volume_timeout| Some(hung_volume_check(volume_timeout).message));
            // What the database has against the new configuration is told before that counts as
            // valid.
            if let (None, Ok(Ok(node_observation))) =
                (&rejected, timeout(observation::LIMIT, context.driver.observe()).await)
            {
                let result = Box::new(Ok(node_observation));
                context.send_message(RunnerMessage::Observed { pid, result, mark: None }).await;
            }
            context.send_message(RunnerMessage::Validated { attempt, rejected }).await;
        });
    }

    /// Announces the restart and flushes. `node` is `None` before its Pilot was seen; then there is
    /// no announcement.
    pub(super) fn flush(&self, ctx: &RunnerContext, node: Option<Box<DatabaseNode>>) {
        info!("Flushing the database");
        let context = ctx.clone();
        self.spawn_task(ctx, "flush", async move {
            if let Some(node) = node
                && let Err(error) = context.driver.announce_restart(&node).await
            {
                warn!(error = %chain(&error), "The restart was not announced");
            }
            match context.driver.flush().await {
                Ok(()) => info!("Flushed the database"),
                Err(error) => warn!(error = %chain(&error), "Flush failed; stopping without"),
            }
            context.send_message(RunnerMessage::Flushed).await;
        });
    }
}
