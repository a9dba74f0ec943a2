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
    RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Identified, Rejected, User, well_known};
use crate::apiserver::peer::{PoolId, Presented};

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
        if chain.is_trusted(self.id) {
            return Ok(());
        }
        self.verifier.verify_client_cert(leaf, intermediates, UnixTime::now())?;
        if let Some(until) = first_end(chain) {
            chain.trust(self.id, until);
        }
        Ok(())
    }
}

/// When the first of these certificates ends. Absent when one cannot be read: such a chain is
/// checked each time.
fn first_end(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let end = |der: &CertificateDer<'_>| {
        let seconds = parse(der).ok()?.validity().not_after.timestamp();
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.try_into().ok()?))
    };
    chain.iter().map(end).min().flatten()
}

/// The user of a client certificate: its common name, its organisations as groups. A subject
/// without a common name is nobody. `left`: seconds that certificates have yet.
pub(super) fn authenticate(pool: Option<&Pool>, chain: &Presented, left: &Histogram) -> Identified {
    let (Some(pool), Some(leaf)) = (pool, chain.first()) else { return Ok(None) };
    pool.verify(chain).map_err(Rejected::ClientCertificate)?;
    let certificate = parse(leaf)?;
    if let Some(time) = certificate.validity().time_to_expiration() {
        left.observe(time.as_seconds_f64());
    }
    let Some(name) = common_name(&certificate) else { return Ok(None) };
    let organisations = certificate.subject().iter_organization();
    let groups = organisations.filter_map(|o| o.as_str().ok()).map(str::to_owned).collect();
    let credential = format!("X509SHA256={}", hex(&Sha256::digest(leaf)));
    let extra = BTreeMap::from([(well_known::CREDENTIAL_ID.to_owned(), vec![credential])]);
    Ok(Some(User { name, uid: None, groups, extra }))
}

pub(super) fn parse<'a>(leaf: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Rejected> {
    match X509Certificate::from_der(leaf) {
        Ok((_, certificate)) => Ok(certificate),
        Err(error) => Err(Rejected::Unreadable(error.to_string())),
    }
}

pub(super) fn common_name(certificate: &X509Certificate<'_>) -> Option<String> {
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    (!name.is_empty()).then(|| name.to_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}
