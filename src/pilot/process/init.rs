//! A plain init for any command: `navigator pilot exec -- COMMAND`.
//!
//! Owns signals, reaping, the grace period, the exit code and the termination log; lets a newer
//! program take over until a signal asks the command to end. Knows no database, no intent and no
//! API; the pilots of databases live in `runner`.

use std::{io, path::PathBuf, time::Duration};

use nix::libc;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::pilot::process::{
    supervisor::{
        ChildCommand, ChildExit, ChildProcess, ParkedPipes, SignalStream, Supervisor, signal_name,
        write_termination_log,
    },
    takeover::{self, ProcessStart, ProgramHandoff, ProgramTakeover},
};

/// How long before the end of the grace period a process group is killed. The kubelet kills the
/// container at its end; two seconds are left for writing down what happened.
pub const KILL_MARGIN: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct InitSettings {
    pub command: ChildCommand,
    /// Grace period of the container, counted from the first TERM.
    pub grace: Duration,
    pub termination_log: PathBuf,
}

/// Exit code for a program that is not there, as shells have it.
const NOT_FOUND: u8 = 127;
/// Exit code for a program that may not be run.
const NOT_EXECUTABLE: u8 = 126;

/// Runs the command to its end and returns the exit code. `start` may hold a command that an
/// earlier program of this process started, which then goes on.
///
/// # Errors
/// When signals cannot be read. Nothing was started then.
pub async fn run_command(settings: &InitSettings, start: ProcessStart) -> io::Result<u8> {
    let mut signals = SignalStream::new()?;
    let supervisor = Supervisor::new()?;
    let ProcessStart { program, every, handed } = start;
    let mut takeover = ProgramTakeover::new(program, every);
    let child_result = match handed.and_then(|handed| Some((handed.version, handed.child?))) {
        Some((version, child)) => {
            info!(pid = child.pid, version, "Took over a running command");
            supervisor.adopt_child(child)
        }
        None => supervisor.spawn(&settings.command),
    };
    let mut child = match child_result {
        Ok(child) => child,
        Err(error) => {
            let program = &settings.command.program;
            let text = format!("failed to start {}: {error}", program.display());
            tracing::error!(program = %program.display(), %error, "Command cannot be started");
            leave_reason(settings, &text);
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            return Ok(if is_missing { NOT_FOUND } else { NOT_EXECUTABLE });
        }
    };
    // When the group is killed: set by the first TERM.
    let mut deadline: Option<Instant> = None;
    let mut is_killed = false;
    let exit = loop {
        if deadline.is_none() && takeover.is_due(true) && supervisor.watches_only(Some(&child)) {
            takeover.become_accepted(&build_handoff(&supervisor, &child), &[]);
        }
        // Dropped futures lose nothing: signals stay in the kernel, the exit in its channel,
        // and the deadline is a point in time.
        tokio::select! {
            biased;
            exit = child.wait_for_exit() => break exit,
            signal = supervisor.next_signal(&mut signals) => {
                if signal.number == libc::SIGTERM && deadline.is_none() {
                    deadline = Some(Instant::now() + settings.grace.saturating_sub(KILL_MARGIN));
                }
                supervisor.signal_child(child.pid, signal.number);
            }
            found = takeover.next() => if let takeover::TakeoverEvent::Appeared(candidate) = found {
                takeover.check_candidate(candidate, &supervisor, &build_handoff(&supervisor, &child));
            },
            () = sleep_until_deadline(deadline), if !is_killed => {
                warn!(pid = child.pid, grace = ?settings.grace, "Command outlived its grace period");
                supervisor.signal_group(child.pid, libc::SIGKILL);
                is_killed = true;
            }
        }
    };
    // No process of the command's group may outlive it: the next command would find it in its way.
    supervisor.signal_group(child.pid, libc::SIGKILL);
    // A command that ended by TERM after it was asked to end did as it was told.
    let success: &[u8] = if deadline.is_some() { &[ChildExit::BY_TERM] } else { &[] };
    let code = exit.pilot_exit_code(success);
    if code != 0 {
        info!(code, signal = exit.signal.map(signal_name).as_deref(), "Command ended");
        leave_reason(settings, &format!("{} {exit}", settings.command.program.display()));
    }
    Ok(code)
}

/// Makes the handoff of a command. It writes where the pilot writes: there are no pipes to hand
/// over.
fn build_handoff(supervisor: &Supervisor, child: &ChildProcess) -> ProgramHandoff {
    ProgramHandoff {
        child: Some(supervisor.hand_over(child, &ParkedPipes::default())),
        ..ProgramHandoff::default()
    }
}

async fn sleep_until_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn leave_reason(settings: &InitSettings, message: &str) {
    if let Err(error) = write_termination_log(&settings.termination_log, message) {
        warn!(path = %settings.termination_log.display(), %error, "Termination log cannot be written");
    }
}
