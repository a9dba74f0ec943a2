//! Client certificates: a pool of CAs that judges chains, and the user that a subject names.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use prometheus::Histogram;
use rustls::{
    CertificateError, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use x509_parser::{
    der_parser::{Oid, oid},
    prelude::{ASN1Time, AttributeTypeAndValue, FromDer, X509Certificate, X509Name},
};

use super::{AuthenticationResult, CredentialError, User, well_known};
use crate::apiserver::{
    peer::{CaPoolId, CertificateSubject, ChainVerdict, PeerCertificates, check_length},
    request_cost,
};

/// OID of the user's UID in a subject (Kubernetes' arc, `AllowParsingUserUIDFromCertAuth`).
const UID: Oid<'static> = oid!(1.3.6.1.4.1.57683.2);

/// Counter that numbers the sets of valid CAs.
static POOLS: AtomicU64 = AtomicU64::new(0);

/// Permits to verify a chain: one at a time, so that the other processors serve other requests.
static JUDGES: Semaphore = Semaphore::const_new(1);

/// CAs that client certificates are checked against: chain, validity, clientAuth usage. A CA
/// outside of its own validity verifies no client.
#[derive(Debug)]
pub(super) struct CaPool {
    anchors: Vec<TrustAnchor>,
    /// The CAs of `anchors` that are valid now, renewed when one of them ends or begins.
    bench: Mutex<Arc<ValidAnchors>>,
}

/// A CA of a bundle, and its validity.
#[derive(Debug)]
struct TrustAnchor {
    der: CertificateDer<'static>,
    /// The CA's public key: one key may be certified several times.
    key: Vec<u8>,
    from: SystemTime,
    until: SystemTime,
}

/// The CAs of a pool that are valid at one time.
#[derive(Debug)]
struct ValidAnchors {
    id: CaPoolId,
    /// Absent when no CA is valid.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// When the first of these CAs ends, or another CA of the pool becomes valid.
    until: Option<SystemTime>,
}

/// Why a CA bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CaPoolError {
    #[error("it is no PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("it holds no certificate")]
    Empty,
    #[error("a certificate in it cannot be used as a CA")]
    Anchor(#[source] rustls::Error),
    #[error("no verifier can be made of it")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

impl TrustAnchor {
    fn from_der(der: CertificateDer<'static>) -> Result<Self, CaPoolError> {
        let encoding_error = || CaPoolError::Anchor(CertificateError::BadEncoding.into());
        let certificate = parse_certificate(&der).map_err(|_| encoding_error())?;
        let key = certificate.public_key().raw.to_vec();
        let validity = certificate.validity();
        let from = to_system_time(validity.not_before).unwrap_or(SystemTime::UNIX_EPOCH);
        // A CA that ended before 1970 has ended.
        let until = to_system_time(validity.not_after).unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(Self { der, key, from, until })
    }

    fn is_valid(&self, now: SystemTime) -> bool {
        (self.from..=self.until).contains(&now)
    }
}

impl ValidAnchors {
    fn new(anchors: &[TrustAnchor], now: SystemTime) -> Result<Self, CaPoolError> {
        let mut roots = RootCertStore::empty();
        for anchor in anchors.iter().filter(|anchor| anchor.is_valid(now)) {
            roots.add(anchor.der.clone()).map_err(CaPoolError::Anchor)?;
        }
        let changes = anchors.iter().flat_map(|anchor| [anchor.from, anchor.until]);
        let until = changes.filter(|change| *change > now).min();
        let provider = Arc::new(default_provider());
        let verifier = if roots.is_empty() {
            None
        } else {
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            Some(builder.build().map_err(CaPoolError::Verifier)?)
        };
        Ok(Self { id: CaPoolId(POOLS.fetch_add(1, Ordering::Relaxed)), verifier, until })
    }

    fn verify_chain(&self, chain: &PeerCertificates) -> Result<(), rustls::Error> {
        let [leaf, intermediates @ ..] = &**chain else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        check_length(chain.iter()).map_err(|error| rustls::Error::General(error.to_string()))?;
        let Some(verifier) = &self.verifier else {
            return Err(CertificateError::UnknownIssuer.into());
        };
        verifier.verify_client_cert(leaf, intermediates, UnixTime::now()).map(drop)
    }
}

impl CaPool {
    pub(super) fn from_pem(pem: &str) -> Result<Self, CaPoolError> {
        let anchors = CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(CaPoolError::Pem)?;
        if anchors.is_empty() {
            return Err(CaPoolError::Empty);
        }
        // CAs that are not valid now are checked, too, since they may become valid.
        for anchor in &anchors {
            RootCertStore::empty().add(anchor.clone()).map_err(CaPoolError::Anchor)?;
        }
        let anchors =
            anchors.into_iter().map(TrustAnchor::from_der).collect::<Result<Vec<_>, _>>()?;
        let valid_anchors = Mutex::new(Arc::new(ValidAnchors::new(&anchors, SystemTime::now())?));
        Ok(Self { anchors, bench: valid_anchors })
    }

    /// Tells whether any CA's key belongs to both pools.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let is_in_other = |anchor: &TrustAnchor| {
            other.anchors.iter().any(|other_anchor| other_anchor.key == anchor.key)
        };
        self.anchors.iter().any(is_in_other)
    }

    /// Returns the CAs that are valid now.
    fn valid_anchors(&self) -> Arc<ValidAnchors> {
        let mut anchors = self.bench.lock().unwrap_or_else(PoisonError::into_inner);
        let now = SystemTime::now();
        if anchors.until.is_some_and(|until| until < now) {
            // These CAs could be parsed before, so they can be parsed again.
            if let Ok(new_anchors) = ValidAnchors::new(&self.anchors, now) {
                *anchors = Arc::new(new_anchors);
            }
        }
        Arc::clone(&anchors)
    }

    /// Checks a presented chain, leaf first, as of now. A connection's chain is checked once for a
    /// set of valid CAs, in its turn and off the threads that serve other requests.
    pub(super) async fn verify(&self, chain: &PeerCertificates) -> Result<(), rustls::Error> {
        let anchors = self.valid_anchors();
        let cached_verdict = || match chain.verdict(anchors.id)? {
            ChainVerdict::Good { .. } => Some(Ok(())),
            ChainVerdict::Bad(error) => Some(Err(error)),
        };
        if let Some(result) = cached_verdict() {
            return result;
        }
        let _turn = JUDGES.acquire().await.expect("it is never closed");
        // Another request of the connection may have had the chain checked meanwhile.
        if let Some(result) = cached_verdict() {
            return result;
        }
        let verdict = request_cost::run_blocking(usize::MAX, || anchors.verify_chain(chain));
        match &verdict {
            Ok(()) => {
                if let Some(until) = first_end(chain) {
                    chain.record_verdict(anchors.id, ChainVerdict::Good { until });
                }
            }
            Err(error) => chain.record_verdict(anchors.id, ChainVerdict::Bad(error.clone())),
        }
        verdict
    }
}

