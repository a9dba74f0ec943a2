//! A process that outlives the daemon that started it, and that the next daemon recognises.
//!
//! Owns start, adoption, signals and the end of a container's process. The pilot's supervisor is
//! not used here: it kills its children when it dies, and these processes must live on.

#![expect(clippy::disallowed_methods, reason = "stands for a container runtime: starts pods")]

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::time::{Instant, sleep};

/// Interval at which a process is checked.
pub(super) const LOOK: Duration = Duration::from_millis(250);
/// How long the kernel may take to end a process after SIGKILL.
pub(super) const REAPED: Duration = Duration::from_secs(30);

/// How to start a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaunchSpec {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// The whole environment; nothing is inherited.
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) directory: PathBuf,
    /// File to which both standard output and error are appended.
    pub(crate) log: PathBuf,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessExit {
    /// The exit code, or 128 and the signal's number.
    Code(i32),
    /// The exit code is unknown: the process was no child of this daemon.
    Unseen,
}

/// A process, identified by its pid and start time: the kernel reuses a pid, but with another start
/// time.
#[derive(Debug)]
pub(crate) struct DetachedProcess {
    pub(crate) pid: i32,
    /// Start time in the kernel's ticks since boot.
    pub(crate) started: u64,
    child: Option<Child>,
}

impl DetachedProcess {
    /// Starts a process in a group of its own.
    pub(crate) fn start(launch: &LaunchSpec) -> io::Result<Self> {
        let LaunchSpec { program, args, env, directory, log } = launch;
        let output = File::options().create(true).append(true).open(log)?;
        let child = Command::new(program)
            .args(args)
            .env_clear()
            .envs(env.iter().map(|(name, value)| (name, value)))
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        // The kernel gives the pid to no other process until the child is waited for.
        let started = start_time(pid).unwrap_or_default();
        Ok(Self { pid, started, child: Some(child) })
    }

    /// Returns the process of this pid and start time, if it still runs.
    pub(crate) fn adopt(pid: i32, started: u64) -> Option<Self> {
        (start_time(pid) == Some(started)).then_some(Self { pid, started, child: None })
    }

    /// Finds the process that runs `program` with `args` without a record: a daemon that was killed
    /// right after the start wrote none.
    pub(crate) fn find(program: &Path, args: &[String]) -> Option<Self> {
        let mut command_line = program.as_os_str().as_encoded_bytes().to_vec();
        for arg in args {
            command_line.push(0);
            command_line.extend(arg.as_bytes());
        }
        let mut entries = fs::read_dir("/proc").ok()?.flatten();
        entries.find_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let line = line.strip_suffix(&[0]).unwrap_or(&line);
            (line == command_line).then(|| start_time(pid))?.map(|started| Self {
                pid,
                started,
                child: None,
            })
        })
    }

    /// Returns how the process ended, once it has.
    pub(crate) fn poll_exit(&mut self) -> Option<ProcessExit> {
        let Some(child) = &mut self.child else {
            return (start_time(self.pid) != Some(self.started)).then_some(ProcessExit::Unseen);
        };
        match child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => {
                let signal = status.signal().map(|signal| 128 + signal);
                Some(status.code().or(signal).map_or(ProcessExit::Unseen, ProcessExit::Code))
            }
            // Another call of waitpid(2) took the exit code.
            Err(_) => Some(ProcessExit::Unseen),
        }
    }

    /// Asks the process to end, and kills it when it takes longer than `grace`.
    pub(crate) async fn terminate(mut self, grace: Duration) {
        self.send_signal(Signal::SIGTERM);
        let kill_time = Instant::now() + grace;
        while self.poll_exit().is_none() && Instant::now() < kill_time {
            sleep(LOOK).await;
        }
        self.send_signal(Signal::SIGKILL);
        while self.poll_exit().is_none() && Instant::now() < kill_time + REAPED {
            sleep(LOOK).await;
        }
    }

    /// Sends a signal to the process, unless its pid is another process's by now.
    pub(crate) fn send_signal(&self, signal: Signal) {
        if start_time(self.pid) == Some(self.started) {
            // The process may end in between: then the signal is not needed.
            kill(Pid::from_raw(self.pid), signal).ok();
        }
    }
}

/// Returns when a process began, in ticks since boot. `None` when it does not run: a zombie, which
/// has ended and is not yet waited for, does not run.
pub(super) fn start_time(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&text)
}

/// Returns the kernel's boot id, which changes with each start of the machine.
pub(super) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Parses the start time from `/proc/PID/stat`. The name in parentheses may hold anything, so its
/// last `)` counts.
fn parse_stat(text: &str) -> Option<u64> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // Field 22 of proc(5); number, name and state come before these.
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn launch(place: &Path, script: &str) -> LaunchSpec {
        LaunchSpec {
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: vec![("WORD".into(), "told".into())],
            directory: place.to_owned(),
            log: place.join("log"),
        }
    }

    fn end(process: &mut DetachedProcess) -> ProcessExit {
        let begun = Instant::now();
        loop {
            if let Some(exit) = process.poll_exit() {
                return exit;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{process:?} does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_process_gets_its_environment_and_log_and_its_end_is_seen() {
        let place = tempfile::tempdir().unwrap();
        let script = "echo $WORD; pwd >&2; exit 7";
        let mut process = DetachedProcess::start(&launch(place.path(), script)).unwrap();
        assert_eq!(end(&mut process), ProcessExit::Code(7));
        let log = fs::read_to_string(place.path().join("log")).unwrap();
        assert_eq!(log.lines().next(), Some("told"));
        assert_eq!(log.lines().count(), 2);
    }

    #[test]
    fn one_that_runs_is_adopted_and_one_of_another_time_is_not() {
        let place = tempfile::tempdir().unwrap();
        // The shell stops itself, and leaves no child behind when it is killed.
        let script = format!("kill -STOP $$ # {}", place.path().display());
        let mut process = DetachedProcess::start(&launch(place.path(), &script)).unwrap();
        assert!(DetachedProcess::adopt(process.pid, process.started + 1).is_none());
        let mut adopted = DetachedProcess::adopt(process.pid, process.started).unwrap();
        assert_eq!(adopted.poll_exit(), None);
        let mut words = ["-c".to_owned(), script];
        let found = DetachedProcess::find(Path::new("/bin/sh"), &words).unwrap();
        assert_eq!((found.pid, found.started), (process.pid, process.started));
        words[1].push('x');
        assert!(DetachedProcess::find(Path::new("/bin/sh"), &words).is_none());
        adopted.send_signal(Signal::SIGKILL);
        assert_eq!(end(&mut process), ProcessExit::Code(137));
        assert_eq!(adopted.poll_exit(), Some(ProcessExit::Unseen));
    }

    #[test]
    fn a_name_with_parentheses_hides_nothing() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(parse_stat(&format!("7 (a) b) {fields}")), Some(4242));
        assert_eq!(parse_stat(&format!("7 (a) {}", fields.replacen('S', "Z", 1))), None);
        assert_eq!(parse_stat("nothing"), None);
    }
}
