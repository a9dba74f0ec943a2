//! Rows: an event, and its effects. Walks: events at random, and what must never happen.

use nix::libc;
use proptest::prelude::*;

use super::*;
use crate::pilot::driver::{DumpSignal, StopPlan};

const DUMP: DumpSignal = DumpSignal { signal: libc::SIGQUIT, children: "java" };
/// Limits of a database that flushes and can say what it is doing.
const LIMITS: TimeLimits = TimeLimits {
    grace: Duration::from_secs(300),
    stop: StopPlan { flush: Duration::from_secs(240), success: &[143], ..StopPlan::DEFAULT },
    silence: SILENCE,
    dump: Some(DUMP),
};
const TERM: i32 = libc::SIGTERM;
const KILL: i32 = libc::SIGKILL;

fn want(want: NodeIntent) -> MachineEvent {
    MachineEvent::Intent { want, restart: None, changed: false }
}

fn exited(code: i32) -> MachineEvent {
    MachineEvent::Exited(ChildExit { code: Some(code), signal: None })
}

/// Runs the events and returns the last state with the effects of the last event, without
/// the timers.
fn after(events: impl IntoIterator<Item = MachineEvent>) -> (NodeMachine, Vec<MachineEffect>) {
    after_of(LIMITS, events)
}

/// Runs the events as `after` does, for another database.
fn after_of(
    limits: TimeLimits,
    events: impl IntoIterator<Item = MachineEvent>,
) -> (NodeMachine, Vec<MachineEffect>) {
    let mut state = NodeMachine::new(limits, false);
    let mut last = Vec::new();
    for event in events {
        (state, last) = state.step(event);
    }
    last.retain(|effect| !matches!(effect, MachineEffect::Arm(..) | MachineEffect::Disarm(_)));
    (state, last)
}

#[test]
fn another_limit_of_silence_counts_at_once_and_from_then_on() {
    let hung = |limit| MachineEffect::Arm(MachineTimer::Hung, Duration::from_secs(limit));
    let begin =
        || up().into_iter().fold(NodeMachine::new(LIMITS, false), |state, one| state.step(one).0);
    let limit = || MachineEvent::SilenceLimit(Duration::from_secs(300));
    let (state, effects) = begin().step(limit());
    assert_eq!(effects, [hung(300)]);
    let (state, effects) = state.step(MachineEvent::Observed { alive: true, serving: true });
    assert!(effects.contains(&hung(300)), "{effects:?}");
    let (suspected, _) = state.step(MachineEvent::Timer(MachineTimer::Hung));
    assert_eq!(suspected.step(limit()).1, [], "what was begun is gone through with");
    assert_eq!(NodeMachine::new(LIMITS, false).step(limit()).1, [], "nothing runs");
}

/// Events that bring a node up with pid 7.
fn up() -> Vec<MachineEvent> {
    vec![
        want(NodeIntent::Running),
        MachineEvent::PreflightPassed(1),
        MachineEvent::Turn { attempt: 1, may_found: true },
        MachineEvent::Configured(1),
        MachineEvent::Prepared(1),
        MachineEvent::Spawned { pid: 7 },
        MachineEvent::Observed { alive: true, serving: true },
    ]
}

fn up_and(more: impl IntoIterator<Item = MachineEvent>) -> (NodeMachine, Vec<MachineEffect>) {
    after(up().into_iter().chain(more))
}

#[test]
fn a_node_starts_in_order() {
    let rows = [
        (1, vec![MachineEffect::Preflight(1)]),
        (2, vec![MachineEffect::TakeTurn(1)]),
        (3, vec![MachineEffect::Configure { attempt: 1, may_found: true }]),
        (4, vec![MachineEffect::Prepare(1)]),
        (5, vec![MachineEffect::Spawn]),
        (6, vec![]),
    ];
    for (count, effects) in rows {
        assert_eq!(after(up().into_iter().take(count)).1, effects, "after {count} events");
    }
}

#[test]
fn node_fenced_during_its_start_is_ended() {
    for intent in [NodeIntent::Fenced, NodeIntent::Stopped] {
        let spawned = [want(intent), MachineEvent::Spawned { pid: 7 }];
        let (_, effects) = after(up().into_iter().take(5).chain(spawned));
        assert_eq!(effects, [MachineEffect::Signal { pid: 7, signal: TERM }], "{intent:?}");
    }
}

