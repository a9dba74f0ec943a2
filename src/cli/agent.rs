//! The command line of `navigator agent`.

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::Subcommand;

use super::{
    election::{self, ClientArgs, ClientRetry},
    logging, print_error,
};
use crate::{
    agent::{
        self, Config, HostInstall, KeyFile,
        runner::{self, RunnerConfig},
    },
    api::{containership::JobCode, names},
    engine::machines::{HostPolicy, KubeVersion},
    error::{chain, exit},
};

/// Home folder below which the key file lies, as in 2019.
const KEYS_FOLDER: &str = "/etc/containership/home";
/// Folder of the jobs of upgrades.
const UPGRADE_FOLDER: &str = "/etc/containership/upgrade";
/// Account under which people log in.
const ACCOUNT: &str = "containership";
/// Time in which the key file is mended at most ten times.
const MENDING_PERIOD: Duration = Duration::from_secs(60);

/// Keeps the SSH keys of all Users on one machine, and hands the jobs of upgrades to its runner.
///
/// It writes the keys into `.ssh/authorized_keys` below a folder, undoes what others do to that file, and
/// says on the machine's Node how it stands. The file stays when the agent ends or the API is away. A
/// ClusterUpgrade with `runner.mode: Kubeadm` is written down as a job when the machine's turn has come.
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
    /// Folder in which jobs of upgrades are written; none are while it is not there.
    #[arg(long, env = "NAVIGATOR_UPGRADE_FOLDER", value_name = "FOLDER", default_value = UPGRADE_FOLDER)]
    upgrade_folder: PathBuf,
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
    RunJob(RunJobArgs),
    HostInstall(HostInstallArgs),
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

/// Does the job of this machine's upgrade: runs on the machine itself, as root.
///
/// A unit of systemd starts it when the agent has written a job: see `host-install`. It fetches kubelet
/// and kubeadm, runs kubeadm, exchanges the kubelet and starts it. Killed at any moment it goes on when
/// it is started again; when the new kubelet is not well, the old one comes back.
///
/// Exit codes: 0 done or nothing to do, 10 to be started again, 20 the machine is as it was before, 30
/// neither: see to it, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  navigator agent run-job /etc/containership/upgrade")]
struct RunJobArgs {
    /// Folder in which the agent writes jobs.
    folder: PathBuf,
    /// What this machine lets a job do. No pod may be able to write it.
    #[arg(long, value_name = "FILE", default_value = "/etc/containership/policy.json")]
    policy: PathBuf,
    /// Folder of the journal and of programs. No pod may be able to write it.
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/containership/upgrade")]
    state: PathBuf,
    #[command(flatten)]
    logging: logging::Args,
}

/// Lays the runner of upgrades on a machine: this binary, two units of systemd, a policy.
///
/// A policy that is there stays as it is. Without `--base-url` a new one has upgrades disabled.
///
/// Exit codes: 0 everything is laid, 1 failed, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  navigator agent host-install --base-url https://cdn.dl.k8s.io/release
  systemctl daemon-reload && systemctl start containership-upgrade.path")]
struct HostInstallArgs {
    /// Root folder of the machine.
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
    /// Address that programs may come from, with all that lies below; may be given more than once.
    #[arg(long, value_name = "URL")]
    base_url: Vec<String>,
    /// Lowest version that the machine may be brought to.
    #[arg(long, value_name = "VERSION", default_value = "v1.33.0", value_parser = release)]
    lowest_version: String,
    /// Highest version that the machine may be brought to.
    #[arg(long, value_name = "VERSION", default_value = "v1.37.999", value_parser = release)]
    highest_version: String,
}

fn release(text: &str) -> Result<String, &'static str> {
    let version =
        KubeVersion::parse(text).ok_or("a release of Kubernetes is needed, such as v1.34.4");
    version.map(|_| text.to_owned())
}

pub(crate) fn run_agent_command(args: Args) -> u8 {
    match args.command {
        Some(AgentCommand::RunJob(args)) => run_job(args),
        Some(AgentCommand::HostInstall(args)) => host_install(args),
        Some(AgentCommand::Keys(args)) => print_keys(&args),
        Some(AgentCommand::Cleanup(args)) => clean_up(&args),
        None => run_agent(args),
    }
}

fn run_agent(args: Args) -> u8 {
    if let Err(text) = args.logging.init() {
        print_error(&text);
        return exit::USAGE;
    }
    let (config, kubeconfig) = match build_config(args) {
        Ok(settings) => settings,
        Err(text) => {
            print_error(&text);
            return exit::USAGE;
        }
    };
    election::run_component(
        "agent",
        kubeconfig.as_deref(),
        ClientRetry::Tried,
        |client, runtime| agent::run_agent(config, client, runtime),
    )
}

/// Turns the arguments into settings, and checks them before a port is bound.
fn build_config(args: Args) -> Result<(Config, Option<PathBuf>), String> {
    let Args {
        command: _,
        node_name,
        core_namespace,
        folder: FolderArgs { keys_folder },
        shared_key_file,
        upgrade_folder,
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
        upgrades: upgrade_folder,
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
    match KeyFile::new(folder, false).find_block() {
        Ok(Some(block)) => match std::io::stdout().write_all(block.keys().as_bytes()) {
            Ok(()) => exit::OK,
            Err(_) => exit::FAILURE,
        },
        Ok(None) => {
            print_error(&format!(
                "the key file below {} is not as it was written",
                folder.display()
            ));
            exit::FAILURE
        }
        Err(error) => {
            print_error(&format!(
                "failed to read the key file below {}: {error}",
                folder.display()
            ));
            exit::FAILURE
        }
    }
}

fn clean_up(args: &AgentCleanupArgs) -> u8 {
    let folder = &args.folder.keys_folder;
    match KeyFile::new(folder, true).remove_block() {
        Ok(_) => exit::OK,
        Err(error) => {
            print_error(&format!(
                "failed to clean the key file below {}: {error}",
                folder.display()
            ));
            exit::FAILURE
        }
    }
}

fn run_job(args: RunJobArgs) -> u8 {
    let RunJobArgs { folder, policy, state, logging } = args;
    if let Err(text) = logging.init() {
        print_error(&text);
        return exit::USAGE;
    }
    let report_retry = |text: String| {
        print_error(&text);
        JobCode::Again.into()
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report_retry(format!("failed to start: {error}")),
    };
    match runtime.block_on(runner::run_jobs(RunnerConfig { folder, state, policy })) {
        Ok(code) => code.into(),
        Err(error) => report_retry(chain(&error).to_string()),
    }
}

fn host_install(args: HostInstallArgs) -> u8 {
    let HostInstallArgs { root, base_url, lowest_version, highest_version } = args;
    let policy = HostPolicy::new(base_url, lowest_version, highest_version);
    let install_result = std::env::current_exe()
        .and_then(|binary| HostInstall { root, binary, policy }.install_runner());
    match install_result {
        Ok(true) => exit::OK,
        Ok(false) => {
            print_error("the policy that is there stays as it is");
            exit::OK
        }
        Err(error) => {
            print_error(&format!("failed to lay the runner: {error}"));
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
        build_config(cli.args).map(|(config, _)| config)
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
