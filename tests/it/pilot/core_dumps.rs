//! What the pilot knows goes into no core dump, while its database may leave one.

#![expect(clippy::disallowed_methods, reason = "tests start processes")]

use std::{
    fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    process::{Command, Stdio},
};

use nix::unistd::geteuid;

use super::harness::{children, wait_for};

/// A group that is not root's.
const GROUP: u32 = 65534;

/// Returns whether the kernel lets nobody but root see the memory of a process: its files are root's then.
fn is_private(pid: i32) -> bool {
    let file = fs::metadata(format!("/proc/{pid}/environ")).unwrap();
    (file.uid(), file.gid()) == (0, 0)
}

#[test]
fn memory_of_the_pilot_is_private_and_that_of_its_child_is_not() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_navigator"));
    if geteuid().is_root() {
        command.gid(GROUP);
    }
    let mut pilot = command
        .args(["pilot", "exec", "--", "sleep", "600"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = i32::try_from(pilot.id()).unwrap();
    let child = wait_for("the child's program", || {
        let child = *children(pid).first()?;
        let name = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
        (name.trim() == "sleep").then_some(child)
    });
    assert!(is_private(pid));
    assert!(!is_private(child));
    pilot.kill().unwrap();
    pilot.wait().unwrap();
}
