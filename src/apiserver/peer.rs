//! Who sends a request, as far as its connection tells.

use std::{
    net::SocketAddr,
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
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
    /// Who trusts it, and until when: a signature is checked once for each connection and pool.
    trusted: Mutex<Vec<(PoolId, SystemTime)>>,
}

/// A pool of CAs; one that was loaded anew is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolId(pub u64);

/// Pools of which a chain remembers the word: the front proxy's, the clients', and those before.
const POOLS: usize = 4;

impl Presented {
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Self {
        Self { certificates, trusted: Mutex::default() }
    }

    /// Was it found good by this pool, and has not ended since?
    pub fn is_trusted(&self, pool: PoolId) -> bool {
        let trusted = self.trusted.lock().unwrap_or_else(PoisonError::into_inner);
        trusted.iter().any(|(known, until)| *known == pool && SystemTime::now() < *until)
    }

    /// A pool found it good, until its first certificate ends.
    pub fn trust(&self, pool: PoolId, until: SystemTime) {
        let mut trusted = self.trusted.lock().unwrap_or_else(PoisonError::into_inner);
        if trusted.len() == POOLS {
            trusted.remove(0);
        }
        trusted.push((pool, until));
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
        presented.trust(PoolId(1), now + hour);
        presented.trust(PoolId(2), now - hour);
        let trusted = |pool| presented.is_trusted(PoolId(pool));
        assert_eq!([trusted(1), trusted(2), trusted(3)], [true, false, false]);
        for pool in 4..8 {
            presented.trust(PoolId(pool), now + hour);
        }
        assert_eq!([trusted(1), trusted(7)], [false, true], "few are remembered");
    }
}
