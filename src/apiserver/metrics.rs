//! Metrics of requests before they reach a handler. Names are kube-apiserver's, so existing
//! dashboards and alerts find them. Label values come from small sets (CVE-2020-8552).

mod labels;

use std::{sync::OnceLock, time::Duration};

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, core::Collector,
};

pub use labels::RequestLabels;

use super::{delegate::ReviewCallMetrics, request_info::RequestInfo};
use crate::machinery::served_kinds::ServedKinds;

/// Histogram buckets for the seconds of authentication and authorization: 1 ms to 16 s.
const CHECKS: [f64; 15] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];
const FILTERS: [f64; 13] =
    [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0, 10.0, 15.0, 30.0];
/// Histogram buckets for the seconds until a certificate expires: none, half an hour, up to 360
/// days.
const LIFETIMES: [f64; 14] = [
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    43200.0,
    86400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

/// Users that upstream names in metrics; other users count as `email_id` or `other`.
const NAMED_USERS: [&str; 5] =
    ["admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default"];

/// The metrics of the server outside its handlers; each one's help text says what it counts.
pub struct Metrics {
    /// The scheme whose kinds labels may name; no kind is named before the scheme is known.
    scheme: OnceLock<&'static ServedKinds>,
    pub requests: IntCounterVec,
    pub inflight: IntGaugeVec,
    pub rejected: IntCounterVec,
    terminations: IntCounterVec,
    filters: HistogramVec,
    pub panics: IntCounter,
    pub tls_handshake_errors: IntCounter,
    users: IntCounterVec,
    authentication_attempts: IntCounterVec,
    authentication_duration: HistogramVec,
    authorization_attempts: IntCounterVec,
    authorization_duration: HistogramVec,
    pub delegated_authn: ReviewCallMetrics,
    pub delegated_authz: ReviewCallMetrics,
    /// Seconds that are left of the client certificates that requests authenticate with.
    pub client_certificates: Histogram,
    pub audit_events: IntCounter,
    pub audit_errors: IntCounterVec,
    pub audit_levels: IntCounterVec,
    pub certificate_expiry: IntGauge,
}

impl Metrics {
    /// Makes metrics that are not registered yet; see [`Metrics::register`].
    #[expect(clippy::new_without_default, reason = "a default would suggest that it is registered")]
    pub fn new() -> Self {
        Self {
            scheme: OnceLock::new(),
            requests: build_counters(
                "apiserver_request_total",
                "Requests, by verb, resource, scope and HTTP code.",
                &[&RequestLabels::NAMES_WITH_DRY_RUN[..], &["code"]].concat(),
            ),
            inflight: build_gauges(
                "apiserver_current_inflight_requests",
                "Requests being handled, by kind: readOnly or mutating.",
                &["request_kind"],
            ),
            rejected: build_counters(
                "apiserver_request_rejected_total",
                "Requests answered 429 because too many were in flight, by kind.",
                &["request_kind"],
            ),
            terminations: build_counters(
                "apiserver_request_terminations_total",
                "Requests that ended at their deadline (504) or for want of a seat (429), by verb, \
                 resource, scope and code.",
                &[&RequestLabels::NAMES[..], &["code"]].concat(),
            ),
            filters: build_histograms(
                "apiserver_request_filter_duration_seconds",
                "Seconds that a request spent in a filter: authentication, impersonation, \
                 authorization.",
                &FILTERS,
                &["filter"],
            ),
            panics: build_counter(
                "navigator_apiserver_panics_total",
                "Requests whose handler panicked.",
            ),
            tls_handshake_errors: build_counter(
                "apiserver_tls_handshake_errors_total",
                "Connections dropped in the TLS handshake.",
            ),
            users: build_counters(
                "authenticated_user_requests",
                "Requests by user: one of the few that Kubernetes names, email_id, other.",
                &["username"],
            ),
            authentication_attempts: build_counters(
                "authentication_attempts",
                "Requests by outcome of authentication: success, failure, error.",
                &["result"],
            ),
            authentication_duration: build_histograms(
                "authentication_duration_seconds",
                "Seconds that authentication took, by its outcome.",
                &CHECKS,
                &["result"],
            ),
            authorization_attempts: build_counters(
                "authorization_attempts_total",
                "Requests by outcome of authorization: allowed, denied, no-opinion (no authorizer allows it), error.",
                &["result"],
            ),
            authorization_duration: build_histograms(
                "authorization_duration_seconds",
                "Seconds that authorization took, by its outcome.",
                &CHECKS,
                &["result"],
            ),
            delegated_authn: ReviewCallMetrics::new("authn", "TokenReviews"),
            delegated_authz: ReviewCallMetrics::new("authz", "SubjectAccessReviews"),
            client_certificates: Histogram::with_opts(
                HistogramOpts::new(
                    "apiserver_client_certificate_expiration_seconds",
                    "Seconds that are left of the client certificates that requests come with.",
                )
                .buckets(LIFETIMES.to_vec()),
            )
            .expect("the metric's name is valid"),
            audit_events: build_counter(
                "apiserver_audit_event_total",
                "Audit events made, for all places that they go to.",
            ),
            audit_errors: build_counters(
                "apiserver_audit_error_total",
                "Audit events that were lost, by where: log, webhook, buffered.",
                &["plugin"],
            ),
            audit_levels: build_counters(
                "apiserver_audit_level_total",
                "Requests by the level at which the audit policy records them.",
                &["level"],
            ),
            certificate_expiry: IntGauge::new(
                "navigator_apiserver_certificate_expiry_timestamp_seconds",
                "When the serving certificate in use expires, as Unix time.",
            )
            .expect("the metric's name is valid"),
        }
    }

    /// Sets the scheme whose kinds labels may name.
    pub fn set_scheme(&self, scheme: &'static ServedKinds) {
        self.scheme.get_or_init(|| scheme);
    }

    /// Counts a request that is ended before a handler has answered it.
    pub fn count_termination(&self, info: &RequestInfo, code: &'static str) {
        let mut labels =
            RequestLabels::for_request(self.scheme.get().copied(), info).values().to_vec();
        labels.push(code);
        self.terminations.with_label_values(&labels).inc();
    }

    /// Counts a request for which there is no seat.
    pub fn count_refusal(&self, info: &RequestInfo, kind: &str) {
        self.rejected.with_label_values(&[kind]).inc();
        let labels =
            RequestLabels::for_request(self.scheme.get().copied(), info).with_dry_run(info);
        self.requests.with_label_values(&[&labels[..], &["429"]].concat()).inc();
        self.count_termination(info, "429");
    }

    /// Counts an authentication: `outcome` holds the user's name, or how it failed.
    pub fn record_authentication(&self, outcome: Result<&str, &'static str>, duration: Duration) {
        let result = match outcome {
            Ok(user) => {
                let well_known_name = NAMED_USERS.into_iter().find(|name| *name == user);
                let other = if user.contains('@') { "email_id" } else { "other" };
                self.users.with_label_values(&[well_known_name.unwrap_or(other)]).inc();
                "success"
            }
            Err(result) => result,
        };
        self.authentication_attempts.with_label_values(&[result]).inc();
        self.authentication_duration.with_label_values(&[result]).observe(duration.as_secs_f64());
        self.observe_filter("authentication", duration);
    }

    pub fn record_authorization(&self, result: &'static str, duration: Duration) {
        self.authorization_attempts.with_label_values(&[result]).inc();
        self.authorization_duration.with_label_values(&[result]).observe(duration.as_secs_f64());
        self.observe_filter("authorization", duration);
    }

    pub fn observe_filter(&self, filter: &'static str, duration: Duration) {
        self.filters.with_label_values(&[filter]).observe(duration.as_secs_f64());
    }

    /// Counts audit events that are lost.
    pub fn lost_events(&self, plugin: &str, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.audit_errors.with_label_values(&[plugin]).inc_by(count);
    }

    pub fn register(&self, registry: &Registry) {
        for collector in self.collectors() {
            registry.register(collector).expect("every metric has a name of its own");
        }
    }

    pub(super) fn collectors(&self) -> Vec<Box<dyn Collector>> {
        let Self {
            scheme: _,
            requests,
            inflight,
            rejected,
            terminations,
            filters,
            panics,
            tls_handshake_errors,
            users,
            authentication_attempts,
            authentication_duration,
            authorization_attempts,
            authorization_duration,
            delegated_authn,
            delegated_authz,
            client_certificates,
            audit_events,
            audit_errors,
            audit_levels,
            certificate_expiry,
        } = self;
        let mut collectors: Vec<Box<dyn Collector>> = vec![
            Box::new(requests.clone()),
            Box::new(inflight.clone()),
            Box::new(rejected.clone()),
            Box::new(terminations.clone()),
            Box::new(filters.clone()),
            Box::new(panics.clone()),
            Box::new(tls_handshake_errors.clone()),
            Box::new(users.clone()),
            Box::new(authentication_attempts.clone()),
            Box::new(authentication_duration.clone()),
            Box::new(authorization_attempts.clone()),
            Box::new(authorization_duration.clone()),
            Box::new(client_certificates.clone()),
            Box::new(audit_events.clone()),
            Box::new(audit_errors.clone()),
            Box::new(audit_levels.clone()),
            Box::new(certificate_expiry.clone()),
        ];
        collectors.extend(delegated_authn.collectors());
        collectors.extend(delegated_authz.collectors());
        collectors
    }
}

fn build_histograms(name: &str, help: &str, buckets: &[f64], labels: &[&str]) -> HistogramVec {
    HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)
        .expect("the metric's name and labels are valid")
}

fn build_counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).expect("the metric's name is valid")
}

fn build_counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels).expect("the metric's name is valid")
}

fn build_gauges(name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    IntGaugeVec::new(Opts::new(name, help), labels).expect("the metric's name is valid")
}
