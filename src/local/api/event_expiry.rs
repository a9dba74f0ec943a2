//! Deletes Events an hour after they were last counted, as kube-apiserver does.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::Value;
use tracing::warn;

use super::kinds;
use crate::{
    apiserver::storage::{Error, KeyPrefix, PageRequest, Result, Storage, StoreEntry},
    error::chain,
    runtime::Shutdown,
};

/// Lifetime of an Event, in seconds after it was last counted.
const LIFE: i64 = 3600;
const CHECK_EVERY: Duration = Duration::from_secs(300);

/// Deletes Events that are too old, until shutdown.
pub(super) async fn expire_events(store: Arc<dyn Storage>, shutdown: Shutdown) {
    loop {
        let now = Timestamp::now().as_second();
        if let Err(error) = delete_expired(&store, now).await {
            warn!(error = %chain(&error), "Failed to delete old events");
        }
        tokio::select! {
            () = tokio::time::sleep(CHECK_EVERY) => {}
            () = shutdown.triggered() => return,
        }
    }
}

async fn delete_expired(store: &Arc<dyn Storage>, now: i64) -> Result<()> {
    let events = KeyPrefix::for_resource(kinds::CORE, "events")
        .expect("both are valid parts of a storage key");
    for entry in store.list(&events, PageRequest::default()).await?.entries {
        if !is_expired(&entry, now) {
            continue;
        }
        match store.delete(&entry.key, entry.revision).await {
            // The event was counted again, or deleted, meanwhile.
            Ok(_) | Err(Error::Conflict { .. } | Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_expired(entry: &StoreEntry, now: i64) -> bool {
    let event: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
    let times =
        ["/metadata/creationTimestamp", "/eventTime", "/lastTimestamp", "/series/lastObservedTime"];
    let seconds = |pointer: &&str| {
        let time: Timestamp = event.pointer(pointer)?.as_str()?.parse().ok()?;
        Some(time.as_second())
    };
    let last_seen = times.iter().filter_map(seconds).max();
    last_seen.is_none_or(|last_seen| now - last_seen > LIFE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::apiserver::storage::{
        Key,
        embedded::{EmbeddedStore, HistoryLimits},
    };

    #[tokio::test]
    async fn an_event_lives_for_an_hour_after_it_was_counted_last() {
        let backend = redb::backends::InMemoryBackend::new();
        let store: Arc<dyn Storage> =
            Arc::new(EmbeddedStore::open_backend(backend, HistoryLimits::default()).unwrap());
        let key = |name| Key::new(kinds::CORE, "events", "db", name).unwrap();
        let created = json!({"creationTimestamp": "2026-01-01T00:00:00Z"});
        let series = json!({"lastObservedTime": "2026-01-01T00:50:00.123456Z"});
        let objects = [
            ("old", json!({"metadata": created})),
            ("again", json!({"metadata": created, "series": series})),
        ];
        for (name, object) in objects {
            store.create(&key(name), object.to_string().into()).await.unwrap();
        }
        let at: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        delete_expired(&store, at.as_second()).await.unwrap();
        assert!(store.get(&key("old")).await.unwrap().is_some(), "its hour is not over");
        delete_expired(&store, at.as_second() + 1).await.unwrap();
        assert!(store.get(&key("old")).await.unwrap().is_none());
        assert!(store.get(&key("again")).await.unwrap().is_some());
    }
}
