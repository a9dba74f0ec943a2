//! Who sends a request, as far as its connection tells.

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
    pub certificates: Arc<Presented>,
}

/// What a client presented in the handshake, leaf first. Only its possession of the leaf's key
/// has been checked: whether anybody trusts the chain is asked for each request.
#[derive(Debug, Default)]
pub struct Presented {
    certificates: Vec<CertificateDer<'static>>,
    /// Of the leaf, read once for each connection.
    subject: OnceLock<Result<Subject, String>>,
    /// What pools said of it: a signature is checked once for each connection and pool.
    verdicts: Mutex<Vec<(PoolId, Verdict)>>,
}

/// Of whom a certificate is.
#[derive(Debug)]
pub struct Subject {
    /// Empty when it has none.
    pub common_name: String,
    pub organisations: Vec<String>,
    /// What the subject says of the user's uid; an error when it cannot be told.
    pub uid: Result<Option<String>, String>,
    /// SHA-256 of the whole certificate, in hexadecimal digits.
    pub fingerprint: String,
    /// When it ends.
    pub until: SystemTime,
}

/// What a pool of CAs says of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is good, until its first certificate ends.
    Good { until: SystemTime },
    /// None of the CAs issued it, which no time changes.
    Stranger,
}

/// A pool of CAs; one that was loaded anew is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolId(pub u64);

/// Pools of which a chain remembers the word: the front proxy's, the clients', and those before.
const POOLS: usize = 4;

impl Presented {
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Self {
        Self { certificates, subject: OnceLock::new(), verdicts: Mutex::default() }
    }

    /// Of whom the leaf is, or why it cannot be read; absent when nothing was presented.
    pub fn subject(
        &self,
        read: impl FnOnce(&CertificateDer<'_>) -> Result<Subject, String>,
    ) -> Option<Result<&Subject, &str>> {
        let leaf = self.certificates.first()?;
        let subject = self.subject.get_or_init(|| read(leaf));
        Some(subject.as_ref().map_err(String::as_str))
    }

    /// What this pool said of it, as long as that holds.
    pub fn verdict(&self, pool: PoolId) -> Option<Verdict> {
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, verdict) = *verdicts.iter().find(|(known, _)| *known == pool)?;
        match verdict {
            Verdict::Good { until } if until <= SystemTime::now() => None,
            verdict => Some(verdict),
        }
    }

    /// Remembers what a pool says of it.
    pub fn judge(&self, pool: PoolId, verdict: Verdict) {
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.retain(|(known, _)| *known != pool);
        if verdicts.len() == POOLS {
            verdicts.remove(0);
        }
        verdicts.push((pool, verdict));
    }
}

impl Deref for Presented {
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
        let presented = Presented::new(Vec::new());
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        let good = |until| Verdict::Good { until };
        presented.judge(PoolId(1), good(now + hour));
        presented.judge(PoolId(2), good(now - hour));
        presented.judge(PoolId(3), Verdict::Stranger);
        let said = |pool| presented.verdict(PoolId(pool));
        let expected = [Some(good(now + hour)), None, Some(Verdict::Stranger), None];
        assert_eq!([said(1), said(2), said(3), said(4)], expected);
        for pool in 4..8 {
            presented.judge(PoolId(pool), good(now + hour));
        }
        assert_eq!([said(1), said(7)], [None, Some(good(now + hour))], "few are remembered");
    }
}
