//! Numbers about requests before they reach a handler. Names are kube-apiserver's, so existing
//! dashboards and alerts find them. Label values come from small sets (CVE-2020-8552).

use prometheus::{
    IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, core::Collector,
};

/// See each metric's help text.
pub struct Metrics {
    pub inflight: IntGaugeVec,
    pub rejected: IntCounterVec,
    pub terminations: IntCounterVec,
    pub panics: IntCounter,
    pub tls_handshake_errors: IntCounter,
    pub authentication_attempts: IntCounterVec,
    pub authorization_attempts: IntCounterVec,
    pub delegated_authn: IntCounterVec,
    pub delegated_authz: IntCounterVec,
    pub audit_events: IntCounter,
    pub audit_errors: IntCounterVec,
    pub audit_levels: IntCounterVec,
    pub audit_rejected: IntCounter,
    pub certificate_expiry: IntGauge,
}

impl Metrics {
    /// Metrics that nobody scrapes yet; see [`Metrics::register`].
    #[expect(clippy::new_without_default, reason = "a default would suggest that it is registered")]
    pub fn new() -> Self {
        Self {
            inflight: gauges(
                "apiserver_current_inflight_requests",
                "Requests being handled, by kind: readOnly or mutating.",
                &["request_kind"],
            ),
            rejected: counters(
                "apiserver_request_rejected_total",
                "Requests answered 429 because too many were in flight, by kind.",
                &["request_kind"],
            ),
            terminations: counters(
                "apiserver_request_terminations_total",
                "Requests that ended at their deadline, by verb.",
                &["verb"],
            ),
            panics: counter("navigator_apiserver_panics_total", "Requests whose handler panicked."),
            tls_handshake_errors: counter(
                "apiserver_tls_handshake_errors_total",
                "Connections dropped in the TLS handshake.",
            ),
            authentication_attempts: counters(
                "authentication_attempts",
                "Requests by outcome of authentication: success, failure, error.",
                &["result"],
            ),
            authorization_attempts: counters(
                "authorization_attempts_total",
                "Requests by outcome of authorization: allowed, denied, error.",
                &["result"],
            ),
            delegated_authn: counters(
                "apiserver_delegated_authn_request_total",
                "TokenReviews sent to kube-apiserver, by HTTP code.",
                &["code"],
            ),
            delegated_authz: counters(
                "apiserver_delegated_authz_request_total",
                "SubjectAccessReviews sent to kube-apiserver, by HTTP code.",
                &["code"],
            ),
            audit_events: counter(
                "apiserver_audit_event_total",
                "Audit events made, for all places that they go to.",
            ),
            audit_errors: counters(
                "apiserver_audit_error_total",
                "Audit events that were lost, by where: log, webhook, buffered, truncate.",
                &["plugin"],
            ),
            audit_levels: counters(
                "apiserver_audit_level_total",
                "Requests by the level at which the audit policy records them.",
                &["level"],
            ),
            audit_rejected: counter(
                "apiserver_audit_requests_rejected_total",
                "Requests that failed because their arrival could not be recorded.",
            ),
            certificate_expiry: IntGauge::new(
                "navigator_apiserver_certificate_expiry_timestamp_seconds",
                "When the serving certificate in use expires, as Unix time.",
            )
            .expect("the metric's name is valid"),
        }
    }

    /// Audit events are lost.
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
            inflight,
            rejected,
            terminations,
            panics,
            tls_handshake_errors,
            authentication_attempts,
            authorization_attempts,
            delegated_authn,
            delegated_authz,
            audit_events,
            audit_errors,
            audit_levels,
            audit_rejected,
            certificate_expiry,
        } = self;
        vec![
            Box::new(inflight.clone()),
            Box::new(rejected.clone()),
            Box::new(terminations.clone()),
            Box::new(panics.clone()),
            Box::new(tls_handshake_errors.clone()),
            Box::new(authentication_attempts.clone()),
            Box::new(authorization_attempts.clone()),
            Box::new(delegated_authn.clone()),
            Box::new(delegated_authz.clone()),
            Box::new(audit_events.clone()),
            Box::new(audit_errors.clone()),
            Box::new(audit_levels.clone()),
            Box::new(audit_rejected.clone()),
            Box::new(certificate_expiry.clone()),
        ]
    }
}

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).expect("the metric's name is valid")
}

fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels).expect("the metric's name is valid")
}

fn gauges(name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    IntGaugeVec::new(Opts::new(name, help), labels).expect("the metric's name is valid")
}
