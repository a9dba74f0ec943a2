//! The embedded store's own rules: which directories it opens, what outlives the process, how
//! much history it keeps.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, future::join_all};
use navigator::apiserver::storage::{
    Error, PageRequest, Revision, Storage,
    embedded::{EmbeddedStore, HistoryLimits, StoreOpenError},
};
use tokio::time::Instant;

use super::{
    Scratch,
    keys::{key, pilots},
    open,
};

const VALUE: Bytes = Bytes::from_static(b"value");

async fn refused(path: &std::path::Path) -> StoreOpenError {
    match EmbeddedStore::open(path, HistoryLimits::default()).await {
        Ok(_) => panic!("the store was opened"),
        Err(error) => error,
    }
}

/// A store with one object, closed.
async fn closed() -> tempfile::TempDir {
    let Scratch { store, directory } = Scratch::new().await;
    store.create(&key("ns", "a"), VALUE).await.unwrap();
    directory
}

#[tokio::test]
async fn objects_history_and_identity_outlive_the_process() {
    let Scratch { store, directory } = Scratch::new().await;
    let path = directory.path().join("store");
    let created = store.create(&key("ns", "a"), VALUE).await.unwrap();
    let updated = store.update(&key("ns", "a"), created, Bytes::from("2")).await.unwrap();
    let id = store.store_id().await.unwrap();
    drop(store);
    let store = open(&path).await;
    assert_eq!(store.store_id().await.unwrap(), id);
    assert_eq!(store.current_revision().await.unwrap(), updated);
    let request = PageRequest { at: Some(created), ..PageRequest::default() };
    assert_eq!(store.list(&pilots(), request).await.unwrap().entries[0].value, VALUE);
    let event = store.watch(&pilots(), created).await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(event.revision(), updated);
    assert!(store.create(&key("ns", "b"), VALUE).await.unwrap() > updated);
}

