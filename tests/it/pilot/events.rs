//! What a pilot tells people as Kubernetes events.

use std::collections::BTreeMap;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::follows::PATIENCE;
use crate::support::{bed::Bed, ring::Ring, seat::signal, wait::until};

fn events(bed: &Bed) -> Vec<Value> {
    bed.world.kube.list("/apis/events.k8s.io/v1/namespaces/db/events")
}

/// Type and reason of what was told of the Pilot, and how often, whatever the words.
fn told(bed: &Bed) -> BTreeMap<String, u64> {
    let mut told = BTreeMap::new();
    for event in events(bed).iter().filter(|event| event["regarding"]["kind"] == "Pilot") {
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        *told.entry(format!("{} {}", text("type"), text("reason"))).or_default() +=
            event["series"]["count"].as_u64().unwrap_or(1);
    }
    told
}

async fn is_told(bed: &Bed, what: &str, count: u64) {
    until(what, PATIENCE, async || {
        let told = told(bed);
        if told.get(what) == Some(&count) { Ok(()) } else { Err(format!("{told:?}")) }
    })
    .await;
}

#[tokio::test]
async fn each_turn_of_a_nodes_life_is_told_once() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let seat = ring.seat("cass-demo-a-0", [127, 0, 79, 1]);
    bed.create(&ring.pilot(&seat.name)).await;
    let credentials = bed.credentials(&seat.name);
    let running = seat.start(&credentials);
    bed.phase(&seat.name, "Running", PATIENCE).await;
    is_told(&bed, "Normal ProcessStarted", 1).await;

    signal(running.database().unwrap(), Signal::SIGKILL);
    is_told(&bed, "Warning ProcessKilled", 1).await;
    is_told(&bed, "Normal ProcessStarted", 2).await;
    bed.phase(&seat.name, "Running", PATIENCE).await;

    bed.change(&seat.name, json!({"phase": "Fenced"})).await;
    is_told(&bed, "Normal Fenced", 1).await;
    is_told(&bed, "Normal ProcessExited", 1).await;
    bed.change(&seat.name, json!({"phase": "Running"})).await;
    is_told(&bed, "Normal Unfenced", 1).await;
    is_told(&bed, "Normal ProcessStarted", 3).await;
    bed.phase(&seat.name, "Running", PATIENCE).await;

    let all = events(&bed);
    let one = all.iter().find(|event| event["reason"] == "Fenced").unwrap();
    assert_eq!(one["reportingController"], "generic-pilot", "{one}");
    assert_eq!(one["regarding"]["uid"], bed.pilot(&seat.name).await.metadata.uid.unwrap(), "{one}");

    // The pilot is killed together with its database: the next pilot reports it.
    seat.wait_for_record("run.json", "pid", running.database().unwrap(), PATIENCE).await;
    running.kill();
    let next = seat.start(&credentials);
    is_told(&bed, "Warning ProcessExited", 1).await;
    bed.phase(&seat.name, "Running", PATIENCE).await;
    let seen = told(&bed);
    assert!(!seen.iter().any(|(name, count)| name.ends_with("enced") && *count > 1), "{seen:?}");
    assert_eq!(next.stop(PATIENCE).await, 0);
}
