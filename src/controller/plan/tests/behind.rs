//! Replicas that are behind: what they hold, and what leads on.

use super::{
    ways_out::{give_up, lose},
    *,
};
use crate::controller::{BehindReplica, observe::BehindFacts, plan::drain_hold};

/// Has the pilot of a node of the first pool report that its replica is behind.
fn fall_behind(observed: &mut ObservedCluster, ordinal: u32) {
    let report = BehindReplica {
        since: Timestamp::UNIX_EPOCH,
        away_since: None,
        repair: "repair",
        repair_beside_lost: "repair --force",
    };
    pilot(observed, 0, ordinal).behind = Some(BehindFacts { report, report_flaw: None });
}

/// Returns the block of `ReplicaBehind`, where that is all that holds the cluster.
fn block(plan: &Plan) -> &StepBlocker {
    assert_eq!(plan.step, None);
    let mut blocks = plan.blocked.iter().filter(|block| block.predicate == "ReplicaBehind");
    blocks.next().unwrap_or_else(|| panic!("{plan:?}"))
}

type Change<'a> = &'a dyn Fn(&mut DesiredCluster, &mut ObservedCluster);

#[test]
fn give_up_waits_for_repair_of_another_replica() {
    let plan = |change: Change<'_>| {
        planned(&[("a", 3)], &[("a", 3)], |d, o| {
            lose(o, 0, 1);
            give_up(o, 0, 1);
            change(d, o);
        })
    };
    let renews = |plan: &Plan| matches!(plan.step, Some(PlannedStep::Renew { .. }));
    assert!(renews(&plan(&|_, _| ())));
    let held = plan(&|_, o| fall_behind(o, 0));
    assert!(held.is_blocked(), "its data are given up already: {held:?}");
    let block = block(&held);
    assert_eq!(block.step, "RecreatePod/ex-demo-a-1");
    assert_eq!(
        block.message,
        "ex-demo-a-0 took the place of a lost node at 1970-01-01T00:00:00Z: it may lack writes that \
         ex-demo-a-1 has"
    );
    let hint = block.remedy.to_string();
    assert!(hint.contains("exec ex-demo-a-0 -c example -- repair --force, "), "{hint}");
    assert!(hint.contains("pilot ex-demo-a-0 \"navigator.jetstack.io/repaired="), "{hint}");
    assert!(hint.ends_with("add ReplicaBehind to spec.updateStrategy.skipPredicates"), "{hint}");
    assert!(block.remedy.needs_person());

    assert!(renews(&plan(&|_, o| fall_behind(o, 1))), "its own state holds no replacement");
    let skips = |name: &str| {
        plan(&|d, o| {
            fall_behind(o, 0);
            d.strategy.skip_predicates.insert(name.into());
        })
    };
    assert!(renews(&skips("ReplicaBehind")));
    assert!(!renews(&skips("*")), "it is skipped by its name alone");
    // A pilot that does not report any more is believed as it reported last.
    let silent = plan(&|_, o| {
        fall_behind(o, 0);
        pilot(o, 0, 0).hearing = HeartbeatAge::default();
        pilot(o, 0, 0).marked_unheard = true;
    });
    assert!(!renews(&silent));
    let left = plan(&|_, o| {
        fall_behind(o, 0);
        pilot(o, 0, 0).decommissioned = true;
    });
    assert!(left.blocked.iter().all(|block| block.predicate != "ReplicaBehind"), "{left:?}");
}

#[test]
fn departure_waits_for_repair_of_another_replica() {
    let plan = |ordinal: Option<u32>| {
        planned(&[("a", 2)], &[("a", 3)], |_, o| {
            if let Some(ordinal) = ordinal {
                fall_behind(o, ordinal);
            }
        })
    };
    let leaves = Some(PlannedStep::Decommission { pilot: "ex-demo-a-2".into() });
    assert_eq!(plan(None).step, leaves);
    assert_eq!(plan(Some(2)).step, leaves, "it hands over what it has");
    let held = plan(Some(0));
    assert_eq!(block(&held).step, "DrainPilot/ex-demo-a-2");
    let hint = block(&held).remedy.to_string();
    assert!(hint.contains("-- repair, "), "all serve: {hint}");
}

