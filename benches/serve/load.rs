//! What clients ask of a server at one time, the time that it takes, and whether the answers are
//! right.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::join_all;
use http::StatusCode;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};
use serde::Deserialize;

use super::{
    client::{Ask, Client},
    kinds::{Kind, SIZE, name},
    servers::{Server, Store},
};

const PAGE: usize = 500;
/// By how much an answer may be longer or shorter than the one that was read whole: revisions
/// and tokens are not always of one length.
const SLACK: usize = 64;
/// No operation takes this long.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Create,
    Get,
    List,
    Page,
    Patch,
    Apply,
    Watch,
    Delete,
}

impl Operation {
    pub(crate) const ALL: [Self; 8] = [
        Self::Create,
        Self::Get,
        Self::List,
        Self::Page,
        Self::Patch,
        Self::Apply,
        Self::Watch,
        Self::Delete,
    ];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Get => "get",
            Self::List => "list",
            Self::Page => "page",
            Self::Patch => "patch",
            Self::Apply => "apply",
            Self::Watch => "watch",
            Self::Delete => "delete",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Get => "get",
            Self::List => "list of all",
            Self::Page => "page of 500",
            Self::Patch => "merge patch",
            Self::Apply => "server-side apply",
            Self::Watch => "event to a watcher",
            Self::Delete => "delete",
        }
    }

    /// How long an operation is repeated; creating and deleting take as long as all objects take.
    fn lasts(self) -> Option<Duration> {
        match self {
            Self::Create | Self::Delete | Self::Watch => None,
            Self::Get | Self::Patch | Self::Apply => Some(Duration::from_secs(2)),
            Self::List | Self::Page => Some(Duration::from_secs(3)),
        }
    }
}

/// The figures of one operation, done by all clients.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) operations: usize,
    pub(crate) wall: Duration,
    /// `None` where the wait of one client is no part of the operation.
    pub(crate) latency: Option<Latency>,
    /// Processor time of the server, of etcd, and of this program.
    pub(crate) server: Duration,
    pub(crate) etcd: Duration,
    pub(crate) own: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    pub(crate) median: Duration,
    pub(crate) p99: Duration,
}

impl Latency {
    pub(crate) fn from(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        Self { median: at(50), p99: at(99) }
    }
}

impl Phase {
    pub(crate) fn per_second(&self) -> f64 {
        count(self.operations) / self.wall.as_secs_f64()
    }

    /// Seconds that the server was on a processor for a thousand operations.
    pub(crate) fn server_per_thousand(&self) -> f64 {
        self.server.as_secs_f64() * 1000.0 / count(self.operations)
    }

    pub(crate) fn etcd_per_thousand(&self) -> f64 {
        self.etcd.as_secs_f64() * 1000.0 / count(self.operations)
    }

    /// Was the speed bound by this program rather than by the server?
    pub(crate) fn is_bound_by_us(&self) -> bool {
        self.own > self.server + self.etcd
    }
}

#[expect(clippy::cast_precision_loss, reason = "no count here comes near 2^52")]
pub(crate) fn count(number: usize) -> f64 {
    number as f64
}

/// The processor time of each process, from one moment to another.
pub(crate) struct Clocks {
    began: Instant,
    server: Duration,
    etcd: Duration,
    own: Duration,
}

impl Clocks {
    pub(crate) fn start(server: &Server, store: &Store) -> Self {
        let (own, etcd) = (used(UsageWho::RUSAGE_SELF), store.on_processor());
        Self { began: Instant::now(), server: server.on_processor(), etcd, own }
    }

    pub(crate) fn stop(
        &self,
        server: &Server,
        store: &Store,
        operations: usize,
        latency: Option<Latency>,
    ) -> Phase {
        let wall = self.began.elapsed();
        Phase {
            operations,
            wall,
            latency,
            server: server.on_processor().saturating_sub(self.server),
            etcd: store.on_processor().saturating_sub(self.etcd),
            own: used(UsageWho::RUSAGE_SELF).saturating_sub(self.own),
        }
    }
}

