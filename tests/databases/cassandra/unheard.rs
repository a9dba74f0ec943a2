//! Requests to a real Cassandra's agent fail, one kind at a time and all together, while a
//! neighbour is down and while its node leaves.

use std::time::{Duration, Instant};

use navigator::{api::v1beta1::PilotPhase, pilot::clients::jolokia};
use serde_json::json;

use super::{
    VERSION,
    client::{every_write_is_synced, fill, make_shop, set_factor},
    ring::{JOIN, Ring, START},
};
use crate::{
    cql::Consistency,
    proxy::{FAULTS, Fault, Proxy},
    report::Told,
};

const LOOK: Duration = Duration::from_secs(12);
const ROWS: i32 = 40;
const NET: u8 = 40;

pub(crate) async fn what_is_not_heard_lets_nothing_go(told: &Told) {
    let mut ring = Ring::new(VERSION, NET, every_write_is_synced()).await;
    ring.add().await;
    let proxy = Proxy::before(ring.address(0), jolokia::PORT).await;
    ring.start(0);
    ring.grow(1).await;
    ring.is_one(&[0, 1]).await;
    make_shop(&mut ring.cql(0), 2).await;
    fill(&mut ring.cql(0), ROWS);
    ring.stop(1).await;
    ring.shows(0, "what holds it", START, |pilot| {
        (!pilot.status.blockers.is_empty()).then_some(())
    })
    .await;

    let asked = proxy.asked();
    let reads: Vec<_> = asked.into_iter().filter(|asked| asked.contains("\"read\"")).collect();
    assert!(!reads.is_empty(), "{:?}", proxy.asked());
    for what in reads.iter().map(String::as_str).chain([""]) {
        for fault in FAULTS {
            proxy.fail(what, fault);
            holds(&ring, what, fault).await;
            proxy.heal();
        }
    }
    told.claim(format!(
        "its neighbour is down: {} kinds of requests fail, in {} ways each: something holds the \
         node back all the while",
        reads.len(),
        FAULTS.len()
    ));

    ring.start(1);
    ring.serves(1, START).await;
    ring.serves(0, START).await;
    ring.shows(0, "nothing holds it", START, |pilot| {
        pilot.status.blockers.is_empty().then_some(())
    })
    .await;
    // With one copy of each row, one node may remain alone.
    set_factor(&mut ring.cql(0), 1);
    proxy.fail("", Fault::Unavailable);
    ring.change(0, json!({"phase": "Decommissioned"})).await;
    let began = Instant::now();
    while began.elapsed() < 3 * LOOK {
        let pilot = ring.pilot(0).await;
        let phase = pilot.status.phase;
        assert_ne!(phase, Some(PilotPhase::Decommissioned));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    proxy.heal();
    ring.bed.phase(ring.name(0), "Decommissioned", JOIN).await;
    assert_eq!(ring.cql(1).count("shop.bulk"), i64::from(ROWS));
    drop(ring.cql(1).query("SELECT * FROM shop.bulk LIMIT 1", Consistency::One).unwrap());
    told.claim(
        "asked to leave with an agent that answers nothing: it stays; heard again, it leaves",
    );
}

async fn holds(ring: &Ring, what: &str, fault: Fault) {
    let (began, process) = (Instant::now(), ring.database(0));
    while began.elapsed() < LOOK {
        let pilot = ring.pilot(0).await;
        assert!(!pilot.status.blockers.is_empty(), "{what:?} {fault:?}: {:#?}", pilot.status);
        assert_eq!(ring.database(0), process, "{what:?} {fault:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