/// Returns when the first certificate of a chain ends. Absent when one cannot be read: such a chain
/// is checked each time.
fn first_end(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    chain.iter().map(|der| certificate_expiry(&parse_certificate(der).ok()?)).min().flatten()
}

fn certificate_expiry(certificate: &X509Certificate<'_>) -> Option<SystemTime> {
    to_system_time(certificate.validity().not_after)
}

/// Converts a time; `None` before 1970.
fn to_system_time(time: ASN1Time) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(time.timestamp().try_into().ok()?))
}

/// Returns the subject of the leaf; absent when no certificate was presented.
pub(super) fn leaf_subject(
    chain: &PeerCertificates,
) -> Result<Option<&CertificateSubject>, CredentialError> {
    let subject = chain.subject(read_subject).transpose();
    subject.map_err(|reason| CredentialError::Unreadable(reason.to_owned()))
}

fn read_subject(leaf: &CertificateDer<'_>) -> Result<CertificateSubject, String> {
    let certificate = parse_certificate(leaf)?;
    let names = certificate.subject();
    let common_name = names.iter_common_name().next().and_then(|name| name.as_str().ok());
    let organisations = names.iter_organization().filter_map(|name| name.as_str().ok());
    Ok(CertificateSubject {
        common_name: common_name.unwrap_or_default().to_owned(),
        organisations: organisations.map(str::to_owned).collect(),
        uid: subject_uid(names),
        fingerprint: encode_hex(&Sha256::digest(leaf)),
        until: certificate_expiry(&certificate).ok_or("it ends before 1970")?,
    })
}

