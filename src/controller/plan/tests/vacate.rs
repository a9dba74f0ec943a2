//! Requests that nodes leave their machines: who goes, who waits, and what is answered.

use super::*;
use crate::{api::leave_request::LeaveRequest, controller::desired_state::StallCause};

const SCHEDULER: &str = "ex-demo-a-1: 0/2 nodes are available: 1 node(s) were unschedulable, 1 node(s) had \
                         volume node affinity conflict.";

/// Puts every node on a machine of its own, but for those of pool `a`, which share one.
fn placed(observed: &mut ObservedCluster) {
    for pool in &mut observed.pools {
        for (ordinal, member) in &mut pool.members {
            let machine = if pool.name == "a" {
                "m-a".to_owned()
            } else {
                format!("m-{}-{ordinal}", pool.name)
            };
            let pod = member.pod.as_mut().unwrap();
            pod.uid = format!("pod-{}", member.name);
            pod.machine = Some(machine.clone());
            let pilot = member.pilot.as_mut().unwrap();
            (pilot.instance, pilot.machine) = (Some(pod.uid.clone()), Some(machine));
        }
    }
}

fn ask(observed: &mut ObservedCluster, pool: usize, ordinal: u32) {
    let uid = pod(observed, pool, ordinal).uid.clone();
    pilot(observed, pool, ordinal).leave = Some(LeaveRequest { pod: uid, by: "a person".into() });
}

/// Makes a node as it is when it has left its machine, and its next pod waits for that.
fn waits_for_its_machine(observed: &mut ObservedCluster, pool: usize, ordinal: u32) {
    ask(observed, pool, ordinal);
    let pod = pod(observed, pool, ordinal);
    (pod.uid, pod.machine) = ("later".to_owned(), None);
    (pod.ready, pod.started) = (false, false);
    pod.trouble =
        Some(PodFailure { reason: "Unschedulable", message: SCHEDULER.into(), lasts: true });
    let pilot = pilot(observed, pool, ordinal);
    (pilot.ready, pilot.hearing.ago) = (false, 10 * MINUTE);
}

/// Returns the plan for pools a and b, of two nodes and one, after `change`.
fn asked(change: impl FnOnce(&mut DesiredCluster, &mut ObservedCluster)) -> Plan {
    planned(&[("a", 2), ("b", 1)], &[("a", 2), ("b", 1)], |d, o| {
        d.status.conditions = vec![crate::controller::testing::sample::initialized()];
        placed(o);
        change(d, o);
    })
}

fn goes(plan: &Plan) -> Option<&str> {
    match &plan.step {
        Some(PlannedStep::Vacate { pilot, .. }) => Some(pilot),
        None => None,
        other => panic!("{other:?}"),
    }
}

fn blocks(plan: &Plan) -> Vec<(&str, &str)> {
    plan.blocked.iter().map(|block| (&*block.predicate, block.step.as_str())).collect()
}

#[test]
fn the_pod_that_was_asked_goes_and_no_later_one() {
    let plan = asked(|_, o| ask(o, 0, 1));
    let step = PlannedStep::Vacate {
        pilot: "ex-demo-a-1".into(),
        pod: "pod-ex-demo-a-1".into(),
        by: "a person".into(),
    };
    assert_eq!((plan.step, plan.operation), (Some(step), Some(OperationType::Vacate)));
    let later = asked(|_, o| {
        ask(o, 0, 1);
        pod(o, 0, 1).uid = "later".into();
        pilot(o, 0, 1).instance = Some("later".into());
    });
    assert_eq!(later, Plan::default());
    let ends = asked(|_, o| {
        ask(o, 0, 1);
        pod(o, 0, 1).terminating = true;
    });
    assert_eq!(ends.step, None);
}

