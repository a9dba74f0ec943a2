//! Lists in pages, of the present and of the past, and while others write.

use std::time::Duration;

use futures::future::join;
use navigator::apiserver::storage::{Key, KeyPrefix, PageRequest, Revision, Storage};
use tokio::time::sleep;

use super::{bytes, create, create_in, delete, list, shown, update};
use crate::storage::keys::{key, pilots};

/// All pages of this size from a first one on.
async fn paged(store: &dyn Storage, prefix: &KeyPrefix, limit: usize) -> (Vec<String>, Revision) {
    let mut request = PageRequest { limit: Some(limit), ..PageRequest::default() };
    let mut seen = Vec::new();
    loop {
        let page = store.list(prefix, request.clone()).await.expect("lists");
        seen.extend(shown(&page.entries));
        request.at = Some(page.revision);
        request.after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more {
            return (seen, page.revision);
        }
    }
}

pub(crate) async fn a_list_of_a_group_shows_all_its_resources(store: &dyn Storage) {
    create(store, "a", "1").await;
    let lease = Key::new("group", "leases", "ns", "b").expect("the names are valid");
    store.create(&lease, bytes("2")).await.expect("creates");
    let foreign = Key::new("group2", "leases", "ns", "c").expect("the names are valid");
    store.create(&foreign, bytes("3")).await.expect("creates");
    let group = KeyPrefix::for_group("group").expect("the name is valid");
    let page = store.list(&group, PageRequest::default()).await.expect("lists");
    assert_eq!(shown(&page.entries), ["b=2", "a=1"]);
    assert_eq!(paged(store, &group, 1).await.0, ["b=2", "a=1"]);
}

pub(crate) async fn a_key_before_the_range_hides_nothing(store: &dyn Storage) {
    create_in(store, "n", "a", "1").await;
    create_in(store, "n", "b", "1").await;
    let range = KeyPrefix::for_namespace("group", "pilots", "n").expect("the names are valid");
    let after = PageRequest { after: Some(key("m", "z")), ..PageRequest::default() };
    let page = store.list(&range, after).await.expect("lists");
    assert_eq!(shown(&page.entries), ["a=1", "b=1"]);
    let after = PageRequest { after: Some(key("n0", "a")), ..PageRequest::default() };
    let page = store.list(&range, after).await.expect("lists");
    assert!(page.entries.is_empty() && !page.more, "{page:?}");
}

pub(crate) async fn a_page_may_begin_after_a_key_that_never_was(store: &dyn Storage) {
    for name in ["a", "c", "e"] {
        create(store, name, "1").await;
    }
    let request =
        PageRequest { after: Some(key("ns", "b")), limit: Some(1), ..PageRequest::default() };
    let page = list(store, request).await;
    assert!(page.more, "{page:?}");
    assert_eq!(shown(&page.entries), ["c=1"]);
}

pub(crate) async fn a_limit_beyond_the_range_shows_all(store: &dyn Storage) {
    create(store, "a", "1").await;
    create(store, "b", "1").await;
    let page = list(store, PageRequest { limit: Some(1 << 40), ..PageRequest::default() }).await;
    assert_eq!(shown(&page.entries), ["a=1", "b=1"]);
    assert!(!page.more);
}

pub(crate) async fn pages_of_one_object_show_one_moment(store: &dyn Storage) {
    let mut revisions = Vec::new();
    for n in 0..6 {
        revisions.push(create(store, &format!("k{n}"), "old").await);
    }
    let mut request = PageRequest { limit: Some(1), ..PageRequest::default() };
    let mut seen = Vec::new();
    for (n, revision) in revisions.into_iter().enumerate() {
        let page = list(store, request.clone()).await;
        seen.extend(shown(&page.entries));
        request.at = Some(page.revision);
        request.after = page.entries.last().map(|entry| entry.key.clone());
        assert_eq!(page.more, n < 5);
        // An object that was shown, and one that will be, is gone by the next page.
        delete(store, &format!("k{n}"), revision).await;
    }
    assert_eq!(seen, ["k0=old", "k1=old", "k2=old", "k3=old", "k4=old", "k5=old"]);
}

