//! Tests of the step that follows from each state; `searches` has random walks through a simulated
//! cluster.

mod behind;
mod lost_quorum;
mod pins;
mod room;
mod searches;
mod spec_rules;
mod vacate;
mod volumes;
mod ways_out;

use std::time::Duration;

use k8s_openapi::{apimachinery::pkg::util::intstr::IntOrString, jiff::Timestamp};

use super::*;
use crate::{
    api::v1beta1::{NodeChange, PilotIntent, Retention},
    controller::{
        heartbeats::HeartbeatAge,
        observe::{BlockerFacts, CleanupFacts, Member, PilotFacts, PodFacts, PodFailure},
        testing::sample::{desired, observed},
    },
};

/// Returns the plan, after `change`, for a cluster that served before.
fn planned(
    sizes: &[(&str, u32)],
    running: &[(&str, u32)],
    change: impl FnOnce(&mut DesiredCluster, &mut ObservedCluster),
) -> Plan {
    let mut desired = desired(sizes, "new");
    let mut observed = observed(running, "new");
    change(&mut desired, &mut observed);
    plan_next_step(&desired, &observed)
}

fn member(observed: &mut ObservedCluster, pool: usize, ordinal: u32) -> &mut Member {
    observed.pools[pool].members.get_mut(&ordinal).unwrap()
}

fn pilot(observed: &mut ObservedCluster, pool: usize, ordinal: u32) -> &mut PilotFacts {
    member(observed, pool, ordinal).pilot.as_mut().unwrap()
}

fn pod(observed: &mut ObservedCluster, pool: usize, ordinal: u32) -> &mut PodFacts {
    member(observed, pool, ordinal).pod.as_mut().unwrap()
}

fn leaving(observed: &mut ObservedCluster, ordinal: u32) {
    let pilot = pilot(observed, 0, ordinal);
    pilot.spec.phase = Some(PilotIntent::Decommissioned);
    pilot.phase_ours = true;
}

/// The ServiceAccount was deleted and made again long ago: every existing pod has a token of the
/// earlier one, until `by`, and its Pilot is marked as silent.
pub(in crate::controller) fn lose_account(observed: &mut ObservedCluster, by: Timestamp) {
    for member in observed.pools.iter_mut().flat_map(|pool| pool.members.values_mut()) {
        let Some(pod) = &mut member.pod else { continue };
        pod.token_renewed_by = Some(by);
        if let Some(pilot) = &mut member.pilot {
            (pilot.ready, pilot.marked_unheard) = (false, true);
            pilot.not_ready = Some("PilotTurnedAway: the pilot was last heard of at noon".into());
            pilot.hearing = HeartbeatAge { ago: 2 * MINUTE, ..HeartbeatAge::STEADY };
        }
    }
}

#[test]
fn nothing_is_done_while_all_is_as_desired() {
    assert_eq!(planned(&[("a", 3)], &[("a", 3)], |_, _| ()), Plan::default());
}

#[test]
fn nothing_is_done_while_paused_deleted_or_stalled() {
    for change in [
        |d: &mut DesiredCluster, _: &mut ObservedCluster| d.paused = true,
        |d: &mut DesiredCluster, _: &mut ObservedCluster| d.deleted = true,
        |_: &mut DesiredCluster, o: &mut ObservedCluster| {
            o.stalled = Some(crate::controller::desired_state::StallCause {
                reason: "ForeignObject",
                message: String::new(),
            });
        },
    ] {
        assert_eq!(planned(&[("a", 3)], &[("a", 1)], change), Plan::default());
    }
}

#[test]
fn pools_grow_one_node_at_a_time_in_the_order_of_the_spec() {
    let step = |running: &[(&str, u32)]| planned(&[("a", 2), ("b", 1)], running, |_, _| ()).step;
    let raise = |pool: &str, to| Some(PlannedStep::Raise { pool: pool.into(), to });
    assert_eq!(step(&[("a", 0), ("b", 0)]), raise("a", 1));
    assert_eq!(step(&[("a", 1), ("b", 0)]), raise("a", 2));
    assert_eq!(step(&[("a", 2), ("b", 0)]), raise("b", 1));
    assert_eq!(step(&[("a", 2), ("b", 1)]), None);
}

#[test]
fn growth_waits_for_every_node_to_serve() {
    let plan = planned(&[("a", 3)], &[("a", 2)], |_, o| pod(o, 0, 0).ready = false);
    assert_eq!(plan.step, None);
    assert_eq!(plan.waiting.unwrap().pilot, "ex-demo-a-0");
}

#[test]
fn nodes_with_data_come_back_all_at_once() {
    let plan = planned(&[("a", 3)], &[("a", 3)], |_, o| {
        for member in o.pools[0].members.values_mut() {
            member.pod = None;
        }
        o.pools[0].set.as_mut().unwrap().replicas = 0;
    });
    assert_eq!(plan.step, Some(PlannedStep::Return { pool: "a".into(), to: 3 }));
}

#[test]
fn kept_volume_bound_late_brings_node_back() {
    // A namespace was put back from a copy of its objects. The StatefulSet was made while two of three
    // claims were bound. The Pilot has no status, and notes the claims of the day when it was made.
    let after = |change: fn(&mut Member)| {
        planned(&[("a", 3)], &[("a", 3)], |_, o| {
            o.pools[0].set.as_mut().unwrap().replicas = 2;
            pilot(o, 0, 0).blockers = vec![BlockerFacts {
                predicate: "CopiesElsewhere".to_owned(),
                message: "10.0.0.3 down as seen from here".to_owned(),
                against: vec![NodeChange::Join],
            }];
            let member = member(o, 0, 2);
            let pilot = member.pilot.as_mut().unwrap();
            (pilot.identity, pilot.answered, pilot.checked, pilot.ready) =
                (false, false, false, false);
            (pilot.instance, pilot.earlier_claim) = (None, Some(String::new()));
            member.pod = None;
            change(member);
        })
    };
    let returns = Some(PlannedStep::Return { pool: "a".into(), to: 3 });
    assert_eq!(after(|_| ()).step, returns);
    assert_eq!(after(|member| member.pilot = None).step, returns, "no Pilot was put back");
    let joins = |change| {
        let plan = after(change);
        assert_eq!(plan.step, None);
        assert_eq!(plan.blocked[0].step, "StartPilot");
    };
    joins(|member| member.claim = None);
    joins(|member| member.claim.as_mut().unwrap().holds_data = false);
    joins(|member| member.pilot.as_mut().unwrap().checked = true);
}

