//! Tests of objects that the server refuses, of conflicts that do not end, and of labels that
//! another client takes off.

use serde_json::{Value, json};
use tokio::time::Duration;

use super::super::{
    context::Error,
    testing::{example::DATABASE, sample::desired},
    write::patch_pilot,
};
use super::{
    api::id,
    harness::{Harness, cluster_id},
};
use crate::api::names::{annotation, label};

const TEN_MINUTES: Duration = Duration::from_secs(600);

#[tokio::test(start_paused = true)]
async fn one_refused_object_is_told_and_holds_no_other_up() {
    for (plural, name) in [("poddisruptionbudgets", "ex-shop"), ("services", "ex-shop-nodes")] {
        for code in [403, 422, 500] {
            let harness = Harness::new(2);
            harness.api.server().refuses.insert(id(plural, name), code);
            harness.settle().await;
            harness.scale(3);
            harness.settle().await;
            assert_eq!(harness.replicas(), 3, "the rest goes on: {plural} {code}");
            let cluster = harness.object("exampleclusters", "shop");
            assert_eq!(cluster["status"]["observedGeneration"], cluster["metadata"]["generation"]);
            let stalled = harness.condition("Stalled");
            assert_eq!(stalled["reason"], "ObjectRefused", "{cluster}");
            let message = stalled["message"].as_str().unwrap();
            assert!(message.contains(name) && message.contains("a policy of"), "{message}");
            assert_eq!(harness.condition("Ready")["status"], "False");

            harness.api.server().refuses.clear();
            harness.settle().await;
            assert_eq!(harness.condition("Stalled"), Value::Null);
            assert_eq!(harness.condition("Ready")["status"], "True");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_a_policy_changes_on_their_way_are_not_restarted_without_end() {
    let mut harness = Harness::new(2);
    harness.strips = true;
    for _ in 0..60 {
        harness.reconcile().await;
        harness.kubelet();
    }
    let deleted = |harness: &Harness| {
        let server = harness.api.server();
        server.writes.iter().filter(|write| write.starts_with("DELETE pods/")).count()
    };
    assert!(deleted(&harness) <= 2, "{} restarts", deleted(&harness));
    assert_eq!(harness.replicas(), 2, "it holds no growth up");
    let ready = harness.condition("Ready");
    assert_eq!(ready["reason"], "PredicateBlocked");
    assert!(ready["message"].as_str().unwrap().starts_with("RestartHelps: "), "{ready}");
    assert_eq!(harness.condition("Drainable")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn a_refused_step_is_told() {
    let harness = Harness::new(2);
    harness.settle().await;
    harness.api.server().refuses.insert(id("statefulsets", "ex-shop-a"), 403);
    harness.scale(3);
    harness.settle().await;
    assert_eq!(harness.condition("Stalled")["reason"], "ObjectRefused");
    let cluster = harness.object("exampleclusters", "shop");
    assert_eq!(cluster["status"]["observedGeneration"], cluster["metadata"]["generation"]);
    harness.api.server().refuses.clear();
    harness.settle().await;
    assert_eq!(harness.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_quota_refuses_is_told_in_the_servers_words_within_a_minute() {
    let mut harness = Harness::new(2);
    harness.most_pods = 1;
    harness.settle().await;
    let told = |harness: &Harness| {
        let cluster = harness.object("exampleclusters", "shop");
        cluster["status"]["operation"]["blockedBy"][0].clone()
    };
    assert_eq!(told(&harness), Value::Null, "a pod may take a moment");
    harness.work(Duration::from_secs(60)).await;
    let block = told(&harness);
    assert_eq!(
        (&block["predicate"], &block["step"]),
        (&json!("PodAdmitted"), &json!("StartPilot/ex-shop-a-1"))
    );
    let words = "pods \"ex-shop-a-1\" is forbidden: exceeded quota: small";
    assert!(block["message"].as_str().unwrap().ends_with(words), "{block}");
    assert!(block["hint"].as_str().unwrap().starts_with("raise the quota"), "{block}");
    assert!(harness.condition("Ready")["message"].as_str().unwrap().ends_with(words));
    assert_eq!(harness.condition("Stalled"), Value::Null);
    let writes = harness.writes();
    harness.work(TEN_MINUTES).await;
    assert_eq!(harness.condition("Stalled")["reason"], "QuotaExceeded");
    assert!(harness.writes() <= writes + 2, "what is told once is not written again");

    harness.most_pods = usize::MAX;
    harness.settle().await;
    assert_eq!(harness.condition("Ready")["status"], "True", "the event is older than the pod");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_that_does_not_end_is_asked_for_less_and_less_and_told() {
    for (plural, name) in [("statefulsets", "ex-shop-a"), ("pilots", "ex-shop-a-2")] {
        let harness = Harness::new(2);
        harness.settle().await;
        harness.api.server().refuses.insert(id(plural, name), 409);
        harness.scale(3);
        let before = harness.api.server().requests;
        harness.work(TEN_MINUTES).await;
        let asked = harness.api.server().requests - before;
        // About twenty reconciles are expected; five in a second would make many thousands of
        // requests.
        assert!((20..400).contains(&asked), "{asked} requests");
        let stalled = harness.condition("Stalled");
        assert_eq!(stalled["reason"], "SyncFailed", "{plural}");
        let message = stalled["message"].as_str().unwrap();
        assert!(message.contains(name), "{message}");

        harness.api.server().refuses.clear();
        harness.settle().await;
        assert_eq!(harness.condition("Stalled"), Value::Null);
        assert_eq!(harness.replicas(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn labels_that_somebody_takes_off_are_given_back() {
    for (plural, name) in [
        ("statefulsets", "ex-shop-a"),
        ("pilots", "ex-shop-a-0"),
        ("services", "ex-shop-nodes"),
        ("pods", "ex-shop-a-0"),
        ("persistentvolumeclaims", "example-data-ex-shop-a-0"),
    ] {
        for taken in [label::K8S_MANAGED_BY, DATABASE.names.cluster_label] {
            if plural == "pilots" && taken == label::K8S_MANAGED_BY {
                // Pilots are found without this label: all of them are watched, to check unmanaged
                // ones too.
                continue;
            }
            let harness = Harness::new(2);
            harness.settle().await;
            let (set, object) = (id("statefulsets", "ex-shop-a"), id(plural, name));
            let uid = harness.object(&set.0, &set.1)["metadata"]["uid"].clone();
            for pod in ["ex-shop-a-0", "ex-shop-a-1"] {
                let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet",
                    "name": "ex-shop-a", "uid": uid, "controller": true}]);
                harness.api.server().edit(&id("pods", pod), |pod| {
                    pod["metadata"]["ownerReferences"] = owner;
                });
            }
            harness.api.server().edit(&set, |set| set["status"] = json!({"replicas": 2}));
            let labels =
                |harness: &Harness| harness.object(plural, name)["metadata"]["labels"].clone();
            let whole = labels(&harness);
            harness.api.server().edit(&object, |object| {
                object["metadata"]["labels"].as_object_mut().unwrap().remove(taken).unwrap();
            });
            let before = harness.api.server().requests;
            harness.work(TEN_MINUTES).await;
            let asked = harness.api.server().requests - before;
            assert!(asked < 60, "{asked} requests for {plural} without {taken}");
            assert_eq!(labels(&harness), whole, "{plural} without {taken}");
            assert_eq!(harness.condition("Ready")["status"], "True", "{plural} without {taken}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn edits_of_other_clients_are_reverted() {
    let harness = Harness::new(1);
    harness.settle().await;
    let before = harness.state();
    let selector = [
        ("services", "ex-shop-nodes", "/spec/selector"),
        ("poddisruptionbudgets", "ex-shop", "/spec/selector/matchLabels"),
    ];
    for (plural, name, labels) in selector {
        harness.api.server().edit(&id(plural, name), |object| {
            let labels = object.pointer_mut(labels).unwrap();
            labels[DATABASE.names.cluster_label] = json!("another");
        });
        assert_ne!(harness.state(), before, "{plural}/{name}");
        harness.settle().await;
        assert_eq!(harness.state(), before, "{plural}/{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn unlabeled_object_of_another_store_is_kept() {
    let service = id("services", "ex-shop-seeds");
    let harness = Harness::new(1);
    harness.api.server().add(
        &service,
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "ex-shop-seeds", "namespace": "default", "labels": {},
                "annotations": {
                    annotation::CLUSTER_UID: "exampleclusters/shop#1",
                    annotation::STORE_ID: "another",
                },
            },
            "spec": {},
        }),
    );
    let before = harness.object(&service.0, &service.1);
    for _ in 0..6 {
        harness.reconcile().await;
    }
    assert_eq!(harness.condition("Stalled")["reason"], "StoreMismatch");
    assert_eq!(harness.object(&service.0, &service.1), before);
}

#[tokio::test(start_paused = true)]
async fn service_stays_as_long_as_its_pool() {
    let mut harness = Harness::new(1);
    harness.api.server().edit(&cluster_id(), |cluster| {
        let mut other = cluster["spec"]["nodePools"][0].clone();
        other["name"] = json!("b");
        cluster["spec"]["nodePools"].as_array_mut().unwrap().push(other);
    });
    harness.settle().await;
    harness.drains_end = false;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["nodePools"].as_array_mut().unwrap().pop();
    });
    harness.settle().await;
    assert!(!harness.object("statefulsets", "ex-shop-b").is_null());
    assert!(!harness.object("services", "ex-shop-b-pods").is_null(), "its node still serves");
    harness.drains_end = true;
    harness.settle().await;
    assert!(harness.object("statefulsets", "ex-shop-b").is_null());
    assert!(harness.object("services", "ex-shop-b-pods").is_null());
}

/// A cache that lags behind does not know what another client wrote into a Pilot.
#[tokio::test(start_paused = true)]
async fn pilot_is_not_written_over_a_newer_version() {
    let harness = Harness::new(1);
    harness.settle().await;
    let pilot = id("pilots", "ex-shop-a-0");
    let version = |harness: &Harness| {
        harness.object(&pilot.0, &pilot.1)["metadata"]["resourceVersion"].clone()
    };
    let read = version(&harness);
    harness.api.server().edit(&pilot, |pilot| pilot["spec"]["phase"] = json!("Fenced"));
    let (ctx, desired) = (harness.leading(), desired(&[("a", 1)], "new"));
    let stop = |version: Value| {
        let patch = json!({"spec": {"phase": "Stopped"}});
        let version = version.as_str().unwrap().to_owned();
        let (ctx, desired, name) = (&ctx, &desired, &pilot.1);
        async move { patch_pilot(ctx, desired, name, &version, patch).await }
    };
    assert!(matches!(stop(read).await, Err(Error::Conflict { .. })));
    assert_eq!(harness.object(&pilot.0, &pilot.1)["spec"]["phase"], "Fenced");
    stop(version(&harness)).await.unwrap();
    assert_eq!(harness.object(&pilot.0, &pilot.1)["spec"]["phase"], "Stopped");
}

#[tokio::test(start_paused = true)]
async fn a_pilot_of_a_wanted_name_without_labels_is_adopted_and_one_of_somebody_else_is_not() {
    let owner = json!([{
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "ExampleCluster",
        "name": "other", "uid": "other", "controller": true,
    }]);
    for (owner, adopted) in [(json!([]), true), (owner, false)] {
        let harness = Harness::new(1);
        let pilot = id("pilots", "ex-shop-a-0");
        harness.api.server().add(
            &pilot,
            json!({
                "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
                "metadata": {
                    "name": pilot.1, "namespace": "default", "ownerReferences": owner,
                },
                "spec": {},
            }),
        );
        harness.settle().await;
        let found = harness.object(&pilot.0, &pilot.1);
        let uid = harness.object("exampleclusters", &cluster_id().1)["metadata"]["uid"].clone();
        assert_eq!(found["metadata"]["ownerReferences"][0]["uid"] == uid, adopted);
        assert_eq!(harness.condition("Ready")["status"] == "True", adopted);
        let stalled = if adopted { Value::Null } else { json!("NameConflict") };
        assert_eq!(harness.condition("Stalled")["reason"], stalled);
    }
}
