//! Who sends a request, as far as its connection tells.

use std::{net::SocketAddr, sync::Arc};

use rustls::pki_types::CertificateDer;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    /// What the client presented in the handshake, leaf first. Only its possession of the leaf's
    /// key has been checked: nobody has looked at the chain yet.
    pub certificates: Arc<[CertificateDer<'static>]>,
}