#[test]
fn lost_node_is_not_removed_or_forgotten_beside_replica_behind() {
    let plan = |behind: bool, change: &dyn Fn(&mut ObservedCluster)| {
        planned(&[("a", 2)], &[("a", 3)], |_, o| {
            lose(o, 0, 2);
            give_up(o, 0, 2);
            pilot(o, 0, 2).node_id = Some("lost-id".into());
            change(o);
            if behind {
                fall_behind(o, 1);
            }
        })
    };
    let removed = |o: &mut ObservedCluster| {
        o.pools[0].set.as_mut().unwrap().replicas = 2;
        member(o, 0, 2).pod = None;
    };
    let unclaimed = |o: &mut ObservedCluster| {
        removed(o);
        member(o, 0, 2).claim = None;
    };
    let asked = |o: &mut ObservedCluster| {
        unclaimed(o);
        pilot(o, 0, 0).spec.forget = vec!["lost-id".into()];
    };
    let changes: [&dyn Fn(&mut ObservedCluster); 3] = [&|_| (), &removed, &unclaimed];
    for (name, change) in ["Remove", "DeleteClaim", "Forget"].into_iter().zip(changes) {
        let step = plan(false, change).step.unwrap();
        assert!(format!("{step:?}").starts_with(name), "{step:?}");
        assert!(block(&plan(true, change)).message.contains("ex-demo-a-1 took"), "{name}");
    }
    let goes_on = plan(true, &asked);
    assert!(goes_on.blocked.is_empty() && goes_on.waiting.is_some(), "{goes_on:?}");
}

#[test]
fn data_in_pods_wait_for_repair_of_another_replica() {
    let plan = |behind: bool| {
        planned(&[("a", 3)], &[("a", 3)], |d, o| {
            d.strategy.skip_predicates.insert("DataOutlivesPod".into());
            d.strategy.restarts_in_place = false;
            for ordinal in 0..3 {
                pod(o, 0, ordinal).holds_data = true;
                pod(o, 0, ordinal).hash = "old".into();
            }
            if behind {
                fall_behind(o, 0);
            }
        })
    };
    assert!(matches!(plan(false).step, Some(PlannedStep::Restart { .. })), "{:?}", plan(false));
    let next = plan(true).step;
    // The replica that is behind may go itself.
    assert!(
        matches!(&next, Some(PlannedStep::Restart { pilot, .. }) if pilot == "ex-demo-a-0"),
        "{next:?}"
    );
}

#[test]
fn restarts_and_drains_go_on_beside_replica_behind() {
    let rolls = planned(&[("a", 3)], &[("a", 3)], |_, o| {
        pod(o, 0, 2).hash = "old".into();
        fall_behind(o, 0);
    });
    assert!(matches!(rolls.step, Some(PlannedStep::Restart { .. })), "{rolls:?}");
    let hold = |in_pods: bool, skipped: bool| {
        let (mut desired, mut observed) =
            (desired(&[("a", 2)], "new"), observed(&[("a", 3)], "new"));
        fall_behind(&mut observed, 0);
        pod(&mut observed, 0, 1).holds_data = in_pods;
        desired.strategy.skip_predicates.insert("DataOutlivesPod".into());
        if skipped {
            desired.strategy.skip_predicates.insert("ReplicaBehind".into());
            desired.pools[0].replicas = 3;
        }
        let plan = plan_next_step(&desired, &observed);
        drain_hold(&desired, &observed, &plan).map(|hold| hold.reason)
    };
    assert_eq!(hold(false, false), None, "a departure that waits holds no drain");
    assert_eq!(hold(true, false).as_deref(), Some("ReplicaBehind"));
    assert_eq!(hold(true, true), None);
}
