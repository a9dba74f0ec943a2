//! A new program takes over a running child by exec, and one that cannot leaves all as it was.
//!
//! Two files hold the same program under different inodes: each takes the other's place in turn.

#![expect(clippy::disallowed_methods, reason = "tests start processes")]

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use nix::fcntl::{Flock, FlockArg};
use serde_json::json;

use super::{
    alone::{Alone, PATIENCE, another},
    harness::{Mode, Pilot, children, signal, start, state, until, wait_for},
};
use crate::support::{
    executable,
    ring::{self, phase},
    wait,
};

/// How many upgrades the plan asks for.
const UPGRADES: usize = 100;

/// A program file and what may take its place.
pub(crate) struct Programs {
    _kept: tempfile::TempDir,
    root: PathBuf,
}

impl Programs {
    pub(crate) fn new() -> Self {
        // Beside the binary: one of the two is a link to it.
        let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let root = kept.path().to_owned();
        let programs = Self { _kept: kept, root };
        let binary = env!("CARGO_BIN_EXE_navigator");
        fs::hard_link(binary, programs.root.join("odd")).unwrap();
        // By another process: a child that a test beside us forks would for a moment hold this
        // file open for writing, and the kernel executes no such file.
        let copied = Command::new("cp").arg(binary).arg(programs.root.join("even")).status();
        assert!(copied.unwrap().success());
        programs.put("even");
        programs
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.root.join("navigator")
    }

    /// Puts a file in the program's place, whole, as an installation does.
    fn put(&self, name: &str) {
        let new = self.root.join("new");
        fs::hard_link(self.root.join(name), &new).unwrap();
        fs::rename(&new, self.path()).unwrap();
    }

    /// Upgrades a pilot and waits until it runs the other file.
    pub(crate) fn upgrade(&self, pilot: i32, round: usize) {
        let name = if round.is_multiple_of(2) { "odd" } else { "even" };
        self.put(name);
        let wanted = fs::metadata(self.root.join(name)).unwrap().ino();
        // A check alone may take 20 s on a busy machine, and is then made again.
        until(Duration::from_secs(300), &format!("upgrade {round}"), || {
            (running(pilot) == wanted).then_some(())
        });
    }
}

/// Inode of the program that a process runs.
fn running(pid: i32) -> u64 {
    fs::metadata(format!("/proc/{pid}/exe")).map(|file| file.ino()).unwrap_or_default()
}

fn open_files(pid: i32) -> usize {
    links(pid).len()
}

/// What the open files of a process are; some may have been closed meanwhile.
fn links(pid: i32) -> Vec<PathBuf> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    files.map(|file| fs::read_link(file.unwrap().path()).unwrap_or_default()).collect()
}

