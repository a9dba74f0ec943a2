//! Whom the pilot's own clients accept: the node itself by the very certificates that this pilot
//! installed, and, where they ask other nodes too, those by their CA and address.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DEFAULT_VERSIONS, DigitallySignedStruct,
    RootCertStore, SignatureScheme, SupportedProtocolVersion,
    client::{
        ResolvesClientCert, Resumption, WantsClientCert, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    sign::CertifiedKey,
};

use super::NodeCertificates;

/// Why the pilot has no client that speaks TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsClientError {
    #[error("the node's own certificate or key is no PEM")]
    Shown(#[source] rustls::pki_types::pem::Error),
    #[error("TLS cannot be spoken with the node's own certificate")]
    Config(#[source] rustls::Error),
}

/// The certificates that are accepted from a server, whatever their names, dates and CAs: those that
/// this pilot installed. Clones share them.
#[derive(Clone)]
pub struct PinnedLeaves {
    accepted: Arc<RwLock<AcceptedServers>>,
    /// What the pilot's clients show where they are asked.
    shown: Arc<RwLock<Option<Arc<CertifiedKey>>>>,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug, Default)]
struct AcceptedServers {
    leaves: Vec<CertificateDer<'static>>,
    /// Judges the certificates of other nodes.
    others: Option<Arc<WebPkiServerVerifier>>,
}

impl Default for PinnedLeaves {
    /// Accepts nothing.
    fn default() -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Self { accepted: Arc::default(), shown: Arc::default(), provider }
    }
}

impl fmt::Debug for PinnedLeaves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { accepted, shown: _, provider: _ } = self;
        let count = accepted.read().unwrap_or_else(PoisonError::into_inner).leaves.len();
        f.debug_struct("PinnedLeaves").field("count", &count).finish_non_exhaustive()
    }
}

impl PinnedLeaves {
    /// Accepts these certificates from now on, and no others. No other node is accepted.
    pub fn set_leaves(&self, leaves: impl IntoIterator<Item = CertificateDer<'static>>) {
        self.set_accepted(AcceptedServers { leaves: leaves.into_iter().collect(), others: None });
    }

