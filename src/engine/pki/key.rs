//! Private keys: made, and read in each form that others write.

use std::fmt;

use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData, SigningKey};
use rustls::pki_types::{
    AlgorithmIdentifier, PrivatePkcs8KeyDer, alg_id,
    pem::{PemObject, SectionKind},
};
use x509_parser::{
    oid_registry::{OID_EC_P256, OID_NIST_EC_P384},
    prelude::FromDer,
    public_key::PublicKey,
    x509::SubjectPublicKeyInfo,
};

use super::{MAX_PEM_BYTES, der};
use crate::machinery::x509::sha256_hex;

/// Bits that an RSA key may have: fewer are weak, and more cannot be signed with.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=4096;

/// Kind of a key that nodes and CAs may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    P256,
    P384,
    Rsa,
}

impl KeyKind {
    /// Returns the kind of a public key, or `None` when it is not accepted: Ed25519 needs Java 15,
    /// and weak keys are weak.
    pub(super) fn from_public_key(key: &SubjectPublicKeyInfo<'_>) -> Option<Self> {
        let curve = key.algorithm.parameters.as_ref().and_then(|curve| curve.as_oid().ok());
        match key.parsed().ok()? {
            PublicKey::EC(_) if curve == Some(OID_EC_P256) => Some(Self::P256),
            PublicKey::EC(_) if curve == Some(OID_NIST_EC_P384) => Some(Self::P384),
            PublicKey::RSA(rsa) => {
                let modulus = rsa.modulus.iter().skip_while(|byte| **byte == 0);
                let zeros = modulus.clone().next().map_or(0, |byte| byte.leading_zeros() as usize);
                let bits = modulus.count() * 8 - zeros;
                RSA_BITS.contains(&bits).then_some(Self::Rsa)
            }
            _ => None,
        }
    }

    /// By which algorithms a public key of this kind, and a signature that [`PrivateKey::sign_message`]
    /// makes with it, are told: (key, signature).
    pub(super) fn algorithm_ids(self) -> (AlgorithmIdentifier, AlgorithmIdentifier) {
        match self {
            Self::P256 => (alg_id::ECDSA_P256, alg_id::ECDSA_SHA256),
            Self::P384 => (alg_id::ECDSA_P384, alg_id::ECDSA_SHA384),
            Self::Rsa => (alg_id::RSA_ENCRYPTION, alg_id::RSA_PKCS1_SHA256),
        }
    }
}

/// Why a private key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrivateKeyRefusal {
    #[error("is longer than {MAX_PEM_BYTES} bytes: store one private key, as PEM")]
    Long,
    #[error("is encrypted: store the key without a password")]
    Encrypted,
    #[error("holds no private key: store one as PEM, whole (PKCS#8, PKCS#1 or SEC1)")]
    Unreadable,
    #[error("is of a kind that is not supported: take P-256, P-384, or RSA of 2048 to 4096 bits")]
    Unsupported,
}

/// A private key, of a kind that is accepted.
pub struct PrivateKey {
    pair: KeyPair,
    kind: KeyKind,
}

impl PrivateKey {
    /// Makes a key on the curve P-256.
    ///
    /// # Errors
    /// When the system gives no random numbers.
    pub fn generate() -> Result<Self, rcgen::Error> {
        Ok(Self { pair: KeyPair::generate()?, kind: KeyKind::P256 })
    }

    /// Reads the first private key in `pem`.
    ///
    /// # Errors
    /// When there is none that can be used, see [`PrivateKeyRefusal`].
    pub fn from_pem(pem: &[u8]) -> Result<Self, PrivateKeyRefusal> {
        const ENCRYPTED: &[u8] = b"ENCRYPTED";
        if pem.len() > MAX_PEM_BYTES {
            return Err(PrivateKeyRefusal::Long);
        }
        // Stands in the label of such a key in PKCS#8, and in the header of one in an older form.
        if pem.windows(ENCRYPTED.len()).any(|part| part == ENCRYPTED) {
            return Err(PrivateKeyRefusal::Encrypted);
        }
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
            let (form, bytes) = section.map_err(|_| PrivateKeyRefusal::Unreadable)?;
            let candidates = match form {
                SectionKind::PrivateKey => vec![bytes],
                SectionKind::RsaPrivateKey => vec![der::wrap_rsa(&bytes)],
                SectionKind::EcPrivateKey => der::wrap_ec(&bytes).to_vec(),
                _ => continue,
            };
            let parse_pair =
                |bytes: Vec<u8>| KeyPair::try_from(&PrivatePkcs8KeyDer::from(bytes)).ok();
            let pair = candidates.into_iter().find_map(parse_pair);
            return pair.and_then(Self::new).ok_or(PrivateKeyRefusal::Unsupported);
        }
        Err(PrivateKeyRefusal::Unreadable)
    }

    fn new(pair: KeyPair) -> Option<Self> {
        if pair.algorithm() == &PKCS_ED25519 {
            return None;
        }
        let public_der = pair.subject_public_key_info();
        let (_, public_key) = SubjectPublicKeyInfo::from_der(&public_der).ok()?;
        let kind = KeyKind::from_public_key(&public_key)?;
        Some(Self { pair, kind })
    }

    /// Writes the key as PEM, in PKCS#8.
    pub fn to_pem(&self) -> String {
        self.pair.serialize_pem()
    }

    pub fn kind(&self) -> KeyKind {
        self.kind
    }

    /// SHA-256 of the public key (SubjectPublicKeyInfo), in hexadecimal digits.
    pub fn public_key_sha256(&self) -> String {
        sha256_hex(&self.pair.subject_public_key_info())
    }

    pub(super) fn key_pair(&self) -> &KeyPair {
        &self.pair
    }

    pub(super) fn sign_message(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.pair.sign(message)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pair: _, kind } = self;
        f.debug_struct("PrivateKey").field("kind", kind).finish_non_exhaustive()
    }
}
