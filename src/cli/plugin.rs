//! The command line of `kubectl navigator`: `navigator plugin` under the name that kubectl looks
//! for.
//!
//! Owns the plugin's command line, which is separate from that of `navigator`: a user of kubectl
//! knows nothing of `navigator` and its roles.

mod args;
mod changes;
mod complete;
mod credentials;
mod drain;
mod output;
mod queries;
mod session;
mod shell;

use std::{ffi::OsString, future::Future, time::Duration};

use clap::{CommandFactory, FromArgMatches};

use self::{
    args::{CommonArgs, InstallCommand, LogsArgs, PluginCli, PluginCommand},
    shell::ConsoleProcess,
};
use super::applet::COMPLETE;
use crate::{database::DatabaseList, error::exit, plugin::error::Error};

/// The kubectl plugin: asks about clusters and changes them.
///
/// Its own help: navigator plugin --help. A link `kubectl-navigator` to this binary on the PATH
/// makes it `kubectl navigator`, and a link `kubectl_complete-navigator` completes its words.
///
/// Exit codes: 0 done, 1 failed, 3 not ready or not allowed now, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
#[command(after_help = "Examples:
  navigator plugin status demo
  ln -s navigator /usr/local/bin/kubectl-navigator && kubectl navigator status demo")]
pub(crate) struct Args {
    /// What follows `kubectl navigator`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    words: Vec<OsString>,
}

/// Returns the command line after `kubectl navigator`, as clap knows it.
pub(super) fn build_command() -> clap::Command {
    PluginCli::command().bin_name("kubectl navigator").no_binary_name(true)
}

