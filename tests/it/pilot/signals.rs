//! What reaches the child when the pilot is signalled.

use super::harness::{MODES, Mode, exec, wait_for};

/// HUP INT QUIT USR1 USR2 PIPE ALRM TERM CONT TSTP URG XCPU XFSZ VTALRM PROF WINCH IO PWR, and
/// the first and last real-time signal.
const FORWARDED: [i32; 20] =
    [1, 2, 3, 10, 12, 13, 14, 15, 18, 20, 23, 24, 25, 26, 27, 28, 29, 30, 34, 64];

/// Says which signals came, and how signals stood when it was started.
fn recorder() -> String {
    let list = FORWARDED.map(|n| n.to_string()).join(",");
    format!(
        r#"use POSIX; $| = 1;
        for my $n ({list}) {{
            sigaction($n, POSIX::SigAction->new(sub {{ syswrite(STDOUT, "got $n\n") }}));
        }}
        open(my $s, "<", "/proc/self/status");
        while (<$s>) {{ print "mask $1\n" if /^SigBlk:\s+(\S+)/; print "ignored ", hex($1) & 0x1007 ? $1 : "none", "\n" if /^SigIgn:\s+(\S+)/ }}
        print "group ", getpgrp() == $$ ? "own" : "shared", "\n";
        print "ready\n";
        sleep 60 while 1;"#
    )
}

#[test]
fn twenty_signals_reach_the_child_once_each() {
    for mode in MODES {
        let mut pilot = exec(mode, &["--termination-grace-period", "600"], &recorder());
        pilot.expect("ready");
        for signal in FORWARDED {
            pilot.signal(signal);
            pilot.expect(&format!("got {signal}"));
        }
        super::harness::signal(pilot.child(), 9);
        assert_eq!(pilot.exit_code(), 137, "{mode:?}");
        let got: Vec<String> =
            pilot.output().into_iter().filter(|line| line.starts_with("got")).collect();
        let wanted: Vec<String> = FORWARDED.iter().map(|n| format!("got {n}")).collect();
        assert_eq!(got, wanted, "{mode:?}");
    }
}

#[test]
fn the_child_starts_with_default_signals_in_a_group_of_its_own() {
    // INT and QUIT ignored, as a shell's `&` leaves them, and HUP ignored as nohup does.
    let script = "trap '' INT QUIT HUP; exec \"$0\" \"$@\"";
    let recorder = recorder();
    let argv = [
        "sh",
        "-c",
        script,
        env!("CARGO_BIN_EXE_navigator"),
        "pilot",
        "exec",
        "--",
        "perl",
        "-e",
        &recorder,
    ];
    let mut pilot = super::harness::start(Mode::Subreaper, &argv);
    pilot.expect("ready");
    pilot.expect("mask 0000000000000000");
    // Of HUP, INT, QUIT and PIPE; Perl itself ignores FPE.
    pilot.expect("ignored none");
    pilot.expect("group own");
}

#[test]
fn a_burst_of_real_time_signals_is_not_merged() {
    let mut pilot = exec(Mode::Subreaper, &[], &recorder());
    pilot.expect("ready");
    // The pilot cannot read while it is stopped; real-time signals queue.
    pilot.signal(19);
    wait_for("the stopped pilot", || {
        (super::harness::state(pilot.pid()) == Some('T')).then_some(())
    });
    for _ in 0..5 {
        pilot.signal(34);
    }
    pilot.signal(18);
    pilot.expect("got 18");
    super::harness::signal(pilot.child(), 12);
    pilot.expect("got 12");
    super::harness::signal(pilot.child(), 9);
    assert_eq!(pilot.exit_code(), 137);
    let got = pilot.output().iter().filter(|line| *line == "got 34").count();
    assert_eq!(got, 5);
}

#[test]
fn a_child_that_ignores_term_is_killed_two_seconds_before_the_grace_period_ends() {
    for mode in MODES {
        let script = r#"$SIG{TERM} = "IGNORE"; $| = 1; print "ready\n"; sleep 60 while 1"#;
        let mut pilot = exec(mode, &["--termination-grace-period", "3"], script);
        pilot.expect("ready");
        let asked = std::time::Instant::now();
        pilot.signal(15);
        assert_eq!(pilot.exit_code(), 137, "{mode:?}");
        let took = asked.elapsed();
        assert!(took.as_millis() >= 990, "{mode:?}: killed after {took:?}, one second was left");
    }
}

#[test]
fn a_stopped_child_is_killed_at_the_deadline_too() {
    let script = r#"$| = 1; print "ready\n"; sleep 60 while 1"#;
    let mut pilot = exec(Mode::Pid1, &["--termination-grace-period", "3"], script);
    pilot.expect("ready");
    let child = pilot.child();
    super::harness::signal(child, 19);
    // Of two pending signals the kernel delivers the lower number first.
    wait_for("the stopped child", || (super::harness::state(child) == Some('T')).then_some(()));
    pilot.signal(15);
    assert_eq!(pilot.exit_code(), 137);
}

#[test]
fn a_second_term_reaches_the_child_too() {
    let script = r#"$| = 1; my $n = 0; $SIG{TERM} = sub { print "term ", ++$n, "\n"; exit 7 if $n == 2 };
        print "ready\n"; sleep 60 while 1"#;
    for mode in MODES {
        let mut pilot = exec(mode, &[], script);
        pilot.expect("ready");
        pilot.signal(15);
        pilot.expect("term 1");
        pilot.signal(15);
        assert_eq!(pilot.exit_code(), 7, "{mode:?}");
    }
}

#[test]
fn a_killed_pilot_takes_its_child_along() {
    let script = r#"$SIG{TERM} = "IGNORE"; $| = 1; print "ready\n"; sleep 60 while 1"#;
    let mut pilot = exec(Mode::Subreaper, &[], script);
    pilot.expect("ready");
    let child = pilot.child();
    pilot.signal(9);
    wait_for("the child's end", || {
        super::harness::state(child).is_none_or(|state| state == 'Z').then_some(())
    });
}

#[test]
fn a_term_before_the_child_is_ready_is_not_lost() {
    for mode in MODES {
        let mut pilot = exec(mode, &[], "sleep 60 while 1");
        // As soon as signals are blocked, whatever the child is doing.
        wait_for("blocked signals", || {
            let text = std::fs::read_to_string(format!("/proc/{}/status", pilot.pid())).ok()?;
            let line = text.lines().find(|line| line.starts_with("SigBlk"))?.to_owned();
            (!line.ends_with("0000000000000000")).then_some(())
        });
        pilot.signal(15);
        assert_eq!(pilot.exit_code(), 0, "{mode:?}");
    }
}
