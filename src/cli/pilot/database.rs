//! The command line of `navigator pilot NAME`: the same flags for every database.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{ProcessArgs, report_failure};
use crate::{
    api::{names::port, v1beta1::Pilot},
    cli::logging,
    error::{chain, exit},
    pilot::{
        database::DrivenDatabase,
        node::{
            machine,
            probes::ProbePorts,
            runner::{self, IntentSource, RunnerSettings},
        },
        process::takeover::ProgramHandoff,
    },
    runtime::{kubeconfig, log},
};

/// Runs one database node: prepares, starts, watches, flushes and stops it.
///
/// In a pod it waits for the Pilot object of the pod's name and does what its spec says.
/// Elsewhere `--config` holds the Pilot: alone, it is all that the node follows. With
/// `--kubeconfig` as well it is made at that API when it is missing there, and from then on the
/// API's is followed.
///
/// Exit codes: 0 stopped as asked, otherwise the database's own, 128+n when signal n ended it,
/// 1 the pilot failed, 64 unusable arguments or settings, 70 the pilot panicked again and again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the Pilot object; in a pod, the pod's name.
    #[arg(long, value_name = "NAME", env = "NAVIGATOR_PILOT_NAME")]
    pilot_name: Option<String>,
    /// Namespace of the Pilot object.
    #[arg(long, value_name = "NAME", env = "NAVIGATOR_PILOT_NAMESPACE")]
    pilot_namespace: Option<String>,
    /// Name of the cluster, for lines of the log; by default what the Pilot of `--config` is
    /// labelled with.
    #[arg(long, value_name = "NAME", env = "NAVIGATOR_CLUSTER_NAME")]
    cluster_name: Option<String>,
    /// Credentials and address of the API; in a pod, the pod's own are used.
    #[arg(long, value_name = "FILE", env = "NAVIGATOR_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// File with a Pilot in YAML: run from it alone, without any API; or, with `--kubeconfig`,
    /// make it there when it is missing.
    #[arg(long, value_name = "FILE", env = "NAVIGATOR_PILOT_CONFIG")]
    config: Option<PathBuf>,
    /// Address at which other nodes reach this one.
    #[arg(long, value_name = "IP", env = "NAVIGATOR_POD_IP")]
    address: Option<IpAddr>,
    /// The pod's uid, told by Kubernetes.
    #[arg(long, value_name = "UID", env = "NAVIGATOR_POD_UID", hide = true)]
    pod_uid: Option<String>,
    /// Name of the machine, for the report; by default its host name.
    #[arg(long, value_name = "NAME", env = "NAVIGATOR_NODE_NAME")]
    node_name: Option<String>,
    /// Where the database is installed; by default what the vendor's image says.
    #[arg(long, value_name = "DIR", env = "NAVIGATOR_DATABASE_HOME")]
    home: Option<PathBuf>,
    /// Root of the data volume; by default where the vendor's image keeps its data.
    #[arg(long, value_name = "DIR", env = "NAVIGATOR_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Folder that the configuration is rendered into.
    #[arg(
        long,
        value_name = "DIR",
        env = "NAVIGATOR_CONFIG_DIR",
        default_value = crate::api::names::CONFIG_DIR
    )]
    config_dir: PathBuf,
    /// Folder that `navigator install` filled.
    #[arg(long, value_name = "DIR", env = "NAVIGATOR_SHARED_DIR", default_value = crate::api::names::SHARED_DIR)]
    shared_dir: PathBuf,
    /// Folder where the users of the database are mounted, where passwords are asked for. It may be
    /// missing.
    #[arg(long, value_name = "DIR", env = "NAVIGATOR_USERS_DIR", default_value = crate::api::names::USERS_DIR)]
    users_dir: PathBuf,
    /// Bytes of memory that the pilot and its database may take together. Without it, and below
    /// it, the limit of the cgroup counts.
    #[arg(long, value_name = "BYTES", env = "NAVIGATOR_MEMORY_LIMIT")]
    memory_limit: Option<u64>,
    /// Accept a data directory that is not a mounted volume. Outside pods that is so anyway.
    #[arg(long, env = "NAVIGATOR_ALLOW_UNMOUNTED_DATA")]
    allow_unmounted_data: bool,
    /// Start the database although the limits of open files, processes, mappings or locked memory
    /// are lower than it needs: at your own risk, where they cannot be raised.
    #[arg(long, env = "NAVIGATOR_ALLOW_LOW_LIMITS")]
    allow_low_limits: bool,
    /// Address that the probes and metrics listen on.
    #[arg(
        long,
        value_name = "IP",
        env = "NAVIGATOR_BIND_ADDRESS",
        default_value_t = IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    )]
    bind_address: IpAddr,
    /// TCP port of the liveness probe; 0 takes a free one, here and below.
    #[arg(long, value_name = "PORT", default_value_t = port::PILOT_LIVENESS)]
    liveness_port: u16,
    /// TCP port of the readiness probe.
    #[arg(long, value_name = "PORT", default_value_t = port::PILOT_READINESS)]
    readiness_port: u16,
    /// TCP port of the startup probe.
    #[arg(long, value_name = "PORT", default_value_t = port::PILOT_STARTUP)]
    startup_port: u16,
    /// TCP port of the metrics.
    #[arg(long, value_name = "PORT", default_value_t = port::METRICS)]
    metrics_port: u16,
    /// Seconds of silence after which a database that answered before counts as hung: it is
    /// continued and asked for a thread dump, and restarted when that does not help. Longer than
    /// its longest pause for garbage collection.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "NAVIGATOR_SILENCE_LIMIT",
        default_value_t = machine::SILENCE.as_secs(),
        value_parser = clap::value_parser!(u64).range(LEAST_SILENCE..)
    )]
    silence_limit: u64,
    /// How the database's lines look in the log: `records` (each in a field of a JSON line, where
    /// the pilot's own are JSON) or `raw` (as it wrote them).
    #[arg(
        long,
        value_name = "FORM",
        env = "NAVIGATOR_DATABASE_LOG",
        default_value = "records",
        help_heading = "Logging"
    )]
    database_log: DatabaseLogFormat,
    /// The pilot panics as soon as this file is there; for its tests.
    #[cfg(debug_assertions)]
    #[arg(long, value_name = "FILE", hide = true)]
    panic_file: Option<PathBuf>,
    #[command(flatten)]
    process: ProcessArgs,
    #[command(flatten)]
    logging: logging::Args,
}

