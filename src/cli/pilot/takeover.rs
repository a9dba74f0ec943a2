//! The command line of `navigator pilot takeover --check`, by which a running pilot tests a program
//! that is to replace it.

use std::io::{Read, Write};

use super::{DatabasePilot, PilotCommand, database};
use crate::{
    cli::{Applet, Invocation, parse_command_line, print_error},
    database::DatabaseList,
    error::{chain, exit},
    pilot::process::takeover::ProgramHandoff,
    runtime::build_info,
};

/// Says whether this program could take over from a running pilot.
///
/// The running pilot asks this before it hands over; see docs/decisions/0005. Reads the handoff
/// from standard input and answers with its token and this program's version.
///
/// Exit codes: 0 it could, 1 it could not, 64 unusable arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only say whether it could.
    #[arg(long, required = true)]
    check: bool,
}

pub(super) fn check_takeover(_: &Args, databases: DatabaseList) -> u8 {
    match check_handoff(databases) {
        // A failed write is no error here: then the pilot that asked is gone.
        Ok(token) => {
            drop(writeln!(std::io::stdout(), "{token} v{}", build_info::VERSION));
            exit::OK
        }
        Err(reason) => {
            print_error(&reason);
            exit::FAILURE
        }
    }
}

/// Checks that this program accepts the handoff and the command line of the running pilot. Returns
/// the handoff's token.
fn check_handoff(databases: DatabaseList) -> Result<String, String> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text).map_err(|error| error.to_string())?;
    let handoff = ProgramHandoff::parse(&text).map_err(|error| chain(&error).to_string())?;
    let words = handoff.arguments.iter().map(Into::into).collect();
    let invocation = parse_command_line(words, databases).map_err(|error| error.to_string())?;
    match (invocation, &handoff.node) {
        (Invocation::Database(DatabasePilot(database, args)), Some(node))
            if database.names.word == node.database =>
        {
            database::check_settings(database, *args)?;
        }
        (Invocation::Applet(Applet::Pilot(super::Args { which: PilotCommand::Exec(_) })), None) => {
        }
        (Invocation::Database(_) | Invocation::Applet(Applet::Pilot(_)), _) => {
            return Err("it would be another pilot".into());
        }
        _ => return Err("it would be no pilot".into()),
    }
    Ok(handoff.token)
}
