//! What is wrong with a certificate that is in use or is to be installed.

use std::net::IpAddr;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::X509Certificate;

use super::{
    authority::clamp_timestamp,
    bundle::{self, BundleRefusal, MAX_CERTIFICATES, TrustBundle, parse_certificate},
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
pub fn check_chain(
    chain: &str,
    key_sha256: &str,
    trust: &TrustBundle,
    names: &[String],
    now: Timestamp,
) -> Vec<CertificateProblem> {
    let chain = match bundle::parse_certificates(chain.as_bytes()) {
        Ok(chain) => chain,
        Err(refusal) => return vec![CertificateProblem::Unreadable(refusal)],
    };
    let Some(leaf) = parse_certificate(&chain[0]) else { return Vec::new() };
    let details = CertificateDetails::new(&leaf);
    let mut problems = Vec::new();
    if details.key_sha256 != key_sha256 {
        problems.push(CertificateProblem::OtherKey);
    }
    if find_trust_anchor(&leaf, &chain[1..], trust, now.as_second()).is_none() {
        problems.push(CertificateProblem::Untrusted(details.issuer.clone()));
    }
    if now.as_second() < details.not_before {
        let from = clamp_timestamp(details.not_before);
        problems.push(CertificateProblem::NotYetValid { from, now });
    }
    if details.is_expired(now.as_second()) {
        problems.push(CertificateProblem::Expired(clamp_timestamp(details.not_after)));
    }
    let missing_names = names.iter().filter(|name| !is_name_covered(&details.names, name));
    problems.extend(missing_names.cloned().map(CertificateProblem::NotCovered));
    problems
}

/// Returns the CA of `trust` that the first certificate of `chain` (PEM) leads to at `now`, as the
/// SHA-256 of its public key.
pub fn find_authority(chain: &str, trust: &TrustBundle, now: Timestamp) -> Option<String> {
    let chain = bundle::parse_certificates(chain.as_bytes()).ok()?;
    let leaf = parse_certificate(&chain[0])?;
    find_trust_anchor(&leaf, &chain[1..], trust, now.as_second())
}

/// Follows signatures from a certificate over those that came with it to a CA that is trusted, and
/// returns the SHA-256 of its key. Of the CAs on the way each must be valid at `now`, and allowed to
/// sign.
fn find_trust_anchor(
    leaf: &X509Certificate<'_>,
    intermediates: &[CertificateDer<'static>],
    trust: &TrustBundle,
    now: i64,
) -> Option<String> {
    let mut current_certificate = leaf.clone();
    let mut remaining: Vec<_> = intermediates.iter().filter_map(parse_certificate).collect();
    for _ in 0..=MAX_CERTIFICATES {
        if let Some(ca) =
            trust.certificates().find(|ca| is_signed_by(&current_certificate, ca, now))
        {
            return Some(CertificateDetails::new(&ca).key_sha256);
        }
        let issuer_index =
            remaining.iter().position(|ca| is_signed_by(&current_certificate, ca, now))?;
        current_certificate = remaining.swap_remove(issuer_index);
    }
    None
}

fn is_signed_by(certificate: &X509Certificate<'_>, ca: &X509Certificate<'_>, now: i64) -> bool {
    let validity = ca.validity();
    certificate.issuer().as_raw() == ca.subject().as_raw()
        && bundle::is_authority(ca)
        && (validity.not_before.timestamp()..validity.not_after.timestamp()).contains(&now)
        && certificate.verify_signature(Some(ca.public_key())).is_ok()
}

/// Tells whether one of a certificate's names stands for `name`: an address only for itself, a DNS
/// name in any case, and a star for one label.
fn is_name_covered(names: &[String], name: &str) -> bool {
    if let Ok(address) = name.parse::<IpAddr>() {
        return names.iter().any(|entry| entry.parse() == Ok(address));
    }
    names.iter().any(|entry| match (entry.strip_prefix("*."), name.split_once('.')) {
        (Some(suffix), Some((label, rest))) => {
            !label.is_empty() && suffix.eq_ignore_ascii_case(rest)
        }
        _ => entry.eq_ignore_ascii_case(name),
    })
}
