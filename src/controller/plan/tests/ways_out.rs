//! Nodes that are lost, left or refused: what hides nothing any more, and which word leads on.

use serde_json::json;

use super::*;
use crate::{
    api::v1beta1::{ForgetPhase, ForgottenNode, NodeChange},
    controller::desired_state::DesiredPool,
};

const GONE: Duration = Duration::from_secs(600);

/// Makes a node one whose volume is on a machine that is gone.
pub(super) fn lose(observed: &mut ObservedCluster, pool: usize, ordinal: u32) {
    let member = member(observed, pool, ordinal);
    let pod = member.pod.as_mut().unwrap();
    (pod.ready, pod.started) = (false, false);
    let message = format!("{}: volume node affinity conflict", member.name);
    pod.trouble = Some(PodFailure { reason: "Unschedulable", message, lasts: true });
    let pilot = member.pilot.as_mut().unwrap();
    (pilot.ready, pilot.hearing.ago) = (false, GONE);
    pilot.node_id = Some("lost-id".into());
}

/// Writes a person's word that the data on the node's claim are lost.
pub(super) fn give_up(observed: &mut ObservedCluster, pool: usize, ordinal: u32) {
    let member = member(observed, pool, ordinal);
    member.pilot.as_mut().unwrap().given_up = Some(member.claim.as_ref().unwrap().uid.clone());
}

fn speaks(predicate: &str, against: &[NodeChange]) -> BlockerFacts {
    let (predicate, message) = (predicate.to_owned(), "so it is".to_owned());
    BlockerFacts { predicate, message, against: against.to_vec() }
}

fn raise(pool: &str, to: u32) -> PlannedStep {
    PlannedStep::Raise { pool: pool.into(), to }
}

#[test]
fn a_lost_node_hides_no_growth_and_says_what_it_holds() {
    let grows = planned(&[("a", 3), ("b", 2)], &[("a", 3), ("b", 1)], |_, o| lose(o, 0, 2));
    assert_eq!(grows.step, Some(raise("b", 2)));
    let ring = planned(&[("a", 3), ("b", 2)], &[("a", 3), ("b", 1)], |_, o| {
        lose(o, 0, 2);
        pilot(o, 0, 0).blockers = vec![speaks("PeersUp", &[NodeChange::Stop, NodeChange::Join])];
    });
    assert_eq!((&ring.step, &*ring.blocked[0].predicate), (&None, "PeersUp"));
    let waits = planned(&[("a", 3)], &[("a", 3)], |_, o| {
        lose(o, 0, 2);
        pod(o, 0, 0).hash = "old".into();
    });
    assert_eq!((&waits.step, &*waits.blocked[0].predicate), (&None, "MaxUnavailable"));
    let told = waits.waiting.unwrap().description();
    for word in ["affinity conflict", "annotate Pilot ex-demo-a-2", "give-up=claim-2"] {
        assert!(told.contains(word), "{told}");
    }
}

#[test]
fn a_pod_that_is_refused_is_told_in_the_servers_words_and_hides_no_growth() {
    let refused = |reason: &'static str, lasts: bool| {
        planned(&[("a", 3), ("b", 2)], &[("a", 3), ("b", 1)], |_, o| {
            let member = member(o, 0, 2);
            member.pod = None;
            member.pilot.as_mut().unwrap().ready = false;
            let message = "pod ex-demo-a-2 is not created: no room".to_owned();
            member.refused = Some(PodFailure { reason, message, lasts });
        })
    };
    for (reason, remedy) in
        [("QuotaExceeded", Remedy::RaiseQuota), ("PodRefused", Remedy::AdmitPod)]
    {
        let plan = refused(reason, false);
        assert_eq!((plan.step, plan.waiting), (None, None));
        let block = &plan.blocked[0];
        assert_eq!((&*block.predicate, &*block.step), ("PodAdmitted", "StartPilot/ex-demo-a-2"));
        assert_eq!(block.message, "pod ex-demo-a-2 is not created: no room");
        assert_eq!(block.remedy, remedy);
        assert_eq!(refused(reason, true).step, Some(raise("b", 2)), "it holds no other pool");
    }
}

#[test]
fn a_volume_that_is_not_mounted_may_be_mended_or_given_up() {
    let with = |reason: &'static str| {
        let plan = planned(&[("a", 3)], &[("a", 3)], |_, o| {
            let pod = pod(o, 0, 2);
            (pod.ready, pod.started) = (false, false);
            let message = "ex-demo-a-2: FailedMount: no Secret".to_owned();
            pod.trouble = Some(PodFailure { reason, message, lasts: true });
        });
        plan.waiting.unwrap().description()
    };
    let mounts = with("VolumeNotMounted");
    for word in ["FailedMount: no Secret; mend what it names", "give-up=claim-2"] {
        assert!(mounts.contains(word), "{mounts}");
    }
    assert!(with("VolumeLost").contains("give-up=claim-2"));
}

