//! The node's private key: made once, kept on the data volume for the node's life, and never written
//! over.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    sync::Arc,
};

use tracing::warn;

use crate::{
    engine::{
        pki::{KeyRequest, PrivateKey, PrivateKeyRefusal},
        users::{CLIENT_KEY, MAX_BYTES},
    },
    error::chain,
    pilot::{
        tls::{NodeCertificates, PinnedLeaves, TlsKeys},
        volume::pilot_files::PilotFiles,
    },
};

/// Why a node has no key.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeKeyError {
    #[error("failed to read the node's private key on its volume")]
    Read(#[source] io::Error),
    #[error(
        "the file .navigator/tls/node.key on the volume {0}. It is not written over: put it back, or \
         take it away, and have the key accepted that is made in its place"
    )]
    Damaged(PrivateKeyRefusal),
    #[error("failed to make a private key")]
    Make(#[source] rcgen::Error),
    #[error("failed to write the node's private key to its volume")]
    Write(#[source] io::Error),
}

/// The node's key, and the request to have it signed. The request is made once for each key that is
/// read, since every signature is another text.
#[derive(Debug)]
pub(super) struct NodeKey {
    pub(super) key: PrivateKey,
    pub(super) request: String,
}

/// The private keys of a node's certificates.
#[derive(Clone, Debug)]
pub(super) struct NodeKeys {
    pub(super) own: Arc<NodeKey>,
    /// That of a certificate for clients that was given for all nodes.
    pub(super) mounted: Option<Arc<PrivateKey>>,
}

impl NodeKeys {
    /// Has the pilot's own clients show the certificate that nodes show each other, where they are asked
    /// for one.
    pub(super) fn show(&self, pins: &PinnedLeaves, certificates: &NodeCertificates) {
        let Some(one) = &certificates.internode else { return };
        if let Err(error) = pins.show((&one.chain, &self.own.key.to_pem())) {
            warn!(error = %chain(&error), "The node's certificate cannot be shown");
        }
    }

    /// Returns the keys of these certificates, as a database reads them.
    pub(super) fn of(&self, certificates: &NodeCertificates) -> TlsKeys {
        let node = self.own.key.to_pem();
        let is_mounted = certificates.client.as_ref().is_some_and(|one| one.mounted_key.is_some());
        let mounted = self.mounted.as_ref().filter(|_| is_mounted).map(|key| key.to_pem());
        TlsKeys { client: mounted.unwrap_or_else(|| node.clone()), node }
    }
}

/// Reads the mounted private key of a certificate that was given for all nodes; `None` while there is
/// none that can be used. For a caller that may block.
pub(super) fn mounted(folder: &Path) -> Option<PrivateKey> {
    let file = File::open(folder.join(CLIENT_KEY)).ok()?;
    let mut pem = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut pem).ok()?;
    PrivateKey::read(&pem).ok()
}

impl NodeKey {
    /// Reads the node's key, and makes it where there is none.
    pub(super) fn ensure(files: &PilotFiles) -> Result<Self, NodeKeyError> {
        let key = if let Some(pem) = files.node_key().map_err(NodeKeyError::Read)? {
            PrivateKey::read(&pem).map_err(NodeKeyError::Damaged)?
        } else {
            let key = PrivateKey::generate().map_err(NodeKeyError::Make)?;
            files.set_node_key(&key.to_pem()).map_err(NodeKeyError::Write)?;
            key
        };
        let request = KeyRequest::create(&key).map_err(NodeKeyError::Make)?;
        Ok(Self { key, request })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_one_that_is_damaged_is_left_alone() {
        let data = tempfile::tempdir().unwrap();
        let files = PilotFiles::of(data.path());
        let made = NodeKey::ensure(&files).unwrap();
        let read = NodeKey::ensure(&files).unwrap();
        assert_eq!(made.key.sha256(), read.key.sha256());
        assert_eq!(KeyRequest::read(&read.request).unwrap().key_sha256(), made.key.sha256());
        for damaged in ["", "-----BEGIN PRIVATE KEY-----\nAAAA"] {
            files.set_node_key(damaged).unwrap();
            assert!(matches!(NodeKey::ensure(&files), Err(NodeKeyError::Damaged(_))));
            assert_eq!(files.node_key().unwrap().unwrap(), damaged.as_bytes());
        }
    }
}
