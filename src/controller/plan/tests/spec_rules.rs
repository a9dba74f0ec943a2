//! Rules against another spec: they hold its restart, and nothing else.

use super::*;
use crate::api::{leave_request::LeaveRequest, v1beta1::NodeChange};

/// Makes the node of pool `a` one that judged a new configuration, and reports `rule` against it.
fn held(observed: &mut ObservedCluster, rule: &str) {
    held_of(observed, 0, rule);
}

fn held_of(observed: &mut ObservedCluster, pool: usize, rule: &str) {
    let found = pilot(observed, pool, 0);
    found.running_hash = Some("old".into());
    found.validated = Some(Ok(()));
    let (predicate, message) = (rule.to_owned(), "3 shards are left".to_owned());
    found.blockers = vec![BlockerFacts { predicate, message, against: vec![NodeChange::Stop] }];
}

#[test]
fn a_node_whose_data_move_first_restarts_after_that_whatever_is_skipped() {
    let one = [("a", 1), ("b", 2)];
    let restart = PlannedStep::Restart { pilot: "ex-demo-a-0".into(), pod: "pod-0".into() };
    let after = planned(&one, &one, |_, o| {
        held(o, "DataMoved");
        pilot(o, 0, 0).blockers.clear();
    });
    assert_eq!(after.step, Some(restart));
    for (rule, remedy) in [("DataMoved", Remedy::Wait), ("DataMayMove", Remedy::RevertSpec)] {
        let plan = planned(&one, &one, |d, o| {
            held(o, rule);
            d.strategy.skip_predicates.extend(["*".to_owned(), rule.to_owned()]);
        });
        assert_eq!(plan.step, None, "{rule}");
        assert_eq!((&*plan.blocked[0].predicate, &plan.blocked[0].remedy), (rule, &remedy));
    }
}

#[test]
fn an_edit_that_is_taken_back_reaches_a_node_that_its_rule_holds() {
    let one = [("a", 1), ("b", 2)];
    for rule in ["DataMoved", "DataMayMove"] {
        let told_another = |o: &mut ObservedCluster| {
            held(o, rule);
            pilot(o, 0, 0).spec.config_hash = Some("without data".into());
        };
        let plan = planned(&one, &one, |_, o| told_another(o));
        let configure = PlannedStep::Configure { pilot: "ex-demo-a-0".into() };
        assert_eq!(plan.step, Some(configure), "{rule}");
        // With another version the node gets both at once.
        let plan = planned(&one, &one, |_, o| {
            told_another(o);
            pilot(o, 0, 0).spec.version = Some("1.0.0".into());
        });
        assert!(matches!(plan.step, Some(PlannedStep::Restart { .. })), "{rule}: {plan:?}");
    }
}

#[test]
fn a_rule_that_needs_a_person_is_told_beside_one_that_ends_by_itself() {
    let pools = [("a", 1), ("b", 1)];
    for (a, b) in [("DataMoved", "DataMayMove"), ("DataMayMove", "DataMoved")] {
        let plan = planned(&pools, &pools, |_, o| {
            held_of(o, 0, a);
            held_of(o, 1, b);
        });
        let told: Vec<&Remedy> = plan.blocked.iter().map(|block| &block.remedy).collect();
        assert!(told.contains(&&Remedy::RevertSpec), "{a}, {b}: {told:?}");
        assert_eq!(plan.step, None);
    }
}

#[test]
fn a_node_whose_data_move_first_hides_no_growth() {
    // The pool that takes its place comes in the same edit.
    for rule in ["DataMoved", "DataMayMove"] {
        let plan = planned(&[("a", 1), ("b", 2)], &[("a", 1), ("b", 0)], |_, o| held(o, rule));
        assert_eq!(plan.step, Some(PlannedStep::Raise { pool: "b".into(), to: 1 }), "{rule}");
        assert_eq!(&*plan.blocked[0].predicate, rule);
    }
}

#[test]
fn a_rule_against_another_spec_holds_neither_an_eviction_nor_a_request_to_leave() {
    let pools = [("a", 1), ("b", 1), ("c", 1)];
    let (desired, mut observed) = (desired(&pools, "new"), observed(&pools, "new"));
    held(&mut observed, "DataMayMove");
    assert_eq!(drain_hold(&desired, &observed, &plan_next_step(&desired, &observed)), None);
    pod(&mut observed, 0, 0).machine = Some("m".into());
    let asked = LeaveRequest { pod: "pod-0".into(), by: "a person".into() };
    pilot(&mut observed, 0, 0).leave = Some(asked);
    let step = plan_next_step(&desired, &observed).step;
    assert!(matches!(step, Some(PlannedStep::Vacate { .. })), "{step:?}");
    pilot(&mut observed, 0, 0).leave = None;
    pilot(&mut observed, 0, 0).blockers[0].predicate = "PeersUp".into();
    let hold = drain_hold(&desired, &observed, &plan_next_step(&desired, &observed)).unwrap();
    assert_eq!(hold.reason, "PeersUp");
}
