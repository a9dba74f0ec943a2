//! Which signals a pilot forwards, and how it receives them.
//!
//! All of them are blocked and read from a signalfd. So none is lost between the start and the
//! first read (a blocked signal stays pending, also for PID 1, to which the kernel gives no default
//! actions), no signal runs a handler, and pending signals survive an exec of the pilot.

use std::io;

use nix::{
    libc,
    sys::{
        signal::{SigSet, SigmaskHow, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
};
use tokio::io::unix::AsyncFd;
use tracing::warn;

/// Signals that are left as they are: those of the pilot's own faults, and those that no process
/// can catch.
const KEPT: [Signal; 9] = [
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGABRT,
    Signal::SIGTRAP,
    Signal::SIGSYS,
    Signal::SIGKILL,
    Signal::SIGSTOP,
];

/// Signals that are blocked and thrown away: the kernel sends them when a process in the background
/// uses the terminal.
const DROPPED: [i32; 2] = [libc::SIGTTIN, libc::SIGTTOU];

/// A signal that the child shall have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedSignal {
    pub number: i32,
}

pub(super) enum SignalEvent {
    ChildEnded,
    Forward(ForwardedSignal),
}

/// Blocks every signal that is forwarded. The very first act of a pilot, before any thread.
///
/// # Errors
/// When the kernel refuses.
pub fn block_signals() -> io::Result<()> {
    forwarded_signals().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    Ok(())
}

fn forwarded_signals() -> SigSet {
    let mut set = SigSet::all();
    for signal in KEPT {
        set.remove(signal);
    }
    set
}

/// The stream of signals that reached this process.
#[derive(Debug)]
pub struct SignalStream(AsyncFd<SignalFd>);

impl SignalStream {
    /// Opens the stream of signals. Call from within tokio, after [`block_signals`].
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new() -> io::Result<Self> {
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self(super::sys::register_descriptor(SignalFd::with_flags(
            &forwarded_signals(),
            flags,
        )?)?))
    }

    /// Waits for the next signal. Cancel-safe: a signal is read and returned without an await in
    /// between.
    pub(super) async fn next(&mut self) -> SignalEvent {
        loop {
            let mut ready = match self.0.readable().await {
                Ok(ready) => ready,
                Err(error) => {
                    warn!(%error, "Signals cannot be read");
                    std::future::pending().await
                }
            };
            let info = match ready.get_inner().read_signal() {
                Ok(Some(info)) => info,
                Ok(None) | Err(nix::errno::Errno::EINTR) => {
                    ready.clear_ready();
                    continue;
                }
                Err(error) => {
                    warn!(%error, "Signals cannot be read");
                    std::future::pending().await
                }
            };
            let number = i32::try_from(info.ssi_signo).unwrap_or_default();
            if number == libc::SIGCHLD {
                return SignalEvent::ChildEnded;
            }
            // A SIGPIPE from the pilot's own write, when the reader of its log is gone, is not
            // meant for the child.
            let is_own_pipe_signal = info.ssi_pid == std::process::id() && number == libc::SIGPIPE;
            if !is_own_pipe_signal && !DROPPED.contains(&number) {
                return SignalEvent::Forward(ForwardedSignal { number });
            }
        }
    }
}
