//! From one major version to the next, node by node, on the same volumes.

use http::Method;
use serde_json::json;

use super::{ensemble::Ensemble, writer::Writer};
use crate::{host::home, report::Told};

/// The oldest way that Elasticsearch itself supports: 6.8 to 7.17 to 8.19.
pub(crate) async fn node_by_node_over_two_major_versions(told: &Told) {
    let mut ensemble = Ensemble::new("6.8.23", 3).await;
    ensemble.start_all();
    let cluster = ensemble.settled(&[0, 1, 2]).await;
    ensemble.index(0, 3, 1).await;
    ensemble.green(0).await;
    // Types are gone in 8: these documents have to come through as well.
    let writer = Writer::new(&ensemble, 0);
    for _ in 0..100 {
        writer.write().await;
    }

    for version in ["7.17.29", "8.19.4"] {
        // Version 8 reads indices of 7 only; a user makes them anew before, as for any
        // Elasticsearch.
        if version.starts_with('8') {
            reindex(&ensemble).await;
        }
        for node in 0..3 {
            replace(&mut ensemble, node, version).await;
            assert_eq!(ensemble.settled(&[0, 1, 2]).await, cluster);
            ensemble.green(node).await;
        }
        let (documents, _) = writer.check().await;
        told.claim(format!(
            "to {version}, node by node: the same cluster, and all {documents} documents are there"
        ));
    }

    let back = "7.17.29";
    replace(&mut ensemble, 2, back).await;
    ensemble.told(2, "PreflightPassed", "False", "IdentityMismatch", "8.19.4").await;
    assert_eq!(ensemble.database(2), None);
    told.claim(format!("back to {back}: refused before anything is started, with both versions"));
    replace(&mut ensemble, 2, "8.19.4").await;
    assert_eq!(ensemble.settled(&[0, 1, 2]).await, cluster);
    ensemble.green(0).await;
    told.claim("and the version set again: the node is back");
}

/// As the controller does it: the Pilot is told the version, and the pod comes back with it.
async fn replace(ensemble: &mut Ensemble, node: usize, version: &'static str) {
    ensemble.bed.change(ensemble.name(node), json!({"version": version})).await;
    ensemble.stop(node).await;
    ensemble.all[node].seat.home = home("elasticsearch", version);
    ensemble.start(node);
}

/// The same documents in an index that version 7 made, under the same name. By hand: the
/// module of `_reindex` is not in what these tests run.
async fn reindex(ensemble: &Ensemble) {
    let settings = json!({"settings": {"number_of_shards": 3, "number_of_replicas": 1}});
    ensemble.ask(0, Method::PUT, "/orders-7", Some(&settings)).await;
    ensemble.ask(0, Method::POST, "/orders/_refresh", None).await;
    let found = ensemble.ask(0, Method::GET, "/orders/_search?size=10000", None).await;
    for document in found["hits"]["hits"].as_array().unwrap() {
        let path = format!("/orders-7/_doc/{}", document["_id"].as_str().unwrap());
        ensemble.ask(0, Method::PUT, &path, Some(&document["_source"])).await;
    }
    let swap = json!({"actions": [
        {"remove_index": {"index": "orders"}},
        {"add": {"index": "orders-7", "alias": "orders"}},
    ]});
    ensemble.ask(0, Method::POST, "/_aliases", Some(&swap)).await;
}
