//! `/livez`, `/readyz`, `/healthz`: whether this process works, and whether to send it requests.
//!
//! Owns the checks and upstream's notation (`server/healthz/healthz.go`): `?verbose`, `?exclude=`,
//! one check by its path. Why a check failed goes to the log, not to an unauthenticated client. The
//! message of the store's guard is an exception: an administrator must read it.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry, core::Collector};
use tokio::{sync::Mutex, time::Instant};
use tracing::warn;

use super::{storage::Storage, store_identity::StoreGuard, url::Query};
use crate::{
    error,
    runtime::{Readiness, Shutdown},
};

/// Most time that the store may take to answer a health check.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which the store's answer is reused. Any client may ask for health, and each question to
/// an etcd is a quorum read.
const RECENT: Duration = Duration::from_secs(1);

/// The store's last answer. A check that comes while the store is being asked waits for it.
#[derive(Default)]
struct StoreHealth(Mutex<Option<(Instant, Result<(), String>)>>);

impl StoreHealth {
    async fn check_store(&self, store: &dyn Storage) -> Result<(), String> {
        let mut last_answer = self.0.lock().await;
        if let Some((checked_at, verdict)) = &*last_answer
            && checked_at.elapsed() < RECENT
        {
            return verdict.clone();
        }
        let verdict = match tokio::time::timeout(STORE_TIMEOUT, store.current_revision()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error::chain(&error).to_string()),
            Err(_) => Err(format!("the store did not answer within {STORE_TIMEOUT:?}")),
        };
        *last_answer = Some((Instant::now(), verdict.clone()));
        verdict
    }
}

/// Metrics for `/metrics/slis`, under upstream's names.
struct HealthMetrics {
    registry: Registry,
    checks: IntGaugeVec,
    outcomes: IntCounterVec,
}

impl HealthMetrics {
    fn new() -> Self {
        let gauge = Opts::new(
            "kubernetes_healthcheck",
            "Whether a health check passed when it was last asked for: 1 if so. At /metrics/slis.",
        );
        let counter = Opts::new(
            "kubernetes_healthchecks_total",
            "Health checks, by outcome. At /metrics/slis.",
        );
        let valid = "the metric's name and labels are valid";
        Self {
            registry: Registry::new(),
            checks: IntGaugeVec::new(gauge, &["name", "type"]).expect(valid),
            outcomes: IntCounterVec::new(counter, &["name", "type", "status"]).expect(valid),
        }
    }

    fn collectors(&self) -> [Box<dyn Collector>; 2] {
        [Box::new(self.checks.clone()), Box::new(self.outcomes.clone())]
    }

    fn count_check(&self, check: HealthCheck, endpoint: HealthEndpoint, has_passed: bool) {
        let (name, type_) = (check.name(), endpoint.name());
        self.checks.with_label_values(&[name, type_]).set(i64::from(has_passed));
        let status = if has_passed { "success" } else { "error" };
        self.outcomes.with_label_values(&[name, type_, status]).inc();
    }
}

/// Returns the metrics of health checks, for the metrics reference.
pub(super) fn collectors() -> [Box<dyn Collector>; 2] {
    HealthMetrics::new().collectors()
}

/// What the health checks examine.
pub(super) struct HealthChecker {
    guard: StoreGuard,
    storage: Arc<dyn Storage>,
    store: StoreHealth,
    readiness: Readiness,
    shutdown: Shutdown,
    slis: HealthMetrics,
}

impl HealthChecker {
    pub(super) fn new(
        guard: StoreGuard,
        storage: Arc<dyn Storage>,
        readiness: Readiness,
        shutdown: Shutdown,
    ) -> Self {
        let slis = HealthMetrics::new();
        for collector in slis.collectors() {
            slis.registry.register(collector).expect("every metric has a name of its own");
        }
        Self { guard, storage, store: StoreHealth::default(), readiness, shutdown, slis }
    }

