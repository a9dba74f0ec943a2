//! Watches: what they replay, to whom, and how far they say that they are.

use futures::future::join_all;
use navigator::apiserver::storage::{Key, KeyPrefix, Revision, Storage, StoreEvent};

use super::{Watch, bytes, create, create_in, delete, update};
use crate::storage::keys::{key, pilots};

async fn now(store: &dyn Storage) -> Revision {
    store.current_revision().await.expect("answers")
}

pub(crate) async fn a_watch_of_a_group_sees_all_its_resources(store: &dyn Storage) {
    let group = KeyPrefix::for_group("group").expect("the name is valid");
    let mut watch = Watch::of(store, &group, now(store).await).await;
    create(store, "a", "1").await;
    for (group, resource, name) in [("group2", "pilots", "b"), ("group", "leases", "c")] {
        let other = Key::new(group, resource, "ns", name).expect("the names are valid");
        store.create(&other, bytes("1")).await.expect("creates");
    }
    assert_eq!(watch.line().await, "create a=1");
    assert_eq!(watch.line().await, "create c=1");
}

pub(crate) async fn watchers_of_two_ranges_see_their_own(store: &dyn Storage) {
    let start = now(store).await;
    let [one, two] = ["one", "two"].map(|name| {
        KeyPrefix::for_namespace("group", "pilots", name).expect("the names are valid")
    });
    let mut all = Watch::start(store, start).await;
    let (mut one, mut two) =
        (Watch::of(store, &one, start).await, Watch::of(store, &two, start).await);
    create_in(store, "one", "a", "1").await;
    create_in(store, "two", "b", "1").await;
    create_in(store, "one", "c", "1").await;
    for line in ["create a=1", "create b=1", "create c=1"] {
        assert_eq!(all.line().await, line);
    }
    assert_eq!(one.line().await, "create a=1");
    assert_eq!(one.line().await, "create c=1");
    assert_eq!(two.line().await, "create b=1");
}

pub(crate) async fn a_watch_from_now_sees_nothing_of_before(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    let b = create(store, "b", "1").await;
    delete(store, "b", b).await;
    let mut watch = Watch::start(store, now(store).await).await;
    update(store, "a", created, "2").await;
    assert_eq!(watch.line().await, "put a=2");
}

pub(crate) async fn an_empty_value_comes_in_an_event(store: &dyn Storage) {
    let mut watch = Watch::start(store, now(store).await).await;
    let created = create(store, "a", "").await;
    let updated = update(store, "a", created, "").await;
    delete(store, "a", updated).await;
    for line in ["create a=", "put a=", "delete a"] {
        assert_eq!(watch.line().await, line);
    }
}

pub(crate) async fn any_byte_comes_in_an_event(store: &dyn Storage) {
    let start = now(store).await;
    let value = bytes::Bytes::from((0..=255).collect::<Vec<u8>>());
    let created = store.create(&key("ns", "a"), value.clone()).await.expect("creates");
    let deleted = delete(store, "a", created).await;
    let mut watch = Watch::start(store, start).await;
    match watch.change().await {
        StoreEvent::Put { entry, created: true } => assert_eq!(entry.value, value),
        event => panic!("{event:?}"),
    }
    let expected = StoreEvent::Delete { key: key("ns", "a"), revision: deleted };
    assert_eq!(watch.change().await, expected);
}

pub(crate) async fn an_update_with_the_same_value_is_an_event(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    let mut watch = Watch::start(store, created).await;
    let updated = update(store, "a", created, "1").await;
    let event = watch.change().await;
    assert_eq!((super::describe(&event), event.revision()), ("put a=1".to_owned(), updated));
}

pub(crate) async fn several_lives_are_replayed_in_order(store: &dyn Storage) {
    let start = now(store).await;
    let mut expected = Vec::new();
    for n in 0..5 {
        let created = create(store, "a", &n.to_string()).await;
        let deleted = delete(store, "a", created).await;
        expected.push((format!("create a={n}"), created));
        expected.push(("delete a".to_owned(), deleted));
    }
    let mut watch = Watch::start(store, start).await;
    for (line, revision) in expected {
        let event = watch.change().await;
        assert_eq!((super::describe(&event), event.revision()), (line, revision));
    }
}

pub(crate) async fn a_watch_from_a_deletion_goes_on_after_it(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    let deleted = delete(store, "a", created).await;
    let mut watch = Watch::start(store, deleted).await;
    let second = create(store, "a", "2").await;
    let event = watch.change().await;
    assert_eq!((super::describe(&event), event.revision()), ("create a=2".to_owned(), second));
}

pub(crate) async fn a_watch_from_between_knows_the_values_then(store: &dyn Storage) {
    let a1 = create(store, "a", "1").await;
    let b1 = create(store, "b", "1").await;
    let a2 = update(store, "a", a1, "2").await;
    update(store, "a", a2, "3").await;
    delete(store, "b", b1).await;
    let mut watch = Watch::start(store, b1).await;
    for line in ["put a=2", "put a=3", "delete b"] {
        assert_eq!(watch.line().await, line);
    }
}

pub(crate) async fn history_is_the_same_for_everyone(store: &dyn Storage) {
    let start = now(store).await;
    let mut revision = create(store, "a", "0").await;
    for n in 1..10 {
        revision = update(store, "a", revision, &n.to_string()).await;
        create(store, &format!("k{n}"), "1").await;
    }
    let replay = async || {
        let mut watch = Watch::start(store, start).await;
        let mut events = Vec::new();
        for _ in 0..19 {
            events.push(watch.change().await);
        }
        events
    };
    let first = replay().await;
    assert!(first.is_sorted_by(|one, next| one.revision() < next.revision()));
    let others = join_all((0..4).map(|_| replay())).await;
    assert!(others.iter().all(|other| *other == first));
}

pub(crate) async fn every_watcher_reports_progress(store: &dyn Storage) {
    let start = now(store).await;
    let mut watches = Vec::new();
    for name in ["one", "two", "three"] {
        let range = KeyPrefix::for_namespace("group", "pilots", name).expect("the names are valid");
        watches.push(Watch::of(store, &range, start).await);
    }
    watches.push(Watch::start(store, start).await);
    let other = Key::new("group", "other", "ns", "a").expect("the names are valid");
    let written = store.create(&other, bytes("1")).await.expect("creates");
    store.request_progress(written);
    for watch in &mut watches {
        loop {
            match watch.any().await {
                StoreEvent::Progress(revision) if revision >= written => break,
                StoreEvent::Progress(_) => {}
                event => panic!("not progress: {event:?}"),
            }
        }
    }
}

pub(crate) async fn a_watcher_that_is_behind_reports_events_before_progress(store: &dyn Storage) {
    let start = now(store).await;
    for n in 0..20 {
        create(store, &format!("k{n}"), "1").await;
    }
    let reached = now(store).await;
    store.request_progress(reached);
    let mut watch = Watch::of(store, &pilots(), start).await;
    let mut changes = 0;
    while changes < 20 {
        match watch.any().await {
            StoreEvent::Progress(revision) => {
                assert!(revision < reached, "{changes} at {revision}");
            }
            _ => changes += 1,
        }
    }
}
