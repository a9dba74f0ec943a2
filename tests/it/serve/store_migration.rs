//! `navigator apiserver migrate-storage`: the real binary over stores that hold what upstream wrote.

use std::path::Path;

use bytes::Bytes;
use navigator::apiserver::storage::{
    Key, Storage,
    embedded::{EmbeddedStore, HistoryLimits},
};
use serde_json::{Value, json};

use crate::storage::{Scratch, connect, etcd_server};
use crate::support::server::{Ended, World, run_to_end};

const CURRENT: &str = "cassandraclusters: 0 rewritten, 1 already current, 0 failed; \
                       pilots: 0 rewritten, 2 already current, 0 failed";

fn key(resource: &str, name: &str) -> Key {
    Key::new("navigator.jetstack.io", resource, "db", name).unwrap()
}

fn object(version: &str, kind: &str, name: &str, spec: &Value) -> Bytes {
    json!({
        "apiVersion": format!("navigator.jetstack.io/{version}"),
        "kind": kind,
        "metadata": {"name": name, "namespace": "db", "uid": format!("uid-{name}")},
        "spec": spec,
        "status": {},
    })
    .to_string()
    .into()
}

/// A cluster and two Pilots, all as upstream stored them.
async fn fill(store: &dyn Storage) {
    let spec = json!({
        "version": "3.11.2",
        "nodePools": [{"name": "ring", "replicas": 1, "datacenter": "dc", "rack": "r"}],
        "pilotImage": {"repository": "example.org/pilot", "tag": "v1", "pullPolicy": "Always"},
    });
    let cluster = object("v1alpha1", "CassandraCluster", "demo", &spec);
    store.create(&key("cassandraclusters", "demo"), cluster).await.unwrap();
    for name in ["a", "b"] {
        let pilot = object("v1alpha1", "Pilot", name, &json!({}));
        store.create(&key("pilots", name), pilot).await.unwrap();
    }
}

async fn version(store: &dyn Storage, key: &Key) -> Value {
    let entry = store.get(key).await.unwrap().unwrap();
    serde_json::from_slice::<Value>(&entry.value).unwrap()["apiVersion"].clone()
}

fn migrate(flags: &[&str]) -> Ended {
    let args = ["apiserver", "migrate-storage", "--log-format=json"];
    run_to_end(&args.iter().chain(flags).map(|&arg| arg.to_owned()).collect::<Vec<_>>())
}

fn embedded(path: &Path) -> Ended {
    migrate(&["--store-path", path.to_str().unwrap()])
}

/// The counts of resources that hold something.
fn counts(ended: &Ended) -> String {
    let line = ended.stdout.strip_suffix('\n').expect("the line is complete");
    assert_eq!(line.lines().count(), 1, "{line}");
    let empty = ": 0 rewritten, 0 already current, 0 failed";
    line.split("; ").filter(|part| !part.ends_with(empty)).collect::<Vec<_>>().join("; ")
}

#[tokio::test]
async fn what_upstream_stored_is_rewritten_once_and_counted() {
    let Scratch { store, directory } = Scratch::new().await;
    fill(&store).await;
    drop(store);
    let path = directory.path().join("store");

    let first = embedded(&path);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert_eq!(
        counts(&first),
        "cassandraclusters: 1 rewritten, 0 already current, 0 failed; \
         pilots: 2 rewritten, 0 already current, 0 failed"
    );
    assert!(first.stderr.contains("Migrating stored objects"), "{}", first.stderr);
    let store = EmbeddedStore::open(&path, HistoryLimits::default()).await.unwrap();
    for key in [key("cassandraclusters", "demo"), key("pilots", "a"), key("pilots", "b")] {
        assert_eq!(version(&store, &key).await, "navigator.jetstack.io/v1beta1", "{key:?}");
    }
    let before = store.current_revision().await.unwrap();
    drop(store);

    let again = embedded(&path);
    assert_eq!((again.code, counts(&again).as_str()), (Some(0), CURRENT), "{}", again.stderr);
    let store = EmbeddedStore::open(&path, HistoryLimits::default()).await.unwrap();
    assert_eq!(store.current_revision().await.unwrap(), before, "nothing was left to write");
}

#[tokio::test]
async fn objects_in_etcd_are_migrated() {
    let server = etcd_server::shared();
    let store = connect(server.url(), "migrate-storage").await;
    fill(&store).await;
    let prefix = "/test/migrate-storage";
    let flags = ["--store=etcd", "--etcd-servers", server.url(), "--etcd-prefix", prefix];
    let ended = migrate(&flags);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(version(&store, &key("pilots", "a")).await, "navigator.jetstack.io/v1beta1");
    let again = migrate(&flags);
    assert_eq!((again.code, counts(&again).as_str()), (Some(0), CURRENT), "{}", again.stderr);
}

#[tokio::test]
async fn an_object_that_cannot_be_read_is_named_and_does_not_stop_the_others() {
    let Scratch { store, directory } = Scratch::new().await;
    store.create(&key("pilots", "a"), Bytes::from("{")).await.unwrap();
    let pilot = object("v1alpha1", "Pilot", "b", &json!({}));
    store.create(&key("pilots", "b"), pilot).await.unwrap();
    drop(store);
    let ended = embedded(&directory.path().join("store"));
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert_eq!(counts(&ended), "pilots: 1 rewritten, 0 already current, 1 failed");
    assert!(ended.stderr.contains("navigator.jetstack.io/pilots/db/a"), "{}", ended.stderr);
}

#[tokio::test]
async fn the_embedded_store_of_a_running_server_is_refused() {
    let world = World::new().await;
    let server = world.start("store", &[]);
    server.until_ready().await;
    let ended = embedded(Path::new(&world.path("store")));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("is in use by another process; stop it first"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_folder_without_a_store_stays_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mistyped");
    let ended = embedded(&path);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{}", ended.stderr);
    assert!(ended.stderr.contains("there is no store in"), "{}", ended.stderr);
    assert!(!path.exists());
}

#[test]
fn bad_usage_ends_with_64_and_help_with_0() {
    let rows: [(&[&str], &str); 6] = [
        (&[], "--store-path"),
        (&["--store-path=s", "--secure-port=1"], "--secure-port"),
        (&["--store=file"], "file"),
        (&["--store=etcd"], "--etcd-servers"),
        (&["--store=etcd", "--etcd-servers=https://127.0.0.1:1"], "--etcd-cafile"),
        (&["--store-path=s", "--log=a=b=c"], "--log"),
    ];
    for (flags, expected) in rows {
        let ended = migrate(flags);
        assert_eq!(ended.code, Some(64), "{flags:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{flags:?}: {}", ended.stderr);
    }
    // Flags of the server before the subcommand would silently mean nothing.
    let before = ["apiserver", "--store-path=s", "migrate-storage"].map(str::to_owned);
    assert_eq!(run_to_end(&before).code, Some(64));

    let help = migrate(&["--help"]);
    assert_eq!(help.code, Some(0));
    for part in ["Usage: navigator apiserver migrate-storage", "Exit codes:", "Examples:"] {
        assert!(help.stdout.contains(part), "{part}: {}", help.stdout);
    }
}
