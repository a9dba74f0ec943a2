//! Starts an init around a scripted child and listens to what the child says.
//!
//! Children are written in Perl, which every Debian has: it can catch every signal. Perl calls a
//! handler between two of its own steps, so one that comes just before `sleep`, or while another
//! handler runs, waits for the end of that sleep: children sleep for a second, again and again.
//! Every wait has an end, and answers with what was seen instead.

#![expect(clippy::disallowed_methods, reason = "tests start processes")]

use std::{
    cell::RefCell,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// PID 1 of a new PID namespace, as in a container.
    Pid1,
    /// An ordinary process.
    Subreaper,
}

pub(crate) const MODES: &[Mode] = &[Mode::Pid1, Mode::Subreaper];

/// A running init with its child. Dropped, everything that it is known to have started is
/// killed, also what outlived it.
pub(crate) struct Running {
    outer: Child,
    mode: Mode,
    /// There is no init: the process that was started is the child.
    pub(crate) is_alone: bool,
    patience: Duration,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
    /// Processes that are killed at the end, in case the init leaves them behind.
    known: RefCell<Vec<i32>>,
}

impl Running {
    /// Any command as PID 1 or as an ordinary process.
    pub(crate) fn start(mode: Mode, argv: &[String], patience: Duration) -> Self {
        let mut command = match mode {
            Mode::Pid1 => {
                let mut command = Command::new("unshare");
                if !nix::unistd::geteuid().is_root() {
                    command.args(["--user", "--map-root-user"]);
                }
                // Should the test end early, nothing stays behind.
                command.args(["--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", "--"]);
                command.args(argv);
                command
            }
            Mode::Subreaper => {
                let mut command = Command::new(&argv[0]);
                command.args(&argv[1..]);
                command
            }
        };
        // A container's own termination log is not for the children of its tests.
        command.env("NAVIGATOR_TERMINATION_LOG", "/nonexistent").env("NAVIGATOR_LOG", "warn");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut outer = command.spawn().unwrap_or_else(|error| {
            panic!("{command:?}: {error}; install util-linux, perl, tini and dumb-init")
        });
        let (sender, lines) = mpsc::channel();
        let stdout = outer.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line.trim_end().to_owned()).is_err() {
                    break;
                }
            }
        });
        let (seen, known) = (Vec::new(), RefCell::default());
        Self { outer, mode, is_alone: false, patience, lines, seen, known }
    }

    /// Types on the standard input.
    pub(crate) fn type_in(&mut self, bytes: &[u8]) {
        self.outer.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Waits until the child prints this line; lines before it are kept.
    pub(crate) fn expect(&mut self, wanted: &str) -> Result<(), String> {
        self.expect_within(self.patience, wanted)
    }

    /// As [`Self::expect`], for a child that has much to do first.
    pub(crate) fn expect_within(&mut self, limit: Duration, wanted: &str) -> Result<(), String> {
        self.find(limit, |line| line == wanted)
            .map(drop)
            .map_err(|error| format!("waited for {wanted:?}: {error}; saw {:?}", self.seen))
    }

    /// Waits for a line that begins so, and returns the rest of it.
    pub(crate) fn rest_of(&mut self, begin: &str) -> Result<String, String> {
        let line = self
            .find(self.patience, |line| line.starts_with(begin))
            .map_err(|error| format!("waited for {begin:?}: {error}; saw {:?}", self.seen))?;
        Ok(line[begin.len()..].to_owned())
    }

    fn find(
        &mut self,
        limit: Duration,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<String, mpsc::RecvTimeoutError> {
        let until = Instant::now() + limit;
        loop {
            if let Some(line) = self.seen.iter().find(|line| is_wanted(line)) {
                return Ok(line.clone());
            }
            let left = until.saturating_duration_since(Instant::now());
            self.seen.push(self.lines.recv_timeout(left)?);
        }
    }

    /// What was printed so far.
    pub(crate) fn seen(&mut self) -> &[String] {
        self.seen.extend(self.lines.try_iter());
        &self.seen
    }

    /// Everything that was printed, up to the end of the output.
    pub(crate) fn output(&mut self) -> Vec<String> {
        let until = Instant::now() + self.patience;
        while let Ok(line) =
            self.lines.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            self.seen.push(line);
        }
        self.seen.clone()
    }

    /// The init's pid as seen from here. It must still be running.
    pub(crate) fn pid(&self) -> Result<i32, String> {
        let outer = i32::try_from(self.outer.id()).unwrap();
        match self.mode {
            Mode::Subreaper => Ok(outer),
            Mode::Pid1 => {
                wait_for(self.patience, "the forked init", || children(outer).first().copied())
            }
        }
    }

    pub(crate) fn signal(&self, number: i32) -> Result<(), String> {
        signal(self.pid()?, number)
    }

    /// The child's pid, as seen from here.
    pub(crate) fn child(&self) -> Result<i32, String> {
        let pid = self.pid()?;
        if self.is_alone {
            return Ok(pid);
        }
        let child = wait_for(self.patience, "the child", || children(pid).first().copied())?;
        self.remember(child);
        Ok(child)
    }

    /// Has this process killed, too, at the end.
    pub(crate) fn remember(&self, pid: i32) {
        self.known.borrow_mut().push(pid);
    }

    /// Waits for the init's end and returns its exit code; 128+n when a signal ended it.
    pub(crate) fn exit_code(&mut self) -> Result<i32, String> {
        let patience = self.patience;
        let status = wait_for(patience, "the end", || self.outer.try_wait().unwrap())
            .map_err(|_| format!("still runs after {patience:?}"))?;
        Ok(status.code().or(status.signal().map(|signal| 128 + signal)).unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.outer.try_wait().ok().flatten().is_none() {
            // While the init lives, its children are known.
            let begun = self.pid().map(children).unwrap_or_default();
            self.known.get_mut().extend(begun);
            drop(self.outer.kill());
            drop(self.outer.wait());
        }
        for pid in self.known.get_mut().drain(..) {
            if state(pid).is_some() {
                // The process may have ended just now.
                drop(signal(pid, 9));
            }
        }
    }
}

/// Polls until there is an answer; otherwise names what was waited for.
pub(crate) fn wait_for<T>(
    limit: Duration,
    what: &str,
    mut probe: impl FnMut() -> Option<T>,
) -> Result<T, String> {
    let until = Instant::now() + limit;
    loop {
        if let Some(answer) = probe() {
            return Ok(answer);
        }
        if Instant::now() >= until {
            return Err(format!("waited {limit:?} for {what}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn signal(pid: i32, number: i32) -> Result<(), String> {
    // The shell's own kill: nix knows no real-time signals.
    let text = format!("kill -{number} {pid}");
    let status = Command::new("sh").args(["-c", &text]).stderr(Stdio::null()).status().unwrap();
    if status.success() { Ok(()) } else { Err(format!("{text}: no such process")) }
}

/// Direct children of a process.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// One letter as in `ps`, or `None` when there is no such process.
pub(crate) fn state(pid: i32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit(')').next()?.trim_start().chars().next()
}

/// Has the process ended, reaped or not?
pub(crate) fn is_gone(pid: i32) -> bool {
    state(pid).is_none_or(|state| state == 'Z')
}

/// Fails with what is wrong unless it is right.
pub(crate) fn ensure(right: bool, wrong: impl FnOnce() -> String) -> Result<(), String> {
    if right { Ok(()) } else { Err(wrong()) }
}
