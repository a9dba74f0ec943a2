//! Client certificates: a pool of CAs that judges chains, and the user that a subject names.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{
        Arc,
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
use x509_parser::{
    der_parser::{Oid, oid},
    prelude::{AttributeTypeAndValue, FromDer, X509Certificate, X509Name},
};

use super::{Identified, Rejected, User, well_known};
use crate::apiserver::peer::{PoolId, Presented, Subject, Verdict};

/// What is said of a chain that none of the CAs issued.
const STRANGER: rustls::Error = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);

/// The uid in a subject (Kubernetes' arc, `AllowParsingUserUIDFromCertAuth`).
const UID: Oid<'static> = oid!(1.3.6.1.4.1.57683.2);

/// Pools that were made.
static POOLS: AtomicU64 = AtomicU64::new(0);

/// CAs that certificates are checked against: chain, validity, clientAuth usage.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    id: PoolId,
    verifier: Arc<dyn ClientCertVerifier>,
    anchors: Vec<CertificateDer<'static>>,
}

/// A CA bundle that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("it is no PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("it holds no certificate")]
    Empty,
    #[error("a certificate in it cannot be used as a CA")]
    Anchor(#[source] rustls::Error),
    #[error("no verifier can be made of it")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

impl Pool {
    pub(super) fn from_pem(pem: &str) -> Result<Self, PoolError> {
        let anchors = CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(PoolError::Pem)?;
        if anchors.is_empty() {
            return Err(PoolError::Empty);
        }
        let mut roots = RootCertStore::empty();
        for anchor in &anchors {
            roots.add(anchor.clone()).map_err(PoolError::Anchor)?;
        }
        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(PoolError::Verifier)?;
        let id = PoolId(POOLS.fetch_add(1, Ordering::Relaxed));
        Ok(Self { id, verifier, anchors })
    }

    /// Does any CA belong to both pools?
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.anchors.iter().any(|anchor| other.anchors.contains(anchor))
    }

    /// Checks a presented chain, leaf first, as of now.
    pub(super) fn verify(&self, chain: &Presented) -> Result<(), rustls::Error> {
        let [leaf, intermediates @ ..] = &**chain else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        match chain.verdict(self.id) {
            Some(Verdict::Good { .. }) => return Ok(()),
            Some(Verdict::Stranger) => return Err(STRANGER),
            None => {}
        }
        let verdict = self.verifier.verify_client_cert(leaf, intermediates, UnixTime::now());
        match &verdict {
            Ok(_) => {
                if let Some(until) = first_end(chain) {
                    chain.judge(self.id, Verdict::Good { until });
                }
            }
            Err(error) if *error == STRANGER => chain.judge(self.id, Verdict::Stranger),
            Err(_) => {}
        }
        verdict.map(|_| ())
    }
}

/// When the first of these certificates ends. Absent when one cannot be read: such a chain is
/// checked each time.
fn first_end(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    chain.iter().map(|der| end(&parse(der).ok()?)).min().flatten()
}

fn end(certificate: &X509Certificate<'_>) -> Option<SystemTime> {
    let seconds = certificate.validity().not_after.timestamp();
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.try_into().ok()?))
}

/// Of whom the leaf is; absent when nothing was presented.
pub(super) fn subject(chain: &Presented) -> Result<Option<&Subject>, Rejected> {
    let subject = chain.subject(read).transpose();
    subject.map_err(|why| Rejected::Unreadable(why.to_owned()))
}

fn read(leaf: &CertificateDer<'_>) -> Result<Subject, String> {
    let certificate = parse(leaf)?;
    let names = certificate.subject();
    let common_name = names.iter_common_name().next().and_then(|name| name.as_str().ok());
    let organisations = names.iter_organization().filter_map(|name| name.as_str().ok());
    Ok(Subject {
        common_name: common_name.unwrap_or_default().to_owned(),
        organisations: organisations.map(str::to_owned).collect(),
        uid: uid(names),
        fingerprint: hex(&Sha256::digest(leaf)),
        until: end(&certificate).ok_or("it ends before 1970")?,
    })
}

/// One text at most.
fn uid(names: &X509Name<'_>) -> Result<Option<String>, String> {
    let texts = names.iter_by_oid(&UID).map(AttributeTypeAndValue::as_str);
    let texts = texts.collect::<Result<Vec<_>, _>>();
    let texts = texts.map_err(|error| format!("the uid in its subject is no text: {error}"))?;
    match texts[..] {
        [] | [""] => Ok(None),
        [uid] => Ok(Some(uid.to_owned())),
        _ => Err(format!("its subject has several uids: {texts:?}")),
    }
}

/// The user of a client certificate: its common name, its organisations as groups, and the uid that
/// its subject may hold. A subject without a common name is nobody. `left`: seconds that
/// certificates have yet.
pub(super) fn authenticate(pool: Option<&Pool>, chain: &Presented, left: &Histogram) -> Identified {
    let Some(pool) = pool.filter(|_| !chain.is_empty()) else { return Ok(None) };
    pool.verify(chain).map_err(Rejected::ClientCertificate)?;
    let Some(subject) = subject(chain)? else { return Ok(None) };
    let Subject { common_name, organisations, uid, fingerprint, until } = subject;
    if let Ok(time) = until.duration_since(SystemTime::now()) {
        left.observe(time.as_secs_f64());
    }
    if common_name.is_empty() {
        return Ok(None);
    }
    let credential = format!("X509SHA256={fingerprint}");
    let extra = BTreeMap::from([(well_known::CREDENTIAL_ID.to_owned(), vec![credential])]);
    let (name, groups) = (common_name.clone(), organisations.clone());
    let uid = uid.clone().map_err(Rejected::Unreadable)?;
    Ok(Some(User { name, uid, groups, extra }))
}

fn parse<'a>(leaf: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, String> {
    let (_, certificate) = X509Certificate::from_der(leaf).map_err(|error| error.to_string())?;
    Ok(certificate)
}

fn hex(bytes: &[u8]) -> String {
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
            match (uid(&names), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{uids:?}"),
                (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{found}"),
                (found, _) => panic!("{uids:?}: {found:?}"),
            }
        }
    }
}
