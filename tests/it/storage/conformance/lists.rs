//! Lists: their order, their range, their pages, their age.

use navigator::apiserver::storage::{Error, Key, KeyPrefix, PageRequest, Revision, Storage};

use super::{bytes, create, create_all, create_in, delete, list, shown, update};
use crate::storage::keys::{key, pilots};

pub(crate) async fn a_list_of_nothing_has_a_revision(store: &dyn Storage) {
    let page = list(store, PageRequest::default()).await;
    assert!(page.entries.is_empty() && !page.more, "{page:?}");
    assert!(page.revision > Revision(0));
}

pub(crate) async fn a_list_is_ordered_by_the_bytes_of_the_key(store: &dyn Storage) {
    for name in ["b", "a", "a.b", "a-b", "a0", "aa"] {
        create(store, name, "1").await;
    }
    let page = list(store, PageRequest::default()).await;
    assert_eq!(shown(&page.entries), ["a=1", "a-b=1", "a.b=1", "a0=1", "aa=1", "b=1"]);
}

pub(crate) async fn a_list_shows_its_own_range_only(store: &dyn Storage) {
    create_in(store, "n", "a", "1").await;
    create_in(store, "n2", "b", "1").await;
    create_in(store, "n-2", "c", "1").await;
    for (group, resource) in [("group", "pilots2"), ("group", "pilot"), ("group2", "pilots")] {
        let other = Key::new(group, resource, "n", "d").expect("the names are valid");
        store.create(&other, bytes("1")).await.expect("creates");
    }
    let of_namespace =
        KeyPrefix::for_namespace("group", "pilots", "n").expect("the names are valid");
    let page = store.list(&of_namespace, PageRequest::default()).await.expect("lists");
    assert_eq!(shown(&page.entries), ["a=1"]);
    let page = list(store, PageRequest::default()).await;
    assert_eq!(shown(&page.entries), ["c=1", "a=1", "b=1"]);
}

pub(crate) async fn a_list_carries_values_and_revisions(store: &dyn Storage) {
    let a = create(store, "a", "1").await;
    let b = update(store, "a", a, "2").await;
    let c = create(store, "c", "3").await;
    let page = list(store, PageRequest::default()).await;
    assert_eq!(shown(&page.entries), ["a=2", "c=3"]);
    let revisions: Vec<_> = page.entries.iter().map(|entry| entry.revision).collect();
    assert_eq!(revisions, [b, c]);
    assert!(page.revision >= c);
}

pub(crate) async fn pages_show_everything_once(store: &dyn Storage) {
    let names: Vec<_> = (10..33).map(|n| format!("k{n}")).collect();
    for name in &names {
        create(store, name, "1").await;
    }
    for limit in [1, 5, 22, 23, 24] {
        let (mut seen, mut request) = (Vec::new(), PageRequest::default());
        (request.limit, request.count) = (Some(limit), true);
        loop {
            let page = list(store, request.clone()).await;
            assert!(page.entries.len() <= limit);
            request.at = Some(page.revision);
            request.after = page.entries.last().map(|entry| entry.key.clone());
            seen.extend(shown(&page.entries));
            assert_eq!(page.remaining, names.len() - seen.len(), "limit {limit}");
            if !page.more {
                break;
            }
        }
        let expected: Vec<_> = names.iter().map(|name| format!("{name}=1")).collect();
        assert_eq!(seen, expected, "limit {limit}");
    }
}

pub(crate) async fn a_full_last_page_has_no_more(store: &dyn Storage) {
    create(store, "a", "1").await;
    create(store, "b", "1").await;
    let page = list(store, PageRequest { limit: Some(2), ..PageRequest::default() }).await;
    assert!(!page.more && page.entries.len() == 2, "{page:?}");
    let page = list(store, PageRequest { limit: Some(1), ..PageRequest::default() }).await;
    assert!(page.more && page.entries.len() == 1, "{page:?}");
}

pub(crate) async fn pages_of_one_list_show_one_moment(store: &dyn Storage) {
    let mut revisions = Vec::new();
    for name in ["b", "d", "f", "h"] {
        revisions.push(create(store, name, "old").await);
    }
    let first = list(store, PageRequest { limit: Some(2), ..PageRequest::default() }).await;
    assert_eq!(shown(&first.entries), ["b=old", "d=old"]);
    // Between two pages: changed, gone, new.
    update(store, "f", revisions[2], "new").await;
    delete(store, "h", revisions[3]).await;
    create(store, "e", "new").await;
    create(store, "z", "new").await;
    let second = list(
        store,
        PageRequest {
            at: Some(first.revision),
            after: Some(key("ns", "d")),
            limit: Some(9),
            ..PageRequest::default()
        },
    )
    .await;
    assert_eq!(shown(&second.entries), ["f=old", "h=old"]);
    assert!(second.revision == first.revision && !second.more, "{second:?}");
}

