//! Flags of the roles of which one process acts and the others wait, and how such a role is run.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use kube::Client;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::print_error;
use crate::{
    error::{chain, exit},
    runtime::{Runtime, build_info, kubeconfig, leader::ElectionConfig, signals},
};

/// How long the tasks may take to end; giving the lease back takes longest.
const ENDING: Duration = Duration::from_secs(5);

/// How Kubernetes is reached.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct ClientArgs {
    /// File that says how to reach Kubernetes; the pod's own identity when absent.
    #[arg(long, env = "NAVIGATOR_KUBECONFIG", value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
}

/// Whether and how the process takes part in leader election.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[expect(clippy::struct_field_names, reason = "the names are those of the flags")]
pub(super) struct ElectionArgs {
    /// Act only while holding the leader lease; turn off where only one process of the role can run.
    #[arg(
        long,
        env = "NAVIGATOR_LEADER_ELECT",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    pub(super) leader_elect: bool,
    /// Seconds after which others may take a lease that its holder does not renew.
    #[arg(
        long,
        env = "NAVIGATOR_LEADER_ELECTION_LEASE_DURATION",
        value_name = "SECONDS",
        default_value_t = 15
    )]
    leader_elect_lease_duration: u64,
    /// Seconds for which a leader that cannot renew its lease goes on acting.
    #[arg(
        long,
        env = "NAVIGATOR_LEADER_ELECTION_RENEW_DEADLINE",
        value_name = "SECONDS",
        default_value_t = 10
    )]
    leader_elect_renew_deadline: u64,
    /// Seconds between attempts to take or renew the lease.
    #[arg(
        long,
        env = "NAVIGATOR_LEADER_ELECTION_RETRY_PERIOD",
        value_name = "SECONDS",
        default_value_t = 2
    )]
    leader_elect_retry_period: u64,
}

impl ElectionArgs {
    /// Returns the settings of the election for a candidate of this identity, and checks its times.
    ///
    /// # Errors
    /// When the times do not fit together; the text is for the user.
    pub(super) fn build_config(&self, identity: String) -> Result<ElectionConfig, String> {
        let (lease, renew, retry) = (
            self.leader_elect_lease_duration,
            self.leader_elect_renew_deadline,
            self.leader_elect_retry_period,
        );
        // A leader must have tried to renew more than once, and have stopped before another may
        // begin.
        if !(retry > 0 && retry < renew && renew < lease) {
            return Err(format!(
                "leader election needs 0 < retry period < renew deadline < lease duration, not \
                 {retry}, {renew}, {lease} s"
            ));
        }
        Ok(ElectionConfig {
            identity,
            lease_duration: Duration::from_secs(lease),
            renew_deadline: Duration::from_secs(renew),
            retry_period: Duration::from_secs(retry),
        })
    }
}

/// What becomes of a request that the server refuses for now (429, 503, 504).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientRetry {
    /// It is asked again for a while, before its author hears of it.
    Tried,
    /// Its author is told at once.
    Told,
}

/// Runs a role to its end on threads of its own, and returns the exit code. `component` names the
/// role in the log.
pub(super) fn run_component<E, R>(
    component: &str,
    kubeconfig: Option<&Path>,
    retry: ClientRetry,
    role: impl FnOnce(Client, Runtime) -> R,
) -> u8
where
    E: std::error::Error + 'static,
    R: Future<Output = Result<(), E>>,
{
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_error(&format!("failed to start threads: {error}"));
            return exit::FAILURE;
        }
    };
    let code = runtime.block_on(run_until_signal(component, kubeconfig, retry, role));
    // A name lookup that is under way holds its thread; the process does not wait for it.
    runtime.shutdown_background();
    code
}

async fn run_until_signal<E, R>(
    component: &str,
    kubeconfig: Option<&Path>,
    retry: ClientRetry,
    role: impl FnOnce(Client, Runtime) -> R,
) -> u8
where
    E: std::error::Error + 'static,
    R: Future<Output = Result<(), E>>,
{
    let client = match build_client(kubeconfig, retry).await {
        Ok(client) => client,
        Err(text) => {
            print_error(&text);
            return exit::USAGE;
        }
    };
    let runtime = Runtime::new();
    match signals::shutdown_on_signal(&runtime.shutdown()) {
        Ok(signals) => runtime.tasks().spawn("signals", signals),
        Err(failure) => {
            error!(error = %chain(&failure), "Failed to listen to signals");
            return exit::FAILURE;
        }
    }
    info!(version = build_info::VERSION, "Starting the {component}");
    let outcome = role(client, runtime.clone()).await;
    runtime.shutdown().trigger();
    // A client that hangs on the admin port must not keep a deposed leader alive.
    if timeout(ENDING, runtime.tasks().join()).await.is_err() {
        warn!("Some tasks did not end in time");
    }
    match outcome {
        Ok(()) if runtime.tasks().has_panicked() => exit::SOFTWARE,
        Ok(()) => exit::OK,
        Err(failure) => {
            error!(error = %chain(&failure), "The {component} ends");
            exit::FAILURE
        }
    }
}

async fn build_client(file: Option<&Path>, retry: ClientRetry) -> Result<Client, String> {
    let mut config = match file {
        Some(path) => {
            let loaded_config = kubeconfig::load_config(path).await;
            loaded_config.map_err(|error| format!("--kubeconfig: {}", chain(&error)))?
        }
        None => kube::Config::incluster().map_err(|error| {
            format!("not in a pod, and no --kubeconfig was given: {}", chain(&error))
        })?,
    };
    config.default_retry = retry == ClientRetry::Tried;
    Client::try_from(config).map_err(|error| format!("failed to make a client: {}", chain(&error)))
}
