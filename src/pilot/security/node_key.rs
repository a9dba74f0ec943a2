//! The node's private key. It is made once, kept on the data volume, and replaced only where the
//! controller asks for that.
//!
//! A new key lies beside the former one until certificates of it are in use: the controller signs it
//! because the former one proves it. Which of the two is the node's follows from the key on record in
//! the Pilot's spec, so a pilot that ends at any moment goes on where it was.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tracing::warn;

use crate::{
    api::v1beta1::{NewKeyRequest, NodeCertificate},
    engine::{
        pki::{KeyRequest, PrivateKey, PrivateKeyRefusal, RequestRefusal, create_proof},
        users::{CLIENT_KEY, MAX_BYTES},
    },
    error::chain,
    machinery::x509::CertificateDetails,
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
    #[error("failed to read a request that was just made")]
    Request(#[source] RequestRefusal),
}

/// The node's key, and the request to have it signed. The request is made once for each key that is
/// read, since every signature is another text.
#[derive(Debug)]
pub(super) struct NodeKey {
    pub(super) key: PrivateKey,
    pub(super) request: String,
}

/// A key that is to take the place of the node's, for a request of the controller.
#[derive(Debug)]
pub(super) struct NextKey {
    pub(super) own: Arc<NodeKey>,
    /// The time in the request for which it was made.
    asked_at: Time,
    /// Signature of the key that it replaces.
    proof: String,
}

/// The private keys of a node's certificates.
#[derive(Clone, Debug)]
pub(super) struct NodeKeys {
    pub(super) own: Arc<NodeKey>,
    /// The key before that, until certificates of the new one are in use.
    pub(super) former: Option<Arc<NodeKey>>,
    /// That of a certificate for clients that was given for all nodes.
    pub(super) mounted: Option<Arc<PrivateKey>>,
}

impl NodeKeys {
    /// Has the pilot's own clients show the certificate that nodes show each other, where they are asked
    /// for one.
    pub(super) fn present_certificate(&self, pins: &PinnedLeaves, certificates: &NodeCertificates) {
        let Some(certificate) = &certificates.internode else { return };
        if let Err(error) =
            pins.set_client_certificate((&certificate.chain, &self.node_key(certificates).to_pem()))
        {
            warn!(error = %chain(&error), "The node's certificate cannot be shown");
        }
    }

    /// Returns the node's key of which these certificates are.
    pub(super) fn node_key(&self, certificates: &NodeCertificates) -> &PrivateKey {
        let former_key = self.former.as_ref().map(|former| &former.key);
        let is_used = |key: &&PrivateKey| {
            let sha256 = key.public_key_sha256();
            own_leaves(certificates).any(|leaf| leaf.key_sha256 == sha256)
        };
        former_key.filter(is_used).unwrap_or(&self.own.key)
    }

    /// Are all of these certificates of the node's newest key, or given with a key of theirs?
    pub(super) fn are_newest(&self, certificates: &NodeCertificates) -> bool {
        let newest = self.own.key.public_key_sha256();
        own_leaves(certificates).all(|leaf| leaf.key_sha256 == newest)
    }

    /// Returns the keys of these certificates, as a database reads them.
    pub(super) fn tls_keys(&self, certificates: &NodeCertificates) -> TlsKeys {
        let node = self.node_key(certificates).to_pem();
        let is_mounted = certificates
            .client
            .as_ref()
            .is_some_and(|certificate| certificate.mounted_key.is_some());
        let mounted = self.mounted.as_ref().filter(|_| is_mounted).map(|key| key.to_pem());
        TlsKeys { client: mounted.unwrap_or_else(|| node.clone()), node }
    }
}

/// Returns the certificates that are of a key of the node.
fn own_leaves(certificates: &NodeCertificates) -> impl Iterator<Item = CertificateDetails> {
    let NodeCertificates { internode, client } = certificates;
    let is_own = |certificate: &&NodeCertificate| certificate.mounted_key.is_none();
    let own_certificates = [internode, client].into_iter().flatten().filter(is_own);
    own_certificates.filter_map(|certificate| CertificateDetails::from_pem(&certificate.chain))
}

/// Reads the mounted private key of a certificate that was given for all nodes; `None` while there is
/// none that can be used. For a caller that may block.
pub(super) fn read_mounted_key(folder: &Path) -> Option<PrivateKey> {
    let file = File::open(folder.join(CLIENT_KEY)).ok()?;
    let mut pem = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut pem).ok()?;
    PrivateKey::from_pem(&pem).ok()
}

