//! Commands and flags of `kubectl navigator`.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};

use crate::{api::names, cli::manifest, plugin::lookup::ClusterName};

/// Asks about database clusters that Navigator runs, and changes them.
///
/// A cluster is NAME, or KIND/NAME where clusters of two databases have one name. A node is the
/// name of its Pilot, or the end of it: `ring-0`. Data go to standard output, talk to standard
/// error.
///
/// Exit codes: 0 done, 1 failed, 3 not ready or not allowed now, 64 unusable arguments.
#[derive(Debug, Parser)]
#[command(name = "kubectl-navigator", version, disable_help_subcommand = true)]
#[command(arg_required_else_help = true)]
#[command(after_help = "Examples:
  kubectl navigator status demo
  kubectl navigator restart demo && kubectl navigator status demo
  kubectl navigator upgrade demo 5.0.6 --check")]
pub(super) struct PluginCli {
    #[command(flatten)]
    pub(super) common: CommonArgs,
    #[command(subcommand)]
    pub(super) command: PluginCommand,
}

/// Flags of every command.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Common flags")]
#[group(skip)]
pub(super) struct CommonArgs {
    /// Namespace of the cluster; the context's own when absent.
    #[arg(long, short, global = true, value_name = "NAMESPACE")]
    pub(super) namespace: Option<String>,
    /// Context of the kubeconfig.
    #[arg(long, global = true, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// File that says how to reach Kubernetes; else KUBECONFIG, ~/.kube/config, or the pod's own
    /// identity.
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// Seconds to wait for answers, for example 30 or 30s.
    #[arg(long, global = true, value_name = "SECONDS", value_parser = seconds, default_value = "30")]
    timeout: u64,
    /// Colours: on a terminal that wants them (NO_COLOR), always or never.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = ColourChoice::Auto)]
    pub(super) color: ColourChoice,
}

