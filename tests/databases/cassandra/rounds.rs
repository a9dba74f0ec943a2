//! Rings are founded again and again, once each; in the last one a node loses its volume and
//! takes the place of its former self, at its old address and at another.

use std::collections::BTreeSet;

use navigator::databases::cassandra::v1beta1::CassandraNode;
use serde_json::json;

use super::{
    VERSION,
    client::{Writer, every_row_is_there, make_shop},
    life::found_once,
    ring::{JOIN, Ring, SOON},
};
use crate::{
    cql::Consistency,
    report::Told,
    support::{bed::condition, loopback::own},
};

/// The ring that `life` founds, in a longer scenario, is the third.
const ROUNDS: u8 = 2;
/// Third byte of the addresses of the first round's ring.
const NET: u8 = 10;

pub(crate) async fn rings_are_founded_once_and_a_lost_volume_is_replaced(told: &Told) {
    for round in 1..=ROUNDS {
        let mut ring = Ring::new(VERSION, NET + round, json!({})).await;
        ring.grow(3).await;
        found_once(&ring).await;
        told.claim(format!("round {round}: three nodes started at once are one ring"));
        if round == ROUNDS {
            a_lost_volume_is_replaced(&mut ring, told).await;
        }
    }
}

async fn a_lost_volume_is_replaced(ring: &mut Ring, told: &Told) {
    make_shop(&mut ring.cql(0), 3).await;
    let writer = Writer::start(vec![ring.address(0)], 0, Consistency::Quorum);
    writer.writes(500).await;
    let tokens = ring.tokens(1);

    let before = ring.id(1).await.unwrap();
    lose(ring, 1).await;
    missed(ring, 1).await;
    told.claim("a node is lost with its volume: the others miss it, and none of them may leave");
    ring.start(1);
    // Cassandra gives the new node the id of the one that it replaces, when the address is the
    // same.
    assert!(replaced(ring).await.contains(&before), "{before} is gone");
    assert_eq!(ring.tokens(1), tokens, "it has its predecessor's tokens");
    told.claim(
        "an empty node at the same address takes the place, id and tokens of its former self",
    );

    // The next node has another address, as a new pod would.
    let before = ring.id(1).await.unwrap();
    lose(ring, 1).await;
    ring.all[1].seat.address = own([127, 31, NET + ROUNDS, 9]);
    ring.start(1);
    assert!(!replaced(ring).await.contains(&before), "{before} is still there");
    assert_eq!(ring.tokens(1), tokens, "it has its predecessor's tokens");
    told.claim("one at another address takes place and tokens, under an id of its own");

    writer.writes(100).await;
    let (rows, failed) = writer.stop();
    told.note(&format!("{} rows acknowledged, {failed} writes failed", rows.len()));
    for index in 0..3 {
        every_row_is_there(ring.address(index), &rows, Consistency::Quorum).await;
    }
    told.claim("a client at QUORUM wrote all the while; every acknowledged row is there");
}

/// A machine and its volume are gone; an empty volume takes the old one's place.
async fn lose(ring: &mut Ring, index: usize) {
    ring.kill(index).await;
    ring.lose(index);
}

/// The first node sees that another is down, and so may not leave.
async fn missed(ring: &Ring, index: usize) {
    let address = ring.address(index).to_string();
    ring.shows(0, "the lost node is missed", SOON, |pilot| {
        let missed = |blocker: &&navigator::api::v1beta1::Blocker| {
            blocker.predicate == "PeersUp" && blocker.message.contains(&address)
        };
        pilot.status.blockers.iter().find(missed).map(drop)
    })
    .await;
    ring.change(0, json!({"phase": "Decommissioned"})).await;
    ring.shows(0, "the departure is refused", SOON, |pilot| {
        let (status, _, why) = condition(pilot, "Decommissioned")?;
        (status == "False" && why.contains("is down")).then_some(())
    })
    .await;
    ring.change(0, json!({"phase": "Running"})).await;
    ring.says(0, "Decommissioned", ("False", "NotRequested"), SOON).await;
}

/// The second node serves, and no node misses its former self. Returns the ids of the ring.
async fn replaced(ring: &mut Ring) -> BTreeSet<String> {
    let pilot = ring.serves(1, JOIN).await;
    let ids = ring.is_one(&[0, 1, 2]).await;
    let received = pilot.status.part::<CassandraNode>().and_then(|it| it.bootstrap_bytes_received);
    assert!(received.unwrap_or_default() > 0, "it received {received:?}");
    for index in [0, 2] {
        ring.shows(index, "the former self is not missed", SOON, |pilot| {
            let green = pilot.status.health.as_ref().is_some_and(|it| it.to_string() == "Green");
            (green && pilot.status.blockers.is_empty()).then_some(())
        })
        .await;
    }
    ids
}
