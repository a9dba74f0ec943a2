//! Starts the real binary around a scripted child and listens to what the child says.
//!
//! Children are written in Perl, which every Debian has: it can catch every signal.

#![expect(clippy::disallowed_methods, reason = "tests start processes")]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

/// Generous: the machine may be busy with something else.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// PID 1 of a new PID namespace, as in a container.
    Pid1,
    /// An ordinary process.
    Subreaper,
}

pub(crate) const MODES: [Mode; 2] = [Mode::Pid1, Mode::Subreaper];

/// A running pilot.
pub(crate) struct Pilot {
    outer: Child,
    mode: Mode,
    lines: mpsc::Receiver<String>,
    seen: Vec<String>,
}

/// `navigator pilot exec FLAGS -- perl -e SCRIPT`
pub(crate) fn exec(mode: Mode, flags: &[&str], script: &str) -> Pilot {
    exec_command(mode, flags, &["perl", "-e", script])
}

/// `navigator pilot exec FLAGS -- COMMAND`
pub(crate) fn exec_command(mode: Mode, flags: &[&str], command: &[&str]) -> Pilot {
    let mut argv = vec![env!("CARGO_BIN_EXE_navigator"), "pilot", "exec"];
    argv.extend(flags);
    argv.push("--");
    argv.extend(command);
    start(mode, &argv)
}

/// Any command as PID 1 or as a subreaper.
pub(crate) fn start(mode: Mode, argv: &[&str]) -> Pilot {
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
            let mut command = Command::new(argv[0]);
            command.args(&argv[1..]);
            command
        }
    };
    // A container's own termination log is not for the children of its tests.
    command.env("NAVIGATOR_TERMINATION_LOG", "/nonexistent").env("NAVIGATOR_LOG", "warn");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut outer = command
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; install util-linux and perl"));
    let (sender, lines) = mpsc::channel();
    let stdout = outer.stdout.take().unwrap();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    Pilot { outer, mode, lines, seen: Vec::new() }
}

impl Pilot {
    /// Waits until the child prints this line; lines before it are kept.
    pub(crate) fn expect(&mut self, wanted: &str) {
        self.expect_within(DEADLINE, wanted);
    }

    /// The same for a child that has much to do first.
    pub(crate) fn expect_within(&mut self, limit: Duration, wanted: &str) {
        let until = Instant::now() + limit;
        while !self.seen.iter().any(|line| line == wanted) {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.seen.push(line),
                Err(error) => panic!("waited for {wanted:?}: {error}; saw {:?}", self.seen),
            }
        }
    }

    /// Everything that was printed, up to the end of the output.
    pub(crate) fn output(&mut self) -> Vec<String> {
        let until = Instant::now() + DEADLINE;
        while let Ok(line) =
            self.lines.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            self.seen.push(line);
        }
        self.seen.clone()
    }

    /// The pilot's pid as seen from here. It must still be running.
    pub(crate) fn pid(&self) -> i32 {
        let outer = i32::try_from(self.outer.id()).unwrap();
        match self.mode {
            Mode::Subreaper => outer,
            Mode::Pid1 => wait_for("the forked pilot", || children(outer).first().copied()),
        }
    }

    pub(crate) fn signal(&self, number: i32) {
        signal(self.pid(), number);
    }

    /// Waits for the pilot's end and returns its exit code; 128+n when a signal ended it.
    pub(crate) fn exit_code(&mut self) -> i32 {
        let status = self.wait();
        use std::os::unix::process::ExitStatusExt;
        status.code().or(status.signal().map(|signal| 128 + signal)).unwrap()
    }

    fn wait(&mut self) -> ExitStatus {
        wait_for("the pilot's end", || self.outer.try_wait().unwrap())
    }

    /// The child's pid, as seen from here.
    pub(crate) fn child(&self) -> i32 {
        wait_for("the child", || children(self.pid()).first().copied())
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        if self.outer.try_wait().ok().flatten().is_none() {
            drop(self.outer.kill());
            drop(self.outer.wait());
        }
    }
}

/// Polls until there is an answer; panics with the name of what was waited for.
pub(crate) fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(Instant::now() < until, "waited {DEADLINE:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn signal(pid: i32, number: i32) {
    // The shell's own kill: nix knows no real-time signals.
    let status =
        Command::new("sh").args(["-c", &format!("kill -{number} {pid}")]).status().unwrap();
    assert!(status.success(), "kill -{number} {pid}");
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

/// A folder of this test's own, removed with the value.
pub(crate) fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}
