//! The reader of the pilot's log stalls: signals and deadlines are kept all the same.

#![expect(clippy::disallowed_methods, reason = "tests start processes")]

use std::{
    fs::File,
    io::{ErrorKind, Write},
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::harness::{children, signal, wait_for};

/// A full pipe without a reader.
fn full_pipe() -> (File, File) {
    let (from, to) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
    let (from, mut to) = (File::from(from), File::from(to));
    for size in [4096, 1] {
        loop {
            match to.write(&vec![b'x'; size]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    fcntl(&to, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (from, to)
}

#[test]
fn a_log_that_nobody_reads_holds_up_no_deadline() {
    let (_from, to) = full_pipe();
    let script = r#"$SIG{TERM} = "IGNORE"; sleep 1 while 1"#;
    let mut pilot = Command::new(env!("CARGO_BIN_EXE_navigator"))
        .args(["pilot", "exec", "--termination-grace-period", "3", "--", "perl", "-e", script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(to))
        .spawn()
        .unwrap();
    let pid = i32::try_from(pilot.id()).unwrap();
    let child = wait_for("the child", || children(pid).first().copied());
    wait_for("a child that ignores TERM", || {
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).ok()?;
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
        let ignored = u64::from_str_radix(ignored.trim(), 16).ok()?;
        (ignored & (1 << 14) != 0).then_some(())
    });
    signal(pid, 15);
    // The pilot logs that the command outlived its time, and then kills it.
    let ended = wait_for("the pilot's end", || pilot.try_wait().unwrap());
    assert_eq!(ended.code().or(ended.signal()), Some(137));
}
