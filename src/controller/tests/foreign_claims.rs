//! Tests of claims whose names the cluster needs and that are not its own. The API is scripted.

use serde_json::{Value, json};

use super::{
    api::id,
    harness::{Harness, cluster_id},
};
use crate::api::names::annotation::CLUSTER_UID;

const CLAIM: &str = "example-data-ex-shop-a-0";

/// Adds a claim with these labels of cluster and pool, if any.
fn keep_claim(harness: &Harness, labels: Option<(&str, &str)>, uid: Option<&str>) {
    let labels = labels.map(|(cluster, pool)| {
        json!({
            "app.kubernetes.io/managed-by": "navigator",
            "navigator.jetstack.io/example-cluster-name": cluster,
            "navigator.jetstack.io/example-node-pool-name": pool,
        })
    });
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": CLAIM,
            "namespace": "default",
            "labels": labels,
            "annotations": uid.map(|uid| json!({CLUSTER_UID: uid})),
        },
        "spec": {"resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"},
    });
    harness.api.server().add(&id("persistentvolumeclaims", CLAIM), claim);
}

fn claim(harness: &Harness, name: &str) -> Value {
    harness.object("persistentvolumeclaims", name)
}

/// What says whose a claim is.
fn marks(harness: &Harness) -> Value {
    let meta = &claim(harness, CLAIM)["metadata"];
    json!([meta["uid"], meta["labels"], meta["annotations"]])
}

fn add_cluster(harness: &Harness, name: &str) {
    let mut cluster = harness.object("exampleclusters", "shop");
    cluster["metadata"] = json!({"name": name, "namespace": "default"});
    harness.api.server().add(&id("exampleclusters", name), cluster);
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_another_cluster_stops_this_one_before_anything_is_made() {
    for uid in [None, Some("exampleclusters/shop-a#1"), Some("gone")] {
        let harness = Harness::new(2);
        keep_claim(&harness, Some(("shop-a", "0")), uid);
        let kept = marks(&harness);
        harness.settle().await;
        for plural in ["statefulsets", "services", "pilots", "serviceaccounts"] {
            assert_eq!(harness.api.server().of(plural).count(), 0, "{plural}");
        }
        let ready = harness.condition("Ready");
        assert_eq!(ready["reason"], "NameConflict", "{ready}");
        let message = ready["message"].as_str().unwrap();
        assert!(message.contains(CLAIM) && message.contains("\"shop-a\""), "{message}");
        harness.api.server().delete(&cluster_id());
        harness.settle().await;
        assert!(harness.object("exampleclusters", "shop").is_null(), "the cluster is gone");
        assert_eq!(marks(&harness), kept, "nothing of another cluster is changed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_a_living_cluster_is_its_own_whatever_its_labels_say() {
    let harness = Harness::new(1);
    add_cluster(&harness, "other");
    keep_claim(&harness, Some(("shop", "a")), Some("exampleclusters/other#1"));
    let kept = marks(&harness);
    harness.settle().await;
    let ready = harness.condition("Ready");
    assert_eq!(ready["reason"], "NameConflict", "{ready}");
    assert!(ready["message"].as_str().unwrap().contains("\"other\""), "{ready}");
    assert_eq!(marks(&harness), kept);
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_unknown_origin_is_used_once_a_person_hands_it_over() {
    let harness = Harness::new(1);
    keep_claim(&harness, None, None);
    harness.settle().await;
    let ready = harness.condition("Ready");
    assert_eq!(ready["reason"], "ForeignObject", "{ready}");
    assert_eq!(harness.api.server().of("statefulsets").count(), 0);
    // As the message says.
    let uid = harness.object("exampleclusters", "shop")["metadata"]["uid"].clone();
    let handed = format!("persistentvolumeclaim {CLAIM} {CLUSTER_UID}={}", uid.as_str().unwrap());
    assert!(ready["message"].as_str().unwrap().ends_with(&handed), "{ready}");
    harness.api.server().edit(&id("persistentvolumeclaims", CLAIM), |claim| {
        claim["metadata"]["annotations"] = json!({CLUSTER_UID: uid});
    });
    harness.settle().await;
    assert_eq!(harness.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn claims_get_the_uid_of_the_cluster_that_takes_them_up() {
    // Of a release before 0.3, and of an earlier cluster of this name.
    for uid in [None, Some("gone")] {
        let harness = Harness::new(1);
        keep_claim(&harness, Some(("shop", "a")), uid);
        harness.settle().await;
        assert_eq!(harness.condition("Ready")["status"], "True");
        let own = harness.object("exampleclusters", "shop")["metadata"]["uid"].clone();
        assert_eq!(claim(&harness, CLAIM)["metadata"]["annotations"][CLUSTER_UID], own);
        harness.api.server().delete(&cluster_id());
        harness.settle().await;
        assert!(claim(&harness, CLAIM).is_null(), "it goes, as the spec says");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_takes_no_claim_that_bears_another_uid() {
    let harness = Harness::new(2);
    harness.settle().await;
    let own = harness.object("exampleclusters", "shop")["metadata"]["uid"].clone();
    let second = "example-data-ex-shop-a-1";
    for name in [CLAIM, second] {
        assert_eq!(claim(&harness, name)["metadata"]["annotations"][CLUSTER_UID], own, "{name}");
    }
    add_cluster(&harness, "other");
    harness.api.server().edit(&id("persistentvolumeclaims", CLAIM), |claim| {
        claim["metadata"]["annotations"][CLUSTER_UID] = json!("exampleclusters/other#1");
    });
    harness.api.server().delete(&cluster_id());
    harness.settle().await;
    assert!(!claim(&harness, CLAIM).is_null(), "it is another cluster's");
    assert!(claim(&harness, second).is_null());
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_deleted_at_once_takes_its_claims_with_it() {
    let harness = Harness::new(1);
    // Until the pod is made, and its claim with it.
    for _ in 0..30 {
        harness.reconcile().await;
        harness.kubelet();
        if !claim(&harness, CLAIM).is_null() {
            break;
        }
    }
    assert!(claim(&harness, CLAIM)["metadata"]["annotations"][CLUSTER_UID].is_null());
    harness.api.server().delete(&cluster_id());
    harness.settle().await;
    assert!(claim(&harness, CLAIM).is_null());
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_marks_is_not_taken_by_what_late_caches_say_of_its_pod() {
    let harness = Harness::new(1);
    harness.settle().await;
    let mut late = harness.caches();
    late.retain(|object| object["metadata"]["name"] != CLAIM);
    {
        let mut server = harness.api.server();
        server.delete(&id("pods", "ex-shop-a-0"));
        server.delete(&id("persistentvolumeclaims", CLAIM));
    }
    keep_claim(&harness, None, None);
    let kept = marks(&harness);
    harness.reconcile_with(&late).await;
    assert_eq!(marks(&harness), kept, "it is of another client");
}
