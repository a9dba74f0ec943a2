//! The command line of `navigator local daemon`, the process that `up` starts in the background.

use std::{
    ffi::OsString,
    fs::File,
    io::{Read, Seek, SeekFrom},
    net::SocketAddr,
    path::Path,
};

use tracing::error;

use super::{StateFolderArgs, address_or_default, database_homes};
use crate::{
    cli::{logging, print_error},
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

pub(super) fn run_daemon(args: Args, databases: DatabaseList) -> u8 {
    let Args { address: requested_address, place, logging } = args;
    if let Err(text) = logging.init() {
        print_error(&text);
        return exit::USAGE;
    }
    // A session of its own, so that the end of a terminal does not reach the daemon. A session
    // leader has one already, and the call fails.
    nix::unistd::setsid().ok();
    let folder = match place.state_folder() {
        Ok(folder) => folder,
        Err(failure) => {
            print_error(&failure.text);
            return failure.code;
        }
    };
    let startup = folder.create().and_then(|()| Ok((folder.lock()?, program_path()?)));
    let (lock, program) = match startup {
        Ok(startup) => startup,
        Err(error) => {
            print_error(&format!("{}: {error}", folder.path().display()));
            return exit::FAILURE;
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print_error(&format!("failed to start threads: {error}"));
            return exit::FAILURE;
        }
    };
    let config = Config {
        homes: database_homes(databases, &folder),
        address: address_or_default(requested_address),
        databases,
        program,
        machine: machine_name(),
        environment: pod_environment(databases),
        java: find_java(),
        folder: folder.clone(),
    };
    let code = runtime.block_on(serve_until_shutdown(config));
    runtime.shutdown_background();
    drop(lock);
    code
}

async fn serve_until_shutdown(config: Config) -> u8 {
    let (rt, shutdown) = (Runtime::new(), Shutdown::new());
    match signals::shutdown_on_signal(&shutdown) {
        Ok(signals) => rt.tasks().spawn("signals", async move {
            signals.await;
        }),
        Err(failure) => {
            print_error(&format!("failed to listen to signals: {failure}"));
            return exit::FAILURE;
        }
    }
    let outcome = daemon::run_daemon(config, shutdown.clone(), rt.clone()).await;
    shutdown.trigger();
    match outcome {
        Ok(()) if rt.tasks().has_panicked() => exit::SOFTWARE,
        Ok(()) => exit::OK,
        Err(failure) => {
            error!(error = %chain(&failure), "The daemon ends");
            print_error(&chain(&failure).to_string());
            exit::FAILURE
        }
    }
}

/// Returns the path of this program, by which it can be started again.
fn program_path() -> std::io::Result<std::path::PathBuf> {
    std::env::current_exe().and_then(|path| path.canonicalize())
}

fn machine_name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let name = name.unwrap_or_default().to_lowercase();
    // The name must fit an object, whatever characters the host's name has.
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let name: String = name.chars().map(|c| if is_allowed(c) { c } else { '-' }).collect();
    let name = name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

/// Returns the variables for the pods' processes: those of this process, without its own settings
/// and those that name a database's home.
fn pod_environment(databases: DatabaseList) -> Vec<(OsString, OsString)> {
    let is_own_setting = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("NAVIGATOR_")
            || databases.iter().any(|database| database.pilot.home_variable == name)
    };
    std::env::vars_os().filter(|(name, _)| !is_own_setting(name)).collect()
}

/// Returns the installation folder of the Java on the search path: launchers of some databases look
/// only at a variable that names it.
#[expect(clippy::disallowed_methods, reason = "the command line reads the environment")]
fn find_java() -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut folders = std::env::split_paths(&path);
    let java_path = folders.find_map(|folder| folder.join("java").canonicalize().ok());
    // The program is `bin/java` below the folder of its installation.
    java_path?.parent()?.parent().map(Path::to_owned)
}

/// Prefix of the daemon's lines for its user.
const FOR_PEOPLE: &str = "navigator: ";

/// Returns the daemon's last line for its user, from its log after the byte `after`.
pub(super) fn last_words(folder: &StateFolder, offset: u64) -> Option<String> {
    read_last_line(&folder.daemon_log(), offset)
}

fn read_last_line(log: &Path, offset: u64) -> Option<String> {
    let mut file = File::open(log).ok()?;
    file.seek(SeekFrom::Start(offset)).ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
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
        assert_eq!(read_last_line(&log, after).as_deref(), Some("failed to listen"));
        std::fs::write(&log, old).unwrap();
        assert_eq!(read_last_line(&log, after), None);
    }

    #[test]
    fn a_machine_has_a_name_that_an_object_may_have() {
        let name = machine_name();
        assert!(
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
        );
    }
}
