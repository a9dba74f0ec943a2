//! With a terminal, the child hears Ctrl-C.

use super::{
    Bench, Case, Seen,
    process::{Mode, Running, ensure},
};

pub(crate) const CONTROL_C: Case = Case {
    says: "with a terminal, the child hears Ctrl-C",
    modes: &[Mode::Subreaper],
    without_init: false,
    run: control_c,
};

const CHILD: &str = r#"$| = 1;
    $SIG{INT} = sub { print "interrupted\n"; exit 5 }; print "ready\n"; sleep 1 while 1"#;

fn control_c(bench: Bench) -> Seen {
    let argv = bench.init.argv(bench.mode, &[], &["perl", "-e", CHILD]);
    let line = argv.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    // A shell that stays would hear Ctrl-C, too, and some then end as if it had ended the command.
    let line = format!("exec {line}");
    // `script` gives its command a terminal and types what it reads.
    let script = ["script", "--quiet", "--return", "--command", &line, "/dev/null"];
    let mut script = Running::start(bench.mode, &script.map(str::to_owned), bench.init.patience());
    script.expect("ready")?;
    script.type_in(b"\x03");
    let code = script.exit_code()?;
    ensure(code == 5, || format!("exit {code}"))?;
    let heard = script.output().iter().any(|line| line.ends_with("interrupted"));
    ensure(heard, || "Ctrl-C is lost".to_owned()).map(|()| "")
}
