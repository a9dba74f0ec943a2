//! What one node goes through: bad configurations, silence, no memory, a full disk, a start
//! that the checks refuse. Each time it serves again with its rows.

use std::{io::Write, net::TcpStream, time::Duration};

use navigator::{databases::cassandra::names::port, pilot::clients::jolokia};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{
    VERSION,
    client::{Writer, every_row_is_there, every_write_is_synced, fill, make_shop},
    refused::what_the_checks_refuse,
    ring::{Ring, SOON, START},
    tmpfs::Tmpfs,
};
use crate::{
    cql::Consistency,
    report::Told,
    support::{bed::condition, seat::signal, wait::until},
    wall::Wall,
};

/// Longer than the silence after which a process counts as hung, and its restart.
const HANG: Duration = Duration::from_secs(400);

pub(crate) async fn a_node_comes_back_from_every_fault(told: &Told) {
    let mut ring = Ring::new(VERSION, 3, every_write_is_synced()).await;
    ring.add().await;
    ring.all[0].seat.flags.push("--silence-limit=40".to_owned());
    let volume = Tmpfs::mount(ring.seat(0).data(), 900);
    ring.start(0);
    ring.serves(0, START).await;
    make_shop(&mut ring.cql(0), 1).await;
    let writer = Writer::start(vec![ring.address(0)], 0, Consistency::One);
    writer.writes(300).await;
    let (rows, _) = writer.stop();
    told.claim("a node on a small volume serves");

    // Only Cassandra itself knows its keys.
    restart_with(&ring, 0, json!({"config": {"no_such_key": 1}}), 1).await;
    ended(&ring, "ConfigRejected", "no_such_key").await;
    told.claim("an unknown key ends the start: ConfigRejected, and the log's lines name the key");
    ring.change(0, json!({"config": {"no_such_key": null}})).await;
    ring.serves(0, START).await;
    every_row_is_there(ring.address(0), &rows, Consistency::One).await;
    told.claim("the corrected configuration brings it back");

    let pid = ring.database(0);
    let at = restart_time(2);
    ring.change(0, json!({"jvm": {"options": ["Xint"]}, "restartedAt": at})).await;
    let why = ring.says(0, "ConfigApplied", ("False", "ConfigRejected"), SOON).await;
    assert!(why.contains("Xint"), "{why}");
    assert_eq!(ring.serves(0, SOON).await.status.process.map(|process| process.pid), pid);
    ring.change(0, json!({"jvm": {"options": []}})).await;
    until("the restart that waited takes place", START, async || {
        let now = ring.database(0);
        if now.is_some() && now != pid { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    ring.serves(0, START).await;
    told.claim(
        "an impossible option leaves the running node alone; the restart waits for a good one",
    );

    what_the_checks_refuse(&mut ring, told).await;
    stopped_is_continued(&ring).await;
    told.claim("a stopped JVM is continued and serves on, the same process");
    deadlocked_is_restarted(&ring).await;
    told.claim("a JVM that stays silent leaves a thread dump in the log, is restarted and serves");

    restart_with(&ring, 0, json!({"jvm": {"heap": "160Mi"}}), 3).await;
    ring.serves(0, START).await;
    fill(&mut ring.cql(0), 1000);
    let mut cql = ring.cql(0);
    drop(cql.query("SELECT * FROM shop.bulk", Consistency::One));
    ended(&ring, "OutOfMemory", "java.lang.OutOfMemoryError").await;
    ring.serves(0, START).await;
    every_row_is_there(ring.address(0), &rows, Consistency::One).await;
    told.claim("a heap that is exhausted ends the process: OutOfMemory; it is started again");
    restart_with(&ring, 0, json!({"jvm": {"heap": "384Mi"}}), 4).await;
    ring.serves(0, START).await;

    full_and_freed(&ring, &volume, told).await;
    every_row_is_there(ring.address(0), &rows, Consistency::One).await;
}

fn restart_time(count: i64) -> String {
    jiff::Timestamp::from_second(1_700_000_000 + count).unwrap().to_string()
}

/// Changes a Pilot and asks for a restart of its database: the `count`th.
async fn restart_with(ring: &Ring, index: usize, mut spec: Value, count: i64) {
    spec["restartedAt"] = json!(restart_time(count));
    let pid = ring.database(index);
    ring.change(index, spec).await;
    until("the old process ends", START, async || {
        let now = ring.database(index);
        if now == pid { Err(format!("{now:?}")) } else { Ok(()) }
    })
    .await;
}

/// Waits for the end of a process, by its reason and a line of its log.
async fn ended(ring: &Ring, reason: &str, line: &str) {
    ring.shows(0, &format!("it ended: {reason}"), START, |pilot| {
        let ended = pilot.status.last_termination.as_ref()?;
        let told = ended.log_tail.iter().any(|text| text.contains(line));
        (told && ended.reason.as_deref() == Some(reason)).then_some(())
    })
    .await;
}

async fn stopped_is_continued(ring: &Ring) {
    let pid = ring.database(0).unwrap();
    signal(pid, Signal::SIGSTOP);
    ring.says(0, "Ready", ("False", "ProcessHung"), HANG).await;
    let pilot = ring.serves(0, HANG).await;
    assert_eq!(pilot.status.process.map(|process| process.pid), Some(pid));
    assert_eq!(ring.seat(0).gauge("navigator_pilot_process_hangs_total"), Some(1.0));
}

/// Takes every thread that could answer the pilot, and cuts clients off, whose answers would prove
/// life, as a deadlock in the JVM would.
async fn deadlocked_is_restarted(ring: &Ring) {
    let pid = ring.database(0).unwrap();
    let address = ring.address(0).to_string();
    let clients = Wall::before(port::CQL, &[&["INPUT", "-d", &address]]);
    let held: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = TcpStream::connect((ring.address(0), jolokia::PORT)).unwrap();
            stream.write_all(b"POST /jolokia/ HTTP/1.1\r\n").unwrap();
            stream
        })
        .collect();
    ring.says(0, "Ready", ("False", "ProcessHung"), HANG).await;
    until("the hung process is ended", HANG, async || {
        let now = ring.database(0);
        if now == Some(pid) { Err(format!("{now:?}")) } else { Ok(()) }
    })
    .await;
    drop((held, clients));
    ring.serves(0, START).await;
    assert!(ring.running(0).log().contains("Full thread dump"), "no thread dump in the log");
}

async fn full_and_freed(ring: &Ring, volume: &Tmpfs, told: &Told) {
    let writer = Writer::start(vec![ring.address(0)], 1_000_000, Consistency::One);
    writer.writes(100).await;
    volume.fill();
    // Cassandra notices when it needs another block, for a flushed memtable or a segment of its
    // log.
    let mut more = 0;
    let why = until("the full volume is noticed", HANG, async || {
        if let Ok(mut cql) = crate::cql::Cql::try_connect(ring.address(0)) {
            more += 10;
            drop(super::client::try_fill(&mut cql, 10_000 + more - 10, 10_000 + more));
        }
        let pilot = ring.pilot(0).await;
        let ready = condition(&pilot, "Ready").map(|(_, reason, message)| (reason, message));
        match ready {
            Some(("DiskFull", message)) => Ok(message.to_owned()),
            _ => Err(format!("{ready:?} {:?}", pilot.status.last_termination)),
        }
    })
    .await;
    told.note(&format!("Ready: DiskFull: {why}"));
    let (rows, failed) = writer.stop();
    told.note(&format!("{} rows acknowledged, {failed} writes failed", rows.len()));
    told.claim("a full volume is told: DiskFull, and what to do");
    volume.free();
    ring.serves(0, SOON + START).await;
    every_row_is_there(ring.address(0), &rows, Consistency::One).await;
    told.claim("with space again it serves by itself, with every acknowledged row");
}
