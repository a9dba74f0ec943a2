//! Both stores side by side: the time that one client waits, and what many clients get done
//! together.
//!
//! `cargo bench --bench store` prints one row of a Markdown table per operation: the medians,
//! both stores syncing to the same disk.

#![expect(clippy::print_stdout, reason = "prints a table")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed run")]

#[path = "../tests/it/storage/etcd_server.rs"]
#[expect(dead_code, reason = "the tests use all of it")]
mod etcd_server;
#[path = "../tests/it/storage/keys.rs"]
mod keys;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{StreamExt, future::join_all};
use navigator::apiserver::storage::{
    PageRequest, Revision, Storage, StoreEvent,
    embedded::{EmbeddedStore, HistoryLimits},
    etcd::{Config, EtcdStore},
};

use self::keys::{key, pilots};

const RUNS: usize = 301;
/// About the size of a Pilot.
const VALUE: usize = 2_000;
const OBJECTS: usize = 1_000;

async fn open(path: &Path) -> EmbeddedStore {
    EmbeddedStore::open(path, HistoryLimits::default()).await.unwrap()
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let embedded = measure(&open(directory.path()).await).await;
        let server = etcd_server::Server::start_with(&[]);
        let endpoints = vec![server.url().to_owned()];
        let config = Config { endpoints, prefix: "/bench".to_owned(), tls: None };
        let etcd = EtcdStore::connect(&config).await.unwrap();
        while etcd.current_revision().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let etcd = measure(&etcd).await;
        println!("| operation | embedded | etcd |\n|---|---|---|");
        for ((name, embedded), (_, etcd)) in embedded.iter().zip(&etcd) {
            println!("| {name} | {embedded:.1?} | {etcd:.1?} |");
        }
    });
}

async fn measure(store: &dyn Storage) -> Vec<(&'static str, Duration)> {
    let value = Bytes::from(vec![b'x'; VALUE]);
    let a = key("ns", "a");
    let mut at = store.create(&a, value.clone()).await.unwrap();
    let mut events = store.watch(&pilots(), at).await.unwrap();

    let (mut puts, mut seen, mut gets) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let started = Instant::now();
        at = store.update(&a, at, value.clone()).await.unwrap();
        puts.push(started.elapsed());
        until(&mut events, at).await;
        seen.push(started.elapsed());
        let started = Instant::now();
        store.get(&a).await.unwrap();
        gets.push(started.elapsed());
    }
    drop(events);

    let keys: Vec<_> = (0..OBJECTS).map(|n| key("ns", &format!("k{n}"))).collect();
    let started = Instant::now();
    for result in join_all(keys.iter().map(|key| store.create(key, value.clone()))).await {
        result.unwrap();
    }
    let together = started.elapsed() / u32::try_from(OBJECTS).unwrap();

    let mut lists = Vec::new();
    for _ in 0..31 {
        let started = Instant::now();
        store.list(&pilots(), PageRequest::default()).await.unwrap();
        lists.push(started.elapsed());
    }
    vec![
        ("put, one after the other", median(puts)),
        ("put and see it in a watch", median(seen)),
        ("put, each of 1000 at once", together),
        ("get", median(gets)),
        ("list of 1000 objects", median(lists)),
    ]
}

async fn until(events: &mut navigator::apiserver::storage::WatchStream, revision: Revision) {
    loop {
        match events.next().await.unwrap().unwrap() {
            StoreEvent::Put { entry, .. } if entry.revision == revision => return,
            _ => {}
        }
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
