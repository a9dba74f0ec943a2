//! Rows: an event, and its effects. Walks: events at random, and what must never happen.

use nix::libc;
use proptest::prelude::*;

use super::*;
use crate::pilot::driver::{Dump, StopPlan};

const DUMP: Dump = Dump { signal: libc::SIGQUIT, children: "java" };
/// Limits of a database that flushes and can say what it is doing.
const LIMITS: Limits = Limits {
    grace: Duration::from_secs(300),
    stop: StopPlan { flush: Duration::from_secs(240), success: &[143], ..StopPlan::DEFAULT },
    silence: SILENCE,
    dump: Some(DUMP),
};
const TERM: i32 = libc::SIGTERM;
const KILL: i32 = libc::SIGKILL;

fn want(want: Want) -> Event {
    Event::Intent { want, restart: None, changed: false }
}

fn exited(code: i32) -> Event {
    Event::Exited(Exit { code: Some(code), signal: None })
}

/// Runs the events and returns the last state with the effects of the last event, without
/// the timers.
fn after(events: impl IntoIterator<Item = Event>) -> (State, Vec<Effect>) {
    after_of(LIMITS, events)
}

/// Runs the events as `after` does, for another database.
fn after_of(limits: Limits, events: impl IntoIterator<Item = Event>) -> (State, Vec<Effect>) {
    let mut state = State::new(limits, false);
    let mut last = Vec::new();
    for event in events {
        (state, last) = state.step(event);
    }
    last.retain(|effect| !matches!(effect, Effect::Arm(..) | Effect::Disarm(_)));
    (state, last)
}

#[test]
fn another_limit_of_silence_counts_at_once_and_from_then_on() {
    let hung = |limit| Effect::Arm(Timer::Hung, Duration::from_secs(limit));
    let begin = || up().into_iter().fold(State::new(LIMITS, false), |state, one| state.step(one).0);
    let limit = || Event::SilenceLimit(Duration::from_secs(300));
    let (state, effects) = begin().step(limit());
    assert_eq!(effects, [hung(300)]);
    let (state, effects) = state.step(Event::Observed { alive: true, serving: true });
    assert!(effects.contains(&hung(300)), "{effects:?}");
    let (suspected, _) = state.step(Event::Timer(Timer::Hung));
    assert_eq!(suspected.step(limit()).1, [], "what was begun is gone through with");
    assert_eq!(State::new(LIMITS, false).step(limit()).1, [], "nothing runs");
}

/// Events that bring a node up with pid 7.
fn up() -> Vec<Event> {
    vec![
        want(Want::Running),
        Event::PreflightPassed(1),
        Event::Turn { attempt: 1, may_found: true },
        Event::Configured(1),
        Event::Prepared(1),
        Event::Spawned { pid: 7 },
        Event::Observed { alive: true, serving: true },
    ]
}

fn up_and(more: impl IntoIterator<Item = Event>) -> (State, Vec<Effect>) {
    after(up().into_iter().chain(more))
}

#[test]
fn a_node_starts_in_order() {
    let rows = [
        (1, vec![Effect::Preflight(1)]),
        (2, vec![Effect::TakeTurn(1)]),
        (3, vec![Effect::Configure { attempt: 1, may_found: true }]),
        (4, vec![Effect::Prepare(1)]),
        (5, vec![Effect::Spawn]),
        (6, vec![]),
    ];
    for (count, effects) in rows {
        assert_eq!(after(up().into_iter().take(count)).1, effects, "after {count} events");
    }
}

#[test]
fn a_term_flushes_then_terminates_then_exits_with_success() {
    let (state, effects) = up_and([Event::Signal(TERM)]);
    assert_eq!(effects, [Effect::Flush]);
    assert_eq!(state.life, Life::Stopping { pid: 7, stage: Stage::Flush });
    let (_, effects) = up_and([Event::Signal(TERM), Event::Flushed]);
    assert_eq!(effects, [Effect::Signal { pid: 7, signal: TERM }]);
    let (state, _) = up_and([Event::Signal(TERM), Event::Flushed, exited(143)]);
    assert_eq!(state.life, Life::Exited(0));
    let (state, _) = up_and([Event::Signal(TERM), Event::Flushed, exited(3)]);
    assert_eq!(state.life, Life::Exited(3));
}

