//! A store that is lost under a running server: the real binary, a real etcd, a scripted
//! kube-apiserver.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use http::Request;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    storage::etcd_server,
    support::{
        client::{Client, Reply},
        server::{PATIENCE, Server, World, brief},
    },
};

const GROUP: &str = "/apis/navigator.jetstack.io/v1beta1";
const KINDS: [&str; 4] = ["cassandraclusters", "elasticsearchclusters", "leaderleases", "pilots"];
const RECORD: &str = "/api/v1/namespaces/navigator/configmaps/navigator-store";

/// Answers after the store was lost, each of which might mislead.
const ENOUGH: usize = 500;

fn namespaced(kind: &str) -> String {
    format!("{GROUP}/namespaces/db/{kind}")
}

fn object(kind: &str, name: &str) -> String {
    let (kind, spec) = match kind {
        "pilots" => ("Pilot", json!({})),
        "leaderleases" => ("LeaderLease", json!({})),
        "cassandraclusters" => (
            "CassandraCluster",
            json!({"version": "5.0.6", "nodePools": [
                {"name": "a", "replicas": 1, "persistence": {"size": "1Gi"}},
            ]}),
        ),
        "elasticsearchclusters" => (
            "ElasticsearchCluster",
            json!({"version": "8.19.4", "nodePools": [
                {"name": "a", "replicas": 3, "roles": ["master", "data", "ingest"],
                 "persistence": {"size": "1Gi"}},
            ]}),
        ),
        other => panic!("{other}"),
    };
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": kind, "metadata": {"name": name},
        "spec": spec,
    })
    .to_string()
}

fn request(method: &str, path: &str, body: String) -> Request<String> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("X-Remote-User", "root")
        .header("X-Remote-Group", "system:masters")
        .header("content-type", "application/json");
    request.body(body).unwrap()
}

async fn send(client: &Client, method: &str, path: &str, body: String) -> Reply {
    client.send(request(method, path, body)).await.unwrap()
}

/// A server over etcd that holds an object `kept` of each kind.
async fn filled(world: &World, etcd: &str) -> (Server, Client) {
    let server = world.start("unused", &["--store=etcd", "--etcd-servers", etcd]);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    for kind in KINDS {
        let created = send(&client, "POST", &namespaced(kind), object(kind, "kept")).await;
        assert_eq!(created.status, 201, "{}", brief(&created));
    }
    (server, client)
}

/// Every form of reading, and creation: method, path, body.
fn questions(name: &str) -> Vec<(&'static str, String, String)> {
    let mut all = Vec::new();
    for kind in KINDS {
        let range = namespaced(kind);
        let named = format!("{range}/{name}");
        all.push(("GET", named.clone(), String::new()));
        all.push(("GET", format!("{named}?resourceVersion=0"), String::new()));
        all.push(("GET", range.clone(), String::new()));
        all.push(("GET", format!("{range}?resourceVersion=0"), String::new()));
        all.push(("GET", format!("{range}?limit=1"), String::new()));
        all.push(("GET", format!("{GROUP}/{kind}"), String::new()));
        all.push(("POST", range.clone(), object(kind, "made")));
        all.push(("DELETE", format!("{range}/never"), String::new()));
    }
    all
}

/// Does this answer speak for a store without `name`, or take a write into it?
fn misleads(method: &str, name: &str, reply: &Reply) -> bool {
    match (method, reply.status) {
        ("POST" | "DELETE", status) => matches!(status, 200..=299 | 404 | 409),
        (_, 404) => true,
        (_, 200) => !reply.body.contains(&format!("\"{name}\"")),
        _ => false,
    }
}

