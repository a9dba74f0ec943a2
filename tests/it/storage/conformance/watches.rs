//! Watches: ordered, complete, without repetition, each at its own pace.

use std::time::Duration;

use futures::future::{join, join_all};
use navigator::apiserver::storage::{
    Error, Key, KeyPrefix, PageRequest, Revision, Storage, StoreEvent,
};
use tokio::time::sleep;

use super::{Watch, bytes, create, create_all, create_in, delete, list, update};
use crate::storage::keys::{key, pilots};

async fn now(store: &dyn Storage) -> Revision {
    store.current_revision().await.expect("answers")
}

pub(crate) async fn a_watch_sees_creation_update_and_deletion_in_order(store: &dyn Storage) {
    let mut watch = Watch::start(store, now(store).await).await;
    let created = create(store, "a", "1").await;
    let updated = update(store, "a", created, "2").await;
    let deleted = delete(store, "a", updated).await;
    for (line, revision) in [("create a=1", created), ("put a=2", updated), ("delete a", deleted)] {
        let event = watch.change().await;
        assert_eq!((super::describe(&event), event.revision()), (line.to_owned(), revision));
    }
}

pub(crate) async fn a_watch_from_an_older_revision_replays_what_came_after(store: &dyn Storage) {
    let start = now(store).await;
    let a1 = create(store, "a", "1").await;
    create(store, "b", "1").await;
    let a2 = update(store, "a", a1, "2").await;
    delete(store, "a", a2).await;
    let mut whole = Watch::start(store, start).await;
    for line in ["create a=1", "create b=1", "put a=2", "delete a"] {
        assert_eq!(whole.line().await, line);
    }
    let mut part = Watch::start(store, a1).await;
    for line in ["create b=1", "put a=2", "delete a"] {
        assert_eq!(part.line().await, line);
    }
}

pub(crate) async fn a_watch_goes_from_history_to_the_present_without_a_gap(store: &dyn Storage) {
    let start = now(store).await;
    let mut revision = create(store, "a", "0").await;
    let mut watch = Watch::start(store, start).await;
    for n in 1..20 {
        revision = update(store, "a", revision, &n.to_string()).await;
    }
    assert_eq!(watch.line().await, "create a=0");
    for n in 1..20 {
        assert_eq!(watch.line().await, format!("put a={n}"));
    }
}

pub(crate) async fn a_watch_does_not_repeat_its_start(store: &dyn Storage) {
    let revision = create(store, "a", "1").await;
    let mut watch = Watch::start(store, revision).await;
    update(store, "a", revision, "2").await;
    assert_eq!(watch.line().await, "put a=2");
}

pub(crate) async fn a_watch_sees_its_own_range_only(store: &dyn Storage) {
    let of_namespace =
        KeyPrefix::for_namespace("group", "pilots", "n").expect("the names are valid");
    let mut watch = Watch::of(store, &of_namespace, now(store).await).await;
    let other = Key::new("group", "pilots2", "n", "a").expect("the names are valid");
    store.create(&other, bytes("1")).await.expect("creates");
    create_in(store, "n2", "b", "1").await;
    create_in(store, "n", "c", "1").await;
    assert_eq!(watch.line().await, "create c=1");
}

pub(crate) async fn a_deletion_has_a_revision_of_its_own(store: &dyn Storage) {
    let created = create(store, "a", "last").await;
    let mut watch = Watch::start(store, created).await;
    let deleted = delete(store, "a", created).await;
    assert_eq!(watch.change().await, StoreEvent::Delete { key: key("ns", "a"), revision: deleted });
}

pub(crate) async fn a_second_life_begins_with_a_creation(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    let mut watch = Watch::start(store, created).await;
    delete(store, "a", created).await;
    create(store, "a", "2").await;
    assert_eq!(watch.line().await, "delete a");
    assert_eq!(watch.line().await, "create a=2");
}

pub(crate) async fn a_failed_write_is_no_event(store: &dyn Storage) {
    let created = create(store, "a", "1").await;
    let mut watch = Watch::start(store, created).await;
    store.create(&key("ns", "a"), bytes("x")).await.expect_err("exists");
    store.update(&key("ns", "a"), Revision(1 << 40), bytes("x")).await.expect_err("conflicts");
    store.delete(&key("ns", "b"), created).await.expect_err("is absent");
    update(store, "a", created, "2").await;
    assert_eq!(watch.line().await, "put a=2");
}

pub(crate) async fn a_watch_in_the_future_fails(store: &dyn Storage) {
    let asked = Revision(now(store).await.0 + 1_000_000);
    let watch = store.watch(&pilots(), asked).await.err();
    assert!(
        matches!(watch, Some(Error::FutureRevision { asked: named, .. }) if named == asked),
        "{watch:?}"
    );
}