#[test]
fn a_second_term_skips_the_flush() {
    let (_, effects) = up_and([Event::Signal(TERM), Event::Signal(TERM)]);
    assert_eq!(effects, [Effect::Signal { pid: 7, signal: TERM }]);
}

#[test]
fn a_flush_that_does_not_end_is_followed_by_term_and_kill() {
    let stuck = [Event::Signal(TERM), Event::Timer(Timer::Flush)];
    assert_eq!(up_and(stuck).1, [Effect::Signal { pid: 7, signal: TERM }]);
    let stuck = [Event::Signal(TERM), Event::Timer(Timer::Flush), Event::Timer(Timer::Kill)];
    assert_eq!(up_and(stuck).1, [Effect::SignalGroup { pid: 7, signal: KILL }]);
}

#[test]
fn the_kill_comes_two_seconds_before_the_grace_period_ends_and_the_flush_leaves_time_for_term() {
    let (state, _) = up_and([]);
    let (_, effects) = state.step(Event::Signal(TERM));
    assert!(effects.contains(&Effect::Arm(Timer::Kill, Duration::from_secs(298))));
    assert!(effects.contains(&Effect::Arm(Timer::Flush, Duration::from_millis(223_500))));
}

#[test]
fn a_term_during_a_restart_restarts_the_clock_and_ends_the_pilot() {
    let (state, effects) = up_and([restart("t1"), validated(2, true)]);
    assert_eq!(effects, [Effect::Flush]);
    let (state, effects) = state.step(Event::Signal(TERM));
    assert_eq!(effects, [Effect::Arm(Timer::Kill, Duration::from_secs(298))]);
    let (state, _) = state.step(Event::Flushed);
    let (state, _) = state.step(exited(143));
    assert_eq!(state.life, Life::Exited(0));
}

fn restart(token: &str) -> Event {
    Event::Intent { want: Want::Running, restart: Some(token.into()), changed: true }
}

fn validated(attempt: Attempt, good: bool) -> Event {
    Event::Validated { attempt, good }
}

#[test]
fn one_request_for_a_restart_restarts_once() {
    let (_, effects) = up_and([restart("t1"), validated(2, true), Event::Flushed, exited(143)]);
    assert_eq!(effects, [Effect::SignalGroup { pid: 7, signal: KILL }, Effect::Preflight(3)]);
    // A request that is there when the pilot starts was acted upon by the start.
    let mut first = up();
    first[0] = restart("t0");
    let (state, effects) = after(first.into_iter().chain([restart("t0"), validated(2, true)]));
    assert_eq!((effects, state.pid()), (vec![], Some(7)));
}

#[test]
fn a_restart_waits_until_the_configuration_is_known_to_be_good() {
    let (state, effects) = up_and([restart("t1")]);
    assert_eq!((effects, state.pid()), (vec![Effect::Validate(2)], Some(7)));
    let (state, _) = state.step(validated(2, false));
    assert!(matches!(state.life, Life::Up(_)), "a rejected one leaves the process alone");
    // The configuration may become good without a new intent.
    let (again, effects) = state.clone().step(Event::Timer(Timer::Recheck));
    assert!(effects.contains(&Effect::Validate(3)), "{effects:?}");
    assert!(matches!(again.step(validated(3, true)).0.life, Life::Stopping { .. }));
    // Or a person corrects it; the earlier validation is then of no interest, the request stands.
    let (state, effects) = state.step(restart("t1"));
    assert!(effects.contains(&Effect::Validate(3)), "{effects:?}");
    let (state, _) = state.step(validated(2, true));
    assert!(matches!(state.life, Life::Up(_)));
    assert!(matches!(state.step(validated(3, true)).0.life, Life::Stopping { .. }));
}

#[test]
fn a_database_that_a_full_volume_silenced_is_restarted_once_there_is_room() {
    let space = |full| Event::Space { full };
    let silent = Event::Observed { alive: true, serving: false };
    let (state, effects) = up_and([space(true), silent, Event::Timer(Timer::Freed)]);
    assert_eq!((effects, state.pid()), (vec![], Some(7)), "not while it is full");
    let (state, effects) = state.step(space(false));
    assert!(effects.contains(&Effect::Arm(Timer::Freed, FREED_WAIT)), "{effects:?}");
    // The database may serve again by itself.
    let serving = Event::Observed { alive: true, serving: true };
    let (well, _) = state.clone().step(serving);
    assert_eq!(well.step(Event::Timer(Timer::Freed)).1, []);
    let (state, effects) = state.step(Event::Timer(Timer::Freed));
    assert!(effects.contains(&Effect::Validate(2)), "{effects:?}");
    assert!(matches!(state.step(validated(2, true)).0.life, Life::Stopping { .. }));
    // A database that served all the time, or never did, is left alone.
    assert_eq!(up_and([space(true), space(false)]).1, []);
}