pub(crate) async fn two_lists_are_paged_side_by_side(store: &dyn Storage) {
    for n in 0..9 {
        create_in(store, "one", &format!("a{n}"), "1").await;
        create_in(store, "two", &format!("b{n}"), "1").await;
    }
    let [one, two] = ["one", "two"].map(|name| {
        KeyPrefix::for_namespace("group", "pilots", name).expect("the names are valid")
    });
    let ((left, _), (right, _)) = join(paged(store, &one, 2), paged(store, &two, 3)).await;
    assert_eq!(left, (0..9).map(|n| format!("a{n}=1")).collect::<Vec<_>>());
    assert_eq!(right, (0..9).map(|n| format!("b{n}=1")).collect::<Vec<_>>());
}

pub(crate) async fn a_list_at_the_latest_revision_is_that_of_now(store: &dyn Storage) {
    create(store, "a", "1").await;
    let b = create(store, "b", "1").await;
    delete(store, "b", b).await;
    let now = list(store, PageRequest::default()).await;
    let same = list(store, PageRequest { at: Some(now.revision), ..PageRequest::default() }).await;
    assert_eq!((now.entries, now.revision), (same.entries, same.revision));
}

pub(crate) async fn a_list_of_the_past_stays_as_it_was(store: &dyn Storage) {
    let a = create(store, "a", "1").await;
    let b = create(store, "b", "1").await;
    let at = PageRequest { at: Some(b), ..PageRequest::default() };
    let before = list(store, at.clone()).await.entries;
    let a = update(store, "a", a, "2").await;
    delete(store, "b", b).await;
    assert_eq!(list(store, at.clone()).await.entries, before);
    delete(store, "a", a).await;
    create(store, "a", "3").await;
    assert_eq!(list(store, at).await.entries, before);
}

pub(crate) async fn a_list_shows_the_latest_life_of_a_key(store: &dyn Storage) {
    let first = create(store, "a", "1").await;
    delete(store, "a", first).await;
    assert!(list(store, PageRequest::default()).await.entries.is_empty());
    let second = create(store, "a", "2").await;
    let entries = list(store, PageRequest::default()).await.entries;
    assert_eq!((shown(&entries), entries[0].revision), (vec!["a=2".to_owned()], second));
}

pub(crate) async fn what_a_list_shows_can_be_updated_at_its_revision(store: &dyn Storage) {
    for name in ["a", "b", "c"] {
        let created = create(store, name, "1").await;
        update(store, name, created, "2").await;
    }
    for entry in list(store, PageRequest::default()).await.entries {
        store.update(&entry.key, entry.revision, bytes("3")).await.expect("it is the latest");
    }
    let entries = list(store, PageRequest::default()).await.entries;
    assert_eq!(shown(&entries), ["a=3", "b=3", "c=3"]);
}

pub(crate) async fn a_list_while_others_write_shows_one_moment(store: &dyn Storage) {
    let (mut a, mut b) = (create(store, "a", "00").await, create(store, "b", "00").await);
    let write = async {
        for n in 1..30 {
            let value = format!("{n:02}");
            a = update(store, "a", a, &value).await;
            b = update(store, "b", b, &value).await;
        }
    };
    let read = async {
        for _ in 0..20 {
            let entries = list(store, PageRequest::default()).await.entries;
            let [a, b] = [0, 1].map(|n| String::from_utf8_lossy(&entries[n].value).into_owned());
            let (a, b): (u32, u32) = (a.parse().unwrap(), b.parse().unwrap());
            assert!(a == b || a == b + 1, "a is written before b: {a}, {b}");
            sleep(Duration::from_millis(2)).await;
        }
    };
    join(write, read).await;
}

pub(crate) async fn large_values_are_listed_whole(store: &dyn Storage) {
    let value = "x".repeat(1 << 20);
    for n in 0..6 {
        create(store, &format!("k{n}"), &value).await;
    }
    let page = store.list(&pilots(), PageRequest::default()).await.expect("lists");
    assert!(page.entries.len() == 6 && page.entries.iter().all(|entry| entry.value == value));
    let (paged, _) = paged(store, &pilots(), 4).await;
    assert_eq!(paged.len(), 6);
}
