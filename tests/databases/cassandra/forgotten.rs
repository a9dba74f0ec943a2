//! A node that is lost for good with its data: the ring forgets it when one pilot is told to.

use navigator::api::v1beta1::{ForgetPhase, NodeChange};
use serde_json::json;

use super::{
    VERSION,
    client::{Writer, every_row_is_there, every_write_is_synced, make_shop},
    ring::{JOIN, Ring, SOON},
};
use crate::{cql::Consistency, report::Told};

pub(crate) async fn a_lost_node_is_forgotten(told: &Told) {
    let mut ring = Ring::new(VERSION, 26, every_write_is_synced()).await;
    ring.grow(3).await;
    ring.is_one(&[0, 1, 2]).await;
    make_shop(&mut ring.cql(0), 3).await;
    let nodes = vec![ring.address(0), ring.address(1)];
    let writer = Writer::start(nodes.clone(), 0, Consistency::Quorum);
    writer.writes(300).await;
    let lost = ring.id(2).await.unwrap();
    told.claim("three nodes are a ring, with three copies of each row");

    ring.change(0, json!({"forget": [lost]})).await;
    let why = answered(&ring, 0, &lost, ForgetPhase::Refused).await;
    assert!(why.contains("is up"), "{why}");
    ring.change(0, json!({"forget": []})).await;
    ring.shows(0, "no answer", SOON, |pilot| pilot.status.forgotten.is_empty().then_some(())).await;
    ring.is_one(&[0, 1, 2]).await;
    told.claim("a node that is up is not forgotten: Refused, with the reason");

    ring.kill(2).await;
    ring.lose(2);
    missed(&ring, 1).await;
    told.claim("killed for good and missed: PeersUp speaks against Stop, Join and Leave");
    ring.change(1, json!({"forget": [lost]})).await;
    answered(&ring, 1, &lost, ForgetPhase::Forgotten).await;
    ring.is_one(&[0, 1]).await;
    for node in [0, 1] {
        ring.shows(node, "it misses nothing", SOON, |pilot| {
            pilot.status.blockers.iter().all(|one| one.predicate != "PeersUp").then_some(())
        })
        .await;
    }
    told.claim("asked of another node's pilot, the ring has two members and misses none");

    writer.writes(200).await;
    let (rows, failed) = writer.stop();
    told.note(&format!("{} rows acknowledged at QUORUM, {failed} writes failed", rows.len()));
    for node in nodes {
        every_row_is_there(node, &rows, Consistency::Quorum).await;
    }
    told.claim("every row that was acknowledged at QUORUM is there");
    refused_and_taken_back(&ring, told).await;
}

async fn refused_and_taken_back(ring: &Ring, told: &Told) {
    ring.change(1, json!({"phase": "Decommissioned"})).await;
    let why = ring
        .shows(1, "its departure is refused", SOON, |pilot| {
            let mut all = pilot.status.blockers.iter();
            let refused = all.find(|one| one.predicate == "ReplicationFactor")?;
            assert_eq!(refused.against, [NodeChange::Leave]);
            Some(refused.message.clone())
        })
        .await;
    assert!(why.contains("keyspace shop has replication factor 3"), "{why}");
    ring.change(1, json!({"phase": "Running"})).await;
    ring.shows(1, "nothing is refused", SOON, |pilot| {
        pilot.status.blockers.iter().all(|one| one.predicate != "ReplicationFactor").then_some(())
    })
    .await;
    told.claim(
        "a departure below the factor is refused by a blocker against Leave, until taken back",
    );
}

async fn missed(ring: &Ring, node: usize) {
    let all = [NodeChange::Stop, NodeChange::Join, NodeChange::Leave];
    ring.shows(node, "a member is missed", SOON, |pilot| {
        let mut blockers = pilot.status.blockers.iter();
        blockers.find(|one| one.predicate == "PeersUp" && one.against == all).map(drop)
    })
    .await;
}

/// Waits for an answer about a node that is to be forgotten; returns its message.
async fn answered(ring: &Ring, node: usize, lost: &str, phase: ForgetPhase) -> String {
    ring.shows(node, &format!("{lost} is {phase}"), JOIN, |pilot| {
        let answer = pilot.status.forgotten.iter().find(|one| one.node_id == lost)?;
        (answer.phase == phase).then(|| answer.message.clone().unwrap_or_default())
    })
    .await
}
