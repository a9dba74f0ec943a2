//! CAs, and certificates that people bring: made, renewed, and read from what lies in a Secret.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use rcgen::{Issuer, KeyPair};
use rustls::pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, x509::RelativeDistinguishedName};

use super::{
    bundle::{self, BundleRefusal, TrustBundle, parse_certificate},
    der,
    key::{KeyKind, PrivateKey, PrivateKeyRefusal},
};
use crate::machinery::x509::{self, CertificateDetails};

/// Life of a CA that we make.
const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// What is given must live for longer than this, in seconds, or it ends before it is spread.
const SHORTEST_REST: i64 = 24 * 3600;

/// Why a CA, or a certificate that was given, cannot be used: one sentence that names the key of the
/// Secret, what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityRefusal {
    #[error("tls.crt is missing: store the certificate there, as PEM")]
    CertificateMissing,
    #[error("tls.key is missing: store the certificate's private key there, as PEM")]
    KeyMissing,
    #[error("tls.crt {0}")]
    Certificate(BundleRefusal),
    #[error("tls.key {0}")]
    Key(PrivateKeyRefusal),
    #[error(
        "tls.key is not the key of the first certificate in tls.crt: store the two that belong together"
    )]
    Mismatch,
    #[error("tls.crt expired at {0}: store a renewed certificate")]
    Expired(Timestamp),
    #[error(
        "tls.crt is not valid before {0}: wait, set the clocks right, or store a certificate that is valid now"
    )]
    NotYetValid(Timestamp),
    #[error("tls.crt ends at {0}, within a day: store a renewed certificate")]
    EndsSoon(Timestamp),
    #[error(
        "the first certificate in tls.crt is not a CA: store one with CA:TRUE that may sign certificates"
    )]
    NotAuthority,
    #[error(
        "the CA in tls.crt may not sign for servers and clients (extendedKeyUsage): store one that may"
    )]
    Usage,
    #[error(
        "the subject of the CA in tls.crt cannot be written into certificates: store a CA with a plain one, such as CN=NAME"
    )]
    Subject,
}

/// A CA with its key.
pub struct CertificateAuthority(GivenCertificate);

impl CertificateAuthority {
    /// Makes a CA with a key of its own.
    ///
    /// # Errors
    /// When the system gives no random numbers.
    pub fn create(common_name: &str, now: Timestamp) -> Result<Self, rcgen::Error> {
        Self::self_signed(common_name, PrivateKey::generate()?, now)
    }

    /// Makes the CA anew with its key and its common name, so that what it signed stays good and
    /// copies of the older certificate in clients' hands do, too.
    ///
    /// # Errors
    /// When the key cannot be used.
    pub fn renew(&self, now: Timestamp) -> Result<Self, rcgen::Error> {
        let key = PrivateKey::from_pem(self.0.key.to_pem().as_bytes());
        let key = key.map_err(|_| rcgen::Error::CouldNotParseKeyPair)?;
        let name = self.parse_certificate().and_then(|certificate| {
            let name = certificate.subject().iter_common_name().next()?;
            name.as_str().ok().map(str::to_owned)
        });
        let name = name.ok_or(rcgen::Error::CouldNotParseCertificate)?;
        Self::self_signed(&name, key, now)
    }

    /// Is this CA called as `other` is?
    pub fn has_name_of(&self, other: &Self) -> bool {
        let name = |ca: &Self| {
            ca.parse_certificate().map(|certificate| certificate.subject().as_raw().to_vec())
        };
        name(self) == name(other)
    }

    fn self_signed(name: &str, key: PrivateKey, now: Timestamp) -> Result<Self, rcgen::Error> {
        let params = x509::ca_params(name, now.as_second(), AUTHORITY_LIFE);
        let certificate = params.self_signed(key.key_pair())?;
        Ok(Self(GivenCertificate { chain: vec![certificate.der().clone()], key }))
    }

    /// Reads a CA from the values `tls.crt` and `tls.key` of a Secret.
    ///
    /// # Errors
    /// When it cannot sign anything that lasts, see [`AuthorityRefusal`].
    pub fn from_pem(
        certificate: Option<&[u8]>,
        key: Option<&[u8]>,
        now: Timestamp,
    ) -> Result<Self, AuthorityRefusal> {
        let authority = Self(GivenCertificate::from_pem(certificate, key, now)?);
        let certificate = authority.parse_certificate().ok_or(AuthorityRefusal::NotAuthority)?;
        if !bundle::is_authority(&certificate) {
            return Err(AuthorityRefusal::NotAuthority);
        }
        let usage = certificate.extended_key_usage().ok().flatten();
        let can_sign_all = usage.is_none_or(|usage| {
            usage.value.any || usage.value.server_auth && usage.value.client_auth
        });
        if !can_sign_all {
            return Err(AuthorityRefusal::Usage);
        }
        if !authority.can_encode_name(&certificate) {
            return Err(AuthorityRefusal::Subject);
        }
        Ok(authority)
    }

