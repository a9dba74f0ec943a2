//! One connection from its handshake to its end: protocol, limits, idle time and drain.

use std::{
    convert::Infallible,
    net::SocketAddr,
    panic::AssertUnwindSafe,
    pin::{Pin, pin},
    sync::Arc,
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
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpStream, time::MissedTickBehavior};
use tokio_rustls::server::TlsStream;
use tracing::{debug, error};

use super::{
    connection_slots::{ConnectionUse, ConnectionUseGuard},
    paced_body::{PacedBody, StreamExecutor, stream_pace},
    timeout_stream::TimeoutStream,
};
use crate::{
    apiserver::{
        filters::{ConnectionFarewell, FilterChain},
        peer::{Peer, PeerCertificates},
    },
    runtime::Shutdown,
};

/// Most time to send a request's head, kube-apiserver's number: a slow client cannot hold a
/// connection with a head that never ends.
const HEADER_READ: Duration = Duration::from_secs(32);
/// Time after which a connection that has had no request at all is closed.
const FIRST_REQUEST: Duration = Duration::from_secs(5);
/// Time after which a connection without a running request is closed.
const IDLE: Duration = Duration::from_secs(90);
/// Pause between checks whether a connection is idle.
const IDLE_CHECK: Duration = Duration::from_secs(30);
/// Pause between HTTP/2 pings, which find peers that are gone.
const PING: Duration = Duration::from_secs(30);
const PING_ANSWER: Duration = Duration::from_secs(15);
/// Most bytes of a request's head on a connection whose client certificate is signed by a trusted
/// CA. The aggregator sends the headers of users with many groups.
const HEAD: u32 = 64 * 1024;
/// Most bytes of a request's head on any other connection.
const STRANGERS_HEAD: u32 = 16 * 1024;
const STREAMS: u32 = 1000;
const H2_BUFFER: u32 = 256 * 1024;
/// Most bytes of an HTTP/2 frame. A head comes in frames: of a head that does not end few are kept.
const H2_FRAME: u32 = 16 * 1024;
/// Most bytes of a stream's response that wait for its client.
const H2_SENDING: usize = 64 * 1024;
/// Most streams that were reset before the server looked at them; more of them at once are an
/// attack (CVE-2023-44487) and end the connection.
const PENDING_RESETS: usize = 64;

type ConnectionResult = Result<(), hyper::Error>;

/// A connection that can be asked to finish what it is doing and end.
trait DrainableConnection: Future<Output = ConnectionResult> {
    fn drain(self: Pin<&mut Self>);
}

/// Serves one connection to its end. A panic that escapes a body ends this connection only.
pub(super) async fn serve_connection(
    stream: TlsStream<TimeoutStream<TcpStream>>,
    address: SocketAddr,
    chain: Arc<FilterChain>,
    connection_use: &Arc<ConnectionUse>,
    drain: Shutdown,
) {
    let (_, tls) = stream.get_ref();
    let is_http2 = tls.alpn_protocol() == Some(b"h2");
    let certificates = tls.peer_certificates().unwrap_or_default();
    let certificates = certificates.iter().map(|der| der.clone().into_owned()).collect();
    let certificates = Arc::new(PeerCertificates::new(certificates));
    let head = if chain.vouches_for(&certificates).await { HEAD } else { STRANGERS_HEAD };
    let peer = Peer { address, certificates };

    let farewell = ConnectionFarewell::default();
    let service = {
        let (connection_use, farewell) = (Arc::clone(connection_use), farewell.clone());
        service_fn(move |mut request: Request<Incoming>| {
            let (chain, in_use) = (Arc::clone(&chain), ConnectionUseGuard::new(&connection_use));
            request.extensions_mut().insert(peer.clone());
            if is_http2 {
                farewell.another_request();
                request.extensions_mut().insert(farewell.clone());
            }
            async move {
                let response: Response<Body> = chain.handle(request.map(Body::new)).await;
                Ok::<_, Infallible>(
                    response.map(|body| PacedBody::new(body, stream_pace(), in_use)),
                )
            }
        })
    };
    let io = TokioIo::new(stream);
    let connection_future = async {
        if is_http2 {
            let mut builder = http2::Builder::new(StreamExecutor);
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(STREAMS)
                .max_header_list_size(head)
                .initial_stream_window_size(H2_BUFFER)
                .max_frame_size(H2_FRAME)
                .max_send_buf_size(H2_SENDING)
                .max_pending_accept_reset_streams(PENDING_RESETS)
                .keep_alive_interval(PING)
                .keep_alive_timeout(PING_ANSWER);
            drive_connection(
                builder.serve_connection(io, service),
                connection_use,
                &farewell,
                &drain,
            )
            .await
        } else {
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_READ)
                // The limit bounds what is read ahead of a body, too. The aggregator speaks HTTP/2.
                .max_buf_size(head as usize);
            drive_connection(
                builder.serve_connection(io, service),
                connection_use,
                &farewell,
                &drain,
            )
            .await
        }
    };
    match AssertUnwindSafe(connection_future).catch_unwind().await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%address, %error, "Connection ended"),
        Err(_) => error!(%address, "A connection panicked"),
    }
}

