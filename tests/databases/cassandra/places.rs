//! A node that lost its volume takes the place of its former self; older releases of Cassandra;
//! founding again and again.

use std::fs;

use serde_json::json;

use super::{
    VERSION,
    client::{Writer, every_row_is_there, make_shop},
    ring::{JOIN, Ring, SOON, START},
};
use crate::{cql::Consistency, report::Told};

pub(crate) async fn a_lost_volume_is_replaced(told: &Told) {
    let mut ring = Ring::new(VERSION, 4, json!({})).await;
    ring.form(2).await;
    ring.is_one(&[0, 1]).await;
    make_shop(&mut ring.cql(0), 2).await;
    let writer = Writer::start(vec![ring.address(0)], 0, Consistency::Quorum);
    writer.writes(500).await;
    let (rows, _) = writer.stop();
    let tokens = tokens(&ring).await;

    // Under another address, as a new pod would have it.
    let address = [127, 31, 4, 9];
    let before = ring.id(1).await.unwrap();
    ring.kill(1);
    let data = ring.data(1);
    fs::remove_dir_all(&data).unwrap();
    fs::create_dir(&data).unwrap();
    ring.hosts[1].seat.address = address.into();
    ring.start(1);
    let pilot = ring.serves(1, JOIN).await;
    let ids = ring.is_one(&[0, 1]).await;
    assert!(!ids.contains(&before), "{ids:?} still has {before}");
    let received = pilot.status.cassandra.unwrap().bootstrap_bytes_received;
    assert!(received.unwrap_or_default() > 0, "it received {received:?}");
    assert_eq!(self::tokens(&ring).await, tokens, "it has its predecessor's tokens");
    every_row_is_there(ring.address(1), &rows, Consistency::Quorum).await;
    told.claim(format!(
        "an empty node at {}.{}.{}.{} takes the place, the tokens and the rows of its former self",
        address[0], address[1], address[2], address[3]
    ));
    ring.shows(0, "the former self is not missed", SOON, |pilot| {
        let green = pilot.status.health.as_ref().is_some_and(|it| it.to_string() == "Green");
        (green && pilot.status.blockers.is_empty()).then_some(())
    })
    .await;
    told.claim("the other node is Green and names no blocker");
}

/// Tokens of the second node as the first one knows them.
async fn tokens(ring: &Ring) -> i32 {
    ring.pilot(1).await.status.cassandra.and_then(|it| it.tokens).unwrap_or_default()
}

pub(crate) async fn older_releases_found_join_and_return(told: &Told) {
    for (version, net) in [("4.0.19", 5), ("4.1.10", 6)] {
        let mut ring = Ring::new(version, net, json!({})).await;
        ring.form(2).await;
        ring.is_one(&[0, 1]).await;
        make_shop(&mut ring.cql(0), 2).await;
        let writer = Writer::start(vec![ring.address(0)], 0, Consistency::Quorum);
        writer.writes(300).await;
        let (rows, _) = writer.stop();
        told.claim(format!("{version}: a node founds, another joins"));
        let before = ring.id(1).await;
        ring.stop(1).await;
        ring.start(1);
        let pilot = ring.serves(1, START).await;
        assert_eq!(pilot.status.version.as_deref(), Some(version));
        assert_eq!(ring.id(1).await, before);
        ring.is_one(&[0, 1]).await;
        every_row_is_there(ring.address(1), &rows, Consistency::Quorum).await;
        told.claim(format!("{version}: a stopped node returns as itself"));
        super::client::set_factor(&mut ring.cql(1), 1);
        ring.change(1, json!({"phase": "Decommissioned"})).await;
        ring.says(1, "Decommissioned", ("True", "NodeDecommissioned"), JOIN).await;
        ring.is_one(&[0]).await;
        every_row_is_there(ring.address(0), &rows, Consistency::One).await;
        told.claim(format!("{version}: it leaves, and every row is on the other"));
    }
}

pub(crate) async fn three_nodes_found_one_ring_every_time(told: &Told) {
    for round in 1..=2 {
        let mut ring = Ring::new(VERSION, 6 + round, json!({})).await;
        ring.form(3).await;
        super::life::found_once(&ring).await;
        told.claim(format!("round {round}: three nodes started at once are one ring"));
    }
}
