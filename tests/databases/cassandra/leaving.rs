//! Departures that are cut off half-way: by the end of the database, of pilot and database, and
//! by a pilot that is asked to end. A ring of four becomes a ring of one.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use super::{
    VERSION,
    client::{Writer, every_row_is_there, every_write_is_synced, fill, make_shop},
    ring::{JOIN, Ring, SOON, START},
};
use crate::{
    cql::Consistency,
    report::Told,
    support::{bed::condition, seat::signal},
};

/// In all, spread over the ring: the last departures stream for half a minute.
const BULK: i32 = 240;

pub(crate) async fn departures_that_are_cut_off_go_on_to_their_end(told: &Told) {
    let mut spec = every_write_is_synced();
    spec["config"]["stream_throughput_outbound"] = json!("1MiB/s");
    spec["config"]["entire_sstable_stream_throughput_outbound"] = json!("1MiB/s");
    let mut ring = Ring::new(VERSION, 2, spec).await;
    ring.form(4).await;
    ring.is_one(&[0, 1, 2, 3]).await;
    make_shop(&mut ring.cql(0), 1).await;
    fill(&mut ring.cql(0), BULK);
    told.claim("four nodes form a ring and take 60 MiB, one copy of each row");

    // The client speaks to the node that stays.
    let writer = Writer::start(vec![ring.address(0)], 0, Consistency::One);
    writer.writes(200).await;

    let half_way = begin_to_leave(&ring, 3).await;
    signal(ring.running(3).database().unwrap(), Signal::SIGKILL);
    has_left(&ring, 3).await;
    told.claim(format!("the database killed at {half_way} %: started again, and it leaves"));

    let half_way = begin_to_leave(&ring, 2).await;
    ring.kill(2);
    ring.start(2);
    has_left(&ring, 2).await;
    told.claim(format!("pilot and database killed at {half_way} %: the next pilot ends it"));

    let half_way = begin_to_leave(&ring, 1).await;
    ring.stop(1).await;
    ring.start(1);
    has_left(&ring, 1).await;
    told.claim(format!(
        "the pilot asked to end at {half_way} %: the node goes on to leave afterwards"
    ));

    writer.writes(50).await;
    let (rows, failed) = writer.stop();
    told.note(&format!("{} rows acknowledged, {failed} writes failed", rows.len()));
    every_row_is_there(ring.address(0), &rows, Consistency::One).await;
    assert_eq!(ring.cql(0).count("shop.bulk"), i64::from(BULK));
    ring.is_one(&[0]).await;
    told.claim("the last node has every acknowledged row of the whole story");

    ring.change(0, json!({"phase": "Decommissioned"})).await;
    ring.shows(0, "the last node is refused", SOON, |pilot| {
        let (_, _, why) = condition(pilot, "Decommissioned")?;
        why.contains("last node of the ring").then_some(())
    })
    .await;
    told.claim("the last node may not leave");
}

/// Asks a node to leave and waits until a part of its data has gone; returns the percentage.
async fn begin_to_leave(ring: &Ring, index: usize) -> i32 {
    ring.change(index, json!({"phase": "Decommissioned"})).await;
    moves(ring, index).await
}

async fn moves(ring: &Ring, index: usize) -> i32 {
    ring.shows(index, "a part of its data has gone", JOIN, |pilot| {
        let percent = pilot.status.decommission.as_ref()?.percent?;
        (1..100).contains(&percent).then_some(percent)
    })
    .await
}

async fn has_left(ring: &Ring, index: usize) {
    let deadline = JOIN + START + Duration::from_secs(60);
    ring.says(index, "Decommissioned", ("True", "NodeDecommissioned"), deadline).await;
    let rest: Vec<usize> = (0..index).collect();
    ring.is_one(&rest).await;
}
