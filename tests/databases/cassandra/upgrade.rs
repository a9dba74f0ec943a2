//! From one release to the next, node by node, on the same volumes.

use serde_json::json;

use super::{
    VERSION as NEW,
    client::{Writer, every_row_is_there, make_shop},
    ring::{Ring, SOON, START},
};
use crate::{cql::Consistency, host::home, report::Told};

const OLD: &str = "4.1.10";

pub(crate) async fn node_by_node_to_the_next_major_version(told: &Told) {
    let mut ring = Ring::new(OLD, 9, json!({})).await;
    ring.grow(2).await;
    let ids = ring.is_one(&[0, 1]).await;
    make_shop(&mut ring.cql(0), 2).await;
    let writer = Writer::start(vec![ring.address(0)], 0, Consistency::Quorum);
    writer.writes(300).await;
    let (rows, _) = writer.stop();
    told.claim(format!("two nodes of {OLD} and {} rows", rows.len()));

    for node in [0, 1] {
        replace(&mut ring, node, NEW).await;
        let pilot = ring.serves(node, START).await;
        assert_eq!(pilot.status.version.as_deref(), Some(NEW));
        // The other node may still run the version before.
        assert_eq!(ring.is_one(&[0, 1]).await, ids);
        every_row_is_there(ring.address(node), &rows, Consistency::Quorum).await;
        // Nodes of two releases have schemas of their own for as long as the upgrade takes.
        for other in [0, 1] {
            ring.bed.two_reports(ring.name(other)).await;
            let blockers = ring.pilot(other).await.status.blockers;
            let held = blockers.iter().find(|blocker| blocker.predicate == "SchemaAgreement");
            assert!(held.is_none(), "{other}: {held:?}");
        }
        told.claim(format!("node {node} on {NEW}: the same ring, and every row is there"));
    }

    replace(&mut ring, 1, OLD).await;
    let why = ring.says(1, "PreflightPassed", ("False", "IdentityMismatch"), SOON).await;
    assert!(why.contains(NEW) && why.contains("4.1,") && why.contains("cannot read"), "{why}");
    assert_eq!(ring.database(1), None);
    told.claim(format!("back to {OLD}: refused before anything is started, with both versions"));
    replace(&mut ring, 1, NEW).await;
    ring.serves(1, START).await;
    assert_eq!(ring.is_one(&[0, 1]).await, ids);
    every_row_is_there(ring.address(1), &rows, Consistency::Quorum).await;
    told.claim("and the version set again: the node is back");
}

/// As the controller does it: the Pilot is told the version, and the pod comes back with it.
async fn replace(ring: &mut Ring, node: usize, version: &str) {
    ring.change(node, json!({"version": version})).await;
    ring.stop(node).await;
    ring.all[node].seat.home = home("cassandra", version);
    ring.start(node);
}
