//! A node leaves its ring whatever is killed, is held back when the others could not do without
//! it, and never comes back once it has left.

use std::{rc::Rc, time::Duration};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{
    bed::{Bed, condition},
    ring::{self, Ring, phase},
    seat::{Seat, signal},
    wait::until,
};

const PATIENCE: Duration = Duration::from_secs(120);

async fn noted(seat: &Seat, word: &str, times: usize) {
    until(&format!("{word} noted {times} times"), PATIENCE, async || {
        if ring::count(seat, word) >= times { Ok(()) } else { Err(ring::notes(seat).join(" ")) }
    })
    .await;
}

/// Waits until `Decommissioned` has this status and its message these words.
async fn decommissioned(bed: &Bed, name: &str, status: &str, words: &str) {
    bed.shows(name, &format!("Decommissioned {status} {words:?}"), PATIENCE, |pilot| {
        let found = condition(pilot, "Decommissioned")?;
        (found.0 == status && found.2.contains(words)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_decommission_that_is_killed_half_way_is_resumed_to_its_end() {
    let bed = Rc::new(Bed::start().await);
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let mut trio = ring.nodes(&bed, 80, 3);
    trio.form().await;
    let name = trio.name(2).to_owned();
    ring::set(trio.seat(2), "stuck-streams", "");
    bed.change(&name, phase("Decommissioned")).await;
    bed.phase(&name, "Decommissioning", PATIENCE).await;
    noted(trio.seat(2), "leaving", 1).await;
    bed.shows(&name, "progress", PATIENCE, |pilot| {
        pilot.status.decommission.as_ref()?.percent.map(drop)
    })
    .await;

    // The pilot is killed, and the kernel kills the database along with it.
    trio.kill(2).await;
    trio.start(2);
    noted(trio.seat(2), "leaving", 2).await;

    let database = trio.database(2).unwrap();
    signal(database, Signal::SIGKILL);
    noted(trio.seat(2), "leaving", 3).await;

    // Both are killed, the database first.
    signal(trio.database(2).unwrap(), Signal::SIGKILL);
    trio.kill(2).await;
    trio.start(2);
    noted(trio.seat(2), "leaving", 4).await;

    ring::unset(trio.seat(2), "stuck-streams");
    bed.phase(&name, "Decommissioned", PATIENCE).await;
    decommissioned(&bed, &name, "True", "").await;
    assert_eq!(ring.in_mode("LEFT"), [trio.seat(2).address.to_string()]);
    assert_eq!(ring.in_mode("NORMAL").len(), 2);
    assert_eq!(ring.wrongs(), [""; 0]);
    assert_eq!(trio.database(2), None);

    // Every later pilot knows that the node has left.
    let starts = ring::count(trio.seat(2), "start");
    trio.kill(2).await;
    trio.start(2);
    until("the new pilot is in charge", PATIENCE, async || match trio.seat(2).get(12001) {
        Some((503, word)) if word == "Decommissioned" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    decommissioned(&bed, &name, "True", "").await;
    assert_eq!(ring::count(trio.seat(2), "start"), starts);
}

#[tokio::test]
async fn a_pilot_killed_before_it_noted_that_the_node_left_never_lets_it_serve_again() {
    let bed = Rc::new(Bed::start().await);
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let mut trio = ring.nodes(&bed, 73, 3);
    trio.form().await;
    let name = trio.name(2).to_owned();
    ring::set(trio.seat(2), "stuck-streams", "");
    bed.change(&name, phase("Decommissioned")).await;
    noted(trio.seat(2), "leaving", 1).await;
    trio.running(2).signal(Signal::SIGSTOP);
    ring::unset(trio.seat(2), "stuck-streams");
    noted(trio.seat(2), "decommissioned", 1).await;
    trio.kill(2).await;
    trio.start(2);
    decommissioned(&bed, &name, "True", "").await;
    bed.phase(&name, "Decommissioned", PATIENCE).await;
    assert_eq!(ring.in_mode("LEFT"), [trio.seat(2).address.to_string()]);
    assert_eq!(ring.wrongs(), [""; 0]);
    assert_eq!(trio.database(2), None);
    let notes = ring::notes(trio.seat(2));
    let left = notes.iter().position(|note| note == "decommissioned").unwrap();
    assert!(!notes[left..].iter().any(|note| note == "normal"), "{notes:?}");
}

#[tokio::test]
async fn a_decommission_is_refused_with_the_reason_and_can_be_taken_back_until_it_began() {
    let bed = Rc::new(Bed::start().await);
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let mut trio = ring.nodes(&bed, 74, 3);
    trio.form().await;
    let seat = trio.seat(2);
    ring.set_keyspace("shop", 3);
    bed.change(&seat.name, phase("Decommissioned")).await;
    let why = "keyspace shop has replication factor 3, and 2 nodes would remain";
    decommissioned(&bed, &seat.name, "False", why).await;
    assert_eq!(seat.get(12001).unwrap().0, 200, "it serves on");

    // The departure is taken back and asked for again: now room is missing.
    bed.change(&seat.name, phase("Running")).await;
    bed.phase(&seat.name, "Running", PATIENCE).await;
    ring.set_keyspace("shop", 2);
    ring::set(seat, "load", &i64::MAX.to_string());
    bed.change(&seat.name, phase("Decommissioned")).await;
    decommissioned(&bed, &seat.name, "False", "the other nodes have room for").await;
    assert_eq!(ring::count(seat, "leaving"), 0);

    // With room the departure begins, and from then on there is no way back.
    ring::set(seat, "stuck-streams", "");
    ring::set(seat, "load", "1000");
    noted(seat, "leaving", 1).await;
    bed.change(&seat.name, phase("Running")).await;
    decommissioned(&bed, &seat.name, "False", "cannot be taken back").await;
    ring::unset(seat, "stuck-streams");
    decommissioned(&bed, &seat.name, "True", "").await;
    bed.phase(&seat.name, "Decommissioned", PATIENCE).await;
    assert_eq!(ring::count(seat, "leaving"), 1);
    assert_eq!(ring::count(seat, "start"), 1);
    assert_eq!(ring.wrongs(), [""; 0]);
    let spec = bed.pilot(&seat.name).await.spec;
    assert_eq!(json!(spec.phase), json!("Running"));
}
