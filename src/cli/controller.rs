//! The command line of `navigator controller`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::{complain, logging};
use crate::{
    api::names,
    controller::{self, Config, page::PageAccess},
    database::{DatabaseList, controllers},
    error::{chain, exit},
    runtime::{Runtime, build_info, signals},
};

/// How long the tasks may take to end; giving the lease back takes longest.
const ENDING: Duration = Duration::from_secs(5);

/// Turns clusters into objects of Kubernetes.
///
/// Several may run: one leads and acts, the others wait for its lease.
///
/// Exit codes: 0 ended as asked, 1 failed or lost the lead, 64 unusable arguments, 70 a task
/// panicked.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  navigator controller --pilot-image quay.io/jetstack/navigator:v0.2.0
  navigator controller --kubeconfig ~/.kube/config --namespace shop --pilot-image …")]
pub(crate) struct Args {
    /// Image that holds the pilot of every database node, unless its cluster names one.
    #[arg(long, env = "NAVIGATOR_PILOT_IMAGE", value_name = "IMAGE")]
    pilot_image: String,
    /// The one namespace to look after; all of them when absent.
    #[arg(long, env = "NAVIGATOR_WATCH_NAMESPACE")]
    namespace: Option<String>,
    /// Namespace of the install: the leader lease and the record of the store's identity.
    #[arg(long, env = "NAVIGATOR_NAMESPACE", value_name = "NAMESPACE", default_value = names::NAMESPACE)]
    install_namespace: String,
    /// File that says how to reach Kubernetes; the pod's own identity when absent.
    #[arg(long, env = "NAVIGATOR_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Act only while holding the leader lease; turn off where only one controller can run.
    #[arg(
        long,
        env = "NAVIGATOR_LEADER_ELECT",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    leader_elect: bool,
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
    /// Name clusters as owners of what is made for them. Only to go back to a release before 0.3,
    /// which knows its objects by that: Kubernetes' garbage collector decides about databases then.
    #[arg(long, env = "NAVIGATOR_OWNER_REFERENCES")]
    owner_references: bool,
    /// Seconds without heartbeat after which a Pilot that no cluster wants is deleted.
    #[arg(long, env = "NAVIGATOR_PILOT_GC_AFTER", value_name = "SECONDS", default_value_t = 3600)]
    pilot_gc_after: u64,
    /// Who may read the status page at `/` of that address: `local` (who connects from this machine
    /// or pod, as `kubectl port-forward` does), `all` or `nobody`.
    #[arg(long, env = "NAVIGATOR_STATUS_PAGE", value_name = "READERS", default_value = "local")]
    status_page: PageAccess,
    /// Address of metrics, health and the status page.
    #[arg(long, env = "NAVIGATOR_ADMIN_ADDRESS", value_name = "ADDRESS:PORT", default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), names::port::METRICS))]
    admin_address: SocketAddr,
    /// Name of this controller among others; a random part is added.
    #[arg(long, env = "NAVIGATOR_POD_NAME", value_name = "NAME", default_value = names::CONTROLLER)]
    pod_name: String,
    #[command(flatten)]
    logging: logging::Args,
}

pub(crate) fn run(args: Args, databases: DatabaseList) -> u8 {
    if let Err(text) = args.logging.init() {
        complain(&text);
        return exit::USAGE;
    }
    let (config, kubeconfig) = match config(args) {
        Ok(settings) => settings,
        Err(text) => {
            complain(&text);
            return exit::USAGE;
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("failed to start threads: {error}"));
            return exit::FAILURE;
        }
    };
    let code = runtime.block_on(act(config, databases, kubeconfig.as_deref()));
    // A name lookup that is under way holds its thread; the process does not wait for it.
    runtime.shutdown_background();
    code
}

async fn act(config: Config, databases: DatabaseList, kubeconfig: Option<&Path>) -> u8 {
    let client = match client(kubeconfig).await {
        Ok(client) => client,
        Err(text) => {
            complain(&text);
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
    info!(version = build_info::VERSION, identity = config.identity, "Starting the controller");
    let ended = controller::run(config, controllers(databases), client, runtime.clone()).await;
    runtime.shutdown().trigger();
    // A client that hangs on the admin port must not keep a deposed leader alive.
    if timeout(ENDING, runtime.tasks().join()).await.is_err() {
        warn!("Some tasks did not end in time");
    }
    match ended {
        Ok(()) if runtime.tasks().panicked() => exit::SOFTWARE,
        Ok(()) => exit::OK,
        Err(failure) => {
            error!(error = %chain(&failure), "The controller ends");
            exit::FAILURE
        }
    }
}

/// Turns the arguments into settings, and checks them before a port is bound.
fn config(args: Args) -> Result<(Config, Option<PathBuf>), String> {
    let Args {
        pilot_image,
        namespace,
        install_namespace,
        kubeconfig,
        leader_elect,
        leader_elect_lease_duration: lease,
        leader_elect_renew_deadline: renew,
        leader_elect_retry_period: retry,
        owner_references,
        pilot_gc_after,
        status_page,
        admin_address,
        pod_name,
        logging: _,
    } = args;
    if pilot_image.is_empty() {
        return Err("--pilot-image: must not be empty".to_owned());
    }
    // A leader must have tried to renew more than once, and have stopped before another may begin.
    if !(retry > 0 && retry < renew && renew < lease) {
        return Err(format!(
            "leader election needs 0 < retry period < renew deadline < lease duration, not \
             {retry}, {renew}, {lease} s"
        ));
    }
    let config = Config {
        pilot_image,
        namespace: namespace.filter(|namespace| !namespace.is_empty()),
        install_namespace,
        owner_references,
        leader_elect,
        lease_duration: Duration::from_secs(lease),
        renew_deadline: Duration::from_secs(renew),
        retry_period: Duration::from_secs(retry),
        pilot_gc_after: Duration::from_secs(pilot_gc_after),
        admin: admin_address,
        page: status_page,
        identity: format!("{pod_name}_{}", uuid::Uuid::new_v4()),
    };
    Ok((config, kubeconfig))
}

async fn client(kubeconfig: Option<&Path>) -> Result<kube::Client, String> {
    let config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path)
                .map_err(|error| format!("--kubeconfig {}: {}", path.display(), chain(&error)))?;
            kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .map_err(|error| format!("--kubeconfig {}: {}", path.display(), chain(&error)))?
        }
        None => kube::Config::incluster().map_err(|error| {
            format!("not in a pod, and no --kubeconfig was given: {}", chain(&error))
        })?,
    };
    kube::Client::try_from(config)
        .map_err(|error| format!("failed to make a client: {}", chain(&error)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(line: &str) -> Result<Config, String> {
        let words = ["controller"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        config(cli.args).map(|(config, _)| config)
    }

    #[test]
    fn the_pilot_image_is_required_and_periods_are_checked() {
        assert!(parsed("").unwrap_err().contains("--pilot-image"));
        let config = parsed("--pilot-image x").unwrap();
        assert!(config.leader_elect);
        assert_eq!(config.namespace, None);
        assert_eq!(config.identity.split('_').next(), Some(names::CONTROLLER));
        assert!(!parsed("--pilot-image x --leader-elect=false").unwrap().leader_elect);
        let wrong = parsed("--pilot-image x --leader-elect-renew-deadline 15").unwrap_err();
        assert!(wrong.contains("lease duration"), "{wrong}");
    }
}
