//! The cache over real stores, and over one that fails when it is told to.

pub(crate) mod faulty;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::{join, join_all};
use navigator::{
    apiserver::{
        cache::{
            Cache, CacheEvent, CacheListing, CacheWatcher, CachedObject, Error, EventType,
            KeyRange, ObjectForm,
        },
        capacity::CapacityBounds,
        storage::{Error as StoreError, Key, KeyPrefix, PageRequest, Revision, Storage},
    },
    runtime::{Readiness, Shutdown, TaskGroup},
};
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use self::faulty::Faulty;
use crate::storage::{Scratch, connect, etcd_server, kube_apiserver};

const DEADLINE: Duration = Duration::from_secs(60);

fn pilots() -> KeyPrefix {
    KeyPrefix::for_resource("group", "pilots").unwrap()
}

fn key(namespace: &str, name: &str) -> Key {
    Key::new("group", "pilots", namespace, name).unwrap()
}

fn object(name: &str, value: u64) -> Bytes {
    json!({"metadata": {"name": name}, "value": value}).to_string().into()
}

/// A running cache; it stops when this is dropped.
struct Running {
    cache: Arc<Cache>,
    shutdown: Shutdown,
    tasks: TaskGroup,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.trigger();
    }
}

fn turns() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1))
}

fn stopped(store: Arc<dyn Storage>) -> Arc<Cache> {
    Cache::new(store, pilots(), Box::new(decode), turns())
}

fn decode(bytes: &[u8]) -> Result<ObjectForm, String> {
    let object = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    ObjectForm::new(&object, None, Vec::new(), true)
}

impl Running {
    async fn over(store: Arc<dyn Storage>) -> Self {
        let running = Self::with(stopped(store));
        running.until_ready().await;
        running
    }

    async fn until_ready(&self) {
        let started = Instant::now();
        while !self.cache.is_ready() {
            assert!(started.elapsed() < DEADLINE, "the cache does not get ready");
            sleep(Duration::from_millis(2)).await;
        }
    }

    fn with(cache: Arc<Cache>) -> Self {
        let shutdown = Shutdown::new();
        let tasks = TaskGroup::new(shutdown.clone());
        let ready = Readiness::new().add("cache");
        tasks.spawn("cache", Arc::clone(&cache).run(shutdown.clone(), ready));
        Self { cache, shutdown, tasks }
    }
}

async fn line(watcher: &mut CacheWatcher) -> String {
    let event = timeout(DEADLINE, watcher.next()).await.expect("an event comes in time");
    describe(&event.expect("the watch goes on"))
}

async fn end(watcher: &mut CacheWatcher) -> Error {
    loop {
        if let Err(error) = timeout(DEADLINE, watcher.next()).await.expect("it ends in time") {
            return error;
        }
    }
}

fn describe(event: &CacheEvent) -> String {
    let text = |hub: &Value| format!("{}={}", hub["metadata"]["name"], hub["value"]);
    let object = event.object();
    assert_eq!(object.to_value()["metadata"]["resourceVersion"], object.revision.to_string());
    let text = match event {
        CacheEvent::Put { object, previous: None } => format!("added {}", text(&object.to_value())),
        CacheEvent::Put { object, previous: Some(previous) } => {
            format!("modified {} {}", text(&object.to_value()), previous.to_value()["value"])
        }
        CacheEvent::Deleted { object, .. } => format!("deleted {}", text(&object.to_value())),
    };
    text.replace('"', "")
}

async fn embedded() -> (Arc<dyn Storage>, tempfile::TempDir) {
    let Scratch { store, directory } = Scratch::new().await;
    (Arc::new(store), directory)
}

#[tokio::test]
async fn nothing_is_answered_before_the_first_list() {
    let (store, _directory) = embedded().await;
    store.create(&key("ns", "a"), object("a", 1)).await.unwrap();
    let cache = stopped(store);
    assert!(matches!(cache.list(&pilots(), None).await, Err(Error::NotReady)));
    assert!(matches!(cache.get(&key("ns", "a"), None).await, Err(Error::NotReady)));
    assert!(matches!(
        cache.watch(KeyRange::Under(pilots()), Revision(1)).await.err(),
        Some(Error::NotReady)
    ));
}

#[tokio::test]
async fn readiness_waits_for_the_first_list() {
    let (store, _directory) = embedded().await;
    let store = Faulty::new(store);
    store.fail_lists(true);
    let (cache, readiness, shutdown) = (stopped(store.clone()), Readiness::new(), Shutdown::new());
    let ready = readiness.add("cache");
    let tasks = TaskGroup::new(shutdown.clone());
    tasks.spawn("cache", Arc::clone(&cache).run(shutdown.clone(), ready));
    store.until_a_list_failed().await;
    assert_eq!(readiness.waiting_for(), ["cache"]);
    store.fail_lists(false);
    let started = Instant::now();
    while !readiness.waiting_for().is_empty() {
        assert!(started.elapsed() < DEADLINE, "not ready");
        sleep(Duration::from_millis(5)).await;
    }
    assert!(cache.is_ready());
    shutdown.trigger();
    tasks.join().await;
}

