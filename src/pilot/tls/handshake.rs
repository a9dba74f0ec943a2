//! What a port of the node shows in a handshake, by which alone a certificate counts as in use, and
//! whom it says to trust.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use rustls::{
    CertificateError, ClientConfig, DEFAULT_VERSIONS,
    pki_types::{CertificateDer, ServerName},
    version::TLS12,
};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

use super::{PinnedLeaves, TlsClientError};

/// Why a port showed no certificate.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error(transparent)]
    Client(#[from] TlsClientError),
    #[error("failed to connect to {0}")]
    Connect(SocketAddr, #[source] io::Error),
    #[error("{0} shows another certificate than those that were installed")]
    Foreign(SocketAddr),
    #[error("no TLS is spoken at {0}")]
    Tls(SocketAddr, #[source] io::Error),
    #[error("no handshake with {0} within {1:?}")]
    TimedOut(SocketAddr, Duration),
}

/// What a port showed in a handshake.
#[derive(Debug)]
pub struct ServedPort {
    /// The certificate that it has the key of.
    pub leaf: CertificateDer<'static>,
    /// Subjects (DER) of the CAs whose certificates it accepts. Empty where it asks for none, or does
    /// not say.
    pub accepts: Vec<Vec<u8>>,
}

/// Shakes hands with a port of the node within `limit`, and returns what it showed: one of `pins`.
/// `own`: chain and key (PEM) that this side shows.
///
/// # Errors
/// When it shows something else, or nothing in that time.
pub async fn shake_hands(
    address: SocketAddr,
    pins: &PinnedLeaves,
    own: Option<(&str, &str)>,
    limit: Duration,
) -> Result<ServedPort, HandshakeError> {
    let Some(own) = own else {
        let leaf = served_leaf(address, pins.client_config()?, limit).await?;
        return Ok(ServedPort { leaf, accepts: Vec::new() });
    };
    // In TLS 1.3 not every server says whose certificates it accepts; in 1.2 it has to.
    let mut served_port = None;
    for versions in [DEFAULT_VERSIONS, &[&TLS12]] {
        let (config, own) = pins.node_config(own, versions)?;
        let leaf = match (served_leaf(address, config, limit).await, served_port) {
            (Ok(leaf), _) => leaf,
            (Err(_), Some(served)) => return Ok(served),
            (Err(error), None) => return Err(error),
        };
        let accepts = own.accepted_subjects();
        let is_answered = !accepts.is_empty();
        served_port = Some(ServedPort { leaf, accepts });
        if is_answered {
            break;
        }
    }
    served_port.ok_or(HandshakeError::Foreign(address))
}

/// Returns the certificate that a port showed.
async fn served_leaf(
    address: SocketAddr,
    config: ClientConfig,
    limit: Duration,
) -> Result<CertificateDer<'static>, HandshakeError> {
    let connector = TlsConnector::from(Arc::new(config));
    let handshake = async {
        let connection = TcpStream::connect(address).await;
        let stream = connection.map_err(|error| HandshakeError::Connect(address, error))?;
        let name = ServerName::IpAddress(address.ip().into());
        let handshake_error = |error: io::Error| {
            let tls_error = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
            let foreign = CertificateError::ApplicationVerificationFailure;
            match tls_error {
                Some(rustls::Error::InvalidCertificate(reason)) if *reason == foreign => {
                    HandshakeError::Foreign(address)
                }
                _ => HandshakeError::Tls(address, error),
            }
        };
        let mut stream = connector.connect(name, stream).await.map_err(handshake_error)?;
        let leaf = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let leaf = leaf.map(|leaf| leaf.clone().into_owned());
        // That the port hears the end is of no use to this side.
        drop(stream.shutdown().await);
        leaf.ok_or(HandshakeError::Foreign(address))
    };
    timeout(limit, handshake).await.unwrap_or(Err(HandshakeError::TimedOut(address, limit)))
}

#[cfg(test)]
mod tests;
