//! A store that a user fills as far as that goes, in a container's memory: other clients go on, and
//! so does every next process.

use std::time::Instant;

use futures::future::join_all;
use http::Request;
use navigator::apiserver::capacity::CapacityBounds;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{ANSWER, MEMORY, PILOT, PILOTS, Siege, as_user};
use crate::{
    storage::{etcd_server, kube_apiserver},
    support::{
        cgroup::Cgroup,
        client::Reply,
        server::{brief, run_to_end},
    },
};

const API: &str = "/apis/navigator.jetstack.io/v1beta1/namespaces";
/// Servers in a row that serve what is stored; the second number where there is time.
const RESTARTS: usize = 2;
const MORE_RESTARTS: usize = 10;
/// What one object may have beside its spec.
const NOTE: usize = 250 * 1024;
/// An object of this size tests whether there is any room.
const LITTLE: usize = 2048;

/// Each server on its own store.
struct Kept {
    name: &'static str,
    flags: Vec<String>,
}

fn note(resource: &str, name: &str, bytes: usize) -> Value {
    let (kind, spec) = match resource {
        "pilots" => ("Pilot", json!({})),
        _ => (
            "CassandraCluster",
            json!({"version": "5.0.6", "nodePools": [{"name": "a", "replicas": 1}]}),
        ),
    };
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": kind,
        "metadata": {"name": name, "annotations": {"note": "n".repeat(bytes)}}, "spec": spec,
    })
}

impl Siege {
    async fn ask(&self, user: &str, method: &str, path: &str, body: &Value) -> Reply {
        let form = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder().method(method).uri(path).header("content-type", form);
        let request = as_user(request, user).body(body).unwrap();
        let reply = timeout(ANSWER, self.client().send(request)).await;
        let reply = reply.unwrap_or_else(|_| panic!("no answer to {method} {path}"));
        reply.unwrap_or_else(|error| panic!("{method} {path}: {error}\n{}", self.server.log()))
    }

    /// Creates objects, four at a time, until one is refused; returns the message.
    async fn fill(&self, namespace: &str, resource: &str, bytes: usize) -> String {
        let path = format!("{API}/{namespace}/{resource}");
        for at in 0.. {
            let name = |part| format!("{}-{bytes}-{at}-{part}", &resource[..1]);
            let replies = join_all((0..4).map(async |part| {
                let object = note(resource, &name(part), bytes);
                self.ask("mallory", "POST", &path, &object).await
            }));
            for reply in replies.await {
                match reply.status {
                    // 429 means too many large bodies at a time.
                    201 | 429 => {}
                    403 => return reply.body,
                    _ => panic!("{}", brief(&reply)),
                }
            }
        }
        unreachable!("there is a bound")
    }

    /// Requests that go on however much is stored.
    async fn goes_on(&self, round: usize) {
        let a = format!("{PILOTS}/a");
        let reply = self.ask("jane", "GET", &a, &Value::Null).await;
        assert_eq!(reply.status, 200, "{}", brief(&reply));
        let told = json!({"status": {"pilotVersion": format!("v{round}")}});
        let request = as_user(Request::patch(format!("{a}/status")), PILOT)
            .header("X-Remote-Extra-authentication.kubernetes.io%2Fpod-name", "a")
            .header("content-type", "application/merge-patch+json");
        let reply = self.client().send(request.body(told.to_string()).unwrap()).await.unwrap();
        assert_eq!(
            reply.json()["status"]["pilotVersion"],
            format!("v{round}"),
            "{}",
            brief(&reply)
        );
        assert_eq!(reply.status, 200, "{}", brief(&reply));
        let lease = json!({"spec": {"holderIdentity": format!("pilot {round}")}});
        let reply = self.ask("mallory", "PATCH", &format!("{API}/db/leaderleases/l"), &lease).await;
        assert_eq!(reply.status, 200, "{}", brief(&reply));
        let gone = format!("{PILOTS}/spare{round}");
        let reply = self.ask("mallory", "DELETE", &gone, &Value::Null).await;
        assert_eq!(reply.status, 200, "{}", brief(&reply));
        assert_eq!(self.ask("jane", "GET", "/livez", &Value::Null).await.status, 200);
    }

    /// Kills the server and starts the next one on what is stored.
    async fn restart(self, flags: &[String]) -> Self {
        let Self { world, server, group } = self;
        drop(server);
        let server = world.start_in(&group, "store", flags);
        server.until_ready().await;
        Self { world, server, group }
    }
}

