//! Flags that choose the store of objects.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::{
    api::names,
    apiserver::{
        role,
        run::StoreConfig,
        storage::{etcd, kubernetes},
    },
};

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Store")]
#[group(skip)]
pub(super) struct Args {
    /// Where objects are kept.
    #[arg(long, value_enum, env = "NAVIGATOR_STORE", default_value_t = StoreBackend::Embedded)]
    store: StoreBackend,
    /// Folder of the embedded store.
    #[arg(
        long,
        value_name = "DIR",
        env = "NAVIGATOR_STORE_PATH",
        required_if_eq("store", "embedded")
    )]
    store_path: Option<PathBuf>,
    /// URLs of the etcd members.
    #[arg(
        long,
        value_name = "URLS",
        env = "NAVIGATOR_ETCD_SERVERS",
        value_delimiter = ',',
        required_if_eq("store", "etcd")
    )]
    etcd_servers: Vec<String>,
    /// What every key in etcd begins with.
    #[arg(
        long,
        value_name = "PREFIX",
        env = "NAVIGATOR_ETCD_PREFIX",
        default_value = "/registry/navigator.jetstack.io"
    )]
    etcd_prefix: String,
    /// CA of the etcd members, PEM; needed for https.
    #[arg(long, value_name = "FILE", env = "NAVIGATOR_ETCD_CAFILE")]
    etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd, PEM.
    #[arg(
        long,
        value_name = "FILE",
        env = "NAVIGATOR_ETCD_CERTFILE",
        requires_all = ["etcd_keyfile", "etcd_cafile"]
    )]
    etcd_certfile: Option<PathBuf>,
    /// Key of the client certificate for etcd, PEM.
    #[arg(long, value_name = "FILE", env = "NAVIGATOR_ETCD_KEYFILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// Namespace in whose StoredObjects objects are kept, with `--store kubernetes`.
    #[arg(
        long,
        value_name = "NAME",
        env = "NAVIGATOR_STORE_NAMESPACE",
        default_value = names::NAMESPACE
    )]
    store_namespace: String,
    /// File that says how to reach the kube-apiserver that keeps objects; in-cluster credentials
    /// when absent.
    #[arg(long, value_name = "FILE", env = "NAVIGATOR_STORE_KUBECONFIG")]
    store_kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StoreBackend {
    /// A file in a folder; one replica.
    Embedded,
    /// An etcd cluster; any number of replicas.
    Etcd,
    /// The Kubernetes API itself; any number of replicas.
    Kubernetes,
}

impl Args {
    /// # Errors
    /// When the flags contradict each other; the text is for the user.
    pub(super) fn build_config(self) -> Result<StoreConfig, String> {
        let Self {
            store,
            store_path,
            etcd_servers,
            etcd_prefix,
            etcd_cafile,
            etcd_certfile,
            etcd_keyfile,
            store_namespace: namespace,
            store_kubeconfig: kubeconfig,
        } = self;
        match store {
            StoreBackend::Embedded => {
                let path = store_path.ok_or("--store-path: is needed with --store embedded")?;
                return Ok(StoreConfig::Embedded(path));
            }
            StoreBackend::Kubernetes => {
                if namespace.is_empty() || namespace.contains('/') {
                    return Err(format!(
                        "--store-namespace: {namespace:?} is no name of a namespace"
                    ));
                }
                return Ok(StoreConfig::Kubernetes(kubernetes::Config {
                    kubeconfig,
                    namespace,
                    kind: &role::STORED_OBJECTS,
                }));
            }
            StoreBackend::Etcd => {}
        }
        for server in &etcd_servers {
            if server.starts_with("https://") && etcd_cafile.is_none() {
                return Err(format!("--etcd-cafile: is needed for {server:?}"));
            }
            if !server.starts_with("https://") && !server.starts_with("http://") {
                return Err(format!("--etcd-servers: {server:?} is no http:// or https:// URL"));
            }
        }
        Ok(StoreConfig::Etcd(etcd::Config {
            endpoints: etcd_servers,
            prefix: etcd_prefix,
            tls: etcd_cafile
                .map(|ca| etcd::EtcdTlsFiles { ca, identity: etcd_certfile.zip(etcd_keyfile) }),
        }))
    }
}
