//! The command line of `navigator apiserver`.

mod admission;
mod audit;
mod migrate_storage;
mod removed_flags;
mod store;
mod store_tasks;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::ArgAction;
use rustls::CipherSuite;
use tracing::{error, warn};

use super::{logging, print_error};
use crate::{
    api::names,
    apiserver::{
        self,
        certs::files::CertificateFiles,
        filters::{GoawayChance, InflightLimits, RequestTimeouts},
        handlers::LEAST_WATCH,
        role,
        run::Config,
        serve::{SecureServingOptions, TlsVersion, cipher_suite},
    },
    database::{DatabaseList, build_scheme},
    error::{chain, exit},
    runtime::Runtime,
};

/// Serves the group navigator.jetstack.io behind kube-apiserver's aggregation layer.
///
/// It reaches kube-apiserver with in-cluster credentials or a kubeconfig and needs there: the
/// ClusterRole system:auth-delegator; the Role extension-apiserver-authentication-reader in
/// kube-system; get, list and watch of namespaces and of webhook configurations; list of
/// StatefulSets; get and patch of its two APIServices; and in its own namespace get, create and
/// update of ConfigMaps and Secrets. With `--store kubernetes` it also needs all of its
/// StoredObjects.
///
/// Exit codes: 0 ended as asked, 1 failed, 64 unusable arguments or settings, 70 a bug.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(disable_help_subcommand = true)]
#[command(after_help = "Examples:
  navigator apiserver --store embedded --store-path /var/lib/navigator
  navigator apiserver --store etcd --etcd-servers https://etcd-0:2379,https://etcd-1:2379 \\
    --etcd-cafile ca.crt --etcd-certfile tls.crt --etcd-keyfile tls.key
  navigator apiserver --store kubernetes --store-namespace navigator
  navigator apiserver --kubeconfig ~/.kube/config --store-path ./store --audit-log-path -")]
pub(crate) struct Args {
    #[command(subcommand)]
    task: Option<ApiserverCommand>,
    #[command(flatten)]
    listen: ListenerArgs,
    #[command(flatten)]
    store: store::Args,
    /// File that says how to reach kube-apiserver; in-cluster credentials when absent.
    #[arg(long, value_name = "FILE", env = "NAVIGATOR_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of this installation, where its Service, Secret and ConfigMap are.
    #[arg(long, env = "NAVIGATOR_NAMESPACE", default_value = names::NAMESPACE)]
    namespace: String,
    #[command(flatten)]
    admission: admission::Args,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    audit: audit::Args,
    /// Of traces, which were removed in 0.3: ignored with a warning, and refused by the next
    /// release.
    #[arg(long, value_name = "FILE", env = "NAVIGATOR_TRACING_CONFIG_FILE", hide = true)]
    tracing_config_file: Option<PathBuf>,
    #[command(flatten)]
    logging: logging::Args,
}

/// What can be done with a store instead of serving it.
#[derive(Debug, clap::Subcommand)]
enum ApiserverCommand {
    MigrateStorage(migrate_storage::Args),
    Store(store_tasks::Args),
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Listener")]
#[group(skip)]
struct ListenerArgs {
    /// Address to listen on.
    #[arg(long, value_name = "IP", env = "NAVIGATOR_BIND_ADDRESS", default_value = "0.0.0.0")]
    bind_address: IpAddr,
    /// Port to listen on, HTTPS.
    #[arg(
        long,
        value_name = "PORT",
        env = "NAVIGATOR_SECURE_PORT",
        default_value_t = names::port::APISERVER
    )]
    secure_port: u16,
    /// Serving certificate, PEM, read again every minute. A CA of our own, kept in a Secret, when
    /// absent. With a certificate of yours, the APIServices' caBundle is yours to keep, too.
    #[arg(
        long,
        value_name = "FILE",
        env = "NAVIGATOR_TLS_CERT_FILE",
        requires = "tls_private_key_file"
    )]
    tls_cert_file: Option<PathBuf>,
    /// Key of the serving certificate, PEM.
    #[arg(
        long,
        value_name = "FILE",
        env = "NAVIGATOR_TLS_PRIVATE_KEY_FILE",
        requires = "tls_cert_file"
    )]
    tls_private_key_file: Option<PathBuf>,
    /// Oldest version of TLS that is spoken.
    #[arg(
        long,
        value_name = "VERSION",
        env = "NAVIGATOR_TLS_MIN_VERSION",
        value_enum,
        default_value_t
    )]
    tls_min_version: TlsVersion,
    /// Cipher suites of TLS 1.2 by Go's names, separated by commas; all that are secure when
    /// absent. Those of TLS 1.3 are always offered.
    #[arg(
        long,
        value_name = "NAMES",
        env = "NAVIGATOR_TLS_CIPHER_SUITES",
        value_delimiter = ',',
        value_parser = cipher_suite
    )]
    tls_cipher_suites: Vec<CipherSuite>,
    /// Speaks HTTP/1.1 only.
    #[arg(
        long,
        value_name = "BOOL",
        env = "NAVIGATOR_DISABLE_HTTP2_SERVING",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value_t = false,
        default_missing_value = "true"
    )]
    disable_http2_serving: bool,
}

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
#[group(skip)]
struct LimitArgs {
    /// Seconds that a request may take; watches are not limited.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "NAVIGATOR_REQUEST_TIMEOUT",
        default_value = "60",
        value_parser = seconds
    )]
    request_timeout: Duration,
    /// Seconds that a watch lasts at least that does not say how long; at most twice as many, so
    /// that not all clients come back at once.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "NAVIGATOR_MIN_REQUEST_TIMEOUT",
        default_value_t = LEAST_WATCH.as_secs(),
        value_parser = clap::value_parser!(u64).range(1..=YEAR)
    )]
    min_request_timeout: u64,
    /// Seconds to serve on, not ready, after shutdown was asked for.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "NAVIGATOR_SHUTDOWN_DELAY_DURATION",
        default_value = "0",
        value_parser = seconds
    )]
    shutdown_delay_duration: Duration,
    /// Reading requests at one time; watches are not counted.
    #[arg(
        long,
        value_name = "COUNT",
        env = "NAVIGATOR_MAX_REQUESTS_INFLIGHT",
        default_value_t = InflightLimits::default().reading
    )]
    max_requests_inflight: usize,
    /// Writing requests at one time.
    #[arg(
        long,
        value_name = "COUNT",
        env = "NAVIGATOR_MAX_MUTATING_REQUESTS_INFLIGHT",
        default_value_t = InflightLimits::default().mutating
    )]
    max_mutating_requests_inflight: usize,
    /// Part of all requests after which an HTTP/2 connection ends, 0 to 0.02, so that clients
    /// spread over several replicas behind a load balancer. What is under way is answered. 0.001
    /// is a start.
    #[arg(
        long,
        value_name = "CHANCE",
        env = "NAVIGATOR_GOAWAY_CHANCE",
        default_value = "0",
        value_parser = goaway
    )]
    goaway_chance: GoawayChance,
}

