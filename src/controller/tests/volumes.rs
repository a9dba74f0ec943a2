//! Tests of volumes that grow. The API is scripted: it gives volumes and file systems their sizes,
//! as drivers do.

use serde_json::{Value, json};
use tokio::time::Duration;

use super::{
    api::{Fault, id},
    harness::{Harness, cluster_id},
};

const CLAIM: &str = "example-data-ex-shop-a-0";

fn requested(harness: &Harness) -> Vec<Value> {
    let server = harness.api.server();
    let claims = server.of("persistentvolumeclaims");
    claims.map(|claim| claim["spec"]["resources"]["requests"]["storage"].clone()).collect()
}

fn template(harness: &Harness) -> Value {
    harness.object("statefulsets", "ex-shop-a")["spec"]["volumeClaimTemplates"][0].clone()
}

fn storage(harness: &Harness) -> Value {
    harness.object("exampleclusters", "shop")["status"]["nodePools"]["a"]["storage"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_larger_size_reaches_claims_volumes_and_new_nodes_and_restarts_nothing() {
    let harness = Harness::new(2);
    harness.settle().await;
    let (pods, set) = (harness.pods(), harness.object("statefulsets", "ex-shop-a"));
    harness.enlarge("2Gi");
    harness.settle().await;
    assert_eq!(requested(&harness), ["2Gi", "2Gi"]);
    assert_eq!(template(&harness)["spec"]["resources"]["requests"]["storage"], "2Gi");
    assert_eq!(storage(&harness), json!({"requested": "2Gi", "smallest": "2Gi"}));
    assert_eq!(harness.pods(), pods, "no pod was made anew");
    let anew = harness.object("statefulsets", "ex-shop-a");
    assert_ne!(anew["metadata"]["uid"], set["metadata"]["uid"]);
    assert_eq!(anew["spec"]["template"], set["spec"]["template"], "pods are what they were");
    assert_eq!(
        (harness.replicas(), harness.condition("Ready")["status"].clone()),
        (json!(2), json!("True"))
    );

    harness.scale(3);
    harness.settle().await;
    assert_eq!(requested(&harness), ["2Gi", "2Gi", "2Gi"]);
    let writes = harness.writes();
    harness.settle().await;
    assert_eq!(harness.writes(), writes, "nothing is left to do");
}

#[tokio::test(start_paused = true)]
async fn a_set_that_is_made_anew_is_created_with_its_replicas() {
    let harness = Harness::new(3);
    harness.settle().await;
    harness.enlarge("2Gi");
    let mut least = 3;
    for _ in 0..40 {
        harness.reconcile().await;
        let sets = harness.object("statefulsets", "ex-shop-a")["spec"]["replicas"].as_u64();
        least = least.min(sets.unwrap_or(3));
        harness.kubelet();
    }
    assert_eq!((least, harness.pods().len()), (3, 3), "it never asks for fewer pods");
}

/// A StatefulSet adopts pods of its names, and ends those beyond its size.
#[tokio::test(start_paused = true)]
async fn recreated_set_is_born_with_the_size_of_its_pods() {
    let harness = Harness::new(3);
    harness.settle().await;
    harness.enlarge("2Gi");
    let mut created = None;
    for _ in 0..60 {
        let before = harness.api.server().writes.len();
        let fault = Some((before, Fault::CrashAfter));
        harness.api.server().fault = fault;
        harness.reconcile().await;
        let write = harness.api.server().writes.get(before).cloned();
        if write.as_deref() == Some("POST statefulsets/ex-shop-a") {
            created = Some(harness.replicas());
            break;
        }
        harness.kubelet();
    }
    assert_eq!(created, Some(json!(3)));
}

#[tokio::test(start_paused = true)]
async fn a_class_that_cannot_grow_is_told_and_the_former_size_put_back() {
    let harness = Harness::new(2);
    harness.settle().await;
    harness.api.server().refuses.insert(id("persistentvolumeclaims", CLAIM), 403);
    harness.enlarge("2Gi");
    harness.settle().await;
    assert_eq!(requested(&harness), ["1Gi", "1Gi"], "none grows while one cannot");
    let cluster = harness.object("exampleclusters", "shop");
    let block = &cluster["status"]["operation"]["blockedBy"][0];
    assert_eq!(cluster["status"]["operation"]["type"], "Resize");
    assert_eq!(block["predicate"], "VolumeExpands");
    let message = block["message"].as_str().unwrap();
    assert!(message.contains(CLAIM) && message.ends_with("a class of this server"), "{message}");
    let hint = "set persistence.size of node pool a back to 1Gi";
    assert!(block["hint"].as_str().unwrap().starts_with(hint), "{block}");
    assert_eq!(storage(&harness), json!({"requested": "1Gi", "smallest": "1Gi"}));
    assert_eq!(harness.condition("Drainable")["status"], "True");

    harness.enlarge("1Gi");
    harness.settle().await;
    assert_eq!(harness.condition("Ready")["status"], "True");

    // The class allows it by now, and the answer is asked for anew.
    harness.enlarge("3Gi");
    harness.settle().await;
    harness.api.server().refuses.clear();
    harness.work(Duration::from_secs(90)).await;
    harness.settle().await;
    assert_eq!(requested(&harness), ["3Gi", "3Gi"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_system_that_does_not_grow_is_waited_for_by_name() {
    let harness = Harness::new(1);
    harness.settle().await;
    harness.api.server().volumes_stay = true;
    harness.enlarge("2Gi");
    harness.settle().await;
    let ready = harness.condition("Ready");
    assert_eq!(ready["reason"], "ResizeInProgress");
    let message = format!("the volume of claim {CLAIM} has 1Gi and grows to 2Gi");
    assert_eq!(ready["message"], json!(message));
    harness.api.server().edit(&id("persistentvolumeclaims", CLAIM), |claim| {
        claim["status"]["conditions"] =
            json!([{"type": "FileSystemResizePending", "status": "True"}]);
    });
    harness.settle().await;
    let message = harness.condition("Ready")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("delete pod ex-shop-a-0"), "{message}");
    harness.api.server().volumes_stay = false;
    harness.settle().await;
    assert_eq!(harness.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn labels_and_annotations_of_claims_reach_those_that_exist() {
    let harness = Harness::new(2);
    harness.settle().await;
    let pods = harness.pods();
    harness.api.server().edit(&cluster_id(), |cluster| {
        let persistence = &mut cluster["spec"]["nodePools"][0]["persistence"];
        persistence["labels"] = json!({"team": "a", "app.kubernetes.io/managed-by": "me"});
        persistence["annotations"] = json!({"backup": "daily"});
    });
    harness.settle().await;
    for meta in [&harness.object("persistentvolumeclaims", CLAIM), &template(&harness)] {
        let meta = &meta["metadata"];
        assert_eq!(
            (&meta["labels"]["team"], &meta["annotations"]["backup"]),
            (&json!("a"), &json!("daily"))
        );
        assert_eq!(meta["labels"]["app.kubernetes.io/managed-by"], "navigator");
    }
    assert_eq!(harness.pods(), pods);
    assert_eq!(harness.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_deleted_while_its_set_is_made_anew_leaves_no_pod() {
    let harness = Harness::new(2);
    harness.settle().await;
    harness.enlarge("2Gi");
    let gone = |harness: &Harness| harness.object("statefulsets", "ex-shop-a").is_null();
    for _ in 0..20 {
        harness.reconcile().await;
        if gone(&harness) {
            break;
        }
        harness.kubelet();
    }
    assert!(gone(&harness));
    harness.api.server().delete(&cluster_id());
    harness.settle().await;
    assert_eq!(harness.pods(), Vec::<Value>::new());
    assert!(harness.object("exampleclusters", "shop").is_null());
}
