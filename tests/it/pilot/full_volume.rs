//! A data volume that fills while the database runs.

use std::fs;

use nix::sys::signal::Signal;

use super::alone::{Alone, PATIENCE};
use crate::support::seat::signal;

#[tokio::test]
async fn a_database_that_died_on_a_full_volume_comes_back_when_there_is_room() {
    let node = Alone::new(40);
    let data = node.seat.data();
    let mount = format!("mount -t tmpfs -o size=160m tmpfs {}", data.display());
    let pilot = node.start_after(&mount);
    node.until(200, "Running").await;
    let inside = format!("/proc/{}/root{}/filler", pilot.pid(), data.display());
    fs::write(&inside, vec![1; 110 << 20]).unwrap();
    pilot.says("Data volume is full", PATIENCE).await;
    node.until(200, "Running").await;

    // What a real one does of its own accord.
    signal(pilot.database().unwrap(), Signal::SIGKILL);
    node.until(503, "Failed").await;
    pilot.says("of the 64 MiB that a start needs", PATIENCE).await;

    fs::remove_file(inside).unwrap();
    node.until(200, "Running").await;
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}
