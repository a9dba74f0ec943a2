//! The cluster object is deleted and made again: with all volumes kept, with some, with one that
//! belongs to another cluster, and with none.

use http::Method;
use serde_json::json;

use super::ensemble::{Ensemble, STOP};
use crate::{
    report::Told,
    support::{bed::condition, wait::until},
};

const DOCUMENTS: usize = 100;

pub(crate) async fn a_cluster_is_made_again_on_all_some_and_none_of_its_volumes(told: &Told) {
    let mut ensemble = Ensemble::new("7.17.29", 3).await;
    ensemble.start_all();
    let cluster = ensemble.settled(&[0, 1, 2]).await;
    ensemble.index(0, 3, 1).await;
    ensemble.green(0).await;
    for id in 0..DOCUMENTS {
        let path = format!("/orders/_doc/{id}");
        ensemble.ask(0, Method::PUT, &path, Some(&json!({"id": id}))).await;
    }
    ensemble.ask(0, Method::POST, "/orders/_flush", None).await;

    ensemble.make_again(&[0, 1, 2]).await;
    ensemble.start_all();
    assert_eq!(ensemble.settled(&[0, 1, 2]).await, cluster);
    all_documents(&ensemble).await;
    told.claim("made again on all its volumes, it is the same cluster with every document");
    // A volume is lost next, and must not hold the only copy of a shard.
    ensemble.green(0).await;

    ensemble.make_again(&[0, 1, 2]).await;
    ensemble.lose(0);
    ensemble.start(0);
    ensemble
        .bed
        .shows(ensemble.name(0), "it waits for those with data", STOP, |pilot| {
            let (_, _, why) = condition(pilot, "Ready")?;
            why.contains("to say what its volume holds").then_some(())
        })
        .await;
    ensemble.start(1);
    ensemble.start(2);
    assert_eq!(ensemble.settled(&[0, 1, 2]).await, cluster);
    ensemble.green(0).await;
    all_documents(&ensemble).await;
    told.claim(
        "made again on two of three volumes, it is the same cluster: the empty node founds \
         nothing and joins; every document is there",
    );

    ensemble.make_again(&[0]).await;
    ensemble.lose(0);
    ensemble.start(0);
    assert_ne!(ensemble.settled(&[0]).await, cluster);
    ensemble.create(1).await;
    ensemble.start(1);
    let parts = "delete claim elasticsearch-data-es-demo-a-1";
    ensemble.told(1, "PreflightPassed", "False", "IdentityMismatch", parts).await;
    assert_eq!(ensemble.database(1), None);
    ensemble.kill(1).await;
    ensemble.lose(1);
    ensemble.start(1);
    let present = ensemble.settled(&[0, 1]).await;
    told.claim("a volume of another cluster is refused with the ways on; wiped, its node joins");

    ensemble.create(2).await;
    ensemble.start(2);
    ensemble.told(2, "PreflightPassed", "False", "IdentityMismatch", "ring").await;
    ensemble.make_again(&[0, 1, 2]).await;
    (0..3).for_each(|node| ensemble.lose(node));
    ensemble.start_all();
    assert_ne!(ensemble.settled(&[0, 1, 2]).await, present);
    told.claim("made again on none of its volumes, it is founded once, as another cluster");
}

async fn all_documents(ensemble: &Ensemble) {
    until("every document is there", STOP, async || {
        ensemble.try_ask(0, Method::POST, "/orders/_refresh", None).await?;
        let count = ensemble.try_ask(0, Method::GET, "/orders/_count", None).await?;
        if count["count"] == DOCUMENTS && count["_shards"]["failed"] == 0 {
            Ok(())
        } else {
            Err(count.to_string())
        }
    })
    .await;
}
