//! `navigator pilot takeover --check`: what a running pilot asks a program that shall succeed it.

use std::io::{Read, Write};

use clap::Parser;

use super::{Role, database};
use crate::{
    cli::{Applet, Cli, applet, complain},
    error::{chain, exit},
    pilot::takeover::Handoff,
    runtime::build,
};

/// Says whether this program could take over from a running pilot.
///
/// The running pilot asks this before it hands over; see docs/decisions/0005. Reads the handoff
/// from standard input and answers with its token and this program's version.
///
/// Exit codes: 0 it could, 1 it could not, 64 unusable arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only say whether it could.
    #[arg(long, required = true)]
    check: bool,
}

pub(super) fn run(_: &Args) -> u8 {
    match check() {
        // A reader that is gone asks for nothing.
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
fn check() -> Result<String, String> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text).map_err(|error| error.to_string())?;
    let handoff = Handoff::parse(&text).map_err(|error| chain(&error).to_string())?;
    let words = handoff.arguments.iter().map(Into::into).collect();
    let parsed = Cli::try_parse_from(applet::resolve(words)).map_err(|error| error.to_string())?;
    let Applet::Pilot(args) = parsed.applet else { return Err("it would be no pilot".into()) };
    match (Role::from(args.which), &handoff.node) {
        (Role::Exec(_), None) => {}
        (Role::Database(flavour, args), Some(node)) if flavour.word == node.flavour => {
            database::check(flavour, *args)?;
        }
        _ => return Err("it would be another pilot".into()),
    }
    Ok(handoff.token)
}
