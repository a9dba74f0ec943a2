//! The HTTPS listener: accepts, shakes hands, speaks HTTP/1.1 or HTTP/2, drains.
//!
//! Owns connections and their limits. Every request carries the [`Peer`] of its connection in
//! its extensions; who that makes the user is decided anew for each request (invariant 8).
//! Nothing is ever upgraded or redirected.

mod body;
mod connection;
mod tls;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use rustls::pki_types::CertificateDer;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

pub use tls::server_config;

use super::{filters::Chain, metrics::Metrics};
use crate::runtime::{Shutdown, Tasks};

/// Open connections. A watch through the aggregator shares an HTTP/2 connection; direct clients
/// take one each. More wait in the kernel's backlog.
const CONNECTIONS: usize = 4096;
/// A client that does not finish its TLS handshake by then is cut.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// `accept` fails like this when the process runs out of descriptors; trying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// What the client presented in the handshake, leaf first. Only its possession of the leaf's
    /// key has been checked: nobody has looked at the chain yet.
    pub certificates: Arc<[CertificateDer<'static>]>,
}

/// Accepts connections until `drain` is triggered, then waits for those that are open to finish
/// what they are doing, for at most `grace`.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    chain: Arc<Chain>,
    metrics: Arc<Metrics>,
    tasks: &Tasks,
    drain: Shutdown,
    grace: Duration,
) {
    let acceptor = TlsAcceptor::from(tls);
    let limit = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let accepted = async {
            let permit = Arc::clone(&limit).acquire_owned().await;
            (listener.accept().await, permit)
        };
        // Dropping the accept half-way loses nothing: the connection stays in the backlog.
        let (accepted, permit) = tokio::select! {
            accepted = accepted => accepted,
            () = drain.triggered() => break,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                warn!(%error, "Failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (acceptor, chain, drain) = (acceptor.clone(), Arc::clone(&chain), drain.clone());
        let metrics = Arc::clone(&metrics);
        tasks.spawn("connection", async move {
            let _permit = permit;
            drop(stream.set_nodelay(true));
            let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => {
                    metrics.tls_handshake_errors.inc();
                    debug!(%address, %error, "TLS handshake failed");
                    return;
                }
                Err(_) => {
                    metrics.tls_handshake_errors.inc();
                    debug!(%address, "TLS handshake timed out");
                    return;
                }
            };
            connection::run(stream, address, chain, drain).await;
        });
    }
    drop(listener);
    let all = u32::try_from(CONNECTIONS).expect("CONNECTIONS is a small constant");
    if tokio::time::timeout(grace, limit.acquire_many(all)).await.is_err() {
        let open = CONNECTIONS - limit.available_permits();
        warn!(open, ?grace, "Connections did not drain in time");
    } else {
        info!("Connections drained");
    }
}
