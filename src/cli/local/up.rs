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
    ANSWER, CommandFailure, EVERY, StateFolderArgs, address, apply, client, daemon, homes,
    manifest_files, preflight, running, say, wait,
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

pub(super) async fn run(args: Args, databases: DatabaseList) -> Result<(), CommandFailure> {
    let Args { files, wait: waits, timeout: limit, homes: named, address: given, place } = args;
    let folder = place.folder()?;
    let known = homes(databases, &folder);
    let named = named.iter().map(|word| known.parse(word)).collect::<Result<Vec<_>, _>>();
    let named = named.map_err(|missing| CommandFailure::usage(format!("--home: {missing}")))?;
    let documents = manifest_files::read(&files)?;
    let runs = running(&folder)?.is_some();
    check(&folder, databases, &documents, &known, &named, runs).await?;
    let client = match join(&folder).await? {
        Some(client) => client,
        None => start(&folder, given).await?,
    };
    for document in &documents {
        let done = apply::apply(&client, document).await?;
        let kind = document.kind().to_lowercase();
        say(&format!("{kind}/{} {done}\n", document.name()))?;
    }
    if waits {
        let clusters = preflight::clusters(databases, &documents);
        let key = |wanted: &preflight::ClusterDocument<'_>| {
            let (document, database) = (wanted.document(), wanted.database());
            let kind = database.controller.names.kind.to_owned();
            (kind, document.namespace().to_owned(), document.name().to_owned())
        };
        let named: Vec<_> = clusters.iter().map(key).collect();
        wait::ready(&client, databases, &folder, &named, Duration::from_secs(limit)).await?;
    }
    Ok(())
}

/// Checks what can be checked before anything is started. Keeps the distributions that `--home`
/// names if all checks pass.
async fn check(
    folder: &StateFolder,
    databases: DatabaseList,
    documents: &[manifest_files::ManifestDocument],
    homes: &DatabaseHomes,
    named: &[DatabaseHome],
    running: bool,
) -> Result<(), CommandFailure> {
    let place = |error: std::io::Error| {
        CommandFailure::usage(format!("--dir {}: {error}", folder.path().display()))
    };
    folder.create().map_err(place)?;
    let before = crate::local::state_folder::read_if_there(&folder.named_homes()).map_err(place)?;
    homes.remember(named).map_err(place)?;
    let wanted = preflight::clusters(databases, documents);
    let checked = match preflight::distributions(&wanted, homes) {
        Ok(()) => {
            let client = if running { client(folder).await.ok() } else { None };
            let mut fresh = Vec::new();
            for cluster in &wanted {
                let there = match &client {
                    Some(client) => exists(client, cluster).await,
                    None => false,
                };
                if !there {
                    fresh.push(cluster);
                }
            }
            preflight::room(&fresh, folder)
        }
        failed => failed,
    };
    if checked.is_err() {
        // A failed command does not keep the distributions that it named.
        let text = before.unwrap_or_default();
        crate::local::state_folder::write_own(&folder.named_homes(), text.as_bytes())
            .map_err(place)?;
    }
    checked
}

async fn exists(client: &Client, cluster: &preflight::ClusterDocument<'_>) -> bool {
    let (document, resource) = (cluster.document(), cluster.database().controller.resource());
    let api = Api::<kube::api::DynamicObject>::namespaced_with(
        client.clone(),
        document.namespace(),
        &resource,
    );
    api.get_opt(document.name()).await.is_ok_and(|found| found.is_some())
}

/// Starts a daemon in the background, and waits until it serves.
async fn start(folder: &StateFolder, given: Option<SocketAddr>) -> Result<Client, CommandFailure> {
    preflight::free(address(given))?;
    let failed = |what: &str, error: &std::io::Error| {
        CommandFailure::new(format!("failed to {what}: {error}"))
    };
    // A mark of an earlier request to stop is out of date.
    drop(std::fs::remove_file(folder.stop_mark()));
    let log = File::options().create(true).append(true).open(folder.daemon_log());
    let log = log.map_err(|error| failed("write the daemon's log", &error))?;
    let after = log.metadata().map_or(0, |about| about.len());
    let mut daemon =
        spawn(folder, given, log).map_err(|error| failed("start the daemon", &error))?;
    let client = serving(folder, &mut daemon, after).await?;
    say(&format!(
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
fn spawn(folder: &StateFolder, given: Option<SocketAddr>, log: File) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["local", "daemon", "--dir"]).arg(folder.path());
    if let Some(address) = given {
        command.arg(format!("--address={address}"));
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()
}

/// Waits until a running daemon serves; `None` where there is none, or it ends meanwhile.
async fn join(folder: &StateFolder) -> Result<Option<Client>, CommandFailure> {
    let begun = Instant::now();
    while let Some(pid) = running(folder)? {
        match answering(folder).await {
            Ok(client) => {
                say(&format!("runs already, process {pid}\n"))?;
                return Ok(Some(client));
            }
            Err(last) if begun.elapsed() > START => return Err(silent(&last)),
            Err(_) => sleep(EVERY).await,
        }
    }
    Ok(None)
}

/// Waits until the daemon that was started serves.
async fn serving(
    folder: &StateFolder,
    daemon: &mut Child,
    after: u64,
) -> Result<Client, CommandFailure> {
    let begun = Instant::now();
    loop {
        if let Ok(Some(status)) = daemon.try_wait() {
            let told = daemon::last_words(folder, after);
            let told = told.unwrap_or_else(|| format!("the daemon ended at once: {status}"));
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            return Err(CommandFailure {
                text: told,
                code: code.filter(|code| *code != 0).unwrap_or(1),
            });
        }
        match answering(folder).await {
            Ok(client) => return Ok(client),
            Err(last) if begun.elapsed() > START => return Err(silent(&last)),
            Err(_) => sleep(EVERY).await,
        }
    }
}

fn silent(last: &str) -> CommandFailure {
    let seconds = START.as_secs();
    let text =
        format!("the API does not answer after {seconds} s: {last}; see `navigator local logs`");
    CommandFailure::new(text)
}

/// Sends one request to the folder's API. Returns a client, or why the API does not answer.
async fn answering(folder: &StateFolder) -> Result<Client, String> {
    let client = client(folder).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let held = folder.daemon().is_ok_and(|pid| pid.is_some());
    match timeout(ANSWER, namespaces.get("default")).await {
        Ok(Ok(_)) if held => Ok(client),
        Ok(Ok(_)) => Err("another server answers".to_owned()),
        Ok(Err(error)) => Err(crate::error::chain(&error).to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}
