//! Certificates as a node's database uses them: the files in which they lie, what a port shows of them
//! in a handshake, and whom the pilot's own clients accept by them.

mod client;
mod folder;
mod handshake;
#[cfg(test)]
pub(super) mod testing;

pub use self::{
    client::{PinnedLeaves, TlsClientError},
    folder::{FormerFiles, NodeCertificates, TLS_FOLDER, TlsFile, TlsFolder, TlsKeys},
    handshake::{HandshakeError, ServedPort, shake_hands},
};
