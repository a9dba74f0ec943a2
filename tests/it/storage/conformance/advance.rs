//! A store that leaves revisions behind, and histories that are cut: each case needs a store of
//! its own.

use futures::StreamExt;
use navigator::apiserver::storage::{Error, PageRequest, Revision, Storage};

use super::{Watch, bytes, create, delete, list, shown, update};
use crate::storage::keys::{key, pilots};

/// How far the store is told to go.
const FAR: u64 = 100;

async fn advanced(store: &dyn Storage) -> (Revision, Revision) {
    let past = Revision(store.current_revision().await.expect("answers").0 + FAR);
    (past, store.advance_revision(past).await.expect("advances"))
}

async fn watch_error(store: &dyn Storage, from: Revision) -> Option<Error> {
    match store.watch(&pilots(), from).await {
        Err(error) => Some(error),
        Ok(mut events) => events.next().await?.err(),
    }
}

pub(crate) async fn an_advance_leaves_every_revision_behind(store: &dyn Storage) {
    create(store, "a", "1").await;
    let (past, reached) = advanced(store).await;
    assert!(reached > past, "{reached}");
    assert!(store.current_revision().await.expect("answers") >= reached);
    assert!(create(store, "b", "1").await > past);
}

pub(crate) async fn an_advance_keeps_the_latest_values(store: &dyn Storage) {
    let a = create(store, "a", "1").await;
    let b = create(store, "b", "1").await;
    delete(store, "b", b).await;
    advanced(store).await;
    let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
    assert_eq!(entry.value, "1");
    assert!(entry.revision >= a);
    assert_eq!(shown(&list(store, PageRequest::default()).await.entries), ["a=1"]);
    update(store, "a", entry.revision, "2").await;
}

pub(crate) async fn an_advance_forgets_the_history(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    update(store, "a", created, "2").await;
    let (past, _) = advanced(store).await;
    for old in [created, past] {
        let request = PageRequest { at: Some(old), ..PageRequest::default() };
        let listed = store.list(&pilots(), request).await;
        assert!(
            matches!(listed, Err(Error::Compacted { oldest, .. }) if oldest > past),
            "{old}: {listed:?}"
        );
        let watched = watch_error(store, old).await;
        assert!(
            matches!(watched, Some(Error::Compacted { oldest, .. }) if oldest > past),
            "{old}: {watched:?}"
        );
    }
}

pub(crate) async fn an_advance_keeps_the_id(store: &dyn Storage) {
    let id = store.store_id().await.expect("answers");
    advanced(store).await;
    assert_eq!(store.store_id().await.expect("answers"), id);
    let sight = store.store_status().await.expect("answers");
    assert_eq!((sight.id, sight.other, sight.lost), (Some(id), None, None));
}

pub(crate) async fn after_an_advance_a_watch_goes_on_from_there(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    let (_, reached) = advanced(store).await;
    let mut watch = Watch::start(store, reached).await;
    let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
    assert!(entry.revision >= created);
    update(store, "a", entry.revision, "2").await;
    assert_eq!(watch.line().await, "put a=2");
}

pub(crate) async fn the_oldest_revision_moves_with_each_compaction(store: &dyn Storage) {
    let mut revision = create(store, "a", "0").await;
    let first = revision;
    for n in 1..6 {
        revision = update(store, "a", revision, &n.to_string()).await;
        store.compact(revision).await.expect("compacts");
        let request = PageRequest { at: Some(first), ..PageRequest::default() };
        match store.list(&pilots(), request).await {
            Err(Error::Compacted { asked, oldest }) => {
                assert_eq!((asked, oldest), (first, revision));
            }
            other => panic!("no error: {other:?}"),
        }
    }
}

pub(crate) async fn writes_go_on_after_compaction(store: &dyn Storage) {
    let a = create(store, "a", "1").await;
    let b = create(store, "b", "1").await;
    let gone = delete(store, "b", b).await;
    store.compact(gone).await.expect("compacts");
    let a = update(store, "a", a, "2").await;
    create(store, "b", "2").await;
    let stale = store.update(&key("ns", "b"), b, bytes("3")).await;
    assert!(matches!(stale, Err(Error::Conflict { .. })), "{stale:?}");
    delete(store, "a", a).await;
    assert_eq!(shown(&list(store, PageRequest::default()).await.entries), ["b=2"]);
}

pub(crate) async fn a_watch_that_reads_history_outlives_compaction_behind_it(store: &dyn Storage) {
    let start = store.current_revision().await.expect("answers");
    let mut revision = create(store, "a", "0").await;
    let mut watch = Watch::start(store, start).await;
    assert_eq!(watch.line().await, "create a=0");
    for n in 1..5 {
        let before = revision;
        revision = update(store, "a", revision, &n.to_string()).await;
        assert_eq!(watch.line().await, format!("put a={n}"));
        store.compact(before).await.expect("compacts");
    }
}

pub(crate) async fn the_future_can_be_compacted_once_it_came(store: &dyn Storage) {
    let created = create(store, "a", "0").await;
    let asked = Revision(created.0 + 1_000);
    let compacted = store.compact(asked).await;
    assert!(matches!(compacted, Err(Error::FutureRevision { .. })), "{compacted:?}");
    let updated = update(store, "a", created, "1").await;
    store.compact(updated).await.expect("it is the present");
    let page = list(store, PageRequest { at: Some(updated), ..PageRequest::default() }).await;
    assert_eq!(shown(&page.entries), ["a=1"]);
}