#[test]
fn the_last_node_is_drained_and_removed_only_after_it_left() {
    let plan = planned(&[("a", 2)], &[("a", 3)], |_, _| ());
    assert_eq!(plan.step, Some(PlannedStep::Decommission { pilot: "ex-demo-a-2".into() }));
    let waits = planned(&[("a", 2)], &[("a", 3)], |_, o| leaving(o, 2));
    assert_eq!((waits.step, waits.waiting.unwrap().step), (None, "DrainPilot"));
    let plan = planned(&[("a", 2)], &[("a", 3)], |_, o| {
        leaving(o, 2);
        pilot(o, 0, 2).decommissioned = true;
    });
    let remove = PlannedStep::Remove { pool: "a".into(), pilot: "ex-demo-a-2".into(), to: 2 };
    assert_eq!(plan.step, Some(remove));
}

#[test]
fn a_drain_is_taken_back_until_it_is_past_return() {
    let plan = planned(&[("a", 3)], &[("a", 3)], |_, o| leaving(o, 2));
    assert_eq!(plan.step, Some(PlannedStep::Keep { pilot: "ex-demo-a-2".into() }));
    let plan = planned(&[("a", 3)], &[("a", 3)], |_, o| {
        leaving(o, 2);
        pilot(o, 0, 2).irreversible = true;
    });
    assert_eq!(plan.step, None);
}

#[test]
fn what_a_gone_node_leaves_is_removed_claim_first() {
    let gone = |o: &mut ObservedCluster| {
        leaving(o, 2);
        pilot(o, 0, 2).decommissioned = true;
        member(o, 0, 2).pod = None;
        o.pools[0].set.as_mut().unwrap().replicas = 2;
    };
    let plan = planned(&[("a", 2)], &[("a", 3)], |_, o| gone(o));
    assert!(matches!(plan.step, Some(PlannedStep::DeleteClaim { .. })), "{plan:?}");
    let plan = planned(&[("a", 2)], &[("a", 3)], |_, o| {
        gone(o);
        member(o, 0, 2).claim = None;
    });
    let uid = "pilot-2".into();
    assert_eq!(plan.step, Some(PlannedStep::DeletePilot { pilot: "ex-demo-a-2".into(), uid }));
}

#[test]
fn retained_claim_outlives_its_node() {
    let plan = planned(&[("a", 2)], &[("a", 3)], |d, o| {
        let retention = Retention { when_scaled: Some("Retain".into()), when_deleted: None };
        d.pools[0].persistence.as_mut().unwrap().retention = Some(retention);
        leaving(o, 2);
        pilot(o, 0, 2).decommissioned = true;
        member(o, 0, 2).pod = None;
        o.pools[0].set.as_mut().unwrap().replicas = 2;
    });
    assert!(matches!(plan.step, Some(PlannedStep::DeletePilot { .. })), "{plan:?}");
}

#[test]
fn ending_pod_blocks_restarts_and_departures() {
    let after = |wanted: u32, ends: bool| {
        planned(&[("a", wanted)], &[("a", 3)], |_, o| {
            pod(o, 0, 0).hash = "old".into();
            o.pools[0].set.as_mut().unwrap().replicas = 2;
            if ends {
                pilot(o, 0, 2).decommissioned = true;
                pod(o, 0, 2).terminating = true;
            } else {
                o.pools[0].members.remove(&2);
            }
        })
    };
    assert_eq!(after(2, true).step, None);
    assert!(matches!(after(2, false).step, Some(PlannedStep::Restart { .. })));
    assert_eq!(after(1, true).step, None);
    assert!(matches!(after(1, false).step, Some(PlannedStep::Decommission { .. })));
}

#[test]
fn report_against_a_departure_blocks_it() {
    let with_report = |skipped: &[&str]| {
        planned(&[("a", 2)], &[("a", 3)], |d, o| {
            d.strategy.skip_predicates.extend(skipped.iter().map(|name| (*name).to_owned()));
            // The pilot of another node does not decide about this decommission.
            for (ordinal, message) in [(0, "another node"), (2, "no room")] {
                pilot(o, 0, ordinal).blockers = vec![BlockerFacts {
                    predicate: "NoShardMovement".into(),
                    message: message.into(),
                    against: vec![NodeChange::Stop, NodeChange::Leave],
                }];
            }
        })
    };
    let blocked = with_report(&[]);
    assert_eq!(blocked.step, None);
    let block = &blocked.blocked[0];
    assert_eq!(block.step, "DrainPilot/ex-demo-a-2");
    assert_eq!(block.message, "ex-demo-a-2: no room");
    let step = Some(PlannedStep::Decommission { pilot: "ex-demo-a-2".into() });
    assert_eq!(with_report(&["NoShardMovement"]).step, step);
}

#[test]
fn a_pilot_made_for_growth_that_met_a_conflict_is_kept() {
    let plan = planned(&[("a", 2)], &[("a", 2)], |_, o| {
        o.pools[0].set.as_mut().unwrap().replicas = 1;
        let member = member(o, 0, 1);
        (member.pod, member.claim) = (None, None);
        let pilot = member.pilot.as_mut().unwrap();
        (pilot.ready, pilot.identity) = (false, false);
    });
    assert_eq!(plan.step, Some(PlannedStep::Raise { pool: "a".into(), to: 2 }));
}

#[test]
fn a_node_that_never_ran_is_removed_without_a_drain() {
    let plan = planned(&[("a", 1)], &[("a", 2)], |_, o| {
        *pod(o, 0, 1) = PodFacts::default();
        let pilot = pilot(o, 0, 1);
        (pilot.ready, pilot.identity) = (false, false);
    });
    let remove = PlannedStep::Remove { pool: "a".into(), pilot: "ex-demo-a-1".into(), to: 1 };
    assert_eq!(plan.step, Some(remove));
}

