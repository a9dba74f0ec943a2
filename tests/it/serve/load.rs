//! Hostile load on the real binary in a container's memory: every row of the table is what
//! a user with few rights can send. Meanwhile a second client gets its answers.
//!
//! Nothing here judges how fast the machine is. An attack goes on until the second client has its
//! answers, so a server that is held up never gives them; the control group holds the memory; and each
//! attack counts what became of its requests, so that none passes that the server never met.

mod attack;
mod full;
mod readers;
mod strangers;

use std::{
    fs,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use futures::future::join_all;
use http::{Request, request::Builder};
use http_body_util::{BodyExt as _, Full};
use serde::Deserialize as _;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};

use crate::support::{
    cgroup::Cgroup,
    client::{Client, Reply, SERVICE},
    server::{Server, World, brief},
    wait::until,
};
use attack::AttackTally;

/// The limit of the manifest.
const MEMORY: u64 = 256 << 20;
/// Limit for an answer, on any machine. A server that is held up by an attack gives none, however long
/// one waits.
const ANSWER: Duration = Duration::from_secs(300);
/// Rounds of questions that the second client asks at least while an attack goes on.
const ROUNDS: usize = 3;
/// How often the second client connects for a request. The server gives a handshake 10 s and then the
/// head of a first request 5 s, and a crowd of handshakes takes longer on a machine that does other
/// things too. In TLS 1.3 a client is done with its part before the server is, so it may see either
/// end. What it sends may be sent twice, so it connects again.
const CONNECTS: usize = 3;

const CLUSTERS: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/cassandraclusters";
const PILOTS: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces/db/pilots";
const MIB: usize = 1 << 20;
/// The ServiceAccount of a pilot.
const PILOT: &str = "system:serviceaccount:db:cassandra-demo";

fn as_user(request: Builder, user: &str) -> Builder {
    request.header("X-Remote-User", user)
}

/// A server in a small control group, a hostile client and a second one.
struct Siege {
    world: World,
    server: Server,
    group: Cgroup,
}

impl Siege {
    async fn begin() -> Self {
        Self::begin_with(&[]).await
    }

    /// A server with more flags; `{trail}` is a file in the folder of this world.
    async fn begin_with(flags: &[&str]) -> Self {
        Self::begin_in(World::new().await, flags).await
    }

    async fn begin_in(world: World, flags: &[&str]) -> Self {
        let group = Cgroup::with_memory("load", MEMORY);
        for verb in ["create", "get", "list", "update", "patch", "delete", "watch"] {
            world.kube.allow("mallory", verb, "cassandraclusters");
            world.kube.allow("mallory", verb, "pilots");
        }
        world.kube.allow("jane", "get", "pilots");
        world.kube.allow(PILOT, "patch", "pilots/status");
        let trail = world.path("trail");
        let flags: Vec<_> = flags.iter().map(|flag| flag.replace("{trail}", &trail)).collect();
        let server = world.start_in(&group, "store", &flags);
        server.until_ready().await;
        let siege = Self { world, server, group };
        let pilot = json!({"metadata": {"name": "a"}, "spec": {}}).to_string();
        let made = as_user(Request::post(PILOTS), "mallory").body(pilot).unwrap();
        assert_eq!(siege.client().send(made).await.unwrap().status, 201);
        siege
    }

    fn client(&self) -> Client {
        Client::new(self.server.address, Some(&self.world.proxy()), None)
    }

    /// Runs an attack of one pass while the second client asks.
    async fn row<T>(&self, name: &str, hostile: impl Future<Output = T>) -> T {
        self.row_until(name, async |_: &AtomicBool| hostile.await).await
    }

