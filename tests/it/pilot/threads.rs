//! Why the supervisor forks on the main thread only: the kernel's "parent" of `PDEATHSIG` is the
//! thread that forked, not the process.

#![expect(clippy::disallowed_methods, reason = "tests start processes")]

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
};

use super::harness::wait_for;

/// Asks to be killed when its parent dies, and then sleeps.
fn start() -> Child {
    let child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", "sleep", "600"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("setpriv: {error}; install util-linux"));
    wait_for("the program behind setpriv", || {
        let name = fs::read_to_string(format!("/proc/{}/comm", child.id())).ok()?;
        (name.trim() == "sleep").then_some(())
    });
    child
}

#[test]
fn a_child_dies_with_the_thread_that_forked_it_though_the_process_lives_on() {
    let mut of_a_worker = std::thread::spawn(start).join().unwrap();
    let status = wait_for("the child's end", || of_a_worker.try_wait().unwrap());
    assert_eq!(status.signal(), Some(9));

    let mut of_a_thread_that_stays = start();
    assert_eq!(of_a_thread_that_stays.try_wait().unwrap(), None);
    of_a_thread_that_stays.kill().unwrap();
    of_a_thread_that_stays.wait().unwrap();
}
