//! The oldest releases that are run: found, join, return, leave.

use navigator::databases::cassandra::v1beta1::CassandraNode;
use serde_json::json;

use super::{
    client::{Writer, every_row_is_there, make_shop, on_it_alone, set_factor},
    ring::{JOIN, Ring, START},
};
use crate::{cql::Consistency, report::Told};

pub(crate) async fn older_releases_found_join_and_return(told: &Told) {
    for (version, net) in [("4.0.19", 5), ("4.1.10", 6)] {
        let mut ring = Ring::new(version, net, json!({})).await;
        ring.grow(1).await;
        make_shop(&mut ring.cql(0), 2).await;
        let writer = Writer::start(vec![ring.address(0)], 0, Consistency::One);
        writer.writes(300).await;
        let (rows, _) = writer.stop();
        told.claim(format!("{version}: a node founds"));
        ring.grow(1).await;
        ring.is_one(&[0, 1]).await;
        let status = ring.pilot(1).await.status.part::<CassandraNode>().unwrap();
        let received = status.bootstrap_bytes_received;
        assert!(received.unwrap_or_default() > 0, "it received {received:?}");
        every_row_is_there(ring.address(1), &rows, Consistency::One).await;
        told.claim(format!("{version}: another joins and receives its share"));
        let before = ring.id(1).await;
        ring.stop(1).await;
        ring.start(1);
        let pilot = ring.serves(1, START).await;
        assert_eq!(pilot.status.version.as_deref(), Some(version));
        assert_eq!(ring.id(1).await, before);
        ring.is_one(&[0, 1]).await;
        every_row_is_there(ring.address(1), &rows, Consistency::One).await;
        told.claim(format!("{version}: a stopped node returns as itself"));
        // Right before it leaves: 4.1 once failed to stream to a node that had not heard of it.
        set_factor(&mut ring.cql(1), 1);
        let writer = Writer::start(vec![ring.address(0)], 1_000, Consistency::One);
        writer.writes(300).await;
        let (later, _) = writer.stop();
        let alone = on_it_alone(&ring, 1, &later);
        assert!(alone.len() > 20, "only {} rows are on the node that leaves alone", alone.len());
        ring.change(1, json!({"phase": "Decommissioned"})).await;
        ring.says(1, "Decommissioned", ("True", "NodeDecommissioned"), JOIN).await;
        ring.is_one(&[0]).await;
        let all = rows.union(&later).copied().collect();
        every_row_is_there(ring.address(0), &all, Consistency::One).await;
        told.claim(format!(
            "{version}: it leaves, and every row is on the other, also {} that it alone had",
            alone.len()
        ));
    }
}
