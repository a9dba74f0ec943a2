//! Two servers on one etcd, restarted one after the other under load, behind what stands for a
//! Service: new connections go to those whose `/readyz` answers 200, and open ones are kept.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::{join, join_all};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    rt::{Read, ReadBufCursor, Write},
};
use hyper_util::{
    client::legacy::{
        Client as Pool,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::{net::TcpStream, time::sleep};
use tokio_rustls::client::TlsStream;

use crate::{
    storage::etcd_server,
    support::{
        client::{Client, SERVICE},
        pki::Identity,
        server::{PATIENCE, Server, World},
        wait::until,
    },
};

const PILOTS: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots";
const CLIENTS: usize = 6;
/// As long as it takes until no client sends a new request to a server that is not ready.
const NOTICED: &str = "--shutdown-delay-duration=15";
const PROBES: Duration = Duration::from_millis(200);
/// Of a client, between one object and the next: what is asked while a server restarts matters, not how much.
const PAUSE: Duration = Duration::from_millis(50);
/// Requests that each server answers before the next restart.
const ENOUGH: usize = 100;

/// One server as the Service sees it.
struct Endpoint {
    address: SocketAddr,
    ready: AtomicBool,
    answered: AtomicUsize,
    pool: Pool<Connector, Full<Bytes>>,
}

#[derive(Clone)]
struct Connector(Arc<Client>);

/// A connection over which HTTP/2 is spoken, as the aggregator does.
struct Stream(TokioIo<TlsStream<TcpStream>>);

impl tower::Service<Uri> for Connector {
    type Response = Stream;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Stream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let client = Arc::clone(&self.0);
        Box::pin(async move { Ok(Stream(TokioIo::new(client.try_http2().await?))) })
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new().negotiated_h2()
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// The Service, and what was asked of it.
struct Service {
    proxy: Identity,
    endpoints: Mutex<Vec<Arc<Endpoint>>>,
    turns: AtomicUsize,
    over: AtomicBool,
    failed: Mutex<Vec<String>>,
}

impl Service {
    async fn add(&self, server: &Server) -> Arc<Endpoint> {
        let client = Client::new(server.address, Some(&self.proxy), None);
        let pool =
            Pool::builder(TokioExecutor::new()).http2_only(true).build(Connector(client.into()));
        let endpoint = Arc::new(Endpoint {
            address: server.address,
            ready: AtomicBool::new(false),
            answered: AtomicUsize::new(0),
            pool,
        });
        self.endpoints.lock().unwrap().push(Arc::clone(&endpoint));
        until("an endpoint is ready", PATIENCE, async || {
            endpoint.ready.load(Ordering::SeqCst).then_some(()).ok_or_else(|| server.log())
        })
        .await;
        endpoint
    }

    /// Does what kubelet and the endpoints' controller do.
    async fn probe(&self) {
        while !self.over.load(Ordering::SeqCst) {
            let endpoints = self.endpoints.lock().unwrap().clone();
            join_all(endpoints.iter().map(|endpoint| async {
                let client = Client::new(endpoint.address, None, None);
                let probe = Request::get("/readyz").body(String::new()).unwrap();
                let reply = client.send(probe).await;
                // A server whose store is slow for once is kept, as kubelet keeps it; one that ends
                // is not.
                let ready = match reply {
                    Ok(reply) => {
                        reply.status == 200
                            || !reply.body.contains("shutdown failed")
                                && endpoint.ready.load(Ordering::SeqCst)
                    }
                    Err(_) => false,
                };
                endpoint.ready.store(ready, Ordering::SeqCst);
            }))
            .await;
            sleep(PROBES).await;
        }
    }

    fn pick(&self) -> Arc<Endpoint> {
        let endpoints = self.endpoints.lock().unwrap();
        let ready: Vec<_> =
            endpoints.iter().filter(|endpoint| endpoint.ready.load(Ordering::SeqCst)).collect();
        assert!(!ready.is_empty(), "no server is ready");
        Arc::clone(ready[self.turns.fetch_add(1, Ordering::SeqCst) % ready.len()])
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<(Arc<Endpoint>, Response<Incoming>), String> {
        let endpoint = self.pick();
        let content_type =
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder()
            .method(method)
            .uri(format!("https://{SERVICE}{path}"))
            .header("X-Remote-User", "root")
            .header("X-Remote-Group", "system:masters")
            .header("content-type", content_type)
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let response = endpoint.pool.request(request).await.map_err(|e| format!("{e:?}"))?;
        Ok((endpoint, response))
    }

    /// Asks and expects `code`; anything else is a failed request.
    async fn expect(&self, code: u16, method: &str, path: &str, body: Value) {
        let outcome = async {
            let (endpoint, response) = self.ask(method, path, &body).await?;
            let status = response.status().as_u16();
            let read = response.into_body().collect().await.map_err(|e| format!("{e:?}"))?;
            if status != code {
                return Err(format!("{status} {}", String::from_utf8_lossy(&read.to_bytes())));
            }
            endpoint.answered.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        if let Err(why) = outcome.await {
            self.failed.lock().unwrap().push(format!("{method} {path}: {why}"));
        }
    }

    /// Makes, reads, changes, lists and deletes objects; returns their names.
    async fn client(&self, number: usize) -> Vec<String> {
        let mut names = Vec::new();
        while !self.over.load(Ordering::SeqCst) {
            let name = format!("c{number}-{}", names.len());
            let own = format!("{PILOTS}/{name}");
            let object = json!({
                "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
                "metadata": {"name": name}, "spec": {},
            });
            self.expect(201, "POST", PILOTS, object).await;
            self.expect(200, "GET", &own, Value::Null).await;
            self.expect(200, "PATCH", &own, json!({"metadata": {"labels": {"a": "b"}}})).await;
            self.expect(200, "GET", &format!("{PILOTS}?limit=2"), Value::Null).await;
            self.expect(200, "DELETE", &own, json!({})).await;
            names.push(name);
            sleep(PAUSE).await;
        }
        names
    }

    /// Watches until every name in `gone` was seen to be deleted, from server to server, and never
    /// lists. Returns what it saw of each name.
    async fn watcher(&self, gone: &Mutex<Option<Vec<String>>>) -> BTreeMap<String, Vec<String>> {
        let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut revision = "1".to_owned();
        let mut begun = tokio::time::Instant::now();
        loop {
            let path =
                format!("{PILOTS}?watch=1&allowWatchBookmarks=true&resourceVersion={revision}");
            let (_, response) = self.ask("GET", &path, &Value::Null).await.expect("a watch begins");
            if response.status() == 429 {
                // The server does not know yet what happened before its start: wait, as client-go
                // does.
                let after = response.headers().contains_key("retry-after");
                assert!(after && begun.elapsed() < PATIENCE, "{response:?}");
                sleep(Duration::from_secs(1)).await;
                continue;
            }
            assert_eq!(response.status(), 200);
            begun = tokio::time::Instant::now();
            let mut body = response.into_body();
            let mut buffer = Vec::new();
            while let Some(frame) = tokio::time::timeout(PATIENCE, body.frame()).await.unwrap() {
                let Ok(frame) = frame else { break };
                buffer.extend_from_slice(&frame.into_data().unwrap_or_default());
                while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = buffer.drain(..=end).collect();
                    let event: Value = serde_json::from_slice(&line).unwrap();
                    assert_ne!(event["type"], "ERROR", "{event}");
                    let metadata = &event["object"]["metadata"];
                    metadata["resourceVersion"].as_str().unwrap().clone_into(&mut revision);
                    if let Some(name) = metadata["name"].as_str() {
                        let type_ = event["type"].as_str().unwrap().to_owned();
                        seen.entry(name.to_owned()).or_default().push(type_);
                    }
                }
                let all = |names: &Vec<String>| {
                    let deleted = |name| seen.get(name).is_some_and(|events| events.len() >= 3);
                    names.iter().all(deleted)
                };
                if gone.lock().unwrap().as_ref().is_some_and(all) {
                    return seen;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_of_two_servers_fails_no_request() {
    let world = World::new().await;
    let etcd = etcd_server::Server::start();
    let start = || world.start("unused", &["--store=etcd", "--etcd-servers", etcd.url(), NOTICED]);
    let service = Service {
        proxy: world.proxy(),
        endpoints: Mutex::default(),
        turns: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        failed: Mutex::default(),
    };
    let made = Mutex::new(None);
    let restarts = async {
        let (mut first, mut second) = (start(), start());
        let mut endpoints = vec![service.add(&first).await, service.add(&second).await];
        let clients = join_all((0..CLIENTS).map(|number| service.client(number)));
        let watchers = join_all((0..2).map(|_| service.watcher(&made)));
        let rolling = async {
            let enough = async |endpoint: &Arc<Endpoint>| {
                until("a server answers", PATIENCE, async || {
                    let answered = endpoint.answered.load(Ordering::SeqCst);
                    if answered >= ENOUGH { Ok(()) } else { Err(format!("{answered} answers")) }
                })
                .await;
            };
            for server in [&mut first, &mut second] {
                join_all(endpoints.iter().map(&enough)).await;
                server.signal(Signal::SIGTERM);
                assert!(server.ended().await.success(), "{}", server.log());
                *server = start();
                endpoints.push(service.add(server).await);
            }
            join_all(endpoints.iter().map(&enough)).await;
            service.over.store(true, Ordering::SeqCst);
        };
        let names = async {
            let (names, ()) = join(clients, rolling).await;
            let names: Vec<String> = names.concat();
            *made.lock().unwrap() = Some(names.clone());
            // An object for watchers that have seen everything already.
            let last = json!({
                "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
                "metadata": {"name": "last"}, "spec": {},
            });
            service.expect(201, "POST", PILOTS, last).await;
            names
        };
        let (names, watchers) = join(names, watchers).await;
        (names, watchers, first, second)
    };
    let ((names, watchers, _first, _second), ()) = join(restarts, service.probe()).await;
    let failed = service.failed.lock().unwrap();
    assert!(failed.is_empty(), "{} requests failed: {failed:#?}", failed.len());
    for mut seen in watchers {
        seen.remove("last");
        let whole: HashMap<_, _> =
            names.iter().map(|name| (name.clone(), ["ADDED", "MODIFIED", "DELETED"])).collect();
        let wrong: Vec<_> =
            seen.iter().filter(|(name, events)| whole[*name] != events[..]).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(seen.len(), names.len());
    }
}
