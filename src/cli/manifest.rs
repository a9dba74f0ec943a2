//! The command line of `navigator manifest`.

use std::io::Write;

use clap::ValueEnum;

use super::print_error;
use crate::{
    api::{names, validation::format},
    coordinator,
    database::{DatabaseList, build_scheme},
    error::exit,
    manifest::{self, ClusterManagerSettings, HubSettings, InstallSettings, InstallStore},
};

/// Prints what to apply to install Navigator, or its cluster manager.
///
/// Exit codes: 0 printed, 1 standard output failed, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  navigator manifest | kubectl apply -f -
  navigator manifest --store etcd --etcd-servers https://etcd-0:2379,https://etcd-1:2379 \\
    --etcd-secret etcd-tls
  navigator manifest --store kubernetes | kubectl apply -f -
  navigator manifest --cluster-manager --enable-cluster-upgrade | kubectl apply -f -
  navigator manifest --image registry.example.org/navigator:v0.2.0")]
pub(crate) struct Args {
    /// Image of every role, and of the pilots.
    #[arg(long, default_value = names::IMAGE)]
    image: String,
    /// Store of the API server.
    #[arg(long, value_enum, default_value_t = InstallStoreBackend::Embedded)]
    store: InstallStoreBackend,
    /// URLs of the etcd members; needed with `--store etcd`.
    #[arg(long, value_delimiter = ',', required_if_eq("store", "etcd"))]
    etcd_servers: Vec<String>,
    /// Secret in the namespace of the install with ca.crt, tls.crt and tls.key for etcd.
    #[arg(long, requires = "etcd_servers")]
    etcd_secret: Option<String>,
    /// Namespace of the install; there is one install in a Kubernetes cluster. `navigator` when
    /// absent, and `containership-core` with `--cluster-manager`.
    #[arg(long, value_name = "NAME", value_parser = namespace)]
    namespace: Option<String>,
    /// The one namespace whose clusters are looked after; all of them when absent.
    #[arg(long, value_name = "NAME", value_parser = namespace)]
    watch_namespace: Option<String>,
    /// Prints the cluster manager instead: the coordinator, which upgrades, reboots and labels machines,
    /// and its kinds.
    #[arg(long, conflicts_with_all = ["store", "etcd_servers", "etcd_secret", "watch_namespace"])]
    cluster_manager: bool,
    /// Lets the coordinator carry upgrades out; without it new ones are refused.
    #[arg(long, requires = "cluster_manager")]
    enable_cluster_upgrade: bool,
    /// Has the coordinator copy credentials of Registries into namespaces, with the right to read and
    /// write all Secrets.
    #[arg(long, requires = "cluster_manager")]
    registries: bool,
    /// Has the coordinator keep the ClusterRoles and bindings that AuthorizationRoles ask for, with the
    /// right to give any right.
    #[arg(long, requires = "cluster_manager")]
    rbac_sync: bool,
    /// Has the coordinator accept AuthorizationRoles that let their holders take rights beyond those
    /// that are named.
    #[arg(long, requires = "rbac_sync")]
    allow_privileged_roles: bool,
    /// Has the coordinator apply Plugins, with the right to act as the ServiceAccounts of its namespace.
    #[arg(long, requires = "cluster_manager")]
    plugins: bool,
    /// Has the coordinator keep the objects of the hub at this URL. The credentials are expected in the
    /// Secret navigator-hub.
    #[arg(long, value_name = "URL", value_parser = hub, requires_all = ["cluster_manager", "organization_id", "cluster_id"])]
    hub: Option<String>,
    /// Organization that the hub is asked about.
    #[arg(long, value_name = "ID", requires = "hub")]
    organization_id: Option<String>,
    /// Id of this cluster, as the hub knows it.
    #[arg(long, value_name = "ID", requires = "hub")]
    cluster_id: Option<String>,
    /// Has the coordinator take the cluster manager away where the core namespace is annotated so, with the
    /// right to delete its kinds.
    #[arg(long, requires = "cluster_manager")]
    allow_terminate: bool,
    /// Runs an agent on every machine, which writes the SSH keys of Users there. Its pods have a folder
    /// of the machine, so the namespace enforces Pod Security's `privileged` in place of `restricted`.
    #[arg(long, requires = "cluster_manager")]
    agents: bool,
    /// Prints the image's name alone.
    #[arg(long)]
    print_image: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum InstallStoreBackend {
    /// A file on a claim; one replica.
    Embedded,
    /// An etcd cluster; two replicas.
    Etcd,
    /// The Kubernetes API itself; two replicas.
    Kubernetes,
}

pub(crate) fn print_manifest(args: Args, databases: DatabaseList) -> u8 {
    let Args {
        image,
        store,
        etcd_servers,
        etcd_secret,
        namespace,
        watch_namespace,
        cluster_manager,
        enable_cluster_upgrade,
        registries,
        rbac_sync,
        allow_privileged_roles,
        plugins,
        hub,
        organization_id,
        cluster_id,
        allow_terminate,
        agents,
        print_image,
    } = args;
    let store = match self::build_store(store, etcd_servers, etcd_secret) {
        Ok(store) => store,
        Err(text) => {
            print_error(text);
            return exit::USAGE;
        }
    };
    let text = if print_image {
        format!("{image}\n")
    } else if cluster_manager {
        let namespace = namespace.unwrap_or_else(|| names::CORE_NAMESPACE.to_owned());
        let hub = hub.map(|url| HubSettings {
            url,
            organization_id: organization_id.unwrap_or_default(),
            cluster_id: cluster_id.unwrap_or_default(),
        });
        let settings = ClusterManagerSettings {
            image,
            namespace,
            enable_cluster_upgrade,
            registries,
            rbac_sync,
            allow_privileged_roles,
            plugins,
            agents,
            hub,
            allow_terminate,
        };
        manifest::cluster_manager_yaml(&settings, build_scheme(databases))
    } else {
        let namespace = namespace.unwrap_or_else(|| names::NAMESPACE.to_owned());
        let settings = InstallSettings { image, store, namespace, watch_namespace };
        manifest::manifest_yaml(&settings, build_scheme(databases))
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => exit::OK,
        Err(_) => exit::FAILURE,
    }
}

/// Turns the flags of the store into its settings. Refuses flags that would print an install that
/// does not do what was asked, or does not start.
fn build_store(
    kind: InstallStoreBackend,
    servers: Vec<String>,
    secret: Option<String>,
) -> Result<InstallStore, &'static str> {
    match kind {
        InstallStoreBackend::Embedded | InstallStoreBackend::Kubernetes if !servers.is_empty() => {
            Err("--etcd-servers needs --store etcd")
        }
        InstallStoreBackend::Embedded => Ok(InstallStore::Embedded),
        InstallStoreBackend::Kubernetes => Ok(InstallStore::Kubernetes),
        InstallStoreBackend::Etcd => {
            let needs_ca = servers.iter().any(|server| server.starts_with("https://"));
            if needs_ca && secret.is_none() {
                return Err("an https:// URL needs --etcd-secret, which holds the CA to verify it");
            }
            Ok(InstallStore::Etcd { servers, secret })
        }
    }
}

/// Checks the URL of a hub, as the coordinator does.
fn hub(text: &str) -> Result<String, String> {
    coordinator::hub_address(text).map(|_| text.to_owned())
}

/// Parses a name that a namespace can have.
fn namespace(text: &str) -> Result<String, String> {
    match format::check_dns_label(text).first() {
        None => Ok(text.to_owned()),
        Some(problem) => Err(problem.clone()),
    }
}
