//! The system calls that have no safe wrapper, and nothing else: the hook between fork and
//! exec, `waitpid` and `kill` with real-time signals (nix knows none and would lose the status
//! of a child that one of them ended), `poll`, and descriptors that outlived an exec.

#![expect(unsafe_code, reason = "fork, waitpid, kill and poll; every use says why it is sound")]

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::libc;
use tokio::io::unix::AsyncFd;

use super::{ChildCommand, OutputMode};

pub(super) struct SpawnedChild {
    pub(super) pid: i32,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
}

/// Forks and executes. Call on the main thread only.
pub(super) fn spawn_child(command: &ChildCommand) -> io::Result<SpawnedChild> {
    let ChildCommand { program, args, env, working_directory, user, input, output } = command;
    #[expect(clippy::disallowed_methods, reason = "this is the one place that starts processes")]
    let mut process = std::process::Command::new(program);
    process.args(args).envs(env.iter().map(|(key, value)| (key, value))).process_group(0);
    process.env_remove(crate::pilot::process::HANDOFF_VARIABLE);
    if let Some(directory) = working_directory {
        process.current_dir(directory);
    }
    if let Some(user) = user {
        // std drops the supplementary groups when root changes the uid.
        process.gid(user.gid).uid(user.uid);
    }
    if let Some(input) = input {
        process.stdin(input.try_clone()?);
    }
    if *output != OutputMode::Inherit {
        process.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    let parent = std::process::id();
    // SAFETY: the hook runs between fork and exec in a process that may have had threads, and
    // makes system calls only: no allocation, no lock.
    unsafe {
        process.pre_exec(move || prepare_child(parent));
    }
    let mut child = process.spawn()?;
    Ok(SpawnedChild {
        pid: i32::try_from(child.id()).map_err(io::Error::other)?,
        stdout: child.stdout.take().map(OwnedFd::from),
        stderr: child.stderr.take().map(OwnedFd::from),
    })
    // Dropping std's Child neither kills nor waits: the reaper in `super` owns that.
}

/// Prepares the forked child for the exec, after its user and group were set: changing them clears
/// PDEATHSIG.
fn prepare_child(parent: u32) -> io::Result<()> {
    // SAFETY: plain system calls with constant or local arguments, in the forked child.
    unsafe {
        // Ignored signals survive exec: Rust ignores PIPE, a shell's `&` ignores INT, and a JVM
        // that inherits INT ignored keeps ignoring it for ever.
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(io::Error::last_os_error());
        }
        // The pilot may have died before the line above took effect. A parent outside our
        // PID namespace shows as 0, and cannot be the pilot.
        if u32::try_from(libc::getppid()) != Ok(parent) {
            libc::_exit(1);
        }
    }
    Ok(())
}

/// Takes charge of a descriptor that an earlier program of this process left open by number.
pub(super) fn claim_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved; a number that is not open is an error.
    if number <= 2 || unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::other(format!("descriptor {number} was not handed over")));
    }
    // SAFETY: the descriptor is open, and the handoff that names it is read once, before anything
    // else was opened: nothing in this program owns it yet.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Drops the pages of a range; each comes back from its file when it is needed.
pub(super) fn drop_pages(range: std::ops::Range<usize>) -> io::Result<()> {
    let start = std::ptr::without_provenance_mut(range.start);
    // SAFETY: the caller names a mapping of a file that cannot be written and none of whose
    // pages differs from the file, so nothing is lost.
    if unsafe { libc::madvise(start, range.len(), libc::MADV_DONTNEED) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Returns one process that ended since the last call.
pub(super) fn wait_any() -> Option<(i32, ExitStatus)> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is a valid place to write to.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        match pid {
            0 => return None,
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return None, // ECHILD: there is no child at all
            pid => return Some((pid, ExitStatus::from_raw(status))),
        }
    }
}

/// Sends any signal, also a real-time one. A negative target is a process group.
pub(super) fn send_signal(target: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    if unsafe { libc::kill(target, signal) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Makes tokio tell when `fd` can be read.
pub(super) fn register_descriptor<T: AsRawFd + AsFd>(fd: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: `T` owns or borrows an open file for as long as it lives, and always the same.
    unsafe { AsyncFd::register(fd) }.map_err(io::Error::from)
}

/// Waits until `a` or `b` can be read or was closed by its writer, or until `limit`; returns which
/// of the two.
pub(super) fn wait_readable(
    a: BorrowedFd<'_>,
    b: BorrowedFd<'_>,
    limit: Option<Duration>,
) -> io::Result<(bool, bool)> {
    let limit = limit.map_or(-1, |limit| limit.as_millis().try_into().unwrap_or(libc::c_int::MAX));
    let entry =
        |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut fds = [entry(a), entry(b)];
    loop {
        // SAFETY: the array is valid for its length of two.
        if unsafe { libc::poll(fds.as_mut_ptr(), 2, limit) } >= 0 {
            return Ok((fds[0].revents != 0, fds[1].revents != 0));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