#[test]
fn a_node_that_is_away_for_a_moment_holds_growth_without_a_word_of_blame() {
    let plan = planned(&[("a", 3), ("b", 2)], &[("a", 3), ("b", 1)], |_, o| {
        pod(o, 0, 2).ready = false;
        pod(o, 0, 0).hash = "old".into();
    });
    assert_eq!((plan.step, plan.blocked, plan.waiting.is_some()), (None, Vec::new(), true));
}

#[test]
fn more_nodes_may_be_down_within_one_pool_where_a_person_says_so() {
    let down = |pool: usize| {
        planned(&[("a", 3), ("b", 1)], &[("a", 3), ("b", 1)], |d, o| {
            d.strategy.unavailable = IntOrString::String("50%".into());
            lose(o, pool, 0);
            pod(o, 0, 1).hash = "old".into();
        })
    };
    let restart = PlannedStep::Restart { pilot: "ex-demo-a-1".into(), pod: "pod-1".into() };
    assert_eq!(down(0).step, Some(restart));
    assert_eq!(down(1).step, None);
}

#[test]
fn a_wanted_node_whose_data_are_given_up_joins_again_and_no_other_is_meant() {
    let word = |claim: &str| {
        planned(&[("a", 3)], &[("a", 3)], |_, o| {
            lose(o, 0, 1);
            pilot(o, 0, 1).given_up = Some(claim.into());
        })
    };
    let claim = ClaimRef { name: "example-data-ex-demo-a-1".into(), uid: "claim-1".into() };
    let renew = PlannedStep::Renew {
        pilot: "ex-demo-a-1".into(),
        claim: Some(claim),
        pod: Some("pod-1".into()),
    };
    assert_eq!(word("claim-1").step, Some(renew));
    assert_eq!(word("claim-0").step, None, "another volume");
    let stuck = planned(&[("a", 3)], &[("a", 3)], |_, o| {
        lose(o, 0, 1);
        give_up(o, 0, 1);
        (pod(o, 0, 1).terminating, pod(o, 0, 1).overdue) = (true, true);
        member(o, 0, 1).claim.as_mut().unwrap().terminating = true;
    });
    let told = stuck.waiting.unwrap().description();
    assert!(told.contains("out-of-service"), "{told}");
}

#[test]
fn two_of_three_that_are_given_up_join_again_although_both_are_missed() {
    let after = |first: bool| {
        planned(&[("a", 3)], &[("a", 3)], |_, o| {
            for ordinal in [1, 2] {
                lose(o, 0, ordinal);
                give_up(o, 0, ordinal);
            }
            pilot(o, 0, 0).blockers =
                vec![speaks("PeersUp", &[NodeChange::Stop, NodeChange::Join])];
            if first {
                member(o, 0, 1).claim.as_mut().unwrap().uid = "new".into();
                pod(o, 0, 1).trouble = None;
            }
        })
    };
    for (first, node) in [(false, "ex-demo-a-1"), (true, "ex-demo-a-2")] {
        let step = after(first).step;
        assert!(
            matches!(&step, Some(PlannedStep::Renew { pilot, .. }) if pilot == node),
            "{step:?}"
        );
    }
}

#[test]
fn an_unwanted_node_whose_data_are_given_up_goes_and_is_forgotten() {
    let given_up = |change: &dyn Fn(&mut ObservedCluster)| {
        planned(&[("a", 2)], &[("a", 3)], |_, o| {
            lose(o, 0, 2);
            give_up(o, 0, 2);
            change(o);
        })
    };
    let remove = PlannedStep::Remove { pool: "a".into(), pilot: "ex-demo-a-2".into(), to: 2 };
    assert_eq!(given_up(&|_| ()).step, Some(remove));
    let gone = |o: &mut ObservedCluster| {
        o.pools[0].set.as_mut().unwrap().replicas = 2;
        member(o, 0, 2).pod = None;
    };
    let left = given_up(&gone).step;
    assert!(matches!(left, Some(PlannedStep::DeleteClaim { .. })), "{left:?}");
    let unclaimed = |o: &mut ObservedCluster| {
        gone(o);
        member(o, 0, 2).claim = None;
    };
    let forget = PlannedStep::Forget { pilot: "ex-demo-a-0".into(), nodes: vec!["lost-id".into()] };
    assert_eq!(given_up(&unclaimed).step, Some(forget));
    let asked = |phase: ForgetPhase| {
        given_up(&|o| {
            unclaimed(o);
            let pilot = pilot(o, 0, 1);
            pilot.spec.forget = vec!["lost-id".into()];
            let (node_id, message) = ("lost-id".to_owned(), Some("streams".to_owned()));
            pilot.forgotten = vec![ForgottenNode { node_id, phase: phase.clone(), message }];
        })
    };
    let waits = asked(ForgetPhase::Removing);
    assert!(waits.step.is_none() && waits.waiting.unwrap().message.ends_with("streams"));
    let done = asked(ForgetPhase::Forgotten).step;
    assert!(matches!(done, Some(PlannedStep::DeletePilot { .. })), "{done:?}");
    let request = planned(&[("a", 2)], &[("a", 2)], |_, o| {
        let pilot = pilot(o, 0, 1);
        pilot.spec.forget = vec!["lost-id".into(), "other".into()];
        let (node_id, phase) = ("lost-id".to_owned(), ForgetPhase::Forgotten);
        pilot.forgotten = vec![ForgottenNode { node_id, phase, message: None }];
    });
    let rest = PlannedStep::Forget { pilot: "ex-demo-a-1".into(), nodes: vec!["other".into()] };
    assert_eq!(request.step, Some(rest), "a request that was carried out is taken back");
}

