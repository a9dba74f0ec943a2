//! One connection from handshake to end: protocol, limits, idle and drain.

use std::{
    convert::Infallible,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::body::Body;
use futures::FutureExt;
use http::{Request, Response};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{net::TcpStream, time::MissedTickBehavior};
use tokio_rustls::server::TlsStream;
use tracing::{debug, error};

use super::{Peer, body::Guarded};
use crate::{apiserver::filters::Chain, runtime::Shutdown};

/// Time to send a request's head, kube-apiserver's number: a slow client cannot hold a
/// connection with a head that never ends.
const HEADER_READ: Duration = Duration::from_secs(32);
/// A connection without a request is closed after so long.
const IDLE: Duration = Duration::from_secs(90);
/// How often idleness is looked at.
const IDLE_CHECK: Duration = Duration::from_secs(30);
/// HTTP/2 pings find peers that are gone.
const PING: Duration = Duration::from_secs(30);
const PING_ANSWER: Duration = Duration::from_secs(15);
const HEADERS: u32 = 1024 * 1024;
const STREAMS: u32 = 1000;
const H2_BUFFER: u32 = 256 * 1024;
/// Streams that were reset before we looked at them; more of them at once is an attack
/// (CVE-2023-44487) and ends the connection.
const PENDING_RESETS: usize = 64;

type Hyper = Result<(), hyper::Error>;

/// A connection that can be asked to finish what it is doing and end.
trait Drain: Future<Output = Hyper> {
    fn drain(self: Pin<&mut Self>);
}

/// Serves one connection to its end. A panic that escapes a body ends this connection only.
pub(super) async fn run(
    stream: TlsStream<TcpStream>,
    address: SocketAddr,
    chain: Arc<Chain>,
    drain: Shutdown,
) {
    let (_, tls) = stream.get_ref();
    let http2 = tls.alpn_protocol() == Some(b"h2");
    let certificates = tls.peer_certificates().unwrap_or_default();
    let certificates = certificates.iter().map(|der| der.clone().into_owned()).collect();
    let peer = Peer { address, certificates };
    let busy = Arc::new(AtomicUsize::new(0));

    let service = {
        let busy = Arc::clone(&busy);
        service_fn(move |mut request: Request<Incoming>| {
            let (chain, in_use) = (Arc::clone(&chain), InUse::new(&busy));
            request.extensions_mut().insert(peer.clone());
            async move {
                let response: Response<Body> = chain.handle(request.map(Body::new)).await;
                Ok::<_, Infallible>(response.map(|body| Guarded { body, _guard: in_use }))
            }
        })
    };
    let io = TokioIo::new(stream);
    let served = async {
        if http2 {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_header_list_size(HEADERS)
                .initial_stream_window_size(H2_BUFFER)
                .max_frame_size(H2_BUFFER)
                .max_pending_accept_reset_streams(PENDING_RESETS)
                .keep_alive_interval(PING)
                .keep_alive_timeout(PING_ANSWER);
            until_done(builder.serve_connection(io, service), &busy, &drain).await
        } else {
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_READ)
                .max_buf_size(HEADERS as usize);
            until_done(builder.serve_connection(io, service), &busy, &drain).await
        }
    };
    match AssertUnwindSafe(served).catch_unwind().await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%address, %error, "Connection ended"),
        Err(_) => error!(%address, "A connection panicked"),
    }
}

/// Drives a connection. It is asked to end when the process drains or when it has been without
/// a request for long.
async fn until_done(connection: impl Drain, busy: &AtomicUsize, drain: &Shutdown) -> Hyper {
    let mut connection = pin!(connection);
    let mut ending = false;
    let mut idle = Duration::ZERO;
    let mut checks = tokio::time::interval(IDLE_CHECK);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    checks.tick().await;
    loop {
        // Neither a tick nor the drain signal is lost by being dropped.
        tokio::select! {
            done = connection.as_mut() => return done,
            () = drain.triggered(), if !ending => {
                ending = true;
                connection.as_mut().drain();
            }
            _ = checks.tick() => {
                if busy.load(Ordering::Relaxed) > 0 {
                    idle = Duration::ZERO;
                    continue;
                }
                idle += IDLE_CHECK;
                if idle > IDLE + IDLE_CHECK {
                    // It was asked to end and did not: the peer does not read.
                    return Ok(());
                }
                if idle > IDLE && !ending {
                    ending = true;
                    connection.as_mut().drain();
                }
            }
        }
    }
}

/// Counts a request from its head to the end of its response's body.
struct InUse(Arc<AtomicUsize>);

impl InUse {
    fn new(busy: &Arc<AtomicUsize>) -> Self {
        busy.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(busy))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

type Io = TokioIo<TlsStream<TcpStream>>;

impl<S, B> Drain for http1::Connection<Io, S>
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: hyper::body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn drain(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<S, B> Drain for http2::Connection<Io, S, TokioExecutor>
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::Future: Send + 'static,
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn drain(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}
