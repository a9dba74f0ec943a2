//! A node loses its data role: its shards move away first, in whatever way it gets its new roles.

use std::{cell::Cell, time::Duration};

use http::Method;
use serde_json::{Value, json};

use super::{
    ensemble::{Ensemble, START},
    writer::Writer,
};
use crate::{report::Told, support::wait::until};

const MOVED_AWAY: &str = "ShardsMovedAway";
const MAY_MOVE: &str = "ShardsMayMove";
const OF_ROLES: [&str; 4] = [MOVED_AWAY, MAY_MOVE, "VoteMovedAway", "VoteMayMove"];
const DOCUMENTS: usize = 100;

pub(crate) async fn a_data_role_goes(version: &'static str, told: &Told) {
    let mut ensemble = Ensemble::new(version, 3).await;
    ensemble.start_all();
    let cluster = ensemble.settled(&[0, 1, 2]).await;
    ensemble.index(0, 4, 1).await;
    fill(&ensemble).await;
    ensemble.green(0).await;
    let writer = Writer::new(&ensemble, 0);
    let done = Cell::new(false);
    let story = async {
        drained_then_restarted(&ensemble, told).await;
        done.set(true);
        writer.stop();
    };
    futures::join!(writer.run(), never_red(&ensemble, &done), story);
    let (documents, refused) = writer.check().await;
    told.claim(format!(
        "all of it without a red second: {documents} documents written meanwhile are there"
    ));
    told.note(&format!("{refused} writes were not acknowledged"));

    by_another_way(&mut ensemble, told).await;
    the_last_one(&ensemble, told).await;
    assert_eq!(ensemble.settled(&[0, 1, 2]).await, cluster);
    writer.check().await;
    for index in ["single", "orders"] {
        ensemble.ask(0, Method::POST, &format!("/{index}/_refresh"), None).await;
    }
    let single = ensemble.ask(0, Method::GET, "/single/_count", None).await;
    assert_eq!(single["count"], DOCUMENTS, "{single}");
    told.claim("every document of the whole story is there");
}

/// The controller's way: the new roles, then a restart when the pilot has nothing against it.
async fn drained_then_restarted(ensemble: &Ensemble, told: &Told) {
    want(ensemble, 2, &["master"]).await;
    let blocked = ensemble
        .bed
        .shows(ensemble.name(2), "the new roles are judged", START, |pilot| {
            let newest = pilot.status.observed_generation == pilot.metadata.generation;
            let mut rules = pilot.status.blockers.iter().map(|one| one.predicate.as_str());
            newest.then(|| rules.any(|rule| rule == MOVED_AWAY))
        })
        .await;
    assert!(blocked, "the roles counted as valid before the pilot spoke against a restart");
    free(ensemble, 2).await;
    assert!(shards_on(ensemble, 2).await.is_empty());
    assert!(roles(ensemble, 2).await.contains(&"data".to_owned()));
    assert!(!excluded(ensemble).await.is_empty(), "it could get a shard before its restart");
    told.claim(
        "a node that is to lose its data role moves its shards away, then lets itself restart",
    );

    restart(ensemble, 2, "2026-01-01T00:00:00Z").await;
    runs_with(ensemble, 2, &["master"]).await;
    ensemble.settled(&[0, 1, 2]).await;
    included(ensemble).await;
    ensemble.green(0).await;
    told.claim("it restarts without the role, and its exclusion is gone");
}

/// Its machine fails before its shards have moved: it comes back with its data role.
async fn by_another_way(ensemble: &mut Ensemble, told: &Told) {
    let copies = |count: u32| json!({"index": {"number_of_replicas": count}});
    ensemble.ask(0, Method::PUT, "/single/_settings", Some(&copies(1))).await;
    ensemble.green(0).await;
    want(ensemble, 1, &["ingest"]).await;
    ensemble.kill(1).await;
    ensemble.start(1);
    ensemble.settled(&[0, 1, 2]).await;
    assert!(roles(ensemble, 1).await.contains(&"data".to_owned()));
    says(ensemble, 1, MAY_MOVE, "wants 2 copies, and 1 data nodes would remain").await;
    ensemble.green(0).await;
    told.claim(
        "killed at once, it comes back with its data role, and says what its shards wait for",
    );

    for index in ["single", "orders"] {
        let path = format!("/{index}/_settings");
        ensemble.ask(0, Method::PUT, &path, Some(&copies(0))).await;
    }
    free(ensemble, 1).await;
    restart(ensemble, 1, "2026-01-02T00:00:00Z").await;
    runs_with(ensemble, 1, &["ingest"]).await;
    ensemble.settled(&[0, 1, 2]).await;
    included(ensemble).await;
    votes_settle(ensemble).await;
    told.claim(
        "its indices want fewer copies: its shards and its vote move, and it runs with its new roles",
    );
}