    /// A name that comes out otherwise in what the CA signs would lead no client to the CA, so it is
    /// tried once: with several values in one part, say, it cannot be written. What would make the
    /// writer panic is sorted out before: no value in a part, and a type that is no object identifier
    /// (X.660 has the roots 0, 1 and 2).
    fn can_encode_name(&self, certificate: &X509Certificate<'_>) -> bool {
        let mut parts = certificate.subject().iter().peekable();
        let can_be_written = |part: &RelativeDistinguishedName<'_>| {
            let mut roots = part.iter().map(|value| value.attr_type().iter()?.next());
            matches!((roots.next(), roots.next()), (Some(Some(0..=2)), None))
        };
        if parts.peek().is_none() || !parts.all(can_be_written) {
            return false;
        }
        let trial_leaf = self.issuer().and_then(|issuer| {
            x509::leaf_params("trial", &[], 0, Duration::ZERO)
                .signed_by(self.0.key.key_pair(), &issuer)
        });
        trial_leaf.is_ok_and(|trial| {
            parse_certificate(trial.der())
                .is_some_and(|leaf| leaf.issuer().as_raw() == certificate.subject().as_raw())
        })
    }

    pub(super) fn issuer(&self) -> Result<Issuer<'static, &KeyPair>, rcgen::Error> {
        Issuer::from_ca_cert_der(&self.0.chain[0], self.0.key.key_pair())
    }

    fn parse_certificate(&self) -> Option<X509Certificate<'_>> {
        parse_certificate(&self.0.chain[0])
    }

    /// The CA's own certificate, by which it is trusted.
    pub fn trust_bundle(&self) -> TrustBundle {
        TrustBundle::from_certificate(self.0.chain[0].clone())
    }

    /// The CA's certificate and those that follow it in its Secret, as PEM.
    pub fn chain_pem(&self) -> String {
        self.0.chain_pem()
    }

    /// What a leaf must bring beside itself to lead to a root: nothing, where the CA is one.
    pub(super) fn intermediates_pem(&self) -> String {
        let intermediates = self.0.chain.iter().filter(|der| {
            parse_certificate(der).is_some_and(|certificate| {
                certificate.issuer().as_raw() != certificate.subject().as_raw()
            })
        });
        intermediates.map(|der| der::certificate_pem(der)).collect()
    }

    /// The CA's private key, as PEM in PKCS#8.
    pub fn key_pem(&self) -> String {
        self.0.key.to_pem()
    }

    pub fn details(&self) -> CertificateDetails {
        self.0.details()
    }
}

impl fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CertificateAuthority").field(&self.details()).finish()
    }
}

/// A certificate with its chain and its key, as people bring it.
#[derive(Debug)]
pub struct GivenCertificate {
    /// The certificate and what follows it; never empty.
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKey,
}

impl GivenCertificate {
    /// Reads a certificate from the values `tls.crt` and `tls.key` of a Secret.
    ///
    /// # Errors
    /// When it cannot be served from now on for a day, see [`AuthorityRefusal`].
    pub fn from_pem(
        certificate: Option<&[u8]>,
        key: Option<&[u8]>,
        now: Timestamp,
    ) -> Result<Self, AuthorityRefusal> {
        let is_present =
            |value: Option<&[u8]>| value.is_some_and(|bytes| !bytes.trim_ascii().is_empty());
        let (Some(certificate), true) = (certificate, is_present(certificate)) else {
            return Err(AuthorityRefusal::CertificateMissing);
        };
        let (Some(key), true) = (key, is_present(key)) else {
            return Err(AuthorityRefusal::KeyMissing);
        };
        let chain =
            bundle::parse_certificates(certificate).map_err(AuthorityRefusal::Certificate)?;
        let key = PrivateKey::from_pem(key).map_err(AuthorityRefusal::Key)?;
        let user_certificate = Self { chain, key };
        let details = user_certificate.details();
        if details.key_sha256 != user_certificate.key.public_key_sha256() {
            return Err(AuthorityRefusal::Mismatch);
        }
        let now = now.as_second();
        if details.is_expired(now) {
            return Err(AuthorityRefusal::Expired(clamp_timestamp(details.not_after)));
        }
        if now < details.not_before {
            return Err(AuthorityRefusal::NotYetValid(clamp_timestamp(details.not_before)));
        }
        if details.not_after.saturating_sub(now) <= SHORTEST_REST {
            return Err(AuthorityRefusal::EndsSoon(clamp_timestamp(details.not_after)));
        }
        Ok(user_certificate)
    }

    /// The certificate and its chain, as PEM.
    pub fn chain_pem(&self) -> String {
        self.chain.iter().map(|der| der::certificate_pem(der)).collect()
    }

    /// The private key, as PEM in PKCS#8, in whichever form it was given.
    pub fn key_pem(&self) -> String {
        self.key.to_pem()
    }

    /// The CAs that come with the certificate; `None` where none does.
    pub fn chain_bundle(&self) -> Option<TrustBundle> {
        let bundles: Vec<_> =
            self.chain[1..].iter().cloned().map(TrustBundle::from_certificate).collect();
        let bundle = TrustBundle::join(&bundles).ok().filter(|bundle| !bundle.is_empty())?;
        TrustBundle::from_pem(bundle.to_pem().as_bytes()).ok()
    }

    pub fn key_kind(&self) -> KeyKind {
        self.key.kind()
    }

    /// What the first certificate says of itself.
    pub fn details(&self) -> CertificateDetails {
        let certificate = parse_certificate(&self.chain[0]).expect("was read when it was taken in");
        CertificateDetails::new(&certificate)
    }
}

/// A moment in Unix seconds, for people: what lies beyond the calendar is its last day.
pub(super) fn clamp_timestamp(seconds: i64) -> Timestamp {
    let bounds = Timestamp::MIN.as_second()..=Timestamp::MAX.as_second();
    Timestamp::from_second(seconds.clamp(*bounds.start(), *bounds.end())).unwrap_or(Timestamp::MAX)
}