/// Plans for two nodes where one is wanted. The database of node 1 ended before it answered its
/// pilot.
fn with_a_node_that_never_served(
    change: impl FnOnce(&mut DesiredCluster, &mut ObservedCluster),
) -> Plan {
    planned(&[("a", 1)], &[("a", 2)], |d, o| {
        pod(o, 0, 1).ready = false;
        let pilot = pilot(o, 0, 1);
        (pilot.ready, pilot.failed, pilot.idle) = (false, true, true);
        (pilot.identity, pilot.answered) = (false, false);
        change(d, o);
    })
}

#[test]
fn a_node_that_cannot_start_and_never_served_is_given_up_when_nobody_wants_it() {
    let remove = Some(PlannedStep::Remove { pool: "a".into(), pilot: "ex-demo-a-1".into(), to: 1 });
    assert_eq!(with_a_node_that_never_served(|_, _| ()).step, remove);
    // The pilot could read the older volume, so its contents are known.
    let older = |o: &mut ObservedCluster| pilot(o, 0, 1).earlier_claim = Some("claim-1".into());
    assert_eq!(with_a_node_that_never_served(|_, o| older(o)).step, remove);
    let gone = |d: &mut DesiredCluster| d.pools = desired(&[("b", 1)], "new").pools;
    assert_eq!(with_a_node_that_never_served(|d, _| gone(d)).step, remove, "with its pool");
}

#[test]
fn a_node_that_was_told_to_leave_and_never_joined_is_given_up() {
    let remove = Some(PlannedStep::Remove { pool: "a".into(), pilot: "ex-demo-a-1".into(), to: 1 });
    let told = |joined: bool| {
        with_a_node_that_never_served(|_, o| {
            let pilot = pilot(o, 0, 1);
            pilot.spec.phase = Some(PilotIntent::Decommissioned);
            pilot.phase_ours = true;
            pilot.answered = joined;
        })
    };
    assert_eq!(told(false).step, remove);
    assert_eq!(told(true).step, None);
}

#[test]
fn a_node_that_may_have_joined_is_never_given_up() {
    type Change = fn(&mut ObservedCluster);
    let changes: [(&str, Change); 8] = [
        ("it is or was a member", |o| pilot(o, 0, 1).identity = true),
        ("its database answered once", |o| pilot(o, 0, 1).answered = true),
        ("its database runs", |o| pilot(o, 0, 1).idle = false),
        ("its pilot is silent", |o| pilot(o, 0, 1).hearing.ago = MINUTE),
        ("the pilot of another pod said so", |o| pilot(o, 0, 1).instance = Some("x".into())),
        ("its pod is ready", |o| pod(o, 0, 1).ready = true),
        ("a person holds it", |o| pilot(o, 0, 1).spec.phase = Some(PilotIntent::Fenced)),
        ("nobody else founded the cluster", |o| pilot(o, 0, 0).identity = false),
    ];
    for (why, change) in changes {
        let plan = with_a_node_that_never_served(|_, o| change(o));
        assert!(!matches!(plan.step, Some(PlannedStep::Remove { .. })), "{why}: {plan:?}");
        let leaves = |waiting: AwaitedStep| waiting.message.contains("only once it serves");
        let way_out = plan.waiting.is_some_and(leaves);
        assert!(way_out || plan.blocked[0].remedy.to_string().contains("back to Running"), "{why}");
    }
    let alone = |emptied: bool| {
        with_a_node_that_never_served(|d, o| {
            d.pools = desired(&[("b", 1)], "new").pools;
            pilot(o, 0, 0).identity = false;
            pilot(o, 0, 1).emptied = emptied;
        })
    };
    let remove = PlannedStep::Remove { pool: "a".into(), pilot: "ex-demo-a-1".into(), to: 1 };
    assert_eq!(
        alone(true).step,
        Some(remove),
        "with its pool went the spec that could be corrected"
    );
    assert_eq!(alone(false).step, None, "its volume may hold data");
    let unread = with_a_node_that_never_served(|_, o| {
        pilot(o, 0, 1).earlier_claim = Some("claim-1".into());
        pilot(o, 0, 1).checked = false;
    });
    assert_eq!(unread.step, None, "its volume is older, and its pilot could not read it");
}

#[test]
fn a_node_on_a_volume_that_is_older_than_its_pilot_is_no_empty_one() {
    let plan = planned(&[("a", 1)], &[("a", 2)], |_, o| {
        *pod(o, 0, 1) = PodFacts::default();
        let pilot = pilot(o, 0, 1);
        (pilot.ready, pilot.identity, pilot.answered) = (false, false, false);
        pilot.earlier_claim = Some("claim-1".into());
    });
    assert_eq!(plan.step, None, "the cluster was made again, and the pod has not started yet");
    let plan = planned(&[("a", 1)], &[("a", 2)], |_, o| {
        *pod(o, 0, 1) = PodFacts::default();
        let pilot = pilot(o, 0, 1);
        (pilot.ready, pilot.identity, pilot.answered) = (false, false, false);
        (pilot.checked, pilot.earlier_claim) = (false, None);
    });
    assert_eq!(plan.step, None, "nobody noted what was there");
}

#[test]
fn a_node_that_left_goes_when_nobody_wants_it_whoever_told_it_to_leave() {
    let plan = planned(&[("a", 1)], &[("a", 2)], |_, o| {
        pod(o, 0, 1).ready = false;
        pilot(o, 0, 1).spec.phase = Some(PilotIntent::Decommissioned);
        pilot(o, 0, 1).decommissioned = true;
    });
    let remove = PlannedStep::Remove { pool: "a".into(), pilot: "ex-demo-a-1".into(), to: 1 };
    assert_eq!(plan.step, Some(remove));
}