#[test]
fn a_term_flushes_then_terminates_then_exits_with_success() {
    let (state, effects) = up_and([MachineEvent::Signal(TERM)]);
    assert_eq!(effects, [MachineEffect::Flush]);
    assert_eq!(state.life, NodePhase::Stopping { pid: 7, stage: StopStage::Flush });
    let (_, effects) = up_and([MachineEvent::Signal(TERM), MachineEvent::Flushed]);
    assert_eq!(effects, [MachineEffect::Signal { pid: 7, signal: TERM }]);
    let (state, _) = up_and([MachineEvent::Signal(TERM), MachineEvent::Flushed, exited(143)]);
    assert_eq!(state.life, NodePhase::Exited(0));
    let (state, _) = up_and([MachineEvent::Signal(TERM), MachineEvent::Flushed, exited(3)]);
    assert_eq!(state.life, NodePhase::Exited(3));
}

#[test]
fn a_second_term_skips_the_flush() {
    let (_, effects) = up_and([MachineEvent::Signal(TERM), MachineEvent::Signal(TERM)]);
    assert_eq!(effects, [MachineEffect::Signal { pid: 7, signal: TERM }]);
}

#[test]
fn a_flush_that_does_not_end_is_followed_by_term_and_kill() {
    let stuck = [MachineEvent::Signal(TERM), MachineEvent::Timer(MachineTimer::Flush)];
    assert_eq!(up_and(stuck).1, [MachineEffect::Signal { pid: 7, signal: TERM }]);
    let stuck = [
        MachineEvent::Signal(TERM),
        MachineEvent::Timer(MachineTimer::Flush),
        MachineEvent::Timer(MachineTimer::Kill),
    ];
    assert_eq!(up_and(stuck).1, [MachineEffect::SignalGroup { pid: 7, signal: KILL }]);
}

#[test]
fn the_kill_comes_two_seconds_before_the_grace_period_ends_and_the_flush_leaves_time_for_term() {
    let (state, _) = up_and([]);
    let (_, effects) = state.step(MachineEvent::Signal(TERM));
    assert!(effects.contains(&MachineEffect::Arm(MachineTimer::Kill, Duration::from_secs(298))));
    assert!(
        effects.contains(&MachineEffect::Arm(MachineTimer::Flush, Duration::from_millis(223_500)))
    );
}

#[test]
fn a_term_during_a_restart_restarts_the_clock_and_ends_the_pilot() {
    let (state, effects) = up_and([restart("t1"), validated(2, true)]);
    assert_eq!(effects, [MachineEffect::Flush]);
    let (state, effects) = state.step(MachineEvent::Signal(TERM));
    assert_eq!(effects, [MachineEffect::Arm(MachineTimer::Kill, Duration::from_secs(298))]);
    let (state, _) = state.step(MachineEvent::Flushed);
    let (state, _) = state.step(exited(143));
    assert_eq!(state.life, NodePhase::Exited(0));
}

fn restart(token: &str) -> MachineEvent {
    MachineEvent::Intent { want: NodeIntent::Running, restart: Some(token.into()), changed: true }
}

fn validated(attempt: AttemptId, good: bool) -> MachineEvent {
    MachineEvent::Validated { attempt, good }
}

#[test]
fn one_request_for_a_restart_restarts_once() {
    let (_, effects) =
        up_and([restart("t1"), validated(2, true), MachineEvent::Flushed, exited(143)]);
    assert_eq!(
        effects,
        [MachineEffect::SignalGroup { pid: 7, signal: KILL }, MachineEffect::Preflight(3)]
    );
    // A request that is there when the pilot starts was acted upon by the start.
    let mut first = up();
    first[0] = restart("t0");
    let (state, effects) = after(first.into_iter().chain([restart("t0"), validated(2, true)]));
    assert_eq!((effects, state.pid()), (vec![], Some(7)));
}

#[test]
fn a_restart_waits_until_the_configuration_is_known_to_be_good() {
    let (state, effects) = up_and([restart("t1")]);
    assert_eq!((effects, state.pid()), (vec![MachineEffect::Validate(2)], Some(7)));
    let (state, _) = state.step(validated(2, false));
    assert!(matches!(state.life, NodePhase::Up(_)), "a rejected one leaves the process alone");
    // The configuration may become good without a new intent.
    let (again, effects) = state.clone().step(MachineEvent::Timer(MachineTimer::Recheck));
    assert!(effects.contains(&MachineEffect::Validate(3)), "{effects:?}");
    assert!(matches!(again.step(validated(3, true)).0.life, NodePhase::Stopping { .. }));
    // Or a person corrects it; the earlier validation is then of no interest, the request stands.
    let (state, effects) = state.step(restart("t1"));
    assert!(effects.contains(&MachineEffect::Validate(3)), "{effects:?}");
    let (state, _) = state.step(validated(2, true));
    assert!(matches!(state.life, NodePhase::Up(_)));
    assert!(matches!(state.step(validated(3, true)).0.life, NodePhase::Stopping { .. }));
}