/// Drives a connection. The connection is asked to end when the process drains, when a filter says
/// farewell, or when it has been without a request for long. A connection that never had a request
/// is cut, and so is one whose client ignores that it is to end.
async fn drive_connection(
    connection: impl DrainableConnection,
    connection_use: &ConnectionUse,
    farewell: &ConnectionFarewell,
    drain: &Shutdown,
) -> ConnectionResult {
    let mut connection = pin!(connection);
    let mut is_ending = false;
    let mut idle = Duration::ZERO;
    let mut checks = tokio::time::interval(IDLE_CHECK);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    checks.tick().await;
    let mut first_request = pin!(tokio::time::sleep(FIRST_REQUEST));
    let mut needs_first_request = true;
    loop {
        // Neither a tick nor a signal is lost by being dropped.
        tokio::select! {
            done = connection.as_mut() => return done,
            () = drain.triggered(), if !is_ending => {
                is_ending = true;
                connection.as_mut().drain();
            }
            () = farewell.wait_until_ignored() => return Ok(()),
            () = farewell.wait_until_requested(), if !is_ending => {
                is_ending = true;
                connection.as_mut().drain();
            }
            () = first_request.as_mut(), if needs_first_request => {
                if !connection_use.was_used() {
                    return Ok(());
                }
                needs_first_request = false;
            }
            _ = checks.tick() => {
                if connection_use.had_requests() {
                    idle = Duration::ZERO;
                    continue;
                }
                idle += IDLE_CHECK;
                if idle > IDLE + IDLE_CHECK {
                    // The connection was asked to end and did not: its peer does not read.
                    return Ok(());
                }
                if idle > IDLE && !is_ending {
                    is_ending = true;
                    connection.as_mut().drain();
                }
            }
        }
    }
}

type ConnectionIo = TokioIo<TlsStream<TimeoutStream<TcpStream>>>;

impl<S, B> DrainableConnection for http1::Connection<ConnectionIo, S>
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

impl<S, B> DrainableConnection for http2::Connection<ConnectionIo, S, StreamExecutor>
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

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use tokio::time::Instant;

    use super::*;

    /// A connection that never ends by itself, and notes when it was asked to.
    #[derive(Default)]
    struct Scripted(Option<Instant>);

    impl Future for &mut Scripted {
        type Output = ConnectionResult;

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<ConnectionResult> {
            Poll::Pending
        }
    }

    impl DrainableConnection for &mut Scripted {
        fn drain(mut self: Pin<&mut Self>) {
            self.0 = Some(Instant::now());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_never_had_a_request_is_cut() {
        let began = Instant::now();
        let mut connection = Scripted::default();
        let (used, farewell) = (ConnectionUse::default(), ConnectionFarewell::default());
        drive_connection(&mut connection, &used, &farewell, &Shutdown::new()).await.unwrap();
        assert_eq!((began.elapsed(), connection.0), (FIRST_REQUEST, None));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_asked_to_end_and_then_cut_and_a_busy_one_is_not() {
        let began = Instant::now();
        let (mut connection, used) = (Scripted::default(), Arc::<ConnectionUse>::default());
        let request = ConnectionUseGuard::new(&used);
        let busy = Duration::from_secs(600);
        let (farewell, drain) = (ConnectionFarewell::default(), Shutdown::new());
        let served = drive_connection(&mut connection, &used, &farewell, &drain);
        let request = async {
            tokio::time::sleep(busy).await;
            drop(request);
        };
        let (served, ()) = tokio::join!(served, request);
        served.unwrap();
        let asked = connection.0.expect("it was asked") - began;
        assert!(asked >= busy + IDLE && asked <= busy + IDLE + 2 * IDLE_CHECK, "{asked:?}");
        assert!(began.elapsed() >= asked && began.elapsed() <= asked + 2 * IDLE_CHECK);
    }

    /// A connection of HTTP/1 that ends between two requests may fail the second.
    #[tokio::test(start_paused = true)]
    async fn a_connection_of_short_requests_is_not_idle() {
        let (mut connection, used) = (Scripted::default(), Arc::<ConnectionUse>::default());
        let (farewell, drain) = (ConnectionFarewell::default(), Shutdown::new());
        let served = drive_connection(&mut connection, &used, &farewell, &drain);
        let client = async {
            for _ in 0..1000 {
                drop(ConnectionUseGuard::new(&used));
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
        };
        tokio::select! {
            served = served => panic!("it ended: {served:?}"),
            () = client => {}
        }
        assert_eq!(connection.0, None, "it is not asked to end");
    }

    /// GOAWAY binds a client once the client has read it. A client that goes on opening streams as
    /// if it had not would keep its connection for ever.
    #[tokio::test(start_paused = true)]
    async fn who_goes_on_asking_after_a_farewell_is_cut() {
        let began = Instant::now();
        let (mut connection, used) = (Scripted::default(), Arc::<ConnectionUse>::default());
        let (farewell, drain) = (ConnectionFarewell::default(), Shutdown::new());
        let _request = ConnectionUseGuard::new(&used);
        let served = drive_connection(&mut connection, &used, &farewell, &drain);
        let client = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            farewell.request_close();
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                farewell.another_request();
            }
        };
        let cut = tokio::time::timeout(Duration::from_secs(60), async {
            tokio::select! {
                served = served => served,
                () = client => unreachable!("it asks for ever"),
            }
        });
        cut.await.expect("it is cut").unwrap();
        let asked = connection.0.expect("it was asked") - began;
        assert_eq!((asked.as_secs(), began.elapsed().as_secs()), (1, 7));
    }
}
