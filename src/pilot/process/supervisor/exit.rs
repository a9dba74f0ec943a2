//! How a child ended, and the pilot's own exit code because of that.

use std::{
    borrow::Cow, io, io::Write, os::unix::process::ExitStatusExt, path::Path, process::ExitStatus,
};

use nix::{libc, sys::signal::Signal};

/// Most bytes of a termination message that the kubelet reads.
const MESSAGE: usize = 4096;

/// A child's end: a code or a signal, never both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildExit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
}

impl ChildExit {
    pub(super) fn from_status(status: ExitStatus) -> Self {
        Self { code: status.code(), signal: status.signal() }
    }

    /// Returns the end as a shell has it: the exit code, or 128 plus the signal.
    pub fn status(self) -> u8 {
        let code = self.code.or(self.signal.map(|signal| 128 + signal)).unwrap_or(1);
        u8::try_from(code & 0xff).unwrap_or(1)
    }

    /// Status of a process that TERM ended, and the exit code that a JVM chooses after a TERM: 143.
    pub const BY_TERM: u8 = 128 + 15;

    /// Returns the pilot's own exit code: 0 for a status in `success`, which means that the process
    /// did as asked, else the status itself.
    pub fn pilot_exit_code(self, success: &[u8]) -> u8 {
        let status = self.status();
        if success.contains(&status) { 0 } else { status }
    }
}

impl std::fmt::Display for ChildExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.code, self.signal) {
            (_, Some(signal)) => write!(f, "was ended by {}", signal_name(signal)),
            (code, None) => write!(f, "ended with exit code {}", code.unwrap_or(1)),
        }
    }
}

/// Returns the name of a signal: `SIGTERM`, `SIGRTMIN+3`.
pub fn signal_name(signal: i32) -> Cow<'static, str> {
    match Signal::try_from(signal) {
        Ok(standard_signal) => standard_signal.as_str().into(),
        Err(_) => format!("SIGRTMIN+{}", signal - libc::SIGRTMIN()).into(),
    }
}

/// Leaves the reason of the end where the kubelet looks for it. The file is never created: without
/// Kubernetes there is none, and no reader of it.
///
/// # Errors
/// When the file exists and cannot be written.
pub fn write_termination_log(path: &Path, message: &str) -> io::Result<()> {
    let mut end = message.len().min(MESSAGE);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    match std::fs::OpenOptions::new().write(true).truncate(true).open(path) {
        Ok(mut file) => file.write_all(&message.as_bytes()[..end]),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_end_that_was_asked_for_becomes_success() {
        let code = |code| ChildExit { code: Some(code), signal: None };
        let signal = |signal| ChildExit { code: None, signal: Some(signal) };
        let (nothing, by_term): (&[u8], &[u8]) = (&[], &[ChildExit::BY_TERM]);
        let rows = [
            (code(0), nothing, 0),
            (code(1), by_term, 1),
            (code(255), nothing, 255),
            (code(143), by_term, 0),
            (code(143), nothing, 143),
            (signal(15), by_term, 0),
            (signal(15), nothing, 143),
            (signal(9), by_term, 137),
            (signal(11), nothing, 139),
            (signal(34), nothing, 162),
        ];
        for (exit, success, expected) in rows {
            assert_eq!(exit.pilot_exit_code(success), expected, "{exit}, success: {success:?}");
        }
    }
}
