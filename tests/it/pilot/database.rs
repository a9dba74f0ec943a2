//! `navigator pilot cassandra --config`: the whole pilot around a scripted Cassandra, which
//! answers like the Jolokia agent and notes down what it is asked.

use std::fs;

use nix::sys::signal::Signal;

use super::alone::{Alone, PATIENCE, another};
use crate::support::{
    ring::{documented_gauges, phase},
    seat::{signal, until_gone},
    wait::until,
};

#[tokio::test]
async fn a_node_serves_and_is_drained_before_it_is_stopped() {
    let node = Alone::new(1);
    let pilot = node.start(&phase("Running"));
    node.until(200, "Running").await;
    assert_eq!(node.seat.get(12000).unwrap().0, 200);
    assert_eq!(node.seat.get(12002).unwrap().0, 200);
    let metrics = node.seat.get(8080).unwrap().1;
    assert!(metrics.contains("\nnavigator_pilot_ready 1\n"), "{metrics}");
    assert!(metrics.contains("\nnavigator_cassandra_live_nodes 1\n"), "{metrics}");
    let pid = pilot.database().unwrap();
    assert_eq!(pilot.stop(PATIENCE).await, 0);
    let notes = [&format!("start {pid}"), "founds", "normal", "drain", "term"];
    assert_eq!(node.notes(), notes);
    let left: Vec<_> = fs::read_dir(node.seat.data().join(".navigator")).unwrap().collect();
    assert!(!left.iter().any(|entry| entry.as_ref().unwrap().file_name() == "run.json"));
}

#[tokio::test]
async fn every_gauge_that_the_page_names_is_told() {
    let node = Alone::new(8);
    let pilot = node.start(&phase("Running"));
    node.until(200, "Running").await;
    for name in documented_gauges() {
        // The founder of a ring has received no data.
        let expected = name != "navigator_cassandra_bootstrap_received_bytes";
        assert_eq!(node.seat.gauge(&format!("{name} ")).is_some(), expected, "{name}");
    }
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_crashed_database_is_started_again_under_the_same_pilot() {
    let node = Alone::new(2);
    let pilot = node.start(&phase("Running"));
    node.until(200, "Running").await;
    let first = pilot.database().unwrap();
    signal(first, Signal::SIGKILL);
    another(&pilot, first).await;
    node.until(200, "Running").await;
    assert!(node.seat.get(8080).unwrap().1.contains("navigator_pilot_process_crashes_total 1\n"));
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_killed_pilot_takes_the_database_along_and_the_next_one_takes_over() {
    let node = Alone::new(3);
    let pilot = node.start(&phase("Running"));
    node.until(200, "Running").await;
    let database = pilot.database().unwrap();
    node.seat.wait_for_record("run.json", "pid", database, PATIENCE).await;
    pilot.kill();
    until_gone(database, PATIENCE).await;
    let next = node.start(&phase("Running"));
    node.until(200, "Running").await;
    next.says("An earlier run has no end", PATIENCE).await;
    assert_eq!(next.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_fenced_or_stopped_node_is_kept_down() {
    for (host, wanted) in [(4, "Fenced"), (5, "Stopped")] {
        let node = Alone::new(host);
        let pilot = node.start(&phase(wanted));
        node.until(503, wanted).await;
        assert_eq!(node.seat.get(12000).unwrap().0, 200, "the container is kept");
        assert_eq!(node.notes(), [""; 0]);
        assert_eq!(pilot.stop(PATIENCE).await, 0);
    }
}

#[tokio::test]
async fn a_phase_that_is_not_known_starts_nothing() {
    let node = Alone::new(61);
    let pilot = node.start(&phase("FromTheFuture"));
    pilot.says("The phase that is wanted is not known", PATIENCE).await;
    node.until(503, "Pending").await;
    assert_eq!(node.notes(), [""; 0], "nothing was started");
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn foreign_data_are_not_touched() {
    let node = Alone::new(6);
    fs::write(node.seat.data().join("rows"), "x").unwrap();
    let pilot = node.start(&phase("Running"));
    node.until(503, "Failed").await;
    assert_eq!(node.notes(), [""; 0]);
    pilot.says("IdentityMismatch", PATIENCE).await;
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_mark_that_cannot_be_read_names_the_way_out() {
    let node = Alone::new(9);
    let folder = node.seat.data().join(".navigator");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("identity.json"), "{").unwrap();
    let pilot = node.start(&phase("Running"));
    node.until(503, "Failed").await;
    pilot.says("remove .navigator/identity.json there", PATIENCE).await;
    assert_eq!(node.notes(), [""; 0], "nothing was started");
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_serving_node_gives_the_memory_of_its_start_back() {
    let node = Alone::new(7);
    let pilot = node.start(&phase("Running"));
    node.until(200, "Running").await;
    let kibibytes = |key: &str| {
        let text = fs::read_to_string(format!("/proc/{}/status", pilot.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_owned();
        line.trim().trim_end_matches(" kB").parse::<u32>().unwrap()
    };
    until("less memory than at its most", PATIENCE, async || {
        let (now, most) = (kibibytes("VmRSS:"), kibibytes("VmHWM:"));
        if now + 1024 < most { Ok(()) } else { Err(format!("{now} of {most} kB")) }
    })
    .await;
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}
