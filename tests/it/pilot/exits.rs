//! What the pilot ends with.

use std::fs;

use super::harness::{MODES, Mode, exec, folder, start};

#[test]
fn the_childs_exit_code_is_the_pilots() {
    let rows = [
        ("exit 0", 0),
        ("exit 1", 1),
        ("exit 42", 42),
        ("exit 143", 143),
        ("exit 255", 255),
        ("kill 15, $$; sleep 9", 143),
        ("kill 9, $$; sleep 9", 137),
        ("kill 11, $$; sleep 9", 139),
        ("kill 6, $$; sleep 9", 134),
        ("kill 34, $$; sleep 9", 162),
    ];
    for mode in MODES {
        for (script, code) in rows {
            assert_eq!(exec(mode, &[], script).exit_code(), code, "{mode:?}: {script}");
        }
    }
}

#[test]
fn an_asked_for_end_by_term_is_success() {
    let ready = r#"$| = 1; $SIG{TERM} = sub { exit CODE }; print "ready\n"; sleep 60 while 1"#;
    let rows = [("143", 0), ("0", 0), ("3", 3)];
    for mode in MODES {
        for (own, code) in rows {
            let mut pilot = exec(mode, &[], &ready.replace("CODE", own));
            pilot.expect("ready");
            pilot.signal(15);
            assert_eq!(pilot.exit_code(), code, "{mode:?}: exit {own}");
        }
        let mut pilot = exec(mode, &[], r#"$| = 1; print "ready\n"; sleep 60 while 1"#);
        pilot.expect("ready");
        pilot.signal(15);
        assert_eq!(pilot.exit_code(), 0, "{mode:?}: no handler");
    }
}

#[test]
fn a_missing_and_a_forbidden_program_are_told_apart() {
    let navigator = env!("CARGO_BIN_EXE_navigator");
    let rows = [("/nonexistent/program", 127), ("/etc/passwd", 126)];
    for (program, code) in rows {
        let argv = [navigator, "pilot", "exec", "--", program];
        assert_eq!(start(Mode::Subreaper, &argv).exit_code(), code, "{program}");
    }
}

#[test]
fn bad_arguments_are_64_before_anything_is_started() {
    let navigator = env!("CARGO_BIN_EXE_navigator");
    let (_kept, folder) = folder();
    let touched = folder.join("touched");
    let touch = touched.to_str().unwrap();
    let rows: &[&[&str]] = &[
        &["--no-such-flag", "--", "touch", touch],
        &["--termination-grace-period", "soon", "--", "touch", touch],
        &["--user", "nobody", "--", "touch", touch],
        &["--log", "navigator=loud", "--", "touch", touch],
        &[],
    ];
    for row in rows {
        let argv: Vec<&str> = [navigator, "pilot", "exec"].iter().chain(*row).copied().collect();
        assert_eq!(start(Mode::Subreaper, &argv).exit_code(), 64, "{row:?}");
        assert!(!touched.exists(), "{row:?}");
    }
}

#[test]
fn the_reason_of_a_bad_end_is_left_in_the_termination_log() {
    let (_kept, folder) = folder();
    let log = folder.join("termination-log");
    fs::write(&log, "").unwrap();
    let flags = ["--termination-log", log.to_str().unwrap()];
    assert_eq!(exec(Mode::Subreaper, &flags, "kill 11, $$; sleep 9").exit_code(), 139);
    assert_eq!(fs::read_to_string(&log).unwrap(), "perl was ended by SIGSEGV");
    // Not there: not created.
    fs::remove_file(&log).unwrap();
    assert_eq!(exec(Mode::Subreaper, &flags, "exit 3").exit_code(), 3);
    assert!(!log.exists());
}

#[test]
fn root_can_start_the_child_as_another_user() {
    if !nix::unistd::geteuid().is_root() {
        // An unprivileged run shows the other half of the claim.
        assert_eq!(exec(Mode::Subreaper, &["--user", "1"], "exit 0").exit_code(), 126);
        return;
    }
    let script = r#"$| = 1; print "ids $< $> $( $)\n"; sleep 60 while 1"#;
    let mut pilot = exec(Mode::Subreaper, &["--user", "4321:1234"], script);
    pilot.expect("ids 4321 4321 1234 1234");
    // Changing the user clears PDEATHSIG; it must have been set after that.
    let child = pilot.child();
    pilot.signal(9);
    super::harness::wait_for("the child's end", || {
        super::harness::state(child).is_none_or(|state| state == 'Z').then_some(())
    });
}