/// Processor time of this program, or of the ended programs that it started.
pub(crate) fn used(who: UsageWho) -> Duration {
    let usage = getrusage(who).unwrap();
    let microseconds =
        usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(microseconds).unwrap())
}

/// Length and revision of a list of all objects, which was read whole once.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    list: usize,
    pages: Vec<usize>,
    pub(crate) revision: String,
}

impl Seen {
    /// Bytes of an object within a list.
    pub(crate) fn object(&self, objects: usize) -> usize {
        self.list / objects
    }
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    items: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    #[serde(default)]
    r#continue: String,
}

#[derive(Deserialize)]
struct Item {
    metadata: Named,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// Reads a list and its pages whole: each must have every object once.
pub(crate) async fn look(client: &Client, kind: Kind, objects: usize) -> Seen {
    let expected: BTreeSet<String> = (0..objects).map(name).collect();
    let names = |items: Vec<Item>| items.into_iter().map(|item| item.metadata.name);
    let (length, list) = read(client, kind.collection()).await;
    assert_eq!(list.items.len(), objects, "a list of {kind:?} has every object once");
    assert_eq!(names(list.items).collect::<BTreeSet<_>>(), expected);
    let (mut pages, mut found, mut token) = (Vec::new(), Vec::new(), String::new());
    loop {
        let (length, page) = read(client, page_path(kind, &token)).await;
        assert!(page.items.len() <= PAGE, "a page has at most {PAGE}: {}", page.items.len());
        pages.push(length);
        found.extend(names(page.items));
        token = page.metadata.r#continue;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(found.len(), objects, "pages of {kind:?} have every object once");
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected);
    Seen { list: length, pages, revision: list.metadata.resource_version }
}

async fn read(client: &Client, path: String) -> (usize, List) {
    let (status, body) = client.ask(Ask::get(path.clone())).await.unwrap();
    assert_eq!(status, StatusCode::OK, "{path}: {}", text(&body));
    (body.len(), serde_json::from_slice(&body).unwrap())
}

fn page_path(kind: Kind, token: &str) -> String {
    let path = format!("{}?limit={PAGE}", kind.collection());
    if token.is_empty() {
        return path;
    }
    let token = token.replace('%', "%25").replace('+', "%2B").replace('=', "%3D");
    format!("{path}&continue={token}")
}

/// Does the server take server-side apply at all?
pub(crate) async fn applies(client: &Client, kind: Kind) -> bool {
    let (status, body) = client.ask(kind.apply(0, "probe")).await.unwrap();
    match status {
        StatusCode::OK => true,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => false,
        _ => panic!("apply: {status} {}", text(&body)),
    }
}

/// What every client of a phase knows.
pub(crate) struct Plan {
    pub(crate) operation: Operation,
    pub(crate) kind: Kind,
    pub(crate) clients: usize,
    pub(crate) objects: usize,
    /// Makes what is written differ from what other phases wrote.
    pub(crate) salt: String,
    pub(crate) seen: Option<Seen>,
}

/// Does one operation by all clients at one time.
pub(crate) async fn run(server: &Server, store: &Store, clients: &[Client], plan: Plan) -> Phase {
    let plan = Arc::new(plan);
    let until = plan.operation.lasts().map(|time| Instant::now() + time);
    let clocks = Clocks::start(server, store);
    let tasks = clients.iter().enumerate().map(|(own, client)| {
        let (client, plan) = (client.clone(), Arc::clone(&plan));
        tokio::spawn(async move { plan.work(&client, own, until).await })
    });
    let mut times = Vec::new();
    for outcome in join_all(tasks).await {
        match outcome {
            Ok(own) => times.extend(own),
            Err(error) => panic!("{}: {error}\n{}", plan.operation.word(), server.log()),
        }
    }
    let operations = times.len();
    clocks.stop(server, store, operations, Some(Latency::from(times)))
}

impl Plan {
    /// One client's part; returns the time of each operation.
    async fn work(&self, client: &Client, own: usize, until: Option<Instant>) -> Vec<Duration> {
        let mut times = Vec::new();
        let (mut token, mut page) = (String::new(), 0);
        for turn in 0.. {
            let number = own + turn * self.clients;
            let over = match until {
                Some(until) => Instant::now() >= until,
                None => number >= self.objects,
            };
            if over {
                break;
            }
            // A client comes back to objects of its own, and never meets another.
            let own_objects = (self.objects - own).div_ceil(self.clients);
            let number = own + (turn % own_objects) * self.clients;
            let written = format!("{}-{turn}", self.salt);
            let (ask, expected) = match self.operation {
                Operation::Create => (self.kind.create(number), StatusCode::CREATED),
                Operation::Get => (self.kind.get(number), StatusCode::OK),
                Operation::List => (Ask::get(self.kind.collection()), StatusCode::OK),
                Operation::Page => (Ask::get(page_path(self.kind, &token)), StatusCode::OK),
                Operation::Patch => (self.kind.patch(number, &written), StatusCode::OK),
                Operation::Apply => (self.kind.apply(number, &written), StatusCode::OK),
                Operation::Delete => (self.kind.delete(number), StatusCode::OK),
                Operation::Watch => panic!("watching is not asked again and again"),
            };
            let began = Instant::now();
            let answer = tokio::time::timeout(PATIENCE, client.ask(ask)).await;
            times.push(began.elapsed());
            let (status, body) = answer.expect("an answer comes in time").unwrap();
            assert_eq!(status, expected, "{:?}: {}", self.operation, text(&body));
            match self.operation {
                Operation::List => self.alike(&body, self.seen().list),
                Operation::Page => {
                    self.alike(&body, self.seen().pages[page]);
                    token = token_of(&body);
                    page = if token.is_empty() { 0 } else { page + 1 };
                    assert!(page < self.seen().pages.len(), "there is no page after the last");
                }
                Operation::Patch | Operation::Apply => self.has(&body, &written),
                Operation::Create | Operation::Get => {
                    self.has(&body, &name(number));
                    assert!(body.len() >= SIZE, "an object has all of it: {}", text(&body));
                }
                Operation::Delete | Operation::Watch => {}
            }
        }
        times
    }

