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
use self::{lists::RangeSnapshot, object::StoredObject, requests::unavailable};
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
        let client = connect::client(config).await?;
        let namespace = &config.namespace;
        Ok(Self {
            client,
            base: config.kind.path(namespace),
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
    async fn stored(&self, key: &Key) -> Result<Option<StoredObject>> {
        let answer = self.read(&path(key), ANSWER_WITHIN).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let stored: StoredObject = answer.read()?;
        let held = stored.key()?;
        if held == *key {
            return Ok(Some(stored));
        }
        let (held, key) = (held.as_str(), key.as_str());
        Err(Error::Corrupt { reason: format!("{held:?} is where {key:?} belongs") })
    }

    /// Returns the revision of a write that was acknowledged. A revision that is not later than
    /// `asked`, the latest one before the write was sent, is a sign of loss.
    async fn acknowledged(&self, asked: Revision, written: Revision) -> Result<Revision> {
        if let Some(sign) = self.standing.went_back(Revision(asked.0 + 1), written) {
            return Err(self.refused(sign).await);
        }
        self.standing.reached(written);
        Ok(written)
    }

    async fn put_new(&self, key: &Key, value: &[u8]) -> Result<Revision> {
        let asked = self.identified().await?;
        let object = self.kind.live(key, value, None);
        for _ in 0..TRIES {
            let answer = self.write(Method::POST, "", &object).await?;
            if answer.status != StatusCode::CONFLICT {
                return self.acknowledged(asked, answer.revision()?).await;
            }
            match self.stored(key).await? {
                Some(there) if !there.deleted => {
                    self.verify(ANSWER_WITHIN).await?;
                    return Err(Error::Exists(key.clone()));
                }
                Some(left) => self.purge(key, left.revision()?).await,
                None => {}
            }
        }
        Err(unavailable("others create and delete the object all the time"))
    }

    /// Writes an object in place of the one that was written at `expected`.
    async fn change(&self, key: &Key, expected: Revision, object: &Value) -> Result<Revision> {
        // Revision 0 would mean "any" to Kubernetes, so the object is read instead.
        if expected > Revision(0) {
            let asked = self.identified().await?;
            let answer = self.write(Method::PUT, &path(key), object).await?;
            match answer.status {
                // The object is absent, at another revision, or deleted, which is final.
                StatusCode::NOT_FOUND | StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY => {
                }
                _ => return self.acknowledged(asked, answer.revision()?).await,
            }
        }
        Err(match Storage::get(self, key).await? {
            // The revision is read, never inferred: the object may be as it was expected.
            Some(entry) if entry.revision == expected => {
                unavailable("kube-apiserver refused a write without a reason")
            }
            Some(entry) => Error::Conflict { key: key.clone(), expected, actual: entry.revision },
            None => Error::NotFound(key.clone()),
        })
    }

    /// Removes the object that a deletion left. If it stays, it counts as deleted all the same.
    async fn purge(&self, key: &Key, at: Revision) {
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"resourceVersion": at.to_string()},
            "propagationPolicy": "Background",
        });
        match self.write(Method::DELETE, &path(key), &options).await {
            Ok(_) => {}
            Err(error) => debug!(error = %chain(&error), "Failed to remove a deleted object"),
        }
    }
}

fn path(key: &Key) -> String {
    format!("/{}", object::name(key))
}

impl Storage for KubernetesStore {
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<StoreEntry>>> {
        Box::pin(async move {
            let stored = self.stored(key).await?;
            // The check comes after the answer: a store that was replaced before it shows by now.
            self.verify(ANSWER_WITHIN).await?;
            stored.filter(|stored| !stored.deleted).map(|stored| stored.entry()).transpose()
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
            let created = self.put_new(key, &value).await;
            let created = created.map_err(|error| error.of_value(value.len()))?;
            self.shared.births_and_deaths.fetch_add(1, Ordering::SeqCst);
            Ok(created)
        })
    }

    fn update<'a>(
        &'a self,
        key: &'a Key,
        expected: Revision,
        value: Bytes,
    ) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(async move {
            let object = self.kind.live(key, &value, Some(expected));
            let updated = self.change(key, expected, &object).await;
            updated.map_err(|error| error.of_value(value.len()))
        })
    }

    fn delete<'a>(&'a self, key: &'a Key, expected: Revision) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(async move {
            let deletion = self.kind.deletion(key, expected);
            let deleted = self.change(key, expected, &deletion).await?;
            self.shared.births_and_deaths.fetch_add(1, Ordering::SeqCst);
            self.purge(key, deleted).await;
            Ok(deleted)
        })
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        from: Revision,
    ) -> BoxFuture<'a, Result<WatchStream>> {
        Box::pin(async move {
            self.reachable(from).await?;
            watch::events(self, prefix, from).await
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
        self.wanted.raise(revision);
    }

    fn id(&self) -> BoxFuture<'_, Result<String>> {
        Box::pin(async move {
            let sight = self.sight().await?;
            self.standing.id_of(sight)
        })
    }

    fn sight(&self) -> BoxFuture<'_, Result<StoreStatus>> {
        Box::pin(async { Ok(self.look(ANSWER_WITHIN).await?.1) })
    }

    fn advance(&self, past: Revision) -> BoxFuture<'_, Result<Revision>> {
        Box::pin(self.burn(past))
    }

    fn births_and_deaths(&self) -> u64 {
        self.shared.births_and_deaths.load(Ordering::SeqCst)
    }

    fn on_replaced(&self, alarm: ReplacementAlarm) {
        self.standing.on_replaced(alarm);
    }
}