/// Length of a year in seconds.
const YEAR: u64 = 365 * 24 * 3600;

fn goaway(text: &str) -> Result<GoawayChance, String> {
    GoawayChance::new(text.parse().map_err(|_| format!("{text:?} is no number"))?)
}

/// Parses whole or decimal seconds, with or without `s`.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse::<f64>().ok();
    number
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("{text:?} is no number of seconds"))
}

pub(crate) fn run_apiserver_command(mut args: Args, databases: DatabaseList) -> u8 {
    match args.task.take() {
        Some(ApiserverCommand::MigrateStorage(args)) => {
            migrate_storage::run_migration(args, databases)
        }
        Some(ApiserverCommand::Store(args)) => store_tasks::run_store_command(args, databases),
        None => run_apiserver(args, databases),
    }
}

fn run_apiserver(args: Args, databases: DatabaseList) -> u8 {
    if let Err(text) = args.logging.init() {
        print_error(&text);
        return exit::USAGE;
    }
    let config = match build_config(args) {
        Ok(config) => config,
        Err(text) => {
            print_error(&text);
            return exit::USAGE;
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_error(&format!("failed to start threads: {error}"));
            return exit::FAILURE;
        }
    };
    runtime.block_on(async {
        let rt = Runtime::new();
        let outcome = Box::pin(apiserver::run::run_server(
            config,
            role::navigator_api(build_scheme(databases)),
            rt.clone(),
        ))
        .await;
        match outcome {
            Ok(()) if rt.tasks().has_panicked() => exit::SOFTWARE,
            Ok(()) => exit::OK,
            Err(failure) => {
                let text = chain(&failure).to_string();
                if failure.is_usage() {
                    print_error(&text);
                    return exit::USAGE;
                }
                error!(error = text, "The API server failed");
                exit::FAILURE
            }
        }
    })
}

fn build_config(args: Args) -> Result<Config, String> {
    let Args {
        task: _,
        listen,
        store,
        kubeconfig,
        namespace,
        admission,
        limits,
        audit,
        tracing_config_file,
        logging: _,
    } = args;
    let ListenerArgs {
        bind_address,
        secure_port,
        tls_cert_file,
        tls_private_key_file,
        tls_min_version,
        tls_cipher_suites,
        disable_http2_serving,
    } = listen;
    let LimitArgs {
        request_timeout,
        min_request_timeout,
        shutdown_delay_duration,
        max_requests_inflight,
        max_mutating_requests_inflight,
        goaway_chance,
    } = limits;
    if tracing_config_file.is_some() {
        warn!(
            see = "docs/decisions/0009-one-set-of-features.md",
            "--tracing-config-file is ignored: traces were removed in 0.3, and the next release \
             refuses the flag"
        );
    }
    if namespace.is_empty() || namespace.contains('/') {
        return Err(format!("--namespace: {namespace:?} is no name of a namespace"));
    }
    if request_timeout.is_zero() {
        return Err("--request-timeout: must be more than 0".to_owned());
    }
    if max_requests_inflight == 0 || max_mutating_requests_inflight == 0 {
        return Err("limits of requests in flight must be more than 0".to_owned());
    }
    Ok(Config {
        address: SocketAddr::new(bind_address, secure_port),
        namespace,
        kubeconfig,
        store: store.build_config()?,
        certificate: tls_cert_file
            .zip(tls_private_key_file)
            .map(|(certificate, key)| CertificateFiles { certificate, key }),
        spoken: SecureServingOptions {
            oldest: tls_min_version,
            cipher_suites: tls_cipher_suites,
            only_http1: disable_http2_serving,
        },
        audit: audit.build_config()?,
        admission: admission.enabled_plugins()?,
        limits: InflightLimits {
            reading: max_requests_inflight,
            mutating: max_mutating_requests_inflight,
        },
        deadlines: RequestTimeouts { request: request_timeout },
        goaway: goaway_chance,
        least_watch: Duration::from_secs(min_request_timeout),
        shutdown_delay: shutdown_delay_duration,
    })
}
