//! The plain HTTP port of a role: `/livez`, `/readyz`, `/healthz` and `/metrics`.
//!
//! Every client that reaches the port may connect, so a connection costs little: it carries one
//! request and lasts a few seconds. Where too many are open, the oldest is closed, so that a new
//! client is served.

use std::{collections::VecDeque, net::IpAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Router, extract::State, http::StatusCode, response::IntoResponse, routing::get,
};
use futures::{
    StreamExt,
    future::{AbortHandle, abortable},
    stream::FuturesUnordered,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use prometheus::{Encoder, Registry, TextEncoder};
use rustls::ServerConfig;
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tower::Layer;

use super::{Readiness, Shutdown};

/// Says what is stuck in this process, if anything is: then only a restart helps.
pub type StuckCheck = Arc<dyn Fn() -> Option<String> + Send + Sync>;

#[derive(Clone)]
struct AdminState {
    stuck: StuckCheck,
    readiness: Readiness,
    metrics: Registry,
}

/// Returns the admin routes, which answer from memory only.
pub fn build_router(stuck: StuckCheck, readiness: Readiness, metrics: Registry) -> Router {
    Router::new()
        .route("/livez", get(get_livez))
        .route("/healthz", get(get_readyz))
        .route("/readyz", get(get_readyz))
        .route("/metrics", get(get_metrics))
        .with_state(AdminState { stuck, readiness, metrics })
}

/// The client's address; an extension of every request that [`serve_plain`] hands on.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub IpAddr);

/// Most connections at a time: those of the kubelet, Prometheus and a few people.
const CALLERS: usize = 32;
/// How long a connection may last, from the accept to the end of the answer.
const LIMIT: Duration = Duration::from_secs(5);
/// Most bytes of a request's head that are read; no probe sends as many.
const REQUEST: usize = 16 * 1024;

/// What clients of a port meet.
#[derive(Clone, Debug, Default)]
pub enum PortSecurity {
    #[default]
    Plain,
    Encrypted(Arc<ServerConfig>),
    /// Nobody is served: clients are to meet TLS, and there is no certificate yet.
    Closed,
}

impl PortSecurity {
    pub fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }
}

/// Serves `router` on `listener` in plain text until shutdown.
pub async fn serve_plain(listener: TcpListener, router: Router, shutdown: Shutdown) {
    let (_plain, security) = watch::channel(PortSecurity::Plain);
    serve_as(listener, router, security, shutdown).await;
}

/// Serves `router` on `listener` until shutdown; each connection as `security` says when it comes.
pub async fn serve_as(
    listener: TcpListener,
    router: Router,
    security: watch::Receiver<PortSecurity>,
    shutdown: Shutdown,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).keep_alive(false).max_buf_size(REQUEST);
    let mut calls = FuturesUnordered::new();
    // Oldest first.
    let mut callers: VecDeque<(u64, AbortHandle)> = VecDeque::new();
    let mut number = 0_u64;
    loop {
        tokio::select! {
            () = shutdown.triggered() => return,
            accept_result = listener.accept() => {
                let (stream, peer_address) = match accept_result {
                    Ok(connection) => connection,
                    Err(error) => {
                        // The error is this connection's alone, or any connection's: no file
                        // descriptor is free.
                        tracing::debug!(%error, "Connection cannot be accepted");
                        sleep(Duration::from_millis(100)).await;
                        continue;
                    }
                };
                if callers.len() == CALLERS
                    && let Some((_, oldest_handle)) = callers.pop_front()
                {
                    oldest_handle.abort();
                }
                number += 1;
                let peer = Extension(PeerAddress(peer_address.ip()));
                let service = TowerToHyperService::new(peer.layer(router.clone()));
                let (security, http) = (security.borrow().clone(), http.clone());
                let call = async move {
                    // A connection that failed is the client's business.
                    match security {
                        PortSecurity::Plain => {
                            drop(http.serve_connection(TokioIo::new(stream), service).await);
                        }
                        PortSecurity::Encrypted(config) => {
                            let tls_result = TlsAcceptor::from(config).accept(stream).await;
                            if let Ok(stream) = tls_result {
                                let stream = TokioIo::new(stream);
                                drop(http.serve_connection(stream, service).await);
                            }
                        }
                        PortSecurity::Closed => {}
                    }
                };
                let (call, handle) = abortable(timeout(LIMIT, call));
                callers.push_back((number, handle));
                calls.push(async move {
                    drop(call.await);
                    number
                });
            }
            Some(call_number) = calls.next(), if !calls.is_empty() => {
                callers.retain(|(number, _)| *number != call_number);
            }
        }
    }
}

