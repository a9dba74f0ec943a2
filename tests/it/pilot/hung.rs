//! A database that falls silent: stopped by a signal, or in a deadlock.

use std::{fs, path::Path, time::Duration};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{
    bed::{Bed, condition},
    ring::{self, Ring},
    seat::{Running, Seat, signal},
    wait::until,
};

const PATIENCE: Duration = Duration::from_secs(90);

/// One running node that may be silent for ten seconds.
async fn node(bed: &Bed, address: [u8; 4], switches: &[&str]) -> (Seat, Running) {
    patient_node(bed, address, switches, 10).await
}

/// One running node that may be silent for so many seconds.
async fn patient_node(
    bed: &Bed,
    address: [u8; 4],
    switches: &[&str],
    silence: u32,
) -> (Seat, Running) {
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let mut seat = ring.seat("cass-demo-a-0", address);
    seat.flags.push(format!("--silence-limit={silence}"));
    for switch in switches {
        ring::set(&seat, switch, "");
    }
    bed.create(&ring.pilot(&seat.name)).await;
    let running = seat.start(&bed.credentials(&seat.name));
    bed.phase(&seat.name, "Running", PATIENCE).await;
    (seat, running)
}

async fn hung(bed: &Bed, seat: &Seat) {
    bed.shows(&seat.name, "ProcessHung", PATIENCE, |pilot| {
        let (status, reason, _) = condition(pilot, "Ready")?;
        (status == "False" && reason == "ProcessHung").then_some(())
    })
    .await;
}

fn hangs(seat: &Seat) -> String {
    let metrics = seat.get(8080).unwrap().1;
    let line = metrics.lines().find(|line| line.starts_with("navigator_pilot_process_hangs_total"));
    line.unwrap().to_owned()
}

#[tokio::test]
async fn a_stopped_process_is_continued_and_not_restarted() {
    let bed = Bed::start().await;
    let (seat, running) = patient_node(&bed, [127, 0, 68, 1], &[], 3600).await;
    // The setting takes effect while the database runs, and goes before the flag.
    bed.change(&seat.name, json!({"pilotSettings": {"silenceLimitSeconds": 10}})).await;
    let database = running.database().unwrap();
    signal(database, Signal::SIGSTOP);
    until("the thread dump", PATIENCE, async || match ring::count(&seat, "quit") {
        0 => Err(running.tail()),
        _ => Ok(()),
    })
    .await;
    bed.phase(&seat.name, "Running", PATIENCE).await;
    assert_eq!(running.database(), Some(database));
    assert_eq!(ring::count(&seat, "start"), 1);
    assert_eq!(hangs(&seat), "navigator_pilot_process_hangs_total 1");
    assert_eq!(running.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_deadlocked_process_is_dumped_and_restarted_alone() {
    let bed = Bed::start().await;
    let (seat, running) = node(&bed, [127, 0, 68, 2], &["helper"]).await;
    let notes = ring::notes(&seat);
    let helper = notes.iter().find_map(|note| note.strip_prefix("helper ")).unwrap().to_owned();
    ring::unset(&seat, "helper");
    ring::set(&seat, "deadlock", "");
    hung(&bed, &seat).await;
    until("the restart", PATIENCE, async || match ring::count(&seat, "start") {
        2 => Ok(()),
        _ => Err(running.tail()),
    })
    .await;
    ring::unset(&seat, "deadlock");
    bed.phase(&seat.name, "Running", PATIENCE).await;
    let order: Vec<String> = ring::notes(&seat);
    let at = |word: &str| order.iter().position(|note| note == word);
    assert!(at("quit").unwrap() < at("term").unwrap(), "{order:?}");
    assert_eq!(at("drain"), None, "a drain would not be heard");
    assert!(running.log().contains("Full thread dump"));
    // `setsid` has become the program, under the pid that was noted.
    let name = fs::read_to_string(Path::new("/proc").join(&helper).join("comm"));
    assert_eq!(name.unwrap(), "sleep\n", "another process of the container was harmed");
    signal(helper.parse().unwrap(), Signal::SIGKILL);
    assert_eq!(running.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_node_whose_state_cannot_be_saved_serves_on_and_says_so() {
    let bed = Bed::start().await;
    let (seat, running) = node(&bed, [127, 0, 68, 3], &[]).await;
    let database = running.database().unwrap();
    let file = seat.data().join(".navigator/cassandra.json");
    let before = fs::read(&file).unwrap();
    fs::write(&file, "{").unwrap();
    let ready = bed
        .shows(&seat.name, "the trouble is told", PATIENCE, |pilot| {
            let (status, reason, message) = condition(pilot, "StateSaved")?;
            assert_eq!((status, reason), ("False", "StateNotSaved"));
            assert!(message.contains("cassandra.json"), "{message}");
            Some(condition(pilot, "Ready")?.0.to_owned())
        })
        .await;
    assert_eq!(ready, "True", "the pilot's own trouble is not the database's silence");
    fs::write(&file, before).unwrap();
    bed.shows(&seat.name, "the trouble is over", PATIENCE, |pilot| {
        condition(pilot, "StateSaved").is_none().then_some(())
    })
    .await;
    assert_eq!(hangs(&seat), "navigator_pilot_process_hangs_total 0");
    assert_eq!(running.database(), Some(database));
    assert_eq!(running.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_node_whose_agent_alone_is_silent_is_not_restarted_nor_stopped_for_anything() {
    let bed = Bed::start().await;
    // A look takes five seconds to give up, five after the last one.
    let (seat, running) = patient_node(&bed, [127, 0, 68, 4], &[], 30).await;
    let database = running.database().unwrap();
    ring::set(&seat, "mute-agent", "");
    let unseen = |pilot: &navigator::api::v1beta1::Pilot| {
        let blockers = pilot.status.blockers.iter();
        blockers
            .filter(|one| one.predicate == "HoldingsKnown")
            .any(|one| one.message.contains("answers clients"))
    };
    let ready = bed
        .shows(&seat.name, "that it is not seen", PATIENCE, |pilot| {
            unseen(pilot).then(|| condition(pilot, "Ready").unwrap().0.to_owned())
        })
        .await;
    assert_eq!(ready, "True");
    ring::unset(&seat, "mute-agent");
    bed.shows(&seat.name, "that it is seen again", PATIENCE, |pilot| {
        (!unseen(pilot)).then_some(())
    })
    .await;
    assert_eq!(hangs(&seat), "navigator_pilot_process_hangs_total 0");
    assert_eq!(running.database(), Some(database));
    assert_eq!(running.stop(PATIENCE).await, 0);
}
