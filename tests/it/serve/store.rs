//! A store that is lost under a running server: the real binary, a real etcd, a scripted
//! kube-apiserver.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use futures::future::join_all;
use http::Request;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    storage::etcd_server,
    support::{
        client::{Client, Reply},
        server::{PATIENCE, Server, World, brief},
        wait::until,
    },
};

const GROUP: &str = "/apis/navigator.jetstack.io/v1beta1";
pub(super) const KINDS: [&str; 4] =
    ["cassandraclusters", "elasticsearchclusters", "leaderleases", "pilots"];
const RECORD: &str = "/api/v1/namespaces/navigator/configmaps/navigator-store";

/// Least answers after the store was lost, each of which might mislead.
const ENOUGH: usize = 500;
/// Answers that are given before a change.
const BEFORE: usize = 50;

pub(super) fn namespaced(kind: &str) -> String {
    format!("{GROUP}/namespaces/db/{kind}")
}

pub(super) fn object(kind: &str, name: &str) -> String {
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
    let patch = if method == "PATCH" { "merge-patch+" } else { "" };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("X-Remote-User", "root")
        .header("X-Remote-Group", "system:masters")
        .header("content-type", format!("application/{patch}json"));
    request.body(body).unwrap()
}

pub(super) async fn send(client: &Client, method: &str, path: &str, body: String) -> Reply {
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

/// Asks everything again and again before and after `change`, and gets [`BEFORE`] and [`ENOUGH`] answers;
/// none may mislead.
async fn under_load(client: &Client, name: &str, change: impl Future<Output = ()>) {
    let (changed, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let (before, after) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let wrong = Mutex::new(Vec::new());
    let asking = questions(name).into_iter().map(|(method, path, body)| {
        let (changed, done, before, after, wrong) = (&changed, &done, &before, &after, &wrong);
        async move {
            while !done.load(Ordering::SeqCst) {
                let late = changed.load(Ordering::SeqCst);
                let Ok(reply) = client.send(request(method, &path, body.clone())).await else {
                    continue;
                };
                // Answers to writes before the change are not judged.
                if (late || method == "GET") && misleads(method, name, &reply) {
                    wrong.lock().unwrap().push(format!("{method} {path}: {}", brief(&reply)));
                }
                let counter = if late { after } else { before };
                counter.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let enough = |count: &AtomicUsize, least: usize| {
        let answers = count.load(Ordering::SeqCst);
        if answers < least { Err(format!("{answers} answers")) } else { Ok(()) }
    };
    let changing = async {
        until("answers before the change", 5 * PATIENCE, async || enough(&before, BEFORE)).await;
        change.await;
        changed.store(true, Ordering::SeqCst);
        until("answers after the change", 5 * PATIENCE, async || enough(&after, ENOUGH)).await;
        done.store(true, Ordering::SeqCst);
    };
    futures::future::join(join_all(asking), changing).await;
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} answers mislead, first: {:?}", wrong.len(), wrong[0]);
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
        until("the watch's first event", PATIENCE, async || {
            let text = seen.lock().unwrap().clone();
            if text.contains("ADDED") { Ok(()) } else { Err(text) }
        })
        .await;
        etcd.wipe();
    };
    futures::future::join(under_load(&client, "kept", wiped), reading).await;
    let events = seen.lock().unwrap().clone();
    assert!(events.contains("ADDED") && !events.contains("DELETED"), "{events}");
    all_refused(&server, &client, "delete configmap navigator-store").await;
    let health = server.stranger().get("/readyz").await;
    assert_eq!(server.stranger().get("/livez").await.status, 200, "{}", brief(&health));

    world.kube.delete(RECORD);
    // The process ends, because what it remembers is another store's.
    ended_because_accepted(&mut server).await;
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
    // These objects come first in every list.
    for kind in KINDS {
        let made = send(&client, "POST", &namespaced(kind), object(kind, "a-later-one")).await;
        assert_eq!(made.status, 201, "{}", brief(&made));
    }
    let known = latest(&client).await;
    under_load(&client, "a-later-one", async { etcd.restore() }).await;
    all_refused(&server, &client, "lost its latest writes").await;
    drop(server);

    // The next process knows of the loss, too, although the store has the id on record.
    let arguments = ["--store=etcd", "--etcd-servers", etcd.url()];
    let mut server = world.start("unused", &arguments);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    all_refused(&server, &client, "lost its latest writes").await;
    accept(&world);
    ended_because_accepted(&mut server).await;
    let server = world.start("unused", &arguments);
    served_as_of_the_backup(&world, &server, known).await;
}

/// The process ends, because what it remembers would go on across the gap.
async fn ended_because_accepted(server: &mut Server) {
    assert_eq!(server.ended().await.code(), Some(1), "{}", server.log());
    assert!(server.log().contains("has been accepted"), "{}", server.log());
}

/// Writes the annotation with which a user accepts the store.
fn accept(world: &World) {
    let mut record = world.kube.get(RECORD).expect("the store is recorded");
    record["metadata"]["annotations"]["navigator.jetstack.io/accept-store"] =
        record["data"]["id"].clone();
    let (collection, name) = RECORD.rsplit_once('/').unwrap();
    world.kube.put(collection, name, record);
}

/// The backup is served; a client that knew a later state is told to list again, now and for ever.
async fn served_as_of_the_backup(world: &World, server: &Server, known: u64) {
    // Watches are answered from its cache.
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    let range = namespaced("pilots");
    let list = async || send(&client, "GET", &range, String::new()).await;
    server
        .until("the backup is served", async || {
            let reply = list().await;
            if reply.status == 200 { Ok(()) } else { Err(brief(&reply)) }
        })
        .await;
    let listed = list().await.json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    let now: u64 = listed["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert!(now > known, "revision {now} of the backup was given out before, up to {known}");
    for seen in [known, known - 1] {
        let path = format!("{range}?watch=1&timeoutSeconds=60&resourceVersion={seen}");
        let reply = send(&client, "GET", &path, String::new()).await;
        assert!(reply.body.contains("\"code\":410"), "{seen}: {}", brief(&reply));
    }
    let record = world.kube.get(RECORD).unwrap();
    let annotations = &record["metadata"]["annotations"];
    assert!(annotations["navigator.jetstack.io/accept-store"].is_null(), "{record}");
    assert!(record["data"]["lost"].is_null(), "{record}");
    let recorded: u64 = record["data"]["revision"].as_str().unwrap().parse().unwrap();
    assert!(recorded > known, "{record}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_restarts_with_its_data_is_served_on_by_the_same_process() {
    let world = World::new().await;
    let mut etcd = etcd_server::Server::start();
    let (server, client) = filled(&world, etcd.url()).await;
    etcd.kill_and_start_again();
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

/// The revision that a list shows.
async fn latest(client: &Client) -> u64 {
    let list = send(client, "GET", &namespaced("pilots"), String::new()).await.json();
    list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

async fn create(client: &Client, name: &str) {
    let made = send(client, "POST", &namespaced("pilots"), object("pilots", name)).await;
    assert_eq!(made.status, 201, "{}", brief(&made));
}

fn copy(from: &str, to: &str) {
    drop(std::fs::remove_dir_all(to));
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), std::path::Path::new(to).join(entry.file_name())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_volume_answers_503_until_a_person_accepts_it() {
    let world = World::new().await;
    let [volume, backup] = ["store", "backup"].map(|name| world.path(name));
    for name in ["kept", "a-later-one"] {
        let mut server = world.start("store", &[]);
        server.until_ready().await;
        let client = Client::new(server.address, Some(&world.proxy()), None);
        create(&client, name).await;
        server.signal(Signal::SIGTERM);
        assert_eq!(server.ended().await.code(), Some(0), "{}", server.log());
        if name == "kept" {
            copy(&volume, &backup);
        }
    }
    let known: u64 = {
        let record = world.kube.get(RECORD).unwrap();
        record["data"]["revision"].as_str().expect("the last word says it").parse().unwrap()
    };
    copy(&backup, &volume);
    let mut server = world.start("store", &[]);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    all_refused(&server, &client, "accept-store=").await;
    accept(&world);
    ended_because_accepted(&mut server).await;
    drop(server);
    let server = world.start("store", &[]);
    served_as_of_the_backup(&world, &server, known).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_created_is_on_record_before_the_server_ends() {
    let world = World::new().await;
    let server = world.start("store", &[]);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    create(&client, "kept").await;
    let created = latest(&client).await;
    server
        .until("the record says how far the store has come", async || {
            let record = world.kube.get(RECORD).unwrap_or_default();
            let recorded = record["data"]["revision"].as_str().and_then(|text| text.parse().ok());
            if recorded >= Some(created) { Ok(()) } else { Err(record.to_string()) }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_an_older_release_gets_its_revision_and_keeps_the_rest() {
    let world = World::new().await;
    let mut server = world.start("store", &[]);
    server.until_ready().await;
    server.signal(Signal::SIGTERM);
    server.ended().await;
    let mut record = world.kube.get(RECORD).unwrap();
    record["data"] = json!({"id": record["data"]["id"], "note": "mine"});
    let (collection, name) = RECORD.rsplit_once('/').unwrap();
    world.kube.put(collection, name, record);
    let server = world.start("store", &[]);
    server.until_ready().await;
    server
        .until("the record has a revision", async || {
            let record = world.kube.get(RECORD).unwrap_or_default();
            let whole = record["data"]["revision"].is_string() && record["data"]["note"] == "mine";
            if whole { Ok(()) } else { Err(record.to_string()) }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_record_and_store_the_databases_clusters_are_missed() {
    let world = World::new().await;
    let owned = |kind: &str| {
        json!({"metadata": {"namespace": "db", "ownerReferences": [{
            "apiVersion": "navigator.jetstack.io/v1beta1", "kind": kind, "name": "demo",
            "uid": "00000000-0000-0000-0000-000000000001", "controller": true,
        }]}})
    };
    let sets = "/apis/apps/v1/namespaces/db/statefulsets";
    world.kube.put(sets, "cass-demo-a", owned("CassandraCluster"));
    world.kube.put(sets, "somebody-elses", json!({"metadata": {"namespace": "db"}}));
    let server = world.start("store", &[]);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    all_refused(&server, &client, "own the StatefulSets db/cass-demo-a. No object").await;
    assert_eq!(world.kube.get(RECORD), None, "an empty store was recorded");

    // One way on: the set has no owner any more, so no garbage collector would delete it.
    world.kube.put(sets, "cass-demo-a", json!({"metadata": {"namespace": "db"}}));
    server
        .until("the store is accepted", async || {
            let reply = send(&client, "GET", &namespaced("pilots"), String::new()).await;
            if reply.status == 200 { Ok(()) } else { Err(brief(&reply)) }
        })
        .await;
    let record = world.kube.get(RECORD).expect("it is recorded");
    drop(server);

    // The other way on: a user writes the record.
    world.kube.delete(RECORD);
    world.kube.put(sets, "cass-demo-a", owned("CassandraCluster"));
    let server = world.start("store", &[]);
    server.until_ready().await;
    let client = Client::new(server.address, Some(&world.proxy()), None);
    all_refused(&server, &client, "--from-literal=id=").await;
    let (collection, name) = RECORD.rsplit_once('/').unwrap();
    world.kube.put(collection, name, json!({"data": {"id": record["data"]["id"]}}));
    server
        .until("the store is accepted", async || {
            let reply = send(&client, "GET", &namespaced("pilots"), String::new()).await;
            if reply.status == 200 { Ok(()) } else { Err(brief(&reply)) }
        })
        .await;
}
