//! A node's request to have its key signed, and the proof by which a node that has a key on record
//! changes it.
//!
//! A request carries a key and nothing else that is read: who a certificate is for is not the
//! requester's to say.

use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::{CertificateParams, DistinguishedName};
use rustls::pki_types::{
    CertificateSigningRequestDer,
    pem::{PemObject, SectionKind},
};
use x509_parser::{
    certification_request::X509CertificationRequest,
    prelude::{FromDer, X509Certificate},
};

use super::{
    bundle,
    key::{KeyKind, PrivateKey},
};
use crate::machinery::x509::sha256_hex;

/// Most bytes of a request: one with the longest key takes a tenth.
const MAX_REQUEST_BYTES: usize = 16 * 1024;
/// Stands before what a proof signs, so that no signature made for another purpose is one.
const PROOF_CONTEXT: &[u8] = b"Key change, navigator.jetstack.io\n";
/// Most characters of a proof: a signature of the longest key, in base64.
const MAX_PROOF_CHARS: usize = 1024;

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefusal {
    #[error("the request is longer than {MAX_REQUEST_BYTES} bytes")]
    Long,
    #[error("the request is no certificate signing request in PEM")]
    Unreadable,
    #[error(
        "the request's key is of a kind that is not supported: P-256, P-384, or RSA of 2048 to 4096 bits"
    )]
    Key,
    #[error("the request is not signed by its own key")]
    Signature,
}

/// Why a proof does not let a key take the place of the one on record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofRefusal {
    #[error("the certificate by which the proof is checked cannot be read")]
    Certificate,
    #[error("the certificate by which the proof is checked is not of the key on record")]
    Record,
    #[error("the proof is not a signature by the key on record over the request")]
    Signature,
}

/// A request that was signed by the key in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRequest {
    der: CertificateSigningRequestDer<'static>,
    /// SubjectPublicKeyInfo.
    public_key: Vec<u8>,
}

impl KeyRequest {
    /// Makes a request for `key`, as PEM.
    ///
    /// # Errors
    /// When the key cannot sign.
    pub fn create(key: &PrivateKey) -> Result<String, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.serialize_request(key.key_pair())?.pem()
    }

    /// Reads a request, and checks that its key is of an accepted kind and signed it.
    ///
    /// # Errors
    /// See [`RequestRefusal`].
    pub fn from_pem(pem: &str) -> Result<Self, RequestRefusal> {
        if pem.len() > MAX_REQUEST_BYTES {
            return Err(RequestRefusal::Long);
        }
        let section = <(SectionKind, Vec<u8>)>::from_pem_slice(pem.as_bytes());
        let Ok((SectionKind::Csr, der)) = section else {
            return Err(RequestRefusal::Unreadable);
        };
        let Ok((&[], request)) = X509CertificationRequest::from_der(&der) else {
            return Err(RequestRefusal::Unreadable);
        };
        let key = &request.certification_request_info.subject_pki;
        if KeyKind::from_public_key(key).is_none() {
            return Err(RequestRefusal::Key);
        }
        request.verify_signature().map_err(|_| RequestRefusal::Signature)?;
        let public_key = key.raw.to_vec();
        Ok(Self { der: der.into(), public_key })
    }

    /// SHA-256 of the public key (SubjectPublicKeyInfo), in hexadecimal digits.
    pub fn key_sha256(&self) -> String {
        sha256_hex(&self.public_key)
    }

    /// The public key (SubjectPublicKeyInfo, DER).
    pub(super) fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    fn proof_message(&self) -> Vec<u8> {
        [PROOF_CONTEXT, &self.der].concat()
    }
}

/// Signs a request for a new key with the key that is on record, in base64.
///
/// # Errors
/// When the key cannot sign.
pub fn create_proof(
    recorded_key: &PrivateKey,
    request: &KeyRequest,
) -> Result<String, rcgen::Error> {
    recorded_key
        .sign_message(&request.proof_message())
        .map(|signature| BASE64_STANDARD.encode(signature))
}

/// Checks that the key on record signed the request. Of that key only the SHA-256 is on record, so
/// the key itself is taken from `certificate` (PEM), which was signed for it.
///
/// # Errors
/// See [`ProofRefusal`].
pub fn check_proof(
    proof: &str,
    request: &KeyRequest,
    recorded_sha256: &str,
    certificate: &str,
) -> Result<(), ProofRefusal> {
    let chain = bundle::parse_certificates(certificate.as_bytes())
        .map_err(|_| ProofRefusal::Certificate)?;
    let (_, certificate) =
        X509Certificate::from_der(&chain[0]).map_err(|_| ProofRefusal::Certificate)?;
    let key = certificate.public_key();
    if sha256_hex(key.raw) != recorded_sha256 {
        return Err(ProofRefusal::Record);
    }
    let kind = KeyKind::from_public_key(key).ok_or(ProofRefusal::Certificate)?;
    if proof.len() > MAX_PROOF_CHARS {
        return Err(ProofRefusal::Signature);
    }
    let signature = BASE64_STANDARD.decode(proof).map_err(|_| ProofRefusal::Signature)?;
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    let verification_algorithm = algorithms.all.iter().find(|algorithm| {
        (algorithm.public_key_alg_id(), algorithm.signature_alg_id()) == kind.algorithm_ids()
    });
    let verification_algorithm = verification_algorithm.ok_or(ProofRefusal::Signature)?;
    verification_algorithm
        .verify_signature(&key.subject_public_key.data, &request.proof_message(), &signature)
        .map_err(|_| ProofRefusal::Signature)
}
