//! What every store promises, as cases that run against each of them.
//!
//! A case panics where a store breaks the promise in its name. Cases tolerate other writers of
//! other keys, so that they may share a store; those of [`compaction`] need one of their own.
//! Add a case here, and its name to `tests/it/storage.rs`: every store gets it. The intents are
//! those of upstream's suite (apiserver `storage/testing`).

pub mod compaction;
pub mod lists;
pub mod watches;
pub mod writes;

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use tokio::time::timeout;

use super::{Entry, Event, Key, Page, PageRequest, Prefix, Revision, Storage, WatchStream};

/// Far longer than any store needs; a machine under load must not fail a case.
const DEADLINE: Duration = Duration::from_secs(60);

/// The key of a pilot.
pub fn key(namespace: &str, name: &str) -> Key {
    Key::new("group", "pilots", namespace, name).expect("cases use valid names")
}

/// The range of all pilots.
pub fn pilots() -> Prefix {
    Prefix::resource("group", "pilots").expect("the names are valid")
}

async fn create(store: &dyn Storage, name: &str, value: &str) -> Revision {
    create_in(store, "ns", name, value).await
}

async fn create_in(store: &dyn Storage, namespace: &str, name: &str, value: &str) -> Revision {
    let created = store.create(&key(namespace, name), bytes(value)).await;
    created.expect("the key is absent")
}

async fn update(store: &dyn Storage, name: &str, expected: Revision, value: &str) -> Revision {
    let updated = store.update(&key("ns", name), expected, bytes(value)).await;
    updated.expect("the revision is the key's")
}

async fn delete(store: &dyn Storage, name: &str, expected: Revision) -> Revision {
    store.delete(&key("ns", name), expected).await.expect("the revision is the key's")
}

async fn list(store: &dyn Storage, request: PageRequest) -> Page {
    store.list(&pilots(), request).await.expect("the list can be made")
}

fn bytes(value: &str) -> Bytes {
    Bytes::copy_from_slice(value.as_bytes())
}

/// `name=value` of each entry.
fn shown(entries: &[Entry]) -> Vec<String> {
    let line = |entry: &Entry| {
        let name = entry.key.as_str().rsplit('/').next().unwrap_or_default();
        format!("{name}={}", String::from_utf8_lossy(&entry.value))
    };
    entries.iter().map(line).collect()
}

/// A watch that is read with a deadline.
struct Watch(WatchStream);

impl Watch {
    async fn start(store: &dyn Storage, from: Revision) -> Self {
        Self::of(store, &pilots(), from).await
    }

    async fn of(store: &dyn Storage, prefix: &Prefix, from: Revision) -> Self {
        Self(store.watch(prefix, from).await.expect("the watch can be started"))
    }

    /// The next event that is not progress.
    async fn change(&mut self) -> Event {
        loop {
            match self.any().await {
                Event::Progress(_) => {}
                event => return event,
            }
        }
    }

    async fn any(&mut self) -> Event {
        let next = timeout(DEADLINE, self.0.next()).await.expect("an event comes in time");
        next.expect("the watch goes on").expect("the watch does not fail")
    }

    /// The next change, as `put name=value before` or `delete name before`.
    async fn line(&mut self) -> String {
        describe(&self.change().await)
    }
}

fn describe(event: &Event) -> String {
    let name = |key: &Key| key.as_str().rsplit('/').next().unwrap_or_default().to_owned();
    let text = |value: &Bytes| String::from_utf8_lossy(value).into_owned();
    match event {
        Event::Put { entry, previous } => {
            let before = previous.as_ref().map_or("-".to_owned(), text);
            format!("put {}={} {before}", name(&entry.key), text(&entry.value))
        }
        Event::Delete { key, previous, .. } => format!("delete {} {}", name(key), text(previous)),
        Event::Progress(revision) => format!("progress {revision}"),
    }
}
