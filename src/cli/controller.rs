//! The command line of `navigator controller`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use tracing::info;

use super::{
    election::{self, ClientArgs, ClientRetry, ElectionArgs},
    logging, print_error,
};
use crate::{
    api::names,
    controller::{self, Config, page::PageAccess},
    database::{DatabaseList, managed_databases},
    error::exit,
};

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
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    election: ElectionArgs,
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

pub(crate) fn run_controller(args: Args, databases: DatabaseList) -> u8 {
    if let Err(text) = args.logging.init() {
        print_error(&text);
        return exit::USAGE;
    }
    let (config, kubeconfig) = match build_config(args) {
        Ok(settings) => settings,
        Err(text) => {
            print_error(&text);
            return exit::USAGE;
        }
    };
    election::run_component(
        "controller",
        kubeconfig.as_deref(),
        ClientRetry::Tried,
        |client, runtime| {
            info!(identity = config.identity, "This is a candidate for the lead");
            controller::run_controller(config, managed_databases(databases), client, runtime)
        },
    )
}

/// Turns the arguments into settings, and checks them before a port is bound.
fn build_config(args: Args) -> Result<(Config, Option<PathBuf>), String> {
    let Args {
        pilot_image,
        namespace,
        install_namespace,
        client,
        election,
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
    let identity = format!("{pod_name}_{}", uuid::Uuid::new_v4());
    let times = election.build_config(identity.clone())?;
    let config = Config {
        pilot_image,
        namespace: namespace.filter(|namespace| !namespace.is_empty()),
        install_namespace,
        owner_references,
        leader_elect: election.leader_elect,
        lease_duration: times.lease_duration,
        renew_deadline: times.renew_deadline,
        retry_period: times.retry_period,
        pilot_gc_after: Duration::from_secs(pilot_gc_after),
        admin: admin_address,
        page: status_page,
        identity,
    };
    Ok((config, client.kubeconfig))
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
        build_config(cli.args).map(|(config, _)| config)
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
