//! The client of a request, as far as its connection tells.

use std::{
    net::SocketAddr,
    ops::Deref,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::SystemTime,
};

use rustls::pki_types::CertificateDer;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    pub certificates: Arc<PeerCertificates>,
}

/// Most certificates of a chain that is judged: a leaf and what leads to a CA. Longer chains are
/// refused.
pub const MOST_CERTIFICATES: usize = 5;
pub const MOST_CHAIN: usize = 16 * 1024;

/// A chain that is too long to be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the certificate chain has {certificates} certificates and {bytes} bytes; at most \
     {MOST_CERTIFICATES} and {MOST_CHAIN} are judged: send the leaf and its intermediates only"
)]
pub struct ChainLengthError {
    certificates: usize,
    bytes: usize,
}

/// Fails for a chain that would cost too much to judge.
pub fn check_length<'a>(
    chain: impl ExactSizeIterator<Item = &'a CertificateDer<'a>>,
) -> Result<(), ChainLengthError> {
    let certificates = chain.len();
    let bytes = chain.map(|der| der.len()).sum();
    if certificates > MOST_CERTIFICATES || bytes > MOST_CHAIN {
        return Err(ChainLengthError { certificates, bytes });
    }
    Ok(())
}

/// The certificates that a client presented in the handshake, leaf first. Its possession of the
/// leaf's key has been checked; whether a trusted CA signed the chain is checked for each request.
#[derive(Debug, Default)]
pub struct PeerCertificates {
    certificates: Vec<CertificateDer<'static>>,
    /// The subject of the leaf, read once for each connection.
    subject: OnceLock<Result<CertificateSubject, String>>,
    /// The pools' verdicts: a chain is judged once for each connection and pool.
    verdicts: Mutex<Vec<(CaPoolId, ChainVerdict)>>,
}

/// The user that a certificate names.
#[derive(Debug)]
pub struct CertificateSubject {
    /// The subject's common name; empty when it has none.
    pub common_name: String,
    pub organisations: Vec<String>,
    /// The user's uid, if the subject names one; an error when it cannot be determined.
    pub uid: Result<Option<String>, String>,
    /// SHA-256 of the whole certificate, in hexadecimal digits.
    pub fingerprint: String,
    /// When the certificate expires.
    pub until: SystemTime,
}

/// The verdict of a pool of CAs on a chain.
#[derive(Clone, Debug, PartialEq)]
pub enum ChainVerdict {
    /// The chain is good until the first of its certificates expires.
    Good { until: SystemTime },
    /// The chain is bad. If it becomes valid later, it is good on the next connection.
    Bad(rustls::Error),
}

/// Identifies the valid CAs of a pool; a pool that was loaded again has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaPoolId(pub u64);

/// Most verdicts that are kept for a chain: of the front proxy's pool, of the clients' pool, and of
/// earlier ones.
const POOLS: usize = 4;

impl PeerCertificates {
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Self {
        Self { certificates, subject: OnceLock::new(), verdicts: Mutex::default() }
    }

    /// Returns the subject of the leaf, or why it cannot be read; `None` when no certificate was
    /// presented.
    pub fn subject(
        &self,
        read_subject: impl FnOnce(&CertificateDer<'_>) -> Result<CertificateSubject, String>,
    ) -> Option<Result<&CertificateSubject, &str>> {
        let leaf = self.certificates.first()?;
        let subject = self.subject.get_or_init(|| read_subject(leaf));
        Some(subject.as_ref().map_err(String::as_str))
    }

    /// Returns the verdict of `pool` on the chain, as long as it holds.
    pub fn verdict(&self, pool: CaPoolId) -> Option<ChainVerdict> {
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, verdict) = verdicts.iter().find(|(pool_id, _)| *pool_id == pool)?;
        match verdict {
            ChainVerdict::Good { until } if *until <= SystemTime::now() => None,
            verdict => Some(verdict.clone()),
        }
    }

    /// Returns whether any pool has verified the chain.
    pub fn is_vouched_for(&self) -> bool {
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.iter().any(|(_, verdict)| matches!(verdict, ChainVerdict::Good { .. }))
    }

    /// Remembers a pool's verdict on the chain.
    pub fn record_verdict(&self, pool: CaPoolId, verdict: ChainVerdict) {
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.retain(|(pool_id, _)| *pool_id != pool);
        if verdicts.len() == POOLS {
            verdicts.remove(0);
        }
        verdicts.push((pool, verdict));
    }
}

impl Deref for PeerCertificates {
    type Target = [CertificateDer<'static>];

    fn deref(&self) -> &Self::Target {
        &self.certificates
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn trust_is_of_one_pool_and_ends() {
        let presented = PeerCertificates::new(Vec::new());
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        let good = |until| ChainVerdict::Good { until };
        presented.record_verdict(CaPoolId(1), good(now + hour));
        presented.record_verdict(CaPoolId(2), good(now - hour));
        let bad = ChainVerdict::Bad(rustls::Error::NoCertificatesPresented);
        presented.record_verdict(CaPoolId(3), bad.clone());
        let said = |pool| presented.verdict(CaPoolId(pool));
        let expected = [Some(good(now + hour)), None, Some(bad), None];
        assert_eq!([said(1), said(2), said(3), said(4)], expected);
        for pool in 4..8 {
            presented.record_verdict(CaPoolId(pool), good(now + hour));
        }
        assert_eq!([said(1), said(7)], [None, Some(good(now + hour))], "few are remembered");
    }

    #[test]
    fn a_chain_has_few_certificates_and_bytes() {
        let chain = |sizes: &[usize]| -> Vec<CertificateDer<'static>> {
            sizes.iter().map(|size| vec![0; *size].into()).collect()
        };
        for (sizes, judged) in [
            (&[1000; 5][..], true),
            (&[1; 6], false),
            (&[MOST_CHAIN], true),
            (&[MOST_CHAIN, 1], false),
        ] {
            assert_eq!(check_length(chain(sizes).iter()).is_ok(), judged, "{sizes:?}");
        }
        let error = check_length(chain(&[70; 250]).iter()).unwrap_err().to_string();
        assert!(error.contains("250 certificates and 17500 bytes; at most 5 and 16384"), "{error}");
    }
}
