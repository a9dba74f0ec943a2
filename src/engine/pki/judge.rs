//! What is wrong with a certificate that is in use or is to be installed.

use std::net::IpAddr;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::X509Certificate;

use super::{
    authority::instant,
    bundle::{self, BundleRefusal, MAX_CERTIFICATES, TrustBundle, parsed},
};
use crate::machinery::x509::CertificateDetails;

/// One thing that is wrong with a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateProblem {
    #[error("the certificate {0}")]
    Unreadable(BundleRefusal),
    #[error("the certificate is not of the node's own key")]
    OtherKey,
    #[error("no CA that is trusted signed the certificate; {0} did")]
    Untrusted(String),
    #[error("the certificate is not valid before {from}, and it is {now} here: a clock is off")]
    NotYetValid { from: Timestamp, now: Timestamp },
    #[error("the certificate expired at {0}")]
    Expired(Timestamp),
    #[error("the certificate does not cover {0}")]
    NotCovered(String),
}

/// Returns all that is wrong at `now` with the first certificate of `chain` (PEM), when it is of the
/// key with this SHA-256, shown to those who trust `trust`, for these DNS names and addresses.
pub fn judge(
    chain: &str,
    key_sha256: &str,
    trust: &TrustBundle,
    names: &[String],
    now: Timestamp,
) -> Vec<CertificateProblem> {
    let chain = match bundle::read_certificates(chain.as_bytes()) {
        Ok(chain) => chain,
        Err(refusal) => return vec![CertificateProblem::Unreadable(refusal)],
    };
    let Some(leaf) = parsed(&chain[0]) else { return Vec::new() };
    let details = CertificateDetails::new(&leaf);
    let mut problems = Vec::new();
    if details.key_sha256 != key_sha256 {
        problems.push(CertificateProblem::OtherKey);
    }
    if leads_to(&leaf, &chain[1..], trust, now.as_second()).is_none() {
        problems.push(CertificateProblem::Untrusted(details.issuer.clone()));
    }
    if now.as_second() < details.not_before {
        let from = instant(details.not_before);
        problems.push(CertificateProblem::NotYetValid { from, now });
    }
    if details.is_expired(now.as_second()) {
        problems.push(CertificateProblem::Expired(instant(details.not_after)));
    }
    let missing = names.iter().filter(|name| !covers(&details.names, name));
    problems.extend(missing.cloned().map(CertificateProblem::NotCovered));
    problems
}

/// Returns the CA of `trust` that the first certificate of `chain` (PEM) leads to at `now`, as the
/// SHA-256 of its public key.
pub fn authority_of(chain: &str, trust: &TrustBundle, now: Timestamp) -> Option<String> {
    let chain = bundle::read_certificates(chain.as_bytes()).ok()?;
    let leaf = parsed(&chain[0])?;
    leads_to(&leaf, &chain[1..], trust, now.as_second())
}

/// Follows signatures from a certificate over those that came with it to a CA that is trusted, and
/// returns the SHA-256 of its key. Of the CAs on the way each must be valid at `now`, and allowed to
/// sign.
fn leads_to(
    leaf: &X509Certificate<'_>,
    others: &[CertificateDer<'static>],
    trust: &TrustBundle,
    now: i64,
) -> Option<String> {
    let mut current = leaf.clone();
    let mut left: Vec<_> = others.iter().filter_map(parsed).collect();
    for _ in 0..=MAX_CERTIFICATES {
        if let Some(ca) = trust.certificates().find(|ca| signed(&current, ca, now)) {
            return Some(CertificateDetails::new(&ca).key_sha256);
        }
        let next = left.iter().position(|ca| signed(&current, ca, now))?;
        current = left.swap_remove(next);
    }
    None
}

fn signed(certificate: &X509Certificate<'_>, ca: &X509Certificate<'_>, now: i64) -> bool {
    let validity = ca.validity();
    certificate.issuer().as_raw() == ca.subject().as_raw()
        && bundle::is_authority(ca)
        && (validity.not_before.timestamp()..validity.not_after.timestamp()).contains(&now)
        && certificate.verify_signature(Some(ca.public_key())).is_ok()
}

/// Tells whether one of a certificate's names stands for `name`: an address only for itself, a DNS
/// name in any case, and a star for one label.
fn covers(held: &[String], name: &str) -> bool {
    if let Ok(address) = name.parse::<IpAddr>() {
        return held.iter().any(|held| held.parse() == Ok(address));
    }
    held.iter().any(|held| match (held.strip_prefix("*."), name.split_once('.')) {
        (Some(held), Some((label, rest))) => !label.is_empty() && held.eq_ignore_ascii_case(rest),
        _ => held.eq_ignore_ascii_case(name),
    })
}