#[test]
fn a_good_configuration_alone_restarts_nothing() {
    let changed = Event::Intent { want: Want::Running, restart: None, changed: true };
    let (state, effects) = up_and([changed, validated(2, true)]);
    assert_eq!((effects, state.pid()), (vec![], Some(7)));
}

#[test]
fn a_crash_is_backed_off_and_longer_each_time() {
    let (mut state, _) = after(up().into_iter().take(6));
    let mut delays = Vec::new();
    for attempt in 2..10 {
        let (crashed, effects) = state.step(exited(1));
        delays.extend(effects.iter().filter_map(|effect| match effect {
            Effect::Arm(Timer::Backoff, delay) => Some(delay.as_secs()),
            _ => None,
        }));
        state = crashed;
        for event in [
            Event::Timer(Timer::Backoff),
            Event::PreflightPassed(attempt),
            Event::Turn { attempt, may_found: false },
            Event::Configured(attempt),
            Event::Prepared(attempt),
            Event::Spawned { pid: 8 },
        ] {
            (state, _) = state.step(event);
        }
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
}

#[test]
fn a_fenced_node_is_stopped_and_stays_down_until_it_is_wanted_again() {
    let (state, _) = up_and([want(Want::Fenced), Event::Flushed, exited(143)]);
    assert_eq!(state.life, Life::Held(Held::Fenced));
    let (state, effects) = state.step(want(Want::Fenced));
    assert_eq!(effects, []);
    let (state, _) = state.step(want(Want::Running));
    assert_eq!(state.life, Life::Preflight);
    let (state, _) = state.step(Event::Signal(TERM));
    assert_eq!(state.life, Life::Exited(0));
}

#[test]
fn a_decommission_is_polled_to_its_end_and_is_final() {
    let (state, effects) = up_and([want(Want::Decommissioned)]);
    assert_eq!(effects, [Effect::Decommission]);
    let (state, _) = state.step(Event::DecommissionMoving);
    let (state, effects) = state.step(Event::Timer(Timer::Decommission));
    assert_eq!(effects, [Effect::Decommission]);
    let (state, effects) = state.step(Event::DecommissionDone);
    assert_eq!(effects, [Effect::RecordDecommissioned], "it is stopped when that is written down");
    for early in [
        Event::Timer(Timer::Decommission),
        Event::DecommissionMoving,
        Event::DecommissionCancelled,
        Event::Observed { alive: true, serving: false },
        want(Want::Running),
        want(Want::Stopped),
    ] {
        let (state, effects) = state.clone().step(early.clone());
        let arms = |effect: &Effect| matches!(effect, Effect::Arm(..));
        assert!(effects.iter().all(arms) && state.pid() == Some(7), "{early:?}: {effects:?}");
    }
    let crashed = state.clone().step(exited(137)).0;
    assert_eq!(crashed.life, Life::Held(Held::Decommissioned));
    let (state, effects) = state.step(Event::DecommissionRecorded);
    assert!(effects.contains(&Effect::Signal { pid: 7, signal: TERM }), "{effects:?}");
    let (state, _) = state.step(exited(143));
    assert_eq!(state.life, Life::Held(Held::Decommissioned));
    let (state, _) = state.step(want(Want::Running));
    assert_eq!(state.life, Life::Held(Held::Decommissioned));
}

#[test]
fn a_decommission_can_be_taken_back_and_resumes_after_a_crash() {
    let (state, effects) = up_and([want(Want::Decommissioned), want(Want::Running)]);
    assert_eq!(effects, [], "it is being asked to leave");
    let (state, effects) = state.step(Event::DecommissionRefused);
    assert_eq!(effects, [Effect::CancelDecommission]);
    let (state, _) = state.step(Event::CancelFailed);
    let (state, effects) = state.step(Event::Timer(Timer::Decommission));
    assert_eq!(effects, [Effect::CancelDecommission]);
    let (state, _) = state.step(Event::DecommissionCancelled);
    assert!(!state.is_decommissioning());
    let (state, _) = up_and([want(Want::Decommissioned), exited(137)]);
    assert_eq!(state.life, Life::Backoff);
    let again = [
        Event::Timer(Timer::Backoff),
        Event::PreflightPassed(2),
        Event::Turn { attempt: 2, may_found: false },
        Event::Configured(2),
        Event::Prepared(2),
        Event::Spawned { pid: 8 },
    ];
    let state = again.into_iter().fold(state, |state, event| state.step(event).0);
    let (_, effects) = state.step(Event::Observed { alive: true, serving: false });
    assert!(effects.contains(&Effect::Decommission), "{effects:?}");
}

#[test]
fn a_pilot_that_finds_its_node_gone_from_the_cluster_never_starts_it() {
    let (state, effects) = State::new(LIMITS, true).step(want(Want::Running));
    assert_eq!(state.life, Life::Held(Held::Decommissioned));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Preflight(_))));
}

