//! Processes that lost their parents.

use std::time::{Duration, Instant};

use super::{
    Bench, Case, Seen,
    process::{MODES, children, ensure, signal, state},
};

pub(crate) const NO_ZOMBIES: Case = Case {
    says: "10 000 orphans leave no zombie, and the child's own status is not stolen",
    modes: MODES,
    without_init: true,
    run: no_zombies,
};

/// A small shell forks twice each time, because a fork costs what the forking process weighs:
/// the second child is an orphan at once. The child waits for its shell alone, as a database would.
const ORPHANS: &str = r#"$| = 1; $SIG{TERM} = sub { exit 7 };
    system("dash", "-c", 'i=0; while [ $i -lt 10000 ]; do ( : & ); i=$((i+1)); done; exit 5');
    print "shell ", $? >> 8, "\n"; sleep 1 while 1"#;

fn no_zombies(bench: Bench) -> Seen {
    let mut init = bench.perl(&[], ORPHANS);
    init.expect_within(Duration::from_secs(300), "shell 5")?;
    let (done, pid) = (Instant::now(), init.pid()?);
    loop {
        let zombies = children(pid).into_iter().filter(|pid| state(*pid) == Some('Z')).count();
        if zombies == 0 {
            break;
        }
        let waited = done.elapsed();
        // The time depends on the machine, which may be busy.
        ensure(waited < bench.init.patience(), || {
            // Without reaping there are thousands of zombies, but not all: pids may run out before.
            format!("{} zombies", if zombies > 100 { "thousands of" } else { "some" })
        })?;
    }
    signal(pid, 15)?;
    let code = init.exit_code()?;
    ensure(code == 7, || format!("exit {code} for the child's 7")).map(|()| "")
}
