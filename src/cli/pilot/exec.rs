//! The command line of `navigator pilot exec -- COMMAND…`.

use std::ffi::OsString;

use super::{ProcessArgs, fail};
use crate::{
    cli::logging,
    error::exit,
    pilot::process::{
        init,
        supervisor::{ChildCommand, OutputMode},
        takeover::ProgramHandoff,
    },
};

/// Runs any command under a plain init: signals, reaping, grace period, exit code.
///
/// Every signal that can be caught is passed on to the command, which runs in a process group
/// of its own, behind the terminal when there is one. Orphans are adopted and reaped. The
/// first SIGTERM starts the grace period; two seconds before its end the whole group is killed.
///
/// Exit codes: the command's own, 128+n when signal n ended it, 0 when it ended by a SIGTERM
/// that was passed on, 127 not found, 126 not executable, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  navigator pilot exec -- java -jar server.jar\n  \
                  navigator pilot exec --user 999 --termination-grace-period 300 -- bin/database")]
pub(crate) struct Args {
    #[command(flatten)]
    process: ProcessArgs,
    #[command(flatten)]
    logging: logging::Args,
    /// Program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn run(args: Args, handed: Option<ProgramHandoff>) -> u8 {
    let Args { process, logging, command } = args;
    if let Err(text) = logging.init_queued() {
        return fail(&process.termination_log, &text, exit::USAGE);
    }
    let mut words = command.into_iter();
    let Some(program) = words.next() else { return exit::USAGE };
    let command = ChildCommand {
        program: program.into(),
        args: words.collect(),
        user: process.user,
        output: OutputMode::Inherit,
        ..ChildCommand::default()
    };
    let settings = init::InitSettings {
        command,
        grace: process.grace(),
        termination_log: process.termination_log.clone(),
    };
    let ended = process
        .start(handed)
        .and_then(|start| super::runtime()?.block_on(init::run(&settings, start)));
    ended.unwrap_or_else(|error| {
        let text = format!("failed to take charge: {error}");
        fail(&settings.termination_log, &text, exit::FAILURE)
    })
}