/// Asks everything again and again before and after `change`; no answer may mislead. Returns how
/// many were given after it.
async fn under_load(client: &Client, name: &str, change: impl Future<Output = ()>) -> usize {
    let (changed, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let after = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let asking = questions(name).into_iter().map(|(method, path, body)| {
        let (changed, done, after, wrong) = (&changed, &done, &after, &wrong);
        async move {
            while !done.load(Ordering::SeqCst) {
                let late = changed.load(Ordering::SeqCst);
                let Ok(reply) = client.send(request(method, &path, body.clone())).await else {
                    continue;
                };
                // What was written before the change is not asked about.
                if (late || method == "GET") && misleads(method, name, &reply) {
                    wrong.lock().unwrap().push(format!("{method} {path}: {}", brief(&reply)));
                }
                if late {
                    after.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    });
    let changing = async {
        change.await;
        changed.store(true, Ordering::SeqCst);
        let start = std::time::Instant::now();
        while after.load(Ordering::SeqCst) < ENOUGH && start.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        done.store(true, Ordering::SeqCst);
    };
    futures::future::join(join_all(asking), changing).await;
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} answers mislead, first: {:?}", wrong.len(), wrong[0]);
    after.into_inner()
}

/// Everything is refused, with words that name the way on.
async fn all_refused(server: &Server, client: &Client, words: &str) {
    server
        .until("every question is refused with what happened", async || {
            for (method, path, body) in questions("kept") {
                let reply = send(client, method, &path, body).await;
                if reply.status != 503 || !reply.body.contains(words) {
                    return Err(format!("{method} {path}: {}", brief(&reply)));
                }
            }
            Ok(())
        })
        .await;
}

/// Reads a watch to its end; the lines of its events.
async fn watch(client: &Client, path: &str) -> (Arc<Mutex<String>>, impl Future<Output = ()>) {
    let mut stream = client.connect().await.unwrap();
    let head = format!(
        "GET {path}?watch=1 HTTP/1.1\r\nHost: x\r\nX-Remote-User: root\r\nX-Remote-Group: \
         system:masters\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let seen: Arc<Mutex<String>> = Arc::default();
    let text = Arc::clone(&seen);
    let reading = async move {
        let mut buffer = [0; 4096];
        loop {
            match tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await {
                Ok(Ok(count)) if count > 0 => {
                    let read = String::from_utf8_lossy(&buffer[..count]).into_owned();
                    text.lock().unwrap().push_str(&read);
                    if read.ends_with("0\r\n\r\n") {
                        break;
                    }
                }
                Ok(_) => break,
                Err(late) => panic!("{late}: the watch does not end: {}", text.lock().unwrap()),
            }
        }
    };
    (seen, reading)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_etcd_misleads_nobody_and_is_served_once_a_person_accepts_it() {
    let world = World::new().await;
    let mut etcd = etcd_server::Server::start();
    let (mut server, client) = filled(&world, etcd.url()).await;
    let clusters = namespaced("cassandraclusters");
    let (seen, reading) = watch(&client, &clusters).await;

    let wiped = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        etcd.wipe();
    };
    let (asked, ()) = futures::future::join(under_load(&client, "kept", wiped), reading).await;
    assert!(asked >= ENOUGH, "only {asked} answers");
    let events = seen.lock().unwrap().clone();
    assert!(events.contains("ADDED") && !events.contains("DELETED"), "{events}");
    all_refused(&server, &client, "delete configmap navigator-store").await;
    let health = server.stranger().get("/readyz").await;
    assert_eq!(server.stranger().get("/livez").await.status, 200, "{}", brief(&health));

    world.kube.delete(RECORD);
    // What this process remembers is another store's.
    assert_eq!(server.ended().await.code(), Some(1), "{}", server.log());
    assert!(server.log().contains("has been accepted"), "{}", server.log());
    let server = world.start("unused", &["--store=etcd", "--etcd-servers", etcd.url()]);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    for kind in KINDS {
        let list: Value = send(&client, "GET", &namespaced(kind), String::new()).await.json();
        assert_eq!(list["items"], json!([]), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_restored_under_a_running_server_misleads_nobody() {
    let world = World::new().await;
    let mut etcd = etcd_server::Server::start();
    let (first, _) = filled(&world, etcd.url()).await;
    drop(first);
    etcd.save();
    let server = world.start("unused", &["--store=etcd", "--etcd-servers", etcd.url()]);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    // First in every list.
    for kind in KINDS {
        let made = send(&client, "POST", &namespaced(kind), object(kind, "a-later-one")).await;
        assert_eq!(made.status, 201, "{}", brief(&made));
    }
    let restored = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        etcd.restore();
    };
    let asked = under_load(&client, "a-later-one", restored).await;
    assert!(asked >= ENOUGH, "only {asked} answers");
    all_refused(&server, &client, "lost its latest writes").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_restarts_with_its_data_is_served_on_by_the_same_process() {
    let world = World::new().await;
    let mut etcd = etcd_server::Server::start();
    let (server, client) = filled(&world, etcd.url()).await;
    let restarted = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        etcd.kill_and_start_again();
    };
    restarted.await;
    let reads: Vec<_> =
        questions("kept").into_iter().filter(|(method, ..)| *method == "GET").collect();
    server
        .until("every read is served again", async || {
            for (method, path, body) in &reads {
                let reply = send(&client, method, path, body.clone()).await;
                if reply.status != 200 || misleads(method, "kept", &reply) {
                    return Err(format!("{method} {path}: {}", brief(&reply)));
                }
            }
            Ok(())
        })
        .await;
}