/// Returns the UID in a subject, which may have one at most.
fn subject_uid(names: &X509Name<'_>) -> Result<Option<String>, String> {
    let texts = names.iter_by_oid(&UID).map(AttributeTypeAndValue::as_str);
    let texts = texts.collect::<Result<Vec<_>, _>>();
    let texts = texts.map_err(|error| format!("the uid in its subject is no text: {error}"))?;
    match texts[..] {
        [] | [""] => Ok(None),
        [uid] => Ok(Some(uid.to_owned())),
        _ => Err(format!("its subject has several uids: {texts:?}")),
    }
}

/// Returns the user of a client certificate: its common name, its organisations as groups, and the
/// UID that its subject may hold. A subject without a common name names no user.
/// `remaining_validity` observes for how many seconds the certificates are still valid.
pub(super) async fn authenticate_certificate(
    pool: Option<&CaPool>,
    chain: &PeerCertificates,
    remaining_validity: &Histogram,
) -> AuthenticationResult {
    let Some(pool) = pool.filter(|_| !chain.is_empty()) else { return Ok(None) };
    pool.verify(chain).await.map_err(CredentialError::ClientCertificate)?;
    let Some(subject) = leaf_subject(chain)? else { return Ok(None) };
    let CertificateSubject { common_name, organisations, uid, fingerprint, until } = subject;
    if let Ok(time) = until.duration_since(SystemTime::now()) {
        remaining_validity.observe(time.as_secs_f64());
    }
    if common_name.is_empty() {
        return Ok(None);
    }
    let credential = format!("X509SHA256={fingerprint}");
    let extra = BTreeMap::from([(well_known::CREDENTIAL_ID.to_owned(), vec![credential])]);
    let (name, groups) = (common_name.clone(), organisations.clone());
    let uid = uid.clone().map_err(CredentialError::Unreadable)?;
    Ok(Some(User { name, uid, groups, extra }))
}

fn parse_certificate<'a>(leaf: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, String> {
    let (_, certificate) = X509Certificate::from_der(leaf).map_err(|error| error.to_string())?;
    Ok(certificate)
}

fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UTF8: u8 = 12;
    const INTEGER: u8 = 2;

    /// A value of ASN.1 that is shorter than 128 bytes.
    fn asn1(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).unwrap();
        [&[tag, length], content].concat()
    }

    #[test]
    fn a_subject_holds_one_uid_as_a_text_or_none() {
        let oid = asn1(6, UID.as_bytes());
        for (uids, expected) in [
            (vec![], Ok(None)),
            (vec![(UTF8, "")], Ok(None)),
            (vec![(UTF8, "u-1")], Ok(Some("u-1".to_owned()))),
            (vec![(UTF8, "a"), (UTF8, "b")], Err("its subject has several uids: [\"a\", \"b\"]")),
            (vec![(INTEGER, "\x07")], Err("the uid in its subject is no text: ")),
        ] {
            let sets = uids.iter().map(|(tag, text)| {
                let pair = [oid.clone(), asn1(*tag, text.as_bytes())].concat();
                asn1(0x31, &asn1(0x30, &pair))
            });
            let der = asn1(0x30, &sets.collect::<Vec<_>>().concat());
            let (_, names) = X509Name::from_der(&der).unwrap();
            match (subject_uid(&names), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{uids:?}"),
                (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{found}"),
                (found, _) => panic!("{uids:?}: {found:?}"),
            }
        }
    }
}
