//! TERM and INT ask the process to end. Not for the pilot, which forwards signals.

use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use super::Shutdown;

/// Waits for TERM or INT and triggers shutdown; ends when shutdown was triggered otherwise.
///
/// # Errors
/// When a handler cannot be installed.
pub fn shutdown_on_signal(
    shutdown: &Shutdown,
) -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let shutdown = shutdown.clone();
    Ok(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            () = shutdown.triggered() => return,
        };
        info!(signal = name, "Shutting down");
        shutdown.trigger();
    })
}
