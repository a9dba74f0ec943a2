//! `navigator apiserver store …`: the real binary over both stores.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use bytes::Bytes;
use navigator::apiserver::storage::{
    Key, KeyPrefix, PageRequest, Storage,
    embedded::{EmbeddedStore, HistoryLimits},
};
use serde_json::{Value, json};

use crate::{
    storage::{Scratch, connect, etcd_server},
    support::server::Ended,
};

const GROUP: &str = "navigator.jetstack.io";

fn key(resource: &str, name: &str) -> Key {
    Key::new(GROUP, resource, "db", name).unwrap()
}

fn pilot(name: &str) -> Bytes {
    json!({
        "apiVersion": "navigator.jetstack.io/v1beta1", "kind": "Pilot",
        "metadata": {"name": name, "namespace": "db", "uid": format!("uid-{name}")}, "spec": {},
    })
    .to_string()
    .into()
}

/// Three objects, one of which cannot be read.
async fn fill(store: &dyn Storage) {
    store.create(&key("pilots", "a"), pilot("a")).await.unwrap();
    store.create(&key("pilots", "b"), pilot("b")).await.unwrap();
    store.create(&key("pilots", "broken"), Bytes::from_static(b"{\"a\n")).await.unwrap();
}

#[expect(clippy::disallowed_methods, reason = "the binary under test is a child of the test")]
fn run(args: &[&str], input: &str) -> Ended {
    let mut child = Command::new(env!("CARGO_BIN_EXE_navigator"))
        .args(["apiserver", "store"])
        .args(args)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A task that reads nothing may end before it is written to.
    drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Keys and values of everything in a store.
async fn contents(store: &dyn Storage) -> Vec<(String, Bytes)> {
    let all = KeyPrefix::for_group(GROUP).unwrap();
    let page = store.list(&all, PageRequest::default()).await.unwrap();
    page.entries.into_iter().map(|e| (e.key.as_str().to_owned(), e.value)).collect()
}

struct Folders {
    _temporary: tempfile::TempDir,
    store: PathBuf,
    other: PathBuf,
}

async fn folders() -> Folders {
    let Scratch { store, directory } = Scratch::new().await;
    fill(&store).await;
    drop(store);
    let [store, other] = ["store", "other"].map(|name| directory.path().join(name));
    Folders { _temporary: directory, store, other }
}

fn flag(path: &Path) -> String {
    format!("--store-path={}", path.display())
}

async fn open(path: &Path) -> EmbeddedStore {
    EmbeddedStore::open(path, HistoryLimits::default()).await.unwrap()
}

#[tokio::test]
async fn an_export_is_imported_with_every_byte_and_the_same_id() {
    let folders = folders().await;
    let (from, to) = (flag(&folders.store), flag(&folders.other));
    let exported = run(&["export", &from], "");
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    assert!(exported.stderr.contains("pilots/db/broken"), "it is named: {}", exported.stderr);
    let lines: Vec<Value> =
        exported.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 5, "head, three objects, end: {lines:?}");
    assert_eq!(lines[1]["value"]["metadata"]["name"], "a");
    assert_eq!(lines[4], json!({"objects": 3}));

    let refused = run(&["import", &to], &exported.stdout);
    assert_eq!(refused.code, Some(1), "{}", refused.stdout);
    assert!(refused.stderr.contains("--skip-unreadable"), "{}", refused.stderr);
    assert!(refused.stderr.contains("pilots/db/broken"), "{}", refused.stderr);
    assert!(!folders.other.exists(), "a store was made");

    let imported = run(&["import", "--skip-unreadable", &to], &exported.stdout);
    assert_eq!(imported.code, Some(0), "{}", imported.stderr);
    assert!(imported.stderr.contains("pilots/db/broken"), "{}", imported.stderr);
    assert!(imported.stdout.starts_with("imported 2 objects into store "), "{}", imported.stdout);
    let (old, new) = (open(&folders.store).await, open(&folders.other).await);
    assert_eq!(old.store_id().await.unwrap(), new.store_id().await.unwrap());
    assert!(
        new.store_status().await.unwrap().lost.is_some(),
        "it is served only when it is accepted"
    );
    let mut expected = contents(&old).await;
    expected.retain(|(key, _)| !key.ends_with("broken"));
    assert_eq!(contents(&new).await, expected);
    drop((old, new));

    let again = run(&["import", "--skip-unreadable", &to], &exported.stdout);
    assert_eq!(again.code, Some(1), "{}", again.stdout);
    assert!(again.stderr.contains("there is a store"), "{}", again.stderr);
}

