//! Three nodes started at once are always exactly one cluster.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value, json};

use super::{
    ensemble::{Ensemble, START, STOP},
    writer::Writer,
};
use crate::{report::Told, support::wait::until};

/// The life of a cluster in each version: founded, written to, one node leaves and a fresh one
/// comes in its place, a member is restarted.
pub(crate) async fn one_version(version: &'static str, told: &Told) {
    let mut ensemble = Ensemble::new(version, 3).await;
    ensemble.start_all();
    let cluster = ensemble.settled(&[0, 1, 2]).await;
    told.claim(format!("{version}: three nodes started at once are one cluster"));

    ensemble.index(0, 3, 1).await;
    ensemble.green(0).await;
    let single = Single::written(&ensemble).await;
    let shards = single.on_it_alone(&ensemble, 2).await;
    told.claim(format!("{version}: {shards} is on the node that is to leave, and on no other"));
    let writer = Writer::new(&ensemble, 0);
    // The users' exclusions are theirs: one by name stays, and a transient list of ids is
    // respected.
    let theirs = json!({"persistent": {BY_NAME: "nobody"}, "transient": {BY_ID: "nobody"}});
    ensemble.set(0, &theirs).await;
    // Later versions move closed indices like others.
    let closes = ensemble.major() < 7;
    if closes {
        let one = json!({"settings": {"number_of_shards": 1, "number_of_replicas": 0}});
        ensemble.ask(0, Method::PUT, "/archive", Some(&one)).await;
        ensemble.ask(0, Method::POST, "/archive/_close", None).await;
    }
    let leaves = async {
        ensemble.bed.change(ensemble.name(2), json!({"phase": "Decommissioned"})).await;
        ensemble.told(2, "Decommissioned", "False", "NodeDecommissioning", "transient").await;
        ensemble.set(0, &json!({"transient": {BY_ID: null}})).await;
        // A pilot that does not wait for its shards has left by the time that they may move.
        if !closes {
            let why = "index single shard";
            ensemble.told(2, "Decommissioned", "False", "NodeDecommissioning", why).await;
        }
        single.let_go(&ensemble).await;
        if closes {
            let why = "index archive was closed";
            ensemble.told(2, "Decommissioned", "False", "NodeDecommissioning", why).await;
            ensemble.ask(0, Method::DELETE, "/archive", None).await;
        }
        ensemble.left(2).await;
        writer.stop();
    };
    futures::join!(writer.run(), leaves);
    assert_eq!(ensemble.settled(&[0, 1]).await, cluster);
    let (documents, refused) = writer.check().await;
    assert_eq!(refused, 0, "writes were refused while a node left");
    single.is_there(&ensemble).await;
    told.claim(format!(
        "{version}: a node leaves while a client writes; all {documents} documents are there"
    ));

    // The controller removes the Pilot, the volume and the pod; later it wants the node again.
    let node = ensemble.all.pop().unwrap();
    assert_eq!(node.running.unwrap().stop(STOP).await, 0);
    ensemble.bed.delete(&node.seat.name).await;
    tidy(&ensemble).await;
    told.claim(format!("{version}: the leader clears its lists, and touches no others"));
    std::fs::remove_dir_all(&node.seat.place).unwrap();
    ensemble.add(2).await;
    ensemble.start(2);
    assert_eq!(ensemble.settled(&[0, 1, 2]).await, cluster);
    ensemble.green(0).await;
    told.claim(format!("{version}: a fresh node of the same name takes its place"));

    let own = json!({DELAY: "2m"});
    ensemble.ask(0, Method::PUT, "/single/_settings", Some(&own)).await;
    ensemble.stop(1).await;
    let (delayed, announced) = announced(&ensemble).await;
    told.claim(format!(
        "{version}: while a member restarts, its {delayed} shard copies are not made anew: {announced}"
    ));
    ensemble.start(1);
    assert_eq!(ensemble.settled(&[0, 1, 2]).await, cluster);
    ensemble.green(0).await;
    writer.check().await;
    told.claim(format!("{version}: a member that was stopped rejoins, and nothing is lost"));
    let left = until("the announcement is taken back", START, async || {
        let left = delays(&ensemble).await?;
        if left.values().any(|delay| delay == OURS) { Err(format!("{left:?}")) } else { Ok(left) }
    })
    .await;
    assert_eq!(left, BTreeMap::from([("single".to_owned(), "2m".to_owned())]));
    told.claim(format!("{version}: that is taken back, and a person's own delay stands"));
}

const DELAY: &str = "index.unassigned.node_left.delayed_timeout";
const DELAY_AT: &str = "/settings/index/unassigned/node_left/delayed_timeout";
const OURS: &str = "300007ms";

