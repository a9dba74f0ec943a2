//! What reaches the child when the pilot is signalled, and what becomes of a child that does
//! not end; the cases themselves are in `tests/inits`.

use super::{
    harness::holds,
    suite::{grace, signals},
};

#[test]
fn twenty_signals_reach_the_child_once_each() {
    holds(signals::FORWARDED);
}

#[test]
fn the_child_starts_with_default_signals_in_a_group_of_its_own() {
    holds(signals::DEFAULT_DISPOSITIONS);
    holds(signals::OWN_GROUP);
}

#[test]
fn a_burst_of_real_time_signals_is_not_merged() {
    holds(signals::REAL_TIME_BURST);
}

#[test]
fn a_second_term_reaches_the_child_too() {
    holds(signals::SECOND_TERM);
}

#[test]
fn a_term_before_the_child_is_ready_is_not_lost() {
    holds(signals::BEFORE_READY);
    holds(signals::WITHOUT_HANDLER);
}

#[test]
fn a_term_goes_to_the_child_and_not_to_its_helpers() {
    assert_eq!(holds(signals::TERM_TARGET), ["the child"; 2]);
}

#[test]
fn a_child_that_ignores_term_is_killed_two_seconds_before_the_grace_period_ends() {
    holds(grace::IGNORED_TERM);
}

#[test]
fn a_stopped_child_is_killed_at_the_deadline_too() {
    holds(grace::STOPPED_CHILD);
}

#[test]
fn a_killed_pilot_takes_its_child_along() {
    holds(grace::INIT_KILLED);
}

#[test]
fn nothing_of_the_childs_group_outlives_it() {
    holds(grace::REST_OF_GROUP);
}
