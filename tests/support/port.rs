//! Ports for servers that are other programs.

use std::net::SocketAddr;

use tokio::net::TcpSocket;

/// A free port that no other process gets while this is held. A server can share it, because both
/// set SO_REUSEPORT.
pub(crate) struct Port {
    _held: TcpSocket,
    pub(crate) address: SocketAddr,
}

impl Port {
    pub(crate) fn reserve() -> Self {
        let held = TcpSocket::new_v4().unwrap();
        held.set_reuseport(true).unwrap();
        held.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = held.local_addr().unwrap();
        Self { _held: held, address }
    }
}