#[tokio::test]
async fn a_list_shows_what_was_there_before_in_the_order_of_keys() {
    let (store, _directory) = embedded().await;
    let mut last = Revision(0);
    for (namespace, name) in [("b", "x"), ("a", "z"), ("a", "y"), ("a-b", "w")] {
        last = store.create(&key(namespace, name), object(name, 1)).await.unwrap();
    }
    let running = Running::over(store).await;
    let listing = running.cache.list(&pilots(), Some(last)).await.unwrap();
    let keys: Vec<_> = listing.objects.iter().map(|object| object.key.as_str()).collect();
    let expected =
        ["group/pilots/a-b/w", "group/pilots/a/y", "group/pilots/a/z", "group/pilots/b/x"];
    assert_eq!(keys, expected);
    assert_eq!(listing.revision, last);
    let of_a = KeyPrefix::for_namespace("group", "pilots", "a").unwrap();
    let listing = running.cache.list(&of_a, None).await.unwrap();
    assert_eq!(listing.objects.len(), 2);
}

#[tokio::test]
async fn a_read_at_a_revision_waits_for_it() {
    let (store, _directory) = embedded().await;
    let running = Running::over(Arc::clone(&store)).await;
    let mut revision = store.create(&key("ns", "a"), object("a", 0)).await.unwrap();
    for n in 1..50 {
        revision = store.update(&key("ns", "a"), revision, object("a", n)).await.unwrap();
        let found = running.cache.get(&key("ns", "a"), Some(revision)).await.unwrap().unwrap();
        assert_eq!((found.revision, &found.to_value()["value"]), (revision, &json!(n)));
    }
    let revision = store.delete(&key("ns", "a"), revision).await.unwrap();
    assert!(running.cache.get(&key("ns", "a"), Some(revision)).await.unwrap().is_none());
}

/// No client can have seen such a revision, so no read waits for it: see `FRESHNESS_WAIT`.
#[tokio::test]
async fn a_read_in_the_future_is_told_so_at_once() {
    let (store, _directory) = embedded().await;
    let running = Running::over(store).await;
    let asked = Revision(1_000);
    tokio::time::pause();
    let begun = Instant::now();
    let listed = running.cache.list(&pilots(), Some(asked)).await;
    assert!(matches!(listed, Err(Error::NotYet { asked: named, .. }) if named == asked));
    assert_eq!(begun.elapsed(), Duration::ZERO, "it waited");
}

async fn catches_up(store: Arc<dyn Storage>) {
    let running = Running::over(Arc::clone(&store)).await;
    for n in 0..20 {
        let other = Key::new("group", "other", "ns", &format!("k{n}")).unwrap();
        let written = store.create(&other, object("k", n)).await.unwrap();
        let shown = running.cache.catch_up().await.unwrap();
        assert!(shown >= written && running.cache.revision() >= written);
        // A client with a revision of another resource waits for it without a question to the
        // store.
        let other = Key::new("group", "more", "ns", &format!("k{n}")).unwrap();
        let written = store.create(&other, object("k", n)).await.unwrap();
        running.cache.wait_until(written).await.unwrap();
    }
}

#[tokio::test]
async fn a_consistent_read_does_not_wait_for_a_write_of_its_own_on_embedded() {
    let (store, _directory) = embedded().await;
    catches_up(store).await;
}

#[tokio::test]
async fn a_consistent_read_does_not_wait_for_a_write_of_its_own_on_etcd() {
    let server = etcd_server::shared();
    catches_up(Arc::new(connect(server.url(), "cache-catch-up").await)).await;
}

