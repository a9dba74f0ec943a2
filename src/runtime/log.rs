//! Where log lines go: standard error, as text on a terminal and as JSON elsewhere.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::{EnvFilter, layer::SubscriberExt, util::SubscriberInitExt};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    Text,
    Json,
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("{text:?} is not one of auto, text, json")),
        }
    }
}

/// Installs the process-wide subscriber. `filter` is in tracing's notation: `info`,
/// `navigator=debug,warn`.
///
/// # Errors
/// When `filter` cannot be parsed.
pub fn init(filter: &str, format: Format) -> Result<(), String> {
    // kube logs every refused request as an error of its own; those who asked say what it means.
    let filter = format!("kube_client::client::builder=off,{filter}");
    let filter = EnvFilter::try_new(&filter).map_err(|error| format!("{filter:?}: {error}"))?;
    let registry = tracing_subscriber::registry().with(filter);
    let json = match format {
        Format::Auto => !stderr().is_terminal(),
        Format::Text => false,
        Format::Json => true,
    };
    let layer = tracing_subscriber::fmt::layer().with_writer(stderr).with_target(true);
    // A second call, as in tests, leaves the first subscriber in place.
    let installed = if json {
        registry.with(layer.json().flatten_event(true).with_span_list(false)).try_init()
    } else {
        registry.with(layer.with_ansi(stderr().is_terminal())).try_init()
    };
    drop(installed);
    Ok(())
}