pub(crate) async fn a_watch_reports_progress_when_other_keys_are_written(store: &dyn Storage) {
    let mut watch = Watch::start(store, now(store).await).await;
    let other = Key::new("group", "other", "ns", "a").expect("the names are valid");
    let written = store.create(&other, bytes("1")).await.expect("creates");
    store.request_progress(written);
    loop {
        match watch.any().await {
            StoreEvent::Progress(revision) if revision >= written => break,
            StoreEvent::Progress(_) => {}
            event => panic!("not progress: {event:?}"),
        }
    }
    create(store, "a", "1").await;
    assert_eq!(watch.line().await, "create a=1");
}

pub(crate) async fn progress_never_overtakes_an_event(store: &dyn Storage) {
    let mut watch = Watch::start(store, now(store).await).await;
    let write = async {
        let mut last = Revision(0);
        for n in 0..50 {
            last = create(store, &format!("k{n}"), "1").await;
            let other = Key::new("group", "other", "ns", &format!("k{n}")).expect("is valid");
            store.request_progress(store.create(&other, bytes("1")).await.expect("creates"));
        }
        last
    };
    let read = async {
        let (mut reached, mut changes) = (Revision(0), 0);
        while changes < 50 {
            let event = watch.any().await;
            let again = event.revision() == reached && matches!(event, StoreEvent::Progress(_));
            assert!(event.revision() > reached || again, "{event:?} after {reached}");
            reached = event.revision();
            changes += usize::from(!matches!(event, StoreEvent::Progress(_)));
        }
        reached
    };
    let (last, reached) = join(write, read).await;
    assert_eq!(last, reached);
}

pub(crate) async fn watchers_of_one_range_see_the_same(store: &dyn Storage) {
    let start = now(store).await;
    let mut watches = join_all((0..8).map(|_| Watch::start(store, start))).await;
    let mut revision = create(store, "a", "0").await;
    for n in 1..20 {
        revision = update(store, "a", revision, &n.to_string()).await;
    }
    for watch in &mut watches {
        assert_eq!(watch.line().await, "create a=0");
        for n in 1..20 {
            assert_eq!(watch.line().await, format!("put a={n}"));
        }
    }
}

pub(crate) async fn a_slow_watcher_holds_up_nobody_and_misses_nothing(store: &dyn Storage) {
    let start = now(store).await;
    let mut slow = Watch::start(store, start).await;
    let mut fast = Watch::start(store, start).await;
    let keys: Vec<_> = (0..1_500).map(|n| key("ns", &format!("k{n}"))).collect();
    for part in keys.chunks(300) {
        create_all(store, part).await;
        for _ in part {
            fast.change().await;
        }
    }
    let mut last = Revision(0);
    for _ in 0..1_500 {
        let event = slow.change().await;
        assert!(event.revision() > last);
        last = event.revision();
    }
}

pub(crate) async fn a_watch_of_concurrent_writers_is_ordered_and_whole(store: &dyn Storage) {
    let mut watch = Watch::start(store, now(store).await).await;
    let keys: Vec<_> = (0..200).map(|n| key("ns", &format!("k{n}"))).collect();
    let mut written = create_all(store, &keys).await;
    written.sort();
    for revision in written {
        assert_eq!(watch.change().await.revision(), revision);
    }
}

pub(crate) async fn a_watch_from_a_list_misses_nothing(store: &dyn Storage) {
    let write = async {
        for n in 0..100 {
            create(store, &format!("k{n}"), "1").await;
        }
    };
    let read = async {
        for _ in 0..10 {
            sleep(Duration::from_millis(2)).await;
            let page = list(store, PageRequest::default()).await;
            let listed = page.entries.len();
            let mut watch = Watch::start(store, page.revision).await;
            for n in listed..100 {
                assert_eq!(watch.line().await, format!("create k{n}=1"));
            }
        }
    };
    join(write, read).await;
}

pub(crate) async fn a_watcher_that_left_harms_nobody(store: &dyn Storage) {
    let start = now(store).await;
    drop(Watch::start(store, start).await);
    let mut left = Watch::start(store, start).await;
    let created = create(store, "a", "1").await;
    left.change().await;
    drop(left);
    let mut stayed = Watch::start(store, start).await;
    update(store, "a", created, "2").await;
    assert_eq!(stayed.line().await, "create a=1");
    assert_eq!(stayed.line().await, "put a=2");
}

pub(crate) async fn an_event_comes_soon_after_the_write(store: &dyn Storage) {
    let mut watch = Watch::start(store, now(store).await).await;
    for n in 0..20 {
        // The deadline inside is the claim: no event waits for the next write.
        create(store, &format!("k{n}"), "1").await;
        assert_eq!(watch.line().await, format!("create k{n}=1"));
    }
}

pub(crate) async fn large_events_come_whole(store: &dyn Storage) {
    let start = now(store).await;
    let value = "x".repeat(1 << 20);
    for n in 0..8 {
        create(store, &format!("k{n}"), &value).await;
    }
    let mut watch = Watch::start(store, start).await;
    for n in 0..8 {
        match watch.change().await {
            StoreEvent::Put { entry, created: true } => {
                assert_eq!(entry.key, key("ns", &format!("k{n}")));
                assert_eq!(entry.value.len(), 1 << 20);
            }
            event => panic!("not a creation: {}", event.revision()),
        }
    }
}
