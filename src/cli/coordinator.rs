//! The command line of `navigator coordinator`.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use tracing::info;

use super::{
    election::{self, ClientArgs, ClientRetry, ElectionArgs},
    logging, print_error,
};
use crate::{
    api::names,
    coordinator::{self, Config, HubConfig, hub_address},
    database::DatabaseList,
    engine::hub::HubScope,
    error::exit,
};

/// Value of `--hub` without a hub.
const NO_HUB: &str = "none";

/// Upgrades and reboots the machines of a Kubernetes cluster, one after the other, labels them, copies
/// credentials of image registries into namespaces, gives people rights, applies plugins, and keeps the
/// objects of a hub.
///
/// A machine is drained only when the databases on it let it go. Several may run: one leads and acts,
/// the others wait for its lease.
///
/// Exit codes: 0 ended as asked, 1 failed or lost the lead, 64 unusable arguments, 70 a task
/// panicked.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  navigator coordinator --enable-cluster-upgrade
  navigator coordinator --kubeconfig ~/.kube/config --core-namespace containership-core
  navigator coordinator --hub https://hub.example.org --organization-id 6f5c… --cluster-id 90ab…")]
pub(crate) struct Args {
    /// Namespace of the objects of the cluster manager, such as ClusterUpgrades, and of the leader
    /// lease.
    #[arg(long, env = "NAVIGATOR_CORE_NAMESPACE", value_name = "NAMESPACE", default_value = names::CORE_NAMESPACE)]
    core_namespace: String,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    election: ElectionArgs,
    /// Carry upgrades out. Without it new ones are refused, as where a provider upgrades the
    /// machines; those that were accepted before are finished.
    #[arg(
        long,
        env = "ENABLE_CLUSTER_UPGRADE",
        default_value_t = false,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    enable_cluster_upgrade: bool,
    /// Copy the credentials of Registries into the namespaces that they are meant for. This takes the
    /// right to read and write the Secrets of all namespaces.
    #[arg(
        long,
        env = "NAVIGATOR_REGISTRIES",
        default_value_t = false,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    registries: bool,
    /// Keep the ClusterRoles and bindings that AuthorizationRoles and their bindings ask for. This takes
    /// the right to give any right.
    #[arg(
        long,
        env = "NAVIGATOR_RBAC_SYNC",
        default_value_t = false,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    rbac_sync: bool,
    /// Accept AuthorizationRoles that let their holders take rights beyond those that are named, such as
    /// by reading Secrets. Without it they are refused.
    #[arg(
        long,
        env = "NAVIGATOR_ALLOW_PRIVILEGED_ROLES",
        default_value_t = false,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    allow_privileged_roles: bool,
    /// Apply Plugins, each as the ServiceAccount `plugin-NAME` of the core namespace. This takes the
    /// right to act as every ServiceAccount there.
    #[arg(
        long,
        env = "NAVIGATOR_PLUGINS",
        default_value_t = false,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    plugins: bool,
    /// URL of the hub whose objects are kept, and that has the manifests of Plugins which name no other
    /// source; HTTPS only; or `none`.
    #[arg(long, env = "NAVIGATOR_HUB", value_name = "URL", default_value = NO_HUB)]
    hub: String,
    /// Folder with the file `token` for the hub, and `ca.crt` where no public authority signs the
    /// hub's certificate.
    #[arg(long, env = "NAVIGATOR_HUB_FOLDER", value_name = "FOLDER", default_value = names::HUB_FOLDER)]
    hub_folder: PathBuf,
    /// Organization that the hub is asked about.
    #[arg(long, env = "CONTAINERSHIP_CLOUD_ORGANIZATION_ID", value_name = "ID")]
    organization_id: Option<String>,
    /// Id of this cluster, as the hub knows it; without it and without a hub, the uid of the namespace
    /// kube-system.
    #[arg(long, env = "CONTAINERSHIP_CLOUD_CLUSTER_ID", value_name = "ID")]
    cluster_id: Option<String>,
    /// Take away all that is the cluster manager's own where the core namespace is annotated with
    /// `containership.io/terminate` and the id of this cluster.
    #[arg(
        long,
        env = "NAVIGATOR_ALLOW_TERMINATE",
        default_value_t = false,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        default_missing_value = "true"
    )]
    allow_terminate: bool,
    /// Address of metrics and health.
    #[arg(long, env = "NAVIGATOR_ADMIN_ADDRESS", value_name = "ADDRESS:PORT", default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), names::port::METRICS))]
    admin_address: SocketAddr,
    /// Name of this coordinator among others; a random part is added.
    #[arg(long, env = "NAVIGATOR_POD_NAME", value_name = "NAME", default_value = names::COORDINATOR)]
    pod_name: String,
    #[command(flatten)]
    logging: logging::Args,
}