#[test]
fn a_silent_database_is_continued_and_dumped_before_it_is_restarted() {
    let (state, effects) = up_and([Event::Timer(Timer::Hung)]);
    assert_eq!(effects, [Effect::Continue { pid: 7 }, Effect::Dump { pid: 7, dump: DUMP }]);
    let (woken, _) = state.clone().step(Event::Observed { alive: true, serving: true });
    assert!(matches!(woken.life, Life::Up(Up { suspected: false, .. })));
    let (state, _) = state.step(Event::Timer(Timer::Hung));
    assert_eq!(state.life, Life::Stopping { pid: 7, stage: Stage::Signal(0) });
}

#[test]
fn a_hung_database_has_thirty_seconds_and_the_pilot_that_is_told_to_end_meanwhile_no_more() {
    let (state, _) = up_and([Event::Timer(Timer::Hung)]);
    let (state, effects) = state.step(Event::Timer(Timer::Hung));
    let kill = Effect::Arm(Timer::Kill, Duration::from_secs(30));
    assert!(effects.contains(&kill), "{effects:?}");
    let (state, effects) = state.step(Event::Signal(TERM));
    assert_eq!(effects, [kill]);
    let (state, _) = state.step(exited(143));
    assert_eq!(state.life, Life::Exited(0));
    // The next process that is stopped has the whole grace period.
    let (state, _) = up_and([Event::Timer(Timer::Hung), Event::Timer(Timer::Hung), exited(143)]);
    let again = [
        Event::PreflightPassed(2),
        Event::Turn { attempt: 2, may_found: true },
        Event::Configured(2),
        Event::Prepared(2),
        Event::Spawned { pid: 8 },
    ];
    let state = again.into_iter().fold(state, |state, event| state.step(event).0);
    let (_, effects) = state.step(Event::Signal(TERM));
    assert!(effects.contains(&Effect::Arm(Timer::Kill, Duration::from_secs(298))), "{effects:?}");
}

#[test]
fn a_process_that_gave_up_is_stopped_without_a_flush_and_started_again_ever_later() {
    let (state, effects) = up_and([Event::GaveUp]);
    assert_eq!(effects, [Effect::Signal { pid: 7, signal: TERM }]);
    let (state, effects) = state.step(exited(143));
    assert!(effects.contains(&Effect::Arm(Timer::Backoff, Duration::from_secs(1))), "{effects:?}");
    assert_eq!((state.life, state.failures), (Life::Backoff, 1));
    let (state, _) = up_and([Event::GaveUp, Event::Signal(TERM), exited(143)]);
    assert_eq!(state.life, Life::Exited(0), "its pilot was told to end");
    let (state, _) = up_and([Event::GaveUp, want(Want::Stopped), exited(143)]);
    assert_eq!(state.life, Life::Held(Held::Stopped));
}

/// Limits of a database that does not flush and cannot say what it is doing.
const PLAIN: Limits = Limits { stop: StopPlan::DEFAULT, dump: None, ..LIMITS };

