//! The plain HTTP port of a role: `/livez`, `/readyz`, `/healthz` and `/metrics`.

use axum::{Router, extract::State, http::StatusCode, response::IntoResponse, routing::get};
use prometheus::{Encoder, Registry, TextEncoder};
use tokio::net::TcpListener;

use super::{Readiness, Shutdown};

#[derive(Clone)]
struct Admin {
    readiness: Readiness,
    metrics: Registry,
}

/// Routes that answer from memory only.
pub fn router(readiness: Readiness, metrics: Registry) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok" }))
        .route("/healthz", get(ready))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .with_state(Admin { readiness, metrics })
}

/// Serves the admin routes until shutdown.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: Shutdown,
) -> std::io::Result<()> {
    axum::serve(listener, router)
        .with_graceful_shutdown(async move { shutdown.triggered().await })
        .await
}

async fn ready(State(admin): State<Admin>) -> impl IntoResponse {
    let waiting = admin.readiness.waiting_for();
    if waiting.is_empty() {
        (StatusCode::OK, "ok".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {}\n", waiting.join(", ")))
    }
}

async fn scrape(State(admin): State<Admin>) -> impl IntoResponse {
    let content_type = [(axum::http::header::CONTENT_TYPE, prometheus::TEXT_FORMAT)];
    (content_type, text(&admin.metrics))
}

/// Every metric in the text exposition format 0.0.4.
pub fn text(metrics: &Registry) -> Vec<u8> {
    let mut body = Vec::new();
    TextEncoder::new()
        .encode(&metrics.gather(), &mut body)
        .expect("writing to a Vec cannot fail, and registered metrics are consistent");
    body
}
