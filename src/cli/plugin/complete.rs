//! Shell completion: of commands and flags, and of the names of clusters, nodes, pools, namespaces
//! and contexts.
//!
//! A failure gives no candidates and no message: an error in the middle of a half-typed line does
//! not help.

use std::{
    ffi::{OsStr, OsString},
    sync::Arc,
    time::Duration,
};

use clap::Parser;
use clap_complete::{
    CompletionCandidate,
    engine::{ArgValueCompleter, complete},
    env::{Bash, CompleteEnv, EnvCompleter, Fish, Powershell, Zsh},
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::ListParams};

use super::{
    args::{CommonArgs, ShellName},
    build_command,
    output::print_output,
    session,
};
use crate::{
    api::object_picture::PoolPicture,
    database::DatabaseList,
    error::exit,
    plugin::{
        error::Error,
        logs::short_name,
        lookup::{ClusterName, ClusterObject, PluginSession, name_of},
    },
};

/// Variable that the scripts of [`print_script`] set; it names the shell that asks.
const VARIABLE: &str = "NAVIGATOR_COMPLETE";
const PROGRAM: &str = "kubectl-navigator";
/// Time limit of a lookup: after that long, the user has typed the word.
const PATIENCE: Duration = Duration::from_secs(3);
/// Directive that tells kubectl not to offer file names.
const NO_FILES: &str = ":4";

/// Answers kubectl, which passes the words after `kubectl navigator`, the last of them unfinished
/// or empty.
pub(super) fn for_kubectl(words: &[OsString], databases: DatabaseList) -> u8 {
    let mut command = build_completion_command(words, databases);
    let mut words = words.to_vec();
    if words.is_empty() {
        words.push(OsString::new());
    }
    let last = words.len() - 1;
    let has_dash = words[last].as_encoded_bytes().starts_with(b"-");
    let candidates = complete(&mut command, words, last, None).unwrap_or_default();
    // Flags are offered once the user began one, as kubectl does for its own.
    let is_offered = |candidate: &&CompletionCandidate| {
        !candidate.is_hide_set()
            && (has_dash || !candidate.get_value().as_encoded_bytes().starts_with(b"-"))
    };
    let lines = candidates.iter().filter(is_offered).map(|candidate| {
        let value = candidate.get_value().to_string_lossy().into_owned();
        match candidate.get_help().map(ToString::to_string) {
            Some(help) => format!("{value}\t{}\n", help.lines().next().unwrap_or_default()),
            None => format!("{value}\n"),
        }
    });
    let answer = lines.collect::<String>() + NO_FILES + "\n";
    if print_output(&answer).is_ok() { exit::OK } else { exit::FAILURE }
}

/// Answers a shell if one of the scripts asks; `None` otherwise.
pub(super) fn for_shell(databases: DatabaseList) -> Option<u8> {
    let args: Vec<OsString> = std::env::args_os().collect();
    // The typed words come after the program, `--` and the program's name.
    let typed_words: Vec<OsString> =
        args.iter().skip_while(|word| *word != "--").skip(2).cloned().collect();
    let factory = || build_completion_command(&typed_words, databases).no_binary_name(false);
    match CompleteEnv::with_factory(factory).var(VARIABLE).try_complete(args, None) {
        Ok(false) => None,
        Ok(true) => Some(exit::OK),
        Err(_) => Some(exit::FAILURE),
    }
}

/// Prints the script by which a shell asks for completions.
pub(super) fn print_script(shell: ShellName) -> Result<u8, Error> {
    let shell: &dyn EnvCompleter = match shell {
        ShellName::Bash => &Bash,
        ShellName::Zsh => &Zsh,
        ShellName::Fish => &Fish,
        ShellName::Powershell => &Powershell,
    };
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)
        .map_err(Error::Write)?;
    print_output(&String::from_utf8_lossy(&script))?;
    Ok(exit::OK)
}

/// Returns the command line, with completers for those arguments that name objects.
fn build_completion_command(words: &[OsString], databases: DatabaseList) -> clap::Command {
    let completer = Arc::new(NameCompleter { line: CompletionLine::parse(words), databases });
    add_completers(build_command(), &completer)
}

fn add_completers(command: clap::Command, completer: &Arc<NameCompleter>) -> clap::Command {
    let command = command.mut_args(|arg| {
        let kind = match arg.get_id().as_str() {
            "name" => CandidateKind::Cluster,
            "node" => CandidateKind::Node,
            "size" => CandidateKind::Pool,
            "namespace" | "install_namespace" => CandidateKind::Namespace,
            "context" => CandidateKind::Context,
            _ => return arg,
        };
        let completer = completer.clone();
        arg.add(ArgValueCompleter::new(move |typed: &OsStr| completer.find_candidates(kind, typed)))
    });
    command.mut_subcommands(|subcommand| add_completers(subcommand, completer))
}

#[derive(Clone, Copy)]
enum CandidateKind {
    Cluster,
    Node,
    Pool,
    Namespace,
    Context,
}

/// The parts of a half-typed line that decide where names are looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CompletionLine {
    flags: Vec<String>,
    cluster: Option<String>,
}

/// Common flags that have a value.
const FLAGS: [&str; 3] = ["--namespace", "--context", "--kubeconfig"];

