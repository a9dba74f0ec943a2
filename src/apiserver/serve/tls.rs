//! TLS of the listener. Client certificates are requested, never required, and not judged here:
//! two pools of CAs, reloaded while we run, judge them per request (see `authn`).

use std::sync::Arc;

use rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime},
    server::{
        ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

/// TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1, certificates from `resolver`. Of what a client offers we
/// choose as Go's servers do, and so kube-apiserver: AES with 128 bits, which costs least.
pub fn server_config(resolver: Arc<dyn ResolvesServerCert>) -> Arc<rustls::ServerConfig> {
    let mut provider = rustls::crypto::ring::default_provider();
    // Stable: otherwise they stay in the order of rustls.
    provider.cipher_suites.sort_by_key(|suite| !AES_128.contains(&suite.suite()));
    let provider = Arc::new(provider);
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring serves TLS 1.2 and 1.3")
        .with_client_cert_verifier(Arc::new(RequestOnly(provider)))
        .with_cert_resolver(resolver);
    config.ignore_client_order = true;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

const AES_128: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
];

/// Checks that the client holds the key of the certificate that it shows, and nothing else.
#[derive(Debug)]
struct RequestOnly(Arc<CryptoProvider>);

impl ClientCertVerifier for RequestOnly {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    // A list of CA names would have to follow both pools; a wrong one makes clients send nothing.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
