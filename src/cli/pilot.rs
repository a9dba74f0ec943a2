//! The command line of `navigator pilot`: PID 1 of a database container, or of any other.

mod database;
mod exec;
mod takeover;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{ArgMatches, Args as _, Command, FromArgMatches as _};

use crate::{
    database::DatabaseList,
    error::{chain, exit},
    pilot::{
        database::DrivenDatabase,
        process::{
            HANDOFF_VARIABLE, supervisor,
            takeover::{ProcessStart, ProgramHandoff, RunningProgram, receive_handoff},
        },
    },
    runtime::log,
};

/// Runs as PID 1 of a database container.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    which: PilotCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PilotCommand {
    Exec(exec::Args),
    #[command(hide = true)]
    Takeover(takeover::Args),
}

/// How long a slow reader of the log may delay the pilot's end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The pilot of one database, and its flags.
pub(crate) struct DatabasePilot(&'static DrivenDatabase, Box<database::Args>);

/// The subcommand of `pilot` that a command line asks for.
pub(crate) enum PilotInvocation {
    Database(DatabasePilot),
    Exec(exec::Args),
    Takeover(takeover::Args),
}

impl From<Args> for PilotInvocation {
    fn from(Args { which }: Args) -> Self {
        match which {
            PilotCommand::Exec(args) => Self::Exec(args),
            PilotCommand::Takeover(args) => Self::Takeover(args),
        }
    }
}

impl From<DatabasePilot> for PilotInvocation {
    fn from(pilot: DatabasePilot) -> Self {
        Self::Database(pilot)
    }
}

/// Adds a subcommand for each database, with the same flags, before the other subcommands.
pub(super) fn add_database_subcommands(command: Command, databases: DatabaseList) -> Command {
    let build_subcommand = |database: &crate::database::Database| {
        let name = database.pilot.names.word;
        database::Args::augment_args(Command::new(name))
            .after_help(database::help_examples(name))
            .display_order(0)
    };
    command.subcommands(databases.iter().map(build_subcommand))
}

/// Returns the database pilot that these arguments of `pilot` ask for; `None` for the other
/// subcommands.
pub(super) fn parse_database_pilot(
    pilot: &ArgMatches,
    databases: DatabaseList,
) -> Option<Result<DatabasePilot, clap::Error>> {
    let (name, matches) = pilot.subcommand()?;
    let mut drivers = databases.iter().map(|database| database.pilot);
    let database = drivers.find(|database| database.names.word == name)?;
    let args = database::Args::from_arg_matches(matches);
    Some(args.map(|args| DatabasePilot(database, Box::new(args))))
}

/// Flags of a process that supervises another.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Process")]
#[group(skip)]
struct ProcessArgs {
    /// Seconds between the first SIGTERM and the container's end. What still runs two seconds
    /// before it is killed.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "NAVIGATOR_TERMINATION_GRACE_PERIOD",
        default_value_t = 30
    )]
    termination_grace_period: u64,
    /// File that the reason of the end is written to, when it exists.
    #[arg(
        long,
        value_name = "FILE",
        env = "NAVIGATOR_TERMINATION_LOG",
        default_value = "/dev/termination-log"
    )]
    termination_log: PathBuf,
    /// User to run the child as, `UID` or `UID:GID`; needs root. For hosts without containers.
    #[arg(long, value_name = "UID[:GID]", env = "NAVIGATOR_PILOT_USER", value_parser = parse_user)]
    user: Option<supervisor::ProcessUser>,
    /// Seconds between two looks at the pilot's own program file. Another program that lies there
    /// takes over without a restart of the child; 0 never looks.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "NAVIGATOR_TAKEOVER_INTERVAL",
        default_value = "10",
        value_parser = parse_seconds
    )]
    takeover_interval: Duration,
}

impl ProcessArgs {
    fn grace_period(&self) -> Duration {
        Duration::from_secs(self.termination_grace_period)
    }
}

fn parse_user(text: &str) -> Result<supervisor::ProcessUser, String> {
    let number = |part: &str| part.parse::<u32>().map_err(|_| format!("{part:?} is not a number"));
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    Ok(supervisor::ProcessUser { uid: number(uid)?, gid: number(gid)? })
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

pub(crate) fn run_pilot(role: PilotInvocation, databases: DatabaseList) -> u8 {
    // Signals are blocked first: the kernel gives PID 1 no default action, so a SIGTERM that comes
    // before that is lost.
    if let Err(error) = supervisor::block_signals() {
        super::print_error(&format!("failed to block signals: {error}"));
        return exit::FAILURE;
    }
    if let PilotInvocation::Takeover(args) = role {
        return takeover::check_takeover(&args, databases);
    }
    let handoff = match inherited_handoff() {
        Ok(handoff) => handoff,
        Err(error) => {
            super::print_error(&format!("failed to take over: {}", chain(&error)));
            return exit::FAILURE;
        }
    };
    let code = match role {
        PilotInvocation::Database(DatabasePilot(database, args)) => {
            database::run_database_pilot(database, *args, handoff)
        }
        PilotInvocation::Exec(args) => exec::run_command(args, handoff),
        PilotInvocation::Takeover(_) => exit::FAILURE,
    };
    log::flush_queue(LAST_WORDS);
    code
}

/// Writes why the pilot cannot do its work to standard error and to the termination log. Returns
/// the exit code.
fn report_failure(termination_log: &Path, text: &str, code: u8) -> u8 {
    super::print_error(text);
    if let Err(error) = supervisor::write_termination_log(termination_log, text) {
        super::print_error(&format!("failed to write the termination log: {error}"));
    }
    code
}

/// Receives the handoff from the program that this process ran before, if another program ran.
#[expect(clippy::disallowed_methods, reason = "no flag: it must not be seen in help")]
fn inherited_handoff() -> Result<Option<ProgramHandoff>, crate::pilot::process::takeover::Error> {
    match std::env::var(HANDOFF_VARIABLE) {
        Ok(number) => receive_handoff(&number).map(Some),
        Err(_) => Ok(None),
    }
}

impl ProcessArgs {
    /// Returns the start settings of the pilot's process.
    fn process_start(&self, handoff: Option<ProgramHandoff>) -> std::io::Result<ProcessStart> {
        let path = handoff.as_ref().map(|handoff| handoff.program.clone());
        let (arguments, environment) = (std::env::args_os(), std::env::vars_os());
        let program =
            RunningProgram::for_current_process(arguments.collect(), environment.collect(), path)?;
        Ok(ProcessStart { program, every: self.takeover_interval, handed: handoff })
    }
}

/// Builds the async runtime. It has one thread, so that every fork happens on the main thread.
fn build_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_stack_size(512 * 1024)
        .build()
}
