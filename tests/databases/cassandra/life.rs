//! The story of one ring, short enough for every run: three nodes are started at once, one is
//! restarted, all are lost and return, one is refused to leave and then leaves under load.

use serde_json::json;

use super::{
    VERSION,
    client::{Writer, every_row_is_there, make_shop, on_it_alone, set_factor},
    ring::{JOIN, Ring, SOON, START},
};
use crate::{
    cql::Consistency,
    report::Told,
    support::{bed::condition, ring::documented_gauges, wait::until},
};

pub(crate) async fn three_nodes_live_through_an_outage_and_one_leaves(told: &Told) {
    let mut ring = Ring::new(VERSION, 1, json!({})).await;
    ring.grow(3).await;
    found_once(&ring).await;
    told.claim("three nodes started at once are one ring of three host ids");
    every_gauge_is_heard(&ring).await;
    told.claim("every gauge that docs/metrics.md names is told by nodes that joined");
    let settings = [
        ("commit_failure_policy", "die"),
        ("disk_failure_policy", "stop"),
        ("internode_compression", "dc"),
    ];
    for (key, value) in settings {
        let asked = format!("SELECT value FROM system_views.settings WHERE name = '{key}'");
        let rows = ring.cql(0).run(&asked);
        let set = rows[0][0].clone().unwrap();
        assert_eq!(String::from_utf8_lossy(&set), value, "{key}");
    }
    told.claim("it dies of a broken commit log, and compresses what goes to other datacenters");

    make_shop(&mut ring.cql(0), 3).await;
    let nodes: Vec<_> = (0..3).map(|index| ring.address(index)).collect();
    let writer = Writer::start(nodes.clone(), 0, Consistency::Quorum);
    let before = ring.id(1).await;
    ring.stop(1).await;
    ring.start(1);
    ring.serves(1, START).await;
    assert_eq!(ring.id(1).await, before);
    ring.is_one(&[0, 1, 2]).await;
    writer.writes(100).await;
    let (rows, failed) = writer.stop();
    told.note(&format!("{} rows acknowledged, {failed} writes failed", rows.len()));
    every_row_is_there(ring.address(0), &rows, Consistency::Quorum).await;
    told.claim("a restarted node comes back as itself; a client at QUORUM goes on");

    let ids = ring.is_one(&[0, 1, 2]).await;
    for index in 0..3 {
        ring.kill(index).await;
    }
    for index in 0..3 {
        ring.start(index);
    }
    for index in 0..3 {
        ring.serves(index, START).await;
    }
    assert_eq!(ring.is_one(&[0, 1, 2]).await, ids);
    every_row_is_there(ring.address(2), &rows, Consistency::Quorum).await;
    told.claim("after kill -9 of everything the same ring is there, with every acknowledged row");

    refused_and_taken_back(&ring).await;
    told.claim("a node that replicas need is refused to leave, and stays when that is taken back");

    set_factor(&mut ring.cql(2), 1);
    leaves_under_load(&mut ring, nodes, told).await;
}

pub(super) async fn found_once(ring: &Ring) {
    let ids = ring.is_one(&[0, 1, 2]).await;
    let lease = ring.bed.leases().get("cassandra-demo-leaderelection").await.unwrap();
    let founder = lease.spec.founder.expect("somebody founded the ring").name;
    let log = |index| ring.running(index).log();
    let began: Vec<_> =
        (0..3).filter(|index| log(*index).contains("Cassandra began a ring")).collect();
    assert_eq!(began.len(), 1, "{ids:?}");
    assert_eq!(ring.name(began[0]), founder);
}

