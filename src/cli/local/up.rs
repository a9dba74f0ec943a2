//! The command line of `navigator local up`.

use std::{
    fs::File,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use tokio::time::{sleep, timeout};

use super::{
    ANSWER, CommandFailure, EVERY, StateFolderArgs, address_or_default, apply, build_client,
    daemon, daemon_pid, database_homes, manifest_files, preflight, print_text, wait,
};
use crate::{
    database::DatabaseList,
    local::{
        homes::{DatabaseHome, DatabaseHomes},
        state_folder::StateFolder,
    },
};

/// How long the daemon may take until it serves.
const START: Duration = Duration::from_secs(60);

/// Starts everything in the background, and makes or changes what files say. Where it runs already
/// it only does the latter. After a crash of anything it goes on where it was.
///
/// Exit codes: 0 it runs, and with `--wait` is ready, 1 it does not, 64 unusable arguments, files or
/// distributions: nothing was started.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  navigator local up
  navigator local up -f demo.yaml --wait --home DATABASE=/opt/DATABASE-1.2.3
  navigator local up -f demo.yaml -f more.yaml --dir /srv/local")]
pub(super) struct Args {
    /// File of objects to make or change; `-` is standard input. May be repeated.
    #[arg(long = "file", short, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Wait until the clusters of the files are ready, or all that there are, and show how they
    /// come up.
    #[arg(long)]
    wait: bool,
    /// Seconds to wait at most.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    timeout: u64,
    /// An unpacked distribution, as `NAME=DIR`; remembered. May be repeated, also for several
    /// versions of one database: the version is read from the distribution. Others are found by the
    /// vendors' variables and in the folders below the one that NAVIGATOR_HOMES names.
    #[arg(long = "home", value_name = "NAME=DIR")]
    homes: Vec<String>,
    /// Where the API is served; port 0 takes any, and the same again.
    #[arg(long, value_name = "ADDRESS:PORT", env = "NAVIGATOR_LOCAL_ADDRESS")]
    address: Option<SocketAddr>,
    #[command(flatten)]
    place: StateFolderArgs,
}

pub(super) async fn run_up(args: Args, databases: DatabaseList) -> Result<(), CommandFailure> {
    let Args {
        files,
        wait: needs_wait,
        timeout: limit,
        homes: home_flags,
        address: requested_address,
        place,
    } = args;
    let folder = place.state_folder()?;
    let homes = database_homes(databases, &folder);
    let named_homes =
        home_flags.iter().map(|word| homes.parse(word)).collect::<Result<Vec<_>, _>>();
    let named_homes =
        named_homes.map_err(|error| CommandFailure::usage(format!("--home: {error}")))?;
    let documents = manifest_files::read_documents(&files)?;
    let is_running = daemon_pid(&folder)?.is_some();
    check_preconditions(&folder, databases, &documents, &homes, &named_homes, is_running).await?;
    let client = match join_daemon(&folder).await? {
        Some(client) => client,
        None => start_daemon(&folder, requested_address).await?,
    };
    for document in &documents {
        let outcome = apply::apply_document(&client, document).await?;
        let kind = document.kind().to_lowercase();
        print_text(&format!("{kind}/{} {outcome}\n", document.name()))?;
    }
    if needs_wait {
        let clusters = preflight::find_clusters(databases, &documents);
        let key = |cluster: &preflight::ClusterDocument<'_>| {
            let (document, database) = (cluster.document(), cluster.database());
            let kind = database.controller.names.kind.to_owned();
            (kind, document.namespace().to_owned(), document.name().to_owned())
        };
        let cluster_keys: Vec<_> = clusters.iter().map(key).collect();
        wait::wait_until_ready(
            &client,
            databases,
            &folder,
            &cluster_keys,
            Duration::from_secs(limit),
        )
        .await?;
    }
    Ok(())
}

/// Checks what can be checked before anything is started. Keeps the distributions that `--home`
/// names if all checks pass.
async fn check_preconditions(
    folder: &StateFolder,
    databases: DatabaseList,
    documents: &[manifest_files::ManifestDocument],
    homes: &DatabaseHomes,
    named_homes: &[DatabaseHome],
    is_running: bool,
) -> Result<(), CommandFailure> {
    let to_failure = |error: std::io::Error| {
        CommandFailure::usage(format!("--dir {}: {error}", folder.path().display()))
    };
    folder.create().map_err(to_failure)?;
    let previous_homes =
        crate::local::state_folder::read_if_exists(&folder.named_homes()).map_err(to_failure)?;
    homes.save_homes(named_homes).map_err(to_failure)?;
    let clusters = preflight::find_clusters(databases, documents);
    let check_result = match preflight::check_distributions(&clusters, homes) {
        Ok(()) => {
            let client = if is_running { build_client(folder).await.ok() } else { None };
            let mut new_clusters = Vec::new();
            for cluster in &clusters {
                let is_existing = match &client {
                    Some(client) => has_cluster(client, cluster).await,
                    None => false,
                };
                if !is_existing {
                    new_clusters.push(cluster);
                }
            }
            preflight::check_resources(&new_clusters, folder)
        }
        failure => failure,
    };
    if check_result.is_err() {
        // A failed command does not keep the distributions that it named.
        let text = previous_homes.unwrap_or_default();
        crate::local::state_folder::write_private(&folder.named_homes(), text.as_bytes())
            .map_err(to_failure)?;
    }
    check_result
}