#[test]
fn a_database_that_a_full_volume_silenced_is_restarted_once_there_is_room() {
    let space = |full| MachineEvent::Space { full };
    let silent = MachineEvent::Observed { alive: true, serving: false };
    let (state, effects) = up_and([space(true), silent, MachineEvent::Timer(MachineTimer::Freed)]);
    assert_eq!((effects, state.pid()), (vec![], Some(7)), "not while it is full");
    let (state, effects) = state.step(space(false));
    assert!(effects.contains(&MachineEffect::Arm(MachineTimer::Freed, FREED_WAIT)), "{effects:?}");
    // The database may serve again by itself.
    let serving = MachineEvent::Observed { alive: true, serving: true };
    let (well, _) = state.clone().step(serving);
    assert_eq!(well.step(MachineEvent::Timer(MachineTimer::Freed)).1, []);
    let (state, effects) = state.step(MachineEvent::Timer(MachineTimer::Freed));
    assert!(effects.contains(&MachineEffect::Validate(2)), "{effects:?}");
    assert!(matches!(state.step(validated(2, true)).0.life, NodePhase::Stopping { .. }));
    // A database that served all the time, or never did, is left alone.
    assert_eq!(up_and([space(true), space(false)]).1, []);
}

#[test]
fn a_good_configuration_alone_restarts_nothing() {
    let changed = MachineEvent::Intent { want: NodeIntent::Running, restart: None, changed: true };
    let (state, effects) = up_and([changed, validated(2, true)]);
    assert_eq!((effects, state.pid()), (vec![], Some(7)));
}

#[test]
fn an_order_to_restart_is_for_the_configuration_that_was_wanted_with_it() {
    let changed =
        || MachineEvent::Intent { want: NodeIntent::Running, restart: None, changed: true };
    let order = MachineEvent::RestartOrdered;
    let (state, effects) = up_and([order(true), changed()]);
    assert_eq!((effects, state.pid()), (vec![MachineEffect::Validate(2)], Some(7)));
    assert!(matches!(state.clone().step(validated(2, true)).0.life, NodePhase::Stopping { .. }));
    // Another configuration is wanted before this one was found good: it waits for its own order.
    let (state, _) = state.step(order(false));
    let (state, _) = state.step(changed());
    assert!(matches!(state.step(validated(3, true)).0.life, NodePhase::Up(_)));
    // A database that is started anew takes the newest configuration, and needs no order.
    let (state, _) = up_and([order(true), changed(), exited(1)]);
    assert_eq!(state.step(order(true)).1, []);
}

