//! `navigator local status`.

use std::{
    fs,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{
    ANSWER, EVERY, Failure, Place, client, running, say,
    table::{Cluster, look, text_of},
};
use crate::{
    database::Databases,
    local::{
        folder::Folder,
        node::{Record, start_time},
    },
};

/// How long a daemon may hold the folder without serving: it starts, or it was killed and has much
/// memory to give back.
const PATIENCE: Duration = Duration::from_secs(10);

/// Shows clusters and their nodes: state, address, process.
///
/// Exit codes: 0 shown, 1 nothing runs or it does not answer, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  navigator local status\n  navigator local status -o json")]
pub(super) struct Args {
    /// Form of the output.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

pub(super) async fn run(args: Args, databases: Databases) -> Result<(), Failure> {
    let Args { output, place } = args;
    let folder = place.folder()?;
    let begun = Instant::now();
    let (pid, clusters) = loop {
        let Some(pid) = running(&folder)? else { return Err(nobody(&folder)) };
        match asked(&folder, databases).await {
            Ok(clusters) => break (pid, clusters),
            // The lock is looked at again: the daemon may be gone.
            Err(_) if begun.elapsed() < PATIENCE => sleep(EVERY).await,
            Err(Failure { text, code }) => {
                let text = format!("process {pid} runs, and its API does not serve: {text}");
                return Err(Failure { text, code });
            }
        }
    };
    let page = fs::read_to_string(folder.page()).unwrap_or_default();
    let page = page.trim_end();
    match output {
        Output::Text => say(&format!("{}\nStatus page: {page}\n", text_of(&clusters))),
        Output::Json => {
            let kubeconfig = folder.kubeconfig().display().to_string();
            let all =
                json!({"pid": pid, "kubeconfig": kubeconfig, "page": page, "clusters": clusters});
            say(&format!("{all:#}\n"))
        }
    }
}

async fn asked(folder: &Folder, databases: Databases) -> Result<Vec<Cluster>, Failure> {
    let client = client(folder).await.map_err(Failure::new)?;
    let looked = timeout(ANSWER, look(&client, databases, folder)).await;
    looked.unwrap_or_else(|_| Err(Failure::new("no answer")))
}

fn nobody(folder: &Folder) -> Failure {
    let left = pilots(folder).len();
    if left == 0 {
        return Failure::new("nothing runs here; start it with `navigator local up`");
    }
    Failure::new(format!(
        "{left} pilots run, and nobody looks after them; go on with `navigator local up`"
    ))
}

/// Records of pods whose pilot runs.
pub(super) fn pilots(folder: &Folder) -> Vec<Record> {
    let folders = |path| fs::read_dir(path).into_iter().flatten().flatten();
    folders(folder.pods())
        .flat_map(|namespace| folders(namespace.path()))
        .filter_map(|pod| Record::read(&pod.path()))
        .filter(|record| start_time(record.pid) == Some(record.started))
        .collect()
}