pub(crate) fn run_plugin(args: Args, databases: DatabaseList) -> u8 {
    let Args { words } = args;
    if words.first().is_some_and(|word| word == COMPLETE) {
        return complete::for_kubectl(&words[1..], databases);
    }
    if let Some(code) = complete::for_shell(databases) {
        return code;
    }
    let parse_result = build_command().try_get_matches_from(words).and_then(|matches| {
        PluginCli::from_arg_matches(&matches).map_err(|error| error.format(&mut build_command()))
    });
    let plugin = match parse_result {
        Ok(plugin) => plugin,
        Err(error) => {
            // With standard error closed, there is no reader for the text.
            drop(error.print());
            return if error.use_stderr() { exit::USAGE } else { exit::OK };
        }
    };
    match carry_out(plugin, databases) {
        Ok(code) => code,
        // A reader that closes the pipe early, as `head` does, wants no more, so the write error is
        // none.
        Err(Error::Write(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => exit::OK,
        Err(error) => {
            output::print_message(&format!("error: {}", error.full_message()));
            error.exit_code()
        }
    }
}

fn carry_out(plugin: PluginCli, databases: DatabaseList) -> Result<u8, Error> {
    let PluginCli { common, command } = plugin;
    // Commands that need no API are run before a client is made.
    let command = match command {
        PluginCommand::Install { what: InstallCommand::Generate(args) } => {
            return Ok(super::manifest::print_manifest(args, databases));
        }
        PluginCommand::Completion { shell } => return complete::print_script(shell),
        PluginCommand::Logs(LogsArgs { what: Some(_), .. }) => {
            return queries::pretty_filter(&common);
        }
        PluginCommand::Predicates { name: None, form } => {
            return queries::print_predicates(&common, form, databases);
        }
        PluginCommand::Version { client: true, form } => return queries::client_version(form),
        command => command,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::Write)?;
    let outcome = runtime.block_on(run_command(&common, command, databases));
    // A name lookup that is under way holds its thread; the process does not wait for it.
    runtime.shutdown_background();
    match outcome? {
        CommandOutcome::Code(code) => Ok(code),
        CommandOutcome::Become(console) => console.exec_client(),
    }
}

/// What is left to do after the API was asked: exit, or become another program.
enum CommandOutcome {
    Code(u8),
    /// The process becomes the client of a database.
    Become(ConsoleProcess),
}

async fn run_command(
    common: &CommonArgs,
    command: PluginCommand,
    databases: DatabaseList,
) -> Result<CommandOutcome, Error> {
    let limit = common.timeout();
    let session = with_timeout(limit, session::open_session(common, databases)).await?;
    let session = &session;
    let code = match command {
        PluginCommand::Status(args) => {
            with_timeout(limit, queries::print_status(common, session, &args)).await?
        }
        PluginCommand::Logs(args) => queries::print_logs(common, session, &args).await?,
        PluginCommand::Shell(args) => {
            return with_timeout(limit, shell::prepare_console(common, session, &args))
                .await
                .map(CommandOutcome::Become);
        }
        PluginCommand::GetCredentials(args) => {
            with_timeout(limit, credentials::print_credentials(session, &args)).await?
        }
        PluginCommand::Certificates { name, form } => {
            with_timeout(limit, queries::print_certificates(common, form, session, &name)).await?
        }
        PluginCommand::Predicates { name: Some(name), form } => {
            with_timeout(limit, queries::print_blockers(common, form, session, &name)).await?
        }
        PluginCommand::Report(args) => queries::write_report(session, &args).await?,
        PluginCommand::Install { what: InstallCommand::Check { install_namespace, form } } => {
            with_timeout(limit, queries::check_install(common, form, session, &install_namespace))
                .await?
        }
        PluginCommand::Version { client: _, form } => {
            with_timeout(limit, queries::print_version(form, session)).await?
        }
        PluginCommand::Restart(args) if args.node.is_some() => {
            changes::restart_node(session, &args).await?
        }
        PluginCommand::Restart(args) => {
            with_timeout(limit, changes::restart_cluster(session, &args)).await?
        }
        PluginCommand::Pause(args) => {
            with_timeout(limit, changes::set_paused(session, &args, true)).await?
        }
        PluginCommand::Resume(args) => {
            with_timeout(limit, changes::set_paused(session, &args, false)).await?
        }
        PluginCommand::Stop(args) => {
            with_timeout(limit, changes::set_stopped(session, &args, true)).await?
        }
        PluginCommand::Start(args) => {
            with_timeout(limit, changes::set_stopped(session, &args, false)).await?
        }
        PluginCommand::GiveUp(args) => {
            with_timeout(limit, changes::discard_data(session, &args)).await?
        }
        PluginCommand::UnsafeBootstrap(args) => {
            with_timeout(limit, changes::unsafe_bootstrap(session, &args)).await?
        }
        PluginCommand::Drain(args) => {
            let needs_wait =
                with_timeout(limit, drain::request_drain(common, session, &args)).await?;
            if needs_wait && args.wait {
                drain::wait_for_drain(common, session, &args).await?
            } else {
                exit::OK
            }
        }
        PluginCommand::Machines { form } => {
            with_timeout(limit, queries::print_machines(common, form, session)).await?
        }
        PluginCommand::Fence(args) => {
            with_timeout(limit, changes::fence_node(session, &args)).await?
        }
        PluginCommand::Cleanup(args) => {
            with_timeout(limit, changes::request_cleanup(session, &args)).await?
        }
        PluginCommand::Scale(args) => {
            with_timeout(limit, changes::scale_pool(session, &args)).await?
        }
        PluginCommand::Upgrade(args) => {
            with_timeout(limit, changes::upgrade_cluster(common, session, &args)).await?
        }
        PluginCommand::Install { what: InstallCommand::Generate(_) }
        | PluginCommand::Completion { .. }
        | PluginCommand::Predicates { name: None, .. } => {
            unreachable!("these need no cluster and were carried out before")
        }
    };
    Ok(CommandOutcome::Code(code))
}

async fn with_timeout<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(limit, work).await.unwrap_or(Err(Error::Timeout(limit)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn flags_are_consistent() {
        super::build_command().debug_assert();
    }
}
