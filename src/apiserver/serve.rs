//! The HTTPS listener: accepts, shakes hands, speaks HTTP/1.1 or HTTP/2, drains.
//!
//! Owns connections and their limits. Every request carries the [`Peer`](super::peer::Peer) of its
//! connection in its extensions. The server decides for each request again which user that is
//! (invariant 8). It never upgrades a connection.

mod connection;
mod connection_slots;
mod paced_body;
mod timeout_stream;
mod tls;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

pub use tls::{SecureServingOptions, TlsVersion, cipher_suite, server_config};

use self::{
    connection_slots::{ConnectionSlot, ConnectionSlots, MOST},
    timeout_stream::TimeoutStream,
};
use super::{filters::FilterChain, metrics::Metrics};
use crate::runtime::{Shutdown, TaskGroup};

/// Most time for a client to finish its TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Pause after a failed `accept`: it fails when the process runs out of descriptors, and trying
/// again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Most connections that wait to be accepted, as far as `net.core.somaxconn` lets them; Go's
/// servers take that number. The kernel of a client that finds no room tries again after 1 s, 3 s,
/// 7 s.
const BACKLOG: u32 = 4096;

/// Opens the listener's port.
pub fn bind_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Connections of a process that just ended do not keep the port from this one.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections until `drain` is triggered, then waits for at most `grace` until the open
/// ones finish what they are doing.
pub async fn accept_connections(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    chain: Arc<FilterChain>,
    metrics: Arc<Metrics>,
    tasks: &TaskGroup,
    drain: Shutdown,
    grace: Duration,
) {
    let acceptor = TlsAcceptor::from(tls);
    let places = ConnectionSlots::new(MOST);
    loop {
        // Dropping the accept half-way loses nothing: the connection stays in the backlog.
        let accept_result = tokio::select! {
            accepted = listener.accept() => accepted,
            () = drain.triggered() => break,
        };
        let (stream, address) = match accept_result {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "Failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = places.acquire(address.ip()) else {
            debug!(%address, "Refused a connection: all that may be open are in use");
            continue;
        };
        let (acceptor, chain, drain) = (acceptor.clone(), Arc::clone(&chain), drain.clone());
        let metrics = Arc::clone(&metrics);
        tasks.spawn("connection", async move {
            drop(stream.set_nodelay(true));
            tokio::select! {
                () = serve_one(stream, address, &acceptor, chain, &metrics, &place, drain) => {}
                () = place.wait_for_cut() => debug!(%address, "Closed an idle connection: a place was needed"),
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(grace, places.all_closed()).await.is_err() {
        let open = places.open_count();
        warn!(open, ?grace, "Connections did not drain in time");
    } else {
        info!("Connections drained");
    }
}

async fn serve_one(
    stream: TcpStream,
    address: SocketAddr,
    acceptor: &TlsAcceptor,
    chain: Arc<FilterChain>,
    metrics: &Metrics,
    place: &ConnectionSlot,
    drain: Shutdown,
) {
    let handshake = acceptor.accept(TimeoutStream::new(stream));
    match tokio::time::timeout(HANDSHAKE, handshake).await {
        // Boxed, so that a connection that only shakes hands takes little memory.
        Ok(Ok(mut stream)) => {
            let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
            let bytes = certificates.iter().map(|der| der.len()).sum();
            stream.get_mut().0.finish_handshake(bytes);
            Box::pin(connection::serve_connection(stream, address, chain, &place.used, drain))
                .await;
        }
        Ok(Err(error)) => {
            metrics.tls_handshake_errors.inc();
            debug!(%address, %error, "TLS handshake failed");
        }
        Err(_) => {
            metrics.tls_handshake_errors.inc();
            debug!(%address, "TLS handshake timed out");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, net::Ipv4Addr};

    use super::*;

    /// Room for what tests have open besides.
    const SHORT_OF_IT: usize = 100;

    #[tokio::test]
    async fn a_crowd_waits_to_be_accepted() {
        let allowed = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let crowd = allowed.trim().parse::<usize>().unwrap().min(2000) - SHORT_OF_IT;
        let listener = bind_listener((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        let all = async {
            for _ in 0..crowd {
                waiting.push(TcpStream::connect(address).await?);
            }
            io::Result::Ok(())
        };
        let outcome = tokio::time::timeout(Duration::from_secs(60), all).await;
        assert!(matches!(outcome, Ok(Ok(()))), "{outcome:?}: {} of {crowd}", waiting.len());
    }
}
