//! `navigator pilot`: PID 1 of a database container, or of any other.

mod database;
mod exec;

use std::{path::PathBuf, time::Duration};

use crate::{
    error::exit,
    pilot::{flavour, supervisor},
};

/// Runs as PID 1 of a database container.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    which: Which,
}

#[derive(Debug, clap::Subcommand)]
enum Which {
    // A flavour is one line here and one below.
    Cassandra(Box<database::Args>),
    Elasticsearch(Box<database::Args>),
    Exec(exec::Args),
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
    user: Option<supervisor::User>,
}

impl ProcessArgs {
    fn grace(&self) -> Duration {
        Duration::from_secs(self.termination_grace_period)
    }
}

fn parse_user(text: &str) -> Result<supervisor::User, String> {
    let number = |part: &str| part.parse::<u32>().map_err(|_| format!("{part:?} is not a number"));
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    Ok(supervisor::User { uid: number(uid)?, gid: number(gid)? })
}

pub(crate) fn run(args: Args) -> u8 {
    // Before anything else: the kernel gives PID 1 no default action, so a TERM that comes
    // before signals are blocked is simply gone.
    if let Err(error) = supervisor::block() {
        super::complain(&format!("failed to block signals: {error}"));
        return exit::FAILURE;
    }
    match args.which {
        Which::Cassandra(args) => database::run(&flavour::CASSANDRA, *args),
        Which::Elasticsearch(args) => database::run(&flavour::ELASTICSEARCH, *args),
        Which::Exec(args) => exec::run(args),
    }
}

/// One thread runs everything, so that every fork happens on the main thread.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_stack_size(512 * 1024)
        .build()
}
