//! Three nodes started at once are always exactly one cluster.

use serde_json::json;

use super::{
    ensemble::{Ensemble, STOP},
    writer::Writer,
};
use crate::report::Told;

/// The life of a cluster in each version: founded, written to, one node leaves and a fresh one
/// comes in its place, a member is restarted.
pub(crate) async fn one_version(version: &'static str, told: &Told) {
    let mut ensemble = Ensemble::new(version, 3).await;
    ensemble.start_all();
    let cluster = ensemble.settled(&[0, 1, 2]).await;
    told.claim(format!("{version}: three nodes started at once are one cluster"));

    ensemble.index(0, 3, 1).await;
    ensemble.green(0).await;
    let writer = Writer::new(&ensemble, 0);
    let leaves = async {
        ensemble.bed.change(ensemble.name(2), json!({"phase": "Decommissioned"})).await;
        ensemble.left(2).await;
        writer.stop();
    };
    futures::join!(writer.run(), leaves);
    assert_eq!(ensemble.settled(&[0, 1]).await, cluster);
    let (documents, refused) = writer.check().await;
    assert_eq!(refused, 0, "writes were refused while a node left");
    told.claim(format!(
        "{version}: a node leaves while a client writes; all {documents} documents are there"
    ));

    // The controller removes the Pilot, the volume and the pod; later it wants the node again.
    let node = ensemble.nodes.pop().unwrap();
    assert_eq!(node.running.unwrap().stop(STOP).await, 0);
    ensemble.bed.delete(&node.seat.name).await;
    std::fs::remove_dir_all(&node.seat.place).unwrap();
    ensemble.add(2).await;
    ensemble.start(2);
    assert_eq!(ensemble.settled(&[0, 1, 2]).await, cluster);
    ensemble.green(0).await;
    told.claim(format!("{version}: a fresh node of the same name takes its place"));

    let pilot = ensemble.nodes[1].running.take().unwrap();
    assert_eq!(pilot.stop(STOP).await, 0);
    ensemble.start(1);
    assert_eq!(ensemble.settled(&[0, 1, 2]).await, cluster);
    ensemble.green(0).await;
    writer.check().await;
    told.claim(format!("{version}: a member that was stopped rejoins, and nothing is lost"));
}

/// Founded again and again from nothing.
pub(crate) async fn many_foundings(rounds: u32, told: &Told) {
    let mut clusters = std::collections::BTreeSet::new();
    for _ in 0..rounds {
        let mut ensemble = Ensemble::new("7.17.29", 3).await;
        ensemble.start_all();
        clusters.insert(ensemble.settled(&[0, 1, 2]).await);
        for node in 0..3 {
            ensemble.kill(node).await;
        }
    }
    assert_eq!(clusters.len(), usize::try_from(rounds).unwrap());
    told.claim(format!("{rounds} times three nodes started at once: one cluster each time"));
}
