//! Many watchers of one collection, each of which must receive every change.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::timeout;

use super::{
    client::{Ask, Client, Door, Protocol},
    kinds::Kind,
    load::{Clocks, Phase, text},
    servers::{Server, Store},
};

pub(crate) const WATCHERS: usize = 200;
pub(crate) const UPDATES: usize = 500;
/// Clients that change objects: this many keep a server busy with its watchers, and more make
/// kube-apiserver cut the watchers that fall behind.
const CHANGING: usize = 4;
const PATIENCE: Duration = Duration::from_secs(120);
const EVENT: &[u8] = b"{\"type\":\"MODIFIED\",";

/// What the watchers of a phase share.
struct Watch {
    kind: Kind,
    door: Door,
    from: String,
    /// Streams that the server ended before their watchers had all events.
    cut: AtomicUsize,
}

/// Lets all watchers receive all updates; returns also how many streams the server cut.
///
/// Over HTTP/1.1 each watcher has a connection, over HTTP/2 they share the clients'.
pub(crate) async fn run(
    server: &Server,
    store: &Store,
    clients: &[Client],
    objects: usize,
    salt: &str,
    from: String,
) -> (Phase, usize) {
    let (kind, door) = (server.kind, server.door.clone());
    let watch = Arc::new(Watch { kind, door, from, cut: AtomicUsize::new(0) });
    let mut watchers = Vec::new();
    for number in 0..WATCHERS {
        let client = match server.door.protocol() {
            Protocol::Http1 => server.door.enter().await.unwrap(),
            Protocol::Http2 => clients[number % clients.len()].clone(),
        };
        watchers.push(watch.open(client, &watch.from).await);
    }
    let clocks = Clocks::start(server, store);
    let listening = watchers.into_iter().map(|stream| {
        let watch = Arc::clone(&watch);
        tokio::spawn(async move { timeout(PATIENCE, watch.listen(stream)).await })
    });
    let listening: Vec<_> = listening.collect();
    let changing = clients.iter().take(CHANGING).enumerate().map(|(own, client)| async move {
        for number in (own..UPDATES).step_by(CHANGING) {
            let ask = server.kind.patch(number % objects, &format!("{salt}-{number}"));
            let (status, body) = client.ask(ask).await.unwrap();
            assert_eq!(status, 200, "update {number}: {}", text(&body));
        }
    });
    join_all(changing).await;
    for outcome in join_all(listening).await {
        let outcome = outcome.unwrap_or_else(|error| panic!("{error}\n{}", server.log()));
        assert!(outcome.is_ok(), "a watcher did not hear of everything\n{}", server.log());
    }
    let phase = clocks.stop(server, store, WATCHERS * UPDATES, None);
    (phase, watch.cut.load(Ordering::Relaxed))
}

struct Stream {
    /// Keeps the connection open as long as the stream.
    _client: Client,
    body: Incoming,
}

impl Watch {
    async fn open(&self, client: Client, from: &str) -> Stream {
        let path = format!("{}?watch=true&resourceVersion={from}", self.kind.collection());
        let answer = client.open(Ask::get(path)).await.unwrap();
        assert_eq!(answer.status(), 200, "a watch begins");
        Stream { _client: client, body: answer.into_body() }
    }

    /// Counts events until all were received; where a stream ends before that, goes on from its
    /// last event.
    async fn listen(&self, mut stream: Stream) {
        let (mut heard, mut line, mut last) = (0, Vec::new(), Vec::new());
        while heard < UPDATES {
            let Some(Ok(frame)) = stream.body.frame().await else {
                self.cut.fetch_add(1, Ordering::Relaxed);
                let from = revision(&last).unwrap_or_else(|| self.from.clone());
                line.clear();
                stream = self.open(self.door.enter().await.unwrap(), &from).await;
                continue;
            };
            let mut rest = frame.data_ref().map_or(&[][..], |data| &data[..]);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                line.extend_from_slice(&rest[..end]);
                rest = &rest[end + 1..];
                assert!(line.starts_with(EVENT), "no change: {}", text(&line));
                heard += 1;
                std::mem::swap(&mut line, &mut last);
                line.clear();
            }
            line.extend_from_slice(rest);
        }
        assert_eq!(heard, UPDATES, "each change is told once");
        assert!(line.is_empty(), "nothing follows the last change: {}", text(&line));
    }
}

fn revision(event: &[u8]) -> Option<String> {
    let event: Value = serde_json::from_slice(event).ok()?;
    event["object"]["metadata"]["resourceVersion"].as_str().map(str::to_owned)
}
