//! Get, create, update, delete.

use bytes::Bytes;
use futures::future::join_all;
use navigator::apiserver::storage::{Error, Revision, Storage};

use super::{bytes, create, delete, update};
use crate::storage::keys::key;

pub(crate) async fn an_absent_key_reads_as_none(store: &dyn Storage) {
    assert_eq!(store.get(&key("ns", "a")).await.expect("reads"), None);
}

pub(crate) async fn a_created_value_reads_back_with_its_revision(store: &dyn Storage) {
    let revision = create(store, "a", "1").await;
    let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
    assert_eq!((entry.key, entry.value, entry.revision), (key("ns", "a"), bytes("1"), revision));
}

pub(crate) async fn no_revision_is_zero(store: &dyn Storage) {
    assert!(store.current_revision().await.expect("answers") > Revision(0));
    assert!(create(store, "a", "1").await > Revision(0));
}

pub(crate) async fn creating_an_existing_key_fails_and_changes_nothing(store: &dyn Storage) {
    let revision = create(store, "a", "1").await;
    let again = store.create(&key("ns", "a"), bytes("2")).await;
    assert!(matches!(&again, Err(Error::Exists(k)) if *k == key("ns", "a")), "{again:?}");
    let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
    assert_eq!((entry.value, entry.revision), (bytes("1"), revision));
}

pub(crate) async fn a_deleted_key_can_be_created_again(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    let deleted = delete(store, "a", created).await;
    assert!(create(store, "a", "2").await > deleted);
}

pub(crate) async fn an_empty_value_is_a_value(store: &dyn Storage) {
    create(store, "a", "").await;
    let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
    assert!(entry.value.is_empty());
}

pub(crate) async fn any_byte_is_kept(store: &dyn Storage) {
    let value: Bytes = (0..=255).collect::<Vec<u8>>().into();
    store.create(&key("ns", "a"), value.clone()).await.expect("creates");
    let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
    assert_eq!(entry.value, value);
}

pub(crate) async fn a_value_of_one_mebibyte_is_kept(store: &dyn Storage) {
    let value = Bytes::from(vec![7; 1 << 20]);
    store.create(&key("ns", "a"), value.clone()).await.expect("creates");
    let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
    assert!(entry.value == value);
}

pub(crate) async fn a_value_of_two_mebibytes_is_too_large(store: &dyn Storage) {
    let value = Bytes::from(vec![7; 2 << 20]);
    let created = store.create(&key("ns", "a"), value.clone()).await;
    assert!(matches!(created, Err(Error::TooLarge { size }) if size == 2 << 20), "{created:?}");
    let revision = create(store, "a", "1").await;
    let updated = store.update(&key("ns", "a"), revision, value).await;
    assert!(matches!(updated, Err(Error::TooLarge { size }) if size == 2 << 20), "{updated:?}");
    let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
    assert_eq!(entry.value, bytes("1"));
}

pub(crate) async fn an_update_replaces_the_value(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    let updated = update(store, "a", created, "2").await;
    assert!(updated > created);
    let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
    assert_eq!((entry.value, entry.revision), (bytes("2"), updated));
}

pub(crate) async fn an_update_with_the_same_value_gets_a_new_revision(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    assert!(update(store, "a", created, "1").await > created);
}

pub(crate) async fn updating_an_absent_key_is_not_found(store: &dyn Storage) {
    for expected in [Revision(0), Revision(1), Revision(1 << 40)] {
        let updated = store.update(&key("ns", "a"), expected, bytes("1")).await;
        assert!(matches!(&updated, Err(Error::NotFound(k)) if *k == key("ns", "a")), "{updated:?}");
    }
    assert_eq!(store.get(&key("ns", "a")).await.expect("reads"), None);
}

pub(crate) async fn updating_a_deleted_key_is_not_found(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    delete(store, "a", created).await;
    let updated = store.update(&key("ns", "a"), created, bytes("2")).await;
    assert!(matches!(updated, Err(Error::NotFound(_))), "{updated:?}");
}

pub(crate) async fn a_stale_update_conflicts_and_names_both_revisions(store: &dyn Storage) {
    let stale = create(store, "a", "1").await;
    let now = update(store, "a", stale, "2").await;
    let updated = store.update(&key("ns", "a"), stale, bytes("3")).await;
    match updated {
        Err(Error::Conflict { key: at, expected, actual }) => {
            assert_eq!((at, expected, actual), (key("ns", "a"), stale, now));
        }
        other => panic!("no conflict: {other:?}"),
    }
    let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
    assert_eq!((entry.value, entry.revision), (bytes("2"), now));
}

pub(crate) async fn an_update_at_any_other_revision_conflicts(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    for expected in [Revision(0), Revision(created.0 - 1), Revision(created.0 + 1)] {
        let updated = store.update(&key("ns", "a"), expected, bytes("2")).await;
        assert!(
            matches!(updated, Err(Error::Conflict { actual, .. }) if actual == created),
            "{updated:?}"
        );
    }
}

