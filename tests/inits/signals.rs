//! What reaches the child when the init is signalled.

use std::fs;

use super::{
    Bench, Case, Seen,
    process::{MODES, Mode, Running, children, ensure, signal, state, wait_for},
};

pub(crate) const FORWARDED: Case = Case {
    says: "20 signals reach the child, once each",
    modes: MODES,
    without_init: true,
    run: forwarded,
};

pub(crate) const REAL_TIME_BURST: Case = Case {
    says: "a burst of real-time signals is not merged",
    modes: &[Mode::Subreaper],
    without_init: false,
    run: real_time_burst,
};

pub(crate) const BEFORE_READY: Case = Case {
    says: "a TERM before the child is up is not lost",
    modes: MODES,
    without_init: false,
    run: before_ready,
};

pub(crate) const WITHOUT_HANDLER: Case = Case {
    says: "TERM ends a child that has no handler for it",
    modes: MODES,
    without_init: true,
    run: without_handler,
};

pub(crate) const SECOND_TERM: Case = Case {
    says: "a second TERM reaches the child too",
    modes: MODES,
    without_init: true,
    run: second_term,
};

pub(crate) const DEFAULT_DISPOSITIONS: Case = Case {
    says: "the child starts with no signal blocked or ignored, also below `nohup`",
    modes: &[Mode::Subreaper],
    without_init: false,
    run: default_dispositions,
};

pub(crate) const OWN_GROUP: Case = Case {
    says: "the child has a process group of its own",
    modes: MODES,
    without_init: false,
    run: own_group,
};

pub(crate) const TERM_TARGET: Case =
    Case { says: "who is sent a TERM", modes: MODES, without_init: false, run: term_target };

const SIGNALS: [(i32, &str); 20] = [
    (1, "HUP"),
    (2, "INT"),
    (3, "QUIT"),
    (10, "USR1"),
    (12, "USR2"),
    (13, "PIPE"),
    (14, "ALRM"),
    (15, "TERM"),
    (18, "CONT"),
    (20, "TSTP"),
    (23, "URG"),
    (24, "XCPU"),
    (25, "XFSZ"),
    (26, "VTALRM"),
    (27, "PROF"),
    (28, "WINCH"),
    (29, "IO"),
    (30, "PWR"),
    (34, "RTMIN"),
    (64, "RTMAX"),
];

/// Says which signals came, and how signals stood when it was started.
fn recorder() -> String {
    let list = SIGNALS.map(|(number, _)| number.to_string()).join(",");
    format!(
        r#"use POSIX; $| = 1;
        # Handlers that interrupt each other end Perl now and then.
        my $all = POSIX::SigSet->new; $all->fillset;
        for my $n ({list}) {{
            sigaction($n, POSIX::SigAction->new(sub {{ syswrite(STDOUT, "got $n\n") }}, $all));
        }}
        open(my $s, "<", "/proc/self/status");
        while (<$s>) {{ print "mask $1\n" if /^SigBlk:\s+(\S+)/; print "ignored ", hex($1) & 0x1007 ? $1 : "none", "\n" if /^SigIgn:\s+(\S+)/ }}
        print "group ", getpgrp() == $$ ? "own" : "shared", "\n";
        print "ready\n";
        sleep 1 while 1;"#
    )
}

fn forwarded(bench: Bench) -> Seen {
    let mut init = bench.perl(&["--termination-grace-period", "600"], &recorder());
    init.expect("ready")?;
    let (pid, child) = (init.pid()?, init.child()?);
    let (mut wrong, mut previous) = (Vec::new(), "");
    for (number, name) in SIGNALS {
        init.signal(number)?;
        let got = format!("got {number}");
        if init.expect(&got).is_ok() {
            previous = name;
            continue;
        }
        let states = (state(pid), state(child));
        if matches!(states.0, None | Some('Z')) {
            return Err(format!("{name} ends it"));
        }
        signal(pid, 18)?;
        signal(child, 18)?;
        wrong.push(match states {
            // The signal comes now, so the init was stopped by the one before.
            (Some('T'), _) if init.expect(&got).is_ok() => format!("{previous} stops it"),
            (Some('T'), _) => format!("{name} stops it"),
            (_, Some('T')) => format!("{name} stops the child"),
            _ => format!("{name} is lost"),
        });
        previous = name;
    }
    ensure(wrong.is_empty(), || wrong.join(", "))?;
    signal(child, 9)?;
    if !init.is_alone {
        let code = init.exit_code()?;
        ensure(code == 137, || format!("exit {code} after KILL of the child"))?;
    }
    let got: Vec<String> =
        init.seen().iter().filter(|line| line.starts_with("got")).cloned().collect();
    let wanted = SIGNALS.map(|(number, _)| format!("got {number}"));
    ensure(got == wanted, || format!("not once each: {got:?}")).map(|()| "")
}

