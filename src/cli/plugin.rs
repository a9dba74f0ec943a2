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
pub(super) fn command() -> clap::Command {
    PluginCli::command().bin_name("kubectl navigator").no_binary_name(true)
}

pub(crate) fn run(args: Args, databases: DatabaseList) -> u8 {
    let Args { words } = args;
    if words.first().is_some_and(|word| word == COMPLETE) {
        return complete::for_kubectl(&words[1..], databases);
    }
    if let Some(code) = complete::for_shell(databases) {
        return code;
    }
    let parsed = command().try_get_matches_from(words).and_then(|matches| {
        PluginCli::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))
    });
    let plugin = match parsed {
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
            output::say(&format!("error: {}", error.shown()));
            error.exit()
        }
    }
}

fn carry_out(plugin: PluginCli, databases: DatabaseList) -> Result<u8, Error> {
    let PluginCli { common, command } = plugin;
    // Commands that need no API are run before a client is made.
    let command = match command {
        PluginCommand::Install { what: InstallCommand::Generate(args) } => {
            return Ok(super::manifest::run(args, databases));
        }
        PluginCommand::Completion { shell } => return complete::script(shell),
        PluginCommand::Logs(LogsArgs { what: Some(_), .. }) => {
            return queries::pretty_filter(&common);
        }
        PluginCommand::Predicates { name: None, form } => {
            return queries::predicates(&common, form, databases);
        }
        PluginCommand::Version { client: true, form } => return queries::client_version(form),
        command => command,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::Write)?;
    let ended = runtime.block_on(ask(&common, command, databases));
    // A name lookup that is under way holds its thread; the process does not wait for it.
    runtime.shutdown_background();
    match ended? {
        CommandOutcome::Code(code) => Ok(code),
        CommandOutcome::Become(console) => console.begin(),
    }
}

/// What is left to do after the API was asked: exit, or become another program.
enum CommandOutcome {
    Code(u8),
    /// The process becomes the client of a database.
    Become(ConsoleProcess),
}

async fn ask(
    common: &CommonArgs,
    command: PluginCommand,
    databases: DatabaseList,
) -> Result<CommandOutcome, Error> {
    let limit = common.timeout();
    let session = within(limit, session::open(common, databases)).await?;
    let session = &session;
    let code = match command {
        PluginCommand::Status(args) => {
            within(limit, queries::status(common, session, &args)).await?
        }
        PluginCommand::Logs(args) => queries::logs(common, session, &args).await?,
        PluginCommand::Shell(args) => {
            return within(limit, shell::console(common, session, &args))
                .await
                .map(CommandOutcome::Become);
        }
        PluginCommand::GetCredentials(args) => {
            within(limit, credentials::get(session, &args)).await?
        }
        PluginCommand::Certificates { name, form } => {
            within(limit, queries::certificates(common, form, session, &name)).await?
        }
        PluginCommand::Predicates { name: Some(name), form } => {
            within(limit, queries::holding(common, form, session, &name)).await?
        }
        PluginCommand::Report(args) => queries::report(session, &args).await?,
        PluginCommand::Install { what: InstallCommand::Check { install_namespace, form } } => {
            within(limit, queries::check(common, form, session, &install_namespace)).await?
        }
        PluginCommand::Version { client: _, form } => {
            within(limit, queries::version(form, session)).await?
        }
        PluginCommand::Restart(args) if args.node.is_some() => {
            changes::restart_node(session, &args).await?
        }
        PluginCommand::Restart(args) => within(limit, changes::restart(session, &args)).await?,
        PluginCommand::Pause(args) => within(limit, changes::pause(session, &args, true)).await?,
        PluginCommand::Resume(args) => within(limit, changes::pause(session, &args, false)).await?,
        PluginCommand::Stop(args) => within(limit, changes::stop(session, &args, true)).await?,
        PluginCommand::Start(args) => within(limit, changes::stop(session, &args, false)).await?,
        PluginCommand::GiveUp(args) => within(limit, changes::give_up(session, &args)).await?,
        PluginCommand::UnsafeBootstrap(args) => {
            within(limit, changes::unsafe_bootstrap(session, &args)).await?
        }
        PluginCommand::Drain(args) => {
            let waits = within(limit, drain::begin(common, session, &args)).await?;
            if waits && args.wait { drain::follow(common, session, &args).await? } else { exit::OK }
        }
        PluginCommand::Machines { form } => {
            within(limit, queries::machines(common, form, session)).await?
        }
        PluginCommand::Fence(args) => within(limit, changes::fence(session, &args)).await?,
        PluginCommand::Cleanup(args) => within(limit, changes::cleanup(session, &args)).await?,
        PluginCommand::Scale(args) => within(limit, changes::scale(session, &args)).await?,
        PluginCommand::Upgrade(args) => {
            within(limit, changes::upgrade(common, session, &args)).await?
        }
        PluginCommand::Install { what: InstallCommand::Generate(_) }
        | PluginCommand::Completion { .. }
        | PluginCommand::Predicates { name: None, .. } => {
            unreachable!("these need no cluster and were carried out before")
        }
    };
    Ok(CommandOutcome::Code(code))
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(limit, work).await.unwrap_or(Err(Error::Timeout(limit)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn flags_are_consistent() {
        super::command().debug_assert();
    }
}
