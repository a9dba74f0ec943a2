use std::fmt::Debug;

use futures::StreamExt;

use super::*;

fn pilots() -> KeyPrefix {
    KeyPrefix::for_resource("navigator.jetstack.io", "pilots").unwrap()
}

/// Reads a store whose writer was stopped after a commit, before it published the revision; then asks
/// for the latest revision, which must be no older than what the read showed.
async fn latest_after<T: Debug>(read: impl AsyncFnOnce(EmbeddedStore, Key) -> (EmbeddedStore, T)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store = EmbeddedStore::open(&path, HistoryLimits::default()).await.unwrap();
    let key = Key::from_stored(format!("{}ns/a", pilots().as_str()));
    let created = store.create(&key, Bytes::from_static(b"1")).await.unwrap();
    let database = store.shared.database().unwrap();
    let transaction = database.begin_write().unwrap();
    let mut batch = layout::WriteBatch::from_transaction(&transaction, 0).unwrap();
    let change = EntryChange::Update { expected: created, value: Bytes::from_static(b"2") };
    let committed = batch.apply_change(&key, &change, 0).unwrap();
    batch.write_revisions().unwrap();
    transaction.commit().unwrap();

    let (store, seen) = read(store, key).await;
    let latest = store.current_revision().await.unwrap();
    assert!(latest >= committed, "a reader saw {seen:?}; the latest revision is {latest:?}");
}

#[tokio::test]
async fn the_latest_revision_is_no_older_than_what_a_get_showed() {
    latest_after(async |store, key| {
        let seen = store.get(&key).await.unwrap();
        (store, seen)
    })
    .await;
}

#[tokio::test]
async fn the_latest_revision_is_no_older_than_what_a_list_showed() {
    latest_after(async |store, _| {
        let seen = store.list(&pilots(), PageRequest::default()).await.unwrap();
        (store, seen)
    })
    .await;
}

#[tokio::test]
async fn the_latest_revision_is_no_older_than_what_a_watch_showed() {
    latest_after(async |store, _| {
        let before = Revision(store.current_revision().await.unwrap().0 - 1);
        let events = store.watch(&pilots(), before).await.unwrap();
        let seen: Vec<_> = events.take(2).map(Result::unwrap).collect().await;
        (store, seen)
    })
    .await;
}
