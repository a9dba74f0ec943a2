//! Processes that lost their parents.

use super::{harness::holds, suite::orphans};

#[test]
fn ten_thousand_orphans_leave_no_zombie() {
    holds(orphans::NO_ZOMBIES);
}
