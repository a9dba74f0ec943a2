//! A node gives its shards away: taken back half-way, killed in every way, and resumed, while a
//! client writes.

use http::Method;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{
    ensemble::{Ensemble, START, STOP},
    writer::Writer,
};
use crate::{
    report::Told,
    support::{
        seat::{signal, until_gone},
        wait::until,
    },
};

const EXCLUDE: &str = "cluster.routing.allocation.exclude";
/// Settings of users, which must stand at the end as they stood at the beginning.
const THEIRS: [(&str, &str, &str); 2] =
    [("persistent", "_ip", "203.0.113.9"), ("transient", "_name", "nobody")];
/// The node that leaves.
const LEAVER: usize = 2;
/// So many shards of a MiB each, one after the other, at such a pace: each takes some seconds.
const SHARDS: usize = 32;
const PACE: &str = "256kb";

pub(crate) async fn a_departure_is_cut_off_in_every_way_and_ends(told: &Told) {
    let mut ensemble = Ensemble::new("7.17.29", 3).await;
    ensemble.start_all();
    let cluster = ensemble.settled(&[0, 1, 2]).await;
    for (kind, key, value) in THEIRS {
        ensemble.set(0, &json!({(kind): {format!("{EXCLUDE}.{key}"): value}})).await;
    }
    ensemble.index(0, 6, 1).await;
    fill(&ensemble).await;
    ensemble.green(0).await;
    told.claim(format!("three nodes; {SHARDS} shards on the one that is to leave"));

    let writer = Writer::new(&ensemble, 0);
    let story = async {
        half_way(&mut ensemble, told).await;
        writer.stop();
    };
    futures::join!(writer.run(), story);

    set_pace(&ensemble, Value::Null).await;
    ensemble.left(LEAVER).await;
    assert_eq!(ensemble.settled(&[0, 1]).await, cluster);
    ensemble.green(0).await;
    let (documents, refused) = writer.check().await;
    let filled = ensemble.ask(0, Method::GET, "/filling/_count", None).await;
    assert_eq!(filled["count"], DOCUMENTS, "{filled}");
    told.claim(format!(
        "it left: all {documents} documents acknowledged meanwhile are there, and the {DOCUMENTS} that \
         it held alone"
    ));
    told.note(&format!("{refused} writes were not acknowledged while machines were lost"));

    let node = ensemble.all.pop().unwrap();
    assert_eq!(node.running.unwrap().stop(STOP).await, 0);
    ensemble.bed.delete(&node.seat.name).await;
    tidy(&ensemble).await;
    told.claim("its exclusions are gone; what people had excluded stands as they set it");
}

/// Cuts one departure off in every way. Each time it has given some shards away, and not all.
async fn half_way(ensemble: &mut Ensemble, told: &Told) {
    let leaver = ensemble.name(LEAVER).to_owned();
    want(ensemble, "Decommissioned").await;
    let left = moved(ensemble, i32::MAX, "before it is taken back").await;
    want(ensemble, "Running").await;
    ensemble.told(LEAVER, "Decommissioned", "False", "NotRequested", "").await;
    tidy(ensemble).await;
    ensemble.bed.phase(&leaver, "Running", START).await;
    told.claim(format!(
        "taken back with {left} shards left: the node stays, its exclusion is gone, people's stand"
    ));

    want(ensemble, "Decommissioned").await;
    // One shard may have been on its way when the departure was taken back.
    let left = moved(ensemble, left - 1, "before its pilot is killed").await;
    ensemble.kill(LEAVER).await;
    ensemble.start(LEAVER);
    let left = moved(ensemble, left, "after its pilot was killed").await;
    told.claim(format!(
        "its pilot killed, and the kernel takes the database along: {left} are left"
    ));

    let database = ensemble.database(LEAVER).unwrap();
    signal(database, Signal::SIGKILL);
    until_gone(database, STOP).await;
    let left = moved(ensemble, left, "after its database was killed").await;
    told.claim(format!("its database killed: the pilot starts it again, {left} are left"));

    let database = ensemble.database(LEAVER).unwrap();
    signal(database, Signal::SIGKILL);
    ensemble.kill(LEAVER).await;
    ensemble.start(LEAVER);
    let left = moved(ensemble, left, "after both were killed").await;
    told.claim(format!("both killed, the database first: {left} are left"));

    // The pilot of a node that leaves may lead for its departure. Nothing holds that up while the
    // machine of the leading one is away.
    set_pace(ensemble, json!("64kb")).await;
    let leader = leading(ensemble, None).await;
    ensemble.kill(leader).await;
    let next = leading(ensemble, Some(leader)).await;
    ensemble.start(leader);
    together(ensemble, 3).await;
    let left = moved(ensemble, left, "after the leading pilot was killed").await;
    told.claim(format!(
        "the leading pilot killed with its database: {} leads instead of {}, {left} are left",
        ensemble.name(next),
        ensemble.name(leader)
    ));
}

