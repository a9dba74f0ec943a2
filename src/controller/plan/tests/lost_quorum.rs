//! Voters that are lost: when the way out is to begin anew, and what a person's word leads to.

use super::*;

type Change = fn(&mut ObservedCluster);

const ID: &str = "former";

/// Returns the plan for three voters, none of which serves; `change` is made before.
fn plan_of(change: impl FnOnce(&mut ObservedCluster)) -> Plan {
    plan_of_voters(3, change)
}

fn plan_of_voters(voters: u32, change: impl FnOnce(&mut ObservedCluster)) -> Plan {
    planned(&[("a", voters)], &[("a", voters)], |_, o| {
        for ordinal in 0..voters {
            let pilot = pilot(o, 0, ordinal);
            (pilot.eligible, pilot.ready, pilot.cluster_id) = (true, false, Some(ID.into()));
            pilot.not_ready = Some("Joining: no elected master is known".into());
            pod(o, 0, ordinal).ready = false;
        }
        change(o);
    })
}

/// Makes a node one whose machine is gone.
fn lose(o: &mut ObservedCluster, ordinal: u32) {
    let message = format!("ex-demo-a-{ordinal}: volume node affinity conflict");
    let pod = pod(o, 0, ordinal);
    (pod.started, pod.trouble) =
        (false, Some(PodFailure { reason: "Unschedulable", message, lasts: true }));
    pilot(o, 0, ordinal).hearing.ago = 10 * MINUTE;
}

/// Makes a node one that was given up and waits to join, empty.
fn renew(o: &mut ObservedCluster, ordinal: u32) {
    let pilot = pilot(o, 0, ordinal);
    (pilot.emptied, pilot.given_up) = (true, Some("its former claim".into()));
}

fn lose_two(o: &mut ObservedCluster) {
    lose(o, 1);
    lose(o, 2);
}

fn say(o: &mut ObservedCluster, ordinal: u32, word: &str) {
    pilot(o, 0, ordinal).unsafe_bootstrap = Some(word.into());
}

/// Lets a node serve as one of the cluster `id`.
fn serve(o: &mut ObservedCluster, ordinal: u32, id: &str) {
    pod(o, 0, ordinal).ready = true;
    let pilot = pilot(o, 0, ordinal);
    (pilot.ready, pilot.cluster_id) = (true, Some(id.into()));
}

fn anew(plan: &Plan) -> bool {
    let waits = plan.waiting.iter().map(|awaited| &awaited.remedy);
    let mut named = waits.chain(plan.blocked.iter().map(|block| &block.remedy));
    named.any(|remedy| matches!(remedy, Remedy::BeginAnew { node, .. } if node == "ex-demo-a-0"))
}

fn begins() -> PlannedStep {
    PlannedStep::BeginAnew { pilot: "ex-demo-a-0".into(), cluster: ID.into() }
}

fn taken_back(request: bool) -> PlannedStep {
    PlannedStep::TakeWordBack { pilot: "ex-demo-a-0".into(), request }
}

#[test]
fn beginning_anew_is_named_where_giving_up_would_not_help() {
    assert!(anew(&plan_of(lose_two)));
    assert!(anew(&plan_of(|o| {
        lose(o, 1);
        renew(o, 2);
    })));
    assert!(anew(&plan_of(|o| {
        renew(o, 1);
        renew(o, 2);
    })));
    let told = plan_of(lose_two).waiting.unwrap().description();
    for word in
        ["without ex-demo-a-1, ex-demo-a-2: bring one back", "demo ex-demo-a-0 --cluster-id former"]
    {
        assert!(told.contains(word), "{told}");
    }
    assert!(!anew(&plan_of(|o| lose(o, 2))), "two of three elect a master");
    let in_vain = |o: &mut ObservedCluster| {
        (0..3).for_each(|ordinal| pilot(o, 0, ordinal).joins_in_vain = true);
    };
    let sole_voter = |change: Change| {
        plan_of(|o| {
            in_vain(o);
            lose(o, 2);
            change(o);
        })
    };
    assert!(anew(&sole_voter(|_| ())), "the one that is lost had the majority");
    assert!(!anew(&sole_voter(|o| pilot(o, 0, 1).joins_in_vain = false)), "one is starting");
    assert!(!anew(&sole_voter(|o| pilot(o, 0, 1).spec.phase = Some(PilotIntent::Fenced))));
    assert!(!anew(&plan_of(in_vain)), "none is lost: the network is to be mended");
    assert!(!anew(&plan_of(|_| ())), "all are away for a moment");
    assert!(!anew(&plan_of(|o| {
        lose_two(o);
        serve(o, 0, ID);
    })));
    let kept = |keep: fn(&mut Member)| {
        plan_of(|o| {
            lose(o, 1);
            keep(member(o, 0, 2));
        })
    };
    assert!(anew(&kept(|member| {
        member.pod = None;
        member.pilot.as_mut().unwrap().hearing.ago = 10 * MINUTE;
    })));
    assert!(!anew(&kept(|member| {
        let pilot = member.pilot.as_mut().unwrap();
        pilot.spec.phase = Some(PilotIntent::Fenced);
    })));
    assert!(!anew(&kept(|member| {
        member.pod = None;
        let message = "a quota".to_owned();
        member.refused = Some(PodFailure { reason: "QuotaExceeded", message, lasts: true });
    })));
    let no_voters = |o: &mut ObservedCluster| {
        lose_two(o);
        (0..3).for_each(|ordinal| pilot(o, 0, ordinal).eligible = false);
    };
    assert!(!anew(&plan_of(no_voters)), "its database elects no leader");
}

