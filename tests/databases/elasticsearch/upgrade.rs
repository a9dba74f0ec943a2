//! From one major version to the next, node by node, on the same volumes.

use http::Method;
use serde_json::json;

use super::{
    ensemble::{Ensemble, environment},
    writer::Writer,
};
use crate::{host::home, report::Told};

/// From 6.8 to 7.17 to 8.19 to 9.5.
pub(crate) async fn node_by_node_over_three_major_versions(told: &Told) {
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

    let mut index = "orders".to_owned();
    for version in ["7.17.29", "8.19.4", "9.5.0"] {
        // Version 8 reads indices of 7 only, and 9 those of 8; a user makes them anew before, as
        // for any Elasticsearch.
        if !version.starts_with('7') {
            index = reindex(&ensemble, &index, version).await;
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

    let back = "8.19.4";
    replace(&mut ensemble, 2, back).await;
    ensemble.told(2, "PreflightPassed", "False", "IdentityMismatch", "9.5.0").await;
    assert_eq!(ensemble.database(2), None);
    told.claim(format!("back to {back}: refused before anything is started, with both versions"));
    replace(&mut ensemble, 2, "9.5.0").await;
    assert_eq!(ensemble.settled(&[0, 1, 2]).await, cluster);
    ensemble.green(0).await;
    told.claim("and the version set again: the node is back");
}

/// As the controller does it: the Pilot is told the version, and the pod comes back with it.
async fn replace(ensemble: &mut Ensemble, node: usize, version: &'static str) {
    ensemble.bed.change(ensemble.name(node), json!({"version": version})).await;
    ensemble.stop(node).await;
    let seat = &mut ensemble.all[node].seat;
    (seat.home, seat.env) = (home("elasticsearch", version), environment(version));
    ensemble.start(node);
}

/// The same documents in an index that the version before `version` made, under the same name. By
/// hand: the module of `_reindex` is not in what these tests run.
async fn reindex(ensemble: &Ensemble, old: &str, version: &str) -> String {
    let new = format!("orders-before-{}", &version[..1]);
    let settings = json!({"settings": {"number_of_shards": 3, "number_of_replicas": 1}});
    ensemble.ask(0, Method::PUT, &format!("/{new}"), Some(&settings)).await;
    ensemble.ask(0, Method::POST, "/orders/_refresh", None).await;
    let found = ensemble.ask(0, Method::GET, "/orders/_search?size=10000", None).await;
    for document in found["hits"]["hits"].as_array().unwrap() {
        let path = format!("/{new}/_doc/{}", document["_id"].as_str().unwrap());
        ensemble.ask(0, Method::PUT, &path, Some(&document["_source"])).await;
    }
    let swap = json!({"actions": [
        {"remove_index": {"index": old}},
        {"add": {"index": new, "alias": "orders"}},
    ]});
    ensemble.ask(0, Method::POST, "/_aliases", Some(&swap)).await;
    new
}