#[test]
fn one_node_goes_at_a_time_whatever_may_be_down_and_the_elected_master_last() {
    let all = |o: &mut ObservedCluster| {
        for (pool, ordinal) in [(0, 0), (0, 1), (1, 0)] {
            ask(o, pool, ordinal);
        }
    };
    assert_eq!(goes(&asked(|_, o| all(o))), Some("ex-demo-b-0"));
    let elected = asked(|_, o| {
        all(o);
        pilot(o, 1, 0).elected = true;
    });
    assert_eq!(goes(&elected), Some("ex-demo-a-1"));
    let other_is_down = asked(|d, o| {
        all(o);
        d.strategy.unavailable = IntOrString::Int(3);
        pod(o, 0, 1).ready = false;
    });
    assert_eq!(
        (goes(&other_is_down), other_is_down.waiting.as_ref().unwrap().pilot.as_str()),
        (None, "ex-demo-a-1")
    );
}

#[test]
fn a_request_is_carried_out_before_the_spec_and_after_what_is_broken() {
    let roll = asked(|_, o| {
        ask(o, 0, 0);
        pod(o, 0, 1).hash = "old".into();
    });
    assert_eq!(goes(&roll), Some("ex-demo-a-0"), "with whatever template its next pod has");
    let broken = asked(|_, o| {
        ask(o, 0, 0);
        pod(o, 1, 0).ready = false;
        pod(o, 1, 0).hash = "old".into();
        pod(o, 1, 0).trouble = Some(PodFailure::default());
    });
    assert!(matches!(broken.step, Some(PlannedStep::Replace { .. })), "{broken:?}");
}

#[test]
fn what_holds_a_restart_holds_a_request_by_its_own_name() {
    type Change = fn(&mut DesiredCluster, &mut ObservedCluster);
    let rows: [(&str, Change); 3] = [
        ("PeersUp", |_, o| pilot(o, 0, 1).blockers = vec![BlockerFacts::of_stop("PeersUp", "one")]),
        ("PeersReady", |_, o| pilot(o, 1, 0).hearing.ago = 2 * MINUTE),
        ("DataOutlivesPod", |_, o| {
            let pod = pod(o, 0, 1);
            (pod.holds_data, pod.started) = (true, true);
            pilot(o, 0, 1).blockers = vec![BlockerFacts::of_stop("DataOutlivesPod", "no copy")];
        }),
    ];
    for (rule, change) in rows {
        let held = |skipped: bool| {
            asked(|d, o| {
                ask(o, 0, 1);
                change(d, o);
                if skipped {
                    d.strategy.skip_predicates.insert(rule.to_owned());
                }
            })
        };
        let plan = held(false);
        assert_eq!((goes(&plan), blocks(&plan)), (None, vec![(rule, "VacatePod/ex-demo-a-1")]));
        assert_eq!(plan.operation, Some(OperationType::Vacate));
        assert_eq!(goes(&held(true)), Some("ex-demo-a-1"), "{rule}");
    }
    let unheard = asked(|_, o| {
        ask(o, 0, 1);
        pilot(o, 0, 1).instance = Some("earlier".into());
    });
    let waiting = unheard.waiting.unwrap();
    assert_eq!((unheard.step, waiting.step), (None, VACATE_POD));
    assert!(waiting.is_ahead_of_its_step());
}

#[test]
fn a_node_that_cannot_run_goes_at_once_and_one_that_starts_or_is_held_does_not() {
    let broken = |change: fn(&mut ObservedCluster)| {
        asked(|_, o| {
            ask(o, 0, 1);
            pod(o, 0, 1).ready = false;
            change(o);
        })
    };
    let trouble: fn(&mut ObservedCluster) = |o| {
        pod(o, 0, 1).trouble =
            Some(PodFailure { reason: "ImagePullFailed", ..PodFailure::default() });
    };
    assert_eq!(goes(&broken(trouble)), Some("ex-demo-a-1"));
    assert_eq!(goes(&broken(|o| pilot(o, 0, 1).failed = true)), Some("ex-demo-a-1"));
    assert_eq!(goes(&broken(|_| ())), None, "it starts");
    assert_eq!(goes(&broken(|o| pilot(o, 0, 1).spec.phase = Some(PilotIntent::Fenced))), None);
    let in_pod = broken(|o| {
        pilot(o, 0, 1).failed = true;
        (pod(o, 0, 1).holds_data, pod(o, 0, 1).started) = (true, true);
    });
    assert_eq!(blocks(&in_pod), [("DataOutlivesPod", "VacatePod/ex-demo-a-1")]);
}

