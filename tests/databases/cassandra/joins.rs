//! Joins that are cut off: each ends in a member, on the volume on which it was begun.

use navigator::{api::v1beta1::Pilot, databases::cassandra::v1beta1::CassandraNode};
use serde_json::json;

use super::{
    VERSION,
    client::{every_write_is_synced, fill, make_shop},
    ring::{JOIN, Ring, START},
};
use crate::{report::Told, support::bed::condition};

/// Rows of 256 KiB in all: a join streams for half a minute.
const BULK: i32 = 240;

pub(crate) async fn joins_that_are_cut_off_begin_anew(told: &Told) {
    for (version, net) in [(VERSION, 21), ("4.1.10", 22)] {
        let mut spec = every_write_is_synced();
        spec["config"]["stream_throughput_outbound"] = json!("1MiB/s");
        spec["config"]["entire_sstable_stream_throughput_outbound"] = json!("1MiB/s");
        let mut ring = Ring::new(version, net, spec).await;
        ring.grow(1).await;
        make_shop(&mut ring.cql(0), 1).await;
        fill(&mut ring.cql(0), BULK);

        let joiner = ring.add().await;
        ring.start(joiner);
        receives(&ring, joiner).await;
        ring.kill(joiner).await;
        let pilot = ring.pilot(joiner).await;
        assert_eq!(pilot.status.part::<CassandraNode>().unwrap().joined, Some(false));
        ring.start(joiner);
        ring.serves(joiner, JOIN).await;
        ring.is_one(&[0, joiner]).await;
        assert_eq!(ring.cql(joiner).count("shop.bulk"), i64::from(BULK));
        told.claim(format!("{version}: a node that is killed as it joins begins anew and joins"));

        let joiner = ring.add().await;
        ring.start(joiner);
        receives(&ring, joiner).await;
        ring.kill(0).await;
        ring.start(0);
        ring.shows(joiner, "the failed join is told", JOIN, |pilot| {
            let ended = pilot.status.last_termination.as_ref()?;
            (ended.reason.as_deref() == Some("JoinFailed")).then_some(())
        })
        .await;
        ring.serves(0, START).await;
        ring.serves(joiner, JOIN + JOIN).await;
        ring.is_one(&[0, 1, joiner]).await;
        assert_eq!(ring.cql(joiner).count("shop.bulk"), i64::from(BULK));
        told.claim(format!("{version}: a join whose source dies fails, is told, and begins anew"));
    }
}

/// Waits until the running process has received a part of its data.
async fn receives(ring: &Ring, index: usize) {
    let some = |pilot: &Pilot| {
        let process = pilot.status.process.as_ref().map(|process| process.pid);
        let (_, reason, _) = condition(pilot, "Ready")?;
        let this = process.is_some() && process == ring.database(index);
        let received = pilot.status.part::<CassandraNode>()?.bootstrap_bytes_received?;
        (this && reason == "Joining" && received > 1 << 20).then_some(())
    };
    ring.shows(index, "a part of its data has come", JOIN, some).await;
}
