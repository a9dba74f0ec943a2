//! The real binary around a scripted child, for tests that end at the first surprise.
//!
//! `tests/inits` owns how an init is started and listened to; here every disappointment panics.

use std::{path::PathBuf, time::Duration};

pub(crate) use super::suite::process::{Mode, children, state};
use super::suite::{
    Bench, Case,
    inits::Init,
    process::{self, Running},
};

/// Generous: the machine may be busy with something else.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Asserts one case of our own init in all its modes; returns the facts that it told.
pub(crate) fn holds(case: Case) -> Vec<&'static str> {
    let one = |mode: &Mode| {
        (case.run)(Bench { init: Init::Ours, mode: *mode })
            .unwrap_or_else(|instead| panic!("{mode:?}: {}: {instead}", case.says))
    };
    case.modes.iter().map(one).collect()
}

/// A running pilot.
pub(crate) struct Pilot(Running);

/// `navigator pilot exec FLAGS -- perl -e SCRIPT`
pub(crate) fn exec(mode: Mode, flags: &[&str], script: &str) -> Pilot {
    Pilot(Bench { init: Init::Ours, mode }.perl(flags, script))
}

/// Any command as PID 1 or as a subreaper.
pub(crate) fn start(mode: Mode, argv: &[&str]) -> Pilot {
    let argv: Vec<String> = argv.iter().map(|&word| word.to_owned()).collect();
    Pilot(Running::start(mode, &argv, DEADLINE))
}

impl Pilot {
    /// Waits until the child prints this line; lines before it are kept.
    pub(crate) fn expect(&mut self, wanted: &str) {
        told(self.0.expect(wanted));
    }

    /// Has the child printed this line?
    pub(crate) fn has_said(&mut self, line: &str) -> bool {
        self.0.seen().iter().any(|said| said == line)
    }

    pub(crate) fn signal(&self, number: i32) {
        told(self.0.signal(number));
    }

    /// Waits for the pilot's end and returns its exit code; 128+n when a signal ended it.
    pub(crate) fn exit_code(&mut self) -> i32 {
        told(self.0.exit_code())
    }

    /// The pilot's pid, as seen from here.
    pub(crate) fn pid(&self) -> i32 {
        told(self.0.pid())
    }

    /// The child's pid, as seen from here.
    pub(crate) fn child(&self) -> i32 {
        told(self.0.child())
    }
}

/// Polls until there is an answer; panics with the name of what was waited for.
pub(crate) fn wait_for<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    told(process::wait_for(DEADLINE, what, probe))
}

/// As [`wait_for`], with another deadline.
pub(crate) fn until<T>(deadline: Duration, what: &str, probe: impl FnMut() -> Option<T>) -> T {
    told(process::wait_for(deadline, what, probe))
}

pub(crate) fn signal(pid: i32, number: i32) {
    told(process::signal(pid, number));
}

fn told<T>(answer: Result<T, String>) -> T {
    answer.unwrap_or_else(|instead| panic!("{instead}"))
}

/// A folder of this test's own, removed with the value.
pub(crate) fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}