pub(crate) async fn the_revision_of_an_earlier_life_conflicts(store: &dyn Storage) {
    let first = create(store, "a", "1").await;
    delete(store, "a", first).await;
    let second = create(store, "a", "1").await;
    let updated = store.update(&key("ns", "a"), first, bytes("2")).await;
    assert!(
        matches!(updated, Err(Error::Conflict { actual, .. }) if actual == second),
        "{updated:?}"
    );
}

pub(crate) async fn a_deleted_key_is_gone(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    let deleted = delete(store, "a", created).await;
    assert!(deleted > created);
    assert_eq!(store.get(&key("ns", "a")).await.expect("reads"), None);
}

pub(crate) async fn deleting_an_absent_key_is_not_found(store: &dyn Storage) {
    for expected in [Revision(0), Revision(1)] {
        let deleted = store.delete(&key("ns", "a"), expected).await;
        assert!(matches!(&deleted, Err(Error::NotFound(k)) if *k == key("ns", "a")), "{deleted:?}");
    }
}

pub(crate) async fn a_stale_delete_conflicts(store: &dyn Storage) {
    let stale = create(store, "a", "1").await;
    let now = update(store, "a", stale, "2").await;
    for expected in [Revision(0), stale] {
        let deleted = store.delete(&key("ns", "a"), expected).await;
        assert!(
            matches!(deleted, Err(Error::Conflict { actual, .. }) if actual == now),
            "{deleted:?}"
        );
    }
    assert!(store.get(&key("ns", "a")).await.expect("reads").is_some());
}

pub(crate) async fn revisions_grow_with_every_write_of_any_key(store: &dyn Storage) {
    let mut revisions = vec![create(store, "a", "1").await, create(store, "b", "1").await];
    revisions.push(update(store, "a", revisions[0], "2").await);
    revisions.push(delete(store, "b", revisions[1]).await);
    assert!(revisions.is_sorted_by(|one, next| one < next), "{revisions:?}");
    let current = store.current_revision().await.expect("answers");
    assert!(Some(&current) >= revisions.last(), "{current} after {revisions:?}");
}

pub(crate) async fn a_failed_write_takes_no_revision_of_the_key(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    store.create(&key("ns", "a"), bytes("2")).await.expect_err("exists");
    store.update(&key("ns", "a"), Revision(1 << 40), bytes("2")).await.expect_err("conflicts");
    update(store, "a", created, "3").await;
}

pub(crate) async fn of_concurrent_creates_one_wins(store: &dyn Storage) {
    let a = key("ns", "a");
    let results = join_all((0..16).map(|n| store.create(&a, bytes(&n.to_string())))).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    for result in &results {
        assert!(matches!(result, Ok(_) | Err(Error::Exists(_))), "{result:?}");
    }
}

pub(crate) async fn of_concurrent_updates_one_wins(store: &dyn Storage) {
    let a = key("ns", "a");
    let created = create(store, "a", "1").await;
    let results = join_all((0..16).map(|n| store.update(&a, created, bytes(&n.to_string())))).await;
    let won: Vec<_> = results.iter().filter_map(|result| result.as_ref().ok()).collect();
    assert_eq!(won.len(), 1, "{results:?}");
    for result in &results {
        match result {
            Ok(_) => {}
            Err(Error::Conflict { actual, .. }) => assert_eq!(actual, won[0]),
            Err(error) => panic!("{error:?}"),
        }
    }
}

pub(crate) async fn concurrent_writes_of_many_keys_all_succeed(store: &dyn Storage) {
    let keys: Vec<_> = (0..100).map(|n| key("ns", &format!("k{n}"))).collect();
    let results = join_all(keys.iter().map(|key| store.create(key, bytes("1")))).await;
    let mut revisions: Vec<_> =
        results.into_iter().map(|result| result.expect("creates")).collect();
    revisions.sort();
    revisions.dedup();
    assert_eq!(revisions.len(), 100, "every write has a revision of its own");
}

pub(crate) async fn concurrent_increments_are_all_counted(store: &dyn Storage) {
    create(store, "a", "0").await;
    join_all((0..10).map(|_| increment(store))).await;
    let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
    assert_eq!(entry.value, bytes("10"));
}

/// Reads and writes until no other write came between.
async fn increment(store: &dyn Storage) {
    let a = key("ns", "a");
    loop {
        let entry = store.get(&a).await.expect("reads").expect("is there");
        let count: u32 = String::from_utf8_lossy(&entry.value).parse().expect("is a number");
        match store.update(&a, entry.revision, bytes(&(count + 1).to_string())).await {
            Ok(_) => return,
            Err(Error::Conflict { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

pub(crate) async fn the_id_stays(store: &dyn Storage) {
    let id = store.store_id().await.expect("answers");
    assert!(id.len() >= 32, "{id:?}");
    create(store, "a", "1").await;
    assert_eq!(store.store_id().await.expect("answers"), id);
}
