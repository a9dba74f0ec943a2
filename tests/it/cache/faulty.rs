//! A store that fails when a test says so, and is the real one otherwise.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture, stream};
use navigator::apiserver::storage::{
    Error, Key, KeyPrefix, PageRequest, Result, Revision, Storage, StoreEntry, StorePage,
    WatchStream,
};
use tokio::{
    sync::{broadcast, watch},
    time::sleep,
};

type MakeError = fn() -> Error;

pub(crate) struct Faulty {
    inner: Arc<dyn Storage>,
    lists_fail: AtomicBool,
    failed_lists: AtomicUsize,
    writes_go_unanswered: AtomicBool,
    revisions_fail: AtomicBool,
    /// How often the latest revision was asked for.
    revisions_read: AtomicUsize,
    /// How often an object was read.
    objects_read: AtomicUsize,
    /// Watches tell nothing while this is true.
    held: watch::Sender<bool>,
    /// Reads of the latest revision get no answer while this is true.
    revisions_held: watch::Sender<bool>,
    end: broadcast::Sender<MakeError>,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn Storage>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            lists_fail: AtomicBool::new(false),
            failed_lists: AtomicUsize::new(0),
            writes_go_unanswered: AtomicBool::new(false),
            revisions_fail: AtomicBool::new(false),
            revisions_read: AtomicUsize::new(0),
            objects_read: AtomicUsize::new(0),
            held: watch::Sender::default(),
            revisions_held: watch::Sender::default(),
            end: broadcast::Sender::new(16),
        })
    }

    pub(crate) fn fail_lists(&self, fail: bool) {
        self.lists_fail.store(fail, Ordering::SeqCst);
    }

    pub(crate) async fn until_a_list_failed(&self) {
        while self.failed_lists.load(Ordering::SeqCst) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Writes happen from now on, and their callers get no answer.
    pub(crate) fn leave_writes_unanswered(&self) {
        self.writes_go_unanswered.store(true, Ordering::SeqCst);
    }

    pub(crate) fn fail_revisions(&self, fail: bool) {
        self.revisions_fail.store(fail, Ordering::SeqCst);
    }

    pub(crate) fn revisions_read(&self) -> usize {
        self.revisions_read.load(Ordering::SeqCst)
    }

    pub(crate) fn objects_read(&self) -> usize {
        self.objects_read.load(Ordering::SeqCst)
    }

    /// Holds back what watches tell, or lets it go.
    pub(crate) fn hold_watches(&self, hold: bool) {
        self.held.send_replace(hold);
    }

    /// Holds back the latest revision once it was read, or lets it go.
    pub(crate) fn hold_revisions(&self, hold: bool) {
        self.revisions_held.send_replace(hold);
    }

    async fn written(&self, write: BoxFuture<'_, Result<Revision>>) -> Result<Revision> {
        let outcome = write.await;
        if self.writes_go_unanswered.load(Ordering::SeqCst) {
            return Err(Error::Unavailable { source: "on purpose".into() });
        }
        outcome
    }

    /// Ends the watches that run now.
    pub(crate) fn end_watches(&self, error: MakeError) {
        self.end.send(error).ok();
    }
}

impl Storage for Faulty {
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<StoreEntry>>> {
        self.objects_read.fetch_add(1, Ordering::SeqCst);
        self.inner.get(key)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        request: PageRequest,
    ) -> BoxFuture<'a, Result<StorePage>> {
        if self.lists_fail.load(Ordering::SeqCst) {
            self.failed_lists.fetch_add(1, Ordering::SeqCst);
            let error = Error::Unavailable { source: "on purpose".into() };
            return Box::pin(async { Err(error) });
        }
        self.inner.list(prefix, request)
    }

    fn create<'a>(&'a self, key: &'a Key, value: Bytes) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(self.written(self.inner.create(key, value)))
    }

    fn update<'a>(
        &'a self,
        key: &'a Key,
        expected: Revision,
        value: Bytes,
    ) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(self.written(self.inner.update(key, expected, value)))
    }

    fn delete<'a>(&'a self, key: &'a Key, expected: Revision) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(self.written(self.inner.delete(key, expected)))
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        from: Revision,
    ) -> BoxFuture<'a, Result<WatchStream>> {
        let mut end = self.end.subscribe();
        Box::pin(async move {
            let held = self.held.subscribe();
            let events = self.inner.watch(prefix, from).await?.then(move |event| {
                let mut held = held.clone();
                async move {
                    held.wait_for(|held| !held).await.ok();
                    event
                }
            });
            let ended = stream::once(async move {
                match end.recv().await {
                    Ok(error) => Err(error()),
                    Err(error) => Err(Error::Unavailable { source: Box::new(error) }),
                }
            });
            let mut over = false;
            let events = stream::select(events, ended).take_while(move |event| {
                let goes_on = !over;
                over = event.is_err();
                async move { goes_on }
            });
            Ok(Box::pin(events) as WatchStream)
        })
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        self.inner.compact(revision)
    }

    fn current_revision(&self) -> BoxFuture<'_, Result<Revision>> {
        self.revisions_read.fetch_add(1, Ordering::SeqCst);
        if self.revisions_fail.load(Ordering::SeqCst) {
            let error = Error::Unavailable { source: "on purpose".into() };
            return Box::pin(async { Err(error) });
        }
        let mut held = self.revisions_held.subscribe();
        Box::pin(async move {
            let revision = self.inner.current_revision().await;
            held.wait_for(|held| !held).await.ok();
            revision
        })
    }

    fn request_progress(&self, revision: Revision) {
        self.inner.request_progress(revision);
    }

    fn store_id(&self) -> BoxFuture<'_, Result<String>> {
        self.inner.store_id()
    }

    fn advance_revision(&self, past: Revision) -> BoxFuture<'_, Result<Revision>> {
        self.inner.advance_revision(past)
    }
}