/// Reads that come while one asks the store share the next answer, and not the one that is on its
/// way: that answer may be older than these reads.
#[tokio::test]
async fn consistent_reads_share_a_question() {
    let (store, _directory) = embedded().await;
    let store = Faulty::new(store);
    let cache = Running::over(store.clone()).await;
    store.hold_revisions(true);
    let before = store.revisions_read();
    let first = cache.cache.catch_up();
    let mut first = std::pin::pin!(first);
    assert!(futures::poll!(first.as_mut()).is_pending(), "it waits for its revision");
    let written = store.create(&key("ns", "a"), object("a", 1)).await.unwrap();
    let mut later: Vec<_> = (0..100).map(|_| Box::pin(cache.cache.catch_up())).collect();
    for read in &mut later {
        assert!(futures::poll!(read).is_pending(), "it waits for its turn");
    }
    store.hold_revisions(false);
    let (first, later) = join(first, join_all(later)).await;
    assert!(first.unwrap() < written);
    for read in later {
        assert!(read.unwrap() >= written);
    }
    assert_eq!(store.revisions_read() - before, 2);
    // When the read that asks is dropped, the next read asks again.
    store.hold_revisions(true);
    {
        let mut gone = std::pin::pin!(cache.cache.catch_up());
        assert!(futures::poll!(gone.as_mut()).is_pending(), "it waits for its revision");
    }
    store.hold_revisions(false);
    cache.cache.catch_up().await.unwrap();
    // All reads that share a question get its error.
    store.fail_revisions(true);
    let failed = join_all((0..5).map(|_| cache.cache.catch_up())).await;
    assert!(failed.iter().all(Result::is_err), "{failed:?}");
    store.fail_revisions(false);
    cache.cache.catch_up().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consistent_read_does_not_wait_for_a_write_of_its_own_on_kubernetes() {
    catches_up(Arc::new(kube_apiserver::shared().store("cache-catch-up").await)).await;
}

async fn events_in_order(store: Arc<dyn Storage>) {
    let running = Running::over(Arc::clone(&store)).await;
    let start = running.cache.catch_up().await.unwrap();
    let mut watcher = running.cache.watch(KeyRange::Under(pilots()), start).await.unwrap();
    let created = store.create(&key("ns", "a"), object("a", 1)).await.unwrap();
    let updated = store.update(&key("ns", "a"), created, object("a", 2)).await.unwrap();
    let deleted = store.delete(&key("ns", "a"), updated).await.unwrap();
    store.create(&key("ns", "a"), object("a", 3)).await.unwrap();
    let lines = ["added a=1", "modified a=2 1", "deleted a=2", "added a=3"];
    for expected in lines {
        assert_eq!(line(&mut watcher).await, expected);
    }
    let mut later = running.cache.watch(KeyRange::Under(pilots()), updated).await.unwrap();
    let event = later.next().await.unwrap();
    assert_eq!((describe(&event).as_str(), event.object().revision), ("deleted a=2", deleted));
}

#[tokio::test]
async fn a_watcher_sees_every_change_in_order_on_embedded() {
    let (store, _directory) = embedded().await;
    events_in_order(store).await;
}

#[tokio::test]
async fn a_watcher_sees_every_change_in_order_on_etcd() {
    let server = etcd_server::shared();
    events_in_order(Arc::new(connect(server.url(), "cache-events").await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_sees_every_change_in_order_on_kubernetes() {
    events_in_order(Arc::new(kube_apiserver::shared().store("cache-events").await)).await;
}

#[tokio::test]
async fn a_watcher_sees_its_own_namespace_only() {
    let (store, _directory) = embedded().await;
    let running = Running::over(Arc::clone(&store)).await;
    let range = KeyPrefix::for_namespace("group", "pilots", "a").unwrap();
    let mut watcher =
        running.cache.watch(KeyRange::Under(range), running.cache.revision()).await.unwrap();
    store.create(&key("a2", "x"), object("x", 1)).await.unwrap();
    store.create(&key("a", "y"), object("y", 1)).await.unwrap();
    assert_eq!(line(&mut watcher).await, "added y=1");
}

#[tokio::test]
async fn many_changes_of_other_namespaces_hold_up_no_watcher() {
    let (store, _directory) = embedded().await;
    let running = Running::over(Arc::clone(&store)).await;
    let range = KeyPrefix::for_namespace("group", "pilots", "a").unwrap();
    let mut watcher =
        running.cache.watch(KeyRange::Under(range), running.cache.revision()).await.unwrap();
    let others: Vec<_> = (0..1_000).map(|n| key("b", &format!("k{n}"))).collect();
    for created in join_all(others.iter().map(|key| store.create(key, object("k", 1)))).await {
        created.unwrap();
    }
    // The last change of all: nothing comes after it that would wake the watcher.
    let last = store.create(&key("a", "y"), object("y", 1)).await.unwrap();
    running.cache.wait_until(last).await.unwrap();
    assert_eq!(line(&mut watcher).await, "added y=1");
}

/// Each look costs a wake-up and a write to a connection, for each watcher.
#[tokio::test]
async fn one_of_many_watchers_looks_once_in_32_milliseconds() {
    let (store, _directory) = embedded().await;
    let running = Running::over(Arc::clone(&store)).await;
    let start = running.cache.revision();
    let started = Instant::now();
    let mut watchers = Vec::new();
    for _ in 0..400 {
        watchers.push(running.cache.watch(KeyRange::Under(pilots()), start).await.unwrap());
    }
    let keys: Vec<_> = (0..200).map(|n| key("ns", &format!("k{n}"))).collect();
    let write = async {
        for key in &keys {
            store.create(key, object("k", 1)).await.unwrap();
        }
    };
    let watcher = &mut watchers[0];
    let look = async {
        let (mut looks, mut seen) = (0, 0);
        while seen < keys.len() {
            timeout(DEADLINE, watcher.next()).await.expect("the next change comes").unwrap();
            looks += 1;
            seen += 1;
            while watcher.next_ready().is_some() {
                seen += 1;
            }
        }
        looks
    };
    let (looks, ()) = join(look, write).await;
    // The slower the machine, the more looks there may be: the claim is about each moment.
    let most = started.elapsed().as_millis() / 32 + 2;
    assert!(looks <= most, "{looks} looks, at most {most}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_of_concurrent_writers_see_one_history() {
    let (store, _directory) = embedded().await;
    let running = Running::over(Arc::clone(&store)).await;
    let start = running.cache.revision();
    let read = join_all((0..10).map(|_| async {
        let mut watcher = running.cache.watch(KeyRange::Under(pilots()), start).await.unwrap();
        let mut seen = Vec::new();
        while seen.len() < 400 {
            let event = timeout(DEADLINE, watcher.next()).await.unwrap().unwrap();
            seen.push((event.object().revision, describe(&event)));
        }
        seen
    }));
    let write = join_all((0..8).map(|n| {
        let (store, name) = (Arc::clone(&store), format!("k{n}"));
        async move {
            let mut at = store.create(&key("ns", &name), object(&name, 0)).await.unwrap();
            for value in 1..50 {
                at = store.update(&key("ns", &name), at, object(&name, value)).await.unwrap();
            }
        }
    }));
    let (seen, _) = join(read, write).await;
    assert!(seen[0].is_sorted_by(|(one, _), (next, _)| one < next), "out of order");
    assert!(seen.iter().all(|other| *other == seen[0]), "watchers disagree");
}

/// A cache that is new knows what happened before it as far as the store does, so that its clients
/// need not list everything after a restart.
async fn goes_on_after_a_restart(store: Arc<dyn Storage>) {
    let kept = store.create(&key("ns", "kept"), object("kept", 1)).await.unwrap();
    let gone = store.create(&key("ns", "gone"), object("gone", 1)).await.unwrap();
    let before = Running::over(Arc::clone(&store)).await;
    let seen = before.cache.catch_up().await.unwrap();
    drop(before);
    store.update(&key("ns", "kept"), kept, object("kept", 2)).await.unwrap();
    store.delete(&key("ns", "gone"), gone).await.unwrap();
    let other = Key::new("group", "other", "ns", "a").unwrap();
    let last = store.create(&other, object("a", 1)).await.unwrap();
    let after = Running::over(Arc::clone(&store)).await;
    let shown = after.cache.revision();
    assert!(
        shown >= last,
        "it is ready with {shown:?}, and does not show {last:?}, which there was"
    );
    let mut watcher = after.cache.watch(KeyRange::Under(pilots()), seen).await.unwrap();
    for expected in ["modified kept=2 1", "deleted gone=1"] {
        assert_eq!(line(&mut watcher).await, expected);
    }
    assert_eq!(after.cache.list(&pilots(), None).await.unwrap().objects.len(), 1);
}

#[tokio::test]
async fn a_watch_goes_on_after_a_restart_on_embedded() {
    let (store, _directory) = embedded().await;
    goes_on_after_a_restart(store).await;
}

#[tokio::test]
async fn a_watch_goes_on_after_a_restart_on_etcd() {
    let server = etcd_server::shared();
    goes_on_after_a_restart(Arc::new(connect(server.url(), "cache-restart").await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_after_a_restart_on_kubernetes() {
    goes_on_after_a_restart(Arc::new(kube_apiserver::shared().store("cache-restart").await)).await;
}

/// The cache learns last what happened before it: a long history does not delay its start.
#[tokio::test]
async fn a_cache_answers_before_it_knows_what_happened_before() {
    let (store, _directory) = embedded().await;
    let first = store.create(&key("ns", "a"), object("a", 1)).await.unwrap();
    let second = store.update(&key("ns", "a"), first, object("a", 2)).await.unwrap();
    let faulty = Faulty::new(Arc::clone(&store));
    faulty.hold_watches(true);
    let running = Running::over(faulty.clone()).await;
    assert_eq!(running.cache.list(&pilots(), None).await.unwrap().objects.len(), 1);
    running.cache.watch(KeyRange::Under(pilots()), second).await.unwrap();
    let mut earlier = pin!(running.cache.watch(KeyRange::Under(pilots()), first));
    let early = timeout(Duration::from_millis(100), &mut earlier).await;
    assert!(early.is_err(), "nobody can know yet what it has to show");
    faulty.hold_watches(false);
    let mut earlier = earlier.await.unwrap();
    assert_eq!(line(&mut earlier).await, "modified a=2 1");
    // A write that happens meanwhile comes after the earlier ones.
    store.update(&key("ns", "a"), second, object("a", 3)).await.unwrap();
    assert_eq!(line(&mut earlier).await, "modified a=3 2");
}

/// Clients need not list everything again because the store was away when the cache asked it.
#[tokio::test]
async fn the_past_is_asked_for_until_the_store_tells_it() {
    let (store, _directory) = embedded().await;
    let first = store.create(&key("ns", "a"), object("a", 1)).await.unwrap();
    store.update(&key("ns", "a"), first, object("a", 2)).await.unwrap();
    let faulty = Faulty::new(store);
    faulty.hold_watches(true);
    let running = Running::over(faulty.clone()).await;
    faulty.fail_lists(true);
    faulty.hold_watches(false);
    faulty.until_a_list_failed().await;
    faulty.fail_lists(false);
    let mut watcher = running.cache.watch(KeyRange::Under(pilots()), first).await.unwrap();
    assert_eq!(line(&mut watcher).await, "modified a=2 1");
}

#[tokio::test]
async fn what_the_store_forgot_before_it_was_asked_is_too_old() {
    let (store, _directory) = embedded().await;
    let first = store.create(&key("ns", "a"), object("a", 1)).await.unwrap();
    let second = store.update(&key("ns", "a"), first, object("a", 2)).await.unwrap();
    let faulty = Faulty::new(Arc::clone(&store));
    faulty.hold_watches(true);
    let running = Running::over(faulty.clone()).await;
    store.compact(second).await.unwrap();
    faulty.hold_watches(false);
    let watch = running.cache.watch(KeyRange::Under(pilots()), first).await.err();
    assert!(matches!(watch, Some(Error::TooOld { oldest, .. }) if oldest == second), "{watch:?}");
    running.cache.watch(KeyRange::Under(pilots()), second).await.unwrap();
}

/// A cache learns as much of the past as its window can hold beside later events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_cache_remembers_no_more_than_another() {
    let (store, _directory) = embedded().await;
    let large =
        Bytes::from(json!({"metadata": {"name": "k"}, "value": "x".repeat(32 * 1024)}).to_string());
    let mut written = Vec::new();
    for n in 0..640 {
        written.push(store.create(&key("ns", &format!("k{n}")), large.clone()).await.unwrap());
    }
    let running = Running::over(Arc::clone(&store)).await;
    let range = || KeyRange::Under(pilots());
    let watch = running.cache.watch(range(), written[0]).await.err();
    let Some(Error::TooOld { oldest, .. }) = watch else { panic!("{watch:?}") };
    let known = written.iter().filter(|revision| **revision > oldest).count();
    let most = CapacityBounds::for_process().window / (32 * 1024);
    assert!((most * 3 / 4..most).contains(&known), "{known} changes of 32 KiB, of {most}");
    let mut watcher = running.cache.watch(range(), oldest).await.unwrap();
    for revision in &written[640 - known..] {
        let event = timeout(DEADLINE, watcher.next()).await.unwrap().unwrap();
        assert_eq!(event.object().revision, *revision);
    }
}

#[tokio::test]
async fn a_watch_from_before_what_the_store_remembers_is_too_old() {
    let (store, _directory) = embedded().await;
    let before = store.current_revision().await.unwrap();
    let created = store.create(&key("ns", "a"), object("a", 1)).await.unwrap();
    store.compact(created).await.unwrap();
    let running = Running::over(store).await;
    let watch = running.cache.watch(KeyRange::Under(pilots()), before).await.err();
    assert!(matches!(watch, Some(Error::TooOld { asked, .. }) if asked == before), "{watch:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_falls_out_of_the_window_is_ended() {
    let (store, _directory) = embedded().await;
    let running = Running::over(Arc::clone(&store)).await;
    let start = running.cache.revision();
    let mut idle = running.cache.watch(KeyRange::Under(pilots()), start).await.unwrap();
    // The window is bounded by what it holds, 16 MiB at most: 20 do not fit.
    let large = json!({"metadata": {"name": "k"}, "value": "x".repeat(32 * 1024)}).to_string();
    let keys: Vec<_> = (0..640).map(|n| key("ns", &format!("k{n}"))).collect();
    let large = Bytes::from(large);
    for part in keys.chunks(64) {
        for result in join_all(part.iter().map(|key| store.create(key, large.clone()))).await {
            result.unwrap();
        }
    }
    running.cache.catch_up().await.unwrap();
    let error = end(&mut idle).await;
    assert!(matches!(error, Error::TooOld { .. }), "{error:?}");
    assert_eq!(running.cache.list(&pilots(), None).await.unwrap().objects.len(), 640);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_of_one_object_outlives_the_window_while_nothing_of_it_was_missed() {
    let (store, _directory) = embedded().await;
    let running = Running::over(Arc::clone(&store)).await;
    let own = key("ns", "own");
    let fill = async |round: u64| {
        let large = json!({"metadata": {"name": "k"}, "value": "x".repeat(32 * 1024)}).to_string();
        let large = Bytes::from(large);
        let keys: Vec<_> = (0..640).map(|n| key("ns", &format!("k{round}-{n}"))).collect();
        for part in keys.chunks(64) {
            let all = join_all(part.iter().map(|key| store.create(key, large.clone()))).await;
            assert!(all.iter().all(Result::is_ok));
        }
        running.cache.catch_up().await.unwrap();
    };
    let range = || KeyRange::One(own.clone());
    let absent = running.cache.revision();
    let first = store.create(&own, object("own", 1)).await.unwrap();
    running.cache.catch_up().await.unwrap();
    let mut idle = running.cache.watch(range(), first).await.unwrap();
    fill(0).await;
    let second = store.update(&own, first, object("own", 2)).await.unwrap();
    assert_eq!(line(&mut idle).await, "modified own=2 1");
    running.cache.wait_until(second).await.unwrap();
    let mut later = running.cache.watch(range(), first).await.unwrap();
    assert_eq!(line(&mut later).await, "modified own=2 1", "what the window still has");
    fill(1).await;
    running.cache.watch(range(), second).await.unwrap();
    for before in [absent, first] {
        let watch = running.cache.watch(range(), before).await.err();
        assert!(matches!(watch, Some(Error::TooOld { .. })), "{before:?}: {watch:?}");
    }
}

#[tokio::test]
async fn a_bookmark_moves_on_when_other_resources_are_written() {
    let (store, _directory) = embedded().await;
    let running = Running::over(Arc::clone(&store)).await;
    let start = running.cache.revision();
    let mut watcher = running.cache.watch(KeyRange::Under(pilots()), start).await.unwrap();
    assert_eq!(watcher.bookmark_revision(), start);
    let other = Key::new("group", "other", "ns", "a").unwrap();
    let written = store.create(&other, object("a", 1)).await.unwrap();
    running.cache.wait_until(written).await.unwrap();
    assert_eq!(watcher.bookmark_revision(), written);
    // A bookmark never passes an event that was not returned.
    let created = store.create(&key("ns", "a"), object("a", 1)).await.unwrap();
    running.cache.wait_until(created).await.unwrap();
    let updated = store.update(&key("ns", "a"), created, object("a", 2)).await.unwrap();
    running.cache.wait_until(updated).await.unwrap();
    assert_eq!(watcher.bookmark_revision(), written);
    assert_eq!(line(&mut watcher).await, "added a=1");
    assert_eq!(watcher.bookmark_revision(), created);
    assert_eq!(line(&mut watcher).await, "modified a=2 1");
    assert_eq!(watcher.bookmark_revision(), updated);
}

#[tokio::test]
async fn a_page_decodes_nothing_that_the_cache_holds() {
    let (store, _directory) = embedded().await;
    let old = store.create(&key("ns", "a"), object("a", 1)).await.unwrap();
    let decoded = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&decoded);
    let counting = move |bytes: &[u8]| {
        counted.fetch_add(1, Ordering::SeqCst);
        decode(bytes)
    };
    let cache = Cache::new(Arc::clone(&store), pilots(), Box::new(counting), turns());
    let running = Running::with(cache);
    running.until_ready().await;
    for name in ["b", "c"] {
        store.create(&key("ns", name), object(name, 1)).await.unwrap();
    }
    let latest = store.update(&key("ns", "a"), old, object("a", 2)).await.unwrap();
    running.cache.wait_until(latest).await.unwrap();
    let before = decoded.load(Ordering::SeqCst);
    let page = running.cache.list_page(&pilots(), PageRequest::default()).await.unwrap();
    assert_eq!((page.objects.len(), decoded.load(Ordering::SeqCst)), (3, before));
    // The object's earlier state is remembered.
    let request = PageRequest { at: Some(old), ..PageRequest::default() };
    let page = running.cache.list_page(&pilots(), request).await.unwrap();
    assert_eq!((&page.objects[0].to_value()["value"], page.objects[0].revision), (&json!(1), old));
    assert_eq!(decoded.load(Ordering::SeqCst), before);
}

/// Names and values of a page, then a `+` for each object that follows, as far as it was counted.
fn page_text(page: &CacheListing) -> String {
    let text =
        |object: &Arc<CachedObject>| format!("{}={}", object.name(), object.to_value()["value"]);
    let shown: Vec<_> = page.objects.iter().map(text).collect();
    format!("{} {}{}", page.revision, shown.join(" "), "+".repeat(page.remaining))
}

#[tokio::test]
async fn pages_of_the_past_are_those_of_the_store_and_do_not_ask_it() {
    let (store, _directory) = embedded().await;
    let faulty = Faulty::new(Arc::clone(&store));
    let running = Running::over(faulty.clone()).await;
    let mut revisions = std::collections::BTreeMap::new();
    let mut moments = vec![store.current_revision().await.unwrap()];
    for value in 0..300 {
        // All that can happen to seven keys: made, changed, deleted, made again.
        let name = format!("k{}", value * 5 % 7);
        // Neighbours on both sides: '-' comes before '/', and '0' after it.
        let namespace = match value % 6 {
            0 => "other",
            1 => "ns-a",
            2 => "ns0",
            _ => "ns",
        };
        let key = key(namespace, &name);
        let written = match revisions.remove(&key) {
            None => store.create(&key, object(&name, value)).await,
            Some(at) if value % 4 == 0 => store.delete(&key, at).await,
            Some(at) => store.update(&key, at, object(&name, value)).await,
        }
        .unwrap();
        if store.get(&key).await.unwrap().is_some() {
            revisions.insert(key, written);
        }
        moments.push(written);
    }
    running.cache.wait_until(*moments.last().unwrap()).await.unwrap();
    faulty.fail_lists(true);
    for range in [pilots(), KeyPrefix::for_namespace("group", "pilots", "ns").unwrap()] {
        for at in moments.iter().step_by(7).copied() {
            for limit in [None, Some(1), Some(3), Some(14)] {
                let mut request =
                    PageRequest { at: Some(at), limit, count: true, ..PageRequest::default() };
                loop {
                    let page = running.cache.list_page(&range, request.clone()).await.unwrap();
                    let wanted = store.list(&range, request.clone()).await.unwrap();
                    let names = wanted.entries.iter().map(|entry| {
                        let value: Value = serde_json::from_slice(&entry.value).unwrap();
                        format!(
                            "{}={}",
                            value["metadata"]["name"].as_str().unwrap(),
                            value["value"]
                        )
                    });
                    let wanted_text = format!(
                        "{} {}{}",
                        wanted.revision,
                        names.collect::<Vec<_>>().join(" "),
                        "+".repeat(wanted.remaining)
                    );
                    assert_eq!(page_text(&page), wanted_text, "{range:?} {request:?}");
                    assert_eq!(page.more, wanted.more, "{range:?} {request:?}");
                    let Some(last) = page.objects.last().filter(|_| page.more) else { break };
                    request.after = Some(last.key.clone());
                }
            }
        }
    }
}

#[tokio::test]
async fn an_object_is_encoded_once_for_each_form() {
    let (store, _directory) = embedded().await;
    store.create(&key("ns", "a"), object("a", 1)).await.unwrap();
    let running = Running::over(store).await;
    let found = running.cache.get(&key("ns", "a"), None).await.unwrap().unwrap();
    let ours = json!({"metadata": {"name": "a", "resourceVersion": found.revision.to_string()}, "value": 1});
    assert_eq!(serde_json::from_slice::<Value>(found.json()).unwrap(), ours);
    let first = found.older_version(|tree| json!({"older": tree["value"]}));
    assert_eq!(first.json(), r#"{"older":1}"#);
    let again = found.older_version(|_| panic!("encoded twice"));
    assert_eq!(first.json().as_ptr(), again.json().as_ptr());
    let first = found.partial_metadata(|tree| tree["metadata"].clone());
    let again = found.partial_metadata(|_| panic!("encoded twice"));
    assert_eq!(first.json().as_ptr(), again.json().as_ptr());
}

/// Line of a watch: shared by all whose selector sees what happened, and right for the others.
#[tokio::test]
async fn a_line_of_a_watch_is_made_once() {
    let (store, _directory) = embedded().await;
    let running = Running::over(store.clone()).await;
    let created = store.create(&key("ns", "a"), object("a", 1)).await.unwrap();
    let updated = store.update(&key("ns", "a"), created, object("a", 2)).await.unwrap();
    store.delete(&key("ns", "a"), updated).await.unwrap();
    let range = KeyRange::Under(pilots());
    let mut watchers = Vec::new();
    for _ in 0..2 {
        watchers.push(running.cache.watch(range.clone(), Revision(created.0 - 1)).await.unwrap());
    }
    for natural in [EventType::Added, EventType::Modified, EventType::Deleted] {
        let mut lines = Vec::new();
        for watcher in &mut watchers {
            let event = timeout(DEADLINE, watcher.next()).await.unwrap().unwrap();
            for (type_, word) in [
                (EventType::Added, "ADDED"),
                (EventType::Modified, "MODIFIED"),
                (EventType::Deleted, "DELETED"),
            ] {
                let line = event.object().encoded_object().watch_line(type_);
                assert_eq!(line.last(), Some(&b'\n'));
                let read: Value = serde_json::from_slice(&line).unwrap();
                assert_eq!(read, json!({"type": word, "object": event.object().to_value()}));
                if type_ == natural {
                    lines.push(line);
                }
            }
        }
        assert_eq!(lines[0].as_ptr(), lines[1].as_ptr(), "{natural:?} was made twice");
    }
}

#[tokio::test]
async fn an_object_that_cannot_be_read_fails_lists_rather_than_missing_in_them() {
    let (store, _directory) = embedded().await;
    let bad = store.create(&key("ns", "bad"), Bytes::from("{")).await.unwrap();
    store.create(&key("other", "good"), object("good", 1)).await.unwrap();
    let running = Running::over(Arc::clone(&store)).await;
    let unreadable = |error: Option<Error>| matches!(error, Some(Error::Undecodable { key: k, .. }) if k == key("ns", "bad"));
    assert!(unreadable(running.cache.list(&pilots(), None).await.err()));
    assert!(unreadable(running.cache.get(&key("ns", "bad"), None).await.err()));
    assert!(unreadable(running.cache.list_page(&pilots(), PageRequest::default()).await.err()));
    // Lists of other namespaces still work.
    let other = KeyPrefix::for_namespace("group", "pilots", "other").unwrap();
    assert_eq!(running.cache.list(&other, None).await.unwrap().objects.len(), 1);
    let deleted = store.delete(&key("ns", "bad"), bad).await.unwrap();
    assert_eq!(running.cache.list(&pilots(), Some(deleted)).await.unwrap().objects.len(), 1);
    // A watcher is ended by an object that becomes unreadable, after what came before it.
    let mut watcher = running.cache.watch(KeyRange::Under(pilots()), deleted).await.unwrap();
    store.create(&key("ns", "a"), object("a", 1)).await.unwrap();
    let bad = store.create(&key("ns", "bad"), Bytes::from("[]")).await.unwrap();
    assert_eq!(line(&mut watcher).await, "added a=1");
    assert!(unreadable(Some(end(&mut watcher).await)));
    let mended = store.update(&key("ns", "bad"), bad, object("bad", 1)).await.unwrap();
    assert_eq!(running.cache.list(&pilots(), Some(mended)).await.unwrap().objects.len(), 3);
}

#[tokio::test]
async fn watchers_do_not_notice_an_outage_of_the_store() {
    let (store, _directory) = embedded().await;
    let faulty = Faulty::new(Arc::clone(&store));
    let running = Running::over(faulty.clone()).await;
    let start = running.cache.revision();
    let mut watcher = running.cache.watch(KeyRange::Under(pilots()), start).await.unwrap();
    let unavailable = || StoreError::Unavailable { source: "on purpose".into() };
    faulty.end_watches(unavailable);
    let mut revision = store.create(&key("ns", "a"), object("a", 0)).await.unwrap();
    for n in 1..5 {
        faulty.end_watches(unavailable);
        revision = store.update(&key("ns", "a"), revision, object("a", n)).await.unwrap();
    }
    assert_eq!(line(&mut watcher).await, "added a=0");
    for n in 1..5 {
        assert_eq!(line(&mut watcher).await, format!("modified a={n} {}", n - 1));
    }
}

#[tokio::test]
async fn watchers_are_ended_when_the_store_forgot_where_they_were() {
    for error in [
        || StoreError::Compacted { asked: Revision(1), oldest: Revision(2) },
        || StoreError::FutureRevision { asked: Revision(2), latest: Revision(1) },
    ] {
        let (store, _directory) = embedded().await;
        let faulty = Faulty::new(Arc::clone(&store));
        let running = Running::over(faulty.clone()).await;
        let start = running.cache.revision();
        let mut watcher = running.cache.watch(KeyRange::Under(pilots()), start).await.unwrap();
        faulty.end_watches(error);
        let error = end(&mut watcher).await;
        assert!(matches!(error, Error::TooOld { .. }), "{error:?}");
        // The cache goes on from a new list.
        let written = store.create(&key("ns", "a"), object("a", 1)).await.unwrap();
        let listing = running.cache.list(&pilots(), Some(written)).await.unwrap();
        assert_eq!(listing.objects.len(), 1);
    }
}

#[tokio::test]
async fn the_cache_ends_at_shutdown() {
    let (store, _directory) = embedded().await;
    let running = Running::over(store).await;
    running.shutdown.trigger();
    timeout(DEADLINE, running.tasks.join()).await.expect("it ends in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_survives_the_restart_of_its_etcd() {
    let mut server = etcd_server::Server::start();
    let store: Arc<dyn Storage> = Arc::new(connect(server.url(), "restart").await);
    let running = Running::over(Arc::clone(&store)).await;
    let start = running.cache.catch_up().await.unwrap();
    let mut watcher = running.cache.watch(KeyRange::Under(pilots()), start).await.unwrap();
    let id = store.store_id().await.unwrap();
    for round in 0..3 {
        store.create(&key("ns", &format!("k{round}")), object("k", round)).await.unwrap();
        assert_eq!(line(&mut watcher).await, format!("added k={round}"));
        server.kill_and_start_again();
        let started = Instant::now();
        while let Err(error) = store.current_revision().await {
            assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
            assert!(started.elapsed() < DEADLINE, "etcd does not come back: {error:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(store.store_id().await.unwrap(), id);
    let started = Instant::now();
    while let Err(error) = running.cache.catch_up().await {
        assert!(started.elapsed() < DEADLINE, "the cache does not catch up: {error:?}");
    }
    assert_eq!(running.cache.list(&pilots(), None).await.unwrap().objects.len(), 3);
}

/// Earlier states of objects are kept for watchers, too: a small object that replaces a large one
/// counts as the large one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_window_counts_what_objects_were_before() {
    let (store, _directory) = embedded().await;
    let large = Bytes::from(
        json!({"metadata": {"name": "k"}, "value": "x".repeat(512 * 1024)}).to_string(),
    );
    let mut made = Vec::new();
    let objects = 2 * CapacityBounds::for_process().window / large.len();
    for n in 0..objects {
        let key = key("ns", &format!("k{n}"));
        made.push((store.create(&key, large.clone()).await.unwrap(), key));
    }
    let running = Running::over(Arc::clone(&store)).await;
    let start = running.cache.revision();
    let mut written = start;
    for (revision, key) in made {
        written = store.update(&key, revision, object("k", 1)).await.unwrap();
    }
    running.cache.wait_until(written).await.unwrap();
    let watch = running.cache.watch(KeyRange::Under(pilots()), start).await.err();
    assert!(matches!(watch, Some(Error::TooOld { .. })), "{watch:?}");
}