/// The two that joined received something; the third is the founder.
async fn every_gauge_is_heard(ring: &Ring) {
    until("every gauge", SOON, async || {
        let missing = |index: usize| {
            let seat = ring.seat(index);
            let gauges = documented_gauges().into_iter();
            gauges.filter(|name| seat.gauge(&format!("{name} ")).is_none()).collect::<Vec<_>>()
        };
        let missing: Vec<_> = (0..3).map(missing).collect();
        let whole = missing.iter().filter(|names| names.is_empty()).count();
        if whole == 2 { Ok(()) } else { Err(format!("{missing:?}")) }
    })
    .await;
}

async fn refused_and_taken_back(ring: &Ring) {
    ring.change(2, json!({"phase": "Decommissioned"})).await;
    let why = ring
        .shows(2, "the departure is refused", SOON, |pilot| {
            let (status, _, why) = condition(pilot, "Decommissioned")?;
            (status == "False" && why.contains("replication factor 3")).then(|| why.to_owned())
        })
        .await;
    assert!(why.contains("keyspace shop"), "{why}");
    let ready = condition(&ring.pilot(2).await, "Ready").map(|(status, ..)| status.to_owned());
    assert_eq!(ready.as_deref(), Some("True"), "it serves on");
    ring.change(2, json!({"phase": "Running"})).await;
    ring.says(2, "Decommissioned", ("False", "NotRequested"), SOON).await;
}

/// There is one copy of each row by now: what the node did not give away would be lost.
async fn leaves_under_load(ring: &mut Ring, nodes: Vec<std::net::IpAddr>, told: &Told) {
    let writer = Writer::start(nodes, 1_000_000, Consistency::One);
    writer.writes(300).await;
    let alone = on_it_alone(ring, 2, &writer.rows());
    assert!(alone.len() > 20, "only {} rows are on the node that leaves alone", alone.len());
    told.claim(format!("{} rows are on the node that is to leave, and on no other", alone.len()));
    ring.change(2, json!({"phase": "Decommissioned"})).await;
    let mut figures = Vec::new();
    ring.shows(2, "the node left the ring", JOIN, |pilot| {
        if let Some(now) = &pilot.status.decommission
            && now.irreversible
        {
            figures.push((now.percent, now.bytes_left));
        }
        let (status, ..) = condition(pilot, "Decommissioned")?;
        (status == "True").then_some(())
    })
    .await;
    assert!(figures.iter().any(|(percent, left)| percent.is_some() && left.is_some()));
    assert!(figures.is_sorted_by_key(|(percent, _)| *percent), "{figures:?}");
    assert_eq!(ring.database(2), None, "its process is gone");
    writer.writes(100).await;
    let (rows, failed) = writer.stop();
    told.note(&format!("{} rows acknowledged, {failed} writes failed", rows.len()));
    assert!(alone.is_subset(&rows));
    for index in [0, 1] {
        every_row_is_there(ring.address(index), &rows, Consistency::One).await;
    }
    told.claim("a node leaves while a client writes; every acknowledged row is there afterwards");

    ring.is_one(&[0, 1]).await;
    for index in [0, 1] {
        ring.shows(index, "the node that left is not missed", SOON, |pilot| {
            let green = pilot.status.health.as_ref().is_some_and(|it| it.to_string() == "Green");
            (green && pilot.status.blockers.is_empty()).then_some(())
        })
        .await;
        assert_eq!(ring.seat(index).gauge("navigator_cassandra_live_nodes"), Some(2.0));
        assert_eq!(ring.seat(index).gauge("navigator_cassandra_unreachable_nodes"), Some(0.0));
    }
    told.claim("the others count two nodes, are Green and name no blocker");

    // Gossip remembers a departed node for three days; a restart must not bring it back.
    ring.stop(2).await;
    ring.stop(1).await;
    ring.start(2);
    ring.start(1);
    ring.serves(1, START).await;
    ring.says(2, "Decommissioned", ("True", "NodeDecommissioned"), SOON).await;
    ring.is_one(&[0, 1]).await;
    assert_eq!(ring.database(2), None, "it is never started again");
    told.claim("the pilot of a node that left starts nothing, also after a restart");
}