#[test]
fn every_volume_that_an_earlier_cluster_left_gets_its_node_at_once() {
    let mut observed = observed(&[("a", 3)], "new");
    let pool = &mut observed.pools[0];
    for member in pool.members.values_mut() {
        (member.pod, member.pilot) = (None, None);
    }
    pool.set = None;
    assert_eq!(pool.initial_replicas(), 3);
    pool.members.get_mut(&0).unwrap().claim = None;
    assert_eq!(pool.initial_replicas(), 3, "a node whose volume is lost starts among the others");
    pool.members.get_mut(&2).unwrap().claim.as_mut().unwrap().holds_data = false;
    assert_eq!(pool.initial_replicas(), 2, "nothing was ever written to a claim without a volume");
}

#[test]
fn the_last_node_of_a_cluster_is_drained_only_where_the_ring_has_nodes_elsewhere() {
    let plan = planned(&[("a", 0)], &[("a", 1)], |_, _| ());
    assert_eq!(plan.step, None);
    assert_eq!(plan.blocked.len(), 1);
    let plan = planned(&[("a", 0)], &[("a", 1)], |desired, _| desired.nodes_elsewhere = true);
    assert_eq!(plan.step, Some(PlannedStep::Decommission { pilot: "ex-demo-a-0".into() }));
}

#[test]
fn a_pool_that_left_the_spec_is_drained_then_deleted() {
    let plan = planned(&[("a", 1)], &[("a", 1), ("b", 1)], |_, _| ());
    assert_eq!(plan.step, Some(PlannedStep::Decommission { pilot: "ex-demo-b-0".into() }));
    let plan = planned(&[("a", 1)], &[("a", 1), ("b", 0)], |_, _| ());
    let delete = PlannedStep::DeletePool { pool: "b".into(), set: "ex-demo-b".into() };
    assert_eq!(plan.step, Some(delete));
}

#[test]
fn a_roll_takes_the_last_ordinal_first_and_one_node_at_a_time() {
    let outdated = |o: &mut ObservedCluster, ordinals: &[u32]| {
        for ordinal in ordinals {
            pod(o, 0, *ordinal).hash = "old".into();
        }
    };
    let plan = planned(&[("a", 3)], &[("a", 3)], |_, o| outdated(o, &[0, 1, 2]));
    let restart = |ordinal: u32| {
        let pod = format!("pod-{ordinal}");
        Some(PlannedStep::Restart { pilot: format!("ex-demo-a-{ordinal}"), pod })
    };
    assert_eq!(plan.step, restart(2));
    let plan = planned(&[("a", 3)], &[("a", 3)], |_, o| {
        outdated(o, &[0, 1]);
        pod(o, 0, 2).ready = false;
    });
    assert_eq!(plan.step, None);
    let plan = planned(&[("a", 3)], &[("a", 3)], |_, o| outdated(o, &[0, 1]));
    assert_eq!(plan.step, restart(1));
}

#[test]
fn a_changed_setting_is_judged_by_a_running_node_before_it_costs_a_restart() {
    let name = "ex-demo-a-0".to_owned();
    let plan = planned(&[("a", 1)], &[("a", 1)], |_, o| {
        pilot(o, 0, 0).spec.config_hash = Some("old".into());
        pilot(o, 0, 0).running_hash = Some("old".into());
    });
    assert_eq!(plan.step, Some(PlannedStep::Configure { pilot: name.clone() }));
    assert_eq!(plan.operation, Some(OperationType::Configure));
    let after = |validated: Option<Result<(), String>>| {
        planned(&[("a", 2)], &[("a", 1)], |_, o| {
            pilot(o, 0, 0).running_hash = Some("old".into());
            pilot(o, 0, 0).validated = validated;
        })
    };
    let restart = PlannedStep::Restart { pilot: name.clone(), pod: "pod-0".into() };
    assert_eq!(after(Some(Ok(()))).step, Some(restart));
    for waits in [after(None), after(Some(Err("no".into())))] {
        assert_eq!((waits.step, waits.waiting.unwrap().pilot), (None, name.clone()));
    }
}

#[test]
fn another_version_comes_with_its_image() {
    let plan = planned(&[("a", 1)], &[("a", 1)], |_, o| {
        pilot(o, 0, 0).spec.config_hash = Some("old".into());
        pilot(o, 0, 0).spec.version = Some("4.1.10".into());
    });
    assert!(matches!(plan.step, Some(PlannedStep::Restart { .. })), "{plan:?}");
    assert_eq!(plan.operation, Some(OperationType::Upgrade));
}

#[test]
fn a_node_whose_database_cannot_run_is_told_the_newest_spec_whatever_else_is_wrong() {
    let step = |hash: &str| {
        planned(&[("a", 3)], &[("a", 3)], |_, o| {
            pod(o, 0, 0).ready = false;
            pod(o, 0, 1).ready = false;
            pod(o, 0, 1).hash = hash.into();
            let pilot = pilot(o, 0, 1);
            (pilot.ready, pilot.failed) = (false, true);
            pilot.spec.config_hash = Some("bad".into());
        })
        .step
    };
    let pilot = || "ex-demo-a-1".to_owned();
    assert_eq!(step("new"), Some(PlannedStep::Configure { pilot: pilot() }));
    assert_eq!(step("old"), Some(PlannedStep::Replace { pilot: pilot(), pod: "pod-1".into() }));
}

/// Pools whose name begins with `m` hold masters; pool 0, node `ordinal` is the elected one.
fn with_masters(observed: &mut ObservedCluster, elected: Option<u32>) {
    for pool in &mut observed.pools {
        let masters = pool.name.starts_with('m');
        for pilot in pool.members.values_mut().filter_map(|member| member.pilot.as_mut()) {
            pilot.eligible = masters;
        }
    }
    if let Some(ordinal) = elected {
        pilot(observed, 0, ordinal).elected = true;
    }
}

#[test]
fn the_elected_master_is_restarted_very_last_and_other_masters_after_the_rest() {
    let mut outdated = vec![(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)];
    let mut order = Vec::new();
    while !outdated.is_empty() {
        let plan = planned(&[("m", 3), ("d", 2)], &[("m", 3), ("d", 2)], |_, o| {
            with_masters(o, Some(2));
            for (pool, ordinal) in &outdated {
                pod(o, *pool, *ordinal).hash = "old".into();
            }
        });
        let Some(PlannedStep::Restart { pilot, .. }) = plan.step else { panic!("{plan:?}") };
        let next = |(pool, ordinal): &(usize, u32)| {
            pilot == format!("ex-demo-{}-{ordinal}", ["m", "d"][*pool])
        };
        outdated.retain(|node| !next(node));
        order.push(pilot.trim_start_matches("ex-demo-").to_owned());
    }
    assert_eq!(order, ["d-1", "d-0", "m-1", "m-0", "m-2"]);
}