#[test]
fn a_database_that_says_nothing_is_sent_term_and_kill_and_nothing_else() {
    let plain = |more: &[Event]| after_of(PLAIN, up().into_iter().chain(more.iter().cloned()));
    let (state, effects) = plain(&[Event::Timer(Timer::Hung)]);
    assert_eq!(effects, [Effect::Continue { pid: 7 }], "no signal that may end it");
    let (state, _) = state.step(Event::Timer(Timer::Hung));
    assert_eq!(state.life, Life::Stopping { pid: 7, stage: Stage::Signal(0) });
    let term = Event::Signal(TERM);
    assert_eq!(plain(std::slice::from_ref(&term)).1, [Effect::Signal { pid: 7, signal: TERM }]);
    let kill = Event::Timer(Timer::Kill);
    assert_eq!(plain(&[term.clone(), kill]).1, [Effect::SignalGroup { pid: 7, signal: KILL }]);
    for (code, answer) in [(0, 0), (143, 143), (1, 1)] {
        let (state, _) = plain(&[term.clone(), exited(code)]);
        assert_eq!(state.life, Life::Exited(answer));
    }
}

#[test]
fn the_signals_of_a_stop_are_the_databases_and_each_has_its_time() {
    const INT: i32 = libc::SIGINT;
    const QUIT: i32 = libc::SIGQUIT;
    const THEN: [(Duration, i32); 2] =
        [(Duration::from_secs(10), INT), (Duration::from_secs(200), QUIT)];
    let stop = StopPlan { then: &THEN, success: &[2], ..StopPlan::DEFAULT };
    let limits = Limits { stop, ..PLAIN };
    let all = |state: State, event: Event| state.step(event);
    let (state, _) = after_of(limits, up());
    let (state, effects) = all(state, Event::Signal(TERM));
    let sent = |signal| Effect::Signal { pid: 7, signal };
    assert!(effects.contains(&sent(TERM)), "{effects:?}");
    assert!(effects.contains(&Effect::Arm(Timer::Signal, Duration::from_secs(10))), "{effects:?}");
    let (state, effects) = all(state, Event::Timer(Timer::Signal));
    // A third of 298 s: the last one must have some time, too.
    let third = Duration::from_secs(298) / 3;
    assert_eq!(effects, [sent(INT), Effect::Arm(Timer::Signal, third)]);
    // A further TERM skips the wait: it brings the next signal, and after the last one that again.
    let (state, effects) = all(state, Event::Signal(TERM));
    assert_eq!(effects, [sent(QUIT)]);
    let (state, effects) = all(state, Event::Signal(TERM));
    assert_eq!(effects, [sent(QUIT)]);
    assert_eq!(all(state.clone(), exited(2)).0.life, Life::Exited(0));
    let (state, effects) = all(state, Event::Timer(Timer::Kill));
    assert!(effects.contains(&Effect::SignalGroup { pid: 7, signal: KILL }), "{effects:?}");
    assert_eq!(all(state, Event::Timer(Timer::Signal)).1, [], "nothing follows KILL");
}

#[test]
fn a_slow_start_is_not_a_hang() {
    let started = up().into_iter().take(6);
    let (state, effects) = after(
        started
            .chain([Event::Observed { alive: false, serving: false }, Event::Timer(Timer::Hung)]),
    );
    assert_eq!((state.pid(), effects), (Some(7), vec![]));
}

#[test]
fn other_signals_are_the_childs() {
    let (_, effects) = up_and([Event::Signal(libc::SIGUSR1)]);
    assert_eq!(effects, [Effect::Signal { pid: 7, signal: libc::SIGUSR1 }]);
    assert_eq!(after([Event::Signal(libc::SIGUSR1)]).1, []);
}

#[test]
fn a_failed_preparation_keeps_the_database_stopped_and_is_tried_again_ever_later() {
    let preparing: Vec<Event> = up().into_iter().take(4).collect();
    let (state, effects) = after(preparing.into_iter().chain([Event::NotPrepared(1)]));
    assert_eq!((&state.life, effects), (&Life::Unprepared, vec![]));
    let (state, effects) = state.step(Event::Timer(Timer::Recheck));
    assert!(effects.contains(&Effect::Preflight(2)), "{effects:?}");
    let again = [
        Event::PreflightPassed(2),
        Event::Turn { attempt: 2, may_found: false },
        Event::Configured(2),
        Event::NotPrepared(2),
    ];
    let state = again.into_iter().fold(state, |state, event| state.step(event).0);
    let repair = Event::Intent { want: Want::Running, restart: None, changed: true };
    let (state, effects) = state.step(repair);
    assert_eq!(state.life, Life::Preflight, "another spec is tried at once: {effects:?}");
}

