//! The life of one database node: `step(state, event) -> (state, effects)`.
//!
//! Pure: no clock, no process, no database. `runner` carries the effects out and comes back
//! with events. What cannot happen, whatever comes in whatever order (tests walk at random):
//! - two children at once, be it the database or a program that prepares its start;
//! - a start while the node is wanted Fenced or Stopped, or after it left its cluster;
//! - a restart before the wanted configuration is known to be good;
//! - a KILL that no request to end preceded;
//! - anything but silence after `Exit`.

mod decommission;
mod exchange;
mod intent;
mod stop;
mod succession;
mod times;

use std::time::Duration;

pub use self::{
    decommission::Decommissioning,
    exchange::{Attempt, Effect, Event, Timer, Want},
    times::{BACKOFF, DECOMMISSION_POLL, DECOMMISSION_RETRY, FREED_WAIT, Limits, RECHECK, SILENCE},
};
use crate::pilot::process::supervisor::Exit;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    limits: Limits,
    want: Option<Want>,
    /// The last request for a restart that was acted upon.
    restart: Option<String>,
    attempt: Attempt,
    /// Crashes in a row without having served.
    failures: u32,
    /// The node holds nothing that others lack and left its database cluster, for good.
    decommissioned: bool,
    /// The process that is being stopped was found hung.
    hung: bool,
    /// The process gave up, and is stopped to be started again like one that crashed.
    gave_up: bool,
    /// The pilot itself was asked to end.
    ending: bool,
    pub life: Life,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// No intent has been seen.
    Waiting,
    Preflight,
    /// Preflight failed; it is tried again.
    Refused,
    /// Other nodes start first.
    Turn,
    Configuring,
    /// No usable configuration; it is tried again.
    Rejected,
    /// Programs run that come before the database.
    Preparing {
        /// The programs' result is no longer wanted: the machine only waits for their end.
        cancelled: bool,
    },
    /// One of these programs failed; all of them are tried again.
    Unprepared,
    Spawning,
    Up(Up),
    Stopping {
        pid: i32,
        stage: Stage,
    },
    /// The database crashed and is started again soon.
    Backoff,
    Held(Held),
    Exited(u8),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Up {
    pub pid: i32,
    /// The database answered at least once.
    pub answered: bool,
    /// The node served at least once.
    pub served: bool,
    /// The data volume was full when it was last looked at.
    pub full: bool,
    pub serving: bool,
    pub decommissioning: Option<Decommissioning>,
    /// The database fell silent, was sent CONT, and was asked what it is doing where it can say
    /// that.
    pub suspected: bool,
    /// A restart was asked for, and waits until the configuration is known to be good.
    pub restart: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Flush,
    /// The process was sent this signal of its stop plan.
    Signal(usize),
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Stopped,
    Fenced,
    Decommissioned,
}

impl State {
    /// `decommissioned`: an earlier pilot wrote down that the node left its cluster.
    pub fn new(limits: Limits, decommissioned: bool) -> Self {
        Self {
            limits,
            want: None,
            restart: None,
            attempt: 0,
            failures: 0,
            decommissioned,
            hung: false,
            gave_up: false,
            ending: false,
            life: Life::Waiting,
        }
    }

    /// The child's pid, while there is one.
    pub fn pid(&self) -> Option<i32> {
        match &self.life {
            Life::Up(up) => Some(up.pid),
            Life::Stopping { pid, .. } => Some(*pid),
            _ => None,
        }
    }

    /// Is this the latest attempt or validation?
    pub fn is_latest(&self, attempt: Attempt) -> bool {
        self.attempt == attempt
    }

    pub fn want(&self) -> Option<Want> {
        self.want
    }

    /// The node holds nothing that others lack, left its database cluster for good, and its
    /// process is gone or on its way out with the pilot.
    pub fn is_gone(&self) -> bool {
        let running = matches!(self.life, Life::Up(_) | Life::Stopping { .. });
        self.decommissioned && (self.ending || !running)
    }

    /// The programs of this attempt run, or were just cancelled.
    pub fn is_preparing(&self, attempt: Attempt) -> bool {
        matches!(self.life, Life::Preparing { .. }) && self.attempt == attempt
    }

    /// Did the node leave its cluster, by what an earlier pilot wrote down or this one saw?
    pub fn is_decommissioned(&self) -> bool {
        self.decommissioned
    }