/// No data node would be left: that is said, and taken back.
async fn the_last_one(ensemble: &Ensemble, told: &Told) {
    want(ensemble, 0, &["master"]).await;
    says(ensemble, 0, MAY_MOVE, "no other node has a data role").await;
    assert!(excluded(ensemble).await.is_empty());
    want(ensemble, 0, &["master", "data"]).await;
    free(ensemble, 0).await;
    assert!(!shards_on(ensemble, 0).await.is_empty());
    told.claim(
        "the last data node keeps its role and its shards, says so, and the edit is taken back",
    );
}

async fn want(ensemble: &Ensemble, node: usize, roles: &[&str]) {
    ensemble.bed.change(ensemble.name(node), json!({"elasticsearch": {"roles": roles}})).await;
}

async fn restart(ensemble: &Ensemble, node: usize, at: &str) {
    ensemble.bed.change(ensemble.name(node), json!({ "restartedAt": at })).await;
}

/// Waits until the pilot names none of the rules against its new roles, and knows the newest.
async fn free(ensemble: &Ensemble, node: usize) {
    ensemble
        .bed
        .shows(ensemble.name(node), "nothing speaks against its roles", START, |pilot| {
            let newest = pilot.status.observed_generation == pilot.metadata.generation;
            let mut rules = pilot.status.blockers.iter().map(|one| one.predicate.as_str());
            (newest && !rules.any(|rule| OF_ROLES.contains(&rule))).then_some(())
        })
        .await;
}

async fn says(ensemble: &Ensemble, node: usize, rule: &str, part: &str) {
    ensemble
        .bed
        .shows(ensemble.name(node), &format!("{rule}: {part}"), START, |pilot| {
            let found = pilot.status.blockers.iter().find(|one| one.predicate == rule)?;
            found.message.contains(part).then_some(())
        })
        .await;
}

async fn roles(ensemble: &Ensemble, node: usize) -> Vec<String> {
    let path = "/_nodes/_local?filter_path=nodes.*.roles";
    let answer = ensemble.try_ask(node, Method::GET, path, None).await.unwrap_or_default();
    let nodes = answer["nodes"].as_object().into_iter().flatten();
    let roles = nodes.filter_map(|(_, node)| serde_json::from_value(node["roles"].clone()).ok());
    roles.flat_map(|roles: Vec<String>| roles).collect()
}

async fn runs_with(ensemble: &Ensemble, node: usize, wanted: &[&str]) {
    until(&format!("node {node} runs with {wanted:?}"), START, async || {
        let has = roles(ensemble, node).await;
        if has == wanted { Ok(()) } else { Err(format!("{has:?}")) }
    })
    .await;
}

async fn shards_on(ensemble: &Ensemble, node: usize) -> Vec<Value> {
    let shards = ensemble.ask(0, Method::GET, "/_cat/shards?format=json", None).await;
    let shards = shards.as_array().unwrap().iter();
    shards.filter(|shard| shard["node"] == ensemble.name(node)).cloned().collect()
}

/// Returns the node ids in the list that keeps shards off nodes.
async fn excluded(ensemble: &Ensemble) -> String {
    let path = "/_cluster/settings?flat_settings=true";
    let settings = ensemble.ask(0, Method::GET, path, None).await;
    let ours = &settings["persistent"]["cluster.routing.allocation.exclude._id"];
    ours.as_str().unwrap_or_default().to_owned()
}

async fn included(ensemble: &Ensemble) {
    until("no node is excluded", START, async || match excluded(ensemble).await {
        ids if ids.is_empty() => Ok(()),
        ids => Err(ids),
    })
    .await;
}

/// Waits until no vote is excluded.
async fn votes_settle(ensemble: &Ensemble) {
    let path = "/_cluster/state/metadata?filter_path=metadata.cluster_coordination";
    until("the list of excluded votes is cleared", START, async || {
        let state = ensemble.ask(0, Method::GET, path, None).await;
        let votes = &state["metadata"]["cluster_coordination"];
        let excluded = votes["voting_config_exclusions"].as_array();
        if excluded.is_some_and(Vec::is_empty) { Ok(()) } else { Err(votes.to_string()) }
    })
    .await;
}

/// Asks for the health again and again until `done`; it is never red.
async fn never_red(ensemble: &Ensemble, done: &Cell<bool>) {
    while !done.get() {
        let path = "/_cluster/health?timeout=1s&master_timeout=1s";
        if let Ok(health) = ensemble.try_ask(0, Method::GET, path, None).await {
            assert_ne!(health["status"], "red", "{health}");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Documents that are on node 2 alone.
async fn fill(ensemble: &Ensemble) {
    let index = json!({"settings": {
        "number_of_shards": 2, "number_of_replicas": 0,
        "index.routing.allocation.require._name": ensemble.name(2),
    }});
    ensemble.ask(0, Method::PUT, "/single", Some(&index)).await;
    for id in 0..DOCUMENTS {
        ensemble
            .ask(2, Method::PUT, &format!("/single/_doc/{id}"), Some(&json!({ "id": id })))
            .await;
    }
    let free: Value = json!({"index.routing.allocation.require._name": null});
    ensemble.ask(0, Method::PUT, "/single/_settings", Some(&free)).await;
}