fn real_time_burst(bench: Bench) -> Seen {
    let mut init = bench.perl(&[], &recorder());
    init.expect("ready")?;
    let (pid, child) = (init.pid()?, init.child()?);
    // The init cannot read while it is stopped; real-time signals queue.
    signal(pid, 19)?;
    let patience = bench.init.patience();
    wait_for(patience, "the stopped init", || (state(pid) == Some('T')).then_some(()))?;
    for _ in 0..5 {
        signal(pid, 34)?;
    }
    signal(pid, 18)?;
    init.expect("got 18")?;
    // The kernel delivers pending signals in the order of their numbers, so the last ones may still
    // come.
    wait_for(patience, "five signals", || {
        (init.seen().iter().filter(|line| *line == "got 34").count() >= 5).then_some(())
    })
    .map_err(|_| {
        let got = init.seen().iter().filter(|line| *line == "got 34").count();
        format!("{got} of 5 came")
    })?;
    signal(child, 12)?;
    init.expect("got 12")?;
    signal(child, 9)?;
    init.exit_code()?;
    let got = init.output().iter().filter(|line| *line == "got 34").count();
    ensure(got == 5, || format!("{got} of 5 came")).map(|()| "")
}

fn before_ready(bench: Bench) -> Seen {
    let mut init = bench.perl(&[], "sleep 1 while 1");
    let pid = init.pid()?;
    // An init is in charge once it blocks TERM, or has a child: in sigwait(3) it shows none as
    // blocked. `unshare`, which becomes the init, blocks it as well. Other signals may be blocked by
    // whoever runs the tests, and every process inherits that.
    wait_for(bench.init.patience(), "an init in charge", || {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let mask = u64::from_str_radix(value("SigBlk:")?.trim(), 16).ok()?;
        let blocks = mask & (1 << (15 - 1)) != 0;
        let is_init = value("Name:")?.trim() != "unshare";
        (is_init && (blocks || !children(pid).is_empty())).then_some(())
    })?;
    signal(pid, 15)?;
    init.exit_code().map(|_| "")
}

fn without_handler(bench: Bench) -> Seen {
    let mut init = bench.perl(&[], r#"$| = 1; print "ready\n"; sleep 1 while 1"#);
    init.expect("ready")?;
    init.signal(15)?;
    init.exit_code().map(|_| "")
}

fn second_term(bench: Bench) -> Seen {
    let script = r#"$| = 1; my $n = 0; $SIG{TERM} = sub { print "term ", ++$n, "\n"; exit 7 if $n == 2 };
        print "ready\n"; sleep 1 while 1"#;
    let mut init = bench.perl(&[], script);
    init.expect("ready")?;
    init.signal(15)?;
    init.expect("term 1")?;
    init.signal(15)?;
    let code = init.exit_code()?;
    ensure(code == 7, || format!("exit {code}")).map(|()| "")
}

fn default_dispositions(bench: Bench) -> Seen {
    // INT and QUIT ignored, as a shell's `&` leaves them, and HUP ignored as nohup does.
    let script = "trap '' INT QUIT HUP; exec \"$0\" \"$@\"";
    let recorder = recorder();
    let mut argv: Vec<String> = ["sh", "-c", script].map(str::to_owned).into();
    argv.extend(bench.init.argv(bench.mode, &[], &["perl", "-e", &recorder]));
    let mut init = Running::start(bench.mode, &argv, bench.init.patience());
    init.expect("ready")?;
    let mask = init.rest_of("mask ")?;
    ensure(mask == "0000000000000000", || format!("blocked: {mask}"))?;
    // Of HUP, INT, QUIT and PIPE; Perl itself ignores FPE.
    let ignored = init.rest_of("ignored ")?;
    ensure(ignored == "none", || "HUP, INT, QUIT stay ignored".to_owned()).map(|()| "")
}

fn own_group(bench: Bench) -> Seen {
    let mut init = bench.perl(&[], &recorder());
    let group = init.rest_of("group ")?;
    ensure(group == "own", || format!("{group} with the init")).map(|()| "")
}

/// A fact, neither good nor bad: a shell in front of a database needs a TERM to the whole group,
/// and a database whose helpers must outlive its own clean end needs one to itself alone.
fn term_target(bench: Bench) -> Seen {
    let script = r#"use POSIX; $| = 1;
        my $name = fork ? "child" : "helper";
        for my $n (10, 12, 15) {
            sigaction($n, POSIX::SigAction->new(sub { syswrite(STDOUT, "$name $n\n") }));
        }
        syswrite(STDOUT, "$name ready\n"); sleep 1 while 1"#;
    let mut init = bench.perl(&[], script);
    init.expect("child ready")?;
    init.expect("helper ready")?;
    let child = init.child()?;
    let helper = children(child).first().copied().ok_or("no helper")?;
    init.remember(helper);
    init.signal(15)?;
    init.expect("child 15")?;
    // Once the helper has answered both, no earlier signal is still on its way.
    for number in [10, 12] {
        signal(helper, number)?;
        init.expect(&format!("helper {number}"))?;
    }
    let both = init.seen().iter().any(|line| line == "helper 15");
    Ok(if both { "the child's whole group" } else { "the child" })
}