impl CompletionLine {
    /// Reads the finished words of a line. The last word is unfinished, and left out.
    fn parse(words: &[OsString]) -> Self {
        let mut line = Self::default();
        let finished_count = words.len().saturating_sub(1);
        let mut words = words[..finished_count].iter().filter_map(|word| word.to_str());
        // The first word is the command, the second one the cluster.
        let mut places = 0;
        while let Some(word) = words.next() {
            if word == "--" {
                break;
            }
            let long_flag = if word == "-n" { "--namespace" } else { word };
            if FLAGS.contains(&long_flag) {
                let Some(value) = words.next() else { break };
                line.flags.push(format!("{long_flag}={value}"));
            } else if let Some(value) = word.strip_prefix("-n").filter(|_| !word.starts_with("--"))
            {
                line.flags.push(format!("--namespace={}", value.trim_start_matches('=')));
            } else if FLAGS
                .iter()
                .any(|flag| word.strip_prefix(flag).is_some_and(|rest| rest.starts_with('=')))
            {
                line.flags.push(word.to_owned());
            } else if !word.starts_with('-') {
                places += 1;
                if places == 2 {
                    line.cluster = Some(word.to_owned());
                }
            }
        }
        line
    }
}

/// Looks up names while a line is typed.
struct NameCompleter {
    line: CompletionLine,
    databases: DatabaseList,
}

#[derive(Parser)]
#[command(no_binary_name = true)]
struct CompletionArgs {
    #[command(flatten)]
    common: CommonArgs,
}

impl NameCompleter {
    fn find_candidates(&self, kind: CandidateKind, typed: &OsStr) -> Vec<CompletionCandidate> {
        let Some(typed) = typed.to_str() else { return Vec::new() };
        let Ok(CompletionArgs { common }) = CompletionArgs::try_parse_from(&self.line.flags) else {
            return Vec::new();
        };
        if matches!(kind, CandidateKind::Context) {
            return filter_by_prefix(complete_contexts(&common), typed);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return Vec::new() };
        let names = runtime.block_on(async {
            let lookup = async {
                let session = session::open_session(&common, self.databases).await?;
                self.find_names(kind, &session, typed).await
            };
            tokio::time::timeout(PATIENCE, lookup).await
        });
        runtime.shutdown_background();
        match names {
            Ok(Ok(names)) => filter_by_prefix(names, typed),
            _ => Vec::new(),
        }
    }

    async fn find_names(
        &self,
        kind: CandidateKind,
        session: &PluginSession,
        typed: &str,
    ) -> Result<Vec<(String, String)>, Error> {
        if matches!(kind, CandidateKind::Namespace) {
            let api: Api<Namespace> = Api::all(session.client.clone());
            let list = api.list(&ListParams::default()).await?;
            let names = list.items.into_iter().filter_map(|namespace| namespace.metadata.name);
            return Ok(names.map(|name| (name, String::new())).collect());
        }
        if matches!(kind, CandidateKind::Cluster) {
            return Ok(complete_clusters(
                &session.list_clusters(Some(&session.namespace)).await?,
                typed,
            ));
        }
        let cluster = self.line.cluster.as_deref().unwrap_or_default();
        let cluster_name: ClusterName = cluster.parse().map_err(Error::Usage)?;
        let cluster_object = session.find_cluster(&cluster_name).await?;
        if matches!(kind, CandidateKind::Pool) {
            let describe_pool = |PoolPicture { name, wanted }: PoolPicture<'_>| {
                (format!("{name}={wanted}"), format!("{wanted} now"))
            };
            return Ok(cluster_object.picture().pools.iter().copied().map(describe_pool).collect());
        }
        let pilots = session.list_pilots(&cluster_object).await?;
        let describe_node = |pilot: &crate::api::v1beta1::Pilot| {
            let phase = pilot.status.phase.clone().unwrap_or_default().to_string();
            let name = name_of(pilot);
            // A user who began to type the whole name gets the whole name.
            let node_suffix = short_name(cluster_object.name(), name);
            (if node_suffix.starts_with(typed) { node_suffix } else { name }.to_owned(), phase)
        };
        Ok(pilots.iter().map(describe_node).collect())
    }
}

/// Returns names of clusters, with their kind where a kind was typed or two clusters have one name.
fn complete_clusters(objects: &[ClusterObject], typed: &str) -> Vec<(String, String)> {
    let has_kind = typed.contains('/');
    let is_ambiguous =
        |name: &str| objects.iter().filter(|object| object.name() == name).count() > 1;
    let name = |object: &ClusterObject| {
        if has_kind || is_ambiguous(object.name()) {
            format!("{}/{}", object.kind.singular(), object.name())
        } else {
            object.name().to_owned()
        }
    };
    objects.iter().map(|object| (name(object), object.kind.kind().to_owned())).collect()
}

fn complete_contexts(common: &CommonArgs) -> Vec<(String, String)> {
    let contexts = session::read_kubeconfig(common).map(|file| file.contexts).unwrap_or_default();
    contexts.into_iter().map(|context| (context.name, String::new())).collect()
}

fn filter_by_prefix(names: Vec<(String, String)>, prefix: &str) -> Vec<CompletionCandidate> {
    let matches = names.into_iter().filter(|(name, _)| name.starts_with(prefix));
    matches
        .map(|(name, help)| {
            let help = (!help.is_empty()).then(|| help.into());
            CompletionCandidate::new(name).help(help)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &str) -> (String, Option<String>) {
        let words: Vec<OsString> = words.split(' ').map(Into::into).collect();
        let CompletionLine { flags, cluster } = CompletionLine::parse(&words);
        (flags.join(" "), cluster)
    }

    #[test]
    fn a_half_typed_line_says_whom_to_ask() {
        let demo = Some("demo".to_owned());
        assert_eq!(line("fence demo "), (String::new(), demo.clone()));
        assert_eq!(line("fence demo"), (String::new(), None));
        assert_eq!(line("-n a fence demo "), ("--namespace=a".to_owned(), demo.clone()));
        assert_eq!(line("fence -na demo "), ("--namespace=a".to_owned(), demo.clone()));
        let both = "--context=c --namespace=b".to_owned();
        assert_eq!(line("fence --context=c --off demo --namespace b "), (both, demo));
    }
}
