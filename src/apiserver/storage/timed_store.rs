//! Any store, with the time that each of its answers took.
//!
//! Owns the metrics of the store and changes no answer. The metrics have names of our own, because
//! the store may be no etcd. For an etcd, they are exported under kube-apiserver's names, too.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use futures::{TryStreamExt as _, future::BoxFuture, stream};
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

use super::{
    Error, Key, KeyPrefix, PageRequest, ReplacementAlarm, Result, Revision, ScanStream, Storage,
    StoreEntry, StorePage, StoreSize, StoreStatus, WatchStream,
};
use crate::apiserver::latency::{self, LatencyLayer};

/// Histogram buckets for the seconds of an answer: from a read of memory up to what no store
/// should take.
const BUCKETS: &[f64] =
    &[0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// kube-apiserver's histogram buckets for the seconds of etcd's answers.
const ETCD_BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// Labels of a request that is about no kind.
const NO_KIND: [&str; 2] = [""; 2];

/// Time after which a request that is given up counts as an error of the store: sooner it says more
/// about its caller.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// Metrics of how long the store takes, and how often it cannot answer.
#[derive(Clone)]
pub struct StoreMetrics {
    seconds: HistogramVec,
    errors: IntCounterVec,
    etcd: Option<EtcdMetrics>,
}

/// Metrics of the store by kind, under kube-apiserver's names.
#[derive(Clone)]
struct EtcdMetrics {
    seconds: HistogramVec,
    requests: IntCounterVec,
    errors: IntCounterVec,
}

impl EtcdMetrics {
    fn new() -> Self {
        let labels = &["operation", "group", "resource"];
        let seconds = HistogramOpts::new(
            "etcd_request_duration_seconds",
            "Seconds until etcd answered, by operation and kind. Not told of the embedded store.",
        );
        let counters = |name: &str, help: &str| {
            IntCounterVec::new(Opts::new(name, help), labels)
                .expect("the metric's name and labels are valid")
        };
        Self {
            seconds: HistogramVec::new(seconds.buckets(ETCD_BUCKETS.to_vec()), labels)
                .expect("the metric's name and labels are valid"),
            requests: counters("etcd_requests_total", "Questions to etcd, by operation and kind."),
            errors: counters(
                "etcd_request_errors_total",
                "Questions that etcd could not answer, by operation and kind.",
            ),
        }
    }

    fn record_request(
        &self,
        operation: &str,
        [group, resource]: [&str; 2],
        seconds: f64,
        is_failed: bool,
    ) {
        let labels = [operation, group, resource];
        self.seconds.with_label_values(&labels).observe(seconds);
        self.requests.with_label_values(&labels).inc();
        if is_failed {
            self.errors.with_label_values(&labels).inc();
        }
    }
}

impl StoreMetrics {
    /// Makes metrics that are not registered yet; see [`StoreMetrics::register`].
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
            etcd: None,
        }
    }

    /// Adds the metrics of an etcd.
    #[must_use]
    pub fn of_etcd(self) -> Self {
        Self { etcd: Some(EtcdMetrics::new()), ..self }
    }

    pub fn collectors(&self) -> Vec<Box<dyn prometheus::core::Collector>> {
        let Self { seconds, errors, etcd } = self;
        let mut collectors: Vec<Box<dyn prometheus::core::Collector>> =
            vec![Box::new(seconds.clone()), Box::new(errors.clone())];
        if let Some(EtcdMetrics { seconds, requests, errors }) = etcd {
            collectors.push(Box::new(seconds.clone()));
            collectors.push(Box::new(requests.clone()));
            collectors.push(Box::new(errors.clone()));
        }
        collectors
    }

    pub fn register(&self, registry: &Registry) {
        for collector in self.collectors() {
            registry.register(collector).expect("every metric has a name of its own");
        }
    }

    async fn time_request<T>(
        &self,
        operation: &'static str,
        kind: [&str; 2],
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut timer =
            StoreRequestTimer { metrics: self, operation, at: Instant::now(), answered: false };
        let answer = latency::measure_time(LatencyLayer::Store, answer).await;
        timer.answered = true;
        let seconds = timer.at.elapsed().as_secs_f64();
        self.seconds.with_label_values(&[operation]).observe(seconds);
        let is_failed = matches!(
            &answer,
            Err(Error::Unavailable { .. } | Error::Corrupt { .. } | Error::Replaced { .. })
        );
        if is_failed {
            self.errors.with_label_values(&[operation]).inc();
        }
        if let Some(etcd) = &self.etcd {
            etcd.record_request(operation, kind, seconds, is_failed);
        }
        answer
    }
}