    /// Accepts what these ports show from now on; of other nodes, what comes from the CAs of clients
    /// that stand in the first ones.
    pub fn set_installed<'a>(
        &self,
        installed: impl IntoIterator<Item = &'a NodeCertificates> + Clone,
    ) {
        let first = installed.clone().into_iter().next();
        let trust = first.and_then(|first| first.client.as_ref()).map(|client| &client.trust);
        let peer_verifier = trust.and_then(|trust| {
            let mut roots = RootCertStore::empty();
            let certificates = CertificateDer::pem_slice_iter(trust.as_bytes());
            roots.add_parsable_certificates(certificates.filter_map(Result::ok));
            // Fails without a CA.
            let verifier =
                WebPkiServerVerifier::builder_with_provider(roots.into(), self.provider.clone());
            verifier.build().ok()
        });
        let leaves = installed.into_iter().flat_map(NodeCertificates::leaves).collect();
        self.set_accepted(AcceptedServers { leaves, others: peer_verifier });
    }

    /// Shows chain and key (PEM) from now on where a server asks its clients for a certificate.
    ///
    /// # Errors
    /// When they cannot be used.
    pub fn set_client_certificate(
        &self,
        chain_and_key: (&str, &str),
    ) -> Result<(), TlsClientError> {
        let certified_key = Arc::new(self.build_certified_key(chain_and_key)?);
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = Some(certified_key);
        Ok(())
    }

    fn build_certified_key(
        &self,
        (chain, key): (&str, &str),
    ) -> Result<CertifiedKey, TlsClientError> {
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(TlsClientError::Shown)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(TlsClientError::Shown)?;
        let key = self.provider.key_provider.load_private_key(key);
        Ok(CertifiedKey::new(chain, key.map_err(TlsClientError::Config)?))
    }

    fn set_accepted(&self, servers: AcceptedServers) {
        *self.accepted.write().unwrap_or_else(PoisonError::into_inner) = servers;
    }

    fn is_accepted(&self, leaf: &CertificateDer<'_>) -> bool {
        self.accepted.read().unwrap_or_else(PoisonError::into_inner).leaves.contains(leaf)
    }

    fn peer_verifier(&self) -> Option<Arc<WebPkiServerVerifier>> {
        self.accepted.read().unwrap_or_else(PoisonError::into_inner).others.clone()
    }

    /// Returns the settings of a client that accepts these certificates, as they are at each
    /// handshake, and shows what [`Self::set_client_certificate`] was given, where it is asked.
    ///
    /// # Errors
    /// When the versions of TLS are not to be had.
    pub fn client_config(&self) -> Result<ClientConfig, TlsClientError> {
        let builder = self.config_builder(OwnNode(self.clone()), DEFAULT_VERSIONS)?;
        Ok(disable_resumption(builder.with_client_cert_resolver(Arc::new(AsNode(self.clone())))))
    }

    /// Returns the settings of a client that asks other nodes too, and accepts of them what their CA
    /// signed for the address at which they are asked.
    ///
    /// # Errors
    /// When the versions of TLS are not to be had.
    pub fn client_config_for_all_nodes(&self) -> Result<ClientConfig, TlsClientError> {
        let builder = self.config_builder(AllNodes(OwnNode(self.clone())), DEFAULT_VERSIONS)?;
        Ok(disable_resumption(builder.with_client_cert_resolver(Arc::new(AsNode(self.clone())))))
    }

    /// Returns the settings for one handshake in which this side shows chain and key (PEM) where it is
    /// asked to, and hears who accepts them.
    pub(super) fn node_config(
        &self,
        chain_and_key: (&str, &str),
        versions: &[&'static SupportedProtocolVersion],
    ) -> Result<(ClientConfig, Arc<OwnCertificate>), TlsClientError> {
        let own_certificate = Arc::new(OwnCertificate {
            shown: Arc::new(self.build_certified_key(chain_and_key)?),
            accepted: Mutex::default(),
        });
        let builder = self.config_builder(OwnNode(self.clone()), versions)?;
        Ok((
            disable_resumption(builder.with_client_cert_resolver(own_certificate.clone())),
            own_certificate,
        ))
    }

    fn config_builder(
        &self,
        verifier: impl ServerCertVerifier + 'static,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, TlsClientError> {
        let config = ClientConfig::builder_with_provider(self.provider.clone());
        let config = config.with_protocol_versions(versions).map_err(TlsClientError::Config)?;
        Ok(config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
    }
}

/// A session that goes on shows no certificate, so each begins anew.
fn disable_resumption(mut config: ClientConfig) -> ClientConfig {
    config.resumption = Resumption::disabled();
    config
}

/// Shows the node's own certificate, as it is at each handshake.
#[derive(Debug)]
struct AsNode(PinnedLeaves);

impl ResolvesClientCert for AsNode {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _sigschemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.0.shown.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn has_certs(&self) -> bool {
        self.0.shown.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// What this side shows of itself, and whose certificates the server said to accept.
#[derive(Debug)]
pub(super) struct OwnCertificate {
    shown: Arc<CertifiedKey>,
    /// Subjects of CAs, as DER.
    accepted: Mutex<Vec<Vec<u8>>>,
}

impl OwnCertificate {
    /// Subjects (DER) of the CAs whose certificates the server accepts; none where it did not say.
    pub(super) fn accepted_subjects(&self) -> Vec<Vec<u8>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ResolvesClientCert for OwnCertificate {
    fn resolve(
        &self,
        root_hint_subjects: &[&[u8]],
        _sigschemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        *self.accepted.lock().unwrap_or_else(PoisonError::into_inner) =
            root_hint_subjects.iter().map(|subject| subject.to_vec()).collect();
        Some(self.shown.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Accepts the node by its certificate itself.
#[derive(Debug)]
struct OwnNode(PinnedLeaves);

impl ServerCertVerifier for OwnNode {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.0.is_accepted(leaf) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.provider.signature_verification_algorithms;
        verify_tls12_signature(message, leaf, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.provider.signature_verification_algorithms;
        verify_tls13_signature(message, leaf, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Accepts the node by its certificate itself, and other nodes by their CA and address.
#[derive(Debug)]
struct AllNodes(OwnNode);

impl ServerCertVerifier for AllNodes {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Self(own_node) = self;
        match own_node.0.peer_verifier() {
            Some(verifier) if !own_node.0.is_accepted(leaf) => {
                verifier.verify_server_cert(leaf, intermediates, server_name, ocsp_response, now)
            }
            _ => own_node.verify_server_cert(leaf, intermediates, server_name, ocsp_response, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, leaf, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, leaf, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use jiff::Timestamp;
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::{
        api::v1beta1::NodeCertificate,
        engine::pki::{CertificateAuthority, PrivateKey},
        pilot::tls::testing::TlsServer,
    };

    fn certificates(chain: &str, ca: &CertificateAuthority) -> NodeCertificates {
        let client = NodeCertificate {
            chain: chain.to_owned(),
            trust: ca.trust_bundle().to_pem(),
            ..NodeCertificate::default()
        };
        NodeCertificates { internode: None, client: Some(client) }
    }

    async fn accepts(config: ClientConfig, at: SocketAddr, named: &str) -> bool {
        let stream = TcpStream::connect(at).await.unwrap();
        let name = ServerName::from(named.parse::<IpAddr>().unwrap());
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.is_ok()
    }

    #[tokio::test]
    async fn other_nodes_are_known_by_their_ca_and_address_and_the_own_one_by_its_certificate() {
        let authority = |name| CertificateAuthority::create(name, Timestamp::now()).unwrap();
        let (ca, foreign) = (authority("CA"), authority("foreign"));
        let key = PrivateKey::generate().unwrap();
        let (own, other) = (
            TlsServer::start(&ca, &key, false).await,
            TlsServer::start(&ca, &PrivateKey::generate().unwrap(), false).await,
        );
        let stranger = TlsServer::start(&foreign, &key, false).await;
        let pins = PinnedLeaves::default();
        let all = || pins.client_config_for_all_nodes().unwrap();
        let alone = || pins.client_config().unwrap();
        assert!(!accepts(all(), own.address, "127.0.0.1").await, "nothing is installed");
        pins.set_installed([&certificates(&own.chain, &ca)]);
        for name in ["127.0.0.1", "10.0.0.9"] {
            assert!(accepts(all(), own.address, name).await, "{name}");
            assert!(accepts(alone(), own.address, name).await, "{name}");
        }
        assert!(accepts(all(), other.address, "127.0.0.1").await);
        assert!(!accepts(all(), other.address, "10.0.0.9").await, "it is not for that address");
        assert!(!accepts(alone(), other.address, "127.0.0.1").await);
        assert!(!accepts(all(), stranger.address, "127.0.0.1").await);
        // The former certificate of this node may be of a CA that is gone.
        let former = certificates(&stranger.chain, &foreign);
        pins.set_installed([&certificates(&own.chain, &ca), &former]);
        assert!(accepts(all(), stranger.address, "127.0.0.1").await);
        pins.set_leaves([own.leaf()]);
        assert!(!accepts(all(), other.address, "127.0.0.1").await);
    }
}