impl CommonArgs {
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(skip)]
pub(super) struct OutputArgs {
    /// Form of the answer; a table or a sentence when absent.
    #[arg(long, short, value_enum)]
    pub(super) output: Option<OutputFormat>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    Json,
    Yaml,
    /// The table with more of everything.
    Wide,
    /// Names alone.
    Name,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ColourChoice {
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DryRun {
    None,
    /// The server says what it would do, and does nothing.
    Server,
}

#[derive(Debug, Subcommand)]
pub(super) enum PluginCommand {
    Status(StatusArgs),
    Logs(LogsArgs),
    Shell(ShellArgs),
    GetCredentials(CredentialsArgs),
    /// Shows the certificates that the nodes of a cluster use, until when, and the CAs behind them.
    ///
    /// CURRENT says whether a port shows what was signed for it last. TRUSTED-BY counts the nodes that
    /// are told to trust a CA.
    ///
    /// Exit codes: 0 all are current and valid, 1 failed or nothing is encrypted, 3 some are not, 64
    /// unusable arguments.
    #[command(after_help = "Examples:
  kubectl navigator certificates search
  kubectl navigator certificates search -o json")]
    Certificates {
        /// The cluster.
        name: ClusterName,
        #[command(flatten)]
        form: OutputArgs,
    },
    Restart(RestartArgs),
    /// Leaves a cluster as it is, whatever its spec says; its status is still observed.
    ///
    /// Exit codes: 0 done, 1 failed, 64 unusable arguments.
    #[command(after_help = "Examples:
  kubectl navigator pause demo
  kubectl navigator pause demo --namespace shop --dry-run server")]
    Pause(ClusterArgs),
    /// Carries a paused cluster's spec out again.
    ///
    /// Exit codes: 0 done, 1 failed, 64 unusable arguments.
    #[command(after_help = "Examples:
  kubectl navigator resume demo
  kubectl navigator resume demo -o json")]
    Resume(ClusterArgs),
    /// Stops all databases of a cluster cleanly; volumes and sizes are kept.
    ///
    /// Exit codes: 0 done, 1 failed, 64 unusable arguments.
    #[command(after_help = "Examples:
  kubectl navigator stop demo
  kubectl navigator stop demo && kubectl wait --for=jsonpath={.status.phase}=Stopped …/demo")]
    Stop(ClusterArgs),
    /// Starts the databases of a stopped cluster.
    ///
    /// Exit codes: 0 done, 1 failed, 64 unusable arguments.
    #[command(after_help = "Examples:
  kubectl navigator start demo
  kubectl navigator start demo -n shop")]
    Start(ClusterArgs),
    Fence(FenceArgs),
    GiveUp(GiveUpArgs),
    UnsafeBootstrap(UnsafeBootstrapArgs),
    Drain(DrainArgs),
    /// Shows upgrades and reboots of machines, and what each waits for.
    ///
    /// They are ClusterUpgrades, which the cluster manager carries out. Those of all namespaces are
    /// meant, or of the one that `--namespace` names.
    ///
    /// Exit codes: 0 none failed or waits, 1 they could not be read, 3 some failed or wait, 64
    /// unusable arguments.
    #[command(after_help = "Examples:
  kubectl navigator machines
  kubectl navigator machines -n containership-core -o json")]
    Machines {
        #[command(flatten)]
        form: OutputArgs,
    },
    Cleanup(CleanupArgs),
    Scale(ScaleArgs),
    Upgrade(UpgradeArgs),
    /// Lists the rules that hold steps up, or those that hold in a cluster now.
    ///
    /// Exit codes: 0 none holds (or the list), 1 failed, 3 some hold, 64 unusable arguments.
    #[command(after_help = "Examples:
  kubectl navigator predicates
  kubectl navigator predicates demo -o json")]
    Predicates {
        /// The cluster; the whole list when absent.
        name: Option<ClusterName>,
        #[command(flatten)]
        form: OutputArgs,
    },
    Report(ReportArgs),
    /// Installs Navigator, or looks whether it is installed.
    #[command(arg_required_else_help = true)]
    #[command(after_help = "Examples:
  kubectl navigator install generate | kubectl apply --server-side -f -
  kubectl navigator install check")]
    Install {
        #[command(subcommand)]
        what: InstallCommand,
    },
    /// Prints a script by which a shell completes `kubectl-navigator`.
    ///
    /// kubectl itself completes `kubectl navigator` where a link kubectl_complete-navigator to
    /// this program is on the PATH.
    ///
    /// Exit codes: 0 printed, 1 standard output failed, 64 unusable arguments.
    #[command(after_help = "Examples:
  source <(kubectl navigator completion bash)
  kubectl navigator completion fish > ~/.config/fish/completions/kubectl-navigator.fish
  ln -s kubectl-navigator /usr/local/bin/kubectl_complete-navigator")]
    Completion {
        #[arg(value_enum)]
        shell: ShellName,
    },
    /// Prints the versions of this plugin, of Navigator and of Kubernetes.
    ///
    /// Exit codes: 0 printed, 1 Kubernetes does not answer, 64 unusable arguments.
    #[command(after_help = "Examples:
  kubectl navigator version
  kubectl navigator version --client -o json")]
    Version {
        /// This plugin's alone; no request is sent.
        #[arg(long)]
        client: bool,
        #[command(flatten)]
        form: OutputArgs,
    },
}

/// Says on one screen how a cluster is, what is being done to it, and what that waits for.
///
/// Without a name: a row for each cluster.
///
/// Exit codes: 0 Ready, 1 failed, 3 not Ready, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl navigator status demo
  kubectl navigator status --all-namespaces
  until kubectl navigator status demo >/dev/null; do sleep 5; done")]
pub(super) struct StatusArgs {
    /// The cluster; all of the namespace when absent.
    pub(super) name: Option<ClusterName>,
    /// Clusters of all namespaces.
    #[arg(long, short = 'A', conflicts_with = "name")]
    pub(super) all_namespaces: bool,
    #[command(flatten)]
    pub(super) form: OutputArgs,
}

/// Shows what the nodes of a cluster log, each line behind the node's name.
///
/// Exit codes: 0 read to the end, 1 a log could not be read, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  kubectl navigator logs demo --follow --pretty
  kubectl navigator logs demo ring-0 --tail 100
  kubectl logs deployment/navigator-controller -n navigator | kubectl navigator logs pretty")]
pub(super) struct LogsArgs {
    #[command(subcommand)]
    pub(super) what: Option<LogsFilter>,
    /// The cluster.
    #[arg(required = true)]
    pub(super) name: Option<ClusterName>,
    /// One node; all of them when absent.
    pub(super) node: Option<String>,
    /// Goes on until it is interrupted, also when nodes restart.
    #[arg(long, short)]
    pub(super) follow: bool,
    /// JSON lines become lines for people.
    #[arg(long)]
    pub(super) pretty: bool,
    /// The last lines of each node only.
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(i64).range(0..))]
    pub(super) tail: Option<i64>,
    /// Lines of the last seconds only.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) since: Option<u64>,
    /// Lines of the container before the one that runs.
    #[arg(long, conflicts_with = "follow")]
    pub(super) previous: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum LogsFilter {
    /// Makes lines for people of the JSON lines on standard input.
    ///
    /// Exit codes: 0 read to the end, 1 failed, 64 unusable arguments.
    #[command(after_help = "Examples:
  kubectl logs deployment/navigator-apiserver -n navigator | kubectl navigator logs pretty
  kubectl navigator logs pretty < old.log")]
    Pretty,
}

/// Opens the database's own client inside a node, through `kubectl exec`.
///
/// What follows `--` goes to the client. Without a node: the first that is ready. In a secured cluster
/// the client logs in as the administrator, or as the user of --as, with the password of that user's
/// Secret, which you must be allowed to read.
///
/// Exit codes: the client's own, 1 no login or it could not be passed on, 3 no node is ready, 64
/// unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl navigator shell demo
  kubectl navigator shell demo ring-1 -- -e 'DESCRIBE KEYSPACES'
  kubectl navigator shell search -- _cat/shards?v
  kubectl navigator shell search --as app")]
pub(super) struct ShellArgs {
    /// The cluster.
    pub(super) name: ClusterName,
    /// The node.
    pub(super) node: Option<String>,
    /// User of the database, as the spec declares it; the administrator when absent.
    #[arg(long = "as", value_name = "USER")]
    pub(super) user: Option<String>,
    /// Arguments of the client.
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub(super) words: Vec<OsString>,
}

/// Prints what an application needs to connect to a secured cluster: user, password, host, port.
///
/// It is read from the Secret of the user, which you must be allowed to read, and printed with the
/// password as it is.
///
/// Exit codes: 0 printed, 1 there is none or you may not read it, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl navigator get-credentials search
  kubectl navigator get-credentials search --user app --ca ca.crt -o json
  set -a; eval \"$(kubectl navigator get-credentials search --user app --ca ca.crt)\"")]
