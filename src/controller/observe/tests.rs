//! Tests of the facts that are read from objects, and of what follows from them for a node.

use k8s_openapi::jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};

use super::*;
use crate::controller::testing::example::DATABASE;
use crate::controller::testing::sample;

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

/// Returns the facts of the pod of node 0 with this status.
fn pod(status: &Value) -> PodFacts {
    let pod = json!({"metadata": {"name": "ex-demo-a-0", "uid": "p"}, "status": status});
    let pods = vec![Arc::new(serde_json::from_value(pod).unwrap())];
    let desired = sample::desired(&[("a", 1)], "x");
    let mut observed =
        observe_cluster(&desired, &ClusterObjects { pods, ..ClusterObjects::default() }, now());
    observed.pools[0].members.remove(&0).unwrap().pod.unwrap()
}

#[test]
fn a_pod_that_waits_for_an_image_or_a_machine_is_told_at_once_and_lasts_after_two_minutes() {
    let waits = |seconds: i64| {
        let since = (now() - seconds.seconds()).to_string();
        let condition = |type_: &str, reason: &str| {
            json!([{
                "type": type_, "status": "False", "reason": reason, "message": "why",
                "lastTransitionTime": since,
            }])
        };
        let image = json!({
            "conditions": condition("Ready", "ContainersNotReady"),
            "containerStatuses": [{
                "name": "example", "ready": false, "restartCount": 0, "image": "", "imageID": "",
                "state": {"waiting": {"reason": "ErrImagePull", "message": "slow"}},
            }],
        });
        let machine = json!({"conditions": condition("PodScheduled", "Unschedulable")});
        [image, machine].map(|status| {
            let trouble = pod(&status).trouble.unwrap();
            (trouble.reason, trouble.lasts)
        })
    };
    assert_eq!(waits(1), [("ImagePullFailed", false), ("Unschedulable", false)]);
    assert_eq!(waits(120), [("ImagePullFailed", true), ("Unschedulable", true)]);
}

#[test]
fn a_pod_is_of_the_newest_template_while_its_set_has_no_other() {
    let template = |revision: &str, observed: i64| {
        let pod = json!({"metadata": {
            "name": "ex-demo-a-0", "uid": "p", "labels": {"controller-revision-hash": revision},
        }});
        let owner = json!([{
            "apiVersion": "x/v1", "kind": "ExampleCluster", "name": "demo", "uid": "cluster-uid",
            "controller": true,
        }]);
        let annotations = json!({annotation::CONFIG_HASH: "wanted"});
        let set = json!({
            "metadata": {"name": "ex-demo-a", "generation": 3, "ownerReferences": owner},
            "spec": {
                "selector": {}, "serviceName": "x",
                "template": {"metadata": {"annotations": annotations}},
            },
            "status": {"replicas": 1, "observedGeneration": observed, "updateRevision": "two"},
        });
        let pods = vec![Arc::new(serde_json::from_value(pod).unwrap())];
        let sets = vec![Arc::new(serde_json::from_value(set).unwrap())];
        let desired = sample::desired(&[("a", 1)], "x");
        let mut found = observe_cluster(
            &desired,
            &ClusterObjects { sets, pods, ..ClusterObjects::default() },
            now(),
        );
        found.pools[0].members.remove(&0).unwrap().pod.unwrap().template
    };
    assert_eq!(template("two", 3).as_deref(), Some("wanted"));
    assert_eq!(template("one", 3), None);
    assert_eq!(template("two", 2), None, "it may be the one before");
}

/// Has the database of a node with this report ever answered?
fn has_answered(status: Value) -> bool {
    let status = serde_json::from_value(status).unwrap();
    has_database_answered(&status, &(DATABASE.reports)(&status))
}

