//! The command line of `navigator local logs`.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::sleep;

use super::{CommandFailure, StateFolderArgs, print_text};
use crate::{
    local::{log_retention, state_folder::StateFolder},
    runtime::log::PlainLog,
};

const EVERY: Duration = Duration::from_millis(250);

/// Shows what a pod's database and pilot wrote, each in its own form, or without a name what the daemon did.
///
/// Exit codes: 0 shown, 1 there is nothing of this name, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  navigator local logs
  navigator local logs cass-demo-ring-0 -f")]
pub(super) struct Args {
    /// Name of the pod.
    pod: Option<String>,
    /// Namespace of the pod.
    #[arg(long, short, value_name = "NAME", default_value = "default")]
    namespace: String,
    /// Go on with what is written from now on.
    #[arg(long, short)]
    follow: bool,
    /// Show what the process before this one wrote.
    #[arg(long, short, conflicts_with = "follow")]
    previous: bool,
    #[command(flatten)]
    place: StateFolderArgs,
}

pub(super) async fn run_logs(args: Args) -> Result<(), CommandFailure> {
    let Args { pod, namespace, follow, previous, place } = args;
    let folder = place.state_folder()?;
    let path = match &pod {
        Some(pod) => find_log(&folder, &namespace, pod, previous)?,
        None => folder.daemon_log(),
    };
    let to_failure =
        |error: std::io::Error| CommandFailure::new(format!("{}: {error}", path.display()));
    let mut file = File::open(&path).map_err(to_failure)?;
    file.seek(SeekFrom::Start(log_retention::first_line_offset(&path).map_err(to_failure)?))
        .map_err(to_failure)?;
    let mut plain = PlainLog::default();
    loop {
        let bytes = read_new_bytes(&mut file).map_err(to_failure)?;
        print_text(&plain.append(&bytes))?;
        if !follow {
            return print_text(&plain.finish());
        }
        sleep(EVERY).await;
        // A restart begins a new file at the same path.
        if is_replaced(&path, &mut file).map_err(to_failure)? {
            file = File::open(&path).map_err(to_failure)?;
        }
    }
}

/// Reads what was written since the last call, as far as it was not given back to the file system.
fn read_new_bytes(file: &mut File) -> std::io::Result<Vec<u8>> {
    let position = file.stream_position()?;
    let mut bytes = Vec::new();
    if let Some(data_position) = log_retention::next_data_offset(&*file, position)? {
        file.seek(SeekFrom::Start(data_position))?;
        file.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Returns the path of the log of a pod's database: its one container that is not an installer.
fn find_log(
    folder: &StateFolder,
    namespace: &str,
    pod: &str,
    previous: bool,
) -> Result<PathBuf, CommandFailure> {
    let ending = if previous { ".previous.log" } else { ".log" };
    let entries = fs::read_dir(folder.logs(namespace, pod)).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_installer = name.starts_with(crate::api::names::INSTALL_CONTAINER);
            name.ends_with(ending) && name.ends_with(".previous.log") == previous && !is_installer
        })
        .collect();
    paths.sort();
    paths.into_iter().next().ok_or_else(|| {
        CommandFailure::new(format!(
            "there is no log of pod {namespace}/{pod}; `navigator local status` names the pods"
        ))
    })
}

/// Is another file at the path, or is the file shorter than what was read?
fn is_replaced(path: &Path, file: &mut File) -> std::io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let Ok(path_metadata) = fs::metadata(path) else { return Ok(false) };
    let file_metadata = file.metadata()?;
    if (path_metadata.dev(), path_metadata.ino()) != (file_metadata.dev(), file_metadata.ino()) {
        return Ok(true);
    }
    if file_metadata.len() < file.stream_position()? {
        file.seek(SeekFrom::Start(0))?;
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_log_of_the_database_is_found_by_its_pod() {
        let place = tempfile::tempdir().unwrap();
        let folder = StateFolder::new(place.path());
        assert!(
            find_log(&folder, "default", "a-0", false).unwrap_err().text.contains("no log of pod")
        );
        fs::create_dir_all(folder.logs("default", "a-0")).unwrap();
        for (container, previous) in
            [("install-pilot", false), ("database", false), ("database", true)]
        {
            fs::write(folder.log("default", "a-0", container, previous), "").unwrap();
        }
        let name = |previous| {
            let path = find_log(&folder, "default", "a-0", previous).unwrap();
            path.file_name().unwrap().to_string_lossy().into_owned()
        };
        assert_eq!(
            (name(false).as_str(), name(true).as_str()),
            ("database.log", "database.previous.log")
        );
    }

    #[test]
    fn what_is_new_is_read_and_a_hole_is_not() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("log");
        fs::write(&path, "line\n".repeat(100_000)).unwrap();
        log_retention::trim_log(&path, log_retention::LogRetention { kept: 1 << 16, more: 0 })
            .unwrap();
        let mut file = File::open(&path).unwrap();
        let late = read_new_bytes(&mut file).unwrap();
        assert!(late.ends_with(b"line\n") && !late.contains(&0));
        assert!(late.len() < 3 << 16, "{} bytes", late.len());
        assert_eq!(read_new_bytes(&mut file).unwrap(), b"");
        File::options().append(true).open(&path).unwrap().write_all(b"new\n").unwrap();
        assert_eq!(read_new_bytes(&mut file).unwrap(), b"new\n");
    }
}
