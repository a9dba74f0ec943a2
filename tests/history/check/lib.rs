//! Judges a recorded history: what clients and watchers of an API server saw, against what it
//! promises. Pure: reads nothing but the history. `tests/it/history.rs` holds its tests.

mod floors;
mod history;
mod linear;
mod lists;
mod tape;
mod watches;
mod wiped;

use std::fmt;

pub(crate) use self::history::{
    Asked, At, Ended, Filter, History, Line, Moment, Operation, Outcome, Record, Seen, Start,
    Stream, Version,
};
use self::{floors::Floors, tape::Tape};

/// What is promised. The words are etcd's where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Guarantee {
    /// Operations on one object look as if they happened one after another, each while it was
    /// asked.
    Linearizable,
    /// An object that was seen was written, and looks the same to all clients under one revision.
    Genuine,
    /// A revision is one change of one object.
    Atomic,
    /// A later answer or write has the higher revision, for all clients and over all objects.
    Monotonic,
    /// An answer is never older than the revision that was asked for.
    Fresh,
    /// A list, in pages or not, is the state at its revision.
    Snapshot,
    /// Events of a watch come in the order of their revisions.
    Ordered,
    /// No event comes twice.
    Unique,
    /// No event is left out between where a watch began and what it last said.
    Reliable,
    /// A watch goes on from any revision that it gave, as long as that is kept.
    Resumable,
    /// A bookmark comes after everything up to its revision.
    Bookmarkable,
    /// ADDED, MODIFIED and DELETED are right for a watcher with a selector.
    Filtered,
    /// A deletion carries the last state under its own revision.
    LastState,
    /// A server says nothing for a store that was replaced.
    Refusing,
}

/// One broken promise, with what shows it.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) guarantee: Guarantee,
    pub(crate) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.guarantee, self.what)
    }
}

/// Collects what is wrong.
#[derive(Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, guarantee: Guarantee, what: String) {
        self.0.push(Violation { guarantee, what });
    }

    fn unless(&mut self, holds: bool, guarantee: Guarantee, what: impl FnOnce() -> String) {
        if !holds {
            self.add(guarantee, what());
        }
    }
}

/// Everything that is wrong with a history.
pub(crate) fn check(history: &History) -> Vec<Violation> {
    let mut findings = Findings::default();
    let tape = Tape::read(history, &mut findings);
    let floors = Floors::read(history);
    floors.check(history, &mut findings);
    linear::check(history, &tape, &mut findings);
    lists::check(history, &tape, &mut findings);
    watches::check(history, &tape, &floors, &mut findings);
    wiped::check(history, &tape, &mut findings);
    findings.0
}
