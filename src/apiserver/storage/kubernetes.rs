//! A store in the Kubernetes API itself, for any number of API servers and for people who want
//! neither a volume nor an etcd of their own.
//!
//! Owns one object of Kubernetes for each key. Revisions are Kubernetes' own: all its objects of
//! one etcd share one order. Nothing is retried here that may have been done, except that a
//! deletion has two steps: a write that says that the object is deleted, which has a revision, and
//! its removal, which has none that kube-apiserver tells.

mod connect;
mod identity;
mod lists;
mod object;
mod requests;
mod watch;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tracing::debug;

pub use self::{
    connect::{Config, KubernetesConnectError},
    object::StoredObjectKind,
};
use self::{lists::RangeSnapshot, object::StoredObject, requests::unavailable_error};
use super::{
    Error, Key, KeyPrefix, PageRequest, ReplacementAlarm, Result, Revision, ScanStream, Storage,
    StoreEntry, StorePage, StoreStatus, WatchStream, awaited_revision::AwaitedRevision,
    store_trust::StoreTrust,
};
use crate::error::chain;

/// Most time for kube-apiserver to answer: one whose etcd lost its leader answers again within a
/// few seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Most time for the answer to a health check: upstream's timeout, as for etcd.
const HEALTHY_WITHIN: Duration = Duration::from_secs(2);
/// Most requests under way at one time, watches aside: more than one etcd works on at once, and
/// fewer than kube-apiserver gives to one of many clients.
const TOGETHER: usize = 32;
/// Most tries of a create while other writers create and delete its key.
const TRIES: usize = 20;

/// The store in Kubernetes. Cheap to clone.
#[derive(Clone)]
pub struct KubernetesStore {
    client: kube::Client,
    kind: &'static StoredObjectKind,
    /// Path of all objects of the store.
    base: String,
    standing: Arc<StoreTrust>,
    shared: Arc<KubernetesStoreState>,
    wanted: AwaitedRevision,
}

/// What all clones of the store share.
struct KubernetesStoreState {
    turns: Semaphore,
    /// The oldest revision that reads may ask for.
    floor: AtomicU64,
    /// Number of creations and deletions that were acknowledged.
    births_and_deaths: AtomicU64,
    /// Revision of the last write that was made for the sake of progress.
    beat: tokio::sync::Mutex<Revision>,
    /// The list whose next page a reader may ask for.
    kept: Mutex<Option<Arc<RangeSnapshot>>>,
}

impl KubernetesStore {
    /// Reads credentials. Sends nothing yet: a kube-apiserver that cannot be reached is
    /// [`Error::Unavailable`] for each request.
    pub async fn connect(config: &Config) -> Result<Self, KubernetesConnectError> {
        let client = connect::build_client(config).await?;
        let namespace = &config.namespace;
        Ok(Self {
            client,
            base: config.kind.collection_path(namespace),
            kind: config.kind,
            standing: Arc::new(StoreTrust::new("kube-apiserver")),
            shared: Arc::new(KubernetesStoreState {
                turns: Semaphore::new(TOGETHER),
                floor: AtomicU64::new(0),
                births_and_deaths: AtomicU64::new(0),
                beat: tokio::sync::Mutex::default(),
                kept: Mutex::default(),
            }),
            wanted: AwaitedRevision::default(),
        })
    }

    /// Returns the object under a key, even one that was deleted. An absent object, and an absent
    /// definition, may be a sign of another store: the caller checks.
    async fn read_stored(&self, key: &Key) -> Result<Option<StoredObject>> {
        let answer = self.read_path(&object_path(key), ANSWER_WITHIN).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let stored_object: StoredObject = answer.decode_body()?;
        let stored_key = stored_object.key()?;
        if stored_key == *key {
            return Ok(Some(stored_object));
        }
        let (stored_key, key) = (stored_key.as_str(), key.as_str());
        Err(Error::Corrupt { reason: format!("{stored_key:?} is where {key:?} belongs") })
    }

    /// Returns the revision of a write that was acknowledged. A revision that is not later than
    /// `asked`, the latest one before the write was sent, is a sign of loss.
    async fn confirm_write(
        &self,
        revision_before: Revision,
        revision: Revision,
    ) -> Result<Revision> {
        if let Some(write_loss) =
            self.standing.detect_rollback(Revision(revision_before.0 + 1), revision)
        {
            return Err(self.loss_error(write_loss).await);
        }
        self.standing.record_revision(revision);
        Ok(revision)
    }

    async fn put_new(&self, key: &Key, value: &[u8]) -> Result<Revision> {
        let revision_before = self.check_identity().await?;
        let object = self.kind.live_object(key, value, None);
        for _ in 0..TRIES {
            let answer = self.send_write(Method::POST, "", &object).await?;
            if answer.status != StatusCode::CONFLICT {
                return self.confirm_write(revision_before, answer.revision()?).await;
            }
            match self.read_stored(key).await? {
                Some(existing_object) if !existing_object.deleted => {
                    self.verify(ANSWER_WITHIN).await?;
                    return Err(Error::Exists(key.clone()));
                }
                Some(deleted_object) => self.purge_deleted(key, deleted_object.revision()?).await,
                None => {}
            }
        }
        Err(unavailable_error("others create and delete the object all the time"))
    }

