//! Processes that lost their parents.

use std::time::{Duration, Instant};

use super::harness::{MODES, children, exec_command, state};

/// Forks twice each time: the second child is an orphan at once. A small shell, because a
/// fork costs what the forking process weighs.
const ORPHANS: &str = r"trap 'exit 0' TERM; i=0
    while [ $i -lt 10000 ]; do ( : & ); i=$((i+1)); done
    echo done; while :; do sleep 1; done";

#[test]
fn ten_thousand_orphans_leave_no_zombie_after_a_second() {
    for mode in MODES {
        let mut pilot = exec_command(mode, &[], &["dash", "-c", ORPHANS]);
        pilot.expect_within(Duration::from_secs(300), "done");
        let done = Instant::now();
        loop {
            let mut zombies = children(pilot.pid());
            zombies.retain(|pid| state(*pid) == Some('Z'));
            if zombies.is_empty() {
                break;
            }
            let waited = done.elapsed();
            assert!(waited < Duration::from_secs(1), "{mode:?}: {zombies:?} after {waited:?}");
        }
        pilot.signal(15);
        assert_eq!(pilot.exit_code(), 0, "{mode:?}: the child's own status was not stolen");
    }
}