/// Waits until a process has at most so many open files. A pilot that asks its database two things at
/// one time has a second connection for as long as it does so.
fn has_closed(pid: i32, most: usize) {
    let begun = Instant::now();
    while open_files(pid) > most {
        let late = begun.elapsed() > Duration::from_secs(300);
        assert!(!late, "more than {most} open files: {:?}", links(pid));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Names the child's own and its parent's pid, counts signals, makes orphans, ends as asked.
const CHILD: &str = r#"use POSIX; $| = 1; my $got = 0;
    sigaction(34, POSIX::SigAction->new(sub { $got++ }));
    $SIG{USR1} = sub { for (1..200) { if (!fork) { exit 0 if fork; exit 0 } } 1 while wait > 0; print "orphans\n" };
    $SIG{USR2} = sub { print "got $got, parent ", getppid(), "\n" };
    $SIG{TERM} = sub { exit 7 };
    print "ready\n"; select(undef, undef, undef, 60) while 1"#;

fn exec(mode: Mode, programs: &Programs, script: &str, log: Option<&Path>) -> Pilot {
    let program = programs.path();
    let log = log.map_or("/dev/stderr".to_owned(), |path| path.display().to_string());
    let words = ["pilot", "exec", "--takeover-interval", "0.02", "--", "perl", "-e", script];
    let mut argv = vec!["sh", "-c", r#"log=$1; shift; exec "$@" 2>>"$log""#, "sh", &log];
    argv.push(program.to_str().unwrap());
    argv.extend(words);
    start(mode, &argv)
}

#[test]
fn a_hundred_upgrades_keep_the_child_its_signals_its_orphans_and_its_exit_code() {
    for mode in [Mode::Pid1, Mode::Subreaper] {
        let programs = Programs::new();
        let mut pilot = exec(mode, &programs, CHILD, None);
        pilot.expect("ready");
        let (pid, child) = (pilot.pid(), pilot.child());
        let files = open_files(pid);
        for round in 0..UPGRADES {
            // Before, while and after another program comes: real-time signals are counted.
            signal(pid, 34);
            programs.upgrade(pid, round);
            signal(pid, 34);
        }
        wait_for("no helper", || (children(pid) == [child]).then_some(()));
        has_closed(pid, files);
        let own = if mode == Mode::Pid1 { 1 } else { pid };
        // A low signal overtakes a higher one while the last program has not read them yet.
        let all = format!("got {}, parent {own}", 2 * UPGRADES);
        wait_for("every signal", || {
            signal(pid, 12);
            pilot.has_said(&all).then_some(())
        });
        signal(pid, 10);
        pilot.expect("orphans");
        wait_for("no zombie", || (children(pid) == [child]).then_some(()));
        pilot.signal(15);
        assert_eq!(pilot.exit_code(), 7, "{mode:?}");
    }
}

#[test]
fn an_end_during_upgrades_is_reported_and_a_killed_successor_takes_the_child_along() {
    for mode in [Mode::Pid1, Mode::Subreaper] {
        let programs = Programs::new();
        let mut pilot = exec(mode, &programs, CHILD, None);
        pilot.expect("ready");
        programs.upgrade(pilot.pid(), 0);
        // Now the next program comes while the child ends.
        programs.put("even");
        signal(pilot.child(), 15);
        assert_eq!(pilot.exit_code(), 7, "{mode:?}");
    }
    let programs = Programs::new();
    let mut pilot = exec(Mode::Subreaper, &programs, CHILD, None);
    pilot.expect("ready");
    programs.upgrade(pilot.pid(), 0);
    let child = pilot.child();
    pilot.signal(9);
    wait_for("the child's end", || state(child).is_none_or(|state| state == 'Z').then_some(()));
}

#[test]
fn a_successor_keeps_the_grace_period_and_the_name_of_the_process() {
    let programs = Programs::new();
    let script = r#"$SIG{TERM} = "IGNORE"; $| = 1; print "ready\n"; sleep 1 while 1"#;
    let program = programs.path();
    let argv = [program.to_str().unwrap(), "pilot", "exec", "--takeover-interval", "0.02"];
    let flags = ["--termination-grace-period", "3", "--", "perl", "-e", script];
    let mut pilot = start(Mode::Pid1, &[&argv[..], &flags[..]].concat());
    pilot.expect("ready");
    programs.upgrade(pilot.pid(), 0);
    let name = || fs::read_to_string(format!("/proc/{}/comm", pilot.pid())).unwrap();
    wait_for("the name", || (name() == "navigator\n").then_some(()));
    // In the midst of an exec a process has no words.
    let words = || fs::read(format!("/proc/{}/cmdline", pilot.pid())).unwrap();
    let words = wait_for("its words", || Some(words()).filter(|words| !words.is_empty()));
    let wanted = [&argv[..], &flags[..]].concat().join("\0") + "\0";
    assert_eq!(String::from_utf8(words).unwrap(), wanted);
    pilot.signal(15);
    assert_eq!(pilot.exit_code(), 137);
}

#[test]
fn a_program_that_cannot_take_over_leaves_everything_as_it_was() {
    let programs = Programs::new();
    let log = programs.root.join("log");
    let binary = fs::read(env!("CARGO_BIN_EXE_navigator")).unwrap();
    let bad: [(&str, &[u8], u32); 8] = [
        ("truncated", &binary[..1 << 20], 0o755),
        ("a text", b"not a program", 0o755),
        ("a script", b"#!/bin/sh\nexit 0\n", 0o755),
        ("ends with 0", &fs::read("/bin/true").unwrap(), 0o755),
        ("ends with 1", &fs::read("/bin/false").unwrap(), 0o755),
        ("repeats its words", &fs::read("/bin/echo").unwrap(), 0o755),
        ("empty", b"", 0o755),
        ("not executable", &binary, 0o644),
    ];
    let mut pilot = exec(Mode::Subreaper, &programs, CHILD, Some(&log));
    pilot.expect("ready");
    let (pid, child, program) = (pilot.pid(), pilot.child(), running(pilot.pid()));
    let mut files = 0;
    for (round, (name, content, mode)) in bad.into_iter().enumerate() {
        let file = programs.root.join(name);
        executable::write(&file, content);
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        programs.put(name);
        wait_for(&format!("the refusal of {name}"), || {
            let text = fs::read_to_string(&log).unwrap();
            (text.matches("A new program cannot take over").count() > round).then_some(())
        });
        assert_eq!((pilot.pid(), pilot.child()), (pid, child), "{name}");
        assert_eq!(running(pid), program, "{name}");
        wait_for("no helper", || (children(pid) == [child]).then_some(()));
        if round == 0 {
            // The first token opens the source of random numbers, which stays open.
            files = open_files(pid);
        }
    }
    has_closed(pid, files);
    assert_eq!(fs::read_to_string(&log).unwrap().matches("cannot take over").count(), bad.len());
    // A good program is still taken.
    programs.upgrade(pid, 0);
    assert_eq!(pilot.child(), child);
    pilot.signal(15);
    assert_eq!(pilot.exit_code(), 7);
}

#[test]
fn a_child_hears_control_c_after_several_programs() {
    let programs = Programs::new();
    let child = r#"use POSIX; $| = 1; $SIG{INT} = sub { exit 5 };
        print "pid $$\n"; sleep 1 while 1"#;
    // A shell that stays would hear Ctrl-C, too.
    let line = format!(
        "exec '{}' pilot exec --takeover-interval 0.02 -- perl -e '{child}'",
        programs.path().display()
    );
    let mut script = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("script is in Debian's bsdutils");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(script.stdout.take().unwrap()));
    let pid = wait_for("the child", || {
        let line = lines.next()?.ok()?;
        line.trim_end().strip_prefix("pid ")?.parse::<i32>().ok()
    });
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let parent = stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap();
    let pilot: i32 = parent.parse().unwrap();
    for round in 0..3 {
        programs.upgrade(pilot, round);
    }
    std::io::Write::write_all(script.stdin.as_mut().unwrap(), b"\x03").unwrap();
    assert_eq!(script.wait().unwrap().code(), Some(5));
}

#[tokio::test]
async fn a_hundred_upgrades_of_a_database_pilot_keep_its_process_output_lock_and_ports() {
    let mut node = Alone::new(20);
    let programs = Programs::new();
    node.seat.program = programs.path();
    ring::set(&node.seat, "noise", "");
    let pilot = node.start(&phase("Running"));
    node.until(200, "Running").await;
    let (pid, database) = (pilot.pid(), pilot.database().unwrap());
    programs.upgrade(pid, 0);
    node.until(200, "Running").await;
    figures(&node).await;
    let files = open_files(pid);
    for round in 1..=UPGRADES {
        programs.upgrade(pid, round);
        // A node that serves is never said not to.
        assert_eq!(node.seat.get(12001).map(|(code, _)| code), Some(200), "round {round}");
        assert_eq!(pilot.database(), Some(database));
    }
    wait_for("no helper", || (children(pid) == [database]).then_some(()));
    figures(&node).await;
    has_closed(pid, files);
    // The lock of the data is still held: a second pilot does not start on them.
    let folder = fs::File::open(node.seat.data()).unwrap();
    let second = Flock::lock(folder, FlockArg::LockExclusiveNonblock);
    assert!(second.is_err(), "the lock was lost");
    assert_eq!(pilot.stop(PATIENCE).await, 0);
    let notes = [&format!("start {database}"), "founds", "normal", "drain", "term"];
    assert_eq!(node.notes(), notes);
    let text = node.seat.written("stdout");
    let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("line ")).collect();
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, number.to_string(), "lost or doubled after line {number}");
    }
    assert!(lines.len() > UPGRADES, "only {} lines", lines.len());
}

