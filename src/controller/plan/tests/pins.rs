//! Of which template the pods of a pool are made.

use std::collections::BTreeSet;

use super::*;

const OLDER: &str = "4.1.0";

/// Returns pools whose nodes have not had their turn: of the older version, made of template `old`.
fn untouched(size: u32) -> (DesiredCluster, ObservedCluster) {
    let (desired, mut observed) = (desired(&[("a", size)], "new"), observed(&[("a", size)], "old"));
    for ordinal in 0..size {
        let pilot = pilot(&mut observed, 0, ordinal);
        pilot.spec.version = Some(OLDER.into());
        pilot.version = Some(OLDER.into());
    }
    (desired, observed)
}

fn evict(observed: &mut ObservedCluster, ordinal: u32) -> &mut PilotFacts {
    member(observed, 0, ordinal).pod = None;
    pilot(observed, 0, ordinal)
}

fn template<'a>(desired: &DesiredCluster, observed: &'a ObservedCluster) -> Option<&'a str> {
    pinned_template(desired, observed, &observed.pools[0])
}

#[test]
fn the_template_is_the_one_of_the_pods_that_wait_for_their_turn() {
    let (mut desired, mut observed) = untouched(3);
    assert_eq!(template(&desired, &observed), Some("old"));
    pod(&mut observed, 0, 2).terminating = true;
    pilot(&mut observed, 0, 2).spec = desired.pools[0].pilot.clone();
    assert_eq!(template(&desired, &observed), None, "the next pod is of a node that has its turn");
    evict(&mut observed, 1).pinned = Some("old".into());
    assert_eq!(template(&desired, &observed), Some("old"), "no pod is made before its turn");
    desired.strategy.on_delete = true;
    assert_eq!(template(&desired, &observed), None, "people delete pods to change them");
}

#[test]
fn a_node_that_had_no_pod_when_another_version_was_wanted_waits_for_its_turn_too() {
    let (desired, mut observed) = untouched(1);
    evict(&mut observed, 0);
    assert_eq!(template(&desired, &observed), Some("old"));
    pilot(&mut observed, 0, 0).version = Some("4.0.0".into());
    assert_eq!(template(&desired, &observed), None, "it never ran what it was told");
    let pilot = pilot(&mut observed, 0, 0);
    pilot.spec.version.clone_from(&desired.pools[0].pilot.version);
    assert_eq!(template(&desired, &observed), None, "a new configuration reaches it at once");
}

#[test]
fn a_node_that_is_made_while_the_canary_is_held_is_as_the_others() {
    let (mut desired, mut observed) = untouched(3);
    let birth = |desired: &DesiredCluster, observed: &ObservedCluster| {
        revision_for_new_pod(desired, observed, &observed.pools[0])
            .map(|birth| birth.template.to_owned())
    };
    assert_eq!(birth(&desired, &observed), None, "a new node tries the newest");
    desired.strategy.canary = Some((BTreeSet::new(), 1));
    assert_eq!(birth(&desired, &observed), None);
    pod(&mut observed, 0, 2).hash = "new".into();
    let canary = pilot(&mut observed, 0, 2);
    canary.spec = desired.pools[0].pilot.clone();
    canary.running_hash = Some("new".into());
    assert_eq!(birth(&desired, &observed).as_deref(), Some("old"));
    assert_eq!(template(&desired, &observed.with_replicas("a", 4)), Some("old"));
}

#[test]
fn a_pod_that_got_another_version_before_its_turn_is_made_anew() {
    let (desired, mut observed) = untouched(2);
    let waits = pilot(&mut observed, 0, 1);
    (waits.pinned, waits.failed, waits.ready) = (Some("old".into()), true, false);
    let leaked = pod(&mut observed, 0, 1);
    (leaked.hash, leaked.ready) = ("new".into(), false);
    let step = PlannedStep::Recreate { pilot: "ex-demo-a-1".into(), pod: "pod-1".into() };
    assert_eq!(plan_next_step(&desired, &observed).step, Some(step));
    observed.pools[0].set.as_mut().unwrap().template = "new".into();
    let waits = plan_next_step(&desired, &observed);
    assert_ne!(waits.step.as_ref().map(PlannedStep::name), Some("RecreatePod"), "{waits:?}");
}