/// Waits for a leader, and another one than `old`.
async fn leading(ensemble: &Ensemble, old: Option<usize>) -> usize {
    until("a pilot leads", START, async || {
        let lease = ensemble.bed.leases().get("elastic-demo-leaderelection").await;
        let holder = lease.map_err(|error| error.to_string())?.spec.holder_identity;
        let mut others = (0..=LEAVER).filter(|node| Some(*node) != old);
        others
            .find(|node| holder.as_deref() == Some(ensemble.name(*node)))
            .ok_or(format!("{holder:?}"))
    })
    .await
}

/// Waits until so many nodes are one cluster again.
async fn together(ensemble: &Ensemble, nodes: usize) {
    until("every node is back", START, async || {
        let health =
            ensemble.try_ask(LEAVER, Method::GET, "/_cluster/health?timeout=1s", None).await?;
        if health["number_of_nodes"] == nodes { Ok(()) } else { Err(health.to_string()) }
    })
    .await;
}

async fn set_pace(ensemble: &Ensemble, pace: Value) {
    let pace = json!({"transient": {"indices.recovery.max_bytes_per_sec": pace}});
    ensemble.set(0, &pace).await;
}

async fn want(ensemble: &Ensemble, phase: &str) {
    ensemble.bed.change(ensemble.name(LEAVER), json!({ "phase": phase })).await;
}

/// Waits until fewer shards than `before` are left to move, though some; returns how many.
async fn moved(ensemble: &Ensemble, before: i32, when: &str) -> i32 {
    let what = format!("some shards have gone, {when}; {before} were left");
    ensemble
        .bed
        .shows(ensemble.name(LEAVER), &what, START, |pilot| {
            let progress = pilot.status.decommission.as_ref()?;
            let (left, percent) = (progress.shards_left?, progress.percent?);
            assert!(left > 0, "it left before it was cut off");
            (left < before && (1..100).contains(&percent)).then_some(left)
        })
        .await
}

/// Waits until only the users' own exclusions are left, which stand as they were.
async fn tidy(ensemble: &Ensemble) {
    until("the lists are tidy", START, async || {
        let path = "/_cluster/settings?flat_settings=true";
        let settings = ensemble.try_ask(0, Method::GET, path, None).await?;
        let state = "/_cluster/state/metadata?filter_path=metadata.cluster_coordination";
        let state = ensemble.try_ask(0, Method::GET, state, None).await?;
        for (kind, key, value) in THEIRS {
            assert_eq!(settings[kind][format!("{EXCLUDE}.{key}")], value, "{settings}");
        }
        let ours = settings["persistent"][format!("{EXCLUDE}._id")].as_str().unwrap_or_default();
        let votes = &state["metadata"]["cluster_coordination"]["voting_config_exclusions"];
        let is_tidy = ours.is_empty() && votes.as_array().is_none_or(Vec::is_empty);
        if is_tidy { Ok(()) } else { Err(format!("{settings} {votes}")) }
    })
    .await;
}

const DOCUMENTS: usize = 10 * SHARDS;

/// Shards that are on the leaving node only, with noise that does not compress; and the pace.
async fn fill(ensemble: &Ensemble) {
    let index = json!({
        "settings": {
            "number_of_shards": SHARDS, "number_of_replicas": 0,
            "index.routing.allocation.require._name": ensemble.name(LEAVER),
        },
        "mappings": {"properties": {"noise": {"type": "text", "index": false}}},
    });
    ensemble.ask(0, Method::PUT, "/filling", Some(&index)).await;
    for id in 0..DOCUMENTS {
        let noise: String = (0..3_200).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
        let path = format!("/filling/_doc/{id}");
        ensemble.ask(LEAVER, Method::PUT, &path, Some(&json!({ "noise": [noise] }))).await;
    }
    ensemble.ask(0, Method::POST, "/filling/_flush", None).await;
    ensemble
        .set(
            0,
            &json!({"transient": {
                "cluster.routing.rebalance.enable": "none",
                "cluster.routing.allocation.node_concurrent_recoveries": 1,
                "indices.recovery.max_bytes_per_sec": PACE,
            }}),
        )
        .await;
    let free: Value = json!({"index.routing.allocation.require._name": null});
    ensemble.ask(0, Method::PUT, "/filling/_settings", Some(&free)).await;
}