pub(crate) fn run_coordinator(args: Args, databases: DatabaseList) -> u8 {
    if let Err(text) = args.logging.init() {
        print_error(&text);
        return exit::USAGE;
    }
    let (config, kubeconfig) = match build_config(args, databases) {
        Ok(settings) => settings,
        Err(text) => {
            print_error(&text);
            return exit::USAGE;
        }
    };
    // A budget's refusal is told in the status, and an API that is away does not hold up the rest.
    let retry = ClientRetry::Told;
    election::run_component("coordinator", kubeconfig.as_deref(), retry, |client, runtime| {
        info!(identity = config.election.identity, "This is a candidate for the lead");
        coordinator::run_coordinator(config, client, runtime)
    })
}

/// Turns the arguments into settings, and checks them before a port is bound.
fn build_config(args: Args, databases: DatabaseList) -> Result<(Config, Option<PathBuf>), String> {
    let Args {
        core_namespace,
        client,
        election,
        enable_cluster_upgrade,
        registries,
        rbac_sync,
        allow_privileged_roles,
        plugins,
        hub,
        hub_folder,
        organization_id,
        cluster_id,
        allow_terminate,
        admin_address,
        pod_name,
        logging: _,
    } = args;
    if core_namespace.is_empty() {
        return Err("--core-namespace: must not be empty".to_owned());
    }
    let organization = organization_id.filter(|id| !id.is_empty());
    let cluster_id = cluster_id.filter(|id| !id.is_empty());
    let hub = hub_config(&hub, hub_folder, organization, cluster_id.clone())?;
    let identity = format!("{pod_name}_{}", uuid::Uuid::new_v4());
    let config = Config {
        namespace: core_namespace,
        databases: databases.iter().map(|database| database.controller.names).collect(),
        upgrades_enabled: enable_cluster_upgrade,
        registries,
        rbac_sync,
        allow_privileged_roles,
        plugins,
        hub,
        cluster_id,
        allow_terminate,
        leader_elect: election.leader_elect,
        election: election.build_config(identity)?,
        admin: admin_address,
    };
    Ok((config, client.kubeconfig))
}

/// Returns where the hub is and whom it is asked about; nothing without a hub.
fn hub_config(
    address: &str,
    folder: PathBuf,
    organization: Option<String>,
    cluster: Option<String>,
) -> Result<Option<HubConfig>, String> {
    if address == NO_HUB {
        return Ok(None);
    }
    let address = hub_address(address).map_err(|error| format!("--hub: {error}"))?;
    // Both become parts of paths.
    let check_id = |flag: &str, id: Option<String>| {
        let id = id.ok_or_else(|| format!("--hub needs {flag}"))?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if id.chars().all(is_plain) {
            Ok(id)
        } else {
            Err(format!("{flag}: {id:?} must consist of letters, digits and hyphens"))
        }
    };
    let scope = HubScope {
        organization: check_id("--organization-id", organization)?,
        cluster: check_id("--cluster-id", cluster)?,
    };
    Ok(Some(HubConfig { address, folder, scope }))
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
        let words = ["coordinator"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        build_config(cli.args, &[]).map(|(config, _)| config)
    }

    #[test]
    fn what_takes_further_rights_is_off_unless_it_is_asked_for() {
        let config = parsed("").unwrap();
        assert_eq!(config.namespace, "containership-core");
        assert!(config.leader_elect && !config.upgrades_enabled && !config.registries);
        assert!(!config.rbac_sync && !config.allow_privileged_roles && !config.plugins);
        assert!(parsed("--registries").unwrap().registries);
        let roles = parsed("--rbac-sync --allow-privileged-roles --plugins").unwrap();
        assert!(roles.rbac_sync && roles.allow_privileged_roles && roles.plugins);
        assert!(parsed("--enable-cluster-upgrade").unwrap().upgrades_enabled);
        assert!(!parsed("--enable-cluster-upgrade=false").unwrap().upgrades_enabled);
        assert!(parsed("--core-namespace=").unwrap_err().contains("--core-namespace"));
        assert!(parsed("--leader-elect-lease-duration 3").unwrap_err().contains("lease duration"));
    }

    #[test]
    fn there_is_no_hub_unless_it_is_given_with_whom_it_is_asked_about() {
        let config = parsed("").unwrap();
        assert!(config.hub.is_none() && !config.allow_terminate);
        let hub = "--hub https://hub.example.org";
        let both = "--organization-id o-1 --cluster-id c-1";
        let config = parsed(&format!("{hub} {both} --allow-terminate")).unwrap();
        let found = config.hub.unwrap();
        assert_eq!(
            (found.scope.organization.as_str(), found.scope.cluster.as_str()),
            ("o-1", "c-1")
        );
        assert_eq!(found.folder, PathBuf::from("/etc/navigator/hub"));
        assert_eq!((config.cluster_id.as_deref(), config.allow_terminate), (Some("c-1"), true));
        for (line, says) in [
            (hub.to_owned(), "--hub needs --organization-id"),
            (format!("{hub} --organization-id o-1"), "--hub needs --cluster-id"),
            (format!("{hub} --organization-id o-1 --cluster-id="), "--hub needs --cluster-id"),
            (format!("{hub} --organization-id ../x --cluster-id c-1"), "--organization-id"),
            (format!("--hub http://hub.example.org {both}"), "https://"),
        ] {
            let said = parsed(&line).unwrap_err();
            assert!(said.contains(says), "{line}: {said}");
        }
    }
}