#[test]
fn a_node_that_left_and_is_wanted_again_gets_a_new_volume() {
    let left = |change: fn(&mut DesiredPool, &mut PilotFacts)| {
        planned(&[("a", 2)], &[("a", 2)], |d, o| {
            pod(o, 0, 1).ready = false;
            let pilot = pilot(o, 0, 1);
            (pilot.ready, pilot.decommissioned) = (false, true);
            change(&mut d.pools[0], pilot);
        })
    };
    let step = left(|_, _| ()).step;
    assert!(matches!(step, Some(PlannedStep::Renew { claim: Some(_), .. })), "{step:?}");
    let kept = left(|pool, _| {
        let persistence = pool.persistence.as_mut().unwrap();
        persistence.retention = Some(crate::api::v1beta1::Retention {
            when_scaled: Some("Retain".into()),
            ..Default::default()
        });
    });
    assert_eq!((&kept.step, &*kept.blocked[0].predicate), (&None, "ClaimKept"));
    let person = left(|_, pilot| pilot.spec.phase = Some(PilotIntent::Decommissioned));
    assert_eq!((&person.step, &*person.blocked[0].predicate), (&None, "PhaseHeld"));
    assert!(person.blocked[0].remedy.to_string().contains("joins again, empty"));
    let ours = left(|_, pilot| {
        (pilot.spec.phase, pilot.phase_ours) = (Some(PilotIntent::Decommissioned), true);
    });
    let keep = PlannedStep::Keep { pilot: "ex-demo-a-1".into() };
    assert_eq!(ours.step, Some(keep), "it was to leave, had left, and is wanted again");
    let another = left(|_, pilot| pilot.instance = Some("earlier".into()));
    assert_eq!(another.step, None, "that was said of another pod");
}

#[test]
fn a_refused_departure_is_told_and_hides_nothing() {
    let refused = |change: &dyn Fn(&mut DesiredCluster, &mut ObservedCluster)| {
        planned(&[("a", 2), ("b", 0)], &[("a", 3), ("b", 0)], |d, o| {
            leaving(o, 2);
            pilot(o, 0, 2).blockers = vec![speaks("SpaceElsewhere", &[NodeChange::Leave])];
            change(d, o);
        })
    };
    let told = refused(&|_, _| ());
    assert_eq!((&told.step, &told.waiting, told.blocked.len()), (&None, &None, 1));
    assert_eq!(told.blocked[0].step, "DrainPilot/ex-demo-a-2");
    assert_eq!(refused(&|d, _| d.pools[1].replicas = 1).step, Some(raise("b", 1)));
    let restarts = refused(&|_, o| pod(o, 0, 0).hash = "old".into()).step;
    assert!(matches!(restarts, Some(PlannedStep::Restart { .. })), "{restarts:?}");
}