#[test]
fn whatever_comes_from_the_database_itself_shows_that_it_answered() {
    for silent in [
        json!({}),
        json!({"phase": "Failed", "configHash": "x", "lastTermination": {"exitCode": 1}}),
        json!({"example": {"plugins": [{"name": "icu"}]}, "health": "Red"}),
        json!({"version": "5.0.6", "example": {"mode": "FAILED"}}),
    ] {
        assert!(!has_answered(silent.clone()), "{silent}");
    }
    for spoke in [
        json!({"version": "5.0.6"}),
        json!({"identity": {"nodeID": "x"}}),
        json!({"identity": {"nodeID": "x"}, "example": {"mode": "FAILED"}}),
        json!({"endpoints": [{"name": "transport", "host": "10.0.0.1", "port": 7000}]}),
        json!({"example": {"mode": "JOINING"}}),
        json!({"decommission": {"irreversible": false}}),
    ] {
        assert!(has_answered(spoke.clone()), "{spoke}");
    }
}

#[test]
fn a_member_waits_in_vain_for_others_after_five_minutes_of_its_own_clock() {
    let ago = |minutes: i64| (now() - minutes.minutes()).to_string();
    let waits = |reason: &str, unready: i64, runs: i64| {
        let pilot = json!({"metadata": {"name": "ex-demo-a-0"}, "status": {
            "lastHeartbeatTime": now().to_string(),
            "process": {"pid": 9, "startTime": ago(runs)},
            "conditions": [{
                "type": "Ready", "status": "False", "reason": reason, "message": "",
                "lastTransitionTime": ago(unready),
            }],
        }});
        pilot_facts(&DATABASE, &serde_json::from_value(pilot).unwrap(), true, Timestamp::UNIX_EPOCH)
            .joins_in_vain
    };
    assert!(waits("Joining", 5, 60));
    assert!(waits("Joining", 60, 5));
    assert!(!waits("Joining", 4, 60), "it served until a moment ago");
    assert!(!waits("Joining", 60, 4), "it was stopped until a moment ago");
    assert!(!waits("Starting", 60, 60));
}

#[test]
fn a_claim_whose_volume_is_lost_is_why_its_pod_does_not_start() {
    let trouble = |phase: &str, ready: &str| {
        let claim = json!({
            "metadata": {"name": "example-data-ex-demo-a-0", "uid": "c"},
            "status": {"phase": phase},
        });
        let pod = json!({
            "metadata": {"name": "ex-demo-a-0", "uid": "p"},
            "status": {"conditions": [{"type": "Ready", "status": ready}, {
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "persistentvolumeclaim bound to a lost volume",
                "lastTransitionTime": now().to_string(),
            }]},
        });
        let objects = ClusterObjects {
            pods: vec![Arc::new(serde_json::from_value(pod).unwrap())],
            claims: vec![Arc::new(serde_json::from_value(claim).unwrap())],
            ..ClusterObjects::default()
        };
        let mut observed = observe_cluster(&sample::desired(&[("a", 1)], "x"), &objects, now());
        let member = observed.pools[0].members.remove(&0).unwrap();
        member.pod.unwrap().trouble.map(|trouble| (trouble.reason, trouble.lasts))
    };
    assert_eq!(trouble("Lost", "False"), Some(("VolumeLost", true)));
    assert_eq!(trouble("Bound", "False"), Some(("Unschedulable", false)));
    assert_eq!(trouble("Lost", "True"), None, "the node serves on");
}

#[test]
fn only_a_claim_with_a_volume_behind_it_holds_data() {
    let holds = |phase: &str, deleted: Option<&str>| {
        let claim = json!({
            "metadata": {"name": "c", "deletionTimestamp": deleted}, "status": {"phase": phase},
        });
        claim_facts(&serde_json::from_value(claim).unwrap(), DATABASE.names, now()).holds_data
    };
    assert!(holds("Bound", None));
    assert!(!holds("Pending", None), "a volume is made when its first pod is placed");
    assert!(!holds("Lost", None));
    assert!(!holds("Bound", Some("2026-01-01T00:00:00Z")), "a person deletes it");
}

/// Returns the facts of a cluster's only node, whose pod has not been ready for two hours.
fn seen(data: &Value, phase: &str, mode: &str, ago: Duration) -> Member {
    seen_with(data, phase, mode, ago, &json!({"pid": 7, "restarts": 0}))
}

