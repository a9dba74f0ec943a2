//! The end of a child that does not end by itself, and what it may leave behind.

use std::time::{Duration, Instant};

use super::{
    Bench, Case, Seen,
    process::{MODES, Mode, ensure, is_gone, signal, state, wait_for},
};

/// Longer than the grace period of these cases, and shorter than the default one.
const LATE: Duration = Duration::from_secs(20);

pub(crate) const IGNORED_TERM: Case = Case {
    says: "a child that ignores TERM is killed 2 s before the grace period ends",
    modes: MODES,
    without_init: true,
    run: ignored_term,
};

pub(crate) const STOPPED_CHILD: Case = Case {
    says: "a stopped child (SIGSTOP) is killed at that time too",
    modes: &[Mode::Pid1],
    without_init: false,
    run: stopped_child,
};

pub(crate) const INIT_KILLED: Case = Case {
    says: "the child dies with a killed init (as PID 1 the kernel sees to it)",
    modes: &[Mode::Subreaper],
    without_init: false,
    run: init_killed,
};

pub(crate) const REST_OF_GROUP: Case = Case {
    says: "what is left of the child's group is ended with it (as PID 1 likewise)",
    modes: &[Mode::Subreaper],
    without_init: false,
    run: rest_of_group,
};

fn ignored_term(bench: Bench) -> Seen {
    let script = r#"$SIG{TERM} = "IGNORE"; $| = 1; print "ready\n"; sleep 1 while 1"#;
    let mut init = bench.perl(&["--termination-grace-period", "3"], script);
    init.expect("ready")?;
    let asked = Instant::now();
    init.signal(15)?;
    let code = init.exit_code()?;
    ensure(code == 137, || format!("exit {code}"))?;
    let took = asked.elapsed();
    let early = took.as_millis() < 990;
    ensure(!early, || format!("killed after {took:?}, one second was left"))?;
    // A later kill is of another grace period, or of none: a busy machine is not so late.
    ensure(took < LATE, || format!("killed after {took:?}, after one second")).map(|()| "")
}

fn stopped_child(bench: Bench) -> Seen {
    let script = r#"$| = 1; print "ready\n"; sleep 1 while 1"#;
    let mut init = bench.perl(&["--termination-grace-period", "3"], script);
    init.expect("ready")?;
    let child = init.child()?;
    signal(child, 19)?;
    // Of two pending signals the kernel delivers the lower number first.
    let patience = bench.init.patience();
    wait_for(patience, "the stopped child", || (state(child) == Some('T')).then_some(()))?;
    init.signal(15)?;
    let code = init.exit_code()?;
    ensure(code == 137, || format!("exit {code}")).map(|()| "")
}

fn init_killed(bench: Bench) -> Seen {
    let script = r#"$SIG{TERM} = "IGNORE"; $| = 1; print "ready\n"; sleep 1 while 1"#;
    let mut init = bench.perl(&[], script);
    init.expect("ready")?;
    let child = init.child()?;
    init.signal(9)?;
    wait_for(bench.init.patience(), "its end", || is_gone(child).then_some(()))
        .map(|()| "")
        .map_err(|_| "the child runs on".to_owned())
}

/// A helper that would end on TERM, and one that would not; the child ends without them.
fn rest_of_group(bench: Bench) -> Seen {
    let script = r#"$| = 1;
        for my $kind ("polite", "stubborn") {
            next if fork;
            $SIG{TERM} = "IGNORE" if $kind eq "stubborn";
            syswrite(STDOUT, "$kind $$\n"); sleep 1 while 1;
        }
        <STDIN>; exit 0;"#;
    let mut init = bench.perl(&[], script);
    let mut helpers = Vec::new();
    for kind in ["polite ", "stubborn "] {
        let pid: i32 = init.rest_of(kind)?.parse().map_err(|error| format!("{error}"))?;
        init.remember(pid);
        helpers.push((kind.trim_end(), pid));
    }
    init.type_in(b"\n");
    let code = init.exit_code()?;
    ensure(code == 0, || format!("exit {code}"))?;
    let all = wait_for(bench.init.patience(), "their ends", || {
        helpers.iter().all(|(_, pid)| is_gone(*pid)).then_some(())
    });
    let left: Vec<&str> =
        helpers.iter().filter(|(_, pid)| !is_gone(*pid)).map(|(kind, _)| *kind).collect();
    match (all, left.as_slice()) {
        (Ok(()), _) | (_, []) => Ok(""),
        (_, ["stubborn"]) => Err("what ignores TERM runs on".to_owned()),
        (_, _) => Err("it runs on".to_owned()),
    }
}
