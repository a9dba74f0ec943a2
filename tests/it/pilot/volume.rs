//! A data volume that hangs under a running node, or before one starts. A FIFO without a writer
//! plays it: opening it waits for ever, as behind a dead file server.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    libc::{SYS_open, SYS_openat},
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};

use crate::support::{
    bed::Bed,
    ring::{self, Ring},
    seat::{Running, Seat, is_gone, signal},
    wait::until,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Makes every open of this file hang.
fn hang(file: &Path) {
    let fifo: PathBuf = file.with_extension("fifo");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    fs::rename(fifo, file).unwrap();
}

/// Waits until a thread of the pilot hangs at opening a file.
async fn hangs(running: &Running) {
    let opens = |call: &str| {
        let number = call.split(' ').next().and_then(|number| number.parse().ok());
        number.is_some_and(|number: i64| number == SYS_open || number == SYS_openat)
    };
    let mut seen = 0;
    until("a thread that hangs", PATIENCE, async || {
        let threads = fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap().flatten();
        let calls: Vec<String> = threads
            .map(|thread| fs::read_to_string(thread.path().join("syscall")).unwrap_or_default())
            .collect();
        // Twice in a row: an open that succeeds is seen as well.
        seen = if calls.iter().any(|call| opens(call)) { seen + 1 } else { 0 };
        if seen > 5 { Ok(()) } else { Err(format!("{calls:?}")) }
    })
    .await;
}

fn node(bed: &Bed, address: [u8; 4]) -> (Ring, Seat) {
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let mut seat = ring.seat("cass-demo-a-0", address);
    seat.flags.push("--silence-limit=10".to_owned());
    (ring, seat)
}

#[tokio::test]
async fn a_volume_that_hangs_under_a_running_node_holds_up_nothing_else() {
    let bed = Bed::start().await;
    let (ring, seat) = node(&bed, [127, 0, 97, 1]);
    bed.create(&ring.pilot(&seat.name)).await;
    let running = seat.start(&bed.credentials(&seat.name));
    bed.phase(&seat.name, "Running", PATIENCE).await;
    let database = running.database().unwrap();
    hang(&seat.data().join(".navigator/cassandra.json"));
    hangs(&running).await;

    // Probes, reports, signals and the database's end are heard.
    for port in [12000, 12001, 12002] {
        assert_eq!(seat.get(port).map(|(code, _)| code), Some(200), "{port}");
    }
    let beat = bed.pilot(&seat.name).await.status.last_heartbeat_time;
    bed.shows(&seat.name, "a heartbeat", PATIENCE, |pilot| {
        (pilot.status.last_heartbeat_time != beat).then_some(())
    })
    .await;
    assert_eq!(running.database(), Some(database), "it is not the database that is silent");
    signal(database, Signal::SIGKILL);
    bed.shows(&seat.name, "how the database ended", PATIENCE, |pilot| {
        let ended = pilot.status.last_termination.as_ref()?;
        (ended.signal.as_deref() == Some("SIGKILL")).then_some(())
    })
    .await;
    assert!(is_gone(database));
    assert_eq!(running.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_database_on_a_volume_that_hangs_is_stopped_in_order() {
    let bed = Bed::start().await;
    let (ring, seat) = node(&bed, [127, 0, 97, 2]);
    bed.create(&ring.pilot(&seat.name)).await;
    let running = seat.start(&bed.credentials(&seat.name));
    bed.phase(&seat.name, "Running", PATIENCE).await;
    hang(&seat.data().join(".navigator/cassandra.json"));
    hangs(&running).await;
    assert_eq!(running.stop(PATIENCE).await, 0);
    assert_eq!(ring::notes(&seat)[1..], ["founds", "normal", "drain", "term"]);
}

#[tokio::test]
async fn a_volume_that_hangs_from_the_start_on_keeps_no_pilot_from_hearing() {
    let bed = Bed::start().await;
    let (ring, seat) = node(&bed, [127, 0, 97, 3]);
    bed.create(&ring.pilot(&seat.name)).await;
    fs::create_dir(seat.data().join(".navigator")).unwrap();
    hang(&seat.data().join(".navigator/left.json"));
    let running = seat.start(&bed.credentials(&seat.name));
    hangs(&running).await;
    assert_eq!(seat.get(12000).map(|(code, _)| code), Some(200));
    assert_eq!(ring::count(&seat, "start"), 0);
    assert_eq!(running.stop(PATIENCE).await, 0);
}

#[tokio::test]
async fn a_volume_that_hangs_while_a_node_waits_for_its_turn_keeps_no_pilot_from_hearing() {
    let bed = Bed::start().await;
    let ring = Ring::new(bed.world.folder.path(), "demo");
    let mut nodes = Vec::new();
    for (name, last) in [("cass-demo-a-0", 4), ("cass-demo-a-1", 5)] {
        let seat = ring.seat(name, [127, 0, 97, last]);
        ring::set(&seat, "slow", "");
        bed.create(&ring.pilot(name)).await;
        let running = seat.start(&bed.credentials(name));
        nodes.push((seat, running));
    }
    until("one of them founds", PATIENCE, async || {
        let (seat, running) = &nodes[0];
        let founds = nodes.iter().any(|(seat, _)| ring::count(seat, "start") > 0);
        if founds { Ok(()) } else { Err(format!("{}: {}", seat.name, running.tail())) }
    })
    .await;
    nodes.sort_by_key(|(seat, _)| ring::count(seat, "start"));
    let (seat, running) = nodes.remove(0);
    until("the other one waits for it", PATIENCE, async || {
        let waits = running.log().contains("Waiting to start");
        if waits { Ok(()) } else { Err(running.tail()) }
    })
    .await;
    hang(&seat.data().join(".navigator/identity.json"));
    hangs(&running).await;
    assert_eq!(seat.get(12000).map(|(code, _)| code), Some(200));
    assert_eq!(ring::count(&seat, "start"), 0);
    assert_eq!(running.stop(PATIENCE).await, 0);
}
