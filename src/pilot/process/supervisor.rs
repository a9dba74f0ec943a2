//! The one owner of fork and waitpid: starts children, forwards signals to them, reaps everything
//! that ends, and gives the exit status of each child to the task that started it.
//!
//! PID 1 inherits orphans, so `waitpid(-1)` must be called, and two callers of it would steal
//! each other's answers: nothing else in this program forks or waits. Everything here happens
//! on the main thread, because `PDEATHSIG` follows the forking *thread*: forked elsewhere, the
//! database would be killed when a worker thread retires.

mod exit;
mod footprint;
mod handover;
mod output;
mod signals;
mod sys;

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::File,
    io,
    path::PathBuf,
    process::ExitStatus,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::oneshot;
use tracing::debug;

pub use exit::{ChildExit, signal_name, write_termination_log};
pub use footprint::release_program;
pub use handover::{HandedChild, inherit_descriptor};
use output::OutputSink;
pub use output::{LineBuffer, OutputTail, ParkedPipes};
pub use signals::{ForwardedSignal, SignalStream, block_signals};

/// What becomes of a child's standard output and error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputMode {
    /// The child writes where the pilot writes; nothing is looked at.
    #[default]
    Inherit,
    /// The pilot passes the output on as it is, or as [records](Supervisor::with_records), and
    /// remembers the last lines (see [`OutputTail`]).
    Tee,
    /// The pilot remembers the last lines and passes nothing on.
    Keep,
}

/// A program to start.
#[derive(Clone, Debug, Default)]
pub struct ChildCommand {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// Added to the pilot's own environment.
    pub env: Vec<(OsString, OsString)>,
    pub working_directory: Option<PathBuf>,
    /// User and group to become; the pilot must be root for it.
    pub user: Option<ProcessUser>,
    /// What the program reads; by default what the pilot reads.
    pub input: Option<Arc<File>>,
    pub output: OutputMode,
}

/// A user to run as. Supplementary groups are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUser {
    pub uid: u32,
    pub gid: u32,
}

/// A child that was started.
#[derive(Debug)]
pub struct ChildProcess {
    /// Process id, and the id of its process group.
    pub pid: i32,
    /// Last lines of its output, when they are kept.
    pub tail: OutputTail,
    exit: oneshot::Receiver<ExitStatus>,
}

impl ChildProcess {
    /// Waits for the child's end. Cancel-safe; asking again after the answer panics.
    pub async fn wait_for_exit(&mut self) -> ChildExit {
        match (&mut self.exit).await {
            Ok(status) => ChildExit::from_status(status),
            // The supervisor outlives every child, so its side is never dropped unanswered.
            Err(_) => ChildExit { code: Some(1), signal: None },
        }
    }
}

/// How long a helper that was asked to end has before it is killed.
const HELPER_GRACE: Duration = Duration::from_secs(5);

/// How a helper program ended.
#[derive(Debug)]
pub struct HelperOutcome {
    pub exit: Result<ChildExit, AbortReason>,
    /// The last lines of the helper's output: at most 20 lines and 4 KiB.
    pub last_lines: Vec<String>,
}

/// Why a helper was ended before it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortReason {
    Cancelled,
    TooLate,
}

/// Starts and reaps the children of this process. Cheap to clone; its clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Supervisor(Arc<SupervisorState>);

#[derive(Debug, Default)]
struct SupervisorState {
    children: Mutex<HashMap<i32, oneshot::Sender<ExitStatus>>>,
    /// The program's name under which lines of [`OutputMode::Tee`] become records; `None`: they
    /// pass as they are.
    records: Option<&'static str>,
}

