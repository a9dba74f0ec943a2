//! `kubectl navigator`: `navigator plugin` under the name that kubectl looks for.
//!
//! Owns the words of its command line, which begin anew here: a user of kubectl knows nothing of
//! `navigator` and its roles.

mod args;
mod changes;
mod complete;
mod output;
mod questions;
mod session;
mod shell;

use std::{ffi::OsString, future::Future, time::Duration};

use clap::{CommandFactory, FromArgMatches};

use self::args::{Command, Common, Install, Logs, Plugin};
use super::applet::COMPLETE;
use crate::{database::Databases, error::exit, plugin::error::Error};

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

/// What follows `kubectl navigator`, as clap knows it.
pub(super) fn command() -> clap::Command {
    Plugin::command().bin_name("kubectl navigator").no_binary_name(true)
}

pub(crate) fn run(args: Args, databases: Databases) -> u8 {
    let Args { words } = args;
    if words.first().is_some_and(|word| word == COMPLETE) {
        return complete::for_kubectl(&words[1..], databases);
    }
    if let Some(code) = complete::for_shell(databases) {
        return code;
    }
    let parsed = command().try_get_matches_from(words).and_then(|matches| {
        Plugin::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))
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
        // A reader that closes the pipe early, as `head` does, has what it wants.
        Err(Error::Write(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => exit::OK,
        Err(error) => {
            output::say(&format!("error: {}", error.shown()));
            error.exit()
        }
    }
}

fn carry_out(plugin: Plugin, databases: Databases) -> Result<u8, Error> {
    let Plugin { common, command } = plugin;
    // Commands that need no API do without one.
    let command = match command {
        Command::Install { what: Install::Generate(args) } => {
            return Ok(super::manifest::run(args, databases));
        }
        Command::Completion { shell } => return complete::script(shell),
        Command::Logs(Logs { what: Some(_), .. }) => return questions::pretty_filter(&common),
        Command::Predicates { name: None, form } => {
            return questions::predicates(&common, form, databases);
        }
        Command::Version { client: true, form } => return questions::client_version(form),
        command => command,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::Write)?;
    let ended = runtime.block_on(ask(&common, command, databases));
    // A name that is being resolved holds its thread; the process does not wait for it.
    runtime.shutdown_background();
    match ended? {
        Ended::Code(code) => Ok(code),
        Ended::Become(program) => shell::become_it(&program),
    }
}

/// How a command goes on once the API was asked.
enum Ended {
    Code(u8),
    /// The process becomes another program.
    Become(Vec<OsString>),
}

async fn ask(common: &Common, command: Command, databases: Databases) -> Result<Ended, Error> {
    let limit = common.timeout();
    let session = within(limit, session::open(common, databases)).await?;
    let session = &session;
    let code = match command {
        Command::Status(args) => within(limit, questions::status(common, session, &args)).await?,
        Command::Logs(args) => questions::logs(common, session, &args).await?,
        Command::Shell(args) => {
            return within(limit, shell::program(common, session, &args)).await.map(Ended::Become);
        }
        Command::Predicates { name: Some(name), form } => {
            within(limit, questions::holding(common, form, session, &name)).await?
        }
        Command::Report(args) => questions::report(session, &args).await?,
        Command::Install { what: Install::Check { install_namespace, form } } => {
            within(limit, questions::check(common, form, session, &install_namespace)).await?
        }
        Command::Version { client: _, form } => {
            within(limit, questions::version(form, session)).await?
        }
        Command::Restart(args) if args.node.is_some() => {
            changes::restart_node(session, &args).await?
        }
        Command::Restart(args) => within(limit, changes::restart(session, &args)).await?,
        Command::Pause(args) => within(limit, changes::pause(session, &args, true)).await?,
        Command::Resume(args) => within(limit, changes::pause(session, &args, false)).await?,
        Command::Stop(args) => within(limit, changes::stop(session, &args, true)).await?,
        Command::Start(args) => within(limit, changes::stop(session, &args, false)).await?,
        Command::Fence(args) => within(limit, changes::fence(session, &args)).await?,
        Command::Cleanup(args) => within(limit, changes::cleanup(session, &args)).await?,
        Command::Scale(args) => within(limit, changes::scale(session, &args)).await?,
        Command::Upgrade(args) => within(limit, changes::upgrade(common, session, &args)).await?,
        Command::Install { what: Install::Generate(_) }
        | Command::Completion { .. }
        | Command::Predicates { name: None, .. } => {
            unreachable!("these need no cluster and were carried out before")
        }
    };
    Ok(Ended::Code(code))
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