    /// Sends a request of mallory's so many times at once, and each of them again until the second
    /// client has its answers. Returns what became of them.
    async fn storm(
        &self,
        name: &str,
        times: usize,
        request: impl Fn() -> Request<String>,
    ) -> AttackTally {
        let tally = Box::pin(self.row_until(name, async |is_answered: &AtomicBool| {
            let client = self.client();
            let send_on = async || {
                let mut tally = AttackTally::default();
                loop {
                    let reply = timeout(ANSWER, client.send(request())).await;
                    let reply = reply.expect("every request is answered");
                    let reply =
                        reply.unwrap_or_else(|error| panic!("{error:?}\n{}", self.server.log()));
                    tally.answer(reply.status);
                    if is_answered.load(Ordering::Relaxed) {
                        return tally;
                    }
                }
            };
            AttackTally::sum(join_all((0..times).map(|_| send_on())).await)
        }));
        let tally = tally.await;
        tally.print(name);
        tally
    }

    /// Runs an attack while the second client asks. The attack is told when the second client has its
    /// answers, and the second client goes on until the attack is over.
    #[expect(clippy::print_stderr, reason = "figures for whoever wants to see them")]
    async fn row_until<T>(&self, name: &str, hostile: impl AsyncFnOnce(&AtomicBool) -> T) -> T {
        let (is_answered, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let (began, before) = (Instant::now(), self.server.spent());
        let attack = async {
            let outcome = hostile(&is_answered).await;
            is_over.store(true, Ordering::Relaxed);
            outcome
        };
        let second = self.second_client(name, &is_answered, &is_over);
        let (outcome, slowest) = futures::join!(attack, second);
        let (took, memory) = (began.elapsed(), self.group.memory() >> 20);
        let spent = self.server.spent().saturating_sub(before);
        eprintln!(
            "{name}: {took:.1?}, {spent:.1?} of processors, slowest answer {slowest:.1?}, {memory} MiB \
             afterwards"
        );
        outcome
    }

    /// Asks until the row is over, [`ROUNDS`] times at least. Returns how long the slowest answer took.
    async fn second_client(
        &self,
        row: &str,
        is_answered: &AtomicBool,
        is_over: &AtomicBool,
    ) -> Duration {
        let client = self.client();
        let mut slowest = Duration::ZERO;
        let mut asked = 0;
        while asked < ROUNDS || !is_over.load(Ordering::Relaxed) {
            for request in [
                as_user(Request::get(format!("{PILOTS}/a")), "jane").body(String::new()).unwrap(),
                report(asked),
                as_user(Request::get("/livez"), "jane").body(String::new()).unwrap(),
            ] {
                let path = request.uri().to_string();
                let began = Instant::now();
                let reply = timeout(ANSWER, self.ask_until_answered(row, &client, &request)).await;
                let reply =
                    reply.unwrap_or_else(|_| panic!("{row}: no answer to {path} in {ANSWER:?}"));
                assert_eq!(reply.status, 200, "{row}: {path}: {}", brief(&reply));
                slowest = slowest.max(began.elapsed());
            }
            asked += 1;
            is_answered.store(asked >= ROUNDS, Ordering::Relaxed);
            sleep(Duration::from_millis(50)).await;
        }
        slowest
    }

    /// Sends a request over a connection of its own, and over another one where the server gave up
    /// that before it answered. What the client saw is printed, and the time of all of it is that of
    /// the answer.
    #[expect(clippy::print_stderr, reason = "a connection that was given up is not passed over")]
    async fn ask_until_answered(
        &self,
        row: &str,
        client: &Client,
        request: &Request<String>,
    ) -> Reply {
        let path = request.uri().path();
        for tried in 1.. {
            let began = Instant::now();
            match client.send(request.clone()).await {
                Ok(reply) => return reply,
                Err(error) if tried < CONNECTS => {
                    let took = began.elapsed();
                    eprintln!("{row}: {path}: given up after {took:.1?} ({error}), once more");
                }
                Err(error) => {
                    panic!("{row}: {path}: {tried} times, {error}\n{}", self.server.log())
                }
            }
        }
        unreachable!("the last try returns or panics")
    }

    /// Checks that the server lived through it within its memory.
    fn end(mut self) {
        assert!(self.server.is_running(), "the server ended\n{}", self.server.log());
        assert_eq!(self.group.kills(), 0, "the kernel killed for want of memory");
    }

    /// Memory beyond `before`, in MiB.
    fn more_memory(&self, before: u64) -> u64 {
        self.group.memory().saturating_sub(before) >> 20
    }
}

/// A status report of a pilot.
fn report(time: usize) -> Request<String> {
    let body = json!({"status": {"message": format!("report {time}")}});
    as_user(Request::patch(format!("{PILOTS}/a/status")), PILOT)
        .header("X-Remote-Extra-authentication.kubernetes.io%2Fpod-name", "a")
        .header("content-type", "application/merge-patch+json")
        .body(body.to_string())
        .unwrap()
}

fn post(body: &str) -> Request<String> {
    as_user(Request::post(CLUSTERS), "mallory")
        .header("content-type", "application/json")
        .body(body.to_owned())
        .unwrap()
}

fn post_yaml(body: &str) -> Request<String> {
    as_user(Request::post(CLUSTERS), "mallory")
        .header("content-type", "application/yaml")
        .body(body.to_owned())
        .unwrap()
}

fn json_patch(body: &str) -> Request<String> {
    as_user(Request::patch(format!("{PILOTS}/a")), "mallory")
        .header("content-type", "application/json-patch+json")
        .body(body.to_owned())
        .unwrap()
}

/// `unit` as often as it fits a body, without its last comma.
fn fill(unit: &str) -> String {
    let text = unit.repeat((3 * MIB - 4096) / unit.len());
    text.trim_end_matches(',').to_owned()
}

/// A cluster of as many pools as there may be, with long settings of their own: as large as what
/// people write may become.
fn large_cluster(name: &str) -> String {
    let setting = |at| (format!("some.setting_of.the_database_{at}"), json!(format!("value {at}")));
    let config: serde_json::Map<_, _> = (0..200).map(setting).collect();
    let memory = json!({"memory": "4Gi"});
    let pools: Vec<_> = (0..50)
        .map(|at| {
            json!({
                "name": format!("p{at}"), "replicas": 3, "config": config,
                "persistence": {"size": "10Gi"},
                "resources": {"requests": memory, "limits": memory},
            })
        })
        .collect();
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "CassandraCluster",
        "metadata": {"name": name}, "spec": {"version": "5.0.6", "nodePools": pools},
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_load_neither_ends_the_server_nor_holds_others_up() {
    let siege = Siege::begin().await;
    send_all(&siege).await;
    large_lists(&siege).await;
    Box::pin(hostile_connections(&siege)).await;

    // A large cluster that a user may mean still passes.
    let reply = siege.client().send(post(&large_cluster("large"))).await.unwrap();
    assert_eq!(reply.status, 201, "{}", brief(&reply));
    siege.end();
}

/// Bodies that are refused however little memory they take: name, body, codes.
fn hostile_bodies() -> Vec<(&'static str, String, Vec<u16>)> {
    let long = "k".repeat(3000);
    let longest = "k".repeat(2 * MIB);
    let twice: Vec<_> = (0..100_000).map(|key| format!("\"{key}\":0")).collect();
    let fields: Vec<_> = (0..80_000).map(|at| format!("\"f:{at:05}\":{{}}")).collect();
    let labels: Vec<_> = (0..20_000).map(|key| format!("\"!{key}\":\"\"")).collect();
    let owners: Vec<_> = (0..5000)
        .map(|at| {
            json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": at.to_string(), "controller": true})
        })
        .collect();
    let owners = json!(owners);
    vec![
        ("deep", fill("["), vec![400]),
        ("wide", format!("[{}]", fill("0,")), vec![413]),
        ("small maps", format!("[{}]", fill("{\"a\":0},")), vec![413]),
        ("one key again and again", format!("{{{}}}", fill("\"a\":0,")), vec![413]),
        ("keys twice", format!("{{{0},{0}}}", twice.join(",")), vec![413]),
        (
            "a long key, 300 numbers",
            format!("{{{longest:?}:[{}]}}", "1.50,".repeat(300) + "1"),
            vec![400],
        ),
        (
            "a long key, 20 000 numbers",
            format!("{{{long:?}:[{}]}}", "1.50,".repeat(20_000) + "1"),
            vec![413],
        ),
        (
            "labels",
            format!(
                "{{\"metadata\":{{\"name\":\"a\",\"labels\":{{{}}}}},\"spec\":{{\"version\":\"5.0.6\",\"nodePools\":[]}}}}",
                labels.join(",")
            ),
            vec![422],
        ),
        (
            "owners",
            format!(
                "{{\"metadata\":{{\"name\":\"a\",\"ownerReferences\":{owners}}},\"spec\":{{\"version\":\"5.0.6\",\"nodePools\":[]}}}}"
            ),
            vec![422],
        ),
        (
            "entries of owners",
            format!(
                "{{\"metadata\":{{\"name\":\"a\",\"labels\":{{\"!\":\"\"}},\"managedFields\":[{{\"manager\":\"m\",\"operation\":\"Update\",\"apiVersion\":\"navigator.jetstack.io/v1beta1\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{{{}}}}}]}},\"spec\":{{\"version\":\"5.0.6\",\"nodePools\":[]}}}}",
                fields.join(",")
            ),
            vec![422],
        ),
    ]
}

/// Patches that are refused before they take much: name, patch, codes.
fn hostile_patches() -> Vec<(&'static str, String, Vec<u16>)> {
    let list = format!("[{}0]", "0,".repeat(40_000));
    let mut inserts = vec![format!("{{\"op\":\"add\",\"path\":\"/x\",\"value\":{list}}}")];
    inserts.extend((0..4_500).map(|_| "{\"op\":\"add\",\"path\":\"/x/0\",\"value\":0}".to_owned()));
    let mut copies = vec!["{\"op\":\"add\",\"path\":\"/x\",\"value\":{}}".to_owned()];
    for level in 0..18 {
        let path = format!("/x{}", "/x".repeat((1 << level) - 1));
        copies.push(format!("{{\"op\":\"copy\",\"from\":\"/x\",\"path\":\"{path}/x\"}}"));
    }
    [("inserts into a long list", inserts, vec![422]), ("a patch without end", copies, vec![422])]
        .map(|(name, operations, codes)| (name, format!("[{}]", operations.join(",")), codes))
        .into()
}

/// The same of YAML.
fn hostile_yaml() -> Vec<(&'static str, String, Vec<u16>)> {
    let mut bomb = vec!["a0: &a0 [x, x, x, x, x, x, x, x, x, x]".to_owned()];
    for level in 1..12 {
        let list = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push(format!("a{level}: &a{level} [{list}]"));
    }
    vec![
        ("aliases", bomb.join("\n"), vec![400, 413]),
        ("wide YAML", format!("[{}0]", "0,".repeat(MIB)), vec![400, 413]),
        ("as wide as is read", format!("[{}0]", "0,".repeat(60_000)), vec![400, 413]),
        ("deep YAML", "[".repeat(60_000), vec![400, 413]),
    ]
}

/// Sends eight of each body at once. Too many large ones at a time are turned away (429), and never all
/// of them.
async fn send_all(siege: &Siege) {
    let bodies = hostile_bodies().into_iter();
    let bodies = bodies.map(|(name, body, codes)| (name, post(&body), codes));
    let patches = hostile_patches().into_iter();
    let patches = patches.map(|(name, body, codes)| (name, json_patch(&body), codes));
    let yaml = hostile_yaml().into_iter();
    let yaml = yaml.map(|(name, body, codes)| (name, post_yaml(&body), codes));
    for (name, request, expected) in bodies.chain(patches).chain(yaml) {
        let tally = siege.storm(name, 8, || request.clone()).await;
        let is_expected = tally.codes_but_429().iter().all(|code| expected.contains(code));
        assert!(is_expected, "{name}: {tally:?}, and not {expected:?}");
        assert!(tally.landed() >= ROUNDS, "{name}: {tally:?}");
    }
}

/// The measurements of this file are made with what the manifest sets.
#[tokio::test]
async fn a_server_under_load_runs_in_the_environment_of_the_manifest() {
    let manifest = fs::read_to_string("deploy/navigator.yaml").unwrap();
    let set: Vec<String> = serde_yaml::Deserializer::from_str(&manifest)
        .map(|document| serde_json::Value::deserialize(document).unwrap())
        .filter(|object| object["kind"] == "Deployment")
        .filter_map(|object| object["spec"]["template"]["spec"]["containers"].as_array().cloned())
        .flatten()
        .filter(|container| container["args"][0] == "apiserver")
        .flat_map(|container| container["env"].as_array().cloned().unwrap())
        .filter_map(|set| Some(format!("{}={}", set["name"].as_str()?, set["value"].as_str()?)))
        .collect();
    assert!(!set.is_empty());
    let siege = Siege::begin().await;
    let environment = fs::read_to_string(format!("/proc/{}/environ", siege.server.pid())).unwrap();
    let mut found: Vec<_> = environment.split_terminator('\0').collect();
    found.retain(|variable| !variable.starts_with("PWD="));
    found.sort_unstable();
    assert_eq!(found, set);
}

/// Each request has a server of its own, so that no memory that another one left behind is counted
/// as free.
#[tokio::test]
async fn one_request_costs_at_most_24_mib_whatever_is_in_its_body() {
    let bodies = hostile_bodies().into_iter().map(|(name, body, _)| (name, post(&body)));
    let patches = hostile_patches().into_iter().map(|(name, body, _)| (name, json_patch(&body)));
    let yaml = hostile_yaml().into_iter().map(|(name, body, _)| (name, post_yaml(&body)));
    let large = [("a large cluster", post(&large_cluster("large")))];
    let mut costs = Vec::new();
    for (name, request) in bodies.chain(patches).chain(yaml).chain(large) {
        let siege = Siege::begin().await;
        costs.push(cost_of_one(name, &siege.world, &siege.server, request).await);
    }
    // The most that one request may hold: the object as it was, the change, and the object as it is
    // to be.
    let Siege { world, server, group } = Siege::begin().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    assert_eq!(client.send(post(&large_cluster("large"))).await.unwrap().status, 201);
    drop(server);
    let server = world.start_in(&group, "store", &[]);
    server.until_ready().await;
    let change: serde_json::Value = serde_json::from_str(&large_cluster("large")).unwrap();
    let change = json!({"spec": change["spec"], "metadata": {"labels": {"a": "b"}}}).to_string();
    let change = as_user(Request::patch(format!("{CLUSTERS}/large")), "mallory")
        .header("content-type", "application/merge-patch+json")
        .body(change)
        .unwrap();
    costs.push(cost_of_one("a change of all of a large cluster", &world, &server, change).await);
    costs.sort_unstable();
    assert!(costs.last().unwrap().0 <= 24 << 10, "KiB: {costs:?}");
}

#[expect(clippy::print_stderr, reason = "figures for whoever wants to see them")]
async fn cost_of_one(
    name: &'static str,
    world: &World,
    server: &Server,
    request: Request<String>,
) -> (i64, &'static str) {
    let pid = server.pid();
    let client = Client::new(server.address, Some(&world.proxy()), None);
    // What the server makes once is no request's cost.
    for again in [post("[]"), post_yaml("[]"), json_patch("[]")] {
        client.send(again).await.unwrap();
    }
    let before = memory(pid, "VmRSS");
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    let began = Instant::now();
    let code = client.send(request).await.unwrap().status;
    let (took, cost) = (began.elapsed(), memory(pid, "VmHWM") - before);
    eprintln!("{name}: {code}, {cost} KiB, {took:.1?}");
    (cost, name)
}

/// A line of a process's status, in KiB.
fn memory(pid: u32, what: &str) -> i64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Many clients ask for large lists: compressed, as Tables, and without reading them.
async fn large_lists(siege: &Siege) {
    for at in 0..10 {
        let made = siege.client().send(post(&large_cluster(&format!("c{at}")))).await.unwrap();
        assert_eq!(made.status, 201, "{}", brief(&made));
    }
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    for (name, times, accept, encoding) in [
        ("compressed lists", 20, "application/json", "gzip"),
        ("Tables", 20, table, "identity"),
        ("YAML lists", 3, "application/yaml", "identity"),
    ] {
        let request = || {
            as_user(Request::get(CLUSTERS), "mallory")
                .header("accept", accept)
                .header("accept-encoding", encoding)
                .body(String::new())
                .unwrap()
        };
        let tally = siege.storm(name, times, request).await;
        assert_eq!(tally.codes_but_429(), [200], "{name}: {tally:?}");
        assert!(tally.landed() >= times, "{name}: {tally:?}");
    }
    siege.row("slow readers", slow_readers(siege)).await;
}

/// Connections that ask for everything and read nothing.
const READERS: usize = 100;

/// They are cut.
async fn slow_readers(siege: &Siege) {
    let client = siege.client();
    let head = format!("GET {CLUSTERS} HTTP/1.1\r\nHost: x\r\nX-Remote-User: mallory\r\n\r\n");
    let before = siege.server.descriptors();
    // As many may be open still when the rest was cut, since the second client's connections come and go.
    let left = READERS / 10;
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let mut stream = client.connect().await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        readers.push(stream);
    }
    // Each connection is one descriptor of the server.
    until("the server cuts those who read nothing", ANSWER, async || {
        let (open, most) = (siege.server.descriptors(), before + left);
        if open <= most { Ok(()) } else { Err(format!("{open} descriptors, not {most}")) }
    })
    .await;
    // What the kernel took in still arrives, and then the end, before all was sent. Those that are open
    // read on.
    let ends = join_all(readers.iter_mut().map(async |stream| {
        let mut all = Vec::new();
        drop(stream.read_to_end(&mut all).await);
        all.ends_with(b"]}\n")
    }));
    let ends = timeout(ANSWER, ends).await.expect("every one is cut");
    let whole = ends.into_iter().filter(|whole| *whole).count();
    assert!(whole <= left, "{whole} of {READERS} got all of it");
}

async fn hostile_connections(siege: &Siege) {
    let mut held = Vec::new();
    siege.row("slow senders", slow_senders(siege, &mut held)).await;
    drop(held);
    Box::pin(siege.row("reset streams", reset_streams(siege))).await;
    let streams = siege.row("10 000 half-open connections", half_open(siege.server.address)).await;
    siege.row("while they are open", std::future::ready(())).await;
    assert!(streams.len() > 9_000, "{}", streams.len());
}

/// Three hundred clients send a third of a large body, and then nothing.
async fn slow_senders(siege: &Siege, held: &mut Vec<tokio_rustls::client::TlsStream<TcpStream>>) {
    let client = siege.client();
    let head = format!(
        "POST {CLUSTERS} HTTP/1.1\r\nHost: x\r\nX-Remote-User: mallory\r\nContent-Length: {}\r\n\r\n",
        3 * MIB
    );
    let part = " ".repeat(MIB);
    for _ in 0..300 {
        // A client like this may be turned away, and others not.
        let Ok(mut stream) = client.connect().await else { continue };
        let sent = async {
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(part.as_bytes()).await
        };
        // The server reads no more of a client that it turns away, however long one waits.
        drop(timeout(Duration::from_millis(20), sent).await);
        held.push(stream);
    }
    assert!(held.len() >= 100, "{} connections sent a part of a body", held.len());
}

/// One connection that opens streams and resets them at once, as fast as it can, is ended.
async fn reset_streams(siege: &Siege) {
    let mut stream = siege.client().connect_http2().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    stream.write_all(preface).await.unwrap();
    let mut frames = Vec::new();
    for id in (1_u32..2000).step_by(2) {
        // HEADERS with its end: GET https://x/
        frames.extend([0, 0, 6, 1, 5]);
        frames.extend(id.to_be_bytes());
        frames.extend([0x82, 0x87, 0x84, 0x41, 1, b'x']);
        // RST_STREAM: CANCEL
        frames.extend([0, 0, 4, 3, 0]);
        frames.extend(id.to_be_bytes());
        frames.extend([0, 0, 0, 8]);
    }
    // The connection may be cut before all was sent.
    drop(stream.write_all(&frames).await);
    let mut answer = Vec::new();
    let end = timeout(ANSWER, stream.read_to_end(&mut answer)).await;
    assert!(end.is_ok(), "the connection was not ended");
}

/// Connections that never say anything, from twenty addresses.
async fn half_open(server: SocketAddr) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for batch in 0..20_u8 {
        let opened = (0..500).map(|_| async move {
            let socket = TcpSocket::new_v4()?;
            socket.bind(([127, 0, 1, batch + 1], 0).into())?;
            socket.connect(server).await
        });
        // A client for which the kernel has no room tries again, ever later.
        let opened = timeout(ANSWER, join_all(opened)).await.expect("the kernel lets them in");
        streams.extend(opened.into_iter().filter_map(std::io::Result::ok));
    }
    streams
}

