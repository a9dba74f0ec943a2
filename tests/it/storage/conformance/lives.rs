//! A key from its creation to its deletion, and again; keys and values of odd forms.

use bytes::Bytes;
use futures::future::{join, join_all};
use navigator::apiserver::storage::{Error, Key, PageRequest, Revision, Storage};

use super::{bytes, create, delete, list, shown, update};
use crate::storage::keys::key;

async fn value(store: &dyn Storage, key: &Key) -> Option<Bytes> {
    store.get(key).await.expect("reads").map(|entry| entry.value)
}

pub(crate) async fn a_key_lives_many_lives(store: &dyn Storage) {
    let mut last = Revision(0);
    for n in 0..10 {
        let created = create(store, "a", &n.to_string()).await;
        let updated = update(store, "a", created, "x").await;
        let deleted = delete(store, "a", updated).await;
        assert!(last < created && created < updated && updated < deleted, "life {n}");
        last = deleted;
    }
    assert_eq!(value(store, &key("ns", "a")).await, None);
}

pub(crate) async fn deleting_twice_is_not_found(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    let deleted = delete(store, "a", created).await;
    for expected in [created, deleted] {
        let again = store.delete(&key("ns", "a"), expected).await;
        assert!(matches!(&again, Err(Error::NotFound(k)) if *k == key("ns", "a")), "{again:?}");
    }
}

pub(crate) async fn an_update_at_the_revision_of_the_deletion_is_not_found(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    let deleted = delete(store, "a", created).await;
    let updated = store.update(&key("ns", "a"), deleted, bytes("2")).await;
    assert!(matches!(updated, Err(Error::NotFound(_))), "{updated:?}");
    assert_eq!(value(store, &key("ns", "a")).await, None);
}

pub(crate) async fn a_deletion_at_the_revision_of_an_earlier_life_conflicts(store: &dyn Storage) {
    let first = create(store, "a", "1").await;
    delete(store, "a", first).await;
    let second = create(store, "a", "2").await;
    let deleted = store.delete(&key("ns", "a"), first).await;
    assert!(
        matches!(deleted, Err(Error::Conflict { actual, .. }) if actual == second),
        "{deleted:?}"
    );
    assert_eq!(value(store, &key("ns", "a")).await, Some(bytes("2")));
}

pub(crate) async fn a_second_life_knows_nothing_of_the_first(store: &dyn Storage) {
    let first = create(store, "a", "a long value of the first life").await;
    delete(store, "a", first).await;
    let second = create(store, "a", "").await;
    let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
    assert_eq!((entry.value, entry.revision), (Bytes::new(), second));
}

pub(crate) async fn of_concurrent_deletions_one_wins(store: &dyn Storage) {
    let a = key("ns", "a");
    let created = create(store, "a", "1").await;
    let results = join_all((0..8).map(|_| store.delete(&a, created))).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    for result in &results {
        assert!(matches!(result, Ok(_) | Err(Error::NotFound(_))), "{result:?}");
    }
}

pub(crate) async fn of_an_update_and_a_deletion_at_one_revision_one_wins(store: &dyn Storage) {
    for n in 0..10 {
        let name = format!("k{n}");
        let created = create(store, &name, "1").await;
        let key = key("ns", &name);
        let (updated, deleted) =
            join(store.update(&key, created, bytes("2")), store.delete(&key, created)).await;
        let found = value(store, &key).await;
        match (&updated, &deleted) {
            (Ok(now), Err(Error::Conflict { actual, .. })) => {
                assert_eq!((actual, found), (now, Some(bytes("2"))));
            }
            (Err(Error::NotFound(_)), Ok(_)) => assert_eq!(found, None),
            _ => panic!("{updated:?} and {deleted:?}"),
        }
    }
}

pub(crate) async fn of_a_creation_and_a_deletion_none_is_lost(store: &dyn Storage) {
    for n in 0..10 {
        let name = format!("k{n}");
        let created = create(store, &name, "1").await;
        let key = key("ns", &name);
        let (deleted, again) =
            join(store.delete(&key, created), store.create(&key, bytes("2"))).await;
        let deleted = deleted.expect("nobody else changes it");
        match again {
            Ok(again) => {
                assert!(again > deleted);
                assert_eq!(value(store, &key).await, Some(bytes("2")));
            }
            Err(Error::Exists(_)) => assert_eq!(value(store, &key).await, None),
            Err(error) => panic!("{error:?}"),
        }
    }
}