#[test]
fn a_node_that_waits_for_its_machine_is_expected_away() {
    let plan = asked(|_, o| waits_for_its_machine(o, 0, 1));
    assert_eq!((goes(&plan), &plan.waiting), (None, &None));
    assert_eq!(blocks(&plan), [("MachineCordoned", "WaitHealthy/ex-demo-a-1")]);
    let block = &plan.blocked[0];
    assert_eq!(block.message, "ex-demo-a-1 stays with its volume: machine m-a is cordoned");
    assert_eq!(block.remedy, Remedy::Uncordon { machine: "m-a".into() });
    let (mut desired, mut observed) = (desired(&[("a", 2)], "new"), observed(&[("a", 2)], "new"));
    placed(&mut observed);
    waits_for_its_machine(&mut observed, 0, 1);
    let plan = super::plan_next_step(&desired, &observed);
    let after =
        crate::controller::status::build_status(&desired, &observed, &plan, Timestamp::UNIX_EPOCH);
    assert!(after.conditions.iter().all(|found| found.type_ != "Stalled"), "{after:?}");
    desired.status = after;
    let much_later = Timestamp::from_second(1_000_000).unwrap();
    let after = crate::controller::status::build_status(&desired, &observed, &plan, much_later);
    assert!(after.conditions.iter().all(|found| found.type_ != "Stalled"), "{after:?}");
    let of = |observed: &mut ObservedCluster, message: &str| {
        pod(observed, 0, 1).trouble.as_mut().unwrap().message = message.to_owned();
        super::plan_next_step(&desired, observed)
    };
    let alone = of(&mut observed, "0/1 nodes are available: 1 node(s) were unschedulable.");
    let waits = "ex-demo-a-1 waits for machine m-a, which is cordoned: no other takes its pod";
    assert_eq!(alone.blocked[0].message, waits);
    let gone = "0/1 nodes are available: 1 node(s) had volume node affinity conflict.";
    let remedy = of(&mut observed, gone).waiting.unwrap().remedy;
    assert!(matches!(remedy, Remedy::GiveUp { .. }), "its machine is gone for good");
    let full = "0/2 nodes are available: 1 node(s) were unschedulable, 1 Insufficient cpu.";
    assert_eq!(of(&mut observed, full).waiting.unwrap().remedy, Remedy::Correct);
}

#[test]
fn others_of_the_same_machine_follow_where_only_calm_is_asked_for() {
    let follows = |pool: usize, ordinal: u32, rule: Option<&str>| {
        asked(|_, o| {
            waits_for_its_machine(o, 0, 1);
            ask(o, pool, ordinal);
            let found = rule.map(|rule| BlockerFacts::of_stop(rule, "one is down"));
            pilot(o, pool, ordinal).blockers = found.into_iter().collect();
        })
    };
    assert_eq!(goes(&follows(0, 0, None)), Some("ex-demo-a-0"));
    assert_eq!(goes(&follows(0, 0, Some("PeersUp"))), Some("ex-demo-a-0"));
    let available = follows(0, 0, Some("RangesKeepQuorum"));
    assert!(blocks(&available).contains(&("RangesKeepQuorum", "VacatePod/ex-demo-a-0")));
    let elsewhere = follows(1, 0, None);
    assert_eq!(goes(&elsewhere), None);
    let waits = ("MaxUnavailable", "VacatePod/ex-demo-b-0");
    assert!(blocks(&elsewhere).contains(&waits), "{elsewhere:?}");
    // A step of our own is no request.
    let roll = asked(|_, o| {
        waits_for_its_machine(o, 0, 1);
        pod(o, 0, 0).hash = "old".into();
    });
    assert_eq!(roll.step, None);
    assert!(blocks(&roll).contains(&("MaxUnavailable", "RecreatePod/ex-demo-a-0")), "{roll:?}");
}