async fn has_cluster(client: &Client, cluster: &preflight::ClusterDocument<'_>) -> bool {
    let (document, resource) = (cluster.document(), cluster.database().controller.api_resource());
    let api = Api::<kube::api::DynamicObject>::namespaced_with(
        client.clone(),
        document.namespace(),
        &resource,
    );
    api.get_opt(document.name()).await.is_ok_and(|object| object.is_some())
}

/// Starts a daemon in the background, and waits until it serves.
async fn start_daemon(
    folder: &StateFolder,
    requested_address: Option<SocketAddr>,
) -> Result<Client, CommandFailure> {
    preflight::check_address_free(address_or_default(requested_address))?;
    let to_failure = |action: &str, error: &std::io::Error| {
        CommandFailure::new(format!("failed to {action}: {error}"))
    };
    // A mark of an earlier request to stop is out of date.
    drop(std::fs::remove_file(folder.stop_mark()));
    let log = File::options().create(true).append(true).open(folder.daemon_log());
    let log = log.map_err(|error| to_failure("write the daemon's log", &error))?;
    let offset = log.metadata().map_or(0, |metadata| metadata.len());
    let mut daemon = spawn_daemon(folder, requested_address, log)
        .map_err(|error| to_failure("start the daemon", &error))?;
    let client = wait_until_serving(folder, &mut daemon, offset).await?;
    print_text(&format!(
        "runs, process {}; export KUBECONFIG={} lets kubectl in\n",
        daemon.id(),
        folder.kubeconfig().display()
    ))?;
    Ok(client)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the daemon is this program, and outlives this process"
)]
fn spawn_daemon(
    folder: &StateFolder,
    requested_address: Option<SocketAddr>,
    log: File,
) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["local", "daemon", "--dir"]).arg(folder.path());
    if let Some(address) = requested_address {
        command.arg(format!("--address={address}"));
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()
}

/// Waits until a running daemon serves; `None` where there is none, or it ends meanwhile.
async fn join_daemon(folder: &StateFolder) -> Result<Option<Client>, CommandFailure> {
    let started_at = Instant::now();
    while let Some(pid) = daemon_pid(folder)? {
        match connect_to_api(folder).await {
            Ok(client) => {
                print_text(&format!("runs already, process {pid}\n"))?;
                return Ok(Some(client));
            }
            Err(reason) if started_at.elapsed() > START => return Err(timeout_failure(&reason)),
            Err(_) => sleep(EVERY).await,
        }
    }
    Ok(None)
}

/// Waits until the daemon that was started serves.
async fn wait_until_serving(
    folder: &StateFolder,
    daemon: &mut Child,
    offset: u64,
) -> Result<Client, CommandFailure> {
    let started_at = Instant::now();
    loop {
        if let Ok(Some(status)) = daemon.try_wait() {
            let message = daemon::last_words(folder, offset);
            let message = message.unwrap_or_else(|| format!("the daemon ended at once: {status}"));
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            return Err(CommandFailure {
                text: message,
                code: code.filter(|code| *code != 0).unwrap_or(1),
            });
        }
        match connect_to_api(folder).await {
            Ok(client) => return Ok(client),
            Err(reason) if started_at.elapsed() > START => return Err(timeout_failure(&reason)),
            Err(_) => sleep(EVERY).await,
        }
    }
}

fn timeout_failure(reason: &str) -> CommandFailure {
    let seconds = START.as_secs();
    let text =
        format!("the API does not answer after {seconds} s: {reason}; see `navigator local logs`");
    CommandFailure::new(text)
}

/// Sends one request to the folder's API. Returns a client, or why the API does not answer.
async fn connect_to_api(folder: &StateFolder) -> Result<Client, String> {
    let client = build_client(folder).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let has_daemon = folder.daemon_pid().is_ok_and(|pid| pid.is_some());
    match timeout(ANSWER, namespaces.get("default")).await {
        Ok(Ok(_)) if has_daemon => Ok(client),
        Ok(Ok(_)) => Err("another server answers".to_owned()),
        Ok(Err(error)) => Err(crate::error::chain(&error).to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}