#[test]
fn half_of_the_voters_is_no_quorum() {
    assert!(anew(&plan_of_voters(4, lose_two)));
    assert!(!anew(&plan_of_voters(5, lose_two)));
}

#[test]
fn a_node_is_asked_by_the_id_of_its_cluster_while_a_quorum_is_lost() {
    let word = |said: &str, change: &dyn Fn(&mut ObservedCluster)| {
        plan_of(|o| {
            lose_two(o);
            say(o, 0, said);
            change(o);
        })
    };
    assert_eq!(word(ID, &|_| ()).step, Some(begins()));
    assert_eq!(word("another", &|_| ()).step, None);
    let asked = word(ID, &|o| pilot(o, 0, 0).spec.unsafe_bootstrap = Some(ID.into()));
    assert_eq!(asked.step, None);
    assert_eq!(
        asked.waiting.unwrap().remedy,
        Remedy::GiveUp { node: "ex-demo-a-1".into(), data: "claim-1".into() }
    );
}

#[test]
fn a_word_that_is_not_the_way_is_refused_in_one_sentence() {
    let refused = |change: &dyn Fn(&mut ObservedCluster)| {
        let plan = plan_of(|o| {
            lose_two(o);
            say(o, 0, ID);
            change(o);
        });
        assert_eq!(plan.step, None);
        let block = plan.blocked.into_iter().find(|block| block.predicate == "QuorumLost").unwrap();
        assert_eq!(block.remedy, Remedy::TakeWordBack { node: "ex-demo-a-0".into() });
        block.message
    };
    let rows: [(&str, Change); 5] = [
        ("1 of 3 voters are lost", |o| pilot(o, 0, 1).hearing.ago = Duration::ZERO),
        ("ex-demo-a-1 was asked before", |o| {
            pilot(o, 0, 1).spec.unsafe_bootstrap = Some(ID.into());
            say(o, 1, ID);
        }),
        ("it is no voter", |o| pilot(o, 0, 0).eligible = false),
        ("its own data are lost", |o| pilot(o, 0, 0).emptied = true),
        ("its pilot does not report", |o| pilot(o, 0, 0).hearing.ago = 2 * MINUTE),
    ];
    for (why, change) in rows {
        let told = refused(&change);
        assert!(told.contains(why), "{why}: {told}");
    }
}

#[test]
fn a_word_does_not_outlast_the_outage() {
    let serves = |ordinal: u32, id: &'static str, request: bool| {
        plan_of(|o| {
            lose_two(o);
            say(o, 0, ID);
            pilot(o, 0, 0).spec.unsafe_bootstrap = request.then(|| ID.into());
            serve(o, ordinal, id);
        })
    };
    assert_eq!(
        serves(1, ID, false).step,
        Some(taken_back(false)),
        "typed for a cluster that serves"
    );
    assert_eq!(serves(1, ID, true).step, Some(taken_back(true)), "the others came back before");
    let done = serves(0, "new", true).step;
    assert_eq!(done, Some(taken_back(false)), "nodes that come back later learn from the request");
    let over = plan_of(|o| {
        lose_two(o);
        pilot(o, 0, 0).spec.unsafe_bootstrap = Some(ID.into());
        serve(o, 0, "new");
    });
    assert_eq!(over.step, None);
    let unsaid = plan_of(|o| {
        lose_two(o);
        pilot(o, 0, 0).spec.unsafe_bootstrap = Some(ID.into());
    });
    assert_eq!(unsaid.step, Some(taken_back(true)), "the person took the word back");
}

#[test]
fn a_node_that_was_renewed_and_does_not_start_has_nothing_to_give_up() {
    let remedy = |change: fn(&mut ObservedCluster)| {
        let plan = planned(&[("a", 3)], &[("a", 3)], |_, o| {
            pod(o, 0, 2).ready = false;
            let pilot = pilot(o, 0, 2);
            (pilot.ready, pilot.failed, pilot.emptied) = (false, true, true);
            change(o);
        });
        plan.waiting.unwrap().remedy
    };
    let gives_up = Remedy::GiveUp { node: "ex-demo-a-2".into(), data: "claim-2".into() };
    assert_eq!(remedy(|_| ()), Remedy::Correct);
    assert_eq!(remedy(|o| pilot(o, 0, 2).emptied = false), Remedy::Correct, "its pilot says why");
    let lost = remedy(|o| {
        lose(o, 2);
        pilot(o, 0, 2).instance = Some("earlier".into());
    });
    assert_eq!(lost, gives_up, "its volume keeps it on a machine that is gone");
}
