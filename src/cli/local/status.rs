//! The command line of `navigator local status`.

use std::{
    fs,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{
    ANSWER, CommandFailure, EVERY, StateFolderArgs, build_client,
    cluster_table::{ClusterSummary, read_clusters, text_of},
    daemon_pid, print_text,
};
use crate::{
    database::DatabaseList,
    local::{node::PodRecord, state_folder::StateFolder},
};

/// How long a daemon may hold the folder without serving: it may be starting, or it was killed and
/// still gives memory back.
const PATIENCE: Duration = Duration::from_secs(10);

/// Shows clusters and their nodes: state, address, process.
///
/// Exit codes: 0 shown, 1 nothing runs or it does not answer, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  navigator local status\n  navigator local status -o json")]
pub(super) struct Args {
    /// Form of the output.
    #[arg(long, short, value_enum, default_value_t = StatusFormat::Text)]
    output: StatusFormat,
    #[command(flatten)]
    place: StateFolderArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StatusFormat {
    Text,
    Json,
}

pub(super) async fn run_status(args: Args, databases: DatabaseList) -> Result<(), CommandFailure> {
    let Args { output, place } = args;
    let folder = place.state_folder()?;
    let started_at = Instant::now();
    let (pid, clusters) = loop {
        let Some(pid) = daemon_pid(&folder)? else { return Err(without_daemon(&folder)) };
        match query_clusters(&folder, databases).await {
            Ok(clusters) => break (pid, clusters),
            // The next round reads the lock again: the daemon may be gone.
            Err(_) if started_at.elapsed() < PATIENCE => sleep(EVERY).await,
            Err(CommandFailure { text, code }) => {
                let text = format!("process {pid} runs, and its API does not serve: {text}");
                return Err(CommandFailure { text, code });
            }
        }
    };
    let page = fs::read_to_string(folder.page()).unwrap_or_default();
    let page = page.trim_end();
    match output {
        StatusFormat::Text => print_text(&format!("{}\nStatus page: {page}\n", text_of(&clusters))),
        StatusFormat::Json => {
            let kubeconfig = folder.kubeconfig().display().to_string();
            let document =
                json!({"pid": pid, "kubeconfig": kubeconfig, "page": page, "clusters": clusters});
            print_text(&format!("{document:#}\n"))
        }
    }
}

async fn query_clusters(
    folder: &StateFolder,
    databases: DatabaseList,
) -> Result<Vec<ClusterSummary>, CommandFailure> {
    let client = build_client(folder).await.map_err(CommandFailure::new)?;
    let response = timeout(ANSWER, read_clusters(&client, databases, folder)).await;
    response.unwrap_or_else(|_| Err(CommandFailure::new("no answer")))
}

fn without_daemon(folder: &StateFolder) -> CommandFailure {
    let pilot_count = find_pilots(folder).len();
    if pilot_count == 0 {
        return CommandFailure::new("nothing runs here; start it with `navigator local up`");
    }
    CommandFailure::new(format!(
        "{pilot_count} pilots run, and no daemon looks after them; go on with `navigator local up`"
    ))
}

/// Returns the records of pods whose pilot runs.
pub(super) fn find_pilots(folder: &StateFolder) -> Vec<PodRecord> {
    let folders = |path| fs::read_dir(path).into_iter().flatten().flatten();
    folders(folder.pods())
        .flat_map(|namespace| folders(namespace.path()))
        .filter_map(|pod| PodRecord::read(&pod.path()))
        .filter(PodRecord::is_running)
        .collect()
}
