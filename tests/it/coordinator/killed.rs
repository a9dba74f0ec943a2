//! A whole upgrade by a coordinator that never lives longer than until its next write.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    fleet::{Fleet, NEW, NodeMarks, PATIENCE, node},
    wire::Course,
};

const MOST: usize = 2;

/// The run ended, and nothing holds the object.
fn is_over(run: &Value) -> bool {
    ["Success", "Failed"].contains(&run["status"]["phase"].as_str().unwrap_or_default())
        && run["metadata"]["finalizers"].is_null()
}

/// Kills the coordinator after each of its writes and starts another one, until a run is over.
async fn carry_out(fleet: &mut Fleet, run: &str) -> Vec<String> {
    let (begun, mut killed, mut opened) = (Instant::now(), Vec::new(), false);
    let mut coordinator = fleet.start();
    loop {
        tokio::select! {
            write = fleet.wire.told() => {
                coordinator.kill();
                killed.push(write);
                coordinator = fleet.start();
            }
            () = sleep(Duration::from_millis(50)) => {
                fleet.others_act().await;
                let found = fleet.run(run).await;
                if is_over(&found) {
                    return killed;
                }
                let tail = &killed[killed.len().saturating_sub(10)..];
                let late = begun.elapsed() > PATIENCE;
                assert!(!late, "not over: {:#}\n{tail:#?}", found["status"]);
                // The budget opens once the status tells that it refused an eviction.
                if !opened && tells_refusal(&found) {
                    fleet.set_budget("held", 1).await;
                    opened = true;
                }
            }
        }
    }
}

fn tells_refusal(run: &Value) -> bool {
    let refused = "Cannot evict pod as it would violate the pod's disruption budget";
    let told = |wait: &Value| wait["message"].as_str().is_some_and(|text| text.contains(refused));
    run["status"]["waitsFor"].as_array().is_some_and(|waits| waits.iter().any(told))
}

/// Claims that at no moment more machines were cordoned than may be, the control plane alone and
/// first.
fn keeps_order(marks: &[NodeMarks], plane: &str, machines: usize) {
    let mut now: Vec<NodeMarks> = Vec::new();
    let mut most = 0;
    for mark in marks {
        now.retain(|other| other.name != mark.name);
        now.push(mark.clone());
        let away: Vec<&str> =
            now.iter().filter(|one| one.by.is_some()).map(|one| one.name.as_str()).collect();
        assert!(away.len() <= MOST, "{away:?} are cordoned");
        assert!(!away.contains(&plane) || away.len() == 1, "{away:?} are cordoned");
        let done = now.iter().any(|one| one.name == plane && one.kubelet == NEW);
        assert!(done || away.is_empty() || away == [plane], "{away:?} before {plane}");
        most = most.max(away.len());
    }
    assert_eq!((most, now.len()), (MOST, machines), "room is used, and all were seen");
}

#[tokio::test]
async fn an_upgrade_succeeds_though_its_coordinator_is_killed_after_each_write() {
    let names = ["p1", "w1", "w2", "w3", "w4"];
    let mut fleet = Fleet::new(&names, Course::Told).await;
    fleet.make_owned("web", "ReplicaSet", "p1").await;
    fleet.make_owned("log", "DaemonSet", "w1").await;
    fleet.make_owned("shop", "ReplicaSet", "w1").await;
    fleet.make_database("w2").await;
    fleet.make_owned("held", "StatefulSet", "w3").await;
    fleet.set_budget("held", 0).await;
    // A person's own cordon.
    fleet.patch(&node("w4"), &json!({"spec": {"unschedulable": true}})).await;
    let member = "/api/v1/namespaces/shop/pods/cass-demo-a-0";
    let before = fleet.get(member).await.unwrap();

    fleet.ask_for("to-34", json!({"maxUnavailable": MOST})).await;
    let killed = carry_out(&mut fleet, "to-34").await;
    println!("killed after {} writes", killed.len());

    let run = fleet.run("to-34").await;
    assert_eq!(run["status"]["phase"], "Success", "{:#}", run["status"]);
    assert_eq!(run["status"]["progress"], "5/5");
    for name in names {
        assert_eq!(fleet.kubelet(name).await, NEW);
        fleet.is_clean(name, name == "w4").await;
    }
    keeps_order(&fleet.marks("w1").await, "p1", names.len());
    // What a drain leaves, and what it moves, each once.
    let pod = |name: &str| format!("/api/v1/namespaces/shop/pods/{name}");
    for (name, there) in [("web", false), ("shop", false), ("held", false), ("log", true)] {
        assert_eq!(fleet.get(&pod(name)).await.is_some(), there, "{name}");
        let evicted = format!("POST {}/eviction", pod(name));
        let count = killed.iter().filter(|write| **write == evicted).count();
        assert_eq!(count, usize::from(!there), "{name} is evicted once");
    }
    let after = fleet.get(member).await.unwrap();
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"], "the database's pod left");
    assert_eq!(after["spec"]["nodeName"], "w2", "and came back to its volume");
    let pilot = "/apis/navigator.jetstack.io/v1beta1/namespaces/shop/pilots/cass-demo-a-0";
    let annotations = &fleet.get(pilot).await.unwrap()["metadata"]["annotations"];
    assert!(annotations["navigator.jetstack.io/leave"].is_null(), "{annotations}");
    for (what, least) in [
        ("PUT ", 25),
        ("PATCH /api/v1/nodes/", 10),
        ("PATCH /apis/navigator.jetstack.io/", 2),
        // (the last one, which lets the object go, ends the run before it is told)
        ("PATCH /apis/provision.containership.io/", 1),
    ] {
        let count = killed.iter().filter(|write| write.starts_with(what)).count();
        assert!(count >= least, "{count} of {what}\n{killed:#?}");
    }
}