/// Returns the answer to the request of a-1.
fn answered(change: impl FnOnce(&mut DesiredCluster, &mut ObservedCluster)) -> Option<String> {
    let (mut desired, mut observed) = (desired(&[("a", 2)], "new"), observed(&[("a", 2)], "new"));
    placed(&mut observed);
    ask(&mut observed, 0, 1);
    change(&mut desired, &mut observed);
    let plan = plan_next_step(&desired, &observed);
    let mut all = eviction_answers(&desired, &observed, &plan);
    assert!(all.len() <= 1, "{all:?}");
    all.pop().and_then(|answer| answer.waits)
}

#[test]
fn each_request_is_answered_with_what_it_waits_for() {
    type Change = fn(&mut DesiredCluster, &mut ObservedCluster);
    let rows: [(&str, Change); 6] = [
        ("PeersUp: one; wait, or add PeersUp to", |_, o| {
            pilot(o, 0, 1).blockers = vec![BlockerFacts::of_stop("PeersUp", "one")];
        }),
        ("VacateInProgress: ex-demo-a-0 is starting", |d, o| {
            d.status.conditions = vec![crate::controller::testing::sample::initialized()];
            pod(o, 0, 0).ready = false;
        }),
        ("VacateInProgress: step VacatePod of ex-demo-a-0 comes first", |_, o| {
            ask(o, 0, 0);
            pilot(o, 0, 1).elected = true;
        }),
        ("PhaseHeld: ex-demo-a-1 is kept Fenced", |_, o| {
            pod(o, 0, 1).ready = false;
            pilot(o, 0, 1).spec.phase = Some(PilotIntent::Fenced);
        }),
        ("ClusterPaused: ", |d, _| d.paused = true),
        ("StoreMismatch: not ours", |d, _| {
            d.stalled = Some(StallCause { reason: "StoreMismatch", message: "not ours".into() });
        }),
    ];
    for (wanted, change) in rows {
        let answer = answered(change).unwrap_or_default();
        assert!(answer.starts_with(wanted), "{wanted}: {answer}");
    }
    assert_eq!(answered(|_, _| ()), None, "it goes");
}

#[test]
fn an_answer_is_taken_back_with_its_request() {
    let (desired, mut observed) = (desired(&[("a", 2)], "new"), observed(&[("a", 2)], "new"));
    pilot(&mut observed, 0, 1).leave_waits = Some("PeersUp: one".into());
    let found = eviction_answers(&desired, &observed, &Plan::default());
    assert_eq!((found.len(), &found[0].waits), (1, &None));
    pilot(&mut observed, 0, 1).leave_waits = None;
    assert_eq!(eviction_answers(&desired, &observed, &Plan::default()), []);
    pilot(&mut observed, 0, 1).leave_waits = Some("PeersUp: one".into());
    pilot(&mut observed, 0, 1).owned = false;
    assert_eq!(eviction_answers(&desired, &observed, &Plan::default()), []);
}

#[test]
fn a_request_that_a_rule_holds_for_an_hour_is_told_once() {
    let (mut desired, mut observed) = (desired(&[("a", 2)], "new"), observed(&[("a", 2)], "new"));
    placed(&mut observed);
    ask(&mut observed, 0, 1);
    pilot(&mut observed, 0, 1).blockers = vec![BlockerFacts::of_stop("PeersUp", "one is down")];
    let planned = plan_next_step(&desired, &observed);
    let mut told = Vec::new();
    for minute in [0, 59, 61, 90] {
        let now = Timestamp::from_second(60 * minute).unwrap();
        let after = crate::controller::status::build_status(&desired, &observed, &planned, now);
        let events =
            crate::controller::events::notices_for_status(&desired.status, &after, &planned);
        let held = events.into_iter().filter(|event| event.reason == "VacateHeld");
        told.extend(held.map(|event| (minute, event.note)));
        desired.status = after;
    }
    let note = "a node was asked to leave its machine an hour ago: PeersUp: one is down";
    assert_eq!(told, [(61, note.to_owned())]);
    assert_eq!(planned.step, None, "and nothing is forced");
}
