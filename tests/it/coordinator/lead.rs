//! Two coordinators, of which one leads.

use nix::sys::signal::Signal;
use serde_json::json;

use super::{fleet::Fleet, process::Coordinator, wire::Course};

#[tokio::test]
async fn a_leader_that_was_stopped_writes_nothing_once_another_one_leads() {
    let mut fleet = Fleet::new(&["m1"], Course::Open).await;
    fleet.left.insert("m1".to_owned());
    let mut first = Coordinator::candidate(&fleet.wire.url);
    fleet.ask_for("to-34", json!({})).await;
    let waits = |text: &str| {
        let text = text.to_owned();
        move |run: &serde_json::Value| {
            run["status"]["waitsForText"].as_str().is_some_and(|line| line.contains(&text))
        }
    };
    fleet.act_until("to-34", waits("m1: Cordon")).await;
    let other = fleet.other_wire().await;
    let _second = Coordinator::candidate(&other.url);
    first.signal(Signal::SIGSTOP);
    fleet.act_until("to-34", waits("m1: MachineChanged")).await;
    assert!(!other.writes().is_empty(), "the other one leads");
    let before = fleet.wire.writes();
    first.signal(Signal::SIGCONT);
    let code = fleet
        .until("the end of the first one", async |_| first.ended().ok_or("it runs".to_owned()))
        .await;
    assert_eq!((code, fleet.wire.writes()), (1, before));
    fleet.left.clear();
    let over = |run: &serde_json::Value| run["status"]["phase"] == "Success";
    fleet.act_until("to-34", over).await;
    fleet.is_clean("m1", false).await;
}
