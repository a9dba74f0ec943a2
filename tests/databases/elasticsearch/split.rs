//! A node that the network cuts off from the others, and lets back; a master that hangs.

use std::time::{Duration, Instant};

use http::Method;
use nix::sys::signal::Signal;
use serde_json::json;

use super::{
    ensemble::{Ensemble, START},
    trouble::server,
    writer::Writer,
};
use crate::{
    report::Told,
    support::{bed::condition, seat::signal},
    wall::Wall,
};

/// Databases run as this user and the next ones: by its connections alone a node cannot be told
/// from the others, since all of loopback speaks from one address.
const USERS: u32 = 9201;

/// Three nodes, each of a user of its own.
async fn three_apart() -> Ensemble {
    let mut ensemble = Ensemble::new("7.17.29", 3).await;
    for (user, node) in (USERS..).zip(&mut ensemble.all) {
        node.seat.user = Some(user);
    }
    ensemble.start_all();
    ensemble
}

/// No packet reaches the node's transport port, and none of its database reaches another's.
fn cut_off(ensemble: &Ensemble, node: usize) -> Wall {
    let seat = ensemble.seat(node);
    let (address, user) = (seat.address.to_string(), seat.user.unwrap().to_string());
    let from = ["OUTPUT", "-o", "lo", "-m", "owner", "--uid-owner", &user];
    Wall::before(9300, &[&["INPUT", "-d", &address], &from])
}

pub(crate) async fn a_node_is_cut_off_and_comes_back(told: &Told) {
    let ensemble = three_apart().await;
    let cluster = ensemble.settled(&[0, 1, 2]).await;
    ensemble.index(0, 3, 1).await;
    ensemble.green(0).await;
    let writer = Writer::new(&ensemble, 0);
    for _ in 0..100 {
        writer.write().await;
    }
    let before = ensemble.database(2).unwrap();

    let wall = cut_off(&ensemble, 2);
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

/// How long a new master may show no master of its own. It applies its first state once all nodes
/// have it, or after 30 s (`cluster.publish.timeout`).
const PUBLISHES: Duration = Duration::from_secs(45);

/// While the master is away, one of the other nodes is always ready.
pub(crate) async fn the_master_hangs_and_is_cut_off(told: &Told) {
    let ensemble = three_apart().await;
    ensemble.settled(&[0, 1, 2]).await;
    ensemble.index(0, 3, 2).await;
    ensemble.green(0).await;

    let master = elected(&ensemble).await;
    let process = server(ensemble.database(master).unwrap());
    signal(process, Signal::SIGSTOP);
    let seen = readiness_without(&ensemble, master, Duration::from_secs(40)).await;
    signal(process, Signal::SIGCONT);
    told.claim(format!("the elected master hangs for 40 s: {seen}"));
    ensemble.settled(&[0, 1, 2]).await;
    ensemble.green(0).await;

    let master = elected(&ensemble).await;
    let wall = cut_off(&ensemble, master);
    let seen = readiness_without(&ensemble, master, Duration::from_secs(90)).await;
    drop(wall);
    told.claim(format!("the elected master is cut off for 90 s: {seen}"));
    ensemble.settled(&[0, 1, 2]).await;
    ensemble.green(0).await;
    told.claim("all three are one cluster again, with all copies");
}

async fn elected(ensemble: &Ensemble) -> usize {
    let found = ensemble.ask(0, Method::GET, "/_cat/master?format=json", None).await;
    let name = found[0]["node"].as_str().unwrap();
    (0..3).find(|node| ensemble.name(*node) == name).unwrap()
}

/// Watches readiness for so long: the master leaves it, and of the others one is always ready.
async fn readiness_without(ensemble: &Ensemble, master: usize, time: Duration) -> String {
    let began = Instant::now();
    let mut left = None;
    let mut away = [Duration::ZERO; 3];
    while began.elapsed() < time {
        let looked = Instant::now();
        let ready = [0, 1, 2]
            .map(|node| ensemble.seat(node).get(12001).is_some_and(|(code, _)| code == 200));
        assert!(
            (0..3).any(|node| node != master && ready[node]),
            "nobody but the master was ready {:?} after it went: {ready:?}",
            began.elapsed()
        );
        if !ready[master] {
            left.get_or_insert(began.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        for node in (0..3).filter(|node| !ready[*node] && *node != master) {
            away[node] += looked.elapsed();
        }
    }
    let longest = away.into_iter().max().unwrap_or_default();
    assert!(longest < PUBLISHES, "one of the others was not ready for {longest:?}");
    let left = left.expect("the master is not ready any more");
    format!(
        "it leaves readiness after {left:.0?}; of the others one is always ready, and none is away \
         for longer than {longest:.0?}"
    )
}