impl NodeKey {
    /// Reads the node's key, and makes it where there is none.
    pub(super) fn ensure(files: &PilotFiles) -> Result<Self, NodeKeyError> {
        let key = if let Some(pem) = files.node_key().map_err(NodeKeyError::Read)? {
            PrivateKey::from_pem(&pem).map_err(NodeKeyError::Damaged)?
        } else {
            let key = PrivateKey::generate().map_err(NodeKeyError::Make)?;
            files.set_node_key(&key.to_pem()).map_err(NodeKeyError::Write)?;
            key
        };
        Self::new(key)
    }

    fn new(key: PrivateKey) -> Result<Self, NodeKeyError> {
        let request = KeyRequest::create(&key).map_err(NodeKeyError::Make)?;
        Ok(Self { key, request })
    }
}

impl NextKey {
    /// Reads the key that is to take the place of `on_record`; `None` where there is none that can be
    /// used.
    pub(super) fn read(
        files: &PilotFiles,
        on_record: &NodeKey,
    ) -> Result<Option<Self>, NodeKeyError> {
        let Some(text) = files.next_key().map_err(NodeKeyError::Read)? else { return Ok(None) };
        let asked_at =
            std::str::from_utf8(&text).ok().and_then(|text| text.lines().next()?.parse().ok());
        let (Some(asked_at), Ok(key)) = (asked_at, PrivateKey::from_pem(&text)) else {
            return Ok(None);
        };
        Self::new(key, Time(asked_at), on_record).map(Some)
    }

    /// Makes a key that is to take the place of `on_record`, which was asked for at this time.
    pub(super) fn generate(
        files: &PilotFiles,
        on_record: &NodeKey,
        asked_at: &Time,
    ) -> Result<Self, NodeKeyError> {
        let key = PrivateKey::generate().map_err(NodeKeyError::Make)?;
        // What stands before the key is no part of it.
        let text = format!("{}\n{}", asked_at.0, key.to_pem());
        files.set_next_key(&text).map_err(NodeKeyError::Write)?;
        Self::new(key, asked_at.clone(), on_record)
    }

    fn new(key: PrivateKey, asked_at: Time, on_record: &NodeKey) -> Result<Self, NodeKeyError> {
        let node_key = NodeKey::new(key)?;
        let request = KeyRequest::from_pem(&node_key.request).map_err(NodeKeyError::Request)?;
        let proof = create_proof(&on_record.key, &request).map_err(NodeKeyError::Make)?;
        Ok(Self { own: Arc::new(node_key), asked_at, proof })
    }

    /// Was it made for this request?
    pub(super) fn is_for(&self, asked_at: &Time) -> bool {
        self.asked_at == *asked_at
    }

    pub(super) fn build_request(&self) -> NewKeyRequest {
        let Self { own, asked_at, proof } = self;
        NewKeyRequest {
            csr: own.request.clone(),
            proof: proof.clone(),
            asked_at: Some(asked_at.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_one_that_is_damaged_is_left_alone() {
        let data = tempfile::tempdir().unwrap();
        let files = PilotFiles::for_directory(data.path());
        let made = NodeKey::ensure(&files).unwrap();
        let read = NodeKey::ensure(&files).unwrap();
        assert_eq!(made.key.public_key_sha256(), read.key.public_key_sha256());
        assert_eq!(
            KeyRequest::from_pem(&read.request).unwrap().key_sha256(),
            made.key.public_key_sha256()
        );
        for damaged in ["", "-----BEGIN PRIVATE KEY-----\nAAAA"] {
            files.set_node_key(damaged).unwrap();
            assert!(matches!(NodeKey::ensure(&files), Err(NodeKeyError::Damaged(_))));
            assert_eq!(files.node_key().unwrap().unwrap(), damaged.as_bytes());
        }
    }
}
