//! A node gives its shards away: refused, taken back, killed in every way, and resumed.

use std::time::Duration;

use http::Method;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{
    ensemble::{Ensemble, START, STOP, gone},
    writer::Writer,
};
use crate::{
    report::Told,
    support::{seat::signal, wait::until},
};

const EXCLUDE: &str = "cluster.routing.allocation.exclude";

pub(crate) async fn a_node_leaves_whatever_is_killed(told: &Told) {
    let mut ensemble = Ensemble::new("7.17.29", 3).await;
    ensemble.start_all();
    let cluster = ensemble.settled(&[0, 1, 2]).await;

    // What people set themselves; it stands at the end as it stood here.
    let theirs = json!({
        "persistent": {format!("{EXCLUDE}._ip"): "203.0.113.9"},
        "transient": {format!("{EXCLUDE}._name"): "nobody"},
    });
    ensemble.set(0, &theirs).await;
    ensemble.index(0, 6, 2).await;
    let writer = Writer::new(&ensemble, 0);
    for _ in 0..50 {
        writer.write().await;
    }
    let leaver = ensemble.name(2).to_owned();
    let want = async |ensemble: &Ensemble, phase: &str| {
        ensemble.bed.change(&leaver, json!({ "phase": phase })).await;
    };

    want(&ensemble, "Decommissioned").await;
    ensemble.told(2, "Decommissioned", "False", "NodeDecommissioning", "copies").await;
    told.claim("three copies of an index: the third node may not leave, and says why");
    want(&ensemble, "Running").await;
    ensemble.told(2, "Decommissioned", "False", "NotRequested", "").await;

    let hides = |value: Value| json!({"transient": {format!("{EXCLUDE}._id"): value}});
    ensemble.set(0, &hides(json!("none"))).await;
    let fewer = json!({"index": {"number_of_replicas": 1}});
    ensemble.ask(0, Method::PUT, "/orders/_settings", Some(&fewer)).await;

    want(&ensemble, "Decommissioned").await;
    ensemble.told(2, "Decommissioned", "False", "NodeDecommissioning", "hides the one").await;
    ensemble.set(0, &hides(Value::Null)).await;
    want(&ensemble, "Running").await;
    ensemble.told(2, "Decommissioned", "False", "NotRequested", "").await;
    told.claim("a transient exclusion of ids that hides ours: told, and not touched");

    // Enough to move, slowly enough to be caught in the act.
    fill(&ensemble).await;
    ensemble.set(0, &json!({"transient": {"indices.recovery.max_bytes_per_sec": "64kb"}})).await;
    let moving = async |ensemble: &Ensemble, what: &str| {
        let what = format!("shards are on their way, {what}");
        ensemble
            .bed
            .shows(&leaver, &what, START, |pilot| {
                let progress = pilot.status.decommission.as_ref()?;
                progress.shards_left.filter(|left| *left > 0)
            })
            .await;
        until(&what, START, async || {
            let path = "/_cluster/health?timeout=1s";
            let health = ensemble.try_ask(0, Method::GET, path, None).await?;
            let relocates = health["relocating_shards"].as_u64().is_some_and(|count| count > 0);
            if relocates { Ok(()) } else { Err(health.to_string()) }
        })
        .await;
    };
    let story = async {
        want(&ensemble, "Decommissioned").await;
        moving(&ensemble, "before it is taken back").await;
        want(&ensemble, "Running").await;
        ensemble.told(2, "Decommissioned", "False", "NotRequested", "").await;
        until("the exclusion is taken back", START, async || {
            let settings = ensemble.settings(0).await;
            let ours = &settings["persistent"][format!("{EXCLUDE}._id")];
            if *ours == "" { Ok(()) } else { Err(settings.to_string()) }
        })
        .await;
        ensemble.bed.phase(&leaver, "Running", START).await;
        told.claim("taken back half-way: it stays, and no exclusion is left");

        want(&ensemble, "Decommissioned").await;
        moving(&ensemble, "before its database is killed").await;
        let database = ensemble.nodes[2].running.as_ref().unwrap().database().unwrap();
        signal(database, Signal::SIGKILL);
        gone(database).await;
        moving(&ensemble, "after its database was killed").await;
        told.claim("database killed half-way: started again, and it goes on leaving");
        writer.stop();
    };
    futures::join!(writer.run(), story);

    let pilot = ensemble.nodes[2].running.take().unwrap();
    pilot.kill();
    ensemble.start(2);
    moving(&ensemble, "after its pilot was killed").await;
    told.claim("pilot killed half-way: the next one goes on");
    let database = ensemble.nodes[2].running.as_ref().unwrap().database().unwrap();
    signal(database, Signal::SIGSTOP);
    ensemble.kill(2).await;
    ensemble.start(2);
    moving(&ensemble, "after both were killed").await;
    told.claim("pilot and stopped database killed half-way: the next ones go on");

    ensemble.set(0, &json!({"transient": {"indices.recovery.max_bytes_per_sec": null}})).await;
    ensemble.left(2).await;
    assert_eq!(ensemble.settled(&[0, 1]).await, cluster);
    ensemble.green(0).await;
    let (documents, refused) = writer.check().await;
    told.claim(format!("it left; all {documents} acknowledged documents are there"));
    told.note(&format!("{refused} writes were not acknowledged while its database was killed"));

    let pilot = ensemble.nodes[2].running.take().unwrap();
    assert_eq!(pilot.stop(STOP).await, 0);
    ensemble.start(2);
    ensemble.left(2).await;
    told.claim("a pilot that starts beside what left starts no database");

    let node = ensemble.nodes.pop().unwrap();
    node.running.unwrap().stop(STOP).await;
    ensemble.bed.delete(&node.seat.name).await;
    until("the lists are tidied", START, async || {
        let settings = ensemble.settings(0).await;
        let state = "/_cluster/state/metadata?filter_path=metadata.cluster_coordination";
        let state = ensemble.ask(0, Method::GET, state, None).await;
        let votes = &state["metadata"]["cluster_coordination"]["voting_config_exclusions"];
        let ours = &settings["persistent"][format!("{EXCLUDE}._id")];
        let tidy = *ours == "" && votes.as_array().is_none_or(Vec::is_empty);
        if tidy { Ok(()) } else { Err(format!("{settings} {votes}")) }
    })
    .await;
    let settings = ensemble.settings(0).await;
    for (kind, key, value) in
        [("persistent", "_ip", "203.0.113.9"), ("transient", "_name", "nobody")]
    {
        assert_eq!(settings[kind][format!("{EXCLUDE}.{key}")], value, "{settings}");
    }
    told.claim("our exclusions are gone; what people had set stands as they set it");
}

/// A few MiB that do not compress, so that moving them takes a while.
async fn fill(ensemble: &Ensemble) {
    for id in 0..60 {
        let noise: String = (0..6_000).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
        let body: Value = json!({ "noise": [noise] });
        let path = format!("/filling/_doc/{id}");
        if id == 0 {
            let index = json!({
                "settings": {"number_of_shards": 4, "number_of_replicas": 0},
                "mappings": {"properties": {"noise": {"type": "text", "index": false}}},
            });
            ensemble.ask(0, Method::PUT, "/filling", Some(&index)).await;
        }
        ensemble.ask(0, Method::PUT, &path, Some(&body)).await;
    }
    ensemble.ask(0, Method::POST, "/filling/_flush", None).await;
    tokio::time::timeout(Duration::from_secs(60), ensemble.green(0)).await.ok();
}