#[test]
fn masters_are_made_first_wherever_the_spec_names_them() {
    let plan = planned(&[("d", 2), ("m", 3)], &[("d", 0), ("m", 0)], |d, _| {
        d.pools[1].eligible = true;
    });
    assert_eq!(plan.step, Some(PlannedStep::Raise { pool: "m".into(), to: 1 }));
}

#[test]
fn masters_leave_last_and_the_last_of_them_never() {
    let running = [("m", 3), ("d", 2)];
    let step =
        |wanted: [(&str, u32); 2]| planned(&wanted, &running, |_, o| with_masters(o, None)).step;
    let decommission = |pilot: &str| Some(PlannedStep::Decommission { pilot: pilot.into() });
    assert_eq!(step([("m", 1), ("d", 1)]), decommission("ex-demo-d-1"));
    assert_eq!(step([("m", 1), ("d", 2)]), decommission("ex-demo-m-2"));
    let plan = planned(&[("m", 0), ("d", 1)], &[("m", 1), ("d", 1)], |_, o| with_masters(o, None));
    assert_eq!((plan.step, &*plan.blocked[0].predicate), (None, "QuorumKept"));
}

#[test]
fn nodes_get_the_role_of_a_master_before_the_former_masters_leave() {
    let after = |told: bool, same_version: bool| {
        planned(&[("d", 2)], &[("d", 2), ("m", 3)], |d, o| {
            with_masters(o, None);
            d.pools[0].eligible = true;
            for ordinal in 0..2 {
                let pilot = pilot(o, 0, ordinal);
                pilot.eligible = told;
                pilot.spec.config_hash = Some("without the role".into());
            }
            if !same_version {
                d.version = "6.0.0".into();
            }
        })
        .step
    };
    let told = PlannedStep::Configure { pilot: "ex-demo-d-1".into() };
    assert_eq!(after(false, true), Some(told));
    let leaves = PlannedStep::Decommission { pilot: "ex-demo-m-2".into() };
    assert_eq!(after(true, true), Some(leaves.clone()));
    assert_eq!(after(false, false), Some(leaves), "another version waits for the pool to go");
}

#[test]
fn no_node_leaves_while_another_has_rows_of_ranges_that_it_gave_away() {
    let says = |due: bool| Some(CleanupFacts { due, message: "rows of: shop".into() });
    type Change = fn(&mut DesiredCluster, &mut ObservedCluster);
    let plan = |change: Change| planned(&[("a", 2)], &[("a", 3)], change);
    let leaves = Some(PlannedStep::Decommission { pilot: "ex-demo-a-2".into() });
    let owes: Change = |_, o| {
        pilot(o, 0, 1).cleanup = Some(CleanupFacts { due: true, message: "rows of: shop".into() });
    };
    let held = plan(owes);
    assert_eq!(held.step, None);
    let block = &held.blocked[0];
    assert_eq!((&*block.predicate, &*block.step), ("CleanupPending", "DrainPilot/ex-demo-a-2"));
    assert_eq!(block.message, "ex-demo-a-1: rows of: shop");
    assert!(
        block.remedy.to_string().contains("kubectl navigator cleanup demo"),
        "{}",
        block.remedy
    );
    for skip in ["CleanupPending", "*"] {
        let (mut desired, mut observed) =
            (desired(&[("a", 2)], "new"), observed(&[("a", 3)], "new"));
        pilot(&mut observed, 0, 1).cleanup = says(true);
        desired.strategy.skip_predicates.insert(skip.into());
        assert_eq!(super::plan_next_step(&desired, &observed).step, leaves, "{skip}");
    }
    let own: Change = |_, o| {
        pilot(o, 0, 2).cleanup = Some(CleanupFacts { due: true, message: String::new() });
    };
    assert_eq!(plan(own).step, leaves, "what it gave away it does not hand over");
    let grows = planned(&[("a", 3)], &[("a", 2)], owes);
    assert_eq!(grows.step, Some(PlannedStep::Raise { pool: "a".into(), to: 3 }));
    let begun = plan(|_, o| {
        pilot(o, 0, 1).cleanup = Some(CleanupFacts { due: true, message: String::new() });
        leaving(o, 2);
    });
    assert_eq!(begun.waiting.unwrap().step, "DrainPilot", "what was begun goes on");
}

#[test]
fn no_node_leaves_before_all_have_looked_at_the_ring_since_one_came() {
    let plan = |ago: u64, returned: u64, speaks: bool| {
        let (desired, mut observed) = (desired(&[("a", 2)], "new"), observed(&[("a", 3)], "new"));
        pilot(&mut observed, 0, 0).cleanup = speaks.then(CleanupFacts::default);
        pilot(&mut observed, 0, 0).hearing.ago = Duration::from_secs(ago);
        pilot(&mut observed, 0, 1).hearing.returned = Duration::from_secs(returned);
        super::plan_next_step(&desired, &observed)
    };
    let waits = plan(7, 5, true);
    assert_eq!(waits.step, None);
    let why = waits.waiting.unwrap().message;
    assert!(why.contains("until ex-demo-a-0 has said"), "{why}");
    assert!(plan(5, 7, true).step.is_some());
    assert!(plan(7, 5, false).step.is_some(), "an older pilot never says");
}

#[test]
fn on_delete_leaves_running_nodes_alone() {
    let plan = planned(&[("a", 1)], &[("a", 1)], |d, o| {
        d.strategy.on_delete = true;
        pod(o, 0, 0).hash = "old".into();
    });
    assert_eq!(plan, Plan::default());
}

