//! With a terminal, the child hears Ctrl-C.

use super::{harness::holds, suite::terminal};

#[test]
fn the_child_hears_control_c() {
    holds(terminal::CONTROL_C);
}
