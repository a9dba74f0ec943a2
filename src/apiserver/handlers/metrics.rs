//! Numbers about requests that reached a handler, under kube-apiserver's names, and the page
//! that shows all numbers.
//!
//! Label values come from small sets: an unknown resource or verb makes no new series.

use std::time::Instant;

use axum::body::Body;
use http::{Response, StatusCode, header};
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::{
    api::{
        kind::{Kind, Version},
        scheme::Scheme,
    },
    apiserver::{
        operation::{Action, Operation, Verb},
        url::Query,
    },
    runtime::{
        admin,
        catalogue::{Described, described},
    },
};

const BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
    10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
];

/// What is told of requests.
pub(crate) fn catalogue(scheme: &'static Scheme) -> Vec<Described> {
    described(&RequestMetrics::new(scheme).collectors())
}

pub(super) struct RequestMetrics {
    scheme: &'static Scheme,
    total: IntCounterVec,
    duration: HistogramVec,
    long_running: IntGaugeVec,
    watch_events: IntCounterVec,
}

impl RequestMetrics {
    pub(super) fn register(registry: &Registry, scheme: &'static Scheme) -> Self {
        let metrics = Self::new(scheme);
        for collector in metrics.collectors() {
            registry.register(collector).expect("every metric has a name of its own");
        }
        metrics
    }

    fn new(scheme: &'static Scheme) -> Self {
        Self {
            scheme,
            total: IntCounterVec::new(
                Opts::new(
                    "apiserver_request_total",
                    "Requests for resources, by verb, resource, scope and HTTP code.",
                ),
                &[
                    "verb",
                    "dry_run",
                    "group",
                    "version",
                    "resource",
                    "subresource",
                    "scope",
                    "component",
                    "code",
                ],
            )
            .expect("the metric's name and labels are valid"),
            duration: HistogramVec::new(
                HistogramOpts::new(
                    "apiserver_request_duration_seconds",
                    "Seconds until a response began, by verb, resource and scope. Watches are \
                     left out.",
                )
                .buckets(BUCKETS.to_vec()),
                &[
                    "verb",
                    "dry_run",
                    "group",
                    "version",
                    "resource",
                    "subresource",
                    "scope",
                    "component",
                ],
            )
            .expect("the metric's name and labels are valid"),
            long_running: IntGaugeVec::new(
                Opts::new("apiserver_longrunning_requests", "Watches that are open."),
                &["verb", "group", "version", "resource", "scope", "component"],
            )
            .expect("the metric's name and labels are valid"),
            watch_events: IntCounterVec::new(
                Opts::new("apiserver_watch_events_total", "Events sent to watchers."),
                &["group", "version", "kind"],
            )
            .expect("the metric's name and labels are valid"),
        }
    }

    fn collectors(&self) -> Vec<Box<dyn prometheus::core::Collector>> {
        let Self { scheme: _, total, duration, long_running, watch_events } = self;
        vec![
            Box::new(total.clone()),
            Box::new(duration.clone()),
            Box::new(long_running.clone()),
            Box::new(watch_events.clone()),
        ]
    }

    /// Begins to count a request.
    pub(super) fn begin(&self, operation: &Operation, query: &Query) -> Running<'_> {
        let [group, version, resource, subresource] = subject(self.scheme, operation);
        Running {
            metrics: self,
            labels: [
                verb(operation),
                if query.text("dryRun").is_empty() { "" } else { "All" },
                group,
                version,
                resource,
                subresource,
                scope(operation),
                "apiserver",
            ],
            began: Instant::now(),
        }
    }

    pub(super) fn long_running(&self, operation: &Operation) -> LongRunning {
        let [group, version, resource, _] = subject(self.scheme, operation);
        let labels = [verb(operation), group, version, resource, scope(operation), "apiserver"];
        let gauge = self.long_running.with_label_values(&labels);
        gauge.inc();
        LongRunning(gauge)
    }

    pub(super) fn watch_events(&self, kind: &dyn Kind, version: Version) -> IntCounter {
        self.watch_events.with_label_values(&[kind.group(), version.as_str(), kind.kind()])
    }
}

/// A request that is being handled.
pub(super) struct Running<'a> {
    metrics: &'a RequestMetrics,
    labels: [&'static str; 8],
    began: Instant,
}

impl Running<'_> {
    pub(super) fn end(self, code: StatusCode) {
        let labels = self.labels;
        if labels[0] != "WATCH" {
            let seconds = self.began.elapsed().as_secs_f64();
            self.metrics.duration.with_label_values(&labels).observe(seconds);
        }
        let mut with_code = labels.to_vec();
        with_code.push(code.as_str());
        self.metrics.total.with_label_values(&with_code).inc();
    }
}

/// Counts an open watch until it is dropped.
pub(super) struct LongRunning(IntGauge);

impl Drop for LongRunning {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Group, version, resource and subresource, if they are ours.
fn subject(scheme: &Scheme, operation: &Operation) -> [&'static str; 4] {
    let kind = scheme.by_resource(&operation.group, &operation.resource);
    let version = Version::parse(&operation.version);
    let (Some(kind), Some(version)) = (kind, version) else { return [""; 4] };
    let others = kind.subresources().iter().map(|other| other.name);
    let subresource = others.chain(["status"]).find(|known| *known == operation.subresource);
    [kind.group(), version.as_str(), kind.plural(), subresource.unwrap_or_default()]
}

fn verb(operation: &Operation) -> &'static str {
    if matches!(operation.action, Action::Apply(_)) {
        return "APPLY";
    }
    match operation.verb() {
        Some(Verb::Get) => "GET",
        Some(Verb::List) => "LIST",
        Some(Verb::Watch) => "WATCH",
        Some(Verb::Create) => "POST",
        Some(Verb::Update) => "PUT",
        Some(Verb::Patch) => "PATCH",
        Some(Verb::Delete) => "DELETE",
        Some(Verb::DeleteCollection) => "DELETECOLLECTION",
        Some(Verb::Impersonate) | None => "other",
    }
}

fn scope(operation: &Operation) -> &'static str {
    if operation.is_named() || operation.verb() == Some(Verb::Create) {
        "resource"
    } else if operation.namespace.is_empty() {
        "cluster"
    } else {
        "namespace"
    }
}

/// Every metric of the process.
pub(super) fn scrape(registry: &Registry) -> Response<Body> {
    let mut response = Response::new(Body::from(admin::text(registry)));
    let content_type = http::HeaderValue::from_static(prometheus::TEXT_FORMAT);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
