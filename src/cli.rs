//! Parses command lines: argv → applet → Args → role. No other module reads flags and the
//! environment.

mod agent;
mod apiserver;
mod applet;
mod controller;
mod coordinator;
mod election;
mod install;
mod local;
mod logging;
mod manifest;
mod pilot;
mod plugin;
mod version;

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{database::DatabaseList, error::exit};

/// Runs databases on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "navigator", version, about, disable_help_subcommand = true)]
#[command(arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    applet: Applet,
}

#[derive(Debug, Subcommand)]
enum Applet {
    Controller(Box<controller::Args>),
    Coordinator(Box<coordinator::Args>),
    Agent(Box<agent::Args>),
    Apiserver(Box<apiserver::Args>),
    Manifest(manifest::Args),
    Pilot(pilot::Args),
    Plugin(plugin::Args),
    Install(install::Args),
    Local(Box<local::Args>),
    Version(version::Args),
}

/// What a command line asks to run.
enum Invocation {
    Applet(Applet),
    /// The pilot of a database.
    Database(pilot::DatabasePilot),
}

/// Runs the applet that `argv` names and returns the exit code of the process.
///
/// The first argument's file name is looked up exactly (see [`applet`]); any other name leaves
/// the choice to the first subcommand. Each of `databases` is a subcommand of `pilot`.
pub fn main(argv: impl IntoIterator<Item = OsString>, databases: DatabaseList) -> ExitCode {
    let invocation = match parse_command_line(argv.into_iter().collect(), databases) {
        Ok(invocation) => invocation,
        Err(error) => {
            // With standard error closed, there is no reader for the text.
            drop(error.print());
            let code = if error.use_stderr() { exit::USAGE } else { exit::OK };
            return ExitCode::from(code);
        }
    };
    keep_memory_private();
    let code = match invocation {
        Invocation::Database(database) => pilot::run_pilot(database.into(), databases),
        Invocation::Applet(applet) => match applet {
            Applet::Controller(args) => controller::run_controller(*args, databases),
            Applet::Coordinator(args) => coordinator::run_coordinator(*args, databases),
            Applet::Agent(args) => agent::run_agent_command(*args),
            Applet::Apiserver(args) => apiserver::run_apiserver_command(*args, databases),
            Applet::Manifest(args) => manifest::print_manifest(args, databases),
            Applet::Pilot(args) => pilot::run_pilot(args.into(), databases),
            Applet::Plugin(args) => plugin::run_plugin(args, databases),
            Applet::Install(args) => install::run_install(&args, databases),
            Applet::Local(args) => local::run_local_command(*args, databases),
            Applet::Version(args) => version::print_version(&args),
        },
    };
    ExitCode::from(code)
}

/// Keeps keys and passwords in this process out of core dumps, and from other processes of its user,
/// which could read its memory. The kernel forgets it when another program is executed, so a database
/// is bound by its own limits: a limit on core dumps would be handed on to it.
fn keep_memory_private() {
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        print_error(&format!("a core dump of this process would hold its memory: {error}"));
    }
}

fn parse_command_line(
    argv: Vec<OsString>,
    databases: DatabaseList,
) -> Result<Invocation, clap::Error> {
    let mut command = build_command(databases);
    let names: Vec<_> = databases.iter().map(|database| database.pilot.names.word).collect();
    let matches = command.try_get_matches_from_mut(applet::resolve_applet(argv, &names))?;
    if let Some((PILOT, pilot)) = matches.subcommand()
        && let Some(database) = pilot::parse_database_pilot(pilot, databases)
    {
        return database.map(Invocation::Database).map_err(|error| error.format(&mut command));
    }
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    Ok(Invocation::Applet(cli.applet))
}

const PILOT: &str = "pilot";
const PLUGIN: &str = "plugin";

/// Returns the whole command line, as clap knows it.
pub fn build_command(databases: DatabaseList) -> clap::Command {
    Cli::command().mut_subcommand(PILOT, |pilot| pilot::add_database_subcommands(pilot, databases))
}

/// Writes what is wrong in one line to standard error: before logging is set up, or when a line of
/// the log would not be seen as the reason of the exit.
fn print_error(text: &str) {
    use std::io::Write;
    // With standard error closed, there is no reader for the text.
    drop(writeln!(std::io::stderr(), "navigator: {text}"));
}

#[cfg(test)]
mod tests {
    #[test]
    fn flags_of_every_applet_are_consistent() {
        super::build_command(&[]).debug_assert();
    }
}
