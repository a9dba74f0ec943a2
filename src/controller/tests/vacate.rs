//! Tests of requests that nodes leave their machines, over the scripted API.

use serde_json::{Value, json};

use super::{
    api::{Fault, id},
    harness::{Harness, MACHINE},
};
use crate::api::names::annotation;

fn ask(harness: &Harness, pilot: &str) {
    let pod = harness.object("pods", pilot)["metadata"]["uid"].as_str().unwrap().to_owned();
    harness.api.server().edit(&id("pilots", pilot), |pilot| {
        pilot["metadata"]["annotations"][annotation::LEAVE] = json!(format!("{pod} a person"));
    });
}

fn block(harness: &Harness, pilot: &str, blockers: Value) {
    harness.api.server().edit(&id("pilots", pilot), |pilot| pilot["status"]["blockers"] = blockers);
}

fn waits(harness: &Harness, pilot: &str) -> Value {
    harness.object("pilots", pilot)["metadata"]["annotations"][annotation::LEAVE_WAITS].clone()
}

/// Returns how many pods each of the nodes has had.
fn lives(harness: &Harness) -> Vec<String> {
    let uids = harness.pods();
    uids.iter().map(|uid| uid.as_str().unwrap().rsplit('#').next().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn wherever_a_look_ends_the_pod_that_was_asked_goes_exactly_once() {
    let clean = Harness::new(3);
    clean.settle().await;
    let (before, from) = (clean.copy(), clean.writes());
    ask(&clean, "ex-shop-a-1");
    clean.settle().await;
    let writes = clean.api.server().writes[from..].to_vec();
    assert!(writes.contains(&"DELETE pods/ex-shop-a-1".to_owned()), "{writes:#?}");
    assert_eq!(lives(&clean), ["1", "2", "1"]);
    for at in 0..writes.len() {
        for fault in Fault::ALL {
            let harness = before.copy();
            harness.api.server().fault = Some((from + at, fault));
            ask(&harness, "ex-shop-a-1");
            harness.settle().await;
            assert_eq!(lives(&harness), ["1", "2", "1"], "{fault:?} at {at} of {writes:#?}");
            assert_eq!(harness.condition("Ready")["status"], "True", "{fault:?} at {at}");
            assert_eq!(waits(&harness, "ex-shop-a-1"), Value::Null);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_request_waits_for_stands_in_its_pilot_until_it_is_taken_back() {
    let harness = Harness::new(2);
    harness.settle().await;
    ask(&harness, "ex-shop-a-1");
    block(&harness, "ex-shop-a-1", json!([{"predicate": "PeersUp", "message": "one is down"}]));
    harness.reconcile().await;
    let said = waits(&harness, "ex-shop-a-1");
    assert!(said.as_str().unwrap().starts_with("PeersUp: one is down; wait, or add"), "{said}");
    let from = harness.writes();
    harness.reconcile().await;
    assert_eq!(harness.writes(), from, "what is said is not said again");
    let cluster = harness.object("exampleclusters", "shop");
    let blocked = &cluster["status"]["operation"]["blockedBy"][0];
    assert_eq!(cluster["status"]["operation"]["type"], "Vacate");
    assert_eq!(blocked["step"], "VacatePod/ex-shop-a-1");
    harness.api.server().edit(&id("pilots", "ex-shop-a-1"), |pilot| {
        pilot["metadata"]["annotations"].as_object_mut().unwrap().remove(annotation::LEAVE);
    });
    harness.settle().await;
    assert_eq!(
        (waits(&harness, "ex-shop-a-1"), lives(&harness)),
        (Value::Null, vec!["1".into(), "1".into()])
    );
    assert_eq!(harness.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn two_nodes_of_a_cordoned_machine_are_away_together_and_come_back() {
    let mut harness = Harness::new(3);
    harness.settle().await;
    harness.cordoned = true;
    ask(&harness, "ex-shop-a-1");
    ask(&harness, "ex-shop-a-2");
    harness.settle().await;
    assert_eq!(lives(&harness), ["1", "2", "2"]);
    let ready = harness.condition("Ready");
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("PredicateBlocked")));
    let told = ready["message"].as_str().unwrap();
    assert!(told.contains(&format!("waits for machine {MACHINE}, which is cordoned")), "{told}");
    assert_eq!(harness.condition("Stalled"), Value::Null);
    assert_eq!(harness.condition("Drainable")["status"], "False");
    let from = harness.writes();
    harness.reconcile().await;
    assert_eq!(harness.writes(), from, "a cluster that waits is written once");
    harness.cordoned = false;
    harness.settle().await;
    assert_eq!(lives(&harness), ["1", "2", "2"]);
    assert_eq!(harness.condition("Ready")["status"], "True");
}
