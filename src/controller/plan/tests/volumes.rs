//! Volumes that grow, and volumes that cannot.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::*;
use crate::controller::observe::{ClaimFacts, ClaimTemplate};

/// Returns the plan for three nodes whose volumes have 1 GiB, after the spec asks for `size`.
fn sized(size: &str, change: impl FnOnce(&mut DesiredCluster, &mut ObservedCluster)) -> Plan {
    planned(&[("a", 3)], &[("a", 3)], |desired, observed| {
        desired.pools[0].persistence.as_mut().unwrap().size = Some(Quantity(size.into()));
        let set = observed.pools[0].set.as_mut().unwrap();
        set.uid = "set".into();
        set.claim = Some(ClaimTemplate { size: Some("1Gi".into()), ..ClaimTemplate::default() });
        for ordinal in 0..3 {
            let claim = claim(observed, ordinal);
            (claim.requested, claim.capacity) = (Some("1Gi".into()), Some("1Gi".into()));
            claim.expansion = Some(Ok(()));
        }
        change(desired, observed);
    })
}

fn claim(observed: &mut ObservedCluster, ordinal: u32) -> &mut ClaimFacts {
    member(observed, 0, ordinal).claim.as_mut().unwrap()
}

/// Makes the claims of all nodes as large as wanted.
fn enlarge(observed: &mut ObservedCluster) {
    for ordinal in 0..3 {
        let claim = claim(observed, ordinal);
        (claim.requested, claim.capacity) = (Some("2Gi".into()), Some("2Gi".into()));
    }
}

fn resize(ordinal: u32) -> PlannedStep {
    let claim = ClaimRef {
        name: format!("example-data-ex-demo-a-{ordinal}"),
        uid: format!("claim-{ordinal}"),
    };
    PlannedStep::ResizeClaim { pilot: format!("ex-demo-a-{ordinal}"), claim, size: "2Gi".into() }
}

fn renew() -> PlannedStep {
    PlannedStep::RenewSet { set: "ex-demo-a".into(), uid: "set".into() }
}

#[test]
fn claims_grow_one_step_at_a_time_and_the_template_follows() {
    assert_eq!(sized("1Gi", |_, _| ()), Plan::default());
    assert_eq!(sized("1024Mi", |_, _| ()).step, None, "another spelling is no other size");
    assert_eq!(sized("2Gi", |_, _| ()).step, Some(resize(0)));
    let next = sized("2Gi", |_, o| claim(o, 0).requested = Some("2Gi".into()));
    assert_eq!(next.step, Some(resize(1)), "no volume is waited for before all claims are asked");
    assert_eq!(sized("2Gi", |_, o| enlarge(o)).step, Some(renew()));
    let done = sized("2Gi", |_, o| {
        enlarge(o);
        o.pools[0].set.as_mut().unwrap().claim.as_mut().unwrap().size = Some("2048Mi".into());
    });
    assert_eq!(done, Plan::default());
}

#[test]
fn a_volume_grows_although_its_node_does_not_serve() {
    let full = sized("2Gi", |_, o| {
        let pilot = pilot(o, 0, 0);
        (pilot.ready, pilot.failed) = (false, true);
        pod(o, 0, 0).ready = false;
    });
    assert_eq!(full.step, Some(resize(0)));
}

#[test]
fn no_claim_grows_while_one_of_its_pool_cannot() {
    let refused = sized("2Gi", |_, o| {
        claim(o, 0).requested = Some("2Gi".into());
        claim(o, 2).expansion = Some(Err("its class does not allow it".into()));
    });
    assert_eq!(refused.step, None);
    let block = &refused.blocked[0];
    assert_eq!((&*block.predicate, &*block.step), ("VolumeExpands", "ResizeClaim/ex-demo-a-2"));
    let message = "claim example-data-ex-demo-a-2 cannot grow: its class does not allow it";
    assert_eq!(block.message, message);
    assert_eq!(block.remedy, Remedy::PutSizeBack { pool: "a".into(), size: "1Gi".into() });
    assert!(block.remedy.to_string().contains("the same rack"), "{}", block.remedy);
    let asked = sized("2Gi", |_, o| claim(o, 1).expansion = None);
    assert_eq!((asked.step, asked.waiting.unwrap().pilot.as_str()), (None, "ex-demo-a-1"));
}

