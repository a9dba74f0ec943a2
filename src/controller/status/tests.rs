//! Tests of conditions, phases and operations over the life of a cluster.

use std::time::Duration;

use super::*;
use crate::api::v1beta1::{NodeChange, PilotIntent};
use crate::controller::{
    BehindReplica,
    observe::{BehindFacts, BlockerFacts, PilotFacts, PodFacts, PodFailure, find_condition},
    plan::tests::lose_account,
    plan::{OperationType, PlannedStep, plan_next_step},
    testing::sample::{desired, initialized, observed},
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn reconcile_status(
    desired: &mut DesiredCluster,
    observed: &ObservedCluster,
    seconds: i64,
) -> ClusterStatus {
    let planned = plan_next_step(desired, observed);
    let after = build_status(desired, observed, &planned, at(seconds));
    desired.status.clone_from(&after);
    after
}

fn reason(status: &ClusterStatus, type_: &str) -> String {
    find_condition(&status.conditions, type_)
        .map_or_else(String::new, |c| format!("{}/{}", c.status, c.reason))
}

#[test]
fn a_bootstrap_ends_ready_and_stays_initialized() {
    let mut cluster = desired(&[("a", 2)], "new");
    let begun = reconcile_status(&mut cluster, &observed(&[("a", 1)], "new"), 0);
    assert_eq!(begun.phase.as_deref(), Some("Creating"));
    assert_eq!(reason(&begun, "Ready"), "False/BootstrapInProgress");
    assert_eq!(reason(&begun, "Initialized"), "False/BootstrapInProgress");
    assert_eq!(reason(&begun, "Reconciling"), "True/BootstrapInProgress");
    let operation = begun.operation.as_ref().unwrap();
    assert_eq!((operation.id.as_str(), operation.type_.as_str()), ("1-bootstrap", "Bootstrap"));
    assert_eq!(operation.steps[0].pilot.as_deref(), Some("ex-demo-a-1"));

    let done = reconcile_status(&mut cluster, &observed(&[("a", 2)], "new"), 60);
    assert_eq!(done.phase.as_deref(), Some("Running"));
    for type_ in ["Ready", "MembersHealthy"] {
        assert_eq!(reason(&done, type_), "True/AllNodesReady", "{type_}");
    }
    assert_eq!(reason(&done, "Available"), "True/ClientsServed");
    assert_eq!(reason(&done, "Progressing"), "True/ReconcileComplete");
    assert_eq!(reason(&done, "Reconciling"), "");
    assert_eq!(done.operation, None);
    assert_eq!(done.last_operation.as_ref().unwrap().phase, "Done");
    assert_eq!((done.replicas, done.ready_replicas), (Some(2), Some(2)));
    assert_eq!(done.node_pools["a"].ready_replicas, 2);
    assert_eq!(done.health, Some(Health::Green));
    assert_eq!(done.version.as_deref(), Some("5.0.6"));
    assert_eq!(done.cluster_id.as_deref(), Some("cluster-uid"));

    let mut down = observed(&[("a", 2)], "new");
    down.pools[0].members.get_mut(&1).unwrap().pod.as_mut().unwrap().ready = false;
    let degraded = reconcile_status(&mut cluster, &down, 120);
    assert_eq!(degraded.phase.as_deref(), Some("Degraded"));
    assert_eq!(reason(&degraded, "Ready"), "False/NodesNotReady");
    assert_eq!(reason(&degraded, "Initialized").split('/').next(), Some("True"));
    assert_eq!(degraded.health, Some(Health::Yellow));
    assert_eq!(degraded.operation, None, "an outage is no operation");
}

#[test]
fn nothing_moves_while_nothing_changes() {
    let mut cluster = desired(&[("a", 2)], "new");
    let found = observed(&[("a", 2)], "new");
    let first = reconcile_status(&mut cluster, &found, 0);
    assert_eq!(reconcile_status(&mut cluster, &found, 3600), first);
}

#[test]
fn a_pause_shows_and_its_end_too() {
    let mut cluster = desired(&[("a", 2)], "new");
    let found = observed(&[("a", 2)], "new");
    reconcile_status(&mut cluster, &found, 0);
    cluster.paused = true;
    let paused = reconcile_status(&mut cluster, &found, 1);
    assert_eq!(reason(&paused, "Progressing"), "False/ClusterPaused");
    assert_eq!(paused.phase.as_deref(), Some("Paused"));
    cluster.paused = false;
    assert_eq!(
        reason(&reconcile_status(&mut cluster, &found, 2), "Progressing"),
        "True/ClusterResumed"
    );
}

#[test]
fn a_spec_that_is_not_run_is_stalled_and_not_reconciling() {
    let mut cluster = desired(&[("a", 2)], "new");
    cluster.stalled = Some(StallCause { reason: "UnsupportedVersion", message: "3.11".into() });
    let stalled = reconcile_status(&mut cluster, &ObservedCluster::default(), 0);
    assert_eq!(reason(&stalled, "Stalled"), "True/UnsupportedVersion");
    assert_eq!(reason(&stalled, "Ready"), "False/UnsupportedVersion");
    assert_eq!(reason(&stalled, "Reconciling"), "");
    assert_eq!(stalled.phase.as_deref(), Some("Stalled"));
}

#[test]
fn a_step_without_progress_is_stalled_after_its_deadline() {
    let mut cluster = desired(&[("a", 2)], "new");
    cluster.strategy.progress_deadline = Duration::from_secs(100);
    let mut found = observed(&[("a", 2)], "new");
    found.pools[0].members.get_mut(&1).unwrap().pod.as_mut().unwrap().ready = false;
    assert_eq!(reason(&reconcile_status(&mut cluster, &found, 0), "Stalled"), "");
    assert_eq!(reason(&reconcile_status(&mut cluster, &found, 99), "Stalled"), "");
    let late = reconcile_status(&mut cluster, &found, 100);
    assert_eq!(reason(&late, "Stalled"), "True/ProgressDeadlineExceeded");
    // The cluster recovers by itself once the node serves.
    let done = reconcile_status(&mut cluster, &observed(&[("a", 2)], "new"), 200);
    assert_eq!(reason(&done, "Stalled"), "");
    assert_eq!(reason(&done, "Ready"), "True/AllNodesReady");
}

#[test]
fn a_crash_loop_told_in_two_sentences_by_turns_stays_stalled_and_moving_figures_are_progress() {
    let mut cluster = desired(&[("a", 2)], "new");
    cluster.strategy.progress_deadline = Duration::from_secs(100);
    let mut said = |says: &str, seconds| {
        let mut found = observed(&[("a", 2)], "new");
        let member = found.pools[0].members.get_mut(&1).unwrap();
        member.pod.as_mut().unwrap().ready = false;
        member.pilot.as_mut().unwrap().not_ready = Some(says.to_owned());
        reason(&reconcile_status(&mut cluster, &found, seconds), "Stalled")
    };
    let stalled = "True/ProgressDeadlineExceeded";
    for (seconds, says) in (0..).step_by(40).zip(["Starting", "crashed", "Starting"]) {
        assert_eq!(said(says, seconds), "", "{seconds}");
    }
    for (seconds, says) in (120..).step_by(15).zip(["crashed", "Starting", "crashed"]) {
        assert_eq!(said(says, seconds), stalled, "{seconds}");
    }
    assert_eq!(said("received 1 bytes", 170), stalled);
    for seconds in (180..400).step_by(90) {
        assert_eq!(said(&format!("received {seconds} bytes"), seconds), "", "{seconds}");
    }
    assert_eq!(said("received 360 bytes", 460), stalled, "they stand still");
}

#[test]
fn a_slow_registry_is_told_and_stalls_nothing() {
    let mut cluster = desired(&[("a", 2)], "new");
    let mut look_at = |lasts: bool| {
        let mut found = observed(&[("a", 2)], "new");
        let pod = found.pools[0].members.get_mut(&1).unwrap().pod.as_mut().unwrap();
        let message = "ex-demo-a-1: ErrImagePull".to_owned();
        (pod.ready, pod.trouble) =
            (false, Some(PodFailure { reason: "ImagePullFailed", message, lasts }));
        let after = reconcile_status(&mut cluster, &found, 0);
        let reported =
            find_condition(&after.conditions, "Ready").unwrap().message.contains("ErrImagePull");
        (reason(&after, "Stalled"), reported)
    };
    assert_eq!(look_at(false), (String::new(), true));
    assert_eq!(look_at(true), ("True/ImagePullFailed".to_owned(), true));
}

type Change = fn(&mut DesiredCluster, &mut ObservedCluster);

/// Returns the reason of Stalled, and its message, so many seconds after the plan began to wait.
fn stalls(change: Change, seconds: &[i64]) -> Vec<(String, String)> {
    let mut cluster = desired(&[("a", 3)], "new");
    cluster.strategy.progress_deadline = Duration::from_secs(1000);
    reconcile_status(&mut cluster, &observed(&[("a", 3)], "new"), 0);
    let mut found = observed(&[("a", 3)], "new");
    change(&mut cluster, &mut found);
    reconcile_status(&mut cluster, &found, 100);
    let look = |seconds: &i64| {
        let after = reconcile_status(&mut cluster, &found, 100 + seconds);
        let message = find_condition(&after.conditions, "Stalled").map(|one| one.message.clone());
        (reason(&after, "Stalled"), message.unwrap_or_default())
    };
    seconds.iter().map(look).collect()
}

#[test]
fn what_needs_a_person_is_stalled_after_two_minutes_with_its_way_out() {
    let rows: [(&str, &str, &str, Change); 6] = [
        ("a machine is gone", "NodesNotReady", "delete its Node", |_, o| {
            let pod = pod(o, 1);
            (pod.ready, pod.terminating, pod.overdue) = (false, true, true);
        }),
        ("a database cannot run", "NodesNotReady", "correct what it names", |_, o| {
            pod(o, 1).ready = false;
            let pilot = pilot(o, 1);
            (pilot.ready, pilot.failed) = (false, true);
            pilot.not_ready = Some("PluginInstallFailed: no such plugin".into());
        }),
        ("a departure is refused", "PredicateBlocked", "keep ex-demo-a-2", |d, o| {
            d.pools[0].replicas = 2;
            let pilot = pilot(o, 2);
            pilot.spec.phase = Some(PilotIntent::Decommissioned);
            pilot.phase_ours = true;
            let refusal = BlockerFacts::of_stop("SpaceElsewhere", "no room");
            let against = vec![NodeChange::Leave];
            pilot.blockers = vec![BlockerFacts { against, ..refusal }];
        }),
        ("a change is blocked", "PredicateBlocked", "take the change of the spec back", |_, o| {
            let pilot = pilot(o, 2);
            (pilot.running_hash, pilot.validated) = (Some("old".into()), Some(Ok(())));
            pilot.blockers = vec![BlockerFacts::of_stop("DataMayMove", "no room")];
        }),
        ("data are in a pod", "PredicateBlocked", "give them up", |_, o| {
            let pod = pod(o, 2);
            (pod.holds_data, pod.hash) = (true, "old".into());
        }),
        ("a policy changes pods", "PredicateBlocked", "find the policy", |_, o| {
            let pod = pod(o, 2);
            (pod.hash, pod.template) = ("other".into(), Some("new".into()));
        }),
    ];
    for (what, reason, word, change) in rows {
        let [early, late, later] = stalls(change, &[119, 120, 3000]).try_into().unwrap();
        assert_eq!(early.0, "", "{what}");
        for (told, message) in [late, later] {
            assert_eq!(told, format!("True/{reason}"), "{what}");
            assert!(message.contains(word), "{what}: {message}");
        }
    }
    // By the times of Kubernetes it has lasted.
    let crashes: Change = |_, o| {
        let message = "ex-demo-a-1: container example: CrashLoopBackOff".to_owned();
        let trouble = PodFailure { reason: "NodesNotReady", message, lasts: true };
        (pod(o, 1).ready, pod(o, 1).trouble) = (false, Some(trouble));
    };
    assert_eq!(stalls(crashes, &[0])[0].0, "True/NodesNotReady");
}

#[test]
fn what_ends_by_itself_is_stalled_after_the_deadline_and_what_a_person_wants_never() {
    let blocked: Change = |_, o| {
        pod(o, 2).hash = "old".into();
        pilot(o, 2).blockers = vec![BlockerFacts::of_stop("PeersUp", "one is down")];
    };
    let told: Vec<_> = stalls(blocked, &[120, 999, 1000]);
    assert_eq!([&*told[0].0, &*told[1].0], ["", ""]);
    assert_eq!(told[2].0, "True/ProgressDeadlineExceeded");
    assert!(
        told[2]
            .1
            .ends_with("one is down; wait, or add PeersUp to spec.updateStrategy.skipPredicates")
    );
    let canary: Change = |d, o| {
        d.strategy.canary = Some((["a".to_owned()].into(), 1));
        (0..2).for_each(|ordinal| pod(o, ordinal).hash = "old".into());
    };
    let phase: Change = |_, o| {
        let pilot = pilot(o, 2);
        (pilot.ready, pilot.spec.phase) = (false, Some(PilotIntent::Fenced));
        pod(o, 2).ready = false;
    };
    for wanted in [canary, phase] {
        assert!(stalls(wanted, &[120, 100_000]).iter().all(|(reason, _)| reason.is_empty()));
    }
}

fn pod(observed: &mut ObservedCluster, ordinal: u32) -> &mut PodFacts {
    observed.pools[0].members.get_mut(&ordinal).unwrap().pod.as_mut().unwrap()
}

fn pilot(observed: &mut ObservedCluster, ordinal: u32) -> &mut PilotFacts {
    observed.pools[0].members.get_mut(&ordinal).unwrap().pilot.as_mut().unwrap()
}

#[test]
fn steps_are_kept_with_their_times_and_blocks_say_since_when() {
    let mut cluster = desired(&[("a", 2)], "new");
    let current = observed(&[("a", 2)], "new");
    reconcile_status(&mut cluster, &current, 0);
    let old = observed(&[("a", 2)], "old");
    let first = reconcile_status(&mut cluster, &old, 10).operation.unwrap();
    assert_eq!((first.type_.as_str(), first.phase.as_str()), ("Configure", "Running"));
    let mut next = observed(&[("a", 2)], "old");
    next.pools[0].members.insert(1, current.pools[0].members[&1].clone());
    let blocker = BlockerFacts::of_stop("RangesKeepQuorum", "one copy");
    let member = next.pools[0].members.get_mut(&0).unwrap();
    member.pilot.as_mut().unwrap().blockers = vec![blocker];
    let second = reconcile_status(&mut cluster, &next, 20).operation.unwrap();
    assert_eq!(second.id, first.id);
    assert_eq!((second.phase.as_str(), second.steps.len()), ("Blocked", 2));
    assert_eq!(second.steps[0].phase, "Blocked");
    assert_eq!(second.steps[1].phase, "Done");
    assert_eq!(second.steps[1].completion_time.as_ref().unwrap().0, at(20));
    let third = reconcile_status(&mut cluster, &next, 30).operation.unwrap();
    assert_eq!(third.blocked_by[0].since.as_ref().unwrap().0, at(20));
    assert_eq!(third, second);
}

#[test]
fn a_step_that_was_held_up_and_never_taken_is_skipped_and_not_done() {
    let mut cluster = desired(&[("a", 2)], "new");
    reconcile_status(&mut cluster, &observed(&[("a", 2)], "new"), 0);
    let mut found = observed(&[("a", 2)], "old");
    for ordinal in 0..2 {
        pilot(&mut found, ordinal).blockers = vec![BlockerFacts::of_stop("PeersUp", "one is down")];
    }
    let held = reconcile_status(&mut cluster, &found, 10).operation.unwrap();
    assert_eq!(
        (held.steps[0].name.as_str(), held.steps[0].phase.as_str()),
        ("RecreatePod", "Blocked")
    );
    // The plan waits for the outage of another node instead.
    found.pools[0].members.get_mut(&0).unwrap().pod.as_mut().unwrap().ready = false;
    let waits = reconcile_status(&mut cluster, &found, 20).operation.unwrap();
    let phases: Vec<_> = waits.steps.iter().map(|step| (&*step.name, &*step.phase)).collect();
    assert_eq!(phases, [("WaitHealthy", "Running"), ("RecreatePod", "Skipped")]);
    // A step that waits for a report has not begun, either.
    let mut found = observed(&[("a", 2)], "old");
    found.pools[0].members.get_mut(&0).unwrap().pilot.as_mut().unwrap().hearing.heard = false;
    let unheard = reconcile_status(&mut cluster, &found, 30).operation.unwrap();
    assert_eq!((unheard.phase.as_str(), unheard.steps[0].phase.as_str()), ("Running", "Pending"));
    let late = reconcile_status(&mut cluster, &found, 30 + 1800);
    assert_eq!(reason(&late, "Stalled"), "True/ProgressDeadlineExceeded");
}

#[test]
fn an_operation_that_an_edit_ends_is_not_done() {
    let mut cluster = desired(&[("a", 2)], "new");
    cluster.status.conditions = vec![initialized()];
    let one = observed(&[("a", 1)], "new");
    assert_eq!(reconcile_status(&mut cluster, &one, 0).operation.unwrap().type_, "ScaleUp");
    cluster.pools[0].replicas = 1;
    cluster.generation += 1;
    let last = reconcile_status(&mut cluster, &one, 10).last_operation.unwrap();
    assert_eq!((last.type_.as_str(), last.phase.as_str()), ("ScaleUp", "Failed"));
    assert_eq!(last.message.as_deref(), Some("the spec was changed before it ended"));
    let later = reconcile_status(&mut cluster, &one, 20);
    assert_eq!(later.last_operation.unwrap().phase, "Failed");
}

#[test]
fn a_pool_that_is_removed_keeps_its_topology_until_its_nodes_are_gone() {
    let mut cluster = desired(&[("a", 1), ("b", 1)], "new");
    cluster.pools[1].topology.insert("rack".to_owned(), "r1".to_owned());
    let found = observed(&[("a", 1), ("b", 1)], "new");
    let was = reconcile_status(&mut cluster, &found, 0);
    cluster.pools.truncate(1);
    let is = reconcile_status(&mut cluster, &found, 10);
    assert_eq!(is.node_pools["b"].topology, was.node_pools["b"].topology);
    assert_eq!(is.node_pools["b"].topology.as_ref().unwrap()["rack"], "r1");
}

#[test]
fn versions_are_ordered_by_number() {
    assert_eq!(by_version("4.1.9", "4.1.10"), Ordering::Less);
    assert_eq!(by_version("5.0", "4.1.10"), Ordering::Greater);
}

#[test]
fn a_version_that_only_given_up_data_were_written_by_counts_no_more() {
    let told = |word: Option<&str>, claim: &str, serves: bool| {
        let mut found = observed(&[("a", 2)], "new");
        let failed = found.pools[0].members.get_mut(&1).unwrap();
        failed.claim.as_mut().unwrap().uid = claim.into();
        let pilot = failed.pilot.as_mut().unwrap();
        (pilot.version, pilot.ready) = (Some("5.1.0".into()), serves);
        pilot.given_up = word.map(str::to_owned);
        let counts = count_versions(&found);
        counts.into_iter().map(|count| count.version).collect::<Vec<_>>()
    };
    assert_eq!(told(None, "claim-1", false), ["5.0.6", "5.1.0"]);
    assert_eq!(told(Some("claim-1"), "claim-1", false), ["5.0.6"]);
    assert_eq!(told(Some("claim-1"), "later", false), ["5.0.6"], "it has a new volume");
    assert_eq!(told(Some("claim-1"), "later", true), ["5.0.6", "5.1.0"], "it serves again");
}

#[test]
fn the_versions_of_stopped_nodes_are_known() {
    let told = |change: fn(&mut Member)| {
        let mut found = observed(&[("a", 1)], "new");
        let node = found.pools[0].members.get_mut(&0).unwrap();
        node.pod = None;
        change(node);
        count_versions(&found).into_iter().map(|count| count.version).collect::<Vec<_>>()
    };
    assert_eq!(told(|_| ()), ["5.0.6"], "no downgrade of its data is accepted");
    assert_eq!(told(|node| node.claim = None), [""; 0]);
    assert_eq!(told(|node| node.pilot.as_mut().unwrap().decommissioned = true), [""; 0]);
}

#[test]
fn a_stopped_cluster_is_said_to_be_stopped() {
    let mut cluster = desired(&[("a", 1)], "new");
    reconcile_status(&mut cluster, &observed(&[("a", 1)], "new"), 0);
    cluster.stopped = true;
    let planned = plan_next_step(&cluster, &observed(&[("a", 1)], "new"));
    assert_eq!(planned.operation, Some(OperationType::Stop));
    assert!(matches!(planned.step, Some(PlannedStep::Stop { .. })));
    let stopped = reconcile_status(&mut cluster, &observed(&[("a", 0)], "new"), 10);
    assert_eq!(stopped.phase.as_deref(), Some("Stopped"));
    assert_eq!(reason(&stopped, "Ready"), "False/ClusterStopped");
}

#[test]
fn a_cluster_that_serves_no_data_or_takes_no_writes_is_not_ready() {
    let mut cluster = desired(&[("a", 2)], "new");
    let changed = |change: fn(&mut PilotFacts)| {
        let mut observed = observed(&[("a", 2)], "new");
        change(observed.pools[0].members.get_mut(&1).unwrap().pilot.as_mut().unwrap());
        observed
    };
    let red = reconcile_status(&mut cluster, &changed(|pilot| pilot.health = Some(Health::Red)), 0);
    assert_eq!(reason(&red, "Ready"), "False/HealthRed");
    assert_eq!(reason(&red, "Available"), "False/HealthRed");
    let full =
        reconcile_status(&mut cluster, &changed(|pilot| pilot.full = Some("no room".into())), 60);
    assert_eq!(reason(&full, "Ready"), "False/DiskFull");
    let ready = find_condition(&full.conditions, "Ready").unwrap();
    assert_eq!(ready.message, "ex-demo-a-1: no room");
    assert_eq!(full.health, Some(Health::Yellow));
    let well = reconcile_status(&mut cluster, &observed(&[("a", 2)], "new"), 120);
    assert_eq!(reason(&well, "Ready"), "True/AllNodesReady");
    assert_eq!(well.health, Some(Health::Green));
}

#[test]
fn health_is_unknown_and_not_red_while_pilots_alone_are_silent() {
    let mut cluster = desired(&[("a", 2)], "new");
    reconcile_status(&mut cluster, &observed(&[("a", 2)], "new"), 0);
    let silent = |pods_ready: bool| {
        let mut observed = observed(&[("a", 2)], "new");
        for member in observed.pools[0].members.values_mut() {
            member.pod.as_mut().unwrap().ready = pods_ready;
            let pilot = member.pilot.as_mut().unwrap();
            pilot.ready = false;
            pilot.not_ready = Some("PilotSilent: no heartbeat".into());
            pilot.marked_unheard = true;
        }
        observed
    };
    let unheard = reconcile_status(&mut cluster, &silent(true), 60);
    assert_eq!(unheard.health, None);
    assert_eq!(reason(&unheard, "Available"), "Unknown/PilotSilent");
    assert_eq!(reason(&unheard, "Ready").split('/').next(), Some("False"));
    let down = reconcile_status(&mut cluster, &silent(false), 120);
    assert_eq!(down.health, Some(Health::Red));
    assert_eq!(reason(&down, "Available"), "False/NodesNotReady");
}

#[test]
fn pilots_that_are_turned_away_are_said_to_be_and_health_is_unknown() {
    let mut cluster = desired(&[("a", 2)], "new");
    reconcile_status(&mut cluster, &observed(&[("a", 2)], "new"), 0);
    let mut away = observed(&[("a", 2)], "new");
    lose_account(&mut away, at(3000));
    let told = reconcile_status(&mut cluster, &away, 120);
    assert_eq!((told.health.clone(), told.phase.as_deref()), (None, Some("Degraded")));
    for type_ in ["Ready", "Available"] {
        assert_eq!(reason(&told, type_), "Unknown/PilotTurnedAway", "{type_}");
        let message = &find_condition(&told.conditions, type_).unwrap().message;
        let by = at(3000).to_string();
        for word in ["ex-demo-a-0, ex-demo-a-1", &by, "skipPredicates"] {
            assert!(message.contains(word), "{word}: {message}");
        }
    }
    assert_eq!(told.operation.unwrap().blocked_by[0].predicate, "TokenRenewal");
    assert_eq!(reconcile_status(&mut cluster, &away, 2900).phase.as_deref(), Some("Degraded"));
    assert_eq!(reason(&cluster.status, "Stalled"), "", "that it waits is no lack of progress");
    // No step is taken for a paused cluster, but its status still names the failure.
    cluster.paused = true;
    assert_eq!(plan_next_step(&cluster, &away), Plan::default());
    let paused = reconcile_status(&mut cluster, &away, 2910);
    assert_eq!(reason(&paused, "Ready"), "Unknown/PilotTurnedAway");
    cluster.paused = false;
    // The kubelet says that these nodes do not serve, so their health is not unknown any more.
    for member in away.pools[0].members.values_mut() {
        member.pod.as_mut().unwrap().ready = false;
    }
    assert_eq!(reconcile_status(&mut cluster, &away, 2920).health, Some(Health::Red));
    let back = reconcile_status(&mut cluster, &observed(&[("a", 2)], "new"), 3000);
    assert_eq!(reason(&back, "Ready"), "True/AllNodesReady");
}

#[test]
fn a_database_that_lets_everybody_in_says_so_and_is_ready_all_the_same() {
    let mut cluster = desired(&[("a", 2)], "new");
    let found = observed(&[("a", 2)], "new");
    let open = reconcile_status(&mut cluster, &found, 0);
    assert_eq!(reason(&open, "Secured"), "False/SecurityDisabled");
    assert_eq!(reason(&open, "Ready"), "True/AllNodesReady");
}

#[test]
fn what_is_left_open_on_the_rungs_that_are_wanted_is_said() {
    use crate::api::v1beta1::{
        Authentication, ClientSecurity, ClientTls, ClusterSecurity, InternodeSecurity,
        InternodeTls, PilotSecurityStatus, ServedCertificate,
    };
    use crate::controller::desired_state::SecurityRound;
    let said = |internode: InternodeTls, client: ClientTls, authentication: Authentication| {
        let mut cluster = desired(&[("a", 1)], "new");
        let security = ClusterSecurity {
            internode: Some(InternodeSecurity {
                tls: Some(internode),
                ..InternodeSecurity::default()
            }),
            client: Some(ClientSecurity { tls: Some(client), ..ClientSecurity::default() }),
            authentication: Some(authentication),
            ..ClusterSecurity::default()
        };
        let rungs = security.desired_modes();
        cluster.security = Some(security);
        cluster.round = SecurityRound::without_transition(rungs.clone());
        let mut found = observed(&[("a", 1)], "new");
        let served = Some(ServedCertificate::default());
        for member in found.pools[0].members.values_mut() {
            member.pilot.as_mut().unwrap().security = Some(PilotSecurityStatus {
                internode: served.clone(),
                client: served.clone(),
                users: Some("u".to_owned()),
                rungs: Some(rungs.clone()),
                ..PilotSecurityStatus::default()
            });
        }
        reason(&reconcile_status(&mut cluster, &found, 0), "Secured")
    };
    let (required, password) = (InternodeTls::Required, Authentication::Password);
    for (internode, client, authentication, expected) in [
        (required.clone(), ClientTls::Required, password.clone(), "True/Secured"),
        (required.clone(), ClientTls::Optional, password.clone(), "False/PlainClientsServed"),
        (required.clone(), ClientTls::Off, password.clone(), "False/NotEncrypted"),
        (InternodeTls::Prefer, ClientTls::Required, password, "False/NotEncrypted"),
        (required, ClientTls::Required, Authentication::Off, "False/SecurityDisabled"),
    ] {
        let words = format!("{internode} {client} {authentication}");
        assert_eq!(said(internode, client, authentication), expected, "{words}");
    }
}

#[test]
fn replica_behind_is_told_with_what_to_type() {
    let mut cluster = desired(&[("a", 3)], "new");
    let mut found = observed(&[("a", 3)], "new");
    assert_eq!(reason(&reconcile_status(&mut cluster, &found, 0), "Repaired"), "");
    behind(&mut found, 1, Some(7200));
    behind(&mut found, 2, None);
    let status = reconcile_status(&mut cluster, &found, 1);
    assert_eq!(reason(&status, "Repaired"), "False/ReplicaBehind");
    assert_eq!(reason(&status, "Ready"), "True/AllNodesReady", "all serve");
    let message = |status: &ClusterStatus| {
        find_condition(&status.conditions, "Repaired").unwrap().message.clone()
    };
    let told = message(&status);
    for expected in [
        "ex-demo-a-1 was away from 1970-01-12T11:46:40Z to 1970-01-12T13:46:40Z",
        "ex-demo-a-2 took the place of a lost node at 1970-01-12T13:46:40Z",
        "kubectl --namespace default exec ex-demo-a-1 -c example -- repair, ",
        "kubectl --namespace default annotate --overwrite pilot ex-demo-a-1 \
         \"navigator.jetstack.io/repaired=$(date -u +%Y-%m-%dT%H:%M:%SZ)\"",
        "the same for ex-demo-a-2",
        "ReplicaBehind",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    found.pools[0].members.get_mut(&0).unwrap().pod.as_mut().unwrap().ready = false;
    let told = message(&reconcile_status(&mut cluster, &found, 2));
    assert!(told.contains("-c example -- repair --force, "), "{told}");
    found.pools[0].members.get_mut(&1).unwrap().pilot.as_mut().unwrap().behind = None;
    found.pools[0].members.get_mut(&2).unwrap().pilot.as_mut().unwrap().behind = None;
    assert_eq!(reason(&reconcile_status(&mut cluster, &found, 3), "Repaired"), "");
}

#[test]
fn message_about_many_replicas_behind_says_what_to_type() {
    let mut cluster = desired(&[("a", 60)], "new");
    let mut found = observed(&[("a", 60)], "new");
    for ordinal in 0..60 {
        behind(&mut found, ordinal, Some(7200));
    }
    let status = reconcile_status(&mut cluster, &found, 1);
    let told = &find_condition(&status.conditions, "Repaired").unwrap().message;
    assert!(told.contains("; and 57 more") && told.contains("annotate --overwrite"), "{told}");
}

/// Has the pilot of a node report that the node is behind since a time after `at(0)`, after an
/// absence of so many seconds.
fn behind(observed: &mut ObservedCluster, ordinal: u32, away: Option<i64>) {
    let pilot = observed.pools[0].members.get_mut(&ordinal).unwrap().pilot.as_mut().unwrap();
    let report = BehindReplica {
        since: at(0),
        away_since: away.map(|away| at(-away)),
        repair: "repair",
        repair_beside_lost: "repair --force",
    };
    pilot.behind = Some(BehindFacts { report, report_flaw: None });
}
