//! Bundles of CAs, as PEM: read, put together, and told apart by what they hold.

use rustls::pki_types::{
    CertificateDer,
    pem::{PemObject, SectionKind},
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{MAX_PEM_BYTES, der};
use crate::machinery::x509::{CertificateDetails, sha256_hex};

/// Most certificates of a bundle.
pub const MAX_CERTIFICATES: usize = 8;

/// Why a bundle cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleRefusal {
    #[error("is longer than {MAX_PEM_BYTES} bytes: store the certificates that are needed, as PEM")]
    Long,
    #[error("holds no certificate: store at least one, as PEM")]
    Empty,
    #[error("is no PEM that is whole: store the certificates once more")]
    Unreadable,
    #[error(
        "holds a certificate that cannot be read (number {0}): store it once more, or leave it out"
    )]
    Certificate(usize),
    #[error("holds {0} certificates: leave out all but {MAX_CERTIFICATES}")]
    Many(usize),
    #[error("holds a certificate that is not a CA ({0}): leave it out")]
    NotAuthority(String),
}

/// Reads all certificates in `pem`, in their order and each of them once.
pub(super) fn parse_certificates(
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, BundleRefusal> {
    if pem.len() > MAX_PEM_BYTES {
        return Err(BundleRefusal::Long);
    }
    let mut certificates: Vec<CertificateDer<'static>> = Vec::new();
    let mut number = 0;
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
        let (SectionKind::Certificate, bytes) = section.map_err(|_| BundleRefusal::Unreadable)?
        else {
            continue;
        };
        number += 1;
        let is_complete = X509Certificate::from_der(&bytes).is_ok_and(|(rest, _)| rest.is_empty());
        if !is_complete {
            return Err(BundleRefusal::Certificate(number));
        }
        let certificate = CertificateDer::from(bytes);
        if !certificates.contains(&certificate) {
            certificates.push(certificate);
        }
    }
    match certificates.len() {
        0 => Err(BundleRefusal::Empty),
        1..=MAX_CERTIFICATES => Ok(certificates),
        count => Err(BundleRefusal::Many(count)),
    }
}

/// CAs that are trusted, each of them once and in a kept order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustBundle(Vec<CertificateDer<'static>>);

impl TrustBundle {
    /// Reads a bundle of CAs.
    ///
    /// # Errors
    /// When it cannot be used, see [`BundleRefusal`].
    pub fn from_pem(pem: &[u8]) -> Result<Self, BundleRefusal> {
        let certificates = parse_certificates(pem)?;
        for der in &certificates {
            let certificate = parse_certificate(der);
            if let Some(certificate) = certificate.filter(|candidate| !is_authority(candidate)) {
                return Err(BundleRefusal::NotAuthority(certificate.subject().to_string()));
            }
        }
        Ok(Self(certificates))
    }

    /// Puts bundles together, the first certificates of all first, however many there are: to find
    /// one in them.
    pub fn union<'a>(bundles: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut merged_bundle = Self::default();
        for certificate in bundles.into_iter().flat_map(|bundle| &bundle.0) {
            if !merged_bundle.0.contains(certificate) {
                merged_bundle.0.push(certificate.clone());
            }
        }
        merged_bundle
    }

    /// Puts bundles together, for nodes to trust. What is beyond [`MAX_CERTIFICATES`] is refused.
    ///
    /// # Errors
    /// [`BundleRefusal::Many`].
    pub fn join<'a>(bundles: impl IntoIterator<Item = &'a Self>) -> Result<Self, BundleRefusal> {
        let merged_bundle = Self::union(bundles);
        if merged_bundle.0.len() > MAX_CERTIFICATES {
            return Err(BundleRefusal::Many(merged_bundle.0.len()));
        }
        Ok(merged_bundle)
    }

    /// SHA-256 of each certificate, in hexadecimal digits.
    pub fn sha256_digests(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|certificate| sha256_hex(certificate))
    }

    /// SHA-256 of the public key of each CA, in hexadecimal digits.
    pub fn key_sha256s(&self) -> Vec<String> {
        self.certificates().map(|ca| CertificateDetails::new(&ca).key_sha256).collect()
    }

    /// Returns the CAs of the bundle with these subjects (DER), by the SHA-256 of their keys.
    pub fn with_subjects(&self, subjects: &[Vec<u8>]) -> Vec<String> {
        let has_subject = |ca: &X509Certificate<'_>| {
            subjects.iter().any(|subject| subject.as_slice() == ca.subject().as_raw())
        };
        let matching_cas = self.certificates().filter(has_subject);
        matching_cas.map(|ca| CertificateDetails::new(&ca).key_sha256).collect()
    }

    /// Are these the subjects (DER) of the bundle's CAs, in any order?
    pub fn has_just_subjects(&self, subjects: &[Vec<u8>]) -> bool {
        let has_certificate = |subject: &Vec<u8>| {
            self.certificates().any(|ca| subject.as_slice() == ca.subject().as_raw())
        };
        subjects.iter().all(has_certificate) && self.with_subjects(subjects).len() == self.0.len()
    }

    /// Returns the certificates of the CA with this SHA-256 of its key.
    #[must_use]
    pub fn with_key(&self, key_sha256: &str) -> Self {
        let has_key = |der: &&CertificateDer<'static>| {
            parse_certificate(der)
                .is_some_and(|ca| CertificateDetails::new(&ca).key_sha256 == key_sha256)
        };
        Self(self.0.iter().filter(has_key).cloned().collect())
    }

    /// When the newest certificate of the bundle was made (Unix seconds).
    pub fn newest_issue_time(&self) -> Option<i64> {
        self.certificates().map(|ca| CertificateDetails::new(&ca).issue_time()).max()
    }

    pub fn to_pem(&self) -> String {
        self.0.iter().map(|certificate| der::certificate_pem(certificate)).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn certificates(&self) -> impl Iterator<Item = X509Certificate<'_>> {
        self.0.iter().filter_map(parse_certificate)
    }

    pub(super) fn from_certificate(certificate: CertificateDer<'static>) -> Self {
        Self(vec![certificate])
    }
}

/// A certificate that was read once can be read again.
pub(super) fn parse_certificate<'a>(der: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    X509Certificate::from_der(der).ok().map(|(_, certificate)| certificate)
}

/// Tells whether a certificate says that it may sign others.
pub(super) fn is_authority(certificate: &X509Certificate<'_>) -> bool {
    let usage = certificate.key_usage().ok().flatten();
    certificate.is_ca() && usage.is_none_or(|usage| usage.value.key_cert_sign())
}
