//! The command line of `navigator local down`.

use std::{
    fs, io,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::time::sleep;

use super::{CommandFailure, StateFolderArgs, print_text, status::find_pilots};
use crate::{
    error::chain,
    local::{node::PodRecord, state_folder::StateFolder},
};

const EVERY: Duration = Duration::from_millis(200);
/// Time to wait for an end beyond the databases' grace period.
const SLACK: Duration = Duration::from_secs(30);

/// Stops every database and all the rest. Data stay; `up` goes on with them.
///
/// Exit codes: 0 stopped, or nothing ran, 1 something does not end, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  navigator local down\n  navigator local down --delete-data")]
pub(super) struct Args {
    /// Delete everything as well: data, objects, logs, credentials.
    #[arg(long)]
    delete_data: bool,
    #[command(flatten)]
    place: StateFolderArgs,
}

pub(super) async fn run_down(args: Args) -> Result<(), CommandFailure> {
    let Args { delete_data, place } = args;
    let folder = place.state_folder()?;
    let to_failure = |error: io::Error| {
        CommandFailure::new(format!("{}: {}", folder.path().display(), chain(&error)))
    };
    let grace_seconds =
        find_pilots(&folder).iter().map(|record| record.grace).max().unwrap_or_default();
    let limit = Duration::from_secs(grace_seconds) + SLACK;
    if let Some(pid) = folder.daemon_pid().map_err(to_failure)? {
        fs::write(folder.stop_mark(), "").map_err(to_failure)?;
        send_signal(pid, Signal::SIGTERM)?;
        let started_at = Instant::now();
        while folder.daemon_pid().map_err(to_failure)?.is_some() {
            if started_at.elapsed() > limit {
                let text = format!("process {pid} does not end; see `navigator local logs`");
                return Err(CommandFailure::new(text));
            }
            sleep(EVERY).await;
        }
    }
    // The pilots of a daemon that was killed still run.
    end_pilots(&folder, limit).await?;
    if delete_data {
        delete_files(&folder).map_err(to_failure)?;
        return print_text("stopped, and deleted all data\n");
    }
    print_text("stopped; data stay, and `navigator local up` goes on with them\n")
}

async fn end_pilots(folder: &StateFolder, limit: Duration) -> Result<(), CommandFailure> {
    for record in find_pilots(folder) {
        send_signal(record.pid, Signal::SIGTERM)?;
    }
    let started_at = Instant::now();
    loop {
        let running_pilots = find_pilots(folder);
        if running_pilots.is_empty() {
            return Ok(());
        }
        if started_at.elapsed() > limit {
            for record in &running_pilots {
                send_signal(record.pid, Signal::SIGKILL)?;
            }
            let pids: Vec<_> =
                running_pilots.iter().map(|PodRecord { pid, .. }| pid.to_string()).collect();
            let text = format!("these pilots did not end and were killed: {}", pids.join(", "));
            return Err(CommandFailure::new(text));
        }
        sleep(EVERY).await;
    }
}

fn send_signal(pid: i32, signal: Signal) -> Result<(), CommandFailure> {
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) | Err(nix::Error::ESRCH) => Ok(()),
        Err(error) => Err(CommandFailure::new(format!("failed to end process {pid}: {error}"))),
    }
}

/// Names of the files that an installation writes; other files in the folder are kept.
const OURS: &[&str] = &[
    "addresses.json",
    "claims",
    "daemon.log",
    "homes.txt",
    "kubeconfig",
    "lock",
    "logs",
    "page",
    "pki",
    "pods",
    "port",
    "stop",
    "store",
];

fn delete_files(folder: &StateFolder) -> io::Result<()> {
    for name in OURS {
        let path = folder.path().join(name);
        let removal =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removal {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // A folder that still has fetched distributions, or files of other programs, is kept.
    fs::remove_dir(folder.path()).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty => Ok(()),
        _ => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_is_deleted() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::new(place.path().join("local"));
        folder.create().unwrap();
        fs::write(folder.kubeconfig(), "x").unwrap();
        fs::create_dir_all(folder.claim("default", "data-a-0")).unwrap();
        fs::create_dir(folder.homes()).unwrap();
        delete_files(&folder).unwrap();
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left, ["homes"]);
        fs::remove_dir(folder.homes()).unwrap();
        delete_files(&folder).unwrap();
        assert!(!folder.path().exists());
        delete_files(&folder).unwrap();
    }
}