#[test]
fn what_is_to_leave_is_drained_before_anything_restarts_and_is_not_restarted() {
    let plan = planned(&[("a", 2)], &[("a", 3)], |_, o| {
        (0..3).for_each(|ordinal| pod(o, 0, ordinal).hash = "old".into());
    });
    assert_eq!(plan.step, Some(PlannedStep::Decommission { pilot: "ex-demo-a-2".into() }));
    let without_b = planned(&[("a", 2)], &[("a", 2), ("b", 1)], |_, o| {
        for pool in 0..2 {
            pod(o, pool, 0).hash = "old".into();
        }
    });
    assert_eq!(without_b.step, Some(PlannedStep::Decommission { pilot: "ex-demo-b-0".into() }));
    let drains = planned(&[("a", 1)], &[("a", 2)], |_, o| {
        leaving(o, 1);
        (0..2).for_each(|ordinal| pod(o, 0, ordinal).hash = "old".into());
    });
    assert_eq!((drains.step, drains.waiting.unwrap().step), (None, "DrainPilot"));
    let mixed = planned(&[("a", 2)], &[("a", 3)], |_, o| {
        for ordinal in 1..3 {
            pilot(o, 0, ordinal).spec.version = Some("4.1.0".into());
            pod(o, 0, ordinal).hash = "old".into();
        }
    });
    let restart = PlannedStep::Restart { pilot: "ex-demo-a-2".into(), pod: "pod-2".into() };
    assert_eq!(mixed.step, Some(restart), "it could not leave a ring of two versions");
    let left = planned(&[("a", 1)], &[("a", 3)], |_, o| {
        let gone = pilot(o, 0, 1);
        gone.spec.version = Some("4.1.0".into());
        gone.spec.phase = Some(PilotIntent::Decommissioned);
        (gone.decommissioned, gone.ready) = (true, false);
        pod(o, 0, 1).ready = false;
    });
    let leaves = PlannedStep::Decommission { pilot: "ex-demo-a-2".into() };
    assert_eq!(left.step, Some(leaves), "a node that has left is none of the ring");
}

#[test]
fn a_new_node_comes_before_an_old_one_is_touched() {
    let plan = planned(&[("a", 3)], &[("a", 2)], |_, o| {
        (0..2).for_each(|ordinal| pod(o, 0, ordinal).hash = "old".into());
    });
    assert_eq!(plan.step, Some(raise("a", 3)));
    let tried = planned(&[("a", 4)], &[("a", 3)], |_, o| {
        (0..2).for_each(|ordinal| pod(o, 0, ordinal).hash = "old".into());
    });
    assert!(matches!(tried.step, Some(PlannedStep::Restart { .. })), "one of the new pods serves");
}

#[test]
fn a_broken_node_gets_another_version_in_its_turn() {
    let broken = |serving: &str, change: fn(&mut DesiredCluster)| {
        let serving = serving.to_owned();
        planned(&[("a", 2)], &[("a", 2)], move |d, o| {
            pod(o, 0, 1).ready = false;
            let pilot_1 = pilot(o, 0, 1);
            (pilot_1.ready, pilot_1.failed) = (false, true);
            pilot_1.spec.version = Some("4.1.0".into());
            pod(o, 0, 1).hash = "old".into();
            pilot(o, 0, 0).spec.version = Some(serving);
            change(d);
        })
    };
    let waits = broken("4.1.0", |_| ());
    assert_eq!((&waits.step, &*waits.blocked[0].predicate), (&None, "VersionTurn"));
    for step in [
        broken("5.0.6", |_| ()).step,
        broken("4.1.0", |d| d.strategy.skip_predicates = ["VersionTurn".to_owned()].into()).step,
        // A version that is taken back is not new to the ring.
        broken("5.0.6", |d| d.strategy.canary = Some(([].into(), 1))).step,
    ] {
        assert!(matches!(step, Some(PlannedStep::Replace { .. })), "{step:?}");
    }
}

#[test]
fn a_stop_waits_for_no_node_that_cannot_answer() {
    let plan = planned(&[("a", 1), ("b", 1)], &[("a", 1), ("b", 1)], |d, o| {
        d.stopped = true;
        lose(o, 1, 0);
        for pool in [0, 1] {
            pilot(o, pool, 0).spec.phase = Some(PilotIntent::Stopped);
            pilot(o, pool, 0).phase_ours = true;
        }
        pilot(o, 0, 0).stopped = true;
    });
    assert_eq!(plan.step, Some(PlannedStep::Empty { pool: "a".into() }));
}

#[test]
fn a_stop_waits_for_no_departure_that_it_ended() {
    let asked = |phase: PilotIntent| {
        planned(&[("a", 1)], &[("a", 2)], |d, o| {
            d.stopped = true;
            for ordinal in 0..2 {
                let pilot = pilot(o, 0, ordinal);
                pilot.spec.phase = Some(PilotIntent::Stopped);
                (pilot.phase_ours, pilot.stopped) = (true, true);
            }
            let leaves = pilot(o, 0, 1);
            (leaves.spec.phase, leaves.irreversible) = (Some(phase.clone()), true);
        })
    };
    assert_eq!(asked(PilotIntent::Stopped).step, Some(PlannedStep::Empty { pool: "a".into() }));
    let plan = asked(PilotIntent::Decommissioned);
    assert_eq!((plan.step, plan.waiting.unwrap().step), (None, "DrainPilot"));
}

