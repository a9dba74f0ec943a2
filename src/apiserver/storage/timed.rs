//! Any store, with the time that each of its answers took.
//!
//! Owns the figures and changes no answer. The names are our own and not kube-apiserver's
//! `etcd_request_…`: both servers are scraped by one Prometheus, and the store may be no etcd.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

use super::{
    Alarm, Entry, Error, Key, Page, PageRequest, Prefix, Result, Revision, Sight, Storage,
    WatchStream,
};

/// From a look into memory up to what no store should take.
const BUCKETS: &[f64] =
    &[0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// A question that was given up after less than this says more about who asked.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// How long the store takes, and how often it cannot answer.
#[derive(Clone)]
pub struct StoreMetrics {
    seconds: HistogramVec,
    errors: IntCounterVec,
}

impl StoreMetrics {
    /// Figures that nobody scrapes yet.
    #[expect(clippy::new_without_default, reason = "a default would suggest that it is registered")]
    pub fn new() -> Self {
        let seconds = HistogramOpts::new(
            "navigator_apiserver_store_request_duration_seconds",
            "Seconds until the store answered, by operation. Opening a watch is one.",
        );
        let errors = Opts::new(
            "navigator_apiserver_store_errors_total",
            "Questions that the store could not answer, by operation: it was away, lost or \
             replaced, or was given up after a second or more.",
        );
        Self {
            seconds: HistogramVec::new(seconds.buckets(BUCKETS.to_vec()), &["operation"])
                .expect("the metric's name and labels are valid"),
            errors: IntCounterVec::new(errors, &["operation"])
                .expect("the metric's name and labels are valid"),
        }
    }

    pub fn collectors(&self) -> Vec<Box<dyn prometheus::core::Collector>> {
        let Self { seconds, errors } = self;
        vec![Box::new(seconds.clone()), Box::new(errors.clone())]
    }

    pub fn register(&self, registry: &Registry) {
        for collector in self.collectors() {
            registry.register(collector).expect("every metric has a name of its own");
        }
    }

    async fn timed<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut asked = Asked { metrics: self, operation, at: Instant::now(), answered: false };
        let answer = answer.await;
        asked.answered = true;
        self.seconds.with_label_values(&[operation]).observe(asked.at.elapsed().as_secs_f64());
        if let Err(Error::Unavailable { .. } | Error::Corrupt { .. } | Error::Replaced { .. }) =
            &answer
        {
            self.errors.with_label_values(&[operation]).inc();
        }
        answer
    }
}

/// A question that is under way.
struct Asked<'a> {
    metrics: &'a StoreMetrics,
    operation: &'static str,
    at: Instant,
    answered: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.answered && self.at.elapsed() >= PATIENCE {
            self.metrics.errors.with_label_values(&[self.operation]).inc();
        }
    }
}

/// A store whose answers are timed.
pub struct Timed {
    store: Arc<dyn Storage>,
    metrics: StoreMetrics,
}

impl Timed {
    pub fn new(store: Arc<dyn Storage>, metrics: StoreMetrics) -> Self {
        Self { store, metrics }
    }
}

impl Storage for Timed {
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(self.metrics.timed("get", self.store.get(key)))
    }

    fn list<'a>(&'a self, prefix: &'a Prefix, request: PageRequest) -> BoxFuture<'a, Result<Page>> {
        Box::pin(self.metrics.timed("list", self.store.list(prefix, request)))
    }

    fn create<'a>(&'a self, key: &'a Key, value: Bytes) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(self.metrics.timed("create", self.store.create(key, value)))
    }

    fn update<'a>(
        &'a self,
        key: &'a Key,
        expected: Revision,
        value: Bytes,
    ) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(self.metrics.timed("update", self.store.update(key, expected, value)))
    }

    fn delete<'a>(&'a self, key: &'a Key, expected: Revision) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(self.metrics.timed("delete", self.store.delete(key, expected)))
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a Prefix,
        from: Revision,
    ) -> BoxFuture<'a, Result<WatchStream>> {
        Box::pin(self.metrics.timed("watch", self.store.watch(prefix, from)))
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.metrics.timed("compact", self.store.compact(revision)))
    }

    fn current_revision(&self) -> BoxFuture<'_, Result<Revision>> {
        Box::pin(self.metrics.timed("revision", self.store.current_revision()))
    }

    fn request_progress(&self, revision: Revision) {
        self.store.request_progress(revision);
    }

    fn id(&self) -> BoxFuture<'_, Result<String>> {
        self.store.id()
    }

    fn sight(&self) -> BoxFuture<'_, Result<Sight>> {
        self.store.sight()
    }

    fn advance(&self, past: Revision) -> BoxFuture<'_, Result<Revision>> {
        self.store.advance(past)
    }

    fn births_and_deaths(&self) -> u64 {
        self.store.births_and_deaths()
    }

    fn failed(&self) -> BoxFuture<'_, String> {
        self.store.failed()
    }

    fn on_replaced(&self, alarm: Alarm) {
        self.store.on_replaced(alarm);
    }
}