    /// Is the process stopped because it gave up?
    pub fn gave_up(&self) -> bool {
        self.gave_up
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub fn is_ending(&self) -> bool {
        self.ending
    }

    /// Takes one event. Events that do not fit the present life are late answers, and dropped.
    #[must_use]
    pub fn step(mut self, event: Event) -> (Self, Vec<Effect>) {
        let mut effects = Vec::new();
        if !matches!(self.life, Life::Exited(_)) {
            self.take(event, &mut effects);
        }
        (self, effects)
    }

    fn take(&mut self, event: Event, effects: &mut Vec<Effect>) {
        let attempt = self.attempt;
        match (event, &mut self.life) {
            (Event::Intent { want, restart, changed }, _) => {
                self.intent(want, restart, changed, effects);
            }
            (Event::SilenceLimit(limit), life) => {
                self.limits.silence = limit;
                if matches!(life, Life::Up(up) if up.answered && !up.suspected) {
                    effects.push(Effect::Arm(Timer::Hung, limit));
                }
            }
            (Event::Signal(signal), _) => self.signal(signal, effects),
            (Event::Decommissioned, _) => self.decommissioned = true,
            (Event::DecommissionRecorded, _) => self.recorded(effects),

            (Event::PreflightPassed(of), Life::Preflight) if of == attempt => {
                self.life = Life::Turn;
                effects.push(Effect::TakeTurn(attempt));
            }
            (Event::PreflightFailed(of), Life::Preflight | Life::Turn) if of == attempt => {
                self.life = Life::Refused;
                effects.push(Effect::Arm(Timer::Recheck, RECHECK));
            }
            (Event::Turn { attempt: of, may_found }, Life::Turn) if of == attempt => {
                self.life = Life::Configuring;
                effects.push(Effect::Configure { attempt, may_found });
            }
            (Event::Configured(of), Life::Configuring) if of == attempt => {
                self.life = Life::Preparing { cancelled: false };
                effects.push(Effect::Prepare(attempt));
            }
            (Event::Prepared(of) | Event::NotPrepared(of), Life::Preparing { cancelled: true })
                if of == attempt =>
            {
                if self.ending {
                    self.exit(0, effects);
                } else {
                    self.begin(effects);
                }
            }
            (Event::Prepared(of), Life::Preparing { .. }) if of == attempt => {
                self.life = Life::Spawning;
                effects.push(Effect::Spawn);
            }
            (Event::NotPrepared(of), Life::Preparing { .. }) if of == attempt => {
                self.life = Life::Unprepared;
                let delay = self.next_delay().max(RECHECK);
                effects.push(Effect::Arm(Timer::Recheck, delay));
            }
            (Event::NotConfigured(of), Life::Configuring) if of == attempt => {
                self.life = Life::Rejected;
                effects.push(Effect::Arm(Timer::Recheck, RECHECK));
            }
            (Event::Timer(Timer::Recheck), Life::Refused | Life::Rejected | Life::Unprepared)
            | (Event::Timer(Timer::Backoff), Life::Backoff) => self.begin(effects),

            (Event::Spawned { pid }, Life::Spawning) => {
                self.life = Life::Up(Up {
                    pid,
                    answered: false,
                    served: false,
                    full: false,
                    serving: false,
                    decommissioning: None,
                    suspected: false,
                    restart: false,
                });
                // The intent may have changed while the process was being started.
                if self.ending || matches!(self.want, Some(Want::Stopped | Want::Fenced)) {
                    self.terminate(pid, effects);
                }
            }
            (Event::SpawnFailed, Life::Spawning) => self.crashed(effects),
            (Event::Exited(exit), Life::Up(up)) => {
                let pid = up.pid;
                if up.serving {
                    self.failures = 0;
                }
                self.ended(pid, exit, effects);
                if matches!(self.life, Life::Up(_)) {
                    self.crashed(effects);
                }
            }
            (Event::Exited(exit), Life::Stopping { pid, .. }) => {
                let pid = *pid;
                let gave_up = std::mem::take(&mut self.gave_up);
                self.ended(pid, exit, effects);
                match self.life {
                    Life::Stopping { .. } if gave_up => self.crashed(effects),
                    Life::Stopping { .. } => {
                        self.failures = 0;
                        self.begin(effects);
                    }
                    _ => {}
                }
            }
            (Event::Validated { attempt: of, good }, Life::Up(up)) if of == attempt => {
                if !good {
                    effects.push(Effect::Arm(Timer::Recheck, RECHECK));
                } else if up.restart {
                    let pid = up.pid;
                    self.stop(pid, effects);
                }
            }
            (Event::Timer(Timer::Recheck), Life::Up(_)) => self.validate(effects),
            (Event::Space { full }, Life::Up(up)) => {
                let freed = std::mem::replace(&mut up.full, full) && !full;
                if freed && up.served && !up.serving {
                    effects.push(Effect::Arm(Timer::Freed, FREED_WAIT));
                }
            }
            (Event::Timer(Timer::Freed), Life::Up(up)) if !up.serving && !up.full => {
                // The database stopped serving when it could not write, and does not come back by
                // itself.
                up.restart = true;
                self.validate(effects);
            }

            (Event::Observed { alive, serving }, Life::Up(up)) => {
                up.serving = serving;
                up.served |= serving;
                if alive {
                    up.answered = true;
                    up.suspected = false;
                    effects.push(Effect::Arm(Timer::Hung, self.limits.silence));
                    self.review_decommission(effects);
                }
            }
            (Event::GaveUp, Life::Up(up)) => {
                let pid = up.pid;
                self.gave_up = true;
                self.terminate(pid, effects);
            }
            (Event::Timer(Timer::Hung), Life::Up(up)) if up.answered => {
                let pid = up.pid;
                up.serving = false;
                if up.suspected {
                    self.hung = true;
                    self.terminate(pid, effects);
                } else {
                    up.suspected = true;
                    // A stopped process acts on nothing but CONT and KILL: first CONT.
                    effects.push(Effect::Continue { pid });
                    effects.extend(self.limits.dump.map(|dump| Effect::Dump { pid, dump }));
                    effects.push(Effect::Arm(Timer::Hung, self.limits.dump_wait()));
                }
            }

            (
                event @ (Event::Timer(Timer::Decommission)
                | Event::DecommissionMoving
                | Event::DecommissionRefused
                | Event::DecommissionDone
                | Event::DecommissionCancelled
                | Event::DecommissionIrreversible
                | Event::CancelFailed),
                Life::Up(_),
            ) => self.decommission_answered(&event, effects),

            (
                Event::Flushed | Event::Timer(Timer::Flush),
                Life::Stopping { stage: Stage::Flush, .. },
            )
            | (Event::Timer(Timer::Signal), Life::Stopping { stage: Stage::Signal(_), .. }) => {
                self.press(effects);
            }
            (Event::Timer(Timer::Kill), Life::Stopping { .. }) => self.kill(effects),
            _ => {}
        }
    }

    /// Starts what is wanted, from the beginning. There is no child.
    fn begin(&mut self, effects: &mut Vec<Effect>) {
        self.attempt += 1;
        effects.extend([Effect::Disarm(Timer::Recheck), Effect::Disarm(Timer::Backoff)]);
        self.life = match self.want {
            None => Life::Waiting,
            _ if self.decommissioned => Life::Held(Held::Decommissioned),
            Some(Want::Stopped) => Life::Held(Held::Stopped),
            Some(Want::Fenced) => Life::Held(Held::Fenced),
            Some(Want::Running | Want::Decommissioned) => {
                effects.push(Effect::Preflight(self.attempt));
                Life::Preflight
            }
        };
    }

    /// Ends the programs early. The machine decides what is next when they have ended.
    fn cancel_preparation(&mut self, effects: &mut Vec<Effect>) {
        if self.life == (Life::Preparing { cancelled: false }) {
            self.life = Life::Preparing { cancelled: true };
            effects.push(Effect::CancelPreparation);
        }
    }

    fn is_held_by(&self, want: Want) -> bool {
        self.decommissioned || matches!(want, Want::Stopped | Want::Fenced)
    }

    fn crashed(&mut self, effects: &mut Vec<Effect>) {
        if self.ending {
            self.exit(0, effects);
            return;
        }
        let delay = self.next_delay();
        self.life = Life::Backoff;
        effects.push(Effect::Arm(Timer::Backoff, delay));
        if self.want.is_some_and(|want| self.is_held_by(want)) {
            self.begin(effects);
        }
    }

    /// The restart back-off: longer after each failure in a row.
    fn next_delay(&mut self) -> Duration {
        let (first, longest) = BACKOFF;
        let delay = first.saturating_mul(1 << self.failures.min(6)).min(longest);
        self.failures += 1;
        delay
    }
}

#[cfg(test)]
mod tests;