#[test]
fn a_pool_that_left_the_spec_goes_though_another_is_to_grow_in_a_new_version() {
    let asked = |version: &str| {
        planned(&[("a", 3)], &[("a", 2), ("b", 1)], |d, o| {
            d.version = version.into();
            for (pool, ordinal) in [(0, 0), (0, 1), (1, 0)] {
                pilot(o, pool, ordinal).spec.version = Some("5.0.6".into());
            }
        })
    };
    let goes = PlannedStep::Decommission { pilot: "ex-demo-b-0".into() };
    assert_eq!(
        asked("5.1.0").step,
        Some(goes),
        "no node joins, and none is upgraded before it is gone"
    );
    assert_eq!(asked("5.0.6").step, Some(PlannedStep::Raise { pool: "a".into(), to: 3 }));
}

#[test]
fn data_of_a_surplus_node_that_finds_no_machine_are_not_given_up() {
    let remedy = |wanted: &[(&'static str, u32)]| {
        let plan = planned(wanted, &[("a", 1), ("b", 2)], |_, o| {
            let pod = pod(o, 1, 1);
            (pod.ready, pod.started) = (false, false);
            let message = "0/1 nodes are available: 1 node(s) were unschedulable.".to_owned();
            pod.trouble = Some(PodFailure { reason: "Unschedulable", message, lasts: true });
            let pilot = pilot(o, 1, 1);
            (pilot.ready, pilot.instance) = (false, Some("earlier".into()));
        });
        plan.waiting.unwrap().remedy
    };
    assert_eq!(remedy(&[("a", 1), ("b", 1)]), Remedy::Correct);
    assert_eq!(remedy(&[("a", 1)]), Remedy::WantNode { node: "ex-demo-b-1".into() });
}

#[test]
fn a_rule_that_does_not_end_by_itself_says_what_ends_it() {
    let plan = planned(&[("a", 1)], &[("a", 1)], |_, o| {
        pod(o, 0, 0).hash = "old".into();
        pilot(o, 0, 0).blockers = vec![BlockerFacts::of_stop("CopyElsewhere", "no other copy")];
    });
    let sentence = plan.blocked[0].remedy.to_string();
    assert_eq!(
        sentence,
        "wait; or, want fewer copies; or add CopyElsewhere to spec.updateStrategy.skipPredicates"
    );
}

#[test]
fn a_node_of_a_removed_pool_that_cannot_start_names_a_way_out_that_works() {
    let plan = planned(&[("a", 1)], &[("a", 1), ("b", 1)], |_, o| {
        pod(o, 1, 0).ready = false;
        let pilot = pilot(o, 1, 0);
        (pilot.ready, pilot.idle, pilot.failed) = (false, true, true);
    });
    let remedy = plan.waiting.unwrap().remedy;
    assert!(matches!(&remedy, Remedy::WantPool { node, .. } if node == "ex-demo-b-0"), "{remedy}");
}

#[test]
fn a_node_of_a_removed_pool_that_runs_and_does_not_serve_names_a_way_out_that_works() {
    let plan = planned(&[("a", 1)], &[("a", 1), ("b", 1)], |_, o| {
        let pod = pod(o, 1, 0);
        pod.ready = false;
        pod.trouble = Some(PodFailure {
            reason: "ProgressDeadlineExceeded",
            message: "ex-demo-b-0 has not become ready in time".into(),
            lasts: true,
        });
        let pilot = pilot(o, 1, 0);
        (pilot.ready, pilot.idle) = (false, false);
    });
    let remedy = plan.waiting.unwrap().remedy;
    assert!(matches!(&remedy, Remedy::WantPool { node, .. } if node == "ex-demo-b-0"), "{remedy}");
}

#[test]
fn what_is_left_of_a_pool_is_removed_or_told() {
    let orphan = |claim: bool| {
        planned(&[("a", 1)], &[("a", 1), ("z", 1)], |_, o| {
            o.pools[1].set = None;
            o.pools[1].orphan = true;
            let member = member(o, 1, 0);
            member.pod = None;
            if !claim {
                member.claim = None;
            }
        })
    };
    let told = orphan(true);
    assert_eq!((&told.step, &*told.blocked[0].predicate), (&None, "DataLeft"));
    let removed = orphan(false).step;
    assert!(matches!(removed, Some(PlannedStep::DeletePilot { .. })), "{removed:?}");
}

/// Makes a node one whose database runs, and does not serve.
fn runs_without_serving(observed: &mut ObservedCluster, ordinal: u32) {
    pod(observed, 0, ordinal).ready = false;
    let pilot = pilot(observed, 0, ordinal);
    (pilot.ready, pilot.idle) = (false, false);
    pilot.not_ready = Some("Starting: joined the ring, does not serve clients yet".into());
}

#[test]
fn a_corrected_setting_reaches_a_node_that_runs_and_does_not_serve_at_once() {
    let wanted = |change: &dyn Fn(&mut DesiredCluster, &mut ObservedCluster)| {
        planned(&[("a", 3)], &[("a", 3)], |d, o| {
            runs_without_serving(o, 2);
            for ordinal in 0..3 {
                pilot(o, 0, ordinal).spec.config_hash = Some("former".into());
                pilot(o, 0, ordinal).running_hash = Some("former".into());
            }
            change(d, o);
        })
    };
    let told = wanted(&|_, _| ());
    assert_eq!(told.step, Some(PlannedStep::Configure { pilot: "ex-demo-a-2".into() }));
    let judged = |o: &mut ObservedCluster, verdict: Result<(), String>| {
        let hash = desired(&[("a", 3)], "new").pools[0].config_hash().to_owned();
        let pilot = pilot(o, 0, 2);
        pilot.spec.config_hash = Some(hash);
        pilot.validated = Some(verdict);
        pilot.started_for = Some("former".into());
    };
    let restarted = wanted(&|_, o| judged(o, Ok(())));
    assert_eq!(restarted.step, Some(PlannedStep::RestartInPlace { pilot: "ex-demo-a-2".into() }));
    let rejected = wanted(&|_, o| judged(o, Err("no such setting".into())));
    assert_eq!((rejected.step, rejected.waiting.unwrap().remedy), (None, Remedy::Correct));
    // What is not served by another node that has it goes no further.
    let other = wanted(&|_, o| {
        runs_without_serving(o, 1);
        let hash = desired(&[("a", 3)], "new").pools[0].config_hash().to_owned();
        pilot(o, 0, 1).spec.config_hash = Some(hash.clone());
        pilot(o, 0, 1).running_hash = Some(hash);
    });
    assert_eq!(other.step, None);
    // A node that has yet to join waits for this one, unless it fails.
    let beside_newcomer = |fails: bool| {
        wanted(&|_, o| {
            let member = member(o, 0, 1);
            (member.pod.as_mut().unwrap().ready, member.claim) = (false, None);
            let pilot = member.pilot.as_mut().unwrap();
            (pilot.ready, pilot.identity, pilot.checked) = (false, false, false);
            (pilot.earlier_claim, pilot.failed) = (Some(String::new()), fails);
            let hash = desired(&[("a", 3)], "new").pools[0].config_hash().to_owned();
            pilot.spec.config_hash = Some(hash.clone());
            pilot.running_hash = Some(hash);
        })
        .step
    };
    assert_eq!((beside_newcomer(false), beside_newcomer(true)), (told.step, None));
    // That it missed its deadline meanwhile changes nothing.
    let late = wanted(&|_, o| {
        judged(o, Ok(()));
        pod(o, 0, 2).trouble = Some(PodFailure {
            reason: "ProgressDeadlineExceeded",
            message: "ex-demo-a-2 has not become ready in time".into(),
            lasts: true,
        });
    });
    assert_eq!(late.step, restarted.step);
    let young = wanted(&|_, o| pilot(o, 0, 2).hearing.gone = Duration::from_secs(59));
    assert_eq!(young.step, None, "it may be starting");
    let streams = wanted(&|_, o| pilot(o, 0, 2).at_work = true);
    assert_eq!(streams.step, None);
}

#[test]
fn a_database_that_runs_and_does_not_serve_restarts_beside_others_that_do_not() {
    let all = |rule: &str| {
        planned(&[("a", 3)], &[("a", 3)], |_, o| {
            let hash = desired(&[("a", 3)], "new").pools[0].config_hash().to_owned();
            for ordinal in 0..3 {
                runs_without_serving(o, ordinal);
                let pilot = pilot(o, 0, ordinal);
                pilot.running_hash = Some("former".into());
                (pilot.spec.config_hash, pilot.validated) = (Some(hash.clone()), Some(Ok(())));
                pilot.started_for = Some("former".into());
                pilot.blockers = vec![BlockerFacts::of_stop(rule, "others are down")];
            }
        })
    };
    let restarted = Some(PlannedStep::RestartInPlace { pilot: "ex-demo-a-0".into() });
    assert_eq!(all("PeersUp").step, restarted);
    assert_eq!(all("RangesKeepQuorum").step, None, "it holds copies that no other node has");
}

#[test]
fn data_are_given_up_only_for_what_may_be_lost() {
    let remedy = |change: &dyn Fn(&mut Member)| {
        let plan = planned(&[("a", 3)], &[("a", 3)], |_, o| {
            let member = member(o, 0, 2);
            member.pilot.as_mut().unwrap().ready = false;
            member.pod.as_mut().unwrap().ready = false;
            change(member);
        });
        plan.waiting.unwrap().remedy
    };
    let in_trouble = |reason: &'static str, message: &str| {
        let message = message.to_owned();
        remedy(&|member| {
            let trouble = PodFailure { reason, message: message.clone(), lasts: true };
            member.pod.as_mut().unwrap().trouble = Some(trouble);
            member.pilot.as_mut().unwrap().hearing.ago = GONE;
        })
    };
    for reason in ["ImagePullFailed", "CrashLoop", "ProgressDeadlineExceeded"] {
        assert_eq!(in_trouble(reason, "exit code 1"), Remedy::Correct, "{reason}");
    }
    let room = "0/3 nodes are available: 3 Insufficient cpu.";
    assert_eq!(in_trouble("Unschedulable", room), Remedy::Correct);
    let given_up = Remedy::GiveUp { node: "ex-demo-a-2".into(), data: "claim-2".into() };
    let gone = "1 node(s) had volume node affinity conflict";
    assert_eq!(in_trouble("Unschedulable", gone), given_up);
    assert_eq!(in_trouble("VolumeLost", "its volume is gone"), given_up);
    // A keystore, a token or a setting that the database ends of.
    assert_eq!(remedy(&|member| member.pilot.as_mut().unwrap().failed = true), Remedy::Correct);
    let absent = remedy(&|member| {
        member.pod = None;
        member.pilot.as_mut().unwrap().hearing.ago = GONE;
    });
    assert_eq!(absent, given_up);
}

