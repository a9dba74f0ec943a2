//! What keeps a database from being started, produced: limits, mounts, the clock, ports.

use std::{
    fs,
    net::TcpListener,
    time::{Duration, SystemTime},
};

use super::alone::{Alone, PATIENCE};
use crate::support::seat::Running;

/// The pilot says why and starts nothing.
async fn refused(node: &Alone, pilot: &Running, words: [&str; 2]) {
    node.until(503, "Failed").await;
    for word in words {
        pilot.says(word, PATIENCE).await;
    }
    assert_eq!(node.notes(), [""; 0], "nothing was started");
    assert_eq!(node.seat.get(12000).unwrap().0, 200, "the container is kept");
}

#[tokio::test]
async fn too_few_open_files_are_told() {
    let node = Alone::new(30);
    let pilot = node.start_after("ulimit -n 1000");
    refused(&node, &pilot, ["PreflightFailed", "the limit of open files is 1000"]).await;
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_soft_limit_is_raised_for_the_database() {
    let node = Alone::new(31);
    let pilot = node.start_after("ulimit -Sn 1000");
    node.until(200, "Running").await;
    let limits = fs::read_to_string(format!("/proc/{}/limits", pilot.database().unwrap())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = files.split_whitespace().skip(3).take(2).collect();
    assert!(numbers[0] == numbers[1] && numbers[0] != "1000", "{files}");
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_full_volume_is_told() {
    let node = Alone::new(32);
    let data = node.seat.data().display().to_string();
    let pilot = node.start_after(&format!("mount -t tmpfs -o size=60m tmpfs {data}"));
    refused(&node, &pilot, ["DiskFull", "of the 64 MiB that a start needs"]).await;
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_volume_without_inodes_is_told() {
    let node = Alone::new(33);
    let data = node.seat.data().display().to_string();
    let mount = format!("mount -t tmpfs -o size=200m,nr_inodes=40 tmpfs {data}");
    let pilot = node.start_after(&mount);
    refused(&node, &pilot, ["DiskFull", "inodes left"]).await;
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_read_only_volume_is_told() {
    let node = Alone::new(34);
    let data = node.seat.data().display().to_string();
    let pilot = node.start_after(&format!("mount -t tmpfs -o ro tmpfs {data}"));
    refused(&node, &pilot, ["PreflightFailed", "mounted read-only"]).await;
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_mounted_volume_serves_a_pod() {
    let node = Alone::new(35);
    let data = node.seat.data().display().to_string();
    let mount = format!("export NAVIGATOR_POD_UID=x; mount -t tmpfs -o size=200m tmpfs {data}");
    let pilot = node.start_after(&mount);
    node.until(200, "Running").await;
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_clock_behind_the_data_starts_nothing() {
    let node = Alone::new(36);
    let made_by_the_file_system = node.seat.data().join("lost+found");
    fs::create_dir(&made_by_the_file_system).unwrap();
    let later = SystemTime::now() + Duration::from_secs(3600);
    fs::File::open(made_by_the_file_system).unwrap().set_modified(later).unwrap();
    let pilot = node.start_after(":");
    refused(&node, &pilot, ["PreflightFailed", "set the clock"]).await;
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_taken_port_is_told_and_waited_for() {
    let node = Alone::new(37);
    let taken = TcpListener::bind((node.seat.address, 9042)).unwrap();
    let pilot = node.start_after(":");
    refused(&node, &pilot, ["PreflightFailed", "port 9042"]).await;
    drop(taken);
    node.until(200, "Running").await;
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}
