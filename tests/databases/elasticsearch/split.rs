//! A node that the network cuts off from the others, and lets back.

use http::Method;
use serde_json::json;

use super::{
    ensemble::{Ensemble, START},
    writer::Writer,
};
use crate::{report::Told, support::bed::condition, wall::Wall};

/// The database of the node that is cut off runs as this user: by its connections alone it
/// cannot be told from the others, since all of loopback speaks from one address.
const CUT_OFF: u32 = 9203;

pub(crate) async fn a_node_is_cut_off_and_comes_back(told: &Told) {
    let mut ensemble = Ensemble::new("7.17.29", 3).await;
    ensemble.all[2].seat.user = Some(CUT_OFF);
    ensemble.start_all();
    let cluster = ensemble.settled(&[0, 1, 2]).await;
    ensemble.index(0, 3, 1).await;
    ensemble.green(0).await;
    let writer = Writer::new(&ensemble, 0);
    for _ in 0..100 {
        writer.write().await;
    }
    let before = ensemble.database(2).unwrap();

    // Nothing reaches its transport port, and its database reaches nobody's.
    let (address, user) = (ensemble.seat(2).address.to_string(), CUT_OFF.to_string());
    let from = ["OUTPUT", "-o", "lo", "-m", "owner", "--uid-owner", &user];
    let wall = Wall::before(9300, &[&["INPUT", "-d", &address], &from]);
    ensemble
        .bed
        .shows(ensemble.name(2), "not ready without a master", START, |pilot| {
            (condition(pilot, "Ready")?.0 == "False").then_some(())
        })
        .await;
    ensemble.settled(&[0, 1]).await;
    for _ in 0..100 {
        writer.write().await;
    }
    told.claim(
        "a node cut off from the others is not Ready; the others are one cluster and take writes",
    );

    drop(wall);
    assert_eq!(ensemble.settled(&[0, 1, 2]).await, cluster);
    ensemble.green(0).await;
    let after = ensemble.database(2);
    assert_eq!(after, Some(before), "it was restarted, which mends no network");
    let (documents, _) = writer.check().await;
    let count = ensemble.ask(2, Method::GET, "/orders/_count?preference=_local", None).await;
    assert!(count["count"].is_u64(), "{count}");
    told.claim(format!(
        "the network mended: it is a member again, its process untouched; all {documents} documents are there"
    ));
    let settings = ensemble.ask(0, Method::GET, "/_cluster/settings", None).await;
    assert_eq!(settings, json!({"persistent": {}, "transient": {}}), "nothing was left behind");
}
