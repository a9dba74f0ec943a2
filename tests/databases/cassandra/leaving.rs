//! Departures while a client writes: cut off half-way, held back for want of room, and asked
//! back too late.

use std::{fs, time::Duration};

use kube::api::{Patch, PatchParams};
use navigator::{api::v1beta1::NodeChange, databases::cassandra::v1beta1::CassandraNode};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{
    VERSION,
    client::{Writer, every_row_is_there, every_write_is_synced, fill, make_shop},
    ring::{JOIN, Ring, SOON, START},
    tmpfs::Tmpfs,
};
use crate::{
    cql::Consistency,
    report::Told,
    support::{bed::condition, seat::signal, wait::until},
};

/// Rows of 256 KiB in all, spread over the ring: a departure streams for half a minute.
const BULK: i32 = 240;
/// Mebibytes of the volume of the node that stays, and those that are left on it when it has
/// no room: within the tenth that no data of others may take, and more than a start needs.
const VOLUME: u32 = 1500;
const NO_ROOM: u64 = 130;

pub(crate) async fn departures_that_are_cut_off_go_on_to_their_end(told: &Told) {
    let (mut ring, _volume, writer) = writes(2, 3, told).await;
    cut_off_twice(&mut ring, told).await;
    forgotten_departure(&mut ring, told).await;
    all_is_there(&ring, writer, told).await;
}

pub(crate) async fn a_node_stays_where_the_rest_has_no_room(told: &Told) {
    let (mut ring, volume, writer) = writes(7, 2, told).await;
    volume.fill_up_to(NO_ROOM);
    refused_for_space(&ring, &volume, told).await;
    ended_and_begun_again(&mut ring, told).await;
    all_is_there(&ring, writer, told).await;
    ring.change(0, json!({"phase": "Decommissioned"})).await;
    refused(&ring, 0, "last node of the ring").await;
    told.claim("the last node may not leave");
}

/// A ring with data, slow to give them away, the volume of its first node, and a client that
/// speaks to that one.
async fn writes(net: u8, nodes: usize, told: &Told) -> (Ring, Tmpfs, Writer) {
    let mut spec = every_write_is_synced();
    spec["config"]["stream_throughput_outbound"] = json!("1MiB/s");
    spec["config"]["entire_sstable_stream_throughput_outbound"] = json!("1MiB/s");
    let mut ring = Ring::new(VERSION, net, spec).await;
    ring.add().await;
    let volume = Tmpfs::mount(ring.seat(0).data(), VOLUME);
    ring.start(0);
    ring.grow(nodes - 1).await;
    ring.is_one(&(0..nodes).collect::<Vec<_>>()).await;
    make_shop(&mut ring.cql(0), 1).await;
    fill(&mut ring.cql(0), BULK);
    let writer = Writer::start(vec![ring.address(0)], 0, Consistency::One);
    writer.writes(200).await;
    told.claim(format!("{nodes} nodes form a ring and take 60 MiB, one copy of each row"));
    (ring, volume, writer)
}

async fn all_is_there(ring: &Ring, writer: Writer, told: &Told) {
    writer.writes(50).await;
    let (rows, failed) = writer.stop();
    told.note(&format!("{} rows acknowledged, {failed} writes failed", rows.len()));
    every_row_is_there(ring.address(0), &rows, Consistency::One).await;
    assert_eq!(ring.cql(0).count("shop.bulk"), i64::from(BULK));
    told.claim("those that stay have every acknowledged row of the whole story");
}

async fn cut_off_twice(ring: &mut Ring, told: &Told) {
    ring.change(2, json!({"phase": "Decommissioned"})).await;
    let half_way = moves(ring, 2).await;
    ring.kill(2).await;
    ring.start(2);
    let again = moves(ring, 2).await;
    told.claim(format!(
        "pilot and database killed at {half_way} %: the next pilot makes the node leave again"
    ));
    signal(ring.database(2).unwrap(), Signal::SIGKILL);
    has_left(ring, 2).await;
    told.claim(format!("its database killed at {again} %: started once more, and it has left"));
}

