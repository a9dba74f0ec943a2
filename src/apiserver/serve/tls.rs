//! TLS of the listener. Client certificates are requested, never required, and not judged here:
//! two pools of CAs, reloaded while we run, judge them per request (see `authn`).

use std::sync::Arc;

use rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    SupportedCipherSuite,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime},
    server::{
        ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::{TLS12, TLS13},
};

use crate::apiserver::peer::check_length;

/// The protocols and cipher suites that the listener offers, as far as flags narrow them.
#[derive(Clone, Debug, Default)]
pub struct SecureServingOptions {
    pub oldest: TlsVersion,
    /// Cipher suites of TLS 1.2, all when empty. Those of TLS 1.3 are always offered, as by Go's
    /// servers.
    pub cipher_suites: Vec<CipherSuite>,
    pub only_http1: bool,
}

/// A version of TLS under kube-apiserver's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TlsVersion {
    #[default]
    #[value(name = "VersionTLS12")]
    Tls12,
    #[value(name = "VersionTLS13")]
    Tls13,
}

/// Returns the suite that Go's `crypto/tls` calls `name`. Fails for one that is not offered here.
pub fn cipher_suite(name: &str) -> Result<CipherSuite, String> {
    let suites = rustls::crypto::ring::default_provider().cipher_suites;
    let named_suites = suites.iter().map(|suite| (suite.suite(), name_of(suite.suite())));
    let mut names = Vec::new();
    for (suite, suite_name) in named_suites {
        if suite_name == name {
            return Ok(suite);
        }
        names.push(suite_name);
    }
    Err(format!("it is none of {}", names.join(", ")))
}

fn name_of(suite: CipherSuite) -> String {
    suite.as_str().unwrap_or_default().replace("TLS13_", "TLS_")
}

/// Makes the listener's configuration: TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1 or what `options`
/// leaves of them, certificates from `resolver`. Of what a client offers the server chooses as Go's
/// servers do, and so kube-apiserver: AES with 128 bits, which costs least.
pub fn server_config(
    resolver: Arc<dyn ResolvesServerCert>,
    options: &SecureServingOptions,
) -> Arc<rustls::ServerConfig> {
    let mut provider = rustls::crypto::ring::default_provider();
    // The sort is stable: other suites stay in the order of rustls.
    provider.cipher_suites.sort_by_key(|suite| !AES_128.contains(&suite.suite()));
    if !options.cipher_suites.is_empty() {
        let is_enabled = |suite: &SupportedCipherSuite| {
            suite.tls13().is_some() || options.cipher_suites.contains(&suite.suite())
        };
        provider.cipher_suites.retain(is_enabled);
    }
    let versions: &[_] = match options.oldest {
        TlsVersion::Tls12 => &[&TLS13, &TLS12],
        TlsVersion::Tls13 => &[&TLS13],
    };
    let provider = Arc::new(provider);
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .expect("suites of TLS 1.3 are always offered")
        .with_client_cert_verifier(Arc::new(PossessionVerifier(provider)))
        .with_cert_resolver(resolver);
    config.ignore_client_order = true;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    if options.only_http1 {
        config.alpn_protocols.remove(0);
    }
    Arc::new(config)
}

const AES_128: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
];

/// Checks that the client holds the key of the certificate that it shows, and that the chain is
/// not too long to be judged later; nothing else.
#[derive(Debug)]
struct PossessionVerifier(Arc<CryptoProvider>);

impl ClientCertVerifier for PossessionVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    // A list of CA names would have to follow both pools; a wrong one makes clients send nothing.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let chain: Vec<_> = std::iter::once(leaf).chain(intermediates).collect();
        check_length(chain.into_iter()).map_err(|error| Error::General(error.to_string()))?;
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
