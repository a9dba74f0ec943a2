//! argv → applet → Args → role. The only place that reads flags and the environment.

mod apiserver;
mod applet;
mod controller;
mod install;
mod logging;
mod manifest;
mod pilot;
mod version;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::error::exit;

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
    Apiserver(Box<apiserver::Args>),
    Manifest(manifest::Args),
    Pilot(pilot::Args),
    Install(install::Args),
    Version(version::Args),
}

/// Runs the applet that `argv` names and returns what the process shall end with.
///
/// The first argument's file name is looked up exactly (see [`applet`]); any other name leaves
/// the choice to the first subcommand.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    let argv = applet::resolve(argv.into_iter().collect());
    let cli = match Cli::try_parse_from(argv) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed standard error leaves nobody to tell.
            drop(error.print());
            let code = if error.use_stderr() { exit::USAGE } else { exit::OK };
            return ExitCode::from(code);
        }
    };
    let code = match cli.applet {
        Applet::Controller(args) => controller::run(*args),
        Applet::Apiserver(args) => apiserver::run(*args),
        Applet::Manifest(args) => manifest::run(args),
        Applet::Pilot(args) => pilot::run(args),
        Applet::Install(args) => install::run(&args),
        Applet::Version(args) => version::run(&args),
    };
    ExitCode::from(code)
}

/// Tells the user what was wrong, in one line on standard error: before logging is set up, or
/// when a line of the log would not be seen as the reason of the end.
fn complain(text: &str) {
    use std::io::Write;
    // A closed standard error leaves nobody to tell.
    drop(writeln!(std::io::stderr(), "navigator: {text}"));
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn flags_of_every_applet_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
