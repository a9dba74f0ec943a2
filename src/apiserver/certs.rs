//! The serving certificate: where it comes from, and swapping it while we serve.
//!
//! By default it is our own: see [`issuer`]. Files can be given instead: see [`files`]. Until either
//! is there, a certificate made at start-up lets probes through; kube-apiserver does not accept
//! it, so nothing is proxied to us too early.

pub mod bundle;
pub mod files;
pub mod issuer;
pub mod rotator;

use std::sync::{Arc, PoisonError, RwLock};

use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::metrics::Metrics;

/// The serving certificate in use. New handshakes get a new one at once.
pub struct ServingCertificate {
    current: RwLock<Arc<CertifiedKey>>,
    metrics: Arc<Metrics>,
}

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificatePairError {
    #[error("the certificate is no PEM")]
    Certificate(#[source] rustls::pki_types::pem::Error),
    #[error("there is no certificate")]
    Empty,
    #[error("the key is no PEM")]
    Key(#[source] rustls::pki_types::pem::Error),
    #[error("certificate and key do not fit together")]
    Pair(#[source] rustls::Error),
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
    #[error("the certificate expired at {0}")]
    Expired(String),
}

impl ServingCertificate {
    /// Creates the resolver with a self-signed certificate that no client trusts.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        let (certificate, key) = issuer::self_signed();
        let current = parse_pair(certificate.as_bytes(), key.as_bytes())
            .expect("a certificate that was just made fits its key");
        Self { current: RwLock::new(Arc::new(current)), metrics }
    }

    /// Serves `certificate` and `key` (PEM) from now on. On an error the certificate in use stays.
    pub fn set_certificate(
        &self,
        certificate: &[u8],
        key: &[u8],
    ) -> Result<(), CertificatePairError> {
        let new_key = parse_pair(certificate, key)?;
        let not_after = expiry_time(&new_key.cert[0])?;
        if not_after <= jiff::Timestamp::now() {
            return Err(CertificatePairError::Expired(not_after.to_string()));
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new_key);
        self.metrics.certificate_expiry.set(not_after.as_second());
        Ok(())
    }
}

impl std::fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingCertificate").finish_non_exhaustive()
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn parse_pair(certificate: &[u8], key: &[u8]) -> Result<CertifiedKey, CertificatePairError> {
    let chain = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<Vec<_>, _>>()
        .map_err(CertificatePairError::Certificate)?;
    if chain.is_empty() {
        return Err(CertificatePairError::Empty);
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(CertificatePairError::Key)?;
    let provider = rustls::crypto::ring::default_provider();
    CertifiedKey::from_der(chain, key, &provider).map_err(CertificatePairError::Pair)
}

fn expiry_time(der: &CertificateDer<'_>) -> Result<jiff::Timestamp, CertificatePairError> {
    let unreadable = |text: String| CertificatePairError::Unreadable(text);
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|error| unreadable(error.to_string()))?;
    jiff::Timestamp::from_second(certificate.validity().not_after.timestamp())
        .map_err(|error| unreadable(error.to_string()))
}