#[test]
fn a_preparation_that_is_no_longer_wanted_is_ended_and_waited_for() {
    let preparing = || up().into_iter().take(4);
    let changed = Event::Intent { want: Want::Running, restart: None, changed: true };
    for (event, then) in [
        (Event::Signal(TERM), Life::Exited(0)),
        (want(Want::Fenced), Life::Held(Held::Fenced)),
        (changed, Life::Preflight),
    ] {
        let (state, effects) = after(preparing().chain([event.clone()]));
        assert_eq!(effects, [Effect::CancelPreparation], "{event:?}");
        let (state, effects) = state.step(event.clone());
        assert_eq!(effects, [], "{event:?}: once is enough");
        // The program may have ended in the same moment, well or not: that changes nothing.
        for end in [Event::Prepared(1), Event::NotPrepared(1)] {
            assert_eq!(state.clone().step(end).0.life, then, "{event:?}");
        }
    }
}

#[test]
fn a_decommission_that_is_too_late_to_take_back_is_followed_to_its_end() {
    let (state, _) = up_and([want(Want::Decommissioned), Event::DecommissionMoving]);
    let (state, effects) = state.step(want(Want::Running));
    assert!(effects.contains(&Effect::CancelDecommission), "{effects:?}");
    let (state, effects) = state.step(Event::DecommissionIrreversible);
    assert_eq!(effects, [Effect::Decommission]);
    let (state, effects) = state.step(Event::DecommissionMoving);
    assert_eq!(effects, [Effect::Arm(Timer::Decommission, DECOMMISSION_POLL)]);
    let (state, effects) = state.step(Event::DecommissionDone);
    assert!(effects.contains(&Effect::RecordDecommissioned), "{effects:?}");
    let state = state.step(Event::DecommissionRecorded).0;
    assert_eq!(state.step(exited(143)).0.life, Life::Held(Held::Decommissioned));
}

/// Signals that ask to end.
const ASKS: [i32; 2] = [TERM, libc::SIGINT];

const PATIENT: StopPlan =
    StopPlan { then: &[(Duration::from_secs(9), libc::SIGINT)], ..LIMITS.stop };

fn kinds() -> impl Strategy<Value = Limits> {
    prop_oneof![Just(LIMITS), Just(PLAIN), Just(Limits { stop: PATIENT, ..PLAIN })]
}

/// A world that answers effects, in any order and with any delay.
#[derive(Default)]
struct World {
    child: Option<i32>,
    preparing: Option<Attempt>,
    next_pid: i32,
    termed: bool,
    armed: Vec<Timer>,
    answers: Vec<Event>,
    exited: bool,
}

impl World {
    fn carry_out(&mut self, state: &State, effects: Vec<Effect>) {
        for effect in effects {
            assert!(!self.exited, "{effect:?} after the exit");
            match effect {
                Effect::Preflight(of) => {
                    self.answers.extend([Event::PreflightPassed(of), Event::PreflightFailed(of)]);
                }
                Effect::TakeTurn(attempt) => {
                    self.answers.push(Event::Turn { attempt, may_found: true });
                }
                Effect::Configure { attempt, .. } => {
                    self.answers
                        .extend([Event::Configured(attempt), Event::NotConfigured(attempt)]);
                }
                Effect::Prepare(attempt) => {
                    assert_eq!((self.child, self.preparing), (None, None), "two children");
                    self.preparing = Some(attempt);
                }
                Effect::CancelPreparation => {
                    assert!(self.preparing.is_some(), "nothing to cancel");
                }
                Effect::Spawn => {
                    assert_eq!((self.child, self.preparing), (None, None), "two children");
                    assert!(!state.decommissioned, "a node that left was started");
                    assert!(
                        !matches!(state.want, Some(Want::Fenced | Want::Stopped)),
                        "a held node was started"
                    );
                    self.next_pid += 1;
                    self.child = Some(self.next_pid);
                    self.termed = false;
                }
                Effect::Signal { pid, signal } => {
                    assert_eq!(self.child, Some(pid), "a signal to nobody");
                    self.termed |= ASKS.contains(&signal);
                }
                Effect::SignalGroup { pid, signal } => {
                    if self.child == Some(pid) && signal == KILL {
                        assert!(self.termed, "a KILL that no request preceded");
                    }
                }
                Effect::Continue { pid } | Effect::Dump { pid, .. } => {
                    assert_eq!(self.child, Some(pid), "a signal to nobody");
                }
                Effect::Validate(of) => {
                    self.answers.extend([validated(of, true), validated(of, false)]);
                }
                Effect::Flush => self.answers.push(Event::Flushed),
                Effect::Decommission => self.answers.extend([
                    Event::DecommissionMoving,
                    Event::DecommissionRefused,
                    Event::DecommissionDone,
                ]),
                Effect::CancelDecommission => self.answers.extend([
                    Event::DecommissionCancelled,
                    Event::DecommissionIrreversible,
                    Event::CancelFailed,
                ]),
                Effect::RecordDecommissioned => self.answers.push(Event::DecommissionRecorded),
                Effect::Arm(timer, _) => {
                    self.armed.retain(|armed| *armed != timer);
                    self.armed.push(timer);
                }
                Effect::Disarm(timer) => self.armed.retain(|armed| *armed != timer),
                Effect::Exit(_) => {
                    let left = (self.child, self.preparing);
                    assert_eq!(left, (None, None), "the pilot left a child behind");
                    self.exited = true;
                }
            }
        }
    }

