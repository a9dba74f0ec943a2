//! What every store promises (`conformance`), what is particular to each, and stores to try it on.

mod conformance;
mod embedded;
pub(crate) mod etcd_server;
mod forms;
mod full_disk;
pub(crate) mod keys;
mod kill;
pub(crate) mod kube_apiserver;
mod kubernetes;
mod lossy;
mod migration;
mod model;
pub(crate) mod power;
mod replaced;

use std::{path::PathBuf, time::Duration};

use navigator::apiserver::storage::{
    embedded::{EmbeddedStore, HistoryLimits},
    etcd::{Config, EtcdStore},
};
use tokio::time::{Instant, sleep};

/// An embedded store in a directory of its own.
pub(crate) struct Scratch {
    pub(crate) store: EmbeddedStore,
    pub(crate) directory: tempfile::TempDir,
}

impl Scratch {
    pub(crate) async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = open(&directory.path().join("store")).await;
        Self { store, directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("store")
    }
}

pub(crate) async fn open_at(path: &std::path::Path) -> EmbeddedStore {
    open(path).await
}

async fn open(path: &std::path::Path) -> EmbeddedStore {
    EmbeddedStore::open(path, HistoryLimits::default()).await.unwrap()
}

/// Connects, and opens the store once etcd answers.
pub(crate) async fn connect(url: &str, prefix: &str) -> EtcdStore {
    let endpoints = vec![url.to_owned()];
    let config = Config { endpoints, prefix: format!("/test/{prefix}"), tls: None };
    let store = EtcdStore::connect(&config).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = store.establish_id().await {
        assert!(Instant::now() < deadline, "etcd does not answer: {error:?}");
        sleep(Duration::from_millis(20)).await;
    }
    store
}