/// Indices with a delayed allocation, and their delay.
async fn delays(ensemble: &Ensemble) -> Result<BTreeMap<String, String>, String> {
    let path = format!("/_all/_settings/{DELAY}");
    let all = ensemble.try_ask(0, Method::GET, &path, None).await?;
    let delay = |index: &Value| Some(index.pointer(DELAY_AT)?.as_str()?.to_owned());
    let indices = all.as_object().into_iter().flatten();
    Ok(indices.filter_map(|(name, index)| Some((name.clone(), delay(index)?))).collect())
}

/// How many copies wait for a member that is away, and the delays that were announced.
async fn announced(ensemble: &Ensemble) -> (u64, String) {
    let found = delays(ensemble).await.unwrap();
    assert_eq!(found["single"], "2m", "{found:?}");
    assert!(found.values().any(|delay| delay == OURS), "{found:?}");
    let delayed = until("copies wait for the member", START, async || {
        let health = ensemble.try_ask(0, Method::GET, "/_cluster/health", None).await?;
        match health["delayed_unassigned_shards"].as_u64() {
            Some(count) if count > 0 => Ok(count),
            _ => Err(health.to_string()),
        }
    })
    .await;
    (delayed, format!("{found:?}"))
}

/// At first one shard for each node: the shard of a node that leaves has nowhere to go.
const RULE: &str = "index.routing.allocation.total_shards_per_node";

/// An index of one copy: what a node that leaves does not give away is lost.
struct Single {
    path: &'static str,
}

impl Single {
    const DOCUMENTS: u32 = 60;

    /// Makes the index after the nodes have joined, so that each has its shard from the beginning.
    async fn written(ensemble: &Ensemble) -> Self {
        let settings = json!({"number_of_shards": 3, "number_of_replicas": 0, RULE: 1});
        ensemble.ask(0, Method::PUT, "/single", Some(&json!({"settings": settings}))).await;
        ensemble.green(0).await;
        let single =
            Self { path: if ensemble.major() == 5 { "/single/doc" } else { "/single/_doc" } };
        for id in 0..Self::DOCUMENTS {
            let path = format!("{}/{id}", single.path);
            ensemble.ask(0, Method::PUT, &path, Some(&json!({"id": id}))).await;
        }
        ensemble.ask(0, Method::POST, "/single/_refresh", None).await;
        single
    }

    /// Lets its shards go wherever there is room.
    async fn let_go(&self, ensemble: &Ensemble) {
        ensemble.ask(0, Method::PUT, "/single/_settings", Some(&json!({RULE: null}))).await;
    }

    /// The shard of a node, as Elasticsearch names it; there are documents in it.
    async fn on_it_alone(&self, ensemble: &Ensemble, node: usize) -> String {
        until("each node has one of the shards", START, async || {
            let path = "/_cat/shards/single?format=json&h=shard,prirep,state,docs,node";
            let shards = ensemble.try_ask(0, Method::GET, path, None).await?;
            let all = shards.as_array().map(Vec::as_slice).unwrap_or_default();
            let its: Vec<_> =
                all.iter().filter(|shard| shard["node"] == ensemble.name(node)).collect();
            let documents = |shard: &serde_json::Value| {
                shard["docs"].as_str().and_then(|count| count.parse::<u32>().ok())
            };
            match its.as_slice() {
                [one] if all.len() == 3 && documents(one).unwrap_or_default() > 0 => {
                    let (shard, count) = (one["shard"].as_str().unwrap(), documents(one).unwrap());
                    Ok(format!("shard {shard} with {count} documents"))
                }
                _ => Err(shards.to_string()),
            }
        })
        .await
    }

    async fn is_there(&self, ensemble: &Ensemble) {
        for id in 0..Self::DOCUMENTS {
            let found = ensemble.ask(0, Method::GET, &format!("{}/{id}", self.path), None).await;
            assert_eq!(found["_source"]["id"], id, "{found}");
        }
    }
}

const BY_ID: &str = "cluster.routing.allocation.exclude._id";
const BY_NAME: &str = "cluster.routing.allocation.exclude._name";

/// Waits until the pilots' own exclusions are gone; the users' are still there.
async fn tidy(ensemble: &Ensemble) {
    let settings = until("the lists are cleared", START, async || {
        let path = "/_cluster/settings?flat_settings=true";
        let settings = ensemble.try_ask(0, Method::GET, path, None).await?;
        let path = "/_cluster/state/metadata?filter_path=metadata.cluster_coordination";
        let state = ensemble.try_ask(0, Method::GET, path, None).await?;
        let votes = &state["metadata"]["cluster_coordination"]["voting_config_exclusions"];
        let ids = settings["persistent"][BY_ID].as_str().unwrap_or_default();
        let clear = ids.is_empty() && votes.as_array().is_none_or(Vec::is_empty);
        if clear { Ok(settings) } else { Err(format!("{settings} {votes}")) }
    })
    .await;
    assert_eq!(settings["persistent"][BY_NAME], "nobody", "{settings}");
}

/// Founds clusters again and again from nothing.
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
