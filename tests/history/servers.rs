//! The servers of one run, their store, and what can be done to them.

use std::{
    fmt::Write,
    net::SocketAddr,
    sync::{Mutex, RwLock},
    time::{Duration, Instant},
};

use http::Method;
use navigator::apiserver::storage::{
    Revision, Storage,
    etcd::{Config, EtcdStore},
};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::task::block_in_place;

use super::{
    check::At,
    etcd_server,
    plan::Store,
    proxy::{Proxy, Way},
    support::{
        client::Client,
        pki::Identity,
        server::{Server, World},
    },
    wire::{self, Connection},
};

pub(crate) struct Servers {
    store: Store,
    world: World,
    identity: Identity,
    etcd: Option<Mutex<etcd_server::Server>>,
    /// The way of each server to etcd.
    ways: Vec<Proxy>,
    running: Vec<Mutex<Option<Server>>>,
    addresses: RwLock<Vec<SocketAddr>>,
}

/// How long a server may take to be ready.
const START: Duration = Duration::from_secs(180);

impl Servers {
    pub(crate) async fn start(store: Store) -> Self {
        let mut world = World::new().await;
        if store == Store::Powered {
            world = world.running(std::env::current_exe().unwrap());
        }
        let etcd = store.is_etcd().then(etcd_server::Server::start);
        let mut ways = Vec::new();
        if let Some(etcd) = &etcd {
            let target = etcd.url().trim_start_matches("http://").parse().unwrap();
            for _ in 0..store.servers() {
                ways.push(Proxy::start(target).await);
            }
        }
        let identity = world.proxy();
        let servers = Self {
            store,
            world,
            identity,
            etcd: etcd.map(Mutex::new),
            ways,
            running: (0..store.servers()).map(|_| Mutex::default()).collect(),
            addresses: RwLock::new(vec![([127, 0, 0, 1], 1).into(); store.servers()]),
        };
        for n in 0..store.servers() {
            servers.start_one(n).await.unwrap();
        }
        servers
    }

    pub(crate) fn count(&self) -> usize {
        self.running.len()
    }

    /// A client of this server, which may be away.
    pub(crate) fn client(&self, n: usize) -> Client {
        Client::new(self.addresses.read().unwrap()[n], Some(&self.identity), None)
    }

    pub(crate) fn address(&self, n: usize) -> SocketAddr {
        self.addresses.read().unwrap()[n]
    }

    /// Starts a server that is not running, and waits until it is ready.
    pub(crate) async fn start_one(&self, n: usize) -> Result<(), String> {
        let server = block_in_place(|| {
            let etcd = self.ways.get(n).map(|way| format!("http://{}", way.address));
            let flags: Vec<&str> = match &etcd {
                Some(etcd) => vec!["--store=etcd", "--etcd-servers", etcd],
                None => Vec::new(),
            };
            self.world.start("store", &flags)
        });
        self.addresses.write().unwrap()[n] = server.address;
        let stranger = server.stranger();
        *self.running[n].lock().unwrap() = Some(server);
        let begun = Instant::now();
        loop {
            let last = match self.ready(&stranger).await {
                Ok(()) => return Ok(()),
                Err(last) => last,
            };
            if begun.elapsed() > START {
                return Err(format!("server {n} is not ready after {START:?}: {last}"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn ready(&self, stranger: &Client) -> Result<(), String> {
        let request = http::Request::get("/readyz").body(String::new()).unwrap();
        let reply = tokio::time::timeout(Duration::from_secs(5), stranger.send(request)).await;
        match reply {
            Ok(Ok(reply)) if reply.status == 200 => Ok(()),
            Ok(Ok(reply)) => Err(reply.body),
            Ok(Err(error)) => Err(error.to_string()),
            Err(late) => Err(late.to_string()),
        }
    }

    pub(crate) async fn kill(&self, n: usize) -> Result<(), String> {
        // A server is killed when it is dropped.
        drop(self.running[n].lock().unwrap().take());
        self.start_one(n).await
    }

    pub(crate) fn signal(&self, n: usize, signal: Signal) {
        self.running[n].lock().unwrap().as_ref().unwrap().signal(signal);
    }

    pub(crate) fn set_way(&self, n: usize, way: Way) {
        self.ways[n].set(way);
    }

    pub(crate) fn kill_etcd(&self) {
        block_in_place(|| self.etcd.as_ref().unwrap().lock().unwrap().kill_and_start_again());
    }

    pub(crate) fn wipe_etcd(&self) {
        block_in_place(|| self.etcd.as_ref().unwrap().lock().unwrap().wipe());
    }

    /// Waits until every server shows this revision.
    pub(crate) async fn level(&self, revision: u64) -> Result<(), String> {
        let path = format!("/k0?{}", wire::at(At::NotOlderThan(revision)));
        for n in 0..self.count() {
            let begun = Instant::now();
            loop {
                let asked = async {
                    let mut connection = Connection::open(self, n).await?;
                    connection.ask(wire::request(Method::GET, &path, &Value::Null)).await
                };
                let last = match asked.await {
                    Ok(answer) if matches!(answer.status.as_u16(), 200 | 404) => break,
                    Ok(answer) => format!("{} {}", answer.status, answer.body),
                    Err(error) => error,
                };
                if begun.elapsed() > START {
                    return Err(format!("server {n} does not come to {revision}: {last}"));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// Compacts history in the store, without a request to the servers.
    pub(crate) async fn compact(&self, revision: u64) -> Result<(), String> {
        let Some(etcd) = &self.etcd else {
            let told = self.world.folder.path().join("store.compact");
            let whole = told.with_extension("half");
            std::fs::write(&whole, revision.to_string()).unwrap();
            std::fs::rename(&whole, &told).unwrap();
            let begun = Instant::now();
            while told.exists() {
                if begun.elapsed() > START {
                    return Err("the server does not compact".to_owned());
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            return Ok(());
        };
        let endpoints = vec![etcd.lock().unwrap().url().to_owned()];
        let config = Config { endpoints, prefix: "/probe".to_owned(), tls: None };
        let etcd = EtcdStore::connect(&config).await.unwrap();
        let begun = Instant::now();
        while let Err(error) = etcd.compact(Revision(revision)).await {
            if begun.elapsed() > START {
                return Err(format!("etcd does not compact: {error:?}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// What the servers logged last.
    pub(crate) fn logs(&self) -> String {
        let mut all = String::new();
        for (n, server) in self.running.iter().enumerate() {
            let log = server.lock().unwrap().as_ref().map(Server::log).unwrap_or_default();
            let last: Vec<_> = log.lines().rev().take(15).collect();
            for line in last.into_iter().rev() {
                writeln!(all, "    server {n} ({:?}): {line}", self.store).unwrap();
            }
        }
        all
    }
}
