//! What a CA signs for a node, and when it is due again.

use std::{net::IpAddr, time::Duration};

use jiff::Timestamp;
use rcgen::{ExtendedKeyUsagePurpose, SanType, SubjectPublicKeyInfo};
use sha2::{Digest, Sha256};

use super::{CertificateAuthority, KeyRequest};
use crate::machinery::x509::{self, CertificateDetails};

/// Most characters of a common name (X.520). Names are in the certificate a second time, whole.
const COMMON_NAME_CHARS: usize = 64;
/// A renewal is moved by up to this part of a life, forth or back: one twentieth.
const SPREAD_PART: i64 = 20;

/// Who shows a certificate to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CertificateUse {
    /// Nodes to each other, as server and as client.
    Internode,
    /// A node to clients.
    Client,
}

/// What is to be signed for a node. None of it comes from the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafOrder<'a> {
    pub common_name: &'a str,
    pub dns_names: &'a [String],
    pub addresses: &'a [IpAddr],
    pub usage: CertificateUse,
    pub life: Duration,
}

/// Why a certificate could not be signed.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("the CA expired at {0}: renew it, or store another one")]
    Expired(Timestamp),
    #[error("{0:?} is no DNS name that a certificate can hold")]
    Name(String),
    #[error("the CA cannot sign the certificate")]
    Sign(#[source] rcgen::Error),
}

impl CertificateAuthority {
    /// Signs the key of a request: the certificate as PEM, and after it what leads from this CA to
    /// a root. It ends no later than the CA does.
    ///
    /// # Errors
    /// When the CA's life is over, a name cannot be written, or the key cannot sign.
    pub fn issue_certificate(
        &self,
        request: &KeyRequest,
        order: &LeafOrder<'_>,
        now: Timestamp,
    ) -> Result<String, IssueError> {
        let LeafOrder { common_name, dns_names, addresses, usage, life } = order;
        let end = self.details().not_after;
        let remaining_seconds =
            u64::try_from(end.saturating_sub(now.as_second())).unwrap_or_default();
        if remaining_seconds == 0 {
            return Err(IssueError::Expired(super::authority::clamp_timestamp(end)));
        }
        let life = Duration::from_secs(remaining_seconds).min(*life);
        let usages: &[_] = match usage {
            CertificateUse::Internode => {
                &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
            CertificateUse::Client => &[ExtendedKeyUsagePurpose::ServerAuth],
        };
        let short_name: String = common_name.chars().take(COMMON_NAME_CHARS).collect();
        let mut params = x509::leaf_params(&short_name, usages, now.as_second(), life);
        for name in *dns_names {
            let name_error = || IssueError::Name(name.clone());
            if !is_dns_name(name) {
                return Err(name_error());
            }
            let name = SanType::DnsName(name.as_str().try_into().map_err(|_| name_error())?);
            if !params.subject_alt_names.contains(&name) {
                params.subject_alt_names.push(name);
            }
        }
        for address in *addresses {
            let address = SanType::IpAddress(*address);
            if !params.subject_alt_names.contains(&address) {
                params.subject_alt_names.push(address);
            }
        }
        let key = SubjectPublicKeyInfo::from_der(request.public_key()).map_err(IssueError::Sign)?;
        let issuer = self.issuer().map_err(IssueError::Sign)?;
        let certificate = params.signed_by(&key, &issuer).map_err(IssueError::Sign)?;
        Ok(certificate.pem() + &self.intermediates_pem())
    }
}

/// Letters, digits and hyphens between dots, or a star first; underscores, since some resolvers
/// have them.
fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        (1..=63).contains(&label.len()) && label.chars().all(is_allowed)
    };
    let rest = name.strip_prefix("*.").unwrap_or(name);
    name.len() <= 253 && rest.split('.').all(is_label)
}

/// Tells whether a certificate is to be signed again at `now`: at two thirds of its life, moved by
/// up to a twentieth of it, so that the nodes of a cluster that was made at once do not all ask at
/// once. `name` decides by how much, always alike.
pub fn needs_renewal(certificate: &CertificateDetails, name: &str, now: Timestamp) -> bool {
    /// Steps of the spread, in each direction.
    const STEPS: i64 = 500;
    let [first, second, ..] = Sha256::digest(name)[..] else { return false };
    let step = i64::from(u16::from_be_bytes([first, second])) % (2 * STEPS + 1) - STEPS;
    let life = certificate.lifetime();
    let offset = life.saturating_mul(step) / (STEPS * SPREAD_PART);
    now.as_second() >= certificate.issue_time().saturating_add(life / 3 * 2).saturating_add(offset)
}
