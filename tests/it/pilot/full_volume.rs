//! A data volume that fills while the database runs.

use std::{collections::BTreeSet, fs, io::Write, rc::Rc, time::Duration};

use nix::sys::signal::Signal;

use super::alone::{Alone, PATIENCE};
use crate::support::{
    bed::Bed,
    ring::{Ring, phase, set, unset},
    seat::signal,
    wait::until,
};

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

    // A real database ends by itself on a full volume.
    signal(pilot.database().unwrap(), Signal::SIGKILL);
    node.until(503, "Failed").await;
    pilot.says("of the 64 MiB that a start needs", PATIENCE).await;

    fs::remove_file(inside).unwrap();
    node.until(200, "Running").await;
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

/// An end for want of room with more free than any start needs: the volume is not full by itself.
#[tokio::test]
async fn a_database_that_ends_for_want_of_room_again_waits_for_more_of_it() {
    let node = Alone::new(41);
    set(&node.seat, "no-space", "");
    let data = node.seat.data();
    let own = data.join(".navigator");
    let filled = format!("mkdir {0} && fallocate --length 630M {0}/filler", own.display());
    let mount = format!("mount -t tmpfs -o size=700m tmpfs {} && {filled}", data.display());
    let pilot = node.start_after(&mount);
    pilot.says("ended for want of room again and again", PATIENCE).await;
    let starts = || node.notes().iter().filter(|note| note.starts_with("start")).count();
    assert_eq!(starts(), 2, "{:?}", node.notes());
    node.until(503, "Failed").await;

    // The next start would find room: still none is made before there is more.
    unset(&node.seat, "no-space");
    let own = format!("/proc/{}/root{}", pilot.pid(), own.display());
    let figures = || {
        let said = node.seat.said();
        let ends = said.split(" MiB are: free space").map(|text| text.rsplit(' ').next());
        ends.flatten().filter_map(|end| end.parse().ok()).collect::<BTreeSet<u32>>()
    };
    let before = figures();
    fs::write(format!("{own}/more"), vec![1; 2 << 20]).unwrap();
    until("the pilot looks at the volume again, and finds less", PATIENCE, async || {
        if figures().len() > before.len() { Ok(()) } else { Err(format!("{before:?}")) }
    })
    .await;
    assert_eq!(starts(), 2, "{:?}", node.notes());
    fs::remove_file(format!("{own}/filler")).unwrap();
    node.until(200, "Running").await;
    assert_eq!(pilot.stop(PATIENCE).await, 0);
}

/// Leaving is a way out of a full disk, and the record that the node left must fit on it.
#[tokio::test]
async fn a_full_volume_takes_what_must_be_written_down() {
    let bed = Rc::new(Bed::start().await);
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let mut trio = ring.nodes(&bed, 96, 3);
    for node in 0..3 {
        trio.create(node).await;
    }
    trio.start(0);
    trio.start(1);
    let (data, name) = (trio.seat(2).data(), trio.name(2).to_owned());
    let credentials = bed.credentials(&name);
    let mount = format!("mount -t tmpfs -o size=160m tmpfs {}", data.display());
    let intent = ["--kubeconfig".as_ref(), credentials.as_os_str()];
    let running = trio.seat(2).start_after(&mount, &intent);
    let inside = format!("/proc/{}/root{}", running.pid(), data.display());
    trio.all[2].running = Some(running);
    for node in 0..3 {
        trio.phase(node, "Running").await;
    }
    let own = |file: &str| fs::metadata(format!("{inside}/.navigator/{file}"));
    assert_eq!(own("reserve").unwrap().len(), 64 << 10);
    let mut filler = fs::File::create(format!("{inside}/filler")).unwrap();
    for size in [1 << 20, 1] {
        while filler.write_all(&vec![1; size]).is_ok() {}
    }

    bed.change(&name, phase("Decommissioned")).await;
    bed.phase(&name, "Decommissioned", Duration::from_secs(120)).await;
    assert!(own("left.json").is_ok(), "{:?}", own("left.json"));
    assert!(own("reserve").is_err(), "it was given up");
    assert_eq!(trio.database(2), None);
    trio.stop_all().await;
}
