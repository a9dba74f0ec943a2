//! A panic in the pilot: the same program begins anew in place, and the database runs on.

use std::{fs, io::Write, path::PathBuf, time::Duration};

use nix::sys::signal::Signal;

use tokio::time::sleep;

use crate::support::{
    bed::Bed,
    ring::{self, Ring},
    seat::{Running, Seat, is_gone},
    wait::until,
};

const PATIENCE: Duration = Duration::from_secs(90);
const TOOK_OVER: &str = "Took over a running database";
/// How often in a row a pilot begins anew.
const MOST: usize = 5;

struct Node {
    bed: Bed,
    seat: Seat,
    /// The pilot panics when this file is there.
    fault: PathBuf,
    running: Running,
    database: i32,
}

impl Node {
    async fn start(address: [u8; 4]) -> Self {
        let bed = Bed::start().await;
        let ring = Ring::new(bed.world.folder.path(), "demo");
        let mut seat = ring.seat("cass-demo-a-0", address);
        let fault = seat.place.join("fault");
        seat.flags.push(format!("--panic-file={}", fault.display()));
        bed.create(&ring.pilot(&seat.name)).await;
        let running = seat.start(&bed.credentials(&seat.name));
        bed.phase(&seat.name, "Running", PATIENCE).await;
        let database = running.database().unwrap();
        seat.wait_for_record("run.json", "pid", database, PATIENCE).await;
        Self { bed, seat, fault, running, database }
    }

    /// Lets the pilot panic; waits until it has.
    async fn panic(&self, what: &str) {
        fs::write(self.seat.place.join("fault.new"), what).unwrap();
        fs::rename(self.seat.place.join("fault.new"), &self.fault).unwrap();
        until("the panic", PATIENCE, async || {
            if self.fault.exists() { Err(self.running.tail()) } else { Ok(()) }
        })
        .await;
    }

    async fn began_anew(&self, times: usize) {
        until("another beginning", PATIENCE, async || {
            let seen = self.running.log().matches(TOOK_OVER).count();
            if seen == times { Ok(()) } else { Err(self.running.tail()) }
        })
        .await;
    }
}

#[tokio::test]
async fn a_pilot_that_panics_begins_anew_and_its_database_runs_on() {
    let node = Node::start([127, 0, 98, 1]).await;
    for (times, what) in [(1, "task"), (2, "loop")] {
        node.panic(what).await;
        node.began_anew(times).await;
    }
    // The pilot answers and hears everything again: probes, the API, the database, signals.
    assert_eq!(node.seat.get(12000).unwrap().0, 200);
    let name = &node.seat.name;
    node.bed.change(name, ring::phase("Stopped")).await;
    node.bed.phase(name, "Stopped", PATIENCE).await;
    assert_eq!(ring::notes(&node.seat)[1..], ["founds", "normal", "drain", "term"]);
    assert_eq!(ring::count(&node.seat, "start"), 1, "the database was not disturbed before");
    assert!(is_gone(node.database));
    assert_eq!(node.running.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_panic_before_the_volume_was_read_again_costs_no_database() {
    let node = Node::start([127, 0, 98, 4]).await;
    let run = node.seat.data().join(".navigator/run.json");
    let kept = run.with_extension("kept");
    fs::rename(&run, &kept).unwrap();
    nix::unistd::mkfifo(&run, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    // The next program reads that file and waits for a writer.
    node.panic("task").await;
    node.began_anew(1).await;
    node.panic("loop").await;
    let text = fs::read(&kept).unwrap();
    tokio::task::spawn_blocking(move || {
        let mut writer = fs::File::options().write(true).open(&run).unwrap();
        fs::rename(&kept, &run).unwrap();
        writer.write_all(&text).unwrap();
    })
    .await
    .unwrap();
    node.began_anew(2).await;
    assert_eq!(node.running.database(), Some(node.database));
    assert_eq!(node.seat.get(12000).unwrap().0, 200);
}

#[tokio::test]
async fn a_pilot_that_panics_again_and_again_stops_its_database_in_order() {
    let mut node = Node::start([127, 0, 98, 2]).await;
    for times in 1..=MOST {
        node.panic("task").await;
        node.began_anew(times).await;
    }
    assert_eq!(node.running.database(), Some(node.database));
    node.panic("task").await;
    assert_eq!(node.running.ended(PATIENCE).await, 70);
    assert_eq!(ring::notes(&node.seat)[1..], ["founds", "normal", "drain", "term"]);
}

#[tokio::test]
async fn a_signal_that_meets_a_panic_is_not_lost() {
    let mut node = Node::start([127, 0, 98, 3]).await;
    // The file is looked for every 20 ms: the signal comes before, during and after the panic.
    for (times, delay) in [(1, 12), (2, 18), (3, 24), (4, 30)] {
        fs::write(&node.fault, "task").unwrap();
        sleep(Duration::from_millis(delay)).await;
        node.running.signal(Signal::SIGQUIT);
        node.began_anew(times).await;
        until("the database heard it", PATIENCE, async || {
            let heard = ring::count(&node.seat, "quit");
            if heard == times { Ok(()) } else { Err(format!("{heard} of {times}")) }
        })
        .await;
    }
    node.panic("task").await;
    node.running.signal(Signal::SIGTERM);
    assert_eq!(node.running.ended(PATIENCE).await, 0);
    assert!(is_gone(node.database));
    let notes = ring::notes(&node.seat);
    assert_eq!(notes[notes.len() - 2..], ["drain", "term"], "{notes:?}");
}
