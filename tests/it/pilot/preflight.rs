//! What keeps a database from being started, produced: limits, mounts, the clock, ports.

use std::{
    fs,
    net::TcpListener,
    time::{Duration, SystemTime},
};

use super::database::{Running, World};

/// The pilot says why and starts nothing.
fn refused(world: &World, pilot: &Running<'_>, words: [&str; 2]) {
    pilot.until(503, "Failed");
    for word in words {
        world.expect_log(word);
    }
    assert_eq!(world.log(), "", "nothing was started");
    assert_eq!(world.get(12000).unwrap().0, 200, "the container is kept");
}

#[test]
fn too_few_open_files_are_told() {
    let world = World::new(30);
    let pilot = world.start_after("ulimit -n 1000");
    refused(&world, &pilot, ["PreflightFailed", "the limit of open files is 1000"]);
    assert_eq!(pilot.stop(), Some(0));
}

#[test]
fn a_soft_limit_is_raised_for_the_database() {
    let world = World::new(31);
    let pilot = world.start_after("ulimit -Sn 1000");
    pilot.until(200, "Running");
    let limits = fs::read_to_string(format!("/proc/{}/limits", pilot.database())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = files.split_whitespace().skip(3).take(2).collect();
    assert!(numbers[0] == numbers[1] && numbers[0] != "1000", "{files}");
    assert_eq!(pilot.stop(), Some(0));
}

#[test]
fn a_full_volume_is_told() {
    let world = World::new(32);
    let data = world.root.join("data").display().to_string();
    let pilot = world.start_after(&format!("mount -t tmpfs -o size=60m tmpfs {data}"));
    refused(&world, &pilot, ["DiskFull", "of the 64 MiB that a start needs"]);
    assert_eq!(pilot.stop(), Some(0));
}

#[test]
fn a_volume_without_inodes_is_told() {
    let world = World::new(33);
    let data = world.root.join("data").display().to_string();
    let mount = format!("mount -t tmpfs -o size=200m,nr_inodes=40 tmpfs {data}");
    let pilot = world.start_after(&mount);
    refused(&world, &pilot, ["DiskFull", "inodes left"]);
    assert_eq!(pilot.stop(), Some(0));
}

#[test]
fn a_read_only_volume_is_told() {
    let world = World::new(34);
    let data = world.root.join("data").display().to_string();
    let pilot = world.start_after(&format!("mount -t tmpfs -o ro tmpfs {data}"));
    refused(&world, &pilot, ["PreflightFailed", "mounted read-only"]);
    assert_eq!(pilot.stop(), Some(0));
}

#[test]
fn a_mounted_volume_serves_a_pod() {
    let world = World::new(35);
    let data = world.root.join("data").display().to_string();
    let mount = format!("export NAVIGATOR_POD_UID=x; mount -t tmpfs -o size=200m tmpfs {data}");
    let pilot = world.start_after(&mount);
    pilot.until(200, "Running");
    assert_eq!(pilot.stop(), Some(0));
}

#[test]
fn a_clock_behind_the_data_starts_nothing() {
    let world = World::new(36);
    let made_by_the_file_system = world.root.join("data/lost+found");
    fs::create_dir(&made_by_the_file_system).unwrap();
    let later = SystemTime::now() + Duration::from_secs(3600);
    fs::File::open(made_by_the_file_system).unwrap().set_modified(later).unwrap();
    let pilot = world.start_after(":");
    refused(&world, &pilot, ["PreflightFailed", "set the clock"]);
    assert_eq!(pilot.stop(), Some(0));
}

#[test]
fn a_taken_port_is_told_and_waited_for() {
    let world = World::new(37);
    let taken = TcpListener::bind((world.address.as_str(), 9042)).unwrap();
    let pilot = world.start_after(":");
    refused(&world, &pilot, ["PreflightFailed", "port 9042"]);
    drop(taken);
    pilot.until(200, "Running");
    assert_eq!(pilot.stop(), Some(0));
}
