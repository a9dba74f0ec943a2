//! The command line of `navigator pilot exec -- COMMAND…`.

use std::ffi::OsString;

use super::{ProcessArgs, report_failure};
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

pub(super) fn run_command(args: Args, handoff: Option<ProgramHandoff>) -> u8 {
    let Args { process, logging, command } = args;
    if let Err(text) = logging.init_queued() {
        return report_failure(&process.termination_log, &text, exit::USAGE);
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
        grace: process.grace_period(),
        termination_log: process.termination_log.clone(),
    };
    let outcome = process
        .process_start(handoff)
        .and_then(|start| super::build_runtime()?.block_on(init::run_command(&settings, start)));
    outcome.unwrap_or_else(|error| {
        let text = format!("failed to take charge: {error}");
        report_failure(&settings.termination_log, &text, exit::FAILURE)
    })
}