#[test]
fn on_delete_mixes_no_versions_by_growing_or_shrinking() {
    let plan = |wanted: u32, older: bool| {
        planned(&[("a", wanted)], &[("a", 2)], |d, o| {
            d.strategy.on_delete = true;
            d.version = "5.0.7".into();
            for ordinal in 0..2 {
                pilot(o, 0, ordinal).spec.version = Some("5.0.7".into());
            }
            if older {
                pilot(o, 0, 1).spec.version = Some("5.0.6".into());
            }
        })
    };
    assert_eq!(plan(3, false).step, Some(PlannedStep::Raise { pool: "a".into(), to: 3 }));
    assert_eq!(
        plan(1, false).step,
        Some(PlannedStep::Decommission { pilot: "ex-demo-a-1".into() })
    );
    for wanted in [3, 1] {
        let held = plan(wanted, true);
        assert_eq!((held.step, &*held.blocked[0].predicate), (None, "VersionSettled"));
        assert!(held.blocked[0].message.contains("ex-demo-a-1 is of 5.0.6"), "{:?}", held.blocked);
    }
    assert_eq!(plan(2, true), Plan::default(), "nothing is wanted but what a person does");
}

#[test]
fn a_restart_that_changed_nothing_is_not_repeated_and_said() {
    let planned = |template: Option<&str>, change: fn(&mut ObservedCluster)| {
        planned(&[("a", 2)], &[("a", 2)], |_, o| {
            let pod = pod(o, 0, 1);
            pod.hash = String::new();
            pod.template = template.map(str::to_owned);
            change(o);
        })
    };
    let restart = Some(PlannedStep::Restart { pilot: "ex-demo-a-1".into(), pod: "pod-1".into() });
    assert_eq!(planned(None, |_| ()).step, restart, "nobody knows of what it was made");
    assert_eq!(planned(Some("old"), |_| ()).step, restart);
    for template in ["new", ""] {
        let held = planned(Some(template), |_| ());
        assert_eq!((held.step, &*held.blocked[0].predicate), (None, "RestartHelps"));
        let broken = planned(Some(template), |o| {
            let pod = pod(o, 0, 1);
            pod.ready = false;
            pod.trouble = Some(PodFailure { reason: "ImagePullFailed", ..PodFailure::default() });
        });
        assert_eq!(broken.step, None, "nor is a broken pod replaced again and again");
    }
    let others = planned(Some("new"), |o| pod(o, 0, 0).hash = "old".into());
    let restart = Some(PlannedStep::Restart { pilot: "ex-demo-a-0".into(), pod: "pod-0".into() });
    assert_eq!(others.step, restart, "it holds no other up");
    let told = planned(Some("new"), |o| pilot(o, 0, 1).running_hash = Some("old".into()));
    assert!(told.step.is_some(), "a new configuration reaches it");
}

#[test]
fn a_blocker_of_its_own_pilot_holds_a_restart_until_a_person_skips_it() {
    let blocked = |o: &mut ObservedCluster| {
        pod(o, 0, 0).hash = "old".into();
        pilot(o, 0, 0).blockers =
            vec![BlockerFacts::of_stop("RangesKeepQuorum", "a range has one copy")];
    };
    let plan = planned(&[("a", 1)], &[("a", 1)], |_, o| blocked(o));
    assert_eq!((plan.step, &*plan.blocked[0].predicate), (None, "RangesKeepQuorum"));
    let plan = planned(&[("a", 1)], &[("a", 1)], |d, o| {
        blocked(o);
        d.strategy.skip_predicates.insert("RangesKeepQuorum".into());
    });
    assert!(plan.step.is_some());
}

#[test]
fn a_judgement_that_is_old_counts_as_blocking() {
    let plan = planned(&[("a", 1)], &[("a", 1)], |_, o| {
        pod(o, 0, 0).hash = "old".into();
        pilot(o, 0, 0).hearing.ago = MINUTE;
    });
    assert_eq!((plan.step, &*plan.blocked[0].predicate), (None, "PeersReady"));
}

const MINUTE: Duration = Duration::from_secs(60);

/// Plans for two nodes, after `change`: node 1 is outdated, and both pilots have reported.
fn about_to_restart(change: impl FnOnce(&mut DesiredCluster, &mut ObservedCluster)) -> Plan {
    planned(&[("a", 2)], &[("a", 2)], |d, o| {
        pod(o, 0, 1).hash = "old".into();
        change(d, o);
    })
}

#[test]
fn a_node_restarts_only_while_every_pilot_is_heard() {
    let restart = PlannedStep::Restart { pilot: "ex-demo-a-1".into(), pod: "pod-1".into() };
    assert_eq!(about_to_restart(|_, _| ()).step, Some(restart.clone()));
    let silent = about_to_restart(|_, o| pilot(o, 0, 0).hearing.ago = MINUTE);
    assert_eq!((silent.step, &*silent.blocked[0].predicate), (None, "PeersReady"));
    assert!(silent.blocked[0].message.contains("ex-demo-a-0"), "{:?}", silent.blocked);
    // A new leader has not heard any pilot yet.
    let unheard = about_to_restart(|_, o| pilot(o, 0, 0).hearing.heard = false);
    assert_eq!((unheard.step, unheard.waiting.unwrap().pilot.as_str()), (None, "ex-demo-a-1"));
    let skipped = about_to_restart(|d, o| {
        d.strategy.skip_predicates.insert("PeersReady".into());
        pilot(o, 0, 0).hearing = HeartbeatAge::default();
    });
    assert_eq!(skipped.step, Some(restart));
}

#[test]
fn a_judgement_counts_that_is_younger_than_the_last_return_and_of_this_pod() {
    let judged = |ago, returned| {
        let plan = about_to_restart(|_, o| {
            pilot(o, 0, 1).hearing.ago = Duration::from_secs(ago);
            pilot(o, 0, 0).hearing.returned = Duration::from_secs(returned);
        });
        (plan.step.is_some(), plan.waiting.is_some())
    };
    assert_eq!(judged(10, 20), (true, false));
    assert_eq!(judged(20, 10), (false, true));
    let other = about_to_restart(|_, o| pilot(o, 0, 1).instance = Some("earlier".into()));
    assert_eq!((other.step, other.waiting.is_some()), (None, true));
}

