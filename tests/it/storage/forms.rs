//! Stores as earlier releases left them, in tests/data/stores: what is read there today, and
//! whether anything would be written otherwise.
//!
//! `embedded-0.2` is a folder of the embedded store (the file compressed), `etcd-0.2.jsonl` every
//! key and value below the prefix. A release that changes a form adds another one and keeps these.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use flate2::read::GzDecoder;
use futures::StreamExt;
use navigator::{
    api::GROUP,
    apiserver::storage::{
        Error, KeyPrefix, PageRequest, Revision, Storage, StoreEvent,
        embedded::{EmbeddedStore, HistoryLimits},
    },
};
use serde_json::{Value, json};

use super::{connect, etcd_server};
use crate::{scheme, support::server::run_to_end};

/// Kinds and how many objects of each both stores hold.
const HELD: [(&str, usize); 4] =
    [("cassandraclusters", 1), ("elasticsearchclusters", 1), ("leaderleases", 1), ("pilots", 2)];

fn stores() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/stores")
}

fn unpacked() -> tempfile::TempDir {
    let (from, to) = (stores().join("embedded-0.2"), tempfile::tempdir().unwrap());
    let mut file = Vec::new();
    let packed = fs::File::open(from.join("store.redb.gz")).unwrap();
    GzDecoder::new(packed).read_to_end(&mut file).unwrap();
    fs::write(to.path().join("store.redb"), file).unwrap();
    fs::copy(from.join("store.id"), to.path().join("store.id")).unwrap();
    to
}

/// What every kind holds can be read, and is in the form that is written today, but for the word
/// that clusters are open: there was none for it.
async fn everything_is_read(store: &dyn Storage) {
    for (resource, held) in HELD {
        let kind = scheme().by_plural(resource).unwrap();
        let range = KeyPrefix::for_resource(GROUP, resource).unwrap();
        let page = store.list(&range, PageRequest::default()).await.unwrap();
        assert_eq!(page.entries.len(), held, "{resource}");
        for entry in page.entries {
            let stored: Value = serde_json::from_slice(&entry.value).unwrap();
            let hub =
                kind.decode_stored(stored.clone()).unwrap_or_else(|e| panic!("{e:?}: {stored}"));
            assert!(hub["metadata"]["uid"].is_string(), "{hub}");
            let mut expected = stored.clone();
            if is_cluster(resource) {
                expected["spec"]["security"] = json!({"mode": "Open"});
            }
            assert_eq!(hub, expected, "{resource}");
            assert_eq!(serde_json::to_vec(&stored).unwrap(), entry.value, "another encoding");
        }
    }
}

fn is_cluster(resource: &str) -> bool {
    resource.ends_with("clusters")
}

/// A migration writes one word into each cluster, and that once; all else that is stored today is
/// byte for byte what was.
fn one_word_is_written(flags: &[String]) {
    let args = ["apiserver", "migrate-storage", "--log-format=json"].map(str::to_owned);
    for is_first in [true, false] {
        let ended = run_to_end(&[&args, flags].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        for (resource, held) in HELD {
            let (written, current) =
                if is_first && is_cluster(resource) { (held, 0) } else { (0, held) };
            let expected =
                format!("{resource}: {written} rewritten, {current} already current, 0 failed");
            assert!(ended.stdout.contains(&expected), "{expected}: {}", ended.stdout);
        }
    }
}

#[tokio::test]
async fn a_file_of_release_0_2_is_read_with_its_history() {
    let folder = unpacked();
    let store = EmbeddedStore::open_present(folder.path(), HistoryLimits::default()).await.unwrap();
    let id = fs::read_to_string(folder.path().join("store.id")).unwrap();
    let sight = store.store_status().await.unwrap();
    assert_eq!((sight.id.as_deref(), sight.lost), (Some(id.trim()), None));
    assert_eq!(sight.revision, LATEST);
    everything_is_read(&store).await;
    // Its log reaches back to the beginning: five creations, four updates, one birth and death.
    let all = KeyPrefix::for_group(GROUP).unwrap();
    let mut events = store.watch(&all, Revision(1)).await.unwrap();
    let (mut created, mut updated, mut deleted) = (0, 0, 0);
    for expected in 2..=LATEST.0 {
        let event = events.next().await.unwrap().unwrap();
        assert_eq!(event.revision(), Revision(expected));
        match event {
            StoreEvent::Put { created: true, .. } => created += 1,
            StoreEvent::Put { created: false, .. } => updated += 1,
            StoreEvent::Delete { key, .. } => {
                assert_eq!(key.as_str(), "navigator.jetstack.io/leaderleases/db/gone");
                deleted += 1;
            }
            StoreEvent::Progress(_) => panic!("progress before the last event"),
        }
    }
    assert_eq!((created, updated, deleted), (6, 4, 1));
    let at = PageRequest { at: Some(Revision(1)), ..PageRequest::default() };
    assert!(store.list(&all, at).await.unwrap().entries.is_empty());
    let before = store.watch(&all, Revision(0)).await.err();
    assert!(matches!(before, Some(Error::Compacted { .. })), "{before:?}");
    drop(store);
    one_word_is_written(&[format!("--store-path={}", folder.path().display())]);
}

/// Revision 1 is the new store's, then come the writes.
const LATEST: Revision = Revision(12);

#[tokio::test]
async fn keys_and_values_of_release_0_2_are_read_from_etcd() {
    let server = etcd_server::Server::start();
    let url = server.url();
    // etcd answers now, and this prefix holds nothing yet.
    drop(connect(url, "another").await);
    let mut client = etcd_client::Client::connect([url], None).await.unwrap();
    let text = fs::read_to_string(stores().join("etcd-0.2.jsonl")).unwrap();
    let mut id = None;
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let field = |name: &str| BASE64_STANDARD.decode(line[name].as_str().unwrap()).unwrap();
        let (key, value) = (String::from_utf8(field("key")).unwrap(), Bytes::from(field("value")));
        let below = key.strip_prefix("/registry/navigator.jetstack.io/").unwrap().to_owned();
        if below == "store-id" {
            id = Some(String::from_utf8(value.to_vec()).unwrap());
        }
        client.put(format!("/test/forms/{below}"), value, None).await.unwrap();
    }
    let store = connect(url, "forms").await;
    assert_eq!(Some(store.store_id().await.unwrap()), id);
    everything_is_read(&store).await;
    let flags = ["--store=etcd", "--etcd-prefix=/test/forms"].map(str::to_owned);
    one_word_is_written(&[&flags[..], &[format!("--etcd-servers={url}")]].concat());
}
