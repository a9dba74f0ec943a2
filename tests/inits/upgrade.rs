//! A new program for the init, without a new process for the child.

use std::{fs, os::unix::fs::MetadataExt};

use super::{
    Bench, Case, Seen,
    inits::Init,
    process::{MODES, Running, ensure, wait_for},
};

pub(crate) const KEEPS_CHILD: Case = Case {
    says: "its program is replaced while the child runs on under its pid",
    modes: MODES,
    without_init: false,
    run: keeps_child,
};

/// Once is enough to compare; `tests/it/pilot/takeover.rs` does it a hundred times.
fn keeps_child(bench: Bench) -> Seen {
    if bench.init != Init::Ours {
        return Err("cannot".to_owned());
    }
    // Beside the binary: one of the two is a link to it.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (program, next) = (folder.path().join("navigator"), folder.path().join("next"));
    let script = r#"$| = 1; $SIG{USR1} = sub { print "here\n" }; print "ready\n"; sleep 1 while 1"#;
    let flags = ["--takeover-interval", "0.02"];
    let mut argv = bench.init.argv(bench.mode, &flags, &["perl", "-e", script]);
    fs::hard_link(&argv[0], &program).unwrap();
    fs::copy(&argv[0], &next).unwrap();
    argv[0] = program.display().to_string();
    let mut init = Running::start(bench.mode, &argv, bench.init.patience());
    init.expect("ready")?;
    let (pid, child) = (init.pid()?, init.child()?);
    let wanted = fs::metadata(&next).unwrap().ino();
    fs::rename(next, program).unwrap();
    wait_for(bench.init.patience(), "the other program", || {
        let runs = fs::metadata(format!("/proc/{pid}/exe")).ok()?.ino();
        (runs == wanted).then_some(())
    })?;
    init.signal(10)?;
    init.expect("here")?;
    let now = init.child()?;
    ensure(now == child, || format!("child {now} instead of {child}"))?;
    init.signal(15)?;
    let code = init.exit_code()?;
    ensure(code == 0, || format!("exit {code}")).map(|()| "")
}
