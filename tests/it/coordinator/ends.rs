//! What stops a run, what holds one, and what is left then.

use http::Method;
use serde_json::{Value, json};

use super::{
    fleet::{Fleet, NEW, OLD, RUNS, node},
    wire::Course,
};

fn phase(run: &Value, machine: &str) -> String {
    let nodes = run["status"]["nodes"].as_array().cloned().unwrap_or_default();
    let found = nodes.iter().find(|node| node["name"] == machine);
    found.map(|node| node["phase"].as_str().unwrap().to_owned()).unwrap_or_default()
}

fn message(run: &Value) -> &str {
    run["status"]["nodes"][0]["message"].as_str().unwrap_or_default()
}

fn has_ended(run: &Value) -> bool {
    !run["status"]["completionTime"].is_null() && run["metadata"]["finalizers"].is_null()
}

#[tokio::test]
async fn a_machine_that_does_not_come_back_stops_the_run_and_the_others_stay_as_they_are() {
    let mut fleet = Fleet::new(&["m1", "m2", "m3"], Course::Open).await;
    fleet.left.insert("m1".to_owned());
    let _coordinator = fleet.start();
    fleet.ask_for("to-34", json!({"nodeTimeoutSeconds": 1})).await;
    let run = fleet.act_until("to-34", has_ended).await;
    assert_eq!(run["status"]["phase"], "Failed");
    assert_eq!(run["status"]["message"], "failed on m1; 2 were left as they are");
    assert_eq!(message(&run), format!("no kubelet {NEW} was seen within 1 s"));
    assert_eq!(phase(&run, "m2"), "Pending");
    for name in ["m1", "m2", "m3"] {
        fleet.is_clean(name, false).await;
    }

    // Once more, and now the machine is away at its deadline.
    let again = json!({"metadata": {"annotations": {"containership.io/retry": "1"}}});
    fleet.patch(&format!("{RUNS}/to-34"), &again).await;
    let begins = |run: &Value| ["Cordon", "Drain", "Run"].contains(&phase(run, "m1").as_str());
    fleet.act_until("to-34", begins).await;
    let away = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    fleet.patch(&format!("{}/status", node("m1")), &away).await;
    let run = fleet.act_until("to-34", has_ended).await;
    assert_eq!(
        (run["status"]["phase"].as_str(), phase(&run, "m1").as_str()),
        (Some("Failed"), "Failed")
    );
    assert!(message(&run).ends_with("it is not Ready and stays as it is"), "{}", message(&run));
    fleet.is_clean("m1", true).await;
    let marks = fleet.marks("m1").await;
    let others = marks.iter().filter(|mark| mark.name != "m1");
    assert!(others.clone().count() > 0);
    assert!(!others.clone().any(|mark| mark.cordoned || mark.kubelet != OLD), "{marks:#?}");
    fleet.is_clean("m2", false).await;
}

#[tokio::test]
async fn a_run_that_is_deleted_in_the_middle_finishes_its_machine_and_leaves_no_mark() {
    let mut fleet = Fleet::new(&["m1", "m2"], Course::Open).await;
    fleet.make_owned("held", "ReplicaSet", "m1").await;
    fleet.set_budget("held", 0).await;
    let _coordinator = fleet.start();
    let delete = async |fleet: &Fleet, run: &str| {
        let (status, said) =
            fleet.ask(Method::DELETE, &format!("{RUNS}/{run}"), &Value::Null).await;
        assert_eq!(status, 200, "{said}");
    };

    // Only cordoned: let go.
    fleet.ask_for("first", json!({})).await;
    let seen = fleet
        .until("the first cordon", async |fleet: &Fleet| {
            let run = fleet.run("first").await;
            let found = fleet.get(&node("m1")).await.unwrap();
            if found["spec"]["unschedulable"] == true { Ok(run) } else { Err(String::new()) }
        })
        .await;
    assert_eq!(phase(&seen, "m1"), "Cordon");
    delete(&fleet, "first").await;
    fleet.act_until("first", Value::is_null).await;
    for name in ["m1", "m2"] {
        fleet.is_clean(name, false).await;
        assert_eq!(fleet.kubelet(name).await, OLD);
    }

    // Its drain began: finished, and then no further one.
    fleet.ask_for("second", json!({})).await;
    let told = |run: &Value| {
        let waits = run["status"]["waitsForText"].as_str().unwrap_or_default();
        phase(run, "m1") == "Drain" && waits.contains("disruption budget")
    };
    fleet.act_until("second", told).await;
    delete(&fleet, "second").await;
    fleet.left.insert("m1".to_owned());
    fleet.set_budget("held", 1).await;
    let run = fleet.act_until("second", |run| phase(run, "m1") == "Run").await;
    assert!(!run["metadata"]["deletionTimestamp"].is_null());
    fleet.left.clear();
    fleet.act_until("second", Value::is_null).await;
    for (name, kubelet) in [("m1", NEW), ("m2", OLD)] {
        fleet.is_clean(name, false).await;
        assert_eq!(fleet.kubelet(name).await, kubelet);
    }
}

#[tokio::test]
async fn a_second_run_waits_and_says_for_which_while_each_write_meets_an_edit() {
    let mut fleet = Fleet::new(&["m1"], Course::Disputed).await;
    fleet.make_database("m1").await;
    fleet.left.insert("m1".to_owned());
    let _coordinator = fleet.start();
    fleet.ask_for("to-34", json!({})).await;
    fleet.act_until("to-34", |run| phase(run, "m1") == "Run").await;
    fleet.ask_for("later", json!({"type": "reboot", "targetVersion": null})).await;
    let waits = "OtherUpgrade: upgrade to-34 is not finished, and comes first";
    let run = fleet.act_until("later", |run| run["status"]["waitsForText"] == waits).await;
    assert_eq!(run["status"]["phase"], "Pending");
    fleet.left.clear();
    let run = fleet.act_until("to-34", has_ended).await;
    assert_eq!(run["status"]["phase"], "Success", "{:#}", run["status"]);
    // Nobody reboots the machine; but it is its turn now.
    fleet.act_until("later", |run| phase(run, "m1") == "Cordon").await;
    let writes = fleet.wire.writes();
    assert!(writes.len() > 15, "{writes:#?}");
}

#[tokio::test]
async fn a_machine_is_given_back_while_navigators_api_is_away_and_the_run_waits_for_it() {
    let mut fleet = Fleet::new(&["m1"], Course::Open).await;
    fleet.make_database("m1").await;
    fleet.left.insert("m1".to_owned());
    let _coordinator = fleet.start();
    fleet.ask_for("to-34", json!({})).await;
    fleet.act_until("to-34", |run| phase(run, "m1") == "Run").await;
    fleet.wire.silence(true);
    fleet.left.clear();
    // Its marks go, and the request to its Pilot stands until it can be taken back.
    let run = fleet.act_until("to-34", |run| phase(run, "m1") == "Uncordon").await;
    assert_eq!(run["status"]["progress"], "0/1");
    fleet
        .until("the end of the cordon", async |fleet: &Fleet| {
            let found = fleet.get(&node("m1")).await.unwrap();
            if found["spec"]["unschedulable"] == true { Err(String::new()) } else { Ok(()) }
        })
        .await;
    fleet.is_clean("m1", false).await;
    fleet.wire.silence(false);
    let run = fleet.act_until("to-34", has_ended).await;
    assert_eq!(run["status"]["phase"], "Success", "{:#}", run["status"]);
}