/// The form in which the database's own lines go into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DatabaseLogFormat {
    Records,
    Raw,
}

impl std::str::FromStr for DatabaseLogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "records" => Ok(Self::Records),
            "raw" => Ok(Self::Raw),
            _ => Err(format!("{text:?} is not one of records, raw")),
        }
    }
}

/// Returns the examples at the end of a database pilot's help.
pub(super) fn help_examples(word: &str) -> String {
    format!(
        "Examples:\n  navigator pilot {word}\n  navigator pilot {word} --config pilot.yaml --address \
         127.0.0.1 --data-dir /srv/{word}\n  navigator pilot {word} --config pilot.yaml \
         --kubeconfig host.kubeconfig --address 10.0.0.7 --data-dir /srv/{word} --user 999"
    )
}

/// Least silence limit in seconds: a serving database is asked every five.
const LEAST_SILENCE: u64 = 10;

pub(super) fn run_database_pilot(
    database: &'static DrivenDatabase,
    args: Args,
    handoff: Option<ProgramHandoff>,
) -> u8 {
    let last_words = args.process.termination_log.clone();
    if let Err(text) = args.logging.init_queued() {
        return report_failure(&last_words, &text, exit::USAGE);
    }
    let startup =
        args.process.process_start(handoff).and_then(|start| Ok((start, super::build_runtime()?)));
    let (start, runtime) = match startup {
        Ok(startup) => startup,
        Err(error) => {
            return report_failure(
                &last_words,
                &format!("failed to take charge: {error}"),
                exit::FAILURE,
            );
        }
    };
    let code = runtime.block_on(async {
        let settings = match build_settings(database, args).await {
            Ok(settings) => settings,
            Err(text) => {
                return report_failure(&last_words, &text, exit::USAGE);
            }
        };
        mark_log_lines(&settings);
        Box::pin(runner::run_node(settings, start)).await.unwrap_or_else(|error| {
            report_failure(&last_words, &format!("failed to run the pilot: {error}"), exit::FAILURE)
        })
    });
    // A name lookup that is under way must not hold up the end of the container.
    runtime.shutdown_background();
    code
}

/// Adds the names of the pilot and its cluster to every line of the log.
fn mark_log_lines(settings: &RunnerSettings) {
    let RunnerSettings { namespace, name, cluster, .. } = settings;
    let pilot = format!("{namespace}/{name}");
    match cluster {
        Some(cluster) => {
            log::set_common_fields(&[
                ("cluster", &format!("{namespace}/{cluster}")),
                ("pilot", &pilot),
            ]);
        }
        None => log::set_common_fields(&[("pilot", &pilot)]),
    }
}

