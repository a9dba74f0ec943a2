//! Flags for log lines, shared by the long-running applets.

use crate::runtime::log;

#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Logging")]
#[group(skip)]
pub(crate) struct Args {
    /// Which lines are logged, for example `info` or `navigator=debug,warn`.
    #[arg(long, value_name = "FILTER", env = "NAVIGATOR_LOG", default_value = "info")]
    log: String,
    /// How lines look: `text`, `json`, or `auto` (text on a terminal).
    #[arg(long, value_name = "FORMAT", env = "NAVIGATOR_LOG_FORMAT", default_value = "auto")]
    log_format: log::LogFormat,
}

impl Args {
    /// Sets up logging for the process.
    ///
    /// # Errors
    /// When the filter cannot be parsed; the text is for the user.
    pub(crate) fn init(&self) -> Result<(), String> {
        log::init_logging(&self.log, self.log_format).map_err(|error| format!("--log: {error}"))
    }

    pub(crate) fn is_json(&self) -> bool {
        self.log_format.is_json()
    }

    /// Sets up logging as [`Args::init`] does, for a process that must not wait for a slow reader
    /// of its log.
    ///
    /// # Errors
    /// As for [`Args::init`].
    pub(crate) fn init_queued(&self) -> Result<(), String> {
        log::init_queued(&self.log, self.log_format).map_err(|error| format!("--log: {error}"))
    }
}