/// Like [`seen`], with a given process of the database or none.
fn seen_with(data: &Value, phase: &str, mode: &str, ago: Duration, process: &Value) -> Member {
    let pod = json!({
        "metadata": {"name": "ex-demo-a-0", "uid": "p"},
        "spec": {"containers": [], "volumes": [data]},
        "status": {"conditions": [{
            "type": "Ready", "status": "False", "lastTransitionTime": "2025-12-31T23:00:00Z",
        }]},
    });
    let pilot = json!({
        "metadata": {"name": "ex-demo-a-0", "uid": "q"},
        "spec": {"phase": phase},
        "status": {"example": {"mode": mode}, "process": process},
    });
    let objects = ClusterObjects {
        pods: vec![Arc::new(serde_json::from_value(pod).unwrap())],
        pilots: vec![Arc::new(serde_json::from_value(pilot).unwrap())],
        ..ClusterObjects::default()
    };
    let mut observed = observe_cluster(&sample::desired(&[("a", 1)], "new"), &objects, now());
    observed.set_heartbeats(|_| HeartbeatAge { ago, ..HeartbeatAge::STEADY });
    observed.pools[0].members[&0].clone()
}

#[test]
fn a_pod_holds_its_data_where_its_own_volume_says_so() {
    for (source, holds) in [
        (json!({"emptyDir": {}}), true),
        (json!({"ephemeral": {}}), true),
        (json!({"persistentVolumeClaim": {"claimName": "c"}}), false),
        (json!({"hostPath": {"path": "/data"}}), false),
    ] {
        let mut volume = source;
        volume["name"] = json!("example-data");
        let pod = seen(&volume, "Running", "NORMAL", Duration::ZERO).pod.unwrap();
        assert_eq!(pod.holds_data, holds, "{volume}");
        volume["name"] = json!("scratch");
        assert!(!seen(&volume, "Running", "NORMAL", Duration::ZERO).pod.unwrap().holds_data);
    }
}

#[test]
fn a_node_that_moves_data_or_is_held_is_not_broken_for_taking_long() {
    let troubled_for = |ago: u64, phase: &str, mode: &str| {
        let trouble =
            seen(&json!({"name": "x"}), phase, mode, Duration::from_secs(ago)).pod.unwrap().trouble;
        trouble.map(|trouble| trouble.reason)
    };
    let troubled = |phase: &str, mode: &str| troubled_for(30, phase, mode);
    let late = Some("ProgressDeadlineExceeded");
    assert_eq!(troubled("Running", "STARTING"), late);
    assert_eq!(troubled("Running", "JOINING"), None);
    assert_eq!(troubled("Running", "LEAVING"), None);
    // The pilot is silent, so it is unknown whether the node still joins.
    assert_eq!(troubled_for(90, "Running", "JOINING"), late);
    assert_eq!(troubled("Fenced", "STARTING"), None);
    // A report from before the database ended does not say what it does now.
    let ended =
        seen_with(&json!({"name": "x"}), "Running", "JOINING", Duration::ZERO, &Value::Null);
    assert!(!ended.at_work());
    assert_eq!(ended.pod.unwrap().trouble.map(|trouble| trouble.reason), late);
}

#[test]
fn report_of_repair_ends_what_pilot_reported_before() {
    let time = |text: &str| text.parse::<Timestamp>().unwrap();
    let report = BehindReplica {
        since: time("2026-01-01T00:00:00Z"),
        away_since: None,
        repair: "repair",
        repair_beside_lost: "repair --force",
    };
    let facts = |text: &str| {
        let annotations = Some([(annotation::REPAIRED.to_owned(), text.to_owned())].into());
        BehindFacts::from_report(
            report,
            &ObjectMeta { annotations, ..ObjectMeta::default() },
            now(),
        )
    };
    assert_eq!(facts("2026-01-01T00:30:00Z"), None);
    let flaw = |text: &str| facts(text).unwrap().report_flaw.unwrap();
    assert_eq!(flaw("2025-12-31T00:00:00Z"), "is of an earlier time");
    assert_eq!(flaw("2026-01-02T00:00:00Z"), "has a time in the future");
    assert_eq!(flaw("yes"), "is no RFC 3339 time");
    let none = BehindFacts::from_report(report, &ObjectMeta::default(), now());
    assert_eq!(none, Some(BehindFacts { report, report_flaw: None }));
}