#[test]
fn a_crash_is_backed_off_and_longer_each_time() {
    let (mut state, _) = after(up().into_iter().take(6));
    let mut delays = Vec::new();
    for attempt in 2..10 {
        let (crashed, effects) = state.step(exited(1));
        delays.extend(effects.iter().filter_map(|effect| match effect {
            MachineEffect::Arm(MachineTimer::Backoff, delay) => Some(delay.as_secs()),
            _ => None,
        }));
        state = crashed;
        for event in [
            MachineEvent::Timer(MachineTimer::Backoff),
            MachineEvent::PreflightPassed(attempt),
            MachineEvent::Turn { attempt, may_found: false },
            MachineEvent::Configured(attempt),
            MachineEvent::Prepared(attempt),
            MachineEvent::Spawned { pid: 8 },
        ] {
            (state, _) = state.step(event);
        }
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
}

#[test]
fn a_fenced_node_is_stopped_and_stays_down_until_it_is_wanted_again() {
    let (state, _) = up_and([want(NodeIntent::Fenced), MachineEvent::Flushed, exited(143)]);
    assert_eq!(state.life, NodePhase::Held(HoldReason::Fenced));
    let (state, effects) = state.step(want(NodeIntent::Fenced));
    assert_eq!(effects, []);
    let (state, _) = state.step(want(NodeIntent::Running));
    assert_eq!(state.life, NodePhase::Preflight);
    let (state, _) = state.step(MachineEvent::Signal(TERM));
    assert_eq!(state.life, NodePhase::Exited(0));
}

#[test]
fn a_decommission_is_polled_to_its_end_and_is_final() {
    let (state, effects) = up_and([want(NodeIntent::Decommissioned)]);
    assert_eq!(effects, [MachineEffect::Decommission]);
    let (state, _) = state.step(MachineEvent::DecommissionMoving);
    let (state, effects) = state.step(MachineEvent::Timer(MachineTimer::Decommission));
    assert_eq!(effects, [MachineEffect::Decommission]);
    let (state, effects) = state.step(MachineEvent::DecommissionDone);
    assert_eq!(
        effects,
        [MachineEffect::RecordDecommissioned],
        "it is stopped when that is written down"
    );
    for early in [
        MachineEvent::Timer(MachineTimer::Decommission),
        MachineEvent::DecommissionMoving,
        MachineEvent::DecommissionCancelled,
        MachineEvent::Observed { alive: true, serving: false },
        want(NodeIntent::Running),
        want(NodeIntent::Stopped),
    ] {
        let (state, effects) = state.clone().step(early.clone());
        let arms = |effect: &MachineEffect| matches!(effect, MachineEffect::Arm(..));
        assert!(effects.iter().all(arms) && state.pid() == Some(7), "{early:?}: {effects:?}");
    }
    let crashed = state.clone().step(exited(137)).0;
    assert_eq!(crashed.life, NodePhase::Held(HoldReason::Decommissioned));
    let (state, effects) = state.step(MachineEvent::DecommissionRecorded);
    assert!(effects.contains(&MachineEffect::Signal { pid: 7, signal: TERM }), "{effects:?}");
    let short = MachineEffect::Arm(MachineTimer::Kill, Duration::from_secs(30));
    assert!(
        effects.contains(&short),
        "it holds nothing that an orderly end would save: {effects:?}"
    );
    let (state, _) = state.step(exited(143));
    assert_eq!(state.life, NodePhase::Held(HoldReason::Decommissioned));
    let (state, _) = state.step(want(NodeIntent::Running));
    assert_eq!(state.life, NodePhase::Held(HoldReason::Decommissioned));
}

#[test]
fn a_decommission_can_be_taken_back_and_resumes_after_a_crash() {
    let (state, effects) = up_and([want(NodeIntent::Decommissioned), want(NodeIntent::Running)]);
    assert_eq!(effects, [], "it is being asked to leave");
    let (state, effects) = state.step(MachineEvent::DecommissionRefused);
    assert_eq!(effects, [MachineEffect::CancelDecommission]);
    let (state, _) = state.step(MachineEvent::CancelFailed);
    let (state, effects) = state.step(MachineEvent::Timer(MachineTimer::Decommission));
    assert_eq!(effects, [MachineEffect::CancelDecommission]);
    let (state, _) = state.step(MachineEvent::DecommissionCancelled);
    assert!(!state.is_decommissioning());
    let (state, _) = up_and([want(NodeIntent::Decommissioned), exited(137)]);
    assert_eq!(state.life, NodePhase::Backoff);
    let again = [
        MachineEvent::Timer(MachineTimer::Backoff),
        MachineEvent::PreflightPassed(2),
        MachineEvent::Turn { attempt: 2, may_found: false },
        MachineEvent::Configured(2),
        MachineEvent::Prepared(2),
        MachineEvent::Spawned { pid: 8 },
    ];
    let state = again.into_iter().fold(state, |state, event| state.step(event).0);
    let (_, effects) = state.step(MachineEvent::Observed { alive: true, serving: false });
    assert!(effects.contains(&MachineEffect::Decommission), "{effects:?}");
}

#[test]
fn a_pilot_that_finds_its_node_gone_from_the_cluster_never_starts_it() {
    let (state, effects) = NodeMachine::new(LIMITS, true).step(want(NodeIntent::Running));
    assert_eq!(state.life, NodePhase::Held(HoldReason::Decommissioned));
    assert!(!effects.iter().any(|effect| matches!(effect, MachineEffect::Preflight(_))));
}

#[test]
fn a_silent_database_is_continued_and_dumped_before_it_is_restarted() {
    let (state, effects) = up_and([MachineEvent::Timer(MachineTimer::Hung)]);
    assert_eq!(
        effects,
        [MachineEffect::Continue { pid: 7 }, MachineEffect::Dump { pid: 7, dump: DUMP }]
    );
    let (woken, _) = state.clone().step(MachineEvent::Observed { alive: true, serving: true });
    assert!(matches!(woken.life, NodePhase::Up(RunningNode { suspected: false, .. })));
    let (state, _) = state.step(MachineEvent::Timer(MachineTimer::Hung));
    assert_eq!(state.life, NodePhase::Stopping { pid: 7, stage: StopStage::Signal(0) });
}

#[test]
fn a_hung_database_has_thirty_seconds_and_the_pilot_that_is_told_to_end_meanwhile_no_more() {
    let (state, _) = up_and([MachineEvent::Timer(MachineTimer::Hung)]);
    let (state, effects) = state.step(MachineEvent::Timer(MachineTimer::Hung));
    let kill = MachineEffect::Arm(MachineTimer::Kill, Duration::from_secs(30));
    assert!(effects.contains(&kill), "{effects:?}");
    let (state, effects) = state.step(MachineEvent::Signal(TERM));
    assert_eq!(effects, [kill]);
    let (state, _) = state.step(exited(143));
    assert_eq!(state.life, NodePhase::Exited(0));
    // The next process that is stopped has the whole grace period.
    let (state, _) = up_and([
        MachineEvent::Timer(MachineTimer::Hung),
        MachineEvent::Timer(MachineTimer::Hung),
        exited(143),
    ]);
    let again = [
        MachineEvent::PreflightPassed(2),
        MachineEvent::Turn { attempt: 2, may_found: true },
        MachineEvent::Configured(2),
        MachineEvent::Prepared(2),
        MachineEvent::Spawned { pid: 8 },
    ];
    let state = again.into_iter().fold(state, |state, event| state.step(event).0);
    let (_, effects) = state.step(MachineEvent::Signal(TERM));
    assert!(
        effects.contains(&MachineEffect::Arm(MachineTimer::Kill, Duration::from_secs(298))),
        "{effects:?}"
    );
}

#[test]
fn a_process_that_gave_up_is_stopped_without_a_flush_and_started_again_ever_later() {
    let (state, effects) = up_and([MachineEvent::GaveUp]);
    assert_eq!(effects, [MachineEffect::Signal { pid: 7, signal: TERM }]);
    let (state, effects) = state.step(exited(143));
    assert!(
        effects.contains(&MachineEffect::Arm(MachineTimer::Backoff, Duration::from_secs(1))),
        "{effects:?}"
    );
    assert_eq!((state.life, state.failures), (NodePhase::Backoff, 1));
    let (state, _) = up_and([MachineEvent::GaveUp, MachineEvent::Signal(TERM), exited(143)]);
    assert_eq!(state.life, NodePhase::Exited(0), "its pilot was told to end");
    let (state, _) = up_and([MachineEvent::GaveUp, want(NodeIntent::Stopped), exited(143)]);
    assert_eq!(state.life, NodePhase::Held(HoldReason::Stopped));
}

#[test]
fn node_that_stopped_serving_is_restarted_like_a_crash() {
    const STOPPED: MachineEvent = MachineEvent::StoppedServing;
    assert_eq!(MachineEvent::from_reason("TransportsStopped"), Some(STOPPED));
    assert_eq!(MachineEvent::from_reason("JoinFailed"), Some(MachineEvent::GaveUp));
    assert_eq!(MachineEvent::from_reason("Starting"), None);
    let serves = MachineEvent::Observed { alive: true, serving: true };
    let deaf = MachineEvent::Observed { alive: true, serving: false };
    let (state, effects) = up_and([serves.clone(), deaf.clone(), STOPPED]);
    assert_eq!(effects, [MachineEffect::Signal { pid: 7, signal: TERM }]);
    let (state, _) = state.step(exited(143));
    assert_eq!((state.life, state.failures), (NodePhase::Backoff, 1));
    let starts = up().into_iter().filter(|event| *event != serves);
    let (state, _) = after(starts.chain([deaf.clone(), STOPPED]));
    assert!(matches!(state.life, NodePhase::Up(_)), "it never served");
    let full = MachineEvent::Space { full: true };
    let (state, _) = up_and([serves, full, deaf, STOPPED]);
    assert!(matches!(state.life, NodePhase::Up(_)), "no process could start on this volume");
}

/// Limits of a database that does not flush and cannot say what it is doing.
const PLAIN: TimeLimits = TimeLimits { stop: StopPlan::DEFAULT, dump: None, ..LIMITS };

#[test]
fn a_database_that_says_nothing_is_sent_term_and_kill_and_nothing_else() {
    let plain =
        |more: &[MachineEvent]| after_of(PLAIN, up().into_iter().chain(more.iter().cloned()));
    let (state, effects) = plain(&[MachineEvent::Timer(MachineTimer::Hung)]);
    assert_eq!(effects, [MachineEffect::Continue { pid: 7 }], "no signal that may end it");
    let (state, _) = state.step(MachineEvent::Timer(MachineTimer::Hung));
    assert_eq!(state.life, NodePhase::Stopping { pid: 7, stage: StopStage::Signal(0) });
    let term = MachineEvent::Signal(TERM);
    assert_eq!(
        plain(std::slice::from_ref(&term)).1,
        [MachineEffect::Signal { pid: 7, signal: TERM }]
    );
    let kill = MachineEvent::Timer(MachineTimer::Kill);
    assert_eq!(
        plain(&[term.clone(), kill]).1,
        [MachineEffect::SignalGroup { pid: 7, signal: KILL }]
    );
    for (code, answer) in [(0, 0), (143, 143), (1, 1)] {
        let (state, _) = plain(&[term.clone(), exited(code)]);
        assert_eq!(state.life, NodePhase::Exited(answer));
    }
}

#[test]
fn the_signals_of_a_stop_are_the_databases_and_each_has_its_time() {
    const INT: i32 = libc::SIGINT;
    const QUIT: i32 = libc::SIGQUIT;
    const THEN: [(Duration, i32); 2] =
        [(Duration::from_secs(10), INT), (Duration::from_secs(200), QUIT)];
    let stop = StopPlan { then: &THEN, success: &[2], ..StopPlan::DEFAULT };
    let limits = TimeLimits { stop, ..PLAIN };
    let all = |state: NodeMachine, event: MachineEvent| state.step(event);
    let (state, _) = after_of(limits, up());
    let (state, effects) = all(state, MachineEvent::Signal(TERM));
    let sent = |signal| MachineEffect::Signal { pid: 7, signal };
    assert!(effects.contains(&sent(TERM)), "{effects:?}");
    assert!(
        effects.contains(&MachineEffect::Arm(MachineTimer::Signal, Duration::from_secs(10))),
        "{effects:?}"
    );
    let (state, effects) = all(state, MachineEvent::Timer(MachineTimer::Signal));
    // A third of 298 s: the last one must have some time, too.
    let third = Duration::from_secs(298) / 3;
    assert_eq!(effects, [sent(INT), MachineEffect::Arm(MachineTimer::Signal, third)]);
    // A further TERM skips the wait: it brings the next signal, and after the last one that again.
    let (state, effects) = all(state, MachineEvent::Signal(TERM));
    assert_eq!(effects, [sent(QUIT)]);
    let (state, effects) = all(state, MachineEvent::Signal(TERM));
    assert_eq!(effects, [sent(QUIT)]);
    assert_eq!(all(state.clone(), exited(2)).0.life, NodePhase::Exited(0));
    let (state, effects) = all(state, MachineEvent::Timer(MachineTimer::Kill));
    assert!(effects.contains(&MachineEffect::SignalGroup { pid: 7, signal: KILL }), "{effects:?}");
    assert_eq!(all(state, MachineEvent::Timer(MachineTimer::Signal)).1, [], "nothing follows KILL");
}

#[test]
fn a_slow_start_is_not_a_hang() {
    let started = up().into_iter().take(6);
    let (state, effects) = after(started.chain([
        MachineEvent::Observed { alive: false, serving: false },
        MachineEvent::Timer(MachineTimer::Hung),
    ]));
    assert_eq!((state.pid(), effects), (Some(7), vec![]));
}

#[test]
fn other_signals_are_the_childs() {
    let (_, effects) = up_and([MachineEvent::Signal(libc::SIGUSR1)]);
    assert_eq!(effects, [MachineEffect::Signal { pid: 7, signal: libc::SIGUSR1 }]);
    assert_eq!(after([MachineEvent::Signal(libc::SIGUSR1)]).1, []);
}

#[test]
fn a_failed_preparation_keeps_the_database_stopped_and_is_tried_again_ever_later() {
    let preparing: Vec<MachineEvent> = up().into_iter().take(4).collect();
    let (state, effects) = after(preparing.into_iter().chain([MachineEvent::NotPrepared(1)]));
    assert_eq!((&state.life, effects), (&NodePhase::Unprepared, vec![]));
    let (state, effects) = state.step(MachineEvent::Timer(MachineTimer::Recheck));
    assert!(effects.contains(&MachineEffect::Preflight(2)), "{effects:?}");
    let again = [
        MachineEvent::PreflightPassed(2),
        MachineEvent::Turn { attempt: 2, may_found: false },
        MachineEvent::Configured(2),
        MachineEvent::NotPrepared(2),
    ];
    let state = again.into_iter().fold(state, |state, event| state.step(event).0);
    let repair = MachineEvent::Intent { want: NodeIntent::Running, restart: None, changed: true };
    let (state, effects) = state.step(repair);
    assert_eq!(state.life, NodePhase::Preflight, "another spec is tried at once: {effects:?}");
}

#[test]
fn a_preparation_that_is_no_longer_wanted_is_ended_and_waited_for() {
    let preparing = || up().into_iter().take(4);
    let changed = MachineEvent::Intent { want: NodeIntent::Running, restart: None, changed: true };
    for (event, then) in [
        (MachineEvent::Signal(TERM), NodePhase::Exited(0)),
        (want(NodeIntent::Fenced), NodePhase::Held(HoldReason::Fenced)),
        (changed, NodePhase::Preflight),
    ] {
        let (state, effects) = after(preparing().chain([event.clone()]));
        assert_eq!(effects, [MachineEffect::CancelPreparation], "{event:?}");
        let (state, effects) = state.step(event.clone());
        assert_eq!(effects, [], "{event:?}: once is enough");
        // The program may have ended in the same moment, well or not: that changes nothing.
        for end in [MachineEvent::Prepared(1), MachineEvent::NotPrepared(1)] {
            assert_eq!(state.clone().step(end).0.life, then, "{event:?}");
        }
    }
}

#[test]
fn a_decommission_that_is_too_late_to_take_back_is_followed_to_its_end() {
    let (state, _) = up_and([want(NodeIntent::Decommissioned), MachineEvent::DecommissionMoving]);
    let (state, effects) = state.step(want(NodeIntent::Running));
    assert!(effects.contains(&MachineEffect::CancelDecommission), "{effects:?}");
    let (state, effects) = state.step(MachineEvent::DecommissionIrreversible);
    assert_eq!(effects, [MachineEffect::Decommission]);
    let (state, effects) = state.step(MachineEvent::DecommissionMoving);
    assert_eq!(effects, [MachineEffect::Arm(MachineTimer::Decommission, DECOMMISSION_POLL)]);
    let (state, effects) = state.step(MachineEvent::DecommissionDone);
    assert!(effects.contains(&MachineEffect::RecordDecommissioned), "{effects:?}");
    let state = state.step(MachineEvent::DecommissionRecorded).0;
    assert_eq!(state.step(exited(143)).0.life, NodePhase::Held(HoldReason::Decommissioned));
}

/// Signals that ask to end.
const ASKS: [i32; 2] = [TERM, libc::SIGINT];

const PATIENT: StopPlan =
    StopPlan { then: &[(Duration::from_secs(9), libc::SIGINT)], ..LIMITS.stop };

fn kinds() -> impl Strategy<Value = TimeLimits> {
    prop_oneof![Just(LIMITS), Just(PLAIN), Just(TimeLimits { stop: PATIENT, ..PLAIN })]
}

/// A world that answers effects, in any order and with any delay.
#[derive(Default)]
struct World {
    child: Option<i32>,
    preparing: Option<AttemptId>,
    next_pid: i32,
    termed: bool,
    armed: Vec<MachineTimer>,
    answers: Vec<MachineEvent>,
    exited: bool,
}

impl World {
    fn carry_out(&mut self, state: &NodeMachine, effects: Vec<MachineEffect>) {
        for effect in effects {
            assert!(!self.exited, "{effect:?} after the exit");
            match effect {
                MachineEffect::Preflight(of) => {
                    self.answers.extend([
                        MachineEvent::PreflightPassed(of),
                        MachineEvent::PreflightFailed(of),
                    ]);
                }
                MachineEffect::TakeTurn(attempt) => {
                    self.answers.push(MachineEvent::Turn { attempt, may_found: true });
                }
                MachineEffect::Configure { attempt, .. } => {
                    self.answers.extend([
                        MachineEvent::Configured(attempt),
                        MachineEvent::NotConfigured(attempt),
                    ]);
                }
                MachineEffect::Prepare(attempt) => {
                    assert_eq!((self.child, self.preparing), (None, None), "two children");
                    self.preparing = Some(attempt);
                }
                MachineEffect::CancelPreparation => {
                    assert!(self.preparing.is_some(), "nothing to cancel");
                }
                MachineEffect::Spawn => {
                    assert_eq!((self.child, self.preparing), (None, None), "two children");
                    assert!(!state.decommissioned, "a node that left was started");
                    assert!(
                        !matches!(state.want, Some(NodeIntent::Fenced | NodeIntent::Stopped)),
                        "a held node was started"
                    );
                    self.next_pid += 1;
                    self.child = Some(self.next_pid);
                    self.termed = false;
                }
                MachineEffect::Signal { pid, signal } => {
                    assert_eq!(self.child, Some(pid), "a signal to nobody");
                    self.termed |= ASKS.contains(&signal);
                }
                MachineEffect::SignalGroup { pid, signal } => {
                    if self.child == Some(pid) && signal == KILL {
                        assert!(self.termed, "a KILL that no request preceded");
                    }
                }
                MachineEffect::Continue { pid } | MachineEffect::Dump { pid, .. } => {
                    assert_eq!(self.child, Some(pid), "a signal to nobody");
                }
                MachineEffect::Validate(of) => {
                    self.answers.extend([validated(of, true), validated(of, false)]);
                }
                MachineEffect::Flush => self.answers.push(MachineEvent::Flushed),
                MachineEffect::Decommission => self.answers.extend([
                    MachineEvent::DecommissionMoving,
                    MachineEvent::DecommissionRefused,
                    MachineEvent::DecommissionDone,
                ]),
                MachineEffect::CancelDecommission => self.answers.extend([
                    MachineEvent::DecommissionCancelled,
                    MachineEvent::DecommissionIrreversible,
                    MachineEvent::CancelFailed,
                ]),
                MachineEffect::RecordDecommissioned => {
                    self.answers.push(MachineEvent::DecommissionRecorded);
                }
                MachineEffect::Arm(timer, _) => {
                    self.armed.retain(|armed| *armed != timer);
                    self.armed.push(timer);
                }
                MachineEffect::Disarm(timer) => self.armed.retain(|armed| *armed != timer),
                MachineEffect::Exit(_) => {
                    let left = (self.child, self.preparing);
                    assert_eq!(left, (None, None), "the pilot left a child behind");
                    self.exited = true;
                }
            }
        }
    }

    fn take(&mut self, mut state: NodeMachine, event: MachineEvent) -> NodeMachine {
        let mut queue = vec![event];
        while let Some(event) = queue.pop() {
            let (next, effects) = state.step(event);
            state = next;
            let spawn = effects.contains(&MachineEffect::Spawn);
            self.carry_out(&state, effects);
            if spawn {
                queue.push(MachineEvent::Spawned { pid: self.next_pid });
            }
        }
        state
    }
}

fn wants() -> impl Strategy<Value = MachineEvent> {
    let want = prop_oneof![
        4 => Just(NodeIntent::Running),
        1 => Just(NodeIntent::Decommissioned),
        1 => Just(NodeIntent::Stopped),
        1 => Just(NodeIntent::Fenced),
    ];
    (want, proptest::option::of(0..3u8), any::<bool>()).prop_map(|(want, restart, changed)| {
        MachineEvent::Intent { want, restart: restart.map(|n| n.to_string()), changed }
    })
}

mod searches {
    use super::*;
    use crate::testing::search_size;

    fn cases() -> u32 {
        search_size(700).try_into().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases()))]

        #[test]
        fn random_walks_keep_the_promises_and_end(
            limits in kinds(),
            moves in proptest::collection::vec((0..8u8, any::<prop::sample::Index>(), wants()), 1..120),
        ) {
            let mut world = World::default();
            let mut state = NodeMachine::new(limits, false);
            for (kind, index, intent) in moves {
                let event = match kind {
                    0 => intent,
                    1..=2 if !world.answers.is_empty() => {
                        world.answers.remove(index.index(world.answers.len()))
                    }
                    3 if !world.armed.is_empty() => {
                        MachineEvent::Timer(world.armed.remove(index.index(world.armed.len())))
                    }
                    4 => MachineEvent::Observed { alive: index.index(3) > 0, serving: index.index(3) > 1 },
                    5 if world.child.is_some() => {
                        world.child = None;
                        exited(i32::try_from(index.index(2)).unwrap())
                    }
                    6 if index.index(8) == 0 => MachineEvent::Signal(TERM),
                    6 if index.index(8) < 3 => MachineEvent::Space { full: index.index(2) == 0 },
                    6 if index.index(8) == 3 => MachineEvent::SilenceLimit(SILENCE * 2),
                    6 if index.index(8) == 4 => MachineEvent::RestartOrdered(index.index(2) == 0),
                    6 if index.index(8) == 5 => MachineEvent::StoppedServing,
                    6 => MachineEvent::Signal(libc::SIGUSR1),
                    7 => match world.preparing.take() {
                        Some(attempt) if index.index(3) > 0 => MachineEvent::Prepared(attempt),
                        Some(attempt) => MachineEvent::NotPrepared(attempt),
                        None => continue,
                    },
                    _ => continue,
                };
                state = world.take(state, event);
            }
            // In whatever state the machine is: two TERMs, the armed timers and a child that obeys KILL
            // end it.
            state = world.take(state, MachineEvent::Signal(TERM));
            state = world.take(state, MachineEvent::Signal(TERM));
            if let Some(attempt) = world.preparing.take() {
                state = world.take(state, MachineEvent::NotPrepared(attempt));
            }
            if world.child.is_some() {
                state = world.take(state, MachineEvent::Timer(MachineTimer::Kill));
                world.child = None;
                state = world.take(state, MachineEvent::Exited(ChildExit { code: None, signal: Some(KILL) }));
            }
            prop_assert!(matches!(state.life, NodePhase::Exited(_)), "{state:?}");
        }
    }
}
