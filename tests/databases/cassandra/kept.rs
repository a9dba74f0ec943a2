//! The cluster object is deleted and made again: with all volumes kept, with some, with one that
//! belongs to another ring, and with none.

use std::collections::BTreeSet;

use serde_json::json;

use super::{
    VERSION,
    client::{Writer, every_row_is_there, make_shop},
    ring::{JOIN, Ring, SOON, START},
};
use crate::{cql::Consistency, report::Told, support::bed::condition};

/// Third byte of the addresses of the hosts.
const NET: u8 = 20;

pub(crate) async fn a_cluster_is_made_again_on_all_some_and_none_of_its_volumes(told: &Told) {
    let mut ring = Ring::new(VERSION, NET, json!({})).await;
    ring.grow(2).await;
    let ids = ring.is_one(&[0, 1]).await;
    let record = recorded(&ring).await;
    make_shop(&mut ring.cql(0), 2).await;
    let writer = Writer::start(vec![ring.address(0), ring.address(1)], 0, Consistency::All);
    writer.writes(300).await;
    let (rows, _) = writer.stop();

    ring.make_again(&[0, 1]).await;
    for index in [0, 1] {
        ring.start(index);
    }
    for index in [0, 1] {
        ring.serves(index, START).await;
    }
    assert_eq!(ring.is_one(&[0, 1]).await, ids);
    assert_eq!(recorded(&ring).await, record);
    every_row_is_there(ring.address(0), &rows, Consistency::All).await;
    told.claim("made again on all its volumes, it is the same ring with every row");

    some(&mut ring, &rows, &ids, told).await;
    another(&mut ring, &record, told).await;

    let lost = recorded(&ring).await;
    ring.make_again(&[0, 1]).await;
    for index in [0, 1] {
        ring.lose(index);
        ring.start(index);
    }
    for index in [0, 1] {
        ring.serves(index, JOIN).await;
    }
    ring.is_one(&[0, 1]).await;
    assert_ne!(recorded(&ring).await, lost);
    told.claim("made again on none of its volumes, it is founded once, as another ring");
}

/// The first node's volume is lost; it starts first, and alone.
async fn some(ring: &mut Ring, rows: &BTreeSet<i32>, ids: &BTreeSet<String>, told: &Told) {
    let (record, kept) = (recorded(ring).await, ring.id(1).await.unwrap());
    let tokens = ring.tokens(0);
    ring.make_again(&[0, 1]).await;
    ring.lose(0);
    ring.start(0);
    ring.shows(0, "it waits for the one with data", SOON, |pilot| {
        let (_, _, why) = condition(pilot, "Ready")?;
        why.contains("waits for cass-demo-a-1 to say").then_some(())
    })
    .await;
    assert_eq!(ring.database(0), None, "it founds nothing");
    ring.start(1);
    ring.serves(1, START).await;
    ring.serves(0, JOIN).await;
    let now = ring.is_one(&[0, 1]).await;
    assert!(now.contains(&kept), "{now:?} of {ids:?}");
    assert_eq!(ring.tokens(0), tokens, "it has its predecessor's tokens");
    assert_eq!(recorded(ring).await, record);
    for index in [0, 1] {
        ring.shows(index, "nobody is missed", SOON, |pilot| {
            let green = pilot.status.health.as_ref().is_some_and(|it| it.to_string() == "Green");
            (green && pilot.status.blockers.is_empty()).then_some(())
        })
        .await;
    }
    every_row_is_there(ring.address(0), rows, Consistency::All).await;
    told.claim(
        "made again on some of its volumes, it is the same ring: the node with data starts first, \
         the empty one founds nothing and takes the place and tokens of its former self; every \
         row is there at ALL",
    );
}

/// A new ring was founded while no pilot reported for the second volume.
async fn another(ring: &mut Ring, former: &str, told: &Told) {
    ring.make_again(&[0]).await;
    ring.lose(0);
    ring.start(0);
    ring.serves(0, START).await;
    let present = recorded(ring).await;
    assert_ne!(present, former);
    ring.create(1).await;
    ring.start(1);
    let why = ring.says(1, "PreflightPassed", ("False", "IdentityMismatch"), SOON).await;
    for part in [former, &present, "delete claim cassandra-data-cass-demo-a-1", "adopt-data=true"] {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert_eq!(ring.database(1), None, "it is not started");
    ring.is_one(&[0]).await;
    told.claim("a volume of another ring is refused; the condition names both rings and both ways");

    ring.stop(1).await;
    ring.lose(1);
    ring.start(1);
    ring.serves(1, JOIN).await;
    ring.is_one(&[0, 1]).await;
    told.claim("wiped, it joins as an empty node");
}

/// Id of the ring on record.
async fn recorded(ring: &Ring) -> String {
    let lease = ring.bed.leases().get("cassandra-demo-leaderelection").await.unwrap();
    lease.spec.founder.expect("the ring is recorded").id
}
