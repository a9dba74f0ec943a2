//! `/livez`, `/readyz`, `/healthz`: whether this process works, and whether to send it requests.
//!
//! Owns the checks and upstream's notation (`server/healthz/healthz.go`): `?verbose`, `?exclude=`,
//! one check by its path. Why a check failed goes to the log, not to a stranger, except for what
//! the store's guard has to say: a person must read that.

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
    async fn look(&self, store: &dyn Storage) -> Result<(), String> {
        let mut last = self.0.lock().await;
        if let Some((at, verdict)) = &*last
            && at.elapsed() < RECENT
        {
            return verdict.clone();
        }
        let verdict = match tokio::time::timeout(STORE_TIMEOUT, store.current_revision()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error::chain(&error).to_string()),
            Err(_) => Err(format!("the store did not answer within {STORE_TIMEOUT:?}")),
        };
        *last = Some((Instant::now(), verdict.clone()));
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

    fn count(&self, check: HealthCheck, endpoint: HealthEndpoint, passed: bool) {
        let (name, type_) = (check.name(), endpoint.name());
        self.checks.with_label_values(&[name, type_]).set(i64::from(passed));
        let status = if passed { "success" } else { "error" };
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

    /// Tells whether the check belongs to `endpoint`. Liveness is ping alone: a restart heals no
    /// failure of another check, so the kubelet must not try one. A server with a foreign store
    /// stays ready: its 503s tell every client what happened, while without endpoints the
    /// aggregator would say "service unavailable" and no more.
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
pub(super) async fn respond(
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
        return Some(match run(health, endpoint, check).await {
            Ok(()) => text(StatusCode::OK, "ok".to_owned()),
            Err(why) => {
                let body = format!("internal server error: {}\n", shown(check, &why));
                text(StatusCode::INTERNAL_SERVER_ERROR, body)
            }
        });
    }
    let mut excluded: Vec<&str> = query.all("exclude").collect();
    let verbose = query.get("verbose").is_some();
    let mut lines = Vec::new();
    let mut failed = Vec::new();
    for check in checks {
        let known = excluded.len();
        excluded.retain(|name| *name != check.name());
        if excluded.len() < known {
            lines.push(format!("[+]{} excluded: ok\n", check.name()));
            continue;
        }
        match run(health, endpoint, check).await {
            Ok(()) => lines.push(format!("[+]{} ok\n", check.name())),
            Err(why) => {
                lines.push(format!("[-]{} failed: {}\n", check.name(), shown(check, &why)));
                failed.push((check, why));
            }
        }
    }
    if !excluded.is_empty() {
        let names: Vec<_> = excluded.iter().map(|name| format!("{name:?}")).collect();
        let names = names.join(", ");
        lines
            .push(format!("warn: some health checks cannot be excluded: no matches for {names}\n"));
    }
    if !failed.is_empty() {
        for (check, why) in failed {
            warn!(endpoint = name, check = check.name(), reason = why, "Health check failed");
        }
        lines.push(format!("{name} check failed\n"));
        return Some(text(StatusCode::INTERNAL_SERVER_ERROR, lines.concat()));
    }
    if verbose {
        lines.push(format!("{name} check passed\n"));
        return Some(text(StatusCode::OK, lines.concat()));
    }
    Some(text(StatusCode::OK, "ok".to_owned()))
}

async fn run(
    health: &HealthChecker,
    endpoint: HealthEndpoint,
    check: HealthCheck,
) -> Result<(), String> {
    let outcome = look(health, check).await;
    health.slis.count(check, endpoint, outcome.is_ok());
    outcome
}

async fn look(health: &HealthChecker, check: HealthCheck) -> Result<(), String> {
    match check {
        HealthCheck::Ping => Ok(()),
        HealthCheck::Etcd => health.store.look(&*health.storage).await,
        HealthCheck::StoreIdentity => {
            health.guard.check().map_err(|error| error.message().to_owned())
        }
        HealthCheck::InformerSync => {
            let waiting = health.readiness.waiting_for();
            if waiting.is_empty() {
                Ok(())
            } else {
                Err(format!("waiting for {}", waiting.join(", ")))
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

fn shown(check: HealthCheck, why: &str) -> &str {
    if check == HealthCheck::StoreIdentity { why } else { "reason withheld" }
}

fn text(code: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, plain);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