#[tokio::test]
async fn the_files_are_the_owners_alone() {
    let scratch = Scratch::new().await;
    for name in ["store.redb", "store.id"] {
        let mode = fs::metadata(scratch.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let id = fs::read_to_string(scratch.path().join("store.id")).unwrap();
    assert_eq!(id.trim(), scratch.store.store_id().await.unwrap());
}

#[tokio::test]
async fn a_store_in_use_is_refused() {
    let scratch = Scratch::new().await;
    let error = refused(&scratch.path()).await;
    assert!(matches!(error, StoreOpenError::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains("stop it first"), "{error}");
}

#[tokio::test]
async fn an_empty_file_is_refused_and_left() {
    let directory = closed().await;
    let file = directory.path().join("store/store.redb");
    fs::write(&file, b"").unwrap();
    let error = refused(&directory.path().join("store")).await;
    assert!(matches!(error, StoreOpenError::Empty { .. }), "{error:?}");
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
}

#[tokio::test]
async fn a_store_without_its_marker_is_refused() {
    let directory = closed().await;
    fs::remove_file(directory.path().join("store/store.id")).unwrap();
    let error = refused(&directory.path().join("store")).await;
    assert!(matches!(error, StoreOpenError::MarkerMissing { .. }), "{error:?}");
}

#[tokio::test]
async fn a_marker_without_its_store_is_refused() {
    let directory = closed().await;
    fs::remove_file(directory.path().join("store/store.redb")).unwrap();
    let path = directory.path().join("store");
    let error = refused(&path).await;
    assert!(matches!(error, StoreOpenError::StoreMissing { .. }), "{error:?}");
    assert!(!path.join("store.redb").exists(), "a new store was made");
}

#[tokio::test]
async fn a_store_of_another_installation_is_refused() {
    let (one, other) = (closed().await, closed().await);
    let file = "store/store.redb";
    fs::copy(other.path().join(file), one.path().join(file)).unwrap();
    let error = refused(&one.path().join("store")).await;
    assert!(matches!(error, StoreOpenError::Foreign { .. }), "{error:?}");
}

#[tokio::test]
async fn an_unfinished_creation_is_finished() {
    let directory = closed().await;
    let path = directory.path().join("store");
    // A kill between the marker and the rename leaves the file like this.
    fs::rename(path.join("store.redb"), path.join("store.redb.creating")).unwrap();
    let store = open(&path).await;
    assert!(store.get(&key("ns", "a")).await.unwrap().is_some());
}

#[tokio::test]
async fn a_creation_that_left_no_marker_begins_anew() {
    let directory = closed().await;
    let path = directory.path().join("store");
    fs::remove_file(path.join("store.id")).unwrap();
    fs::rename(path.join("store.redb"), path.join("store.redb.creating")).unwrap();
    let store = open(&path).await;
    assert!(store.get(&key("ns", "a")).await.unwrap().is_none());
}

#[tokio::test]
async fn another_stores_unfinished_creation_does_not_replace_a_lost_one() {
    let (one, other) = (closed().await, closed().await);
    let path = one.path().join("store");
    fs::remove_file(path.join("store.redb")).unwrap();
    fs::copy(other.path().join("store/store.redb"), path.join("store.redb.creating")).unwrap();
    let error = refused(&path).await;
    assert!(matches!(error, StoreOpenError::StoreMissing { .. }), "{error:?}");
}

#[tokio::test]
async fn a_file_of_another_kind_is_refused_with_one_copy() {
    let directory = closed().await;
    let path = directory.path().join("store");
    fs::write(path.join("store.redb"), vec![b'x'; 100_000]).unwrap();
    for _ in 0..3 {
        let error = refused(&path).await;
        let StoreOpenError::Corrupt { copy, .. } = &error else { panic!("{error:?}") };
        assert_eq!(fs::read(copy).unwrap(), vec![b'x'; 100_000]);
        assert!(error.to_string().contains("from a backup"), "{error}");
    }
    let copies = fs::read_dir(&path)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("corrupt-"));
    assert_eq!(copies.count(), 1, "a restart loop must not fill the volume");
}

#[tokio::test]
async fn a_file_cut_short_is_refused() {
    let directory = closed().await;
    let path = directory.path().join("store");
    let whole = fs::read(path.join("store.redb")).unwrap();
    for length in [1, 100, 4096, whole.len() / 2] {
        fs::write(path.join("store.redb"), &whole[..length]).unwrap();
        let error = refused(&path).await;
        assert!(matches!(error, StoreOpenError::Corrupt { .. }), "{length}: {error:?}");
    }
}

/// Turns single bytes over, all through the file. A store that opens anyway must still hold
/// what it held, or say that it does not.
#[tokio::test]
async fn damage_never_passes_for_another_value() {
    let Scratch { store, directory } = Scratch::new().await;
    let keys: Vec<_> = (0..200).map(|n| key("ns", &format!("k{n}"))).collect();
    for result in join_all(keys.iter().map(|key| store.create(key, vec![7; 2_000].into()))).await {
        result.unwrap();
    }
    drop(store);
    let path = directory.path().join("store");
    let file = path.join("store.redb");
    let whole = fs::read(&file).unwrap();
    let (mut refusals, mut unharmed) = (0, 0);
    for position in (64..whole.len()).step_by(whole.len() / 40) {
        let mut damaged = whole.clone();
        damaged[position] ^= 0xff;
        fs::write(&file, &damaged).unwrap();
        match EmbeddedStore::open(&path, HistoryLimits::default()).await {
            Err(StoreOpenError::Corrupt { copy, .. }) => {
                refusals += 1;
                fs::remove_file(copy).unwrap();
            }
            Err(error) => panic!("at {position}: {error:?}"),
            Ok(store) => {
                let page = store.list(&pilots(), PageRequest::default()).await.unwrap();
                assert_eq!(page.entries.len(), 200, "damage at {position} lost objects silently");
                for entry in page.entries {
                    assert!(entry.value == vec![7; 2_000], "damage at {position} went unseen");
                }
                unharmed += 1;
            }
        }
    }
    assert!(refusals > 0, "no damage was found; {unharmed} positions did no harm");
}

#[tokio::test]
async fn history_is_kept_to_its_limit_of_events() {
    let directory = tempfile::tempdir().unwrap();
    let history = HistoryLimits { events: 100, ..HistoryLimits::default() };
    let store = EmbeddedStore::open(directory.path(), history).await.unwrap();
    let mut revision = store.create(&key("ns", "a"), VALUE).await.unwrap();
    let first = revision;
    for _ in 0..300 {
        revision = store.update(&key("ns", "a"), revision, VALUE).await.unwrap();
    }
    let watch = store.watch(&pilots(), first).await.err();
    let oldest = Revision(revision.0 - 100);
    assert!(matches!(watch, Some(Error::Compacted { oldest: o, .. }) if o == oldest), "{watch:?}");
    let mut watch = store.watch(&pilots(), oldest).await.unwrap();
    for n in 1..=100 {
        assert_eq!(watch.next().await.unwrap().unwrap().revision(), Revision(oldest.0 + n));
    }
}

#[tokio::test]
async fn history_is_kept_to_its_limit_of_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let history = HistoryLimits { bytes: 1 << 20, ..HistoryLimits::default() };
    let store = EmbeddedStore::open(directory.path(), history).await.unwrap();
    let value = Bytes::from(vec![7; 10_000]);
    let mut revision = store.create(&key("ns", "a"), value.clone()).await.unwrap();
    let first = revision;
    for _ in 0..200 {
        revision = store.update(&key("ns", "a"), revision, value.clone()).await.unwrap();
    }
    let Some(Error::Compacted { oldest, .. }) = store.watch(&pilots(), first).await.err() else {
        panic!("all history is there")
    };
    // 20 KB to an event: 52 of them.
    assert!((45..=55).contains(&(revision.0 - oldest.0)), "{} events", revision.0 - oldest.0);
}

#[tokio::test]
async fn history_older_than_its_limit_goes() {
    let directory = tempfile::tempdir().unwrap();
    let history = HistoryLimits { age: Duration::from_secs(1), ..HistoryLimits::default() };
    let store = EmbeddedStore::open(directory.path(), history).await.unwrap();
    let first = store.create(&key("ns", "a"), VALUE).await.unwrap();
    let mut revision = first;
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.watch(&pilots(), first).await.is_ok() {
        assert!(Instant::now() < deadline, "history does not age");
        revision = store.update(&key("ns", "a"), revision, VALUE).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_watch_ends_when_the_store_is_closed() {
    let Scratch { store, directory } = Scratch::new().await;
    let now = store.current_revision().await.unwrap();
    let mut watch = store.watch(&pilots(), now).await.unwrap();
    drop(store);
    let end = watch.next().await;
    assert!(matches!(end, Some(Err(Error::Unavailable { .. }))), "{end:?}");
    assert!(watch.next().await.is_none());
    // The file is free, although the watch is still held.
    open(&directory.path().join("store")).await;
}

#[tokio::test]
async fn a_store_of_ten_thousand_objects_is_opened() {
    let Scratch { store, directory } = Scratch::new().await;
    let keys: Vec<_> = (0..10_000).map(|n| key("ns", &format!("k{n}"))).collect();
    for part in keys.chunks(1_000) {
        let value = Bytes::from(vec![7; 1_000]);
        for result in join_all(part.iter().map(|key| store.create(key, value.clone()))).await {
            result.unwrap();
        }
    }
    let revision = store.current_revision().await.unwrap();
    drop(store);
    // `make bench` measures how long it takes.
    let store = open(&directory.path().join("store")).await;
    assert_eq!(store.current_revision().await.unwrap(), revision);
    let page = store.list(&pilots(), PageRequest::default()).await.unwrap();
    assert_eq!(page.entries.len(), 10_000);
}

#[tokio::test]
async fn an_advance_leaves_every_older_revision_behind_and_every_object_there() {
    let Scratch { store, directory } = Scratch::new().await;
    let created = store.create(&key("ns", "a"), VALUE).await.unwrap();
    let past = Revision(created.0 + 500);
    let advanced = store.advance_revision(past).await.unwrap();
    assert!(advanced > past, "{advanced}");
    drop(store);
    let store = open(&directory.path().join("store")).await;
    assert_eq!(store.current_revision().await.unwrap(), advanced);
    for old in [created, past] {
        let watch = store.watch(&pilots(), old).await.err();
        assert!(matches!(watch, Some(Error::Compacted { .. })), "{old}: {watch:?}");
    }
    let found = store.get(&key("ns", "a")).await.unwrap().unwrap();
    assert_eq!((found.revision, found.value), (created, VALUE));
    let written = store.create(&key("ns", "b"), VALUE).await.unwrap();
    let event = store.watch(&pilots(), advanced).await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(event.revision(), written);
}

#[tokio::test]
async fn an_imported_store_is_in_doubt_until_it_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let store =
        EmbeddedStore::create_with_id(&path, "the-old-id", "it was imported").await.unwrap();
    store.create(&key("ns", "a"), VALUE).await.unwrap();
    drop(store);
    assert!(matches!(
        EmbeddedStore::create_with_id(&path, "the-old-id", "again").await.err(),
        Some(StoreOpenError::Present { .. })
    ));
    let store = open(&path).await;
    let sight = store.store_status().await.unwrap();
    assert_eq!(sight.id.as_deref(), Some("the-old-id"));
    assert_eq!(sight.lost.expect("it is in doubt").why, "it was imported");
    store.advance_revision(sight.revision).await.unwrap();
    assert_eq!(store.store_status().await.unwrap().lost, None);
    drop(store);
    assert_eq!(open(&path).await.store_status().await.unwrap().lost, None);
}

#[tokio::test]
async fn a_file_of_zeros_is_refused_and_not_made_a_store() {
    let directory = closed().await;
    let file = directory.path().join("store/store.redb");
    let zeros = vec![0; usize::try_from(fs::metadata(&file).unwrap().len()).unwrap()];
    fs::write(&file, &zeros).unwrap();
    let error = refused(&directory.path().join("store")).await;
    assert!(matches!(error, StoreOpenError::Corrupt { .. }), "{error:?}");
    assert!(fs::read(&file).unwrap() == zeros, "it was written to");
}

/// Objects of the largest size would else be read by hundreds.
#[tokio::test]
async fn a_page_ends_where_it_has_so_many_bytes() {
    let Scratch { store, directory: _directory } = Scratch::new().await;
    for name in ["a", "b", "c", "d", "e"] {
        store.create(&key("ns", name), Bytes::from(vec![b' '; 1000])).await.unwrap();
    }
    let mut request = PageRequest { bytes: Some(1500), ..PageRequest::default() };
    let mut pages = Vec::new();
    loop {
        let page = store.list(&pilots(), request.clone()).await.unwrap();
        pages.push(page.entries.len());
        request.at = Some(page.revision);
        request.after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more {
            break;
        }
    }
    assert_eq!(pages, [2, 2, 1]);
}