    fn seen(&self) -> &Seen {
        self.seen.as_ref().expect("a list was looked at before")
    }

    /// Is an answer as long as the one that was read whole?
    fn alike(&self, body: &Bytes, length: usize) {
        let differs = body.len().abs_diff(length);
        assert!(
            differs <= SLACK,
            "{:?}: {} bytes, and {length} when it was looked at: {}",
            self.operation,
            body.len(),
            text(body)
        );
    }

    fn has(&self, body: &Bytes, what: &str) {
        let quoted = format!("\"{what}\"");
        let there = body.windows(quoted.len()).any(|part| part == quoted.as_bytes());
        assert!(there, "{:?}: {quoted} is not in {}", self.operation, text(body));
    }
}

/// The token with which a list goes on. It is at the beginning or at the end, and no item has such
/// a key.
fn token_of(body: &Bytes) -> String {
    const KEY: &[u8] = b"\"continue\":\"";
    const REACH: usize = 1024;
    let parts = [&body[..body.len().min(REACH)], &body[body.len().saturating_sub(REACH)..]];
    for part in parts {
        if let Some(at) = part.windows(KEY.len()).position(|window| window == KEY) {
            let rest = &part[at + KEY.len()..];
            let end = rest.iter().position(|byte| *byte == b'"').expect("a token ends");
            return String::from_utf8_lossy(&rest[..end]).into_owned();
        }
    }
    String::new()
}

pub(crate) fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(1000)]).into_owned()
}
