//! The command line of `navigator local status`.

use std::{
    fs,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{
    ANSWER, CommandFailure, EVERY, StateFolderArgs, client,
    cluster_table::{ClusterSummary, look, text_of},
    running, say,
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

pub(super) async fn run(args: Args, databases: DatabaseList) -> Result<(), CommandFailure> {
    let Args { output, place } = args;
    let folder = place.folder()?;
    let begun = Instant::now();
    let (pid, clusters) = loop {
        let Some(pid) = running(&folder)? else { return Err(without_daemon(&folder)) };
        match asked(&folder, databases).await {
            Ok(clusters) => break (pid, clusters),
            // The next round reads the lock again: the daemon may be gone.
            Err(_) if begun.elapsed() < PATIENCE => sleep(EVERY).await,
            Err(CommandFailure { text, code }) => {
                let text = format!("process {pid} runs, and its API does not serve: {text}");
                return Err(CommandFailure { text, code });
            }
        }
    };
    let page = fs::read_to_string(folder.page()).unwrap_or_default();
    let page = page.trim_end();
    match output {
        StatusFormat::Text => say(&format!("{}\nStatus page: {page}\n", text_of(&clusters))),
        StatusFormat::Json => {
            let kubeconfig = folder.kubeconfig().display().to_string();
            let all =
                json!({"pid": pid, "kubeconfig": kubeconfig, "page": page, "clusters": clusters});
            say(&format!("{all:#}\n"))
        }
    }
}

async fn asked(
    folder: &StateFolder,
    databases: DatabaseList,
) -> Result<Vec<ClusterSummary>, CommandFailure> {
    let client = client(folder).await.map_err(CommandFailure::new)?;
    let looked = timeout(ANSWER, look(&client, databases, folder)).await;
    looked.unwrap_or_else(|_| Err(CommandFailure::new("no answer")))
}

fn without_daemon(folder: &StateFolder) -> CommandFailure {
    let left = pilots(folder).len();
    if left == 0 {
        return CommandFailure::new("nothing runs here; start it with `navigator local up`");
    }
    CommandFailure::new(format!(
        "{left} pilots run, and no daemon looks after them; go on with `navigator local up`"
    ))
}

/// Returns the records of pods whose pilot runs.
pub(super) fn pilots(folder: &StateFolder) -> Vec<PodRecord> {
    let folders = |path| fs::read_dir(path).into_iter().flatten().flatten();
    folders(folder.pods())
        .flat_map(|namespace| folders(namespace.path()))
        .filter_map(|pod| PodRecord::read(&pod.path()))
        .filter(PodRecord::runs)
        .collect()
}
