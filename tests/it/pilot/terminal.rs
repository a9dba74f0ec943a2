//! With a terminal, the child is in front of it.

use super::{harness::holds, suite::terminal};

#[test]
fn the_child_owns_the_terminal_and_hears_control_c() {
    holds(terminal::IN_FRONT);
}
