//! Metrics of requests that reached a handler, under kube-apiserver's names, and the page that
//! shows all metrics.
//!
//! Label values come from small sets: an unknown resource or verb makes no new series.

use std::time::Instant;

use axum::body::Body;
use http::{Extensions, Response, header};
use hyper::body::Body as _;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, core::Collector,
};

use crate::{
    apiserver::{
        filters::Deadline,
        latency,
        metrics::{Metrics, RequestLabels},
        request_info::RequestInfo,
        storage::StoreSize,
    },
    machinery::{
        served_kind::{ServedKind, ServedVersion},
        served_kinds::ServedKinds,
    },
    runtime::{
        admin,
        metric_catalogue::{MetricDescription, describe_collectors},
    },
};

const SECONDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];
const SLI_SECONDS: [f64; 21] = [
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0,
    30.0, 45.0, 60.0,
];
const WATCH_LIST_SECONDS: [f64; 17] =
    [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];
/// Histogram buckets of a response's bytes: 1 kB to 1 GB.
const RESPONSES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// Histogram buckets of an event's bytes: 1 KiB to 128 KiB.
const EVENTS: [f64; 8] = [1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131_072.0];

/// Returns the descriptions of the request metrics, for the metrics reference.
pub(crate) fn describe_metrics(scheme: &'static ServedKinds) -> Vec<MetricDescription> {
    let total = Metrics::new().requests;
    describe_collectors(&RequestMetrics::new(scheme, total).collectors())
}

pub(super) struct RequestMetrics {
    scheme: &'static ServedKinds,
    total: IntCounterVec,
    duration: HistogramVec,
    sli_duration: HistogramVec,
    sizes: HistogramVec,
    aborts: IntCounterVec,
    long_running: IntGaugeVec,
    watch_events: IntCounterVec,
    watch_event_sizes: HistogramVec,
    watch_lists: HistogramVec,
    store_size: IntGaugeVec,
}

impl RequestMetrics {
    /// Makes and registers the metrics. `total` is registered by [`Metrics`]; it also counts
    /// requests that are answered before they reach a handler.
    pub(super) fn register(
        registry: &Registry,
        scheme: &'static ServedKinds,
        total: IntCounterVec,
    ) -> Self {
        let metrics = Self::new(scheme, total);
        for collector in metrics.collectors() {
            registry.register(collector).expect("every metric has a name of its own");
        }
        metrics
    }

    fn new(scheme: &'static ServedKinds, total: IntCounterVec) -> Self {
        let labels = &RequestLabels::NAMES[..];
        let without_component = &labels[..labels.len() - 1];
        let event = &["group", "version", "resource"];
        Self {
            scheme,
            total,
            duration: build_histograms(
                "apiserver_request_duration_seconds",
                "Seconds until a response began, by verb, resource and scope. Watches are left out.",
                &SECONDS,
                &RequestLabels::NAMES_WITH_DRY_RUN,
            ),
            sli_duration: build_histograms(
                "apiserver_request_sli_duration_seconds",
                "Seconds until a response began, without those of webhooks.",
                &SLI_SECONDS,
                labels,
            ),
            sizes: build_histograms(
                "apiserver_response_sizes",
                "Bytes of answers to reads, by resource and scope.",
                &RESPONSES,
                labels,
            ),
            aborts: build_counters(
                "apiserver_request_aborts_total",
                "Requests whose client went away before the answer, by verb, resource and scope.",
                without_component,
            ),
            long_running: IntGaugeVec::new(
                Opts::new("apiserver_longrunning_requests", "Watches that are open."),
                labels,
            )
            .expect("the metric's name and labels are valid"),
            watch_events: build_counters(
                "apiserver_watch_events_total",
                "Events sent to watchers.",
                event,
            ),
            watch_event_sizes: build_histograms(
                "apiserver_watch_events_sizes",
                "Bytes of events sent to watchers.",
                &EVENTS,
                event,
            ),
            watch_lists: build_histograms(
                "apiserver_watch_list_duration_seconds",
                "Seconds until a watch that asked for the state had sent all of it.",
                &WATCH_LIST_SECONDS,
                &["group", "version", "resource", "scope"],
            ),
            store_size: IntGaugeVec::new(
                Opts::new(
                    "apiserver_storage_size_bytes",
                    "Bytes of the store's file: `etcd-0` or `embedded`. The Kubernetes API tells none.",
                ),
                &["storage_cluster_id"],
            )
            .expect("the metric's name and labels are valid"),
        }
    }

    fn collectors(&self) -> Vec<Box<dyn Collector>> {
        let Self {
            scheme: _,
            total: _,
            duration,
            sli_duration,
            sizes,
            aborts,
            long_running,
            watch_events,
            watch_event_sizes,
            watch_lists,
            store_size,
        } = self;
        vec![
            Box::new(duration.clone()),
            Box::new(sli_duration.clone()),
            Box::new(sizes.clone()),
            Box::new(aborts.clone()),
            Box::new(long_running.clone()),
            Box::new(watch_events.clone()),
            Box::new(watch_event_sizes.clone()),
            Box::new(watch_lists.clone()),
            Box::new(store_size.clone()),
        ]
    }

