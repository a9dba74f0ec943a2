//! `navigator pilot takeover --check`: what a running pilot asks a program that shall succeed it.

use std::io::{Read, Write};

use super::{Chosen, Which, database};
use crate::{
    cli::{Applet, Asked, complain, parse},
    database::Databases,
    error::{chain, exit},
    pilot::process::takeover::Handoff,
    runtime::build,
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

pub(super) fn run(_: &Args, databases: Databases) -> u8 {
    match check(databases) {
        // A failed write is no error here: the pilot that asked is gone.
        Ok(token) => {
            drop(writeln!(std::io::stdout(), "{token} v{}", build::VERSION));
            exit::OK
        }
        Err(why) => {
            complain(&why);
            exit::FAILURE
        }
    }
}

/// Would this program do with the handoff and the command line what its predecessor did?
fn check(databases: Databases) -> Result<String, String> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text).map_err(|error| error.to_string())?;
    let handoff = Handoff::parse(&text).map_err(|error| chain(&error).to_string())?;
    let words = handoff.arguments.iter().map(Into::into).collect();
    let asked = parse(words, databases).map_err(|error| error.to_string())?;
    match (asked, &handoff.node) {
        (Asked::Database(Chosen(database, args)), Some(node))
            if database.names.word == node.database =>
        {
            database::check(database, *args)?;
        }
        (Asked::Applet(Applet::Pilot(super::Args { which: Which::Exec(_) })), None) => {}
        (Asked::Database(_) | Asked::Applet(Applet::Pilot(_)), _) => {
            return Err("it would be another pilot".into());
        }
        _ => return Err("it would be no pilot".into()),
    }
    Ok(handoff.token)
}
