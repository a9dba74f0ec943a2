//! What the init ends with.

use std::fs;

use super::{
    Bench, Case, Seen,
    process::{MODES, Mode, ensure},
};

pub(crate) const CODES: Case = Case {
    says: "the child's exit code is the init's, 128+n for signal n",
    modes: MODES,
    without_init: true,
    run: codes,
};

pub(crate) const REQUESTED_TERM: Case = Case {
    says: "an end by the TERM that was asked for is success (a JVM's 143 becomes 0), nothing else",
    modes: MODES,
    without_init: false,
    run: requested_term,
};

pub(crate) const NOT_STARTED: Case = Case {
    says: "a missing program is 127, one that may not run 126",
    modes: &[Mode::Subreaper],
    without_init: false,
    run: not_started,
};

pub(crate) const TERMINATION_LOG: Case = Case {
    says: "the reason of a bad end is in the termination log",
    modes: &[Mode::Subreaper],
    without_init: false,
    run: termination_log,
};

fn codes(bench: Bench) -> Seen {
    let rows = [
        ("exit 0", 0),
        ("exit 1", 1),
        ("exit 42", 42),
        ("exit 143", 143),
        ("exit 255", 255),
        ("kill 15, $$; sleep 2", 143),
        ("kill 9, $$; sleep 2", 137),
        ("kill 11, $$; sleep 2", 139),
        ("kill 6, $$; sleep 2", 134),
        ("kill 34, $$; sleep 2", 162),
    ];
    let mut wrong = Vec::new();
    for (script, code) in rows {
        match bench.perl(&[], script).exit_code() {
            Ok(seen) if seen == code => {}
            Ok(seen) => wrong.push(format!("{seen} for {code}")),
            Err(error) => wrong.push(format!("{error} for {code}")),
        }
    }
    ensure(wrong.is_empty(), || wrong.join(", ")).map(|()| "")
}

fn requested_term(bench: Bench) -> Seen {
    let ready = r#"$| = 1; HANDLER; print "ready\n"; sleep 1 while 1"#;
    let rows = [
        ("", 0, "without a handler"),
        ("$SIG{TERM} = sub { exit 143 }", 0, "for the child's own 143"),
        ("$SIG{TERM} = sub { exit 0 }", 0, "for the child's own 0"),
        ("$SIG{TERM} = sub { exit 3 }", 3, "for the child's own 3"),
    ];
    let mut wrong = Vec::new();
    for (handler, code, when) in rows {
        let mut init = bench.perl(&[], &ready.replace("HANDLER", handler));
        init.expect("ready")?;
        init.signal(15)?;
        let seen = init.exit_code()?;
        if seen != code {
            wrong.push(format!("{seen} {when}"));
        }
    }
    ensure(wrong.is_empty(), || wrong.join(", ")).map(|()| "")
}

fn not_started(bench: Bench) -> Seen {
    let mut wrong = Vec::new();
    for (program, code) in [("/nonexistent/program", 127), ("/etc/passwd", 126)] {
        let seen = bench.start(&[], &[program]).exit_code()?;
        if seen != code {
            wrong.push(format!("{seen} for {code}"));
        }
    }
    ensure(wrong.is_empty(), || wrong.join(", ")).map(|()| "")
}

fn termination_log(bench: Bench) -> Seen {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("termination-log");
    fs::write(&log, "").unwrap();
    let flags = ["--termination-log", log.to_str().unwrap()];
    let code = bench.perl(&flags, "kill 11, $$; sleep 2").exit_code()?;
    ensure(code == 139, || format!("exit {code}"))?;
    let text = fs::read_to_string(&log).unwrap();
    ensure(!text.is_empty(), || "not written".to_owned())?;
    ensure(text == "perl was ended by SIGSEGV", || format!("it says {text:?}"))?;
    // A termination log that is not there is not created.
    fs::remove_file(&log).unwrap();
    bench.perl(&flags, "exit 3").exit_code()?;
    ensure(!log.exists(), || "created where there was none".to_owned()).map(|()| "")
}
