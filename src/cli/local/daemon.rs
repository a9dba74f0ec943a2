//! The command line of `navigator local daemon`, the process that `up` starts in the background.

use std::{
    ffi::OsString,
    fs::File,
    io::{Read, Seek, SeekFrom},
    net::SocketAddr,
    path::Path,
};

use tracing::error;

use super::{StateFolderArgs, address, homes};
use crate::{
    cli::{complain, logging},
    database::DatabaseList,
    error::{chain, exit},
    local::{
        daemon::{self, Config},
        state_folder::StateFolder,
    },
    runtime::{Runtime, Shutdown, signals},
};

/// Serves, decides and looks after the processes; started by `up`.
///
/// Exit codes: 0 ended as asked, 1 failed, 64 unusable arguments, 70 a task panicked.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  navigator local daemon --dir /srv/local")]
pub(super) struct Args {
    /// Where the API is served.
    #[arg(long, value_name = "ADDRESS:PORT", env = "NAVIGATOR_LOCAL_ADDRESS")]
    address: Option<SocketAddr>,
    #[command(flatten)]
    place: StateFolderArgs,
    #[command(flatten)]
    logging: logging::Args,
}

pub(super) fn run(args: Args, databases: DatabaseList) -> u8 {
    let Args { address: given, place, logging } = args;
    if let Err(text) = logging.init() {
        complain(&text);
        return exit::USAGE;
    }
    // A session of its own, so that the end of a terminal does not reach the daemon. A session
    // leader has one already, and the call fails.
    nix::unistd::setsid().ok();
    let folder = match place.folder() {
        Ok(folder) => folder,
        Err(failure) => {
            complain(&failure.text);
            return failure.code;
        }
    };
    let begun = folder.create().and_then(|()| Ok((folder.lock()?, program()?)));
    let (lock, program) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            complain(&format!("{}: {error}", folder.path().display()));
            return exit::FAILURE;
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("failed to start threads: {error}"));
            return exit::FAILURE;
        }
    };
    let config = Config {
        homes: homes(databases, &folder),
        address: address(given),
        databases,
        program,
        machine: machine(),
        environment: environment(databases),
        java: java(),
        folder: folder.clone(),
    };
    let code = runtime.block_on(act(config));
    runtime.shutdown_background();
    drop(lock);
    code
}

async fn act(config: Config) -> u8 {
    let (rt, asked) = (Runtime::new(), Shutdown::new());
    match signals::shutdown_on_signal(&asked) {
        Ok(signals) => rt.tasks().spawn("signals", async move {
            signals.await;
        }),
        Err(failure) => {
            complain(&format!("failed to listen to signals: {failure}"));
            return exit::FAILURE;
        }
    }
    let ended = daemon::run(config, asked.clone(), rt.clone()).await;
    asked.trigger();
    match ended {
        Ok(()) if rt.tasks().panicked() => exit::SOFTWARE,
        Ok(()) => exit::OK,
        Err(failure) => {
            error!(error = %chain(&failure), "The daemon ends");
            complain(&chain(&failure).to_string());
            exit::FAILURE
        }
    }
}

/// Returns the path of this program, by which it can be started again.
fn program() -> std::io::Result<std::path::PathBuf> {
    std::env::current_exe().and_then(|path| path.canonicalize())
}

fn machine() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let name = name.unwrap_or_default().to_lowercase();
    // The name must fit an object, whatever characters the host's name has.
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let name: String = name.chars().map(|c| if fits(c) { c } else { '-' }).collect();
    let name = name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

/// Returns the variables for the pods' processes: those of this process, without its own settings
/// and those that name a database's home.
fn environment(databases: DatabaseList) -> Vec<(OsString, OsString)> {
    let ours = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("NAVIGATOR_")
            || databases.iter().any(|database| database.pilot.home_variable == name)
    };
    std::env::vars_os().filter(|(name, _)| !ours(name)).collect()
}

/// Returns the installation folder of the Java on the search path: launchers of some databases look
/// only at a variable that names it.
#[expect(clippy::disallowed_methods, reason = "the command line reads the environment")]
fn java() -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut folders = std::env::split_paths(&path);
    let found = folders.find_map(|folder| folder.join("java").canonicalize().ok());
    // The program is `bin/java` below the folder of its installation.
    found?.parent()?.parent().map(Path::to_owned)
}

/// Prefix of the daemon's lines for its user.
const FOR_PEOPLE: &str = "navigator: ";

/// Returns the daemon's last line for its user, from its log after the byte `after`.
pub(super) fn last_words(folder: &StateFolder, after: u64) -> Option<String> {
    said(&folder.daemon_log(), after)
}

fn said(log: &Path, after: u64) -> Option<String> {
    let mut file = File::open(log).ok()?;
    file.seek(SeekFrom::Start(after)).ok()?;
    let mut new = Vec::new();
    file.read_to_end(&mut new).ok()?;
    let text = String::from_utf8_lossy(&new).into_owned();
    let line = text.lines().rev().find_map(|line| line.strip_prefix(FOR_PEOPLE))?;
    Some(line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_daemon_said_is_not_told_again() {
        let place = tempfile::tempdir().unwrap();
        let log = place.path().join("daemon.log");
        let old = "{}\nnavigator: old\n";
        std::fs::write(&log, format!("{old}{{}}\nnavigator: failed to listen\n{{}}\n")).unwrap();
        let after = u64::try_from(old.len()).unwrap();
        assert_eq!(said(&log, after).as_deref(), Some("failed to listen"));
        std::fs::write(&log, old).unwrap();
        assert_eq!(said(&log, after), None);
    }

    #[test]
    fn a_machine_has_a_name_that_an_object_may_have() {
        let name = machine();
        assert!(
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
        );
    }
}
