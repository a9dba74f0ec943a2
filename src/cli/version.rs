//! The command line of `navigator version`.

use std::io::Write;

use clap::ValueEnum;
use serde_json::json;

use crate::{api, error::exit, runtime::build_info};

/// Prints the version of this binary.
///
/// Exit codes: 0 printed, 1 standard output failed, 64 unusable arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  navigator version\n  navigator version --output json")]
pub(crate) struct Args {
    /// Form of the output.
    #[arg(long, short, value_enum, default_value_t = VersionFormat::Text)]
    output: VersionFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum VersionFormat {
    Text,
    Json,
}

pub(crate) fn print_version(args: &Args) -> u8 {
    let text = match args.output {
        VersionFormat::Text => format!("navigator v{}\n", build_info::VERSION),
        VersionFormat::Json => {
            let versions = json!({
                "version": format!("v{}", build_info::VERSION),
                "apiGroup": api::GROUP,
                "platform": "linux/amd64",
            });
            format!("{versions:#}\n")
        }
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => exit::OK,
        Err(_) => exit::FAILURE,
    }
}
