//! Compaction: what is forgotten, and how that is said. Each case needs a store of its own.

use futures::StreamExt;
use navigator::apiserver::storage::{Error, PageRequest, Revision, Storage};

use super::{Watch, bytes, create, delete, list, shown, update};
use crate::storage::keys::{key, pilots};

/// Writes `a` five times and returns the revisions.
async fn history(store: &dyn Storage) -> [Revision; 5] {
    let mut revisions = [create(store, "a", "0").await; 5];
    for n in 1..5 {
        revisions[n] = update(store, "a", revisions[n - 1], &n.to_string()).await;
    }
    revisions
}

async fn watch_error(store: &dyn Storage, from: Revision) -> Option<Error> {
    match store.watch(&pilots(), from).await {
        Err(error) => Some(error),
        Ok(mut events) => events.next().await?.err(),
    }
}

pub(crate) async fn a_list_at_a_compacted_revision_fails_and_names_the_oldest(store: &dyn Storage) {
    let revisions = history(store).await;
    store.compact(revisions[2]).await.expect("compacts");
    let request = PageRequest { at: Some(revisions[1]), ..PageRequest::default() };
    match store.list(&pilots(), request).await {
        Err(Error::Compacted { asked, oldest }) => {
            assert_eq!((asked, oldest), (revisions[1], revisions[2]));
        }
        other => panic!("no error: {other:?}"),
    }
}

pub(crate) async fn a_list_at_the_compaction_itself_works(store: &dyn Storage) {
    let revisions = history(store).await;
    store.compact(revisions[2]).await.expect("compacts");
    for (n, at) in revisions.into_iter().enumerate().skip(2) {
        let page = list(store, PageRequest { at: Some(at), ..PageRequest::default() }).await;
        assert_eq!(shown(&page.entries), [format!("a={n}")]);
    }
}

pub(crate) async fn a_watch_from_a_compacted_revision_fails_and_names_the_oldest(
    store: &dyn Storage,
) {
    let revisions = history(store).await;
    store.compact(revisions[3]).await.expect("compacts");
    match watch_error(store, revisions[0]).await {
        Some(Error::Compacted { asked, oldest }) => {
            assert_eq!((asked, oldest), (revisions[0], revisions[3]));
        }
        other => panic!("not compacted: {other:?}"),
    }
}

pub(crate) async fn a_watch_from_the_compaction_itself_works(store: &dyn Storage) {
    let revisions = history(store).await;
    store.compact(revisions[2]).await.expect("compacts");
    let mut watch = Watch::start(store, revisions[2]).await;
    assert_eq!(watch.line().await, "put a=3");
    assert_eq!(watch.line().await, "put a=4");
}

pub(crate) async fn a_running_watch_outlives_compaction(store: &dyn Storage) {
    let start = store.current_revision().await.expect("answers");
    let mut watch = Watch::start(store, start).await;
    let revisions = history(store).await;
    for n in 0..5 {
        let verb = if n == 0 { "create" } else { "put" };
        assert_eq!(watch.line().await, format!("{verb} a={n}"));
    }
    store.compact(revisions[4]).await.expect("compacts");
    update(store, "a", revisions[4], "5").await;
    assert_eq!(watch.line().await, "put a=5");
}

pub(crate) async fn compaction_keeps_the_latest_values(store: &dyn Storage) {
    let revisions = history(store).await;
    let b = create(store, "b", "1").await;
    store.compact(b).await.expect("compacts");
    assert_eq!(shown(&list(store, PageRequest::default()).await.entries), ["a=4", "b=1"]);
    let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
    assert_eq!((entry.value, entry.revision), (bytes("4"), revisions[4]));
    update(store, "a", revisions[4], "5").await;
}

pub(crate) async fn compaction_does_not_bring_back_the_dead(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    let deleted = delete(store, "a", created).await;
    create(store, "b", "1").await;
    store.compact(deleted).await.expect("compacts");
    assert_eq!(store.get(&key("ns", "a")).await.expect("reads"), None);
    let page = list(store, PageRequest { at: Some(deleted), ..PageRequest::default() }).await;
    assert!(page.entries.is_empty());
    assert_eq!(shown(&list(store, PageRequest::default()).await.entries), ["b=1"]);
}

pub(crate) async fn compacting_twice_is_harmless(store: &dyn Storage) {
    let revisions = history(store).await;
    store.compact(revisions[3]).await.expect("compacts");
    store.compact(revisions[3]).await.expect("compacts");
    store.compact(revisions[1]).await.expect("compacts");
    let page = list(store, PageRequest { at: Some(revisions[3]), ..PageRequest::default() }).await;
    assert_eq!(shown(&page.entries), ["a=3"]);
}

pub(crate) async fn compacting_the_future_fails(store: &dyn Storage) {
    let revisions = history(store).await;
    let asked = Revision(revisions[4].0 + 1_000);
    let compacted = store.compact(asked).await;
    assert!(
        matches!(compacted, Err(Error::FutureRevision { asked: named, .. }) if named == asked),
        "{compacted:?}"
    );
    list(store, PageRequest { at: Some(revisions[0]), ..PageRequest::default() }).await;
}

pub(crate) async fn a_page_that_waited_too_long_is_told(store: &dyn Storage) {
    create(store, "a", "1").await;
    let b = create(store, "b", "1").await;
    let first = list(store, PageRequest { limit: Some(1), ..PageRequest::default() }).await;
    assert!(first.more);
    let later = update(store, "b", b, "2").await;
    store.compact(later).await.expect("compacts");
    let second = PageRequest {
        at: Some(first.revision),
        after: Some(key("ns", "a")),
        limit: Some(1),
        ..PageRequest::default()
    };
    let listed = store.list(&pilots(), second).await;
    assert!(matches!(listed, Err(Error::Compacted { .. })), "{listed:?}");
}

pub(crate) async fn everything_can_be_compacted(store: &dyn Storage) {
    let revisions = history(store).await;
    let latest = store.current_revision().await.expect("answers");
    store.compact(latest).await.expect("compacts");
    let mut watch = Watch::start(store, latest).await;
    update(store, "a", revisions[4], "5").await;
    assert_eq!(watch.line().await, "put a=5");
}