#[test]
fn a_rule_that_a_newer_pilot_brought_is_told_by_its_name() {
    let block = |rule: &str| {
        let blocker = BlockerFacts::of_stop(rule, "so it is");
        let mut plan = about_to_restart(|_, o| pilot(o, 0, 1).blockers = vec![blocker]);
        plan.blocked.remove(0)
    };
    let known = block("PeersUp");
    assert!(known.remedy.to_string().contains("add PeersUp to"), "{known:?}");
    let unknown = block("BackupsDone");
    assert_eq!(unknown.predicate, "BackupsDone");
    assert!(unknown.remedy.to_string().contains("add * (every rule) to"), "{unknown:?}");
}

#[test]
fn a_canary_holds_the_roll_and_cannot_be_skipped() {
    let plan = planned(&[("a", 3)], &[("a", 3)], |d, o| {
        d.strategy.canary = Some((["a".to_owned()].into(), 1));
        d.strategy.skip_predicates.insert("*".into());
        pod(o, 0, 0).hash = "old".into();
        pod(o, 0, 1).hash = "old".into();
    });
    assert_eq!((plan.step, &*plan.blocked[0].predicate), (None, "CanaryHeld"));
}

#[test]
fn a_broken_pod_takes_the_newest_spec_whatever_else_is_wrong() {
    let plan = planned(&[("a", 3)], &[("a", 3)], |_, o| {
        pod(o, 0, 0).ready = false;
        let pod = pod(o, 0, 1);
        (pod.ready, pod.hash) = (false, "old".into());
        pod.trouble = Some(PodFailure { reason: "ImagePullFailed", ..PodFailure::default() });
    });
    let replace = PlannedStep::Replace { pilot: "ex-demo-a-1".into(), pod: "pod-1".into() };
    assert_eq!(plan.step, Some(replace));
}

#[test]
fn a_phase_that_a_person_wrote_is_left_alone_and_said() {
    let plan = planned(&[("a", 2)], &[("a", 2)], |_, o| {
        pod(o, 0, 1).ready = false;
        pilot(o, 0, 1).spec.phase = Some(PilotIntent::Fenced);
    });
    assert_eq!((plan.step, &*plan.blocked[0].predicate), (None, "PhaseHeld"));
}

#[test]
fn versions_are_not_mixed_with_growth() {
    let plan = planned(&[("a", 3)], &[("a", 2)], |d, o| {
        d.version = "5.0.7".into();
        pod(o, 0, 0).hash = "old".into();
        pilot(o, 0, 0).blockers = vec![BlockerFacts::of_stop("RingSettled", "streaming")];
    });
    assert_eq!((plan.step, plan.operation), (None, Some(OperationType::Upgrade)));
}

#[test]
fn a_stopped_cluster_stops_its_databases_before_its_pods_go() {
    let stop = |change: fn(&mut ObservedCluster)| {
        planned(&[("a", 2)], &[("a", 2)], |d, o| {
            d.stopped = true;
            change(o);
        })
    };
    let asked = |o: &mut ObservedCluster| {
        for pilot in o.pools[0].members.values_mut().filter_map(|m| m.pilot.as_mut()) {
            pilot.spec.phase = Some(PilotIntent::Stopped);
            pilot.phase_ours = true;
        }
    };
    let pilots = vec!["ex-demo-a-0".to_owned(), "ex-demo-a-1".to_owned()];
    assert_eq!(stop(|_| ()).step, Some(PlannedStep::Stop { pilots: pilots.clone() }));
    assert_eq!(
        planned(&[("a", 2)], &[("a", 2)], |d, o| {
            d.stopped = true;
            asked(o);
        })
        .step,
        None
    );
    let plan = planned(&[("a", 2)], &[("a", 2)], |d, o| {
        d.stopped = true;
        asked(o);
        o.pools[0]
            .members
            .values_mut()
            .filter_map(|m| m.pilot.as_mut())
            .for_each(|p| p.stopped = true);
    });
    assert_eq!(plan.step, Some(PlannedStep::Empty { pool: "a".into() }));
    let plan = planned(&[("a", 2)], &[("a", 2)], |_, o| asked(o));
    assert_eq!(plan.step, Some(PlannedStep::Start { pilots }));
}

/// Moves the data of every node into its pod, whatever the spec says by now.
fn in_pods(observed: &mut ObservedCluster) {
    for member in observed.pools.iter_mut().flat_map(|pool| pool.members.values_mut()) {
        member.pod.as_mut().unwrap().holds_data = true;
        member.claim = None;
    }
}

#[test]
fn pods_that_hold_the_data_of_a_stopped_cluster_stay() {
    let plan = planned(&[("a", 2)], &[("a", 2)], |d, o| {
        d.stopped = true;
        in_pods(o);
        for ordinal in 0..2 {
            let pilot = pilot(o, 0, ordinal);
            pilot.spec.phase = Some(PilotIntent::Stopped);
            (pilot.phase_ours, pilot.stopped) = (true, true);
        }
    });
    assert_eq!(plan, Plan::default());
}

#[test]
fn another_setting_restarts_the_database_and_keeps_its_pod() {
    let planned = |pod_hash: &str, change: fn(&mut DesiredCluster, &mut ObservedCluster)| {
        planned(&[("a", 2)], &[("a", 2)], |d, o| {
            pod(o, 0, 1).hash = pod_hash.into();
            let pilot = pilot(o, 0, 1);
            (pilot.running_hash, pilot.started_for) = (Some("old".into()), Some("old".into()));
            pilot.validated = Some(Ok(()));
            change(d, o);
        })
    };
    let name = "ex-demo-a-1".to_owned();
    let in_place = Some(PlannedStep::RestartInPlace { pilot: name.clone() });
    let anew = Some(PlannedStep::Restart { pilot: name.clone(), pod: "pod-1".into() });
    assert_eq!(planned("new", |_, _| ()).step, in_place);
    assert_eq!(planned("old", |_, _| ()).step, anew, "the pod itself changes");
    assert_eq!(planned("new", |d, _| d.strategy.restarts_in_place = false).step, anew);
    let older = planned("new", |_, o| pilot(o, 0, 1).started_for = None);
    assert_eq!(older.step, anew, "its pilot is of an earlier release");
    // Data in pods are kept, whatever the strategy says.
    let kept = planned("new", |d, o| {
        in_pods(o);
        d.strategy.restarts_in_place = false;
    });
    assert_eq!(kept.step, in_place);
}