pub(crate) async fn a_list_goes_on_after_a_key_that_is_gone(store: &dyn Storage) {
    let a = create(store, "a", "1").await;
    create(store, "b", "1").await;
    delete(store, "a", a).await;
    let after = PageRequest { after: Some(key("ns", "a")), ..PageRequest::default() };
    assert_eq!(shown(&list(store, after).await.entries), ["b=1"]);
    let after = PageRequest { after: Some(key("ns", "z")), ..PageRequest::default() };
    assert!(list(store, after).await.entries.is_empty());
}

pub(crate) async fn a_list_at_an_older_revision_shows_the_state_then(store: &dyn Storage) {
    let start = store.current_revision().await.expect("answers");
    let a1 = create(store, "a", "1").await;
    let b1 = create(store, "b", "1").await;
    let a2 = update(store, "a", a1, "2").await;
    let b2 = delete(store, "b", b1).await;
    let c1 = create(store, "c", "1").await;
    let b3 = create(store, "b", "3").await;
    let states: [(Revision, &[&str]); 7] = [
        (start, &[]),
        (a1, &["a=1"]),
        (b1, &["a=1", "b=1"]),
        (a2, &["a=2", "b=1"]),
        (b2, &["a=2"]),
        (c1, &["a=2", "c=1"]),
        (b3, &["a=2", "b=3", "c=1"]),
    ];
    for (at, expected) in states {
        let page = list(store, PageRequest { at: Some(at), ..PageRequest::default() }).await;
        assert_eq!(shown(&page.entries), expected, "at {at}");
        assert_eq!(page.revision, at);
        let small = PageRequest { at: Some(at), limit: Some(1), ..PageRequest::default() };
        let page = list(store, small).await;
        assert_eq!(shown(&page.entries), expected[..expected.len().min(1)], "first at {at}");
        assert_eq!(page.more, expected.len() > 1, "more at {at}");
    }
}

pub(crate) async fn an_older_entry_carries_its_older_revision(store: &dyn Storage) {
    let a1 = create(store, "a", "1").await;
    let a2 = update(store, "a", a1, "2").await;
    update(store, "a", a2, "3").await;
    let page = list(store, PageRequest { at: Some(a2), ..PageRequest::default() }).await;
    assert_eq!((shown(&page.entries), page.entries[0].revision), (vec!["a=2".to_owned()], a2));
}

pub(crate) async fn a_list_in_the_future_fails(store: &dyn Storage) {
    let latest = store.current_revision().await.expect("answers");
    let asked = Revision(latest.0 + 1_000_000);
    let request = PageRequest { at: Some(asked), ..PageRequest::default() };
    match store.list(&pilots(), request).await {
        Err(Error::FutureRevision { asked: named, latest: seen }) => {
            assert_eq!(named, asked);
            assert!(seen >= latest && seen < asked);
        }
        other => panic!("no error: {other:?}"),
    }
}

pub(crate) async fn the_state_at_revision_zero_is_not_known(store: &dyn Storage) {
    let request = PageRequest { at: Some(Revision(0)), ..PageRequest::default() };
    let listed = store.list(&pilots(), request).await;
    assert!(
        matches!(listed, Err(Error::Compacted { asked: Revision(0), oldest }) if oldest.0 > 0),
        "{listed:?}"
    );
}

pub(crate) async fn a_list_of_a_thousand_keys_is_whole(store: &dyn Storage) {
    let keys: Vec<_> = (0..1_100).map(|n| key("ns", &format!("k{n:04}"))).collect();
    create_all(store, &keys).await;
    let page = list(store, PageRequest::default()).await;
    let listed: Vec<_> = page.entries.iter().map(|entry| &entry.key).collect();
    assert_eq!(listed, keys.iter().collect::<Vec<_>>());
    assert!(!page.more);
    let page = list(store, PageRequest { limit: Some(700), ..PageRequest::default() }).await;
    assert!(page.entries.len() == 700 && page.more);
}

pub(crate) async fn a_limit_of_zero_shows_nothing(store: &dyn Storage) {
    let request = PageRequest { limit: Some(0), ..PageRequest::default() };
    let page = list(store, request.clone()).await;
    assert!(page.entries.is_empty() && !page.more);
    create(store, "a", "1").await;
    let page = list(store, request).await;
    assert!(page.entries.is_empty() && page.more);
}

pub(crate) async fn what_is_acknowledged_is_listed(store: &dyn Storage) {
    for n in 0..50 {
        let revision = create(store, &format!("k{n}"), "1").await;
        let page = list(store, PageRequest::default()).await;
        assert!(page.revision >= revision && page.entries.len() == n + 1);
    }
}