async fn get_livez(State(admin): State<AdminState>) -> impl IntoResponse {
    match (admin.stuck)() {
        None => (StatusCode::OK, "ok".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("stuck: {reason}\n")),
    }
}

async fn get_readyz(State(admin): State<AdminState>) -> impl IntoResponse {
    let pending_names = admin.readiness.waiting_for();
    if pending_names.is_empty() {
        (StatusCode::OK, "ok".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {}\n", pending_names.join(", ")))
    }
}

async fn get_metrics(State(admin): State<AdminState>) -> impl IntoResponse {
    let content_type = [(axum::http::header::CONTENT_TYPE, prometheus::TEXT_FORMAT)];
    (content_type, metrics_text(&admin.metrics))
}

/// Renders the metrics of a registry in the text exposition format 0.0.4.
pub fn metrics_text(metrics: &Registry) -> Vec<u8> {
    let mut body = Vec::new();
    TextEncoder::new()
        .encode(&metrics.gather(), &mut body)
        .expect("writing to a Vec cannot fail, and registered metrics are consistent");
    body
}

#[cfg(test)]
mod tests {
    use http::Request;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        time::Instant,
    };
    use tower::ServiceExt;

    use super::*;
    use crate::runtime::Runtime;

    #[tokio::test]
    async fn idle_callers_keep_nobody_out_and_do_not_stay() {
        let rt = Runtime::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = build_router(Arc::new(|| None), rt.readiness().clone(), rt.metrics().clone());
        rt.tasks().spawn("admin", serve_plain(listener, router, rt.shutdown()));
        let mut idle = Vec::new();
        for _ in 0..3 * CALLERS {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let asked = Instant::now();
        let mut prober = TcpStream::connect(address).await.unwrap();
        prober.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        prober.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{answer}");
        assert!(asked.elapsed() < LIMIT, "{:?}", asked.elapsed());
        // The server also closes the last idle connections, and one on which a client began a
        // request and sent no more.
        idle.push(TcpStream::connect(address).await.unwrap());
        idle.last_mut().unwrap().write_all(b"GET / HT").await.unwrap();
        for mut caller in idle {
            // The HTTP library lets go of idle ones by itself, but after 30 s only.
            let left = (4 * LIMIT).saturating_sub(asked.elapsed());
            let closed = timeout(left, caller.read(&mut [0; 1])).await;
            // The error is a reset: the server had not read what this client sent.
            assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
        }
        rt.shutdown().trigger();
        rt.tasks().join().await;
    }

    #[tokio::test]
    async fn what_is_stuck_is_not_alive_and_what_waits_is() {
        for (stuck, code) in [(None, 200), (Some("the look at x".to_owned()), 503)] {
            let readiness = Readiness::new();
            let _waits = readiness.add("api");
            let stuck: StuckCheck = Arc::new(move || stuck.clone());
            let router = build_router(stuck, readiness, Registry::new());
            let ask = |path| {
                let request = Request::get(path).body(axum::body::Body::empty()).unwrap();
                router.clone().oneshot(request)
            };
            assert_eq!(ask("/livez").await.unwrap().status(), code);
            assert_eq!(ask("/readyz").await.unwrap().status(), 503);
        }
    }
}