/// Checks whether this program could run with these arguments on this host now.
pub(super) fn check_settings(database: &'static DrivenDatabase, args: Args) -> Result<(), String> {
    let runtime = super::build_runtime().map_err(|error| error.to_string())?;
    runtime.block_on(build_settings(database, args)).map(drop)
}

async fn build_settings(
    database: &'static DrivenDatabase,
    args: Args,
) -> Result<RunnerSettings, String> {
    let Args {
        pilot_name,
        pilot_namespace,
        cluster_name,
        kubeconfig,
        config,
        address,
        pod_uid,
        node_name,
        home,
        data_dir,
        config_dir,
        shared_dir,
        users_dir,
        memory_limit,
        allow_unmounted_data,
        allow_low_limits,
        bind_address,
        liveness_port,
        readiness_port,
        startup_port,
        metrics_port,
        silence_limit,
        database_log,
        #[cfg(debug_assertions)]
        panic_file,
        process,
        logging,
    } = args;
    let file = config.as_deref().map(read_pilot).transpose()?;
    let file_metadata = file.as_ref().map(|pilot| pilot.metadata.clone()).unwrap_or_default();
    let name = pilot_name
        .or(file_metadata.name)
        .ok_or("--pilot-name (NAVIGATOR_PILOT_NAME) must be given, or --config")?;
    let (api, default_namespace) = match (kubeconfig, file) {
        (None, Some(pilot)) => (IntentSource::Alone(Box::new(pilot)), "default".to_owned()),
        (kubeconfig, file) => {
            let (client, namespace) = connect_to_api(kubeconfig.as_deref()).await?;
            (IntentSource::Client { client, missing: file.map(Box::new) }, namespace)
        }
    };
    let namespace = pilot_namespace.or(file_metadata.namespace).unwrap_or(default_namespace);
    let label = || file_metadata.labels.unwrap_or_default().remove(database.names.cluster_label);
    Ok(RunnerSettings {
        database,
        api,
        name,
        cluster: cluster_name.or_else(label),
        namespace,
        address: address.unwrap_or(Ipv4Addr::LOCALHOST.into()),
        home: home.or_else(|| vendors_home(database)).unwrap_or_else(|| database.home.into()),
        data: data_dir.unwrap_or_else(|| database.names.data_dir.into()),
        config: config_dir,
        shared: shared_dir,
        users: users_dir,
        memory_limit,
        require_mount: pod_uid.is_some() && !allow_unmounted_data,
        allow_low_limits,
        pod_uid,
        machine: node_name.or_else(|| nix::unistd::gethostname().ok()?.into_string().ok()),
        grace: process.grace_period(),
        silence: Duration::from_secs(silence_limit),
        termination_log: process.termination_log,
        records: database_log == DatabaseLogFormat::Records && logging.is_json(),
        user: process.user,
        #[cfg(debug_assertions)]
        panic_file,
        bind: bind_address,
        ports: ProbePorts {
            liveness: liveness_port,
            readiness: readiness_port,
            startup: startup_port,
            metrics: metrics_port,
        },
    })
}

/// Returns the database's home from the variable that the vendor's image sets.
#[expect(clippy::disallowed_methods, reason = "the variable's name depends on the database")]
fn vendors_home(database: &DrivenDatabase) -> Option<PathBuf> {
    std::env::var_os(database.home_variable).map(PathBuf::from)
}

fn read_pilot(path: &Path) -> Result<Pilot, String> {
    let display_path = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("--config {display_path}: {error}"))?;
    // By way of JSON, for which the types are decoded anyway.
    let value: serde_json::Value =
        serde_yaml::from_str(&text).map_err(|error| format!("--config {display_path}: {error}"))?;
    let pilot: Pilot = serde_json::from_value(value)
        .map_err(|error| format!("--config {display_path}: {error}"))?;
    if pilot.metadata.name.is_none() {
        return Err(format!("--config {display_path}: metadata.name is missing"));
    }
    Ok(pilot)
}

async fn connect_to_api(file: Option<&Path>) -> Result<(kube::Client, String), String> {
    let mut config = match file {
        Some(path) => {
            let loaded_config = kubeconfig::load_config(path).await;
            loaded_config.map_err(|error| format!("--kubeconfig: {}", chain(&error)))?
        }
        None => kube::Config::incluster()
            .map_err(|error| format!("no API: {}; give --kubeconfig or --config", chain(&error)))?,
    };
    // Each loop of the pilot has its own pause after a failure. The client's retries would come on
    // top: a dozen tries in the first seconds, and a minute and more without any after the API is
    // back.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let client = kube::Client::try_from(config)
        .map_err(|error| format!("failed to set up the API's client: {}", chain(&error)))?;
    Ok((client, namespace))
}