#[test]
fn a_node_that_was_told_to_restart_counts_as_down_until_it_did() {
    let planned = |change: fn(&mut PilotFacts)| {
        planned(&[("a", 3)], &[("a", 3)], |_, o| {
            for ordinal in 0..3 {
                let pilot = pilot(o, 0, ordinal);
                (pilot.running_hash, pilot.started_for) = (Some("old".into()), Some("old".into()));
                pilot.validated = Some(Ok(()));
            }
            pilot(o, 0, 2).spec.restart_for = Some("new".into());
            change(pilot(o, 0, 2));
        })
    };
    let plan = planned(|_| ());
    assert_eq!((plan.step, &plan.blocked[..]), (None, &[][..]));
    assert_eq!(plan.waiting.unwrap().message, "ex-demo-a-2 restarts its database");
    // It runs with the newest configuration, whoever restarted it.
    let done = |pilot: &mut PilotFacts| {
        (pilot.running_hash, pilot.started_for) = (Some("new".into()), Some("new".into()));
    };
    let next = Some(PlannedStep::RestartInPlace { pilot: "ex-demo-a-1".into() });
    assert_eq!(planned(done).step, next);
    // It was restarted, and its database had to keep something of what it had: one order for one
    // configuration, so the next time it gets a new pod.
    let plan = planned(|pilot| pilot.started_for = Some("new".into()));
    assert!(
        matches!(&plan.step, Some(PlannedStep::Restart { pilot, .. }) if pilot == "ex-demo-a-2"),
        "{plan:?}"
    );
    // A pilot that found the configuration bad after all restarts nothing: that is told.
    let plan = planned(|pilot| pilot.validated = Some(Err("too small".into())));
    let awaited = plan.waiting.unwrap();
    assert_eq!((plan.step, awaited.remedy), (None, Remedy::Correct));
    // One that does not act on the order gets a new pod, where the rules allow that.
    let plan = planned(|pilot| pilot.started_for = None);
    assert!(matches!(plan.step, Some(PlannedStep::Restart { .. })), "{plan:?}");
}

#[test]
fn a_pod_that_may_hold_the_only_copy_is_deleted_only_when_a_person_names_that() {
    use crate::controller::testing::example::KNOWING;
    let planned = |knowing: bool, reported: bool, skipped: &str| {
        planned(&[("a", 2)], &[("a", 2)], |d, o| {
            in_pods(o);
            pod(o, 0, 1).hash = "old".into();
            d.strategy.skip_predicates.insert(skipped.to_owned());
            if knowing {
                d.database = &KNOWING;
            }
            if reported {
                pilot(o, 0, 1).blockers = vec![BlockerFacts::of_stop("DataOutlivesPod", "index a")];
            }
        })
    };
    // Pilots of some databases do not say which nodes have copies; those of others do.
    for (knowing, reported, skipped, blocked) in [
        (false, false, "", true),
        (false, false, "*", true),
        (false, false, "DataOutlivesPod", false),
        (true, false, "", false),
        (true, true, "", true),
        (true, true, "*", true),
        (true, true, "DataOutlivesPod", false),
    ] {
        let plan = planned(knowing, reported, skipped);
        let by = plan.blocked.first().map(|block| &*block.predicate);
        assert_eq!(by, blocked.then_some("DataOutlivesPod"), "{plan:?}");
        assert_eq!(matches!(plan.step, Some(PlannedStep::Restart { .. })), !blocked, "{plan:?}");
    }
    // The only copy survives on a volume.
    let plan = self::planned(&[("a", 1)], &[("a", 1)], |_, o| {
        pod(o, 0, 0).hash = "old".into();
        pilot(o, 0, 0).blockers = vec![BlockerFacts::of_stop("DataOutlivesPod", "index a")];
    });
    assert!(matches!(plan.step, Some(PlannedStep::Restart { .. })), "{plan:?}");
}

#[test]
fn a_broken_node_whose_data_are_in_its_pod_keeps_the_pod_and_says_so() {
    let planned = |started: bool, hash: &str| {
        planned(&[("a", 2)], &[("a", 2)], |_, o| {
            in_pods(o);
            let pod = pod(o, 0, 1);
            (pod.ready, pod.started, pod.hash) = (false, started, hash.into());
            let pilot = pilot(o, 0, 1);
            (pilot.ready, pilot.failed) = (false, true);
            pilot.spec.config_hash = Some("bad".into());
        })
    };
    let plan = planned(true, "old");
    assert_eq!((plan.step, &*plan.blocked[0].predicate), (None, "DataOutlivesPod"));
    // A new configuration alone keeps the pod and its data; a pod that never ran has no data.
    assert!(matches!(planned(true, "new").step, Some(PlannedStep::Configure { .. })));
    assert!(matches!(planned(false, "old").step, Some(PlannedStep::Replace { .. })));
}

#[test]
fn a_node_that_is_held_or_at_work_keeps_its_pod_however_long_it_takes() {
    let planned = |change: fn(&mut PilotFacts)| {
        planned(&[("a", 2)], &[("a", 2)], |_, o| {
            let pod = pod(o, 0, 1);
            (pod.ready, pod.hash) = (false, "old".into());
            pod.trouble =
                Some(PodFailure { reason: "ProgressDeadlineExceeded", ..PodFailure::default() });
            pilot(o, 0, 1).ready = false;
            change(pilot(o, 0, 1));
        })
    };
    assert!(matches!(planned(|_| ()).step, Some(PlannedStep::Replace { .. })));
    assert_eq!(planned(|pilot| pilot.at_work = true).step, None);
    let held = planned(|pilot| pilot.spec.phase = Some(PilotIntent::Fenced));
    assert_eq!((held.step, &*held.blocked[0].predicate), (None, "PhaseHeld"));
}