#[test]
fn a_second_node_goes_only_by_a_judgement_that_is_younger_than_the_departure_of_the_first() {
    let after = |gone: u64, ago: u64| {
        planned(&[("a", 3)], &[("a", 3)], |d, o| {
            d.strategy.unavailable = IntOrString::Int(2);
            pod(o, 0, 2).ready = false;
            let away = pilot(o, 0, 2);
            (away.ready, away.idle) = (false, true);
            away.hearing.gone = Duration::from_secs(gone);
            for ordinal in 0..2 {
                pod(o, 0, ordinal).hash = "old".into();
                pilot(o, 0, ordinal).hearing.ago = Duration::from_secs(ago);
            }
        })
    };
    let restart = PlannedStep::Restart { pilot: "ex-demo-a-1".into(), pod: "pod-1".into() };
    assert_eq!(after(60, 29).step, Some(restart));
    for (gone, ago) in [(0, 0), (29, 0), (60, 31), (60, 59)] {
        let plan = after(gone, ago);
        assert_eq!(plan.step, None, "gone for {gone} s, judged {ago} s ago");
    }
    let told = after(10, 0).blocked.iter().map(|block| block.message.clone()).collect::<Vec<_>>();
    assert_eq!(told, Vec::<String>::new());
}

#[test]
fn a_node_that_a_rule_holds_does_not_hide_the_others() {
    let plan = planned(&[("a", 3)], &[("a", 3)], |_, o| {
        for ordinal in 0..3 {
            pod(o, 0, ordinal).hash = "old".into();
        }
        pilot(o, 0, 2).blockers = vec![BlockerFacts::of_stop("ShardCopyElsewhere", "an index")];
    });
    let restart = PlannedStep::Restart { pilot: "ex-demo-a-1".into(), pod: "pod-1".into() };
    assert_eq!(plan.step, Some(restart));
    let told: Vec<_> = plan.blocked.iter().map(|block| block.step.as_str()).collect();
    assert_eq!(told, ["RecreatePod/ex-demo-a-2"]);
}

