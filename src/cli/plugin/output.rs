//! Writes answers to standard output and messages to standard error.

use std::io::{IsTerminal, Write, stderr, stdout};

use serde_json::Value;

use super::args::{ColourChoice, CommonArgs, OutputArgs, OutputFormat};
use crate::plugin::{error::Error, text::OutputStyle};

/// Prints a message for the user to standard error, where a program that reads the answer does not
/// see it.
pub(super) fn print_message(text: &str) {
    // With standard error closed, there is no reader for the text.
    drop(writeln!(stderr(), "{text}"));
}

/// Prints the answer to standard output.
pub(super) fn print_output(text: &str) -> Result<(), Error> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Write)
}

/// Prints an object as JSON or YAML.
pub(super) fn print_object(output: OutputFormat, value: &Value) -> Result<(), Error> {
    let text = match output {
        OutputFormat::Yaml => serde_yaml::to_string(value)
            .map_err(|error| Error::Write(std::io::Error::other(error)))?,
        OutputFormat::Json | OutputFormat::Wide | OutputFormat::Name => format!("{value:#}\n"),
    };
    print_output(&text)
}

/// Returns the requested output form; an error if the command does not support it.
pub(super) fn check_format(
    form: OutputArgs,
    supported_formats: &[OutputFormat],
) -> Result<Option<OutputFormat>, Error> {
    match form.output {
        Some(output) if !supported_formats.contains(&output) => {
            let word = format!("{output:?}").to_lowercase();
            Err(Error::Usage(format!("this command has no form {word} (--output)")))
        }
        output => Ok(output),
    }
}

/// Returns the style of tables on this output. NO_COLOR is of no-color.org: any value but an empty
/// one turns colours off.
pub(super) fn output_style(common: &CommonArgs) -> OutputStyle {
    let is_terminal = stdout().is_terminal();
    #[expect(clippy::disallowed_methods, reason = "cli reads the environment")]
    let is_color_disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = match common.color {
        ColourChoice::Always => true,
        ColourChoice::Never => false,
        ColourChoice::Auto => is_terminal && !is_color_disabled,
    };
    // A program that reads lines, as grep does, needs whole lines.
    let width = is_terminal.then(terminal_size::terminal_size).flatten();
    OutputStyle { colour, width: width.map(|(width, _)| usize::from(width.0)) }
}