#[tokio::test]
async fn a_connection_without_a_first_request_is_closed() {
    let world = World::new().await;
    let server = world.start("store", &[]);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    let mut silent = client.connect().await.unwrap();
    let mut answer = Vec::new();
    let end = timeout(ANSWER, silent.read_to_end(&mut answer)).await;
    assert!(end.is_ok(), "it is still open after {ANSWER:?}");
    assert!(answer.is_empty());
}

/// How long a stream is not read: three times as long as the server bears.
const UNREAD: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_stream_that_is_not_read_is_reset_and_others_go_on() {
    let world = World::new().await;
    for verb in ["create", "get", "list"] {
        world.kube.allow("mallory", verb, "cassandraclusters");
    }
    let server = world.start("store", &[]);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    let made = client.send(post(&large_cluster("large"))).await.unwrap();
    assert_eq!(made.status, 201, "{}", brief(&made));

    let (connection, sender) = client.http2().await;
    let get = |path: &str| {
        let mut sender = sender.clone();
        let request = as_user(Request::get(format!("https://x{path}")), "mallory");
        async move { sender.send_request(request.body(Full::default()).unwrap()).await }
    };
    let read = async {
        let mut unread = get(CLUSTERS).await.unwrap().into_body();
        drop(unread.frame().await.unwrap().unwrap());
        // The server resets what was not read for 10 s, on its own clock. Its reset stays in the connection
        // until the stream is read, so nothing can be waited for but time.
        sleep(UNREAD).await;
        let one = get(&format!("{CLUSTERS}/large")).await.unwrap();
        assert_eq!(one.status(), 200);
        let whole = one.into_body().collect().await.unwrap().to_bytes();
        assert!(whole.len() > 256 * 1024, "{}", whole.len());
        // What was on its way still arrives, then the reset.
        let end = timeout(ANSWER, async {
            while let Some(frame) = unread.frame().await {
                frame?;
            }
            Ok::<_, hyper::Error>(())
        });
        let error = end.await.expect("the stream ends").expect_err("it was not reset");
        assert!(format!("{error:?}").contains("CANCEL"), "{error:?}");
    };
    tokio::select! {
        () = read => {}
        ended = connection => panic!("the connection ended: {ended:?}"),
    }
}