#[test]
fn a_node_keeps_its_turn_while_it_waits_for_a_report_or_for_calm() {
    let plan = |change: &dyn Fn(&mut ObservedCluster)| {
        planned(&[("a", 3)], &[("a", 3)], |_, o| {
            for ordinal in 0..2 {
                pod(o, 0, ordinal).hash = "old".into();
                pilot(o, 0, ordinal).hearing.ago = Duration::from_secs(2);
            }
            change(o);
        })
    };
    let holds = |o: &mut ObservedCluster, rule: &str| {
        pilot(o, 0, 1).blockers = vec![BlockerFacts::of_stop(rule, "a reason")];
    };
    // The node that had its turn before came back 3 s ago, and this one reported before that.
    let unheard = plan(&|o| {
        pilot(o, 0, 1).hearing.ago = Duration::from_secs(4);
        pilot(o, 0, 2).hearing.returned = Duration::from_secs(3);
    });
    assert_eq!((unheard.step, unheard.waiting.unwrap().pilot.as_str()), (None, "ex-demo-a-1"));
    let calm = plan(&|o| holds(o, "PeersUp"));
    assert_eq!((calm.step, calm.blocked.len()), (None, 1));
    let older = plan(&|o| {
        holds(o, "ShardCopyElsewhere");
        pilot(o, 0, 1).hearing.ago = Duration::from_secs(4);
    });
    assert_eq!((older.step, older.blocked.len()), (None, 1));
    let restart = PlannedStep::Restart { pilot: "ex-demo-a-0".into(), pod: "pod-0".into() };
    assert_eq!(plan(&|o| holds(o, "ShardCopyElsewhere")).step, Some(restart));
}

