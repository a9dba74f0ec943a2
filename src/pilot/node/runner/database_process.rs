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

pub(super) use self::decommission::{cancel_answered, decommission_answered};
use super::{RunnerMessage, context::RunnerContext, intent_tracker::IntentTracker, startup::hung};
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
    pub(super) async fn exited(&mut self) -> ChildExit {
        match &mut self.child {
            Some(child) => child.exited().await,
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
        wanted: &IntentTracker,
        marked: Option<VolumeMark>,
    ) {
        self.following = CancellationToken::new();
        let Some(pid) = self.child.as_ref().map(|child| child.pid) else { return };
        let (unsettled, told) = watch::channel(true);
        self.follow(ctx, "observe", observation::observe(ctx.clone(), pid, marked, unsettled));
        self.follow(ctx, "upkeep", upkeep::keep_up(ctx.clone(), wanted.intent.clone()));
        self.follow(ctx, "security", security::keep(ctx.clone(), pid, wanted.intent.clone()));
        self.follow(ctx, "forget", forgetting::forget_lost(ctx.clone(), wanted.intent.clone()));
        if let (Some(_), Some(pilot)) = (&ctx.cluster, &wanted.pilot) {
            let work = observation::watch_peers(ctx.clone(), pilot.clone(), told);
            self.follow(ctx, "peers", work);
        }
    }

    pub(super) fn cease_following(&self) {
        self.following.cancel();
    }

    /// Spawns a task about the running process, which is cancelled when the process has ended.
    pub(super) fn follow<F>(&self, ctx: &RunnerContext, name: &'static str, work: F)
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
    pub(super) fn refresh(&self, ctx: &RunnerContext, mut node: Box<DatabaseNode>) {
        let (driver, volume) = (ctx.driver.clone(), ctx.volume.clone());
        self.follow(ctx, "refresh", async move {
            node.addresses = peer_addresses::look_up(&node).await;
            let told = match volume.during(async move { driver.refresh(&node).await }).await {
                Ok(told) => told.map_err(|error| chain(&error).to_string()),
                Err(hangs) => Err(hangs.to_string()),
            };
            if let Err(error) = told {
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
        let low = ctx.settings.allows_low_limits(&node.pilot.spec);
        let Some(pid) = self.child.as_ref().map(|child| child.pid) else { return };
        self.follow(ctx, "validate", async move {
            let (database, driver) = (context.settings.database, context.driver.clone());
            node.addresses = peer_addresses::look_up(&node).await;
            let validated = context.volume.during(async move {
                let failed = preflight::check_database(database, &*driver, &node, low).await;
                if !failed.is_empty() {
                    return Some(report::joined(failed.iter()));
                }
                match driver.validate(&node).await {
                    // What must happen elsewhere first is waited for when the database starts.
                    Ok(()) | Err(driver::Error::NotYet(_)) => None,
                    Err(error) => Some(chain(&error).to_string()),
                }
            });
            let rejected = validated.await.unwrap_or_else(|hangs| Some(hung(hangs).message));
            // What the database has against the new configuration is told before that counts as
            // valid.
            if let (None, Ok(Ok(seen))) =
                (&rejected, timeout(observation::LIMIT, context.driver.observe()).await)
            {
                let result = Box::new(Ok(seen));
                context.tell(RunnerMessage::Observed { pid, result, mark: None }).await;
            }
            context.tell(RunnerMessage::Validated { attempt, rejected }).await;
        });
    }

    /// Announces the restart and flushes. `node` is `None` before its Pilot was seen; then there is
    /// no announcement.
    pub(super) fn flush(&self, ctx: &RunnerContext, node: Option<Box<DatabaseNode>>) {
        info!("Flushing the database");
        let context = ctx.clone();
        self.follow(ctx, "flush", async move {
            if let Some(node) = node
                && let Err(error) = context.driver.announce_restart(&node).await
            {
                warn!(error = %chain(&error), "The restart was not announced");
            }
            match context.driver.flush().await {
                Ok(()) => info!("Flushed the database"),
                Err(error) => warn!(error = %chain(&error), "Flush failed; stopping without"),
            }
            context.tell(RunnerMessage::Flushed).await;
        });
    }
}
