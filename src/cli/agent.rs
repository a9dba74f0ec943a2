//! The command line of `navigator agent`.

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::Subcommand;

use super::{
    complain,
    election::{self, ClientArgs, ClientRetry},
    logging,
};
use crate::{
    agent::{self, Config, KeyFile},
    api::names,
    error::exit,
};

/// Home folder below which the key file lies, as in 2019.
const KEYS_FOLDER: &str = "/etc/containership/home";
/// Account under which people log in.
const ACCOUNT: &str = "containership";
/// Time in which the key file is mended at most ten times.
const MENDING_PERIOD: Duration = Duration::from_secs(60);

/// Keeps the SSH keys of all Users on one machine.
///
/// It writes them into `.ssh/authorized_keys` below a folder, undoes what others do to that file, and
/// says on the machine's Node how it stands. The file stays when the agent ends or the API is away.
///
/// Exit codes: 0 ended as asked, 1 failed, 64 unusable arguments, 70 a task panicked.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  navigator agent --node-name m1 --kubeconfig ~/.kube/config
  navigator agent keys containership
  navigator agent cleanup"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<AgentCommand>,
    /// Name of this machine's Node.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// Namespace of the Users.
    #[arg(long, env = "NAVIGATOR_CORE_NAMESPACE", value_name = "NAMESPACE", default_value = names::CORE_NAMESPACE)]
    core_namespace: String,
    #[command(flatten)]
    folder: FolderArgs,
    /// Keep lines of others in the key file. Without it the whole file is the agent's, and any other
    /// line in it is removed.
    #[arg(long, env = "NAVIGATOR_SHARED_KEY_FILE")]
    shared_key_file: bool,
    #[command(flatten)]
    client: ClientArgs,
    /// Address of metrics and health.
    #[arg(long, env = "NAVIGATOR_ADMIN_ADDRESS", value_name = "ADDRESS:PORT", default_value_t = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), names::port::METRICS))]
    admin_address: SocketAddr,
    #[command(flatten)]
    logging: logging::Args,
}

/// Where the key file lies.
#[derive(Debug, clap::Args)]
#[group(skip)]
struct FolderArgs {
    /// Home folder below which `.ssh/authorized_keys` lies; it must exist.
    #[arg(long, env = "NAVIGATOR_KEYS_FOLDER", value_name = "FOLDER", default_value = KEYS_FOLDER)]
    keys_folder: PathBuf,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    Keys(KeysArgs),
    Cleanup(AgentCleanupArgs),
}

/// Prints the keys that let into an account, for sshd's AuthorizedKeysCommand.
///
/// They come from the key file, and only if that is as the agent wrote it. All Users log in under the
/// same account; for any other nothing is printed.
///
/// Exit codes: 0 printed, 1 the key file is missing or was edited, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  navigator agent keys containership
  navigator agent keys ops --account ops")]
struct KeysArgs {
    /// Account that is logged into: sshd's %u.
    user: String,
    /// Account that the keys let into; may be given more than once.
    #[arg(long, value_name = "NAME", default_value = ACCOUNT)]
    account: Vec<String>,
    #[command(flatten)]
    folder: FolderArgs,
}

/// Takes the agent's keys out of the key file.
///
/// Lines of others stay, and a file without any is deleted. Stop the agent first: it would write the
/// keys again.
///
/// Exit codes: 0 nothing of the agent's is left, 1 failed, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  navigator agent cleanup")]
struct AgentCleanupArgs {
    #[command(flatten)]
    folder: FolderArgs,
}

pub(crate) fn run(args: Args) -> u8 {
    match args.command {
        Some(AgentCommand::Keys(args)) => print_keys(&args),
        Some(AgentCommand::Cleanup(args)) => clean_up(&args),
        None => serve(args),
    }
}

fn serve(args: Args) -> u8 {
    if let Err(text) = args.logging.init() {
        complain(&text);
        return exit::USAGE;
    }
    let (config, kubeconfig) = match config(args) {
        Ok(settings) => settings,
        Err(text) => {
            complain(&text);
            return exit::USAGE;
        }
    };
    election::run("agent", kubeconfig.as_deref(), ClientRetry::Tried, |client, runtime| {
        agent::run(config, client, runtime)
    })
}

/// Turns the arguments into settings, and checks them before a port is bound.
fn config(args: Args) -> Result<(Config, Option<PathBuf>), String> {
    let Args {
        command: _,
        node_name,
        core_namespace,
        folder: FolderArgs { keys_folder },
        shared_key_file,
        client,
        admin_address,
        logging: _,
    } = args;
    let node = node_name.filter(|name| !name.is_empty());
    if core_namespace.is_empty() {
        return Err("--core-namespace: must not be empty".to_owned());
    }
    let config = Config {
        node: node.ok_or("--node-name: the name of this machine's Node is needed")?,
        namespace: core_namespace,
        folder: keys_folder,
        shared: shared_key_file,
        mending_period: MENDING_PERIOD,
        admin: admin_address,
    };
    Ok((config, client.kubeconfig))
}

fn print_keys(args: &KeysArgs) -> u8 {
    if !args.account.contains(&args.user) {
        return exit::OK;
    }
    let folder = &args.folder.keys_folder;
    match KeyFile::new(folder, false).find() {
        Ok(Some(block)) => match std::io::stdout().write_all(block.keys().as_bytes()) {
            Ok(()) => exit::OK,
            Err(_) => exit::FAILURE,
        },
        Ok(None) => {
            complain(&format!("the key file below {} is not as it was written", folder.display()));
            exit::FAILURE
        }
        Err(error) => {
            complain(&format!("failed to read the key file below {}: {error}", folder.display()));
            exit::FAILURE
        }
    }
}

fn clean_up(args: &AgentCleanupArgs) -> u8 {
    let folder = &args.folder.keys_folder;
    match KeyFile::new(folder, true).clean() {
        Ok(_) => exit::OK,
        Err(error) => {
            complain(&format!("failed to clean the key file below {}: {error}", folder.display()));
            exit::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(line: &str) -> Result<Config, String> {
        let words = ["agent"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        config(cli.args).map(|(config, _)| config)
    }

    #[test]
    fn an_agent_needs_the_name_of_its_node() {
        let config = parsed("--node-name m1").unwrap();
        assert_eq!((config.node.as_str(), config.namespace.as_str()), ("m1", "containership-core"));
        assert_eq!(config.folder, PathBuf::from("/etc/containership/home"));
        assert!(!config.shared && parsed("--node-name m1 --shared-key-file").unwrap().shared);
        assert!(parsed("--node-name=").unwrap_err().contains("--node-name"));
        assert!(
            parsed("--node-name m1 --core-namespace=").unwrap_err().contains("--core-namespace")
        );
    }
}