    fn take(&mut self, mut state: State, event: Event) -> State {
        let mut queue = vec![event];
        while let Some(event) = queue.pop() {
            let (next, effects) = state.step(event);
            state = next;
            let spawn = effects.contains(&Effect::Spawn);
            self.carry_out(&state, effects);
            if spawn {
                queue.push(Event::Spawned { pid: self.next_pid });
            }
        }
        state
    }
}

fn wants() -> impl Strategy<Value = Event> {
    let want = prop_oneof![
        4 => Just(Want::Running),
        1 => Just(Want::Decommissioned),
        1 => Just(Want::Stopped),
        1 => Just(Want::Fenced),
    ];
    (want, proptest::option::of(0..3u8), any::<bool>()).prop_map(|(want, restart, changed)| {
        Event::Intent { want, restart: restart.map(|n| n.to_string()), changed }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_walks_keep_the_promises_and_end(
        limits in kinds(),
        moves in proptest::collection::vec((0..8u8, any::<prop::sample::Index>(), wants()), 1..120),
    ) {
        let mut world = World::default();
        let mut state = State::new(limits, false);
        for (kind, index, intent) in moves {
            let event = match kind {
                0 => intent,
                1..=2 if !world.answers.is_empty() => {
                    world.answers.remove(index.index(world.answers.len()))
                }
                3 if !world.armed.is_empty() => {
                    Event::Timer(world.armed.remove(index.index(world.armed.len())))
                }
                4 => Event::Observed { alive: index.index(3) > 0, serving: index.index(3) > 1 },
                5 if world.child.is_some() => {
                    world.child = None;
                    exited(i32::try_from(index.index(2)).unwrap())
                }
                6 if index.index(8) == 0 => Event::Signal(TERM),
                6 if index.index(8) < 3 => Event::Space { full: index.index(2) == 0 },
                6 if index.index(8) == 3 => Event::SilenceLimit(SILENCE * 2),
                6 => Event::Signal(libc::SIGUSR1),
                7 => match world.preparing.take() {
                    Some(attempt) if index.index(3) > 0 => Event::Prepared(attempt),
                    Some(attempt) => Event::NotPrepared(attempt),
                    None => continue,
                },
                _ => continue,
            };
            state = world.take(state, event);
        }
        // In whatever state the machine is: two TERMs, the armed timers and a child that obeys KILL
        // end it.
        state = world.take(state, Event::Signal(TERM));
        state = world.take(state, Event::Signal(TERM));
        if let Some(attempt) = world.preparing.take() {
            state = world.take(state, Event::NotPrepared(attempt));
        }
        if world.child.is_some() {
            state = world.take(state, Event::Timer(Timer::Kill));
            world.child = None;
            state = world.take(state, Event::Exited(Exit { code: None, signal: Some(KILL) }));
        }
        prop_assert!(matches!(state.life, Life::Exited(_)), "{state:?}");
    }
}
