//! Two of three nodes are lost with their data: both are replaced from the one that is left.

use serde_json::json;

use super::{
    VERSION,
    client::{Writer, every_row_is_there, make_shop},
    ring::{JOIN, Ring},
};
use crate::{cql::Consistency, report::Told};

pub(crate) async fn two_of_three_nodes_are_lost_and_replaced(told: &Told) {
    let mut ring = Ring::new(VERSION, 28, json!({})).await;
    ring.grow(3).await;
    ring.is_one(&[0, 1, 2]).await;
    make_shop(&mut ring.cql(0), 3).await;
    let writer = Writer::start(vec![ring.address(0)], 0, Consistency::All);
    writer.writes(300).await;
    let (rows, _) = writer.stop();
    told.claim(format!("three nodes are a ring, with three copies of {} rows", rows.len()));
    for node in [1, 2] {
        ring.kill(node).await;
        ring.lose(node);
    }
    ring.start(1);
    ring.start(2);
    for node in [1, 2] {
        ring.serves(node, JOIN).await;
    }
    ring.is_one(&[0, 1, 2]).await;
    every_row_is_there(ring.address(1), &rows, Consistency::All).await;
    told.claim(
        "two are lost with their volumes: empty ones take their places, and every row is there",
    );
}