impl Supervisor {
    /// Makes a supervisor, which adopts orphans from now on: PID 1 does so anyway, any other
    /// process must ask for it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new() -> io::Result<Self> {
        Self::with_records(None)
    }

    /// Makes a supervisor as [`Supervisor::new`] does, which passes lines on as records of the
    /// program named by `records`, when there is a name.
    ///
    /// # Errors
    /// Those of [`Supervisor::new`].
    pub fn with_records(records: Option<&'static str>) -> io::Result<Self> {
        if std::process::id() != 1 {
            nix::sys::prctl::set_child_subreaper(true)?;
        }
        Ok(Self(Arc::new(SupervisorState { records, ..SupervisorState::default() })))
    }

    /// Starts a child in a process group of its own, with every signal as a new process has it.
    /// Should the pilot die, the kernel kills the child. A terminal stays the pilot's: the child
    /// gets Ctrl-C as a signal that is passed on, and reads no input.
    ///
    /// # Errors
    /// When the child cannot be started; the kind tells a missing program from one that may not
    /// run.
    pub fn spawn(&self, command: &ChildCommand) -> io::Result<ChildProcess> {
        debug_assert_eq!(nix::unistd::gettid(), nix::unistd::getpid(), "fork on the main thread");
        let mut spawned_child = sys::spawn_child(command)?;
        let (answer, exit) = oneshot::channel();
        // Nothing can be reaped between the fork and here: both are on this thread.
        self.lock_children().insert(spawned_child.pid, answer);
        let sink = match command.output {
            OutputMode::Tee => self.output_sink(),
            OutputMode::Inherit | OutputMode::Keep => OutputSink::Nowhere,
        };
        let tail = output::start_reading(
            spawned_child.stdout.take(),
            spawned_child.stderr.take(),
            output::LineBuffer::default(),
            sink,
        );
        Ok(ChildProcess { pid: spawned_child.pid, tail, exit })
    }

    /// Runs a short-lived helper to its end. A helper that takes longer than `limit`, or whose
    /// `cancelled` comes first, is asked to end and then killed. In any case its process group is
    /// killed before this returns. Must not be dropped half-way.
    ///
    /// # Errors
    /// When the helper cannot be started.
    pub async fn run_helper(
        &self,
        command: &ChildCommand,
        limit: Duration,
        cancelled: impl Future<Output = ()>,
    ) -> io::Result<HelperOutcome> {
        let output =
            if command.output == OutputMode::Keep { OutputMode::Keep } else { OutputMode::Tee };
        let mut child = self.spawn(&ChildCommand { output, ..command.clone() })?;
        let exit_result = tokio::select! {
            exit = child.wait_for_exit() => Ok(exit),
            () = cancelled => Err(AbortReason::Cancelled),
            () = tokio::time::sleep(limit) => Err(AbortReason::TooLate),
        };
        if exit_result.is_err() {
            self.signal_group(child.pid, nix::libc::SIGTERM);
            if tokio::time::timeout(HELPER_GRACE, child.wait_for_exit()).await.is_err() {
                self.signal_group(child.pid, nix::libc::SIGKILL);
                child.wait_for_exit().await;
            }
        }
        // Processes that the helper left behind would meet the next helper.
        self.signal_group(child.pid, nix::libc::SIGKILL);
        child.tail.wait_until_written(output::LINGER).await;
        Ok(HelperOutcome { exit: exit_result, last_lines: child.tail.last_lines() })
    }

    /// Sends a signal to one child.
    pub fn signal_child(&self, pid: i32, signal: i32) {
        if let Err(error) = sys::send_signal(pid, signal) {
            debug!(pid, signal = %signal_name(signal), %error, "Child could not be signalled");
        }
    }

    /// Sends a signal to a child and to those of its children that have this name.
    pub fn signal_named(&self, pid: i32, name: &str, signal: i32) {
        for child in list_children(pid) {
            let comm_result = std::fs::read_to_string(format!("/proc/{child}/comm"));
            if comm_result.is_ok_and(|comm| comm.trim_end() == name) {
                self.signal_child(child, signal);
            }
        }
        self.signal_child(pid, signal);
    }

    /// Sends a signal to a child and everything that is still in its process group.
    pub fn signal_group(&self, pid: i32, signal: i32) {
        if let Err(error) = sys::send_signal(-pid, signal) {
            debug!(pid, signal = %signal_name(signal), %error, "Group could not be signalled");
        }
    }

    /// Returns the next signal meant for the child. Reaps children meanwhile, so it must be polled
    /// all the time. Cancel-safe.
    pub async fn next_signal(&self, signals: &mut SignalStream) -> ForwardedSignal {
        loop {
            match signals.next().await {
                signals::SignalEvent::ChildEnded => self.reap_children(),
                signals::SignalEvent::Forward(signal) => return signal,
            }
        }
    }

    /// Collects everything that has ended: our children by their pid, and orphans. The kernel does
    /// not count SIGCHLD, so one signal may stand for many children.
    fn reap_children(&self) {
        while let Some((pid, status)) = sys::wait_any() {
            // No task waits for the exit status of an orphan.
            if let Some(answer) = self.lock_children().remove(&pid) {
                // The receiver may be gone: its task gave up waiting for the helper.
                answer.send(status).ok();
            }
        }
    }

    fn output_sink(&self) -> OutputSink {
        self.0.records.map_or(OutputSink::AsItIs, OutputSink::Records)
    }

    fn lock_children(
        &self,
    ) -> std::sync::MutexGuard<'_, HashMap<i32, oneshot::Sender<ExitStatus>>> {
        self.0.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lists the children of all threads of the process `pid`.
fn list_children(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}
