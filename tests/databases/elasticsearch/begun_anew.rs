//! Two of three masters are lost: the one that is left begins the cluster anew, the others follow.
//!
//! The test plays the controller: it writes `spec.unsafeBootstrap` and marks a silent Pilot.

use http::Method;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::ensemble::{Ensemble, START, STOP};
use crate::{
    report::Told,
    support::{bed::condition, wait::until},
};

const DOCUMENTS: usize = 100;
/// The masters are 0, 1 and 2.
const DATA: usize = 3;

pub(crate) async fn a_lost_quorum_is_begun_anew(version: &'static str, told: &Told) {
    let mut ensemble = Ensemble::new(version, 4).await;
    ensemble.change(DATA, json!({"elasticsearch": {"roles": ["data"]}})).await;
    ensemble.start_all();
    let cluster = ensemble.settled(&[0, 1, 2, DATA]).await;
    ensemble.index(0, 3, 3).await;
    ensemble.green(0).await;
    for id in 0..DOCUMENTS {
        let path = format!("/orders/_doc/{id}");
        ensemble.ask(0, Method::PUT, &path, Some(&json!({"id": id}))).await;
    }
    ensemble.ask(0, Method::POST, "/orders/_flush", None).await;

    let before = ensemble.databases();
    ensemble.change(0, json!({"unsafeBootstrap": cluster})).await;
    ensemble.bed.two_reports(ensemble.name(0)).await;
    assert_eq!(ensemble.databases(), before, "a node that follows a master was stopped");
    ensemble.stop(0).await;
    ensemble.start(0);
    assert_eq!(ensemble.settled(&[0, 1, 2, DATA]).await, cluster);
    ensemble.change(0, json!({"unsafeBootstrap": null})).await;
    told.claim(
        "asked in a cluster that serves, no node is stopped, and one that starts joins as before",
    );

    ensemble.green(0).await;
    ensemble.kill(1).await;
    ensemble.kill(2).await;
    ensemble.lose(1);
    ensemble.start(1);
    silent(&ensemble, 2).await;
    for node in [0, 1, DATA] {
        ensemble.told(node, "Ready", "False", "Joining", "no elected master is known").await;
    }
    let path = "/_cluster/state/version,metadata?local&filter_path=version,metadata.cluster_coordination.term";
    let state = ensemble.ask(0, Method::GET, path, None).await;
    told.claim(format!(
        "two of three masters are lost: no node serves, and one that was given up cannot join; the \
         state that is left is {state}"
    ));

    ensemble.change(0, json!({"unsafeBootstrap": cluster})).await;
    // The pilot is killed in the midst of it, and goes on.
    until("the vendor's tool is run", START, async || {
        let said = ensemble.seat(0).said();
        if said.contains("Preparing the database") { Ok(()) } else { Err(String::new()) }
    })
    .await;
    ensemble.kill(0).await;
    ensemble.start(0);
    let anew = ensemble.settled(&[0, 1, DATA]).await;
    assert_ne!(anew, cluster);
    all_documents(&ensemble).await;
    told.claim(
        "asked by the id of its cluster, the node that is left begins it anew, through a kill of \
         its pilot; a data node is detached and joins, an empty one joins; every document is there",
    );

    ensemble.start(2);
    assert_eq!(ensemble.settled(&[0, 1, 2, DATA]).await, anew);
    ensemble.green(0).await;
    all_documents(&ensemble).await;
    told.claim("a lost master that comes back with its volume is detached, and joins");

    ensemble.stop_all().await;
    ensemble.start_all();
    assert_eq!(ensemble.settled(&[0, 1, 2, DATA]).await, anew);
    all_documents(&ensemble).await;
    told.claim("the request still stands in the Pilot, and all nodes restart as the same cluster");
}

/// Marks the Pilot of a pilot that does not report, as the controller does.
async fn silent(ensemble: &Ensemble, node: usize) {
    let pilot = ensemble.pilot(node).await;
    let mut conditions = json!(pilot.status.conditions);
    for ready in conditions.as_array_mut().unwrap().iter_mut().filter(|one| one["type"] == "Ready")
    {
        (ready["status"], ready["reason"]) = (json!("Unknown"), json!("PilotSilent"));
    }
    let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
    let (pilots, params) = (ensemble.bed.pilots(), PatchParams::default());
    let marked = pilots.patch_status(ensemble.name(node), &params, &patch).await.unwrap();
    assert_eq!(condition(&marked, "Ready").map(|(status, ..)| status), Some("Unknown"));
}

async fn all_documents(ensemble: &Ensemble) {
    until("every document is there", STOP, async || {
        ensemble.try_ask(0, Method::POST, "/orders/_refresh", None).await?;
        let count = ensemble.try_ask(0, Method::GET, "/orders/_count", None).await?;
        let whole = count["count"] == DOCUMENTS && count["_shards"]["failed"] == 0;
        if whole { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
}
