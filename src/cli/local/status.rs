//! `navigator local status`.

use std::fs;

use clap::ValueEnum;
use serde_json::json;

use super::{
    Failure, Place, client, say,
    table::{look, text_of},
};
use crate::{
    database::Databases,
    local::{
        folder::Folder,
        node::{Record, start_time},
    },
};

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
    let daemon = folder
        .daemon()
        .map_err(|error| Failure::new(format!("{}: {error}", folder.path().display())))?;
    let Some(pid) = daemon else {
        let left = running(&folder).len();
        let text = if left == 0 {
            "nothing runs here; start it with `navigator local up`".to_owned()
        } else {
            format!(
                "{left} pilots run, and nobody looks after them; go on with `navigator local up`"
            )
        };
        return Err(Failure::new(text));
    };
    let failed = |text| Failure::new(format!("the API: {text}"));
    let client = client(&folder).await.map_err(failed)?;
    let clusters = look(&client, databases, &folder).await?;
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

/// Records of pods whose pilot runs.
pub(super) fn running(folder: &Folder) -> Vec<Record> {
    let folders = |path| fs::read_dir(path).into_iter().flatten().flatten();
    folders(folder.pods())
        .flat_map(|namespace| folders(namespace.path()))
        .filter_map(|pod| Record::read(&pod.path()))
        .filter(|record| start_time(record.pid) == Some(record.started))
        .collect()
}
