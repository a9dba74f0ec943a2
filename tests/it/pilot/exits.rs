//! What the pilot ends with.

use super::{
    harness::{Mode, exec, folder, holds, start},
    suite::exits,
};

#[test]
fn the_childs_exit_code_is_the_pilots() {
    holds(exits::CODES);
}

#[test]
fn an_asked_for_end_by_term_is_success() {
    holds(exits::REQUESTED_TERM);
}

#[test]
fn a_missing_and_a_forbidden_program_are_told_apart() {
    holds(exits::NOT_STARTED);
}

#[test]
fn the_reason_of_a_bad_end_is_left_in_the_termination_log() {
    holds(exits::TERMINATION_LOG);
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
fn root_can_start_the_child_as_another_user() {
    assert!(nix::unistd::geteuid().is_root(), "this test needs root: it starts a child as another");
    let script = r#"$| = 1; print "ids $< $> $( $)\n"; sleep 1 while 1"#;
    let mut pilot = exec(Mode::Subreaper, &["--user", "4321:1234"], script);
    pilot.expect("ids 4321 4321 1234 1234");
    // Changing the user clears PDEATHSIG; it must have been set after that.
    let child = pilot.child();
    pilot.signal(9);
    super::harness::wait_for("the child's end", || {
        super::harness::state(child).is_none_or(|state| state == 'Z').then_some(())
    });
}

#[test]
fn without_the_right_to_change_users_no_child_is_started() {
    let navigator = env!("CARGO_BIN_EXE_navigator");
    let (_kept, folder) = folder();
    let touched = folder.join("touched");
    let less = ["setpriv", "--bounding-set=-setuid,-setgid", "--inh-caps=-setuid,-setgid"];
    let exec =
        [navigator, "pilot", "exec", "--user", "1", "--", "touch", touched.to_str().unwrap()];
    assert_eq!(start(Mode::Subreaper, &[&less[..], &exec].concat()).exit_code(), 126);
    assert!(!touched.exists());
}

#[test]
fn why_a_pilot_cannot_begin_stands_in_the_termination_log() {
    let (_kept, root) = super::harness::folder();
    let log = root.join("termination-log");
    std::fs::write(&log, "").unwrap();
    let navigator = env!("CARGO_BIN_EXE_navigator");
    let words = ["pilot", "cassandra", "--config", "/nonexistent/pilot.yaml", "--termination-log"];
    let argv = [&[navigator][..], &words, &[log.to_str().unwrap()]].concat();
    assert_eq!(start(Mode::Subreaper, &argv).exit_code(), 64);
    let told = std::fs::read_to_string(&log).unwrap();
    assert!(told.contains("/nonexistent/pilot.yaml"), "{told:?}");
}
