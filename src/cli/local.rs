//! The command line of `navigator local`: databases on this host, without Kubernetes.

mod apply;
mod cluster_table;
mod daemon;
mod down;
mod logs;
mod manifest_files;
mod preflight;
mod status;
mod up;
mod wait;

use std::{io::Write, net::SocketAddr, path::PathBuf, time::Duration};

use kube::Client;

use super::print_error;
use crate::{
    database::DatabaseList,
    error::{chain, exit},
    local::{homes::DatabaseHomes, state_folder::StateFolder},
    runtime::kubeconfig as kubeconfig_file,
};

/// Time after which a local API counts as not answering.
const ANSWER: Duration = Duration::from_secs(5);
/// Pause between requests of a command that waits for the API.
const EVERY: Duration = Duration::from_millis(100);

/// Runs databases on this host, without Kubernetes.
///
/// One process serves the API, decides and looks after the databases' own processes, each at a
/// loopback address of its own. `kubectl` works on it, with the file that `kubeconfig` names.
///
/// Exit codes: 0 done, 1 failed, 64 unusable arguments, files or distributions: nothing was
/// started.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
#[command(after_help = "Examples:
  navigator local up --home DATABASE=/opt/DATABASE-1.2.3 -f demo.yaml --wait
  navigator local status
  kubectl --kubeconfig \"$(navigator local kubeconfig)\" get pods
  navigator local down")]
pub(crate) struct Args {
    #[command(subcommand)]
    task: LocalCommand,
}

#[derive(Debug, clap::Subcommand)]
enum LocalCommand {
    Up(up::Args),
    Status(status::Args),
    Logs(logs::Args),
    Kubeconfig(KubeconfigArgs),
    Down(down::Args),
    #[command(hide = true)]
    Daemon(daemon::Args),
}

/// Which installation is meant.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
struct StateFolderArgs {
    /// Folder that holds everything: data, objects, logs, credentials. By default below
    /// `XDG_STATE_HOME` or `~/.local/state`; for root, `/var/lib/navigator/local`.
    #[arg(long, value_name = "DIR", env = "NAVIGATOR_LOCAL_DIR")]
    dir: Option<PathBuf>,
}

/// Prints where the file is that lets kubectl in, for an administrator.
///
/// Exit codes: 0 printed, 1 there is none yet, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  export KUBECONFIG=$(navigator local kubeconfig)
  navigator local kubeconfig --print >local.kubeconfig")]
struct KubeconfigArgs {
    /// Print what the file says instead.
    #[arg(long)]
    print: bool,
    #[command(flatten)]
    place: StateFolderArgs,
}

/// The failure that ends a command: a line for the user, and the exit code.
#[derive(Debug)]
struct CommandFailure {
    text: String,
    code: u8,
}

impl CommandFailure {
    /// A failure because of unusable arguments, files or distributions.
    fn usage(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: exit::USAGE }
    }

    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), code: exit::FAILURE }
    }
}

pub(crate) fn run_local_command(args: Args, databases: DatabaseList) -> u8 {
    let outcome = match args.task {
        LocalCommand::Daemon(args) => return daemon::run_daemon(args, databases),
        LocalCommand::Up(args) => run_blocking(up::run_up(args, databases)),
        LocalCommand::Status(args) => run_blocking(status::run_status(args, databases)),
        LocalCommand::Logs(args) => run_blocking(logs::run_logs(args)),
        LocalCommand::Down(args) => run_blocking(down::run_down(args)),
        LocalCommand::Kubeconfig(args) => print_kubeconfig(args),
    };
    match outcome {
        Ok(()) => exit::OK,
        Err(CommandFailure { text, code }) => {
            print_error(&text);
            code
        }
    }
}

fn run_blocking(
    task: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| CommandFailure::new(format!("failed to start threads: {error}")))?;
    let outcome = runtime.block_on(task);
    runtime.shutdown_background();
    outcome
}

fn print_kubeconfig(args: KubeconfigArgs) -> Result<(), CommandFailure> {
    let KubeconfigArgs { print, place } = args;
    let path = place.state_folder()?.kubeconfig();
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let path = path.display();
        CommandFailure::new(format!(
            "failed to read {path}: {error}; `navigator local up` makes it"
        ))
    })?;
    if print { print_text(&text) } else { print_text(&format!("{}\n", path.display())) }
}

impl StateFolderArgs {
    #[expect(clippy::disallowed_methods, reason = "the command line reads the environment")]
    fn state_folder(&self) -> Result<StateFolder, CommandFailure> {
        let absolute_path = |path: PathBuf| {
            std::path::absolute(&path).map_err(|error| {
                CommandFailure::usage(format!("--dir {}: {error}", path.display()))
            })
        };
        let env_value = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let path = if let Some(dir) = &self.dir {
            absolute_path(dir.clone())?
        } else if nix::unistd::geteuid().is_root() {
            // Databases run as other users, who may not pass through root's home.
            PathBuf::from("/var/lib/navigator/local")
        } else if let Some(state) = env_value("XDG_STATE_HOME") {
            absolute_path(PathBuf::from(state).join("navigator/local"))?
        } else if let Some(home) = env_value("HOME") {
            absolute_path(PathBuf::from(home).join(".local/state/navigator/local"))?
        } else {
            return Err(CommandFailure::usage(
                "neither --dir nor HOME says where to keep everything",
            ));
        };
        if path.to_string_lossy().contains(char::is_whitespace) {
            let display_path = path.display();
            let text = format!(
                "{display_path:?} contains white space, at which launchers of databases split; give --dir"
            );
            return Err(CommandFailure::usage(text));
        }
        Ok(StateFolder::new(path))
    }
}

/// Returns where distributions are searched: in the installation, by the vendors' variables, and
/// below NAVIGATOR_HOMES.
#[expect(clippy::disallowed_methods, reason = "the variables' names depend on the databases")]
fn database_homes(databases: DatabaseList, folder: &StateFolder) -> DatabaseHomes {
    let env_value = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let drivers: Vec<_> = databases.iter().map(|database| database.pilot).collect();
    let vendor_homes = drivers
        .iter()
        .filter_map(|database| {
            Some((database.names.word, env_value(database.home_variable)?.into()))
        })
        .collect();
    DatabaseHomes::new(
        drivers,
        folder,
        vendor_homes,
        env_value("NAVIGATOR_HOMES").map(PathBuf::from),
    )
}

/// Returns the pid of a folder's daemon. It may serve, be starting, or have been killed and not be
/// gone yet.
fn daemon_pid(folder: &StateFolder) -> Result<Option<i32>, CommandFailure> {
    folder
        .daemon_pid()
        .map_err(|error| CommandFailure::new(format!("{}: {error}", folder.path().display())))
}

/// Makes a client with the administrator's credentials.
async fn build_client(folder: &StateFolder) -> Result<Client, String> {
    let config = kubeconfig_file::load_config(&folder.kubeconfig()).await;
    let mut config = config.map_err(|error| chain(&error).to_string())?;
    config.default_retry = false;
    Client::try_from(config).map_err(|error| chain(&error).to_string())
}

/// Writes `text` to standard output.
fn print_text(text: &str) -> Result<(), CommandFailure> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| CommandFailure::new(format!("failed to write: {error}")))
}

/// Returns the given address, or the default one.
fn address_or_default(requested_address: Option<SocketAddr>) -> SocketAddr {
    requested_address.unwrap_or(crate::local::api::ADDRESS)
}