pub(super) struct CredentialsArgs {
    /// The cluster.
    pub(super) name: ClusterName,
    /// User of the database, as the spec declares it; the administrator when absent.
    #[arg(long, value_name = "USER")]
    pub(super) user: Option<String>,
    /// File that the CAs which clients are to trust are written to, as PEM.
    #[arg(long, value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,
    /// Form of the answer.
    #[arg(long, short, value_enum, default_value_t = CredentialsFormat::Env)]
    pub(super) output: CredentialsFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum CredentialsFormat {
    /// Assignments for a shell, a line each.
    Env,
    /// An object with the keys of the Secret.
    Json,
}

/// Restarts all nodes of a cluster one after the other, or one node in its place.
///
/// The controller restarts a whole cluster, one node at a time, as its rules allow. One node is
/// fenced and let go again, and only while no rule speaks against it; if that is interrupted, the
/// node is let go at once.
///
/// Exit codes: 0 done (of a cluster: asked for), 1 failed, 3 a rule forbids it now, 64 unusable
/// arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl navigator restart demo
  kubectl navigator restart demo ring-1 --deadline 900")]
pub(super) struct RestartArgs {
    /// The cluster.
    pub(super) name: ClusterName,
    /// One node only.
    pub(super) node: Option<String>,
    /// Restarts the node whatever rules say; that may cost data or availability.
    #[arg(long, requires = "node")]
    pub(super) force: bool,
    /// Seconds that the node may take to stop, and to serve again.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "600", requires = "node")]
    pub(super) deadline: u64,
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct ClusterArgs {
    /// The cluster.
    pub(super) name: ClusterName,
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// What every change can do.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(skip)]
pub(super) struct ChangeArgs {
    /// Whether anything is changed.
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = DryRun::None)]
    pub(super) dry_run: DryRun,
    #[command(flatten)]
    pub(super) form: OutputArgs,
}

/// Stops the database of one node and keeps its pod, for repair.
///
/// While a node is fenced, nothing else is done to its cluster.
///
/// Exit codes: 0 done, 1 failed, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl navigator fence demo ring-1
  kubectl navigator fence demo ring-1 --off")]
pub(super) struct FenceArgs {
    /// The cluster.
    pub(super) name: ClusterName,
    /// The node.
    pub(super) node: String,
    /// Lets its database run again.
    #[arg(long)]
    pub(super) off: bool,
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Gives up the data of one node that is lost for good, so that its cluster goes on without them.
///
/// A node that is wanted joins again on a new, empty volume; one that is not wanted is removed. What
/// no other node has a copy of is lost. `status` names the uid of the node's claim, or of its pod
/// where the pod holds the data; the word is about these data alone, and means nothing for any that
/// come later.
///
/// Exit codes: 0 done, 1 failed, 3 the node serves, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl navigator status demo
  kubectl navigator give-up demo ring-1 --data 7c0f1c0e-5a0b-4d53-9a4b-1f8f3d0c9d11")]
pub(super) struct GiveUpArgs {
    /// The cluster.
    pub(super) name: ClusterName,
    /// The node.
    pub(super) node: String,
    /// The claim or pod whose data are lost.
    #[arg(long, value_name = "UID")]
    pub(super) data: String,
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Begins a cluster anew from one node, when too many of its voters are lost for good.
///
/// For a database whose nodes elect a leader: half or more of the nodes that can be elected are
/// lost, and no node serves. The node that is named keeps its data, and the vendor's tool makes it
/// the only voter of a new cluster; the other nodes that are left join that. What the lost nodes alone knew
/// is lost. Without --cluster-id nothing is done: the command says what may be lost, and what to
/// type. The controller looks again whether a quorum is lost before the node is asked.
///
/// Exit codes: 0 asked, 1 failed, 3 not asked: a node serves, or the id is missing or another, 64
/// unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl navigator unsafe-bootstrap search m-0
  kubectl navigator unsafe-bootstrap search m-0 --cluster-id 3tTwXe2kQYmn0p1Gd2oPZA")]
pub(super) struct UnsafeBootstrapArgs {
    /// The cluster.
    pub(super) name: ClusterName,
    /// The node, which can be elected and has its data.
    pub(super) node: String,
    /// The id of the database cluster that is lost, as `status.clusterID` of the cluster shows it.
    #[arg(long, value_name = "ID")]
    pub(super) cluster_id: Option<String>,
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Empties a machine of databases: each node on it leaves when its cluster can do without it.
///
/// The machine is cordoned, as by `kubectl drain`, and each node of Navigator's clusters there is asked
/// to leave. Its pod is deleted when no rule speaks against that: one node of a cluster at a time, and
/// clusters beside each other. A node whose volume cannot move waits until the machine takes pods
/// again. What else runs there stays: `kubectl drain` comes after. Nodes of all namespaces are meant,
/// or of the one that `--namespace` names.
///
/// Exit codes: 0 asked for (with --wait: all have left), 1 failed, 3 some are there after --deadline, 64
/// unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl navigator drain machine-3 --wait
  kubectl navigator drain machine-3
  kubectl navigator drain machine-3 --cancel")]
pub(super) struct DrainArgs {
    /// The machine: the name of its Node.
    pub(super) machine: String,
    /// Follows the nodes until all have left, and says what each waits for.
    #[arg(long, conflicts_with_all = ["cancel", "dry_run"])]
    pub(super) wait: bool,
    /// Seconds that all of them may take.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "3600", requires = "wait")]
    pub(super) deadline: u64,
    /// Takes the requests back, and uncordons the machine if this command cordoned it.
    #[arg(long)]
    pub(super) cancel: bool,
    /// Whether anything is changed.
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = DryRun::None)]
    pub(super) dry_run: DryRun,
}

/// Removes rows that are other nodes' now, on one node of a cluster after the other.
///
/// After nodes have joined, the others keep what they gave away until they are told to remove it; before
/// that no node leaves, as deleted rows would come back. Without a node: those whose condition CleanupDue
/// is not False. It reads and writes all tables of a node, and may take hours; the same condition says how
/// far it is.
///
/// Exit codes: 0 asked for, or nothing is due, 1 failed, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl navigator cleanup demo
  kubectl navigator cleanup demo ring-1
  kubectl wait --for=condition=CleanupDue=false pilot/cass-demo-ring-1 --timeout=12h")]
pub(super) struct CleanupArgs {
    /// The cluster.
    pub(super) name: ClusterName,
    /// One node, whether or not anything is due there.
    pub(super) node: Option<String>,
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Sets how many nodes a node pool shall have.
///
/// Nodes that leave move their data away before they go.
///
/// Exit codes: 0 done, 1 failed, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl navigator scale demo ring=5
  kubectl navigator scale search data=4 --dry-run server")]
pub(super) struct ScaleArgs {
    /// The cluster.
    pub(super) name: ClusterName,
    /// The node pool, and how many nodes it shall have.
    #[arg(value_name = "POOL=NODES", value_parser = pool_size)]
    pub(super) size: (String, u32),
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Sets the version of a cluster, or says what would come of it.
///
/// Exit codes: 0 done (with --check: it could begin now), 1 failed or refused, 3 it would wait, 64
/// unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl navigator upgrade demo 5.0.6 --check
  kubectl navigator upgrade demo 5.0.6")]
pub(super) struct UpgradeArgs {
    /// The cluster.
    pub(super) name: ClusterName,
    /// The version that it shall run.
    #[arg(value_name = "VERSION")]
    pub(super) to: String,
    /// Changes nothing: the server judges the version, and the rules that hold now are listed.
    #[arg(long)]
    pub(super) check: bool,
    #[command(flatten)]
    pub(super) change: ChangeArgs,
}

/// Gathers what a person who helps from afar needs, in one archive without secrets.
///
/// Clusters, Pilots, what Kubernetes runs for them, events, logs, and Navigator itself. Secrets are
/// not read, and what looks like one is taken out; look before you pass it on all the same.
///
/// Exit codes: 0 written (errors.txt in it names what could not be read), 1 failed, 64 unusable
/// arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  kubectl navigator report demo
  kubectl navigator report --output - | ssh helper 'cat > report.tar.gz'")]
pub(super) struct ReportArgs {
    /// The cluster; all of the namespace when absent.
    pub(super) name: Option<ClusterName>,
    /// File to write; standard output for `-`, a name with the time when absent.
    #[arg(long, short, value_name = "FILE.tar.gz")]
    pub(super) output: Option<PathBuf>,
    /// Last lines of each log.
    #[arg(long, value_name = "LINES", default_value_t = 2000, value_parser = clap::value_parser!(i64).range(0..))]
    pub(super) tail: i64,
    /// MiB before they are packed, at most; logs beyond it are left out.
    #[arg(long, value_name = "MIB", default_value_t = 25, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) max_size: u16,
    /// Namespace of Navigator itself.
    #[arg(long, value_name = "NAMESPACE", default_value = names::NAMESPACE)]
    pub(super) install_namespace: String,
}

#[derive(Debug, Subcommand)]
pub(super) enum InstallCommand {
    /// Prints what to apply to install Navigator, as `navigator manifest` does.
    #[command(after_help = "Examples:
  kubectl navigator install generate | kubectl apply --server-side -f -
  kubectl navigator install generate --image registry.example.org/navigator:v0.2.0")]
    Generate(manifest::Args),
    /// Looks whether Navigator is there, answers, and may be used.
    ///
    /// Exit codes: 0 it works, 1 failed, 3 something does not work, 64 unusable arguments.
    #[command(after_help = "Examples:
  kubectl navigator install check
  kubectl navigator install check --install-namespace databases -o json")]
    Check {
        /// Namespace of Navigator itself.
        #[arg(long, value_name = "NAMESPACE", default_value = names::NAMESPACE)]
        install_namespace: String,
        #[command(flatten)]
        form: OutputArgs,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ShellName {
    Bash,
    Zsh,
    Fish,
    Powershell,
}

/// Parses seconds, with or without their unit.
fn seconds(text: &str) -> Result<u64, String> {
    let seconds = text.strip_suffix('s').unwrap_or(text).parse::<u64>();
    match seconds {
        Ok(0) | Err(_) => Err("a number of seconds, for example 30".to_owned()),
        Ok(seconds) => Ok(seconds),
    }
}

fn pool_size(text: &str) -> Result<(String, u32), String> {
    let usage = || "a node pool and how many nodes it shall have, for example ring=5".to_owned();
    let (pool, nodes) = text.split_once('=').ok_or_else(usage)?;
    match nodes.parse() {
        Ok(nodes) if !pool.is_empty() => Ok((pool.to_owned(), nodes)),
        _ => Err(usage()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_pools_and_seconds_are_read_or_refused() {
        assert_eq!(pool_size("ring=5"), Ok(("ring".to_owned(), 5)));
        for wrong in ["ring", "=5", "ring=", "ring=-1", "ring=5=6"] {
            assert!(pool_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!((seconds("30"), seconds("30s")), (Ok(30), Ok(30)));
        for wrong in ["", "0", "-1", "5m"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