#[test]
fn a_node_that_gets_no_pod_of_the_old_template_is_mended_by_the_newest() {
    let mended = |version: &str| {
        let (desired, mut observed) = untouched(2);
        pilot(&mut observed, 0, 0).spec.version = Some(version.to_owned());
        let pilot = evict(&mut observed, 1);
        pilot.spec.version = Some(version.to_owned());
        (pilot.ready, pilot.pinned) = (false, Some("old".into()));
        member(&mut observed, 0, 1).refused =
            Some(PodFailure { reason: "QuotaExceeded", message: "no room".into(), lasts: true });
        plan_next_step(&desired, &observed)
    };
    let step = Some(PlannedStep::Configure { pilot: "ex-demo-a-1".into() });
    assert_eq!(mended("5.0.6").step, step, "a configuration");
    let waits = mended(OLDER);
    assert_eq!((&waits.step, &*waits.blocked[0].predicate), (&None, "VersionTurn"));
}

#[test]
fn no_pin_names_the_newest_template() {
    let (desired, mut observed) = untouched(2);
    observed.pools[0].set.as_mut().unwrap().template = "new".into();
    for ordinal in 0..2 {
        evict(&mut observed, ordinal);
    }
    let wanted = &desired.pools[0];
    let to = |observed: &ObservedCluster| {
        let pool = &observed.pools[0];
        pinned_to(&desired, pool, &pool.members[&0], wanted).map(str::to_owned)
    };
    assert_eq!(to(&observed), None, "all were stopped when the version changed");
    pilot(&mut observed, 0, 0).pinned = Some("new".into());
    pilot(&mut observed, 0, 1).pinned = Some("old".into());
    assert_eq!(template(&desired, &observed), Some("old"), "the other one's counts");
}

#[test]
fn a_held_canary_keeps_the_newest_from_a_node_whose_pod_waits_for_a_machine() {
    let waits = |lasts: bool, version: &'static str| {
        let (mut desired, mut observed) = untouched(3);
        desired.strategy.canary = Some((BTreeSet::new(), 1));
        pod(&mut observed, 0, 2).hash = "new".into();
        let canary = pilot(&mut observed, 0, 2);
        canary.spec = desired.pools[0].pilot.clone();
        canary.running_hash = Some("new".into());
        for ordinal in 0..2 {
            pilot(&mut observed, 0, ordinal).spec.version = Some(version.into());
        }
        let pod = pod(&mut observed, 0, 0);
        pod.ready = false;
        pod.trouble = Some(PodFailure { reason: "Unschedulable", message: "no".into(), lasts });
        plan_next_step(&desired, &observed)
    };
    assert_eq!(waits(false, "5.0.6").step, None, "a new machine may come");
    assert!(matches!(waits(true, "5.0.6").step, Some(PlannedStep::Replace { .. })));
    let held = waits(true, OLDER);
    assert_eq!((&held.step, &*held.blocked[0].predicate), (&None, "VersionTurn"));
}

/// The first node ran the newer version and failed; its data were given up, and the former version
/// is wanted again.
#[test]
fn an_upgrade_that_failed_on_its_first_node_is_taken_back() {
    let (desired, mut observed) = (desired(&[("a", 3)], "new"), observed(&[("a", 3)], "new"));
    let failed = pilot(&mut observed, 0, 2);
    failed.spec.version = Some("5.1.0".into());
    failed.version = Some("5.1.0".into());
    (failed.ready, failed.failed) = (false, true);
    failed.given_up = Some("claim-2".into());
    let broken = pod(&mut observed, 0, 2);
    (broken.hash, broken.ready) = ("newer".into(), false);
    let first = plan_next_step(&desired, &observed).step;
    let replace = PlannedStep::Replace { pilot: "ex-demo-a-2".into(), pod: "pod-2".into() };
    assert_eq!(first, Some(replace));
    pilot(&mut observed, 0, 2).spec = desired.pools[0].pilot.clone();
    pod(&mut observed, 0, 2).hash = "new".into();
    let then = plan_next_step(&desired, &observed).step;
    assert!(matches!(then, Some(PlannedStep::Renew { claim: Some(_), .. })), "{then:?}");
}