#[tokio::test]
async fn an_export_that_is_not_whole_makes_no_store() {
    let folders = folders().await;
    let to = flag(&folders.other);
    let whole = run(&["export", &flag(&folders.store)], "").stdout;
    let lines: Vec<&str> = whole.lines().collect();
    let without = |gone: usize| {
        let mut kept = lines.clone();
        kept.remove(gone);
        kept.join("\n")
    };
    let cases = [
        ("nothing", String::new(), "cut short"),
        ("no head", without(0), "line 1"),
        ("an object is missing", without(2), "3 objects were exported, not 2"),
        ("no end", without(4), "cut short"),
        ("half a line", whole[..whole.len() / 2].to_owned(), "line"),
        ("another format", whole.replacen("\"format\":1", "\"format\":2", 1), "its format is 2"),
        (
            "a key of others",
            whole.replacen("\"key\":\"navigator", "\"key\":\"x", 1),
            "no key of ours",
        ),
    ];
    for (what, text, expected) in cases {
        let refused = run(&["import", "--skip-unreadable", &to], &text);
        assert_eq!(refused.code, Some(1), "{what}: {}", refused.stdout);
        assert!(refused.stderr.contains(expected), "{what}: {}", refused.stderr);
        assert!(!folders.other.exists(), "{what}: a store was made");
    }
}

#[tokio::test]
async fn one_unreadable_object_is_shown_and_forgotten() {
    let folders = folders().await;
    let store = flag(&folders.store);
    let shown = run(&["identity", &store], "");
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    let id = std::fs::read_to_string(folders.store.join("store.id")).unwrap();
    let lines: Vec<&str> = shown.stdout.lines().collect();
    assert_eq!(lines[0], format!("id: {}", id.trim()));
    assert_eq!(lines[1..3], ["revision: 4", "objects: 3"]);
    assert!(
        lines[3].starts_with("unreadable: navigator.jetstack.io/pilots/db/broken ("),
        "{lines:?}"
    );

    for (name, code, why) in [
        ("pilots/db/a", 1, "can be read; delete it with kubectl"),
        ("pilots/db/a", 1, "add --even-readable"),
        ("pilots/db/never", 1, "there is no object"),
        ("pilots/broken", 64, "RESOURCE/NAMESPACE/NAME"),
        ("../db/broken", 64, "RESOURCE/NAMESPACE/NAME"),
    ] {
        let refused = run(&["forget", name, &store], "");
        assert_eq!(refused.code, Some(code), "{name}: {}", refused.stderr);
        assert!(refused.stderr.contains(why), "{name}: {}", refused.stderr);
    }
    let forgotten = run(&["forget", "pilots/db/broken", &store], "");
    assert_eq!(forgotten.code, Some(0), "{}", forgotten.stderr);
    let line: Value = serde_json::from_str(&forgotten.stdout).unwrap();
    assert_eq!(line["base64"], "eyJhCg==", "what it was is not lost");
    let shown = run(&["identity", &store], "");
    assert!(shown.stdout.ends_with("objects: 2\n"), "{}", shown.stdout);
}