    /// Returns the metrics that `/metrics/slis` shows.
    pub(super) fn metrics(&self) -> &Registry {
        &self.slis.registry
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HealthEndpoint {
    Livez,
    Readyz,
    Healthz,
}

impl HealthEndpoint {
    fn name(self) -> &'static str {
        match self {
            Self::Livez => "livez",
            Self::Readyz => "readyz",
            Self::Healthz => "healthz",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HealthCheck {
    Ping,
    Etcd,
    StoreIdentity,
    InformerSync,
    Shutdown,
}

impl HealthCheck {
    const ALL: [Self; 5] =
        [Self::Ping, Self::Etcd, Self::StoreIdentity, Self::InformerSync, Self::Shutdown];

    /// Returns the check's name. Probes and dashboards know the store as `etcd`, whichever store it
    /// is.
    fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Etcd => "etcd",
            Self::StoreIdentity => "store-identity",
            Self::InformerSync => "informer-sync",
            Self::Shutdown => "shutdown",
        }
    }

    /// Returns whether the check belongs to `endpoint`. Liveness is ping alone: a restart heals no
    /// failure of another check, so the kubelet must not try one. A server with a foreign store
    /// stays ready: its 503s tell every client what happened. Without endpoints, the aggregator
    /// would report only "service unavailable".
    fn belongs_to(self, endpoint: HealthEndpoint) -> bool {
        match endpoint {
            HealthEndpoint::Livez => self == Self::Ping,
            HealthEndpoint::Readyz => self != Self::StoreIdentity,
            HealthEndpoint::Healthz => {
                matches!(self, Self::Ping | Self::Etcd | Self::StoreIdentity)
            }
        }
    }
}

/// Answers a health check; `None` for another path.
pub(super) async fn respond_to_check(
    health: &HealthChecker,
    path: &str,
    query: &Query,
) -> Option<Response<Body>> {
    let (name, single) = match path[1..].split_once('/') {
        Some((name, single)) => (name, Some(single)),
        None => (&path[1..], None),
    };
    let endpoint = match name {
        "livez" => HealthEndpoint::Livez,
        "readyz" => HealthEndpoint::Readyz,
        "healthz" => HealthEndpoint::Healthz,
        _ => return None,
    };
    let checks = HealthCheck::ALL.into_iter().filter(|check| check.belongs_to(endpoint));
    if let Some(single) = single {
        let check = checks.into_iter().find(|check| check.name() == single)?;
        return Some(match run_check(health, endpoint, check).await {
            Ok(()) => text_response(StatusCode::OK, "ok".to_owned()),
            Err(reason) => {
                let body = format!("internal server error: {}\n", visible_reason(check, &reason));
                text_response(StatusCode::INTERNAL_SERVER_ERROR, body)
            }
        });
    }
    let mut excluded_names: Vec<&str> = query.values("exclude").collect();
    let is_verbose = query.get("verbose").is_some();
    let mut lines = Vec::new();
    let mut failures = Vec::new();
    for check in checks {
        let excluded_count = excluded_names.len();
        excluded_names.retain(|name| *name != check.name());
        if excluded_names.len() < excluded_count {
            lines.push(format!("[+]{} excluded: ok\n", check.name()));
            continue;
        }
        match run_check(health, endpoint, check).await {
            Ok(()) => lines.push(format!("[+]{} ok\n", check.name())),
            Err(reason) => {
                lines.push(format!(
                    "[-]{} failed: {}\n",
                    check.name(),
                    visible_reason(check, &reason)
                ));
                failures.push((check, reason));
            }
        }
    }
    if !excluded_names.is_empty() {
        let names: Vec<_> = excluded_names.iter().map(|name| format!("{name:?}")).collect();
        let names = names.join(", ");
        lines
            .push(format!("warn: some health checks cannot be excluded: no matches for {names}\n"));
    }
    if !failures.is_empty() {
        for (check, reason) in failures {
            warn!(endpoint = name, check = check.name(), reason = reason, "Health check failed");
        }
        lines.push(format!("{name} check failed\n"));
        return Some(text_response(StatusCode::INTERNAL_SERVER_ERROR, lines.concat()));
    }
    if is_verbose {
        lines.push(format!("{name} check passed\n"));
        return Some(text_response(StatusCode::OK, lines.concat()));
    }
    Some(text_response(StatusCode::OK, "ok".to_owned()))
}

async fn run_check(
    health: &HealthChecker,
    endpoint: HealthEndpoint,
    check: HealthCheck,
) -> Result<(), String> {
    let outcome = perform_check(health, check).await;
    health.slis.count_check(check, endpoint, outcome.is_ok());
    outcome
}

async fn perform_check(health: &HealthChecker, check: HealthCheck) -> Result<(), String> {
    match check {
        HealthCheck::Ping => Ok(()),
        HealthCheck::Etcd => health.store.check_store(&*health.storage).await,
        HealthCheck::StoreIdentity => {
            health.guard.check().map_err(|error| error.message().to_owned())
        }
        HealthCheck::InformerSync => {
            let pending_checks = health.readiness.waiting_for();
            if pending_checks.is_empty() {
                Ok(())
            } else {
                Err(format!("waiting for {}", pending_checks.join(", ")))
            }
        }
        HealthCheck::Shutdown => {
            if health.shutdown.is_triggered() {
                Err("process is shutting down".to_owned())
            } else {
                Ok(())
            }
        }
    }
}

fn visible_reason(check: HealthCheck, reason: &str) -> &str {
    if check == HealthCheck::StoreIdentity { reason } else { "reason withheld" }
}

fn text_response(code: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, plain);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