#[test]
fn data_of_a_node_that_serves_are_not_given_up() {
    let plan = planned(&[("a", 3)], &[("a", 3)], |_, o| give_up(o, 0, 1));
    assert_eq!(plan.step, Some(PlannedStep::KeepData { pilot: "ex-demo-a-1".into() }));
    let left = planned(&[("a", 2)], &[("a", 3)], |_, o| give_up(o, 0, 2));
    assert_eq!(left.step, Some(PlannedStep::KeepData { pilot: "ex-demo-a-2".into() }));
}

#[test]
fn the_pod_of_a_node_that_left_holds_no_step_when_its_machine_is_gone() {
    let after = |overdue: bool| {
        planned(&[("a", 2)], &[("a", 3)], |_, o| {
            leaving(o, 2);
            pilot(o, 0, 2).decommissioned = true;
            (pod(o, 0, 2).terminating, pod(o, 0, 2).overdue) = (true, overdue);
            o.pools[0].set.as_mut().unwrap().replicas = 2;
            pod(o, 0, 1).hash = "old".into();
        })
    };
    let restart = PlannedStep::Restart { pilot: "ex-demo-a-1".into(), pod: "pod-1".into() };
    assert_eq!((after(false).step, after(true).step), (None, Some(restart)));
}

#[test]
fn a_node_that_never_joined_and_finds_no_machine_holds_no_restart() {
    let after = |trouble: Option<PodFailure>| {
        planned(&[("a", 3), ("b", 1)], &[("a", 3), ("b", 1)], |_, o| {
            let member = member(o, 1, 0);
            let pod = member.pod.as_mut().unwrap();
            (pod.ready, pod.started, pod.trouble) = (false, false, trouble);
            let pilot = member.pilot.as_mut().unwrap();
            (pilot.ready, pilot.identity, pilot.checked) = (false, false, false);
            pilot.earlier_claim = Some(String::new());
            super::pod(o, 0, 2).hash = "old".into();
        })
        .step
    };
    let message = "0/3 nodes are available: 3 Insufficient memory.".to_owned();
    let no_room = PodFailure { reason: "Unschedulable", message, lasts: true };
    let restart = PlannedStep::Restart { pilot: "ex-demo-a-2".into(), pod: "pod-2".into() };
    assert_eq!((after(None), after(Some(no_room))), (None, Some(restart)));
}

#[test]
fn a_second_node_waits_for_the_first_to_serve_where_its_database_starts() {
    let beside = |idle: bool| {
        planned(&[("a", 3)], &[("a", 3)], |d, o| {
            d.strategy.unavailable = IntOrString::Int(2);
            pod(o, 0, 2).ready = false;
            let away = pilot(o, 0, 2);
            (away.ready, away.idle, away.hearing.gone) = (false, idle, Duration::from_secs(60));
            pod(o, 0, 1).hash = "old".into();
        })
        .step
    };
    let restart = PlannedStep::Restart { pilot: "ex-demo-a-1".into(), pod: "pod-1".into() };
    assert_eq!((beside(true), beside(false)), (Some(restart), None));
}

#[test]
fn nodes_of_two_datacenters_may_be_away_together() {
    let after = |datacenters: [&str; 2], most: i32| {
        planned(&[("a", 3), ("b", 3)], &[("a", 3), ("b", 3)], |d, o| {
            d.strategy.unavailable = IntOrString::Int(most);
            for (pool, datacenter) in datacenters.into_iter().enumerate() {
                for ordinal in 0..3 {
                    let part = json!({"datacenter": datacenter});
                    pilot(o, pool, ordinal).spec.parts.insert("example", part);
                }
            }
            pod(o, 0, 2).ready = false;
            let away = pilot(o, 0, 2);
            (away.ready, away.idle, away.hearing.gone) = (false, true, Duration::from_secs(60));
            pod(o, 1, 2).hash = "old".into();
            // Its turn would be next, and it sees the first one down.
            pod(o, 0, 1).hash = "old".into();
            pilot(o, 0, 1).blockers = vec![BlockerFacts::of_stop("PeersUp", "a-2 is down")];
        })
        .step
    };
    let restart = PlannedStep::Restart { pilot: "ex-demo-b-2".into(), pod: "pod-2".into() };
    assert_eq!(after(["eu", "us"], 2), Some(restart));
    assert_eq!(after(["eu", "us"], 1), None);
    assert_eq!(after(["eu", "eu"], 2), None, "copies of the same rows are in the other pool");
}
