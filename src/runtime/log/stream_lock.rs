//! Which thread's turn it is to write to our standard output and error.
//!
//! Lines of several threads go into one pipe, and a line of more than 4 KiB is not written at once
//! (pipe(7)): without turns one line would stand in the midst of another. A stream that is a file
//! of its own has turns of its own, so that a stalled reader of one stream does not hold up the
//! other.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nix::sys::stat::{FileStat, fstat};

/// One of the process's own streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandardStream {
    Stdout,
    Stderr,
}

static STDOUT: Mutex<()> = Mutex::new(());
static STDERR: Mutex<()> = Mutex::new(());

/// Waits for the turn to write whole lines to a stream. The turn ends when the guard is dropped.
pub fn lock_stream(stream: StandardStream) -> MutexGuard<'static, ()> {
    let turns = if stream == StandardStream::Stdout && !are_one() { &STDOUT } else { &STDERR };
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Are both streams one file?
fn are_one() -> bool {
    static ONE: OnceLock<bool> = OnceLock::new();
    *ONE.get_or_init(|| {
        let id = |file: FileStat| (file.st_dev, file.st_ino);
        match (fstat(std::io::stdout()), fstat(std::io::stderr())) {
            (Ok(out), Ok(err)) => id(out) == id(err),
            _ => false,
        }
    })
}