/// Waits until the database was asked once, so that connections to it are open.
async fn figures(node: &Alone) {
    wait::until("the figures", PATIENCE, async || {
        match node.seat.gauge("navigator_cassandra_live_nodes ") {
            Some(1.0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn on_restart_waits_for_the_end_of_the_database_and_never_is_never() {
    let rows = [
        (21, "OnRestart", "A new program can take over", "odd"),
        (22, "Never", "A new program is left aside", "even"),
    ];
    for (host, policy, said, runs) in rows {
        let mut node = Alone::new(host);
        let programs = Programs::new();
        node.seat.program = programs.path();
        let inode = |name: &str| fs::metadata(programs.root.join(name)).unwrap().ino();
        let pilot = node.start(&json!({"pilotUpdate": policy}));
        node.until(200, "Running").await;
        let database = pilot.database().unwrap();
        programs.put("odd");
        pilot.says(said, PATIENCE).await;
        // The pilot looks at the program many times more.
        node.until(200, "Running").await;
        assert_eq!(running(pilot.pid()), inode("even"), "{policy}");
        assert_eq!(pilot.database(), Some(database), "{policy}");
        signal(database, 9);
        another(&pilot, database).await;
        node.until(200, "Running").await;
        assert_eq!(running(pilot.pid()), inode(runs), "{policy}");
        assert_eq!(pilot.stop(PATIENCE).await, 0, "{policy}");
    }
}