#[tokio::test]
async fn what_can_be_read_is_forgotten_when_that_is_said_too() {
    let folders = folders().await;
    let store = flag(&folders.store);
    let before = run(&["identity", &store], "").stdout;
    // The task removes all of these objects or none.
    for (names, why) in [
        (["pilots/db/broken", "pilots/db/a"], "add --even-readable"),
        (["pilots/db/broken", "pilots/db/never"], "there is no object"),
    ] {
        let refused = run(&["forget", names[0], names[1], &store], "");
        assert_eq!(refused.code, Some(1), "{}", refused.stderr);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
        assert_eq!(run(&["identity", &store], "").stdout, before);
    }
    let names = ["pilots/db/a", "pilots/db/broken"];
    let forgotten = run(&["forget", "--even-readable", names[0], names[1], &store], "");
    assert_eq!(forgotten.code, Some(0), "{}", forgotten.stderr);
    let lines: Vec<Value> =
        forgotten.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["value"]["metadata"]["uid"], "uid-a", "what it was is not lost");
    assert_eq!(lines.len(), 2);
    let store = open(&folders.store).await;
    let left = contents(&store).await;
    assert_eq!(left.len(), 1);
    assert!(left[0].0.ends_with("pilots/db/b"), "{left:?}");
}

#[tokio::test]
async fn a_store_in_etcd_is_exported_beside_its_servers_and_imported_under_another_prefix() {
    let server = etcd_server::shared();
    let store = connect(server.url(), "tools").await;
    fill(&store).await;
    let etcd = |prefix: &str| {
        [
            "--store=etcd".to_owned(),
            format!("--etcd-servers={}", server.url()),
            format!("--etcd-prefix=/test/{prefix}"),
        ]
    };
    let with = |task: &[&str], prefix: &str, input: &str| {
        let flags = etcd(prefix);
        let mut args: Vec<&str> = task.to_vec();
        args.extend(flags.iter().map(String::as_str));
        run(&args, input)
    };
    let exported = with(&["export"], "tools", "");
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    let forgotten = with(&["forget", "navigator.jetstack.io/pilots/db/broken"], "tools", "");
    assert_eq!(forgotten.code, Some(0), "{}", forgotten.stderr);
    let full = with(&["import", "--skip-unreadable"], "tools", &exported.stdout);
    assert!(full.stderr.contains("holds objects already"), "{}", full.stderr);
    let imported = with(&["import", "--skip-unreadable"], "tools-imported", &exported.stdout);
    assert_eq!(imported.code, Some(0), "{}", imported.stderr);
    let other = connect(server.url(), "tools-imported").await;
    assert_eq!(other.store_id().await.unwrap(), store.store_id().await.unwrap());
    assert_eq!(contents(&other).await, contents(&store).await);
    let nothing = with(&["identity"], "tools-mistyped", "");
    assert_eq!(nothing.code, Some(1), "{}", nothing.stdout);
    assert!(nothing.stderr.contains("there is no store of ours"), "{}", nothing.stderr);
}

#[test]
fn bad_usage_ends_with_64_and_help_with_0() {
    let rows: [(&[&str], &str); 5] = [
        (&[], "Usage"),
        (&["export"], "--store-path"),
        (&["forget", "--store-path=s"], "NAME"),
        (&["import", "--store=etcd"], "--etcd-servers"),
        (&["wipe", "--store-path=s"], "wipe"),
    ];
    for (args, expected) in rows {
        let ended = run(args, "");
        assert_eq!(ended.code, Some(64), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{args:?}: {}", ended.stderr);
    }
    let mistyped = tempfile::tempdir().unwrap().path().join("mistyped");
    let absent = run(&["export", &flag(&mistyped)], "");
    assert_eq!((absent.code, absent.stdout.as_str()), (Some(1), ""));
    assert!(absent.stderr.contains("there is no store in"), "{}", absent.stderr);
    let help = run(&["--help"], "");
    assert_eq!(help.code, Some(0));
    for task in ["export", "import", "identity", "forget", "Exit codes:", "Examples:"] {
        assert!(help.stdout.contains(task), "{task}: {}", help.stdout);
    }
}
