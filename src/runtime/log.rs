//! Where log lines go: standard error, as text on a terminal and as JSON elsewhere.

mod json;
mod plain;
mod queue;
mod stream_lock;

use std::{
    io::{self, IsTerminal, Write, stderr},
    sync::OnceLock,
    time::Duration,
};

use prometheus::IntCounter;
use tracing::error;
use tracing_subscriber::{
    EnvFilter,
    fmt::{MakeWriter, writer::BoxMakeWriter},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use self::{json::JsonFormat, queue::LogQueue};
pub use self::{
    json::{RecordHead, current_time, set_common_fields},
    plain::{LineRecord, PlainLog},
    stream_lock::{StandardStream, lock_stream},
};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    Text,
    Json,
}

impl LogFormat {
    /// Are log lines JSON in this format, going by what standard error is now?
    pub fn is_json(self) -> bool {
        match self {
            Self::Auto => !stderr().is_terminal(),
            Self::Text => false,
            Self::Json => true,
        }
    }
}

impl std::str::FromStr for LogFormat {
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
pub fn init_logging(filter: &str, format: LogFormat) -> Result<(), String> {
    init_with(filter, format, stderr)
}

static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Installs the subscriber of a process that must never wait for the reader of its log: lines are
/// written by a thread, and dropped when too many wait. Panics are logged like anything else.
///
/// # Errors
/// Those of [`init_logging`], and when the thread cannot be started.
pub fn init_queued(filter: &str, format: LogFormat) -> Result<(), String> {
    let queue = LogQueue::start(StderrWriter).map_err(|error| format!("a thread: {error}"))?;
    let queue = QUEUE.get_or_init(|| queue);
    init_with(filter, format, BoxMakeWriter::new(queue.clone()))?;
    std::panic::set_hook(Box::new(|panic| error!(%panic, "Panicked")));
    Ok(())
}

/// Standard error, a whole line at once.
struct StderrWriter;

impl Write for StderrWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _turn = lock_stream(StandardStream::Stderr);
        stderr().write_all(line).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits until queued lines are written, but not longer than `limit`: called before the process
/// ends, and before an exec.
pub fn flush_queue(limit: Duration) {
    if let Some(queue) = QUEUE.get() {
        queue.flush_within(limit);
    }
}

/// Returns the counter of log lines that were dropped.
pub fn dropped_counter() -> IntCounter {
    queue::dropped_lines().clone()
}

fn init_with<W>(filter: &str, format: LogFormat, writer: W) -> Result<(), String>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // kube logs every refused request as an error of its own; here the caller says what it means.
    let filter = format!("kube_client::client::builder=off,{filter}");
    let filter = EnvFilter::try_new(&filter).map_err(|error| format!("{filter:?}: {error}"))?;
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_target(true);
    // A second call, as in tests, leaves the first subscriber in place.
    let init_result = if format.is_json() {
        registry.with(layer.json().event_format(JsonFormat)).try_init()
    } else {
        registry.with(layer.with_ansi(stderr().is_terminal())).try_init()
    };
    drop(init_result);
    Ok(())
}
