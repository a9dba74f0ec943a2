//! Gives children from one program of this process to the next.
//!
//! The process stays the parent: its pid, its children, its blocked signals and its being a
//! subreaper outlive an exec (prctl(2), signal(7)); only what the program knew is lost. A child
//! whose exit was not collected waits as a zombie, so no end of a child is missed in between.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{
    ChildProcess, ParkedPipes, Supervisor,
    output::{self, LineBuffer},
    sys,
};

/// A running child as it goes into a handoff. Part of the contract between releases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HandedChild {
    pub pid: i32,
    /// Numbers of the descriptors, here and in `stderr`, from which the child's output is read,
    /// when it is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<RawFd>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<RawFd>,
    /// The last lines of the child's output.
    pub tail: LineBuffer,
}

impl ChildProcess {
    /// Stops reading the child's output, which then waits in its pipes. `None` when the reader of
    /// the pilot's own output stalls; then nothing has changed.
    pub async fn park_output(&self, limit: Duration) -> Option<ParkedPipes> {
        self.tail.park(limit).await
    }

    /// Goes on reading after [`ChildProcess::park_output`].
    pub fn resume_output(&self) {
        self.tail.resume();
    }
}

impl Supervisor {
    /// Is `child` the only process that was started here and has not been collected? With `None`:
    /// is there no such process?
    pub fn watches_only(&self, child: Option<&ChildProcess>) -> bool {
        let children = self.lock_children();
        children.len() == usize::from(child.is_some())
            && child.is_none_or(|child| children.contains_key(&child.pid))
    }

    /// Describes a child for the next program.
    pub fn hand_over(&self, child: &ChildProcess, parked_pipes: &ParkedPipes) -> HandedChild {
        let number =
            |pipe: &Option<std::sync::Arc<std::fs::File>>| pipe.as_ref().map(AsRawFd::as_raw_fd);
        HandedChild {
            pid: child.pid,
            stdout: number(&parked_pipes.stdout),
            stderr: number(&parked_pipes.stderr),
            tail: child.tail.clone_lines(),
        }
    }

    /// Goes on with a child that an earlier program of this process started, and collects the
    /// children that ended meanwhile: their SIGCHLD may have been read already.
    ///
    /// # Errors
    /// When a descriptor that the handoff names is not open.
    pub fn adopt_child(&self, handed_child: HandedChild) -> io::Result<ChildProcess> {
        let HandedChild { pid, stdout, stderr, tail } = handed_child;
        let stdout = stdout.map(inherit_descriptor).transpose()?;
        let stderr = stderr.map(inherit_descriptor).transpose()?;
        let (answer, exit) = oneshot::channel();
        self.lock_children().insert(pid, answer);
        self.reap_children();
        Ok(ChildProcess {
            pid,
            tail: output::start_reading(stdout, stderr, tail, self.output_sink()),
            exit,
        })
    }
}

/// Takes charge of a descriptor that a handoff names. Each number may be asked for once.
///
/// # Errors
/// When the descriptor is not open.
pub fn inherit_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    sys::claim_descriptor(number)
}