/// Times a request that is under way; one that is dropped late without an answer counts as an
/// error.
struct StoreRequestTimer<'a> {
    metrics: &'a StoreMetrics,
    operation: &'static str,
    at: Instant,
    answered: bool,
}

impl Drop for StoreRequestTimer<'_> {
    fn drop(&mut self) {
        if !self.answered && self.at.elapsed() >= PATIENCE {
            self.metrics.errors.with_label_values(&[self.operation]).inc();
        }
    }
}

/// A store whose answers are timed.
pub struct TimedStore {
    store: Arc<dyn Storage>,
    metrics: StoreMetrics,
}

impl TimedStore {
    pub fn new(store: Arc<dyn Storage>, metrics: StoreMetrics) -> Self {
        Self { store, metrics }
    }
}

impl Storage for TimedStore {
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<StoreEntry>>> {
        Box::pin(self.metrics.time_request("get", key.group_resource(), self.store.get(key)))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        request: PageRequest,
    ) -> BoxFuture<'a, Result<StorePage>> {
        Box::pin(self.metrics.time_request(
            "list",
            prefix.group_resource(),
            self.store.list(prefix, request),
        ))
    }

    fn scan<'a>(&'a self, prefix: &'a KeyPrefix, at: Option<Revision>) -> ScanStream<'a> {
        let pages = self.store.scan(prefix, at);
        Box::pin(stream::try_unfold(pages, move |mut pages| async move {
            let next_page = self
                .metrics
                .time_request("list", prefix.group_resource(), pages.try_next())
                .await?;
            Ok(next_page.map(|page| (page, pages)))
        }))
    }

    fn create<'a>(&'a self, key: &'a Key, value: Bytes) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(self.metrics.time_request(
            "create",
            key.group_resource(),
            self.store.create(key, value),
        ))
    }

    fn update<'a>(
        &'a self,
        key: &'a Key,
        expected: Revision,
        value: Bytes,
    ) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(self.metrics.time_request(
            "update",
            key.group_resource(),
            self.store.update(key, expected, value),
        ))
    }

    fn delete<'a>(&'a self, key: &'a Key, expected: Revision) -> BoxFuture<'a, Result<Revision>> {
        Box::pin(self.metrics.time_request(
            "delete",
            key.group_resource(),
            self.store.delete(key, expected),
        ))
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a KeyPrefix,
        from: Revision,
    ) -> BoxFuture<'a, Result<WatchStream>> {
        Box::pin(self.metrics.time_request(
            "watch",
            prefix.group_resource(),
            self.store.watch(prefix, from),
        ))
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.metrics.time_request("compact", NO_KIND, self.store.compact(revision)))
    }

    fn current_revision(&self) -> BoxFuture<'_, Result<Revision>> {
        Box::pin(self.metrics.time_request("revision", NO_KIND, self.store.current_revision()))
    }

    fn request_progress(&self, revision: Revision) {
        self.store.request_progress(revision);
    }

    fn store_id(&self) -> BoxFuture<'_, Result<String>> {
        self.store.store_id()
    }

    fn store_status(&self) -> BoxFuture<'_, Result<StoreStatus>> {
        self.store.store_status()
    }

    fn advance_revision(&self, past: Revision) -> BoxFuture<'_, Result<Revision>> {
        self.store.advance_revision(past)
    }

    fn disk_size(&self) -> BoxFuture<'_, Option<StoreSize>> {
        self.store.disk_size()
    }

    fn births_and_deaths(&self) -> u64 {
        self.store.births_and_deaths()
    }

    fn until_failed(&self) -> BoxFuture<'_, String> {
        self.store.until_failed()
    }

    fn on_replaced(&self, alarm: ReplacementAlarm) {
        self.store.on_replaced(alarm);
    }
}