pub(crate) async fn a_value_grows_and_shrinks(store: &dyn Storage) {
    let mut revision = create(store, "a", "").await;
    for size in [1, 100_000, 10, 1_000, 0] {
        let value = "v".repeat(size);
        revision = update(store, "a", revision, &value).await;
        let entry = store.get(&key("ns", "a")).await.expect("reads").expect("is there");
        assert_eq!((entry.value.len(), entry.revision), (size, revision));
    }
}

pub(crate) async fn a_value_that_is_no_text_is_kept_through_all(store: &dyn Storage) {
    let values = [&b"\0"[..], b"\xff\xfe", b"{\"a\":\"\xc3\x28\"}", b"\r\n\t\\\"'<>&"];
    for (n, value) in values.into_iter().enumerate() {
        let key = key("ns", &format!("k{n}"));
        let created = store.create(&key, Bytes::from_static(b"text")).await.expect("creates");
        store.update(&key, created, Bytes::from_static(value)).await.expect("updates");
        let found = store.get(&key).await.expect("reads").expect("is there");
        assert_eq!(found.value, value);
    }
    let listed: Vec<_> = list(store, PageRequest::default()).await.entries;
    assert_eq!(listed.iter().map(|entry| &entry.value[..]).collect::<Vec<_>>(), values);
}

pub(crate) async fn names_that_differ_in_case_are_two_keys(store: &dyn Storage) {
    create(store, "a", "small").await;
    create(store, "A", "large").await;
    assert_eq!(value(store, &key("ns", "a")).await, Some(bytes("small")));
    assert_eq!(value(store, &key("ns", "A")).await, Some(bytes("large")));
    assert_eq!(shown(&list(store, PageRequest::default()).await.entries), ["A=large", "a=small"]);
}

pub(crate) async fn the_longest_names_of_kubernetes_are_kept(store: &dyn Storage) {
    let (namespace, name) = ("n".repeat(63), "x".repeat(252));
    let keys = [key(&namespace, &format!("{name}1")), key(&namespace, &format!("{name}2"))];
    for (key, text) in keys.iter().zip(["1", "2"]) {
        store.create(key, bytes(text)).await.expect("creates");
    }
    assert_eq!(value(store, &keys[0]).await, Some(bytes("1")));
    let listed = list(store, PageRequest::default()).await.entries;
    assert_eq!(listed.iter().map(|entry| &entry.key).collect::<Vec<_>>(), [&keys[0], &keys[1]]);
}

pub(crate) async fn any_character_that_a_key_may_hold_is_kept(store: &dyn Storage) {
    for name in ["with spaces", "Größe", "a:b", "a,b=c", "a_b", "..a", "日本", "(!)", "a\\b\"c"]
    {
        let key = key("Some Namespace", name);
        let created = store.create(&key, bytes(name)).await.expect("creates");
        let found = store.get(&key).await.expect("reads").expect("is there");
        assert_eq!((&found.key, found.value), (&key, bytes(name)));
        store.delete(&key, created).await.expect("deletes");
    }
    assert!(list(store, PageRequest::default()).await.entries.is_empty());
}

pub(crate) async fn the_latest_revision_never_goes_back(store: &dyn Storage) {
    let write = async {
        for n in 0..30 {
            let created = create(store, &format!("k{n}"), "1").await;
            delete(store, &format!("k{n}"), created).await;
        }
    };
    let read = async {
        let mut last = Revision(0);
        for _ in 0..30 {
            let now = store.current_revision().await.expect("answers");
            assert!(now >= last, "{now} after {last}");
            last = now;
        }
    };
    join(write, read).await;
}

pub(crate) async fn a_reader_never_sees_an_older_value_again(store: &dyn Storage) {
    let a = key("ns", "a");
    let mut revision = create(store, "a", "0").await;
    let write = async {
        for n in 1..40 {
            revision = update(store, "a", revision, &n.to_string()).await;
        }
    };
    let read = async {
        let mut last = Revision(0);
        loop {
            let entry = store.get(&a).await.expect("reads").expect("is there");
            assert!(entry.revision >= last, "{} after {last}", entry.revision);
            last = entry.revision;
            if entry.value == "39" {
                return;
            }
        }
    };
    join(write, read).await;
}

pub(crate) async fn births_and_deaths_are_counted(store: &dyn Storage) {
    let before = store.births_and_deaths();
    let created = create(store, "a", "1").await;
    let updated = update(store, "a", created, "2").await;
    store.create(&key("ns", "a"), bytes("3")).await.expect_err("exists");
    store.delete(&key("ns", "a"), created).await.expect_err("conflicts");
    delete(store, "a", updated).await;
    assert_eq!(store.births_and_deaths() - before, 2);
}