    /// Sets the store's size; a store that cannot tell its size has no series.
    pub(super) fn set_store_size(&self, size: Option<StoreSize>) {
        self.store_size.reset();
        if let Some(StoreSize { of: store_name, bytes }) = size {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            self.store_size.with_label_values(&[store_name]).set(bytes);
        }
    }

    /// Begins to count a request.
    pub(super) fn start_request<'a>(
        &'a self,
        info: &'a RequestInfo,
        extensions: &Extensions,
    ) -> RunningRequest<'a> {
        let labels = RequestLabels::for_request(Some(self.scheme), info);
        let deadline = extensions.get().copied();
        RunningRequest {
            metrics: self,
            info,
            labels,
            began: Instant::now(),
            deadline,
            ended: false,
        }
    }

    pub(super) fn open_watch(
        &self,
        info: &RequestInfo,
        kind: &dyn ServedKind,
        version: ServedVersion,
    ) -> OpenWatch {
        let labels = RequestLabels::for_request(Some(self.scheme), info);
        let event = [kind.group(), version.as_str(), kind.plural()];
        let open_gauge = self.long_running.with_label_values(&labels.values());
        open_gauge.inc();
        let [group, version, resource] = event;
        OpenWatch {
            open: open_gauge,
            events: self.watch_events.with_label_values(&event),
            sizes: self.watch_event_sizes.with_label_values(&event),
            lists: self.watch_lists.with_label_values(&[group, version, resource, labels.scope]),
            began: Instant::now(),
        }
    }
}

fn build_counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels)
        .expect("the metric's name and labels are valid")
}

fn build_histograms(name: &str, help: &str, buckets: &[f64], labels: &[&str]) -> HistogramVec {
    HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)
        .expect("the metric's name and labels are valid")
}

/// A request that is being handled.
pub(super) struct RunningRequest<'a> {
    metrics: &'a RequestMetrics,
    info: &'a RequestInfo,
    labels: RequestLabels,
    began: Instant,
    deadline: Option<Deadline>,
    ended: bool,
}

impl RunningRequest<'_> {
    pub(super) fn finish(mut self, response: &Response<Body>) {
        self.ended = true;
        self.count_request(response.status().as_str());
        if matches!(self.labels.verb, "GET" | "LIST")
            && let Some(bytes) = response.body().size_hint().exact()
        {
            #[expect(clippy::cast_precision_loss, reason = "no response has 2^52 bytes")]
            self.metrics.sizes.with_label_values(&self.labels.values()).observe(bytes as f64);
        }
    }

    fn count_request(&self, code: &str) {
        let Self { metrics, labels, .. } = self;
        let with_dry_run = labels.with_dry_run(self.info);
        if labels.verb != "WATCH" {
            let seconds = self.began.elapsed().as_secs_f64();
            metrics.duration.with_label_values(&with_dry_run).observe(seconds);
            let server_seconds = (seconds - latency::of_webhooks().as_secs_f64()).max(0.0);
            metrics.sli_duration.with_label_values(&labels.values()).observe(server_seconds);
        }
        metrics.total.with_label_values(&[&with_dry_run[..], &[code]].concat()).inc();
    }
}

/// Counts a request that is dropped before its end: its handler panicked, its deadline passed, or
/// its client went away.
impl Drop for RunningRequest<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if std::thread::panicking() {
            self.count_request("500");
        } else if self.deadline.is_some_and(|Deadline(time)| Instant::now() >= time) {
            self.count_request("504");
        } else {
            let [labels @ .., _component] = self.labels.values();
            self.metrics.aborts.with_label_values(&labels).inc();
        }
    }
}

/// An open watch.
pub(super) struct OpenWatch {
    open: IntGauge,
    events: IntCounter,
    sizes: Histogram,
    lists: Histogram,
    began: Instant,
}

impl OpenWatch {
    pub(super) fn record_event(&self, bytes: usize) {
        self.events.inc();
        #[expect(clippy::cast_precision_loss, reason = "no event has 2^52 bytes")]
        self.sizes.observe(bytes as f64);
    }

    /// Records that the initial state of the watch was sent.
    pub(super) fn record_initial_state(&self) {
        self.lists.observe(self.began.elapsed().as_secs_f64());
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// Returns a page with every metric of a registry.
pub(super) fn scrape_response(registry: &Registry) -> Response<Body> {
    let mut response = Response::new(Body::from(admin::metrics_text(registry)));
    let content_type = http::HeaderValue::from_static(prometheus::TEXT_FORMAT);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
