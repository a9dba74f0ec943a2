//! What the kubelet and Prometheus are told, from memory: no request asks the database.
//!
//! Startup: the pilot is in charge. Liveness: the pilot's loop turns and its database can be
//! ended; a hung or crashed database is the pilot's business, not the kubelet's. Readiness: the
//! node serves clients.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
};

use axum::{Router, extract::State, http::StatusCode, response::IntoResponse, routing::get};
use prometheus::Registry;
use tokio::{net::TcpListener, sync::watch};

use crate::runtime::{
    Runtime,
    admin::{self, PortSecurity},
};

/// TCP ports of the probes; 0 takes a free one.
#[derive(Clone, Copy, Debug)]
pub struct ProbePorts {
    pub liveness: u16,
    pub readiness: u16,
    pub startup: u16,
    pub metrics: u16,
}

/// What the probes answer.
#[derive(Clone, Debug, Default)]
pub struct ProbeAnswers {
    pub live: bool,
    pub ready: bool,
    /// One line for people.
    pub message: String,
    /// Gauges of the database by full metric name.
    pub gauges: BTreeMap<String, f64>,
}

const METRICS: &str = "metrics";

pub type ProbeAnswersReceiver = watch::Receiver<ProbeAnswers>;

/// Listening sockets by the name of their probe. `serve_probes` takes those that an earlier program
/// of this process left open as `inherited_listeners`.
pub type ProbeListeners = BTreeMap<String, OwnedFd>;

/// Binds all ports that are not handed over, then answers on them until shutdown. Returns second
/// handles of the sockets, for the next program of this process.
///
/// # Errors
/// When a port cannot be bound.
pub async fn serve_probes(
    rt: &Runtime,
    bind: IpAddr,
    ports: ProbePorts,
    answers: &ProbeAnswersReceiver,
    metrics_port: &watch::Receiver<PortSecurity>,
    mut inherited_listeners: ProbeListeners,
) -> io::Result<ProbeListeners> {
    let probe = |handler| Router::new().route("/", handler).with_state(answers.clone());
    let metrics_state = (answers.clone(), rt.metrics().clone());
    let metrics = Router::new()
        .route("/", get(scrape_metrics))
        .route("/metrics", get(scrape_metrics))
        .with_state(metrics_state);
    let routes = [
        ("liveness", ports.liveness, probe(get(handle_liveness))),
        ("readiness", ports.readiness, probe(get(handle_readiness))),
        ("startup", ports.startup, probe(get(handle_startup))),
        (METRICS, ports.metrics, metrics),
    ];
    let mut listeners = ProbeListeners::new();
    for (name, port, router) in routes {
        let listener = match inherited_listeners.remove(name) {
            Some(socket) => TcpListener::from_std(socket.into())?,
            None => bind_listener(bind, port).await?,
        };
        listeners.insert(name.to_owned(), listener.as_fd().try_clone_to_owned()?);
        tracing::debug!(name, address = ?listener.local_addr().ok(), "Answering");
        // The kubelet asks in plain text.
        if name == METRICS {
            let server = admin::serve_as(listener, router, metrics_port.clone(), rt.shutdown());
            rt.tasks().spawn(name, server);
        } else {
            rt.tasks().spawn(name, admin::serve_plain(listener, router, rt.shutdown()));
        }
    }
    Ok(listeners)
}

/// Listens at `bind`. `::` takes both families of addresses; on a machine without IPv6, IPv4 only.
async fn bind_listener(bind: IpAddr, port: u16) -> io::Result<TcpListener> {
    match TcpListener::bind(SocketAddr::new(bind, port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse && bind.is_unspecified() => {
            TcpListener::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)).await
        }
        answer => answer,
    }
}

fn probe_response(is_good: bool, message: &str) -> (StatusCode, String) {
    let code = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, format!("{message}\n"))
}

async fn handle_liveness(State(answers): State<ProbeAnswersReceiver>) -> impl IntoResponse {
    let answers = answers.borrow();
    probe_response(answers.live, &answers.message)
}

async fn handle_readiness(State(answers): State<ProbeAnswersReceiver>) -> impl IntoResponse {
    let answers = answers.borrow();
    probe_response(answers.ready, &answers.message)
}

async fn handle_startup(State(answers): State<ProbeAnswersReceiver>) -> impl IntoResponse {
    probe_response(true, &answers.borrow().message)
}

async fn scrape_metrics(
    State((answers, registry)): State<(ProbeAnswersReceiver, Registry)>,
) -> impl IntoResponse {
    let mut text = String::from_utf8(admin::metrics_text(&registry)).unwrap_or_default();
    for (name, value) in &answers.borrow().gauges {
        // Writing to a String cannot fail.
        writeln!(text, "# TYPE {name} gauge\n{name} {value}").ok();
    }
    ([(axum::http::header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text)
}