/// Both of the pilot's notes of the departure are lost; Cassandra's is not.
async fn forgotten_departure(ring: &mut Ring, told: &Told) {
    ring.stop(2).await;
    let notes = ring.seat(2).data().join(".navigator");
    let (left, about) = (notes.join("left.json"), notes.join("cassandra.json"));
    let mut forgotten: Value = serde_json::from_slice(&fs::read(&about).unwrap()).unwrap();
    assert_eq!(forgotten["left"], true, "{forgotten}");
    forgotten["left"] = json!(false);
    fs::write(&about, forgotten.to_string()).unwrap();
    fs::remove_file(&left).unwrap();
    ring.start(2);
    until("Cassandra refuses to start, and that is noted", START, async || {
        let (noted, running) = (left.is_file(), ring.database(2));
        if noted && running.is_none() {
            return Ok(());
        }
        Err(format!("noted {noted}, database {running:?}\n{}", ring.running(2).tail()))
    })
    .await;
    assert!(ring.running(2).log().contains("decommissioned and will not rejoin"));
    ring.says(2, "Decommissioned", ("True", "NodeDecommissioned"), SOON).await;
    ring.is_one(&[0, 1]).await;
    ring.stop(2).await;
    told.claim("data of a node that left never serve again, also when its pilot forgot that");
}

async fn refused_for_space(ring: &Ring, volume: &Tmpfs, told: &Told) {
    let room = |used: i64, capacity: i64| capacity * 9 / 10 - used;
    ring.shows(0, "its volume has no room", SOON, |pilot| {
        let volume = pilot.status.storage.as_ref()?;
        (room(volume.used_bytes, volume.capacity_bytes) <= 0).then_some(())
    })
    .await;
    ring.change(1, json!({"phase": "Decommissioned"})).await;
    let why = refused(ring, 1, "the other nodes have room for 0 bytes").await;
    told.note(&format!("Decommissioned: False: {why}"));
    let pilot = ring.pilot(1).await;
    let refused = pilot.status.blockers.iter().find(|one| one.predicate == "SpaceElsewhere");
    assert_eq!(refused.unwrap().against, [NodeChange::Leave]);
    assert_eq!(condition(&pilot, "Ready").map(|(status, ..)| status), Some("True"));
    let mode = pilot.status.part::<CassandraNode>().and_then(|it| it.operation_mode);
    assert_eq!(mode.as_deref(), Some("NORMAL"));
    told.claim("the other node has no room for its data: it stays NORMAL, and the status says why");

    volume.free();
    moves(ring, 1).await;
    told.claim("with room again it begins to leave by itself");
    let back = Patch::Merge(json!({"spec": {"phase": "Running"}}));
    let answer = ring.bed.pilots().patch(ring.name(1), &PatchParams::default(), &back).await;
    let error = answer.expect_err("it is too late").to_string();
    assert!(error.contains("past the point of return"), "{error}");
    told.claim("once it streams it is too late to take that back: the API refuses, and says so");
}

async fn ended_and_begun_again(ring: &mut Ring, told: &Told) {
    let half_way = moves(ring, 1).await;
    ring.stop(1).await;
    ring.start(1);
    has_left(ring, 1).await;
    told.claim(format!("its pilot asked to end at {half_way} %: it goes on to leave afterwards"));
}

/// Waits until the running process has given a part of its data away; returns the percentage.
async fn moves(ring: &Ring, index: usize) -> i32 {
    ring.shows(index, "a part of its data has gone", JOIN, |pilot| {
        let process = pilot.status.process.as_ref().map(|process| process.pid);
        let percent = pilot.status.decommission.as_ref()?.percent?;
        let this = process.is_some() && process == ring.database(index);
        (this && (1..100).contains(&percent)).then_some(percent)
    })
    .await
}

/// Waits until a departure does not go on, for this reason; returns the condition's message.
async fn refused(ring: &Ring, index: usize, reason: &str) -> String {
    ring.shows(index, reason, SOON, |pilot| {
        let (status, _, why) = condition(pilot, "Decommissioned")?;
        (status == "False" && why.contains(reason)).then(|| why.to_owned())
    })
    .await
}

async fn has_left(ring: &Ring, index: usize) {
    let deadline = JOIN + START + Duration::from_secs(60);
    ring.says(index, "Decommissioned", ("True", "NodeDecommissioned"), deadline).await;
    let rest: Vec<usize> = (0..index).collect();
    ring.is_one(&rest).await;
}