    /// Replaces the object that was written at `expected`.
    async fn change_object(
        &self,
        key: &Key,
        expected: Revision,
        object: &Value,
    ) -> Result<Revision> {
        // Revision 0 would mean "any" to Kubernetes, so the object is read instead.
        if expected > Revision(0) {
            let revision_before = self.check_identity().await?;
            let answer = self.send_write(Method::PUT, &object_path(key), object).await?;
            match answer.status {
                // The object is absent, at another revision, or deleted, which is final.
                StatusCode::NOT_FOUND | StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY => {
                }
                _ => return self.confirm_write(revision_before, answer.revision()?).await,
            }
        }
        Err(match Storage::get(self, key).await? {
            // The revision is read, never inferred: the object may be as it was expected.
            Some(entry) if entry.revision == expected => {
                unavailable_error("kube-apiserver refused a write without a reason")
            }
            Some(entry) => Error::Conflict { key: key.clone(), expected, actual: entry.revision },
            None => Error::NotFound(key.clone()),
        })
    }

    /// Removes the object that a deletion left. If it stays, it counts as deleted all the same.
    async fn purge_deleted(&self, key: &Key, revision: Revision) {
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"resourceVersion": revision.to_string()},
            "propagationPolicy": "Background",
        });
        match self.send_write(Method::DELETE, &object_path(key), &options).await {
            Ok(_) => {}
            Err(error) => debug!(error = %chain(&error), "Failed to remove a deleted object"),
        }
    }
}

fn object_path(key: &Key) -> String {
    format!("/{}", object::object_name(key))
}

impl Storage for KubernetesStore {
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<StoreEntry>>> {
        Box::pin(async move {
            let stored_object = self.read_stored(key).await?;
            // The check comes after the answer: a store that was replaced before it shows by now.
            self.verify(ANSWER_WITHIN).await?;
            stored_object
                .filter(|object| !object.deleted)
                .map(|object| object.to_entry())
                .transpose()
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        request: PageRequest,
    ) -> BoxFuture<'a, Result<StorePage>> {
        Box::pin(self.list_page(prefix, request))
    }

    fn scan<'a>(&'a self, prefix: &'a KeyPrefix, at: Option<Revision>) -> ScanStream<'a> {
        self.scan_pages(prefix, at)
    }

    fn create<'a>(&'a self, key: &'a Key, value: Bytes) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(async move {
            let write_result = self.put_new(key, &value).await;
            let revision = write_result.map_err(|error| error.of_value(value.len()))?;
            self.shared.births_and_deaths.fetch_add(1, Ordering::SeqCst);
            Ok(revision)
        })
    }

    fn update<'a>(
        &'a self,
        key: &'a Key,
        expected: Revision,
        value: Bytes,
    ) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(async move {
            let object = self.kind.live_object(key, &value, Some(expected));
            let write_result = self.change_object(key, expected, &object).await;
            write_result.map_err(|error| error.of_value(value.len()))
        })
    }

    fn delete<'a>(&'a self, key: &'a Key, expected: Revision) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(async move {
            let deletion = self.kind.deletion_object(key, expected);
            let revision = self.change_object(key, expected, &deletion).await?;
            self.shared.births_and_deaths.fetch_add(1, Ordering::SeqCst);
            self.purge_deleted(key, revision).await;
            Ok(revision)
        })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        from: Revision,
    ) -> BoxFuture<'a, Result<WatchStream>> {
        Box::pin(async move {
            self.check_reachable(from).await?;
            watch::watch_events(self, prefix, from).await
        })
    }

    /// Kubernetes forgets its history by itself; this only refuses older revisions.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let latest = self.verify(ANSWER_WITHIN).await?;
            if revision > latest {
                return Err(Error::FutureRevision { asked: revision, latest });
            }
            self.raise_floor(revision).await
        })
    }

    fn current_revision(&self) -> BoxFuture<'_, Result<Revision>> {
        Box::pin(self.verify(HEALTHY_WITHIN))
    }

    fn request_progress(&self, revision: Revision) {
        self.wanted.raise_to(revision);
    }

    fn store_id(&self) -> BoxFuture<'_, Result<String>> {
        Box::pin(async move {
            let status = self.store_status().await?;
            self.standing.require_id(status)
        })
    }

    fn store_status(&self) -> BoxFuture<'_, Result<StoreStatus>> {
        Box::pin(async { Ok(self.read_status(ANSWER_WITHIN).await?.1) })
    }

    fn advance_revision(&self, past: Revision) -> BoxFuture<'_, Result<Revision>> {
        Box::pin(self.skip_revisions(past))
    }

    fn births_and_deaths(&self) -> u64 {
        self.shared.births_and_deaths.load(Ordering::SeqCst)
    }

    fn on_replaced(&self, alarm: ReplacementAlarm) {
        self.standing.on_replaced(alarm);
    }
}
