//! Pods that are made anew before their node's turn are made of what they were, whoever ended them
//! and wherever a look of the controller ended.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    api::{Fault, id},
    harness::{Harness, cluster_id},
};
use crate::api::names::annotation;

const NEWER: &str = "5.0.7";

async fn settled(replicas: u32) -> Harness {
    let harness = Harness::new(replicas);
    harness.settle().await;
    harness
}

/// Asks for a newer version on one node, and on no other.
fn try_one(harness: &Harness) {
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["version"] = json!(NEWER);
        cluster["spec"]["updateStrategy"] = json!({"canary": {"replicas": 1}});
    });
}

fn go_on(harness: &Harness) {
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["updateStrategy"] = Value::Null;
    });
}

/// Deletes pods as evictions do; the StatefulSet controller and the kubelet act before ours.
fn evict(harness: &Harness, pods: &[&str]) {
    for pod in pods {
        harness.api.server().delete(&id("pods", pod));
    }
    harness.kubelet();
}

/// Returns the version that each pod's image has, beside the one that its Pilot names.
fn versions(harness: &Harness) -> BTreeMap<String, (String, String)> {
    let server = harness.api.server();
    let pods = server.of("pods").map(|pod| {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let containers = pod["spec"]["containers"].as_array().unwrap();
        let image = containers.iter().find_map(|found| found["image"].as_str()?.split_once(':'));
        let told = &server.objects[&id("pilots", &name)]["spec"]["version"];
        (name, (image.unwrap().1.to_owned(), told.as_str().unwrap().to_owned()))
    });
    pods.collect()
}

fn newer(harness: &Harness) -> Vec<String> {
    let versions = versions(harness);
    for (pod, (image, told)) in &versions {
        assert_eq!(image, told, "{pod}");
    }
    let newer = versions.into_iter().filter(|(_, (image, _))| image == NEWER);
    newer.map(|(pod, _)| pod).collect()
}

#[tokio::test(start_paused = true)]
async fn an_eviction_carries_nothing_past_a_held_canary() {
    let harness = settled(3).await;
    try_one(&harness);
    harness.settle().await;
    assert_eq!(newer(&harness), ["ex-shop-a-2"]);
    for pods in [&["ex-shop-a-0"][..], &["ex-shop-a-0", "ex-shop-a-1"], &["ex-shop-a-2"]] {
        evict(&harness, pods);
        harness.settle().await;
        assert_eq!(newer(&harness), ["ex-shop-a-2"], "after an eviction of {pods:?}");
    }
    evict(&harness, &["ex-shop-a-0", "ex-shop-a-1", "ex-shop-a-2"]);
    harness.settle().await;
    assert_eq!(newer(&harness), ["ex-shop-a-2"], "after an eviction of all");
    let waits = harness.condition("Ready");
    assert!(waits["message"].as_str().unwrap().starts_with("CanaryHeld: "), "{waits}");

    go_on(&harness);
    harness.settle().await;
    assert_eq!(newer(&harness).len(), 3);
    assert_eq!(harness.condition("Ready")["status"], "True");
    for ordinal in 0..3 {
        let pilot = harness.object("pilots", &format!("ex-shop-a-{ordinal}"));
        assert_eq!(pilot["metadata"]["annotations"][annotation::PINNED_POD], Value::Null);
    }
}

#[tokio::test(start_paused = true)]
async fn a_canary_that_is_taken_back_leaves_no_pod_behind() {
    let harness = settled(2).await;
    let before = versions(&harness);
    try_one(&harness);
    harness.settle().await;
    evict(&harness, &["ex-shop-a-0"]);
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["version"] = json!("5.0.6");
        cluster["spec"]["updateStrategy"] = Value::Null;
    });
    harness.settle().await;
    assert_eq!(versions(&harness), before);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_made_while_a_canary_is_held_is_as_the_others() {
    let harness = settled(2).await;
    harness.api.server().edit(&cluster_id(), |cluster| {
        cluster["spec"]["jvm"] = json!({"heap": "128Mi"});
        cluster["spec"]["updateStrategy"] = json!({"canary": {"replicas": 1}});
    });
    harness.settle().await;
    let heaps = |harness: &Harness| -> Vec<Value> {
        let server = harness.api.server();
        server.of("pilots").map(|pilot| pilot["spec"]["jvm"]["heap"].clone()).collect()
    };
    assert_eq!(heaps(&harness), [Value::Null, json!("128Mi")]);
    harness.scale(3);
    harness.settle().await;
    assert_eq!(heaps(&harness), [Value::Null, json!("128Mi"), Value::Null]);
    evict(&harness, &["ex-shop-a-0", "ex-shop-a-2"]);
    harness.settle().await;
    assert_eq!(heaps(&harness), [Value::Null, json!("128Mi"), Value::Null]);
    go_on(&harness);
    harness.settle().await;
    assert_eq!(heaps(&harness), ["128Mi"; 3].map(|heap| json!(heap)));
}

#[tokio::test(start_paused = true)]
async fn where_no_revision_has_the_old_template_the_change_goes_on() {
    let harness = settled(2).await;
    try_one(&harness);
    harness.settle().await;
    harness.api.server().objects.retain(|(plural, _), _| plural != "controllerrevisions");
    go_on(&harness);
    harness.settle().await;
    assert_eq!(newer(&harness).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_cluster_that_gets_another_version_starts_with_it() {
    let harness = settled(2).await;
    let edit = |change: fn(&mut Value)| {
        harness.api.server().edit(&cluster_id(), |cluster| change(&mut cluster["spec"]));
    };
    edit(|spec| spec["stopped"] = json!(true));
    harness.settle().await;
    assert_eq!(harness.api.server().of("pods").count(), 0);
    edit(|spec| spec["version"] = json!(NEWER));
    harness.settle().await;
    edit(|spec| spec["stopped"] = json!(false));
    harness.settle().await;
    assert_eq!(newer(&harness).len(), 2);
    assert_eq!(harness.condition("Ready")["status"], "True");
}

mod searches {
    use super::*;
    use crate::testing::search_cases;

    #[tokio::test(start_paused = true)]
    async fn wherever_a_look_ends_no_node_is_upgraded_before_its_turn() {
        let start = settled(3).await;
        let clean = start.copy();
        clean.api.server().writes.clear();
        try_one(&clean);
        clean.settle().await;
        let writes = clean.api.server().writes.clone();
        assert!(writes.iter().any(|write| write == "DELETE pods/ex-shop-a-2"), "{writes:#?}");
        for (at, fault) in search_cases(Fault::all(writes.len()), Fault::APART) {
            let harness = start.copy();
            harness.api.server().writes.clear();
            harness.api.server().fault = Some((at, fault));
            try_one(&harness);
            harness.settle().await;
            evict(&harness, &["ex-shop-a-0"]);
            harness.settle().await;
            assert_eq!(newer(&harness), ["ex-shop-a-2"], "{fault:?} at {}", writes[at]);
        }
    }
}