#[expect(clippy::print_stderr, reason = "figures for whoever wants to see them")]
async fn is_filled_and_served_by_each_next_server(kept: Kept, restarts: usize) {
    let Kept { name, flags } = kept;
    let flag: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut siege = Siege::begin_with(&flag).await;
    for verb in ["create", "patch", "get"] {
        siege.world.kube.allow("mallory", verb, "leaderleases");
    }
    siege.world.kube.allow("jane", "get", "/metrics");
    for namespace in ["x", "y"] {
        siege.world.kube.put("/api/v1/namespaces", namespace, json!({}));
    }
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "nobody"}});
    let made = siege.ask("mallory", "POST", &format!("{API}/db/leaderleases"), &lease).await;
    assert_eq!(made.status, 201, "{}", brief(&made));
    for at in 0..=restarts {
        let spare = note("pilots", &format!("spare{at}"), 1);
        let made = siege.ask("mallory", "POST", PILOTS, &spare).await;
        assert_eq!(made.status, 201, "{}", brief(&made));
    }
    // Large objects, then what still fits between; in one namespace, then in all.
    let filling = async {
        let mut refused = String::new();
        for namespace in ["db", "x", "y"] {
            siege.fill(namespace, "cassandraclusters", NOTE).await;
            refused = siege.fill(namespace, "pilots", LITTLE).await;
        }
        refused
    };
    let began = Instant::now();
    let refused = Box::pin(siege.row(name, filling)).await;
    assert!(refused.contains("exceeded what may be stored: all objects count"), "{refused}");
    let stored = bytes_stored(&siege).await;
    let bounds = CapacityBounds::new(usize::try_from(MEMORY).unwrap());
    assert!(stored + NOTE > bounds.all, "{stored} of {bounds:?}");
    eprintln!(
        "{name}: {stored} bytes in {:.1?}, {} MiB",
        began.elapsed(),
        siege.group.memory() >> 20
    );
    siege.goes_on(0).await;
    for round in 1..=restarts {
        let began = Instant::now();
        siege = siege.restart(&flags).await;
        let took = began.elapsed();
        siege.goes_on(round).await;
        let clusters = format!("{API}/db/cassandraclusters");
        let list = siege.ask("mallory", "GET", &clusters, &Value::Null).await;
        assert!(list.status == 200 && list.body.len() > 10 << 20, "{}", list.body.len());
        eprintln!("{name}: start {round}: {took:.1?}, {} MiB", siege.group.memory() >> 20);
    }
    siege.end();
}

async fn bytes_stored(siege: &Siege) -> usize {
    let page = siege.ask("jane", "GET", "/metrics", &Value::Null).await;
    let line = page.body.lines().find(|line| line.starts_with("navigator_apiserver_stored_bytes "));
    let line = line.unwrap_or_else(|| panic!("{}", brief(&page)));
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

fn embedded() -> Kept {
    Kept { name: "a full embedded store", flags: Vec::new() }
}

fn in_etcd(etcd: &etcd_server::Server) -> Kept {
    let flags = vec!["--store=etcd".to_owned(), format!("--etcd-servers={}", etcd.url())];
    Kept { name: "a full etcd", flags }
}

async fn in_kubernetes(namespace: &str) -> Kept {
    let kube = kube_apiserver::shared();
    kube.namespace(namespace).await;
    let flags = vec![
        "--store=kubernetes".to_owned(),
        format!("--store-namespace={namespace}"),
        format!("--store-kubeconfig={}", kube.master().display()),
    ];
    Kept { name: "a full store in Kubernetes", flags }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_embedded_store_is_served_by_each_next_server() {
    Box::pin(is_filled_and_served_by_each_next_server(embedded(), RESTARTS)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: make full-stores"]
async fn full_stores_are_served_by_ten_servers_in_a_row() {
    let etcd = etcd_server::Server::start();
    for kept in [embedded(), in_etcd(&etcd), in_kubernetes("filled").await] {
        Box::pin(is_filled_and_served_by_each_next_server(kept, MORE_RESTARTS)).await;
    }
}

/// The limit was lowered below what is stored: the server loads nothing, and tells every client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_too_little_memory_for_what_is_stored_lives_and_says_so() {
    let siege = Siege::begin().await;
    siege.fill("db", "cassandraclusters", NOTE).await;
    let Siege { world, server, group } = siege;
    drop(server);
    let small = Cgroup::with_memory("small", MEMORY / 4);
    let mut server = world.start_in(&small, "store", &[]);
    let mut said = String::new();
    for path in ["/readyz", "/healthz", PILOTS, "/apis", "/metrics"] {
        server
            .until(&format!("503 for {path}"), async || {
                let reply = server.stranger().get(path).await;
                let told = reply.status == 503 && reply.body.contains("nothing is served");
                if told { Ok(()) } else { Err(brief(&reply)) }
            })
            .await;
        said = server.stranger().get(path).await.body;
        assert_eq!(server.stranger().get("/livez").await.status, 200);
    }
    for part in ["memory limit of 67108864 holds ", "Raise the memory limit", "--even-readable"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(server.log().contains("too much is stored"), "{}", server.log());
    let needed = said.split(" to ").nth(1).and_then(|rest| rest.split(' ').next());
    let needed: u64 = needed.unwrap().parse().unwrap();
    // An idle server of a debug build takes 31 to 33 MiB, and what is stored takes more
    // than the limit.
    let taken = small.memory();
    assert!(taken < MEMORY / 4 / 4 * 3, "{taken} bytes");
    server.signal(nix::sys::signal::Signal::SIGTERM);
    server.ended().await;

    // The server serves with as much memory as it asks for.
    drop((server, group));
    let raised = Cgroup::with_memory("raised", needed);
    let server = world.start_in(&raised, "store", &[]);
    server.until_ready().await;
    drop(server);

    // The server also serves what is left when enough was forgotten.
    let forget = |names: &[String]| {
        let mut args: Vec<String> =
            ["apiserver", "store", "forget", "--even-readable"].map(str::to_owned).into();
        args.push(format!("--store-path={}", world.path("store")));
        args.extend_from_slice(names);
        run_to_end(&args)
    };
    let export = ["apiserver", "store", "export"].map(str::to_owned);
    let exported =
        run_to_end(&[&export[..], &[format!("--store-path={}", world.path("store"))]].concat());
    let keys = exported.stdout.lines().filter_map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let key = line["key"].as_str()?.strip_prefix("navigator.jetstack.io/")?.to_owned();
        key.starts_with("cassandraclusters").then_some(key)
    });
    let keys: Vec<String> = keys.collect();
    assert!(keys.len() > 10, "{}", exported.stderr);
    let forgotten = forget(&keys);
    assert_eq!(forgotten.code, Some(0), "{}", forgotten.stderr);
    assert_eq!(forgotten.stdout.lines().count(), keys.len());
    let server = world.start_in(&small, "store", &[]);
    server.until_ready().await;
}