#[test]
fn a_refused_size_hides_no_growth_and_holds_no_drain() {
    let refuse = |d: &mut DesiredCluster, o: &mut ObservedCluster| {
        claim(o, 2).expansion = Some(Err("no".into()));
        d.pools[0].replicas = 4;
    };
    assert_eq!(sized("2Gi", refuse).step, Some(PlannedStep::Raise { pool: "a".into(), to: 4 }));
    let mut desired = desired(&[("a", 3)], "new");
    desired.pools[0].persistence.as_mut().unwrap().size = Some(Quantity("2Gi".into()));
    let mut observed = observed(&[("a", 3)], "new");
    for ordinal in 0..3 {
        claim(&mut observed, ordinal).requested = Some("1Gi".into());
        claim(&mut observed, ordinal).expansion = Some(Err("no".into()));
    }
    let held = plan_next_step(&desired, &observed);
    assert_eq!(&*held.blocked[0].predicate, "VolumeExpands");
    assert_eq!(drain_hold(&desired, &observed, &held), None);
}

#[test]
fn a_file_system_is_waited_for_and_may_need_a_restart() {
    let growing = |restart: bool| {
        sized("2Gi", |_, o| {
            enlarge(o);
            o.pools[0].set.as_mut().unwrap().claim.as_mut().unwrap().size = Some("2Gi".into());
            let claim = claim(o, 1);
            claim.capacity = Some("1Gi".into());
            let report = claim.resize.get_or_insert_default();
            (report.words, report.needs_restart) = ("FileSystemResizePending".into(), restart);
        })
    };
    let waits = growing(false);
    let told = waits.waiting.unwrap();
    assert_eq!((waits.step, &told.remedy), (None, &Remedy::Wait));
    let message = "the volume of claim example-data-ex-demo-a-1 has 1Gi and grows to 2Gi \
                   (FileSystemResizePending)";
    assert_eq!(told.message, message);
    let told = growing(true).waiting.unwrap();
    assert_eq!(told.remedy, Remedy::RestartNode { node: "ex-demo-a-1".into() });
    assert!(told.description().contains("delete pod ex-demo-a-1"), "{}", told.description());
}

#[test]
fn a_set_is_made_anew_only_where_the_same_nodes_come_back() {
    let with = |change: &dyn Fn(&mut ObservedCluster)| {
        let plan = sized("2Gi", |_, o| {
            enlarge(o);
            change(o);
        });
        plan.step
    };
    assert_eq!(with(&|_| ()), Some(renew()));
    assert_eq!(with(&|o| pod(o, 0, 1).ready = false), None, "a node does not serve");
    assert_eq!(with(&|o| o.pools[0].set.as_mut().unwrap().terminating = true), None);
    let kept = |o: &mut ObservedCluster| {
        let mut left = member(o, 0, 2).clone();
        (left.name, left.pod, left.pilot) = ("ex-demo-a-3".into(), None, None);
        o.pools[0].members.insert(3, left);
    };
    assert_eq!(with(&kept), None, "the kept volume of a node that left would bring it back");
}

#[test]
fn new_claims_get_the_labels_and_annotations_of_the_spec() {
    let with = |label: &str| {
        sized("1Gi", |d, _| {
            let labels = &mut d.pools[0].persistence.as_mut().unwrap().labels;
            labels.insert(label.into(), "x".into());
        })
    };
    assert_eq!(with("team").step, Some(renew()));
    // The spec cannot change the labels by which Navigator finds its claims.
    let own = with("app.kubernetes.io/managed-by");
    assert_eq!(own.step, Some(renew()), "the template of the sample has no label");
    let annotated = sized("1Gi", |d, _| {
        let annotations = &mut d.pools[0].persistence.as_mut().unwrap().annotations;
        annotations.insert("note".into(), "x".into());
    });
    assert_eq!(annotated.step, Some(renew()));
}
