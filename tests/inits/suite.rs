//! What a database needs of its init, as cases that any init can be put to.
//!
//! One source for two readers: `tests/it/pilot` asserts every case of our own init, and
//! `main.rs` prints the table beside the others. A case never hangs: everything is waited for
//! within the init's patience, and what is left running is killed with the value.

pub(crate) mod exits;
pub(crate) mod grace;
pub(crate) mod inits;
pub(crate) mod orphans;
pub(crate) mod process;
pub(crate) mod signals;
pub(crate) mod terminal;
pub(crate) mod upgrade;

use self::{
    inits::Init,
    process::{Mode, Running},
};

/// One row of the table.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    /// The claim, as the table prints it.
    pub(crate) says: &'static str,
    pub(crate) modes: &'static [Mode],
    /// Does it mean anything when the program itself is PID 1?
    pub(crate) without_init: bool,
    pub(crate) run: fn(Bench) -> Seen,
}

/// `Ok("")`: as it should be. `Ok` with words: a fact, neither good nor bad. `Err`: what
/// happened instead.
pub(crate) type Seen = Result<&'static str, String>;

/// Where a case runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bench {
    pub(crate) init: Init,
    pub(crate) mode: Mode,
}

pub(crate) const CASES: &[&[Case]] = &[
    &[
        signals::FORWARDED,
        signals::REAL_TIME_BURST,
        signals::BEFORE_READY,
        signals::WITHOUT_HANDLER,
        signals::SECOND_TERM,
        signals::DEFAULT_DISPOSITIONS,
        signals::OWN_GROUP,
        signals::TERM_TARGET,
        terminal::CONTROL_C,
    ],
    &[grace::IGNORED_TERM, grace::STOPPED_CHILD, grace::INIT_KILLED, grace::REST_OF_GROUP],
    &[exits::CODES, exits::REQUESTED_TERM, exits::NOT_STARTED, exits::TERMINATION_LOG],
    &[orphans::NO_ZOMBIES, upgrade::KEEPS_CHILD],
];

impl Bench {
    /// Starts a Perl script under the init. Only our own init gets `flags`; others have none like
    /// them.
    pub(crate) fn perl(self, flags: &[&str], script: &str) -> Running {
        self.start(flags, &["perl", "-e", script])
    }

    pub(crate) fn start(self, flags: &[&str], command: &[&str]) -> Running {
        let argv = self.init.argv(self.mode, flags, command);
        let mut running = Running::start(self.mode, &argv, self.init.patience());
        running.is_alone = self.init == Init::None;
        running
    }
}
