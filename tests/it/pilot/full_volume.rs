//! A data volume that fills while the database runs.

use std::fs;

use super::{
    database::World,
    harness::{signal, wait_for},
};

#[test]
fn a_database_that_died_on_a_full_volume_comes_back_when_there_is_room() {
    let world = World::new(40);
    let data = world.root.join("data");
    let mount = format!("mount -t tmpfs -o size=160m tmpfs {}", data.display());
    let pilot = world.start_after(&mount);
    pilot.until(200, "Running");
    let inside = format!("/proc/{}/root{}/filler", pilot.pid(), data.display());
    fs::write(&inside, vec![1; 110 << 20]).unwrap();
    let said = || fs::read_to_string(world.root.join("stderr")).unwrap_or_default();
    wait_for("the full volume", || said().contains("Data volume is full").then_some(()));
    pilot.until(200, "Running");

    // What a real one does of its own accord.
    signal(pilot.database(), 9);
    pilot.until(503, "Failed");
    world.expect_log("of the 64 MiB that a start needs");

    fs::remove_file(inside).unwrap();
    pilot.until(200, "Running");
    assert_eq!(pilot.stop(), Some(0));
}
