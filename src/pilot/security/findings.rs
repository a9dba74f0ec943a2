//! Whether the certificates in a Pilot's spec are fit for its node. Pure.
//!
//! What is found here holds a start up, or keeps new certificates away from a database that runs. It
//! never takes anything from that database.

use std::net::IpAddr;

use jiff::Timestamp;

use super::SecurityReading;
use crate::{
    api::v1beta1::{ClientTls, InternodeTls, PilotSecurity, RequestReason},
    engine::pki::{
        BundleRefusal, CertificateProblem, CertificateUse, TrustBundle, check_chain, needs_renewal,
    },
    machinery::x509::CertificateDetails,
    pilot::tls::NodeCertificates,
};

/// What the certificates are judged by.
#[derive(Clone, Copy, Debug)]
pub(super) struct CertificateQuestion<'a> {
    pub(super) security: &'a PilotSecurity,
    /// SHA-256 of the node's own public key.
    pub(super) key_sha256: &'a str,
    /// SHA-256 of the public key of the private key that is mounted, for a certificate that was given.
    pub(super) mounted_sha256: Option<&'a str>,
    /// Name of the Pilot, which is the pod's.
    pub(super) pilot: &'a str,
    pub(super) address: IpAddr,
    /// With what a database runs, while one does.
    pub(super) in_use: Option<&'a NodeCertificates>,
    pub(super) now: Timestamp,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CertificateFindings {
    pub(super) reading: SecurityReading,
    /// Why the node's key is to be signed, or signed again. The request stands as long as the key
    /// does: what the controller signs it for may change.
    pub(super) request: RequestReason,
    /// The certificates, where they may be put in use.
    pub(super) usable: Option<NodeCertificates>,
    /// They are of the node's key, and expired, not valid yet, or of no trusted CA: a start may use the
    /// ones before them, where those are good.
    pub(super) may_use_former: bool,
    /// The private key of what was given for clients is not mounted yet.
    pub(super) awaits_key: bool,
    /// They are for this node's address and name, so that nothing better is to be expected.
    pub(super) covers: bool,
}

/// How grave a finding is: the gravest is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FindingRank {
    Uncovered,
    Expired,
    Untrusted,
    /// By a clock that is off, a CA is not valid yet, either.
    Clock,
    KeyAwaited,
    Missing,
    ForeignKey,
}

impl FindingRank {
    fn from_problem(problem: &CertificateProblem) -> Self {
        match problem {
            CertificateProblem::OtherKey => Self::ForeignKey,
            CertificateProblem::Unreadable(_) | CertificateProblem::Untrusted(_) => Self::Untrusted,
            CertificateProblem::NotYetValid { .. } => Self::Clock,
            CertificateProblem::Expired(_) => Self::Expired,
            CertificateProblem::NotCovered(_) => Self::Uncovered,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Uncovered => "AddressNotCovered",
            Self::Expired => "CertificateExpired",
            Self::Clock => "ClockSkew",
            Self::Untrusted => "TrustRejected",
            Self::KeyAwaited => "KeyAwaited",
            Self::Missing => "CertificateRequested",
            Self::ForeignKey => "ForeignKey",
        }
    }

    fn may_use_former(self) -> bool {
        match self {
            Self::Expired | Self::Untrusted | Self::Clock => true,
            Self::Uncovered | Self::KeyAwaited | Self::Missing | Self::ForeignKey => false,
        }
    }

    /// For what the node asks because of it. A clock that is off and a bundle that is wrong are not
    /// mended by another certificate.
    fn request_reason(self) -> Option<RequestReason> {
        match self {
            Self::Uncovered => Some(RequestReason::Address),
            Self::Expired => Some(RequestReason::Renewal),
            Self::Clock | Self::Untrusted | Self::KeyAwaited => None,
            // A key that was made on a new volume is signed in place of the lost one.
            Self::Missing | Self::ForeignKey => Some(RequestReason::First),
        }
    }
}

/// Judges the certificates that a Pilot's spec has; `None` where nothing is to be encrypted.
pub(super) fn build_findings(question: &CertificateQuestion<'_>) -> Option<CertificateFindings> {
    let security = question.security;
    let required_uses = [
        (CertificateUse::Internode, security.internode != InternodeTls::Off),
        (CertificateUse::Client, security.client != ClientTls::Off),
    ];
    let encrypted_uses: Vec<_> =
        required_uses.into_iter().filter(|(_, is_on)| *is_on).map(|(usage, _)| usage).collect();
    if encrypted_uses.is_empty() {
        return None;
    }
    // Certificates for what is not encrypted are left out, so that their end means nothing.
    let spec_certificates = NodeCertificates {
        internode: security.internode_certificate.clone(),
        client: security.client_certificate.clone(),
    };
    let certificates = NodeCertificates {
        internode: spec_certificates
            .internode
            .filter(|_| encrypted_uses.contains(&CertificateUse::Internode)),
        client: spec_certificates
            .client
            .filter(|_| encrypted_uses.contains(&CertificateUse::Client)),
    };
    let mut findings: Vec<(FindingRank, String)> = Vec::new();
    let recorded_key = security.key.as_ref().map(|key| key.sha256.as_str());
    if let Some(recorded_sha256) = recorded_key.filter(|recorded| *recorded != question.key_sha256)
    {
        let own_sha256 = question.key_sha256;
        findings.push((
            FindingRank::ForeignKey,
            format!(
                "the key on record is {}…, and the key on this node's volume is {}…: certificates \
                 of another key are not used",
                hash_prefix(recorded_sha256),
                hash_prefix(own_sha256)
            ),
        ));
    }
    for usage in &encrypted_uses {
        examine_certificate(question, *usage, &certificates, &mut findings);
    }
    let worst = findings.iter().map(|(rank, _)| *rank).max();
    let details: Vec<_> =
        encrypted_uses.iter().filter_map(|usage| certificates.leaf(*usage)).collect();
    let is_renewal_due =
        encrypted_uses.iter().filter(|usage| !certificates.is_mounted(**usage)).any(|usage| {
            certificates
                .leaf(*usage)
                .is_some_and(|leaf| needs_renewal(&leaf, question.pilot, question.now))
        });
    let reading = match worst {
        Some(worst) => {
            let texts = findings.iter().filter(|(rank, _)| *rank == worst).map(|(_, text)| text);
            let mut texts: Vec<_> = texts.map(String::as_str).collect();
            texts.dedup();
            SecurityReading::bad(worst.reason(), texts.join("; "))
        }
        None if details.iter().any(|leaf| is_overdue(leaf, question.now)) => {
            SecurityReading::bad("RenewalOverdue", validity_message(&details, is_renewal_due))
        }
        None => {
            SecurityReading::good("CertificatesCurrent", validity_message(&details, is_renewal_due))
        }
    };
    // Due, or with an address that is not covered beside something graver.
    let request = worst
        .and_then(FindingRank::request_reason)
        .or_else(|| is_renewal_due.then_some(RequestReason::Renewal))
        .unwrap_or(RequestReason::Standing);
    let is_usable = worst.is_none_or(|worst| worst == FindingRank::Uncovered);
    Some(CertificateFindings {
        reading,
        request,
        may_use_former: worst.is_some_and(FindingRank::may_use_former),
        awaits_key: findings.iter().any(|(rank, _)| *rank == FindingRank::KeyAwaited),
        covers: worst.is_none(),
        usable: is_usable.then_some(certificates),
    })
}

/// Adds what is wrong with the certificate for one use.
fn examine_certificate(
    question: &CertificateQuestion<'_>,
    usage: CertificateUse,
    certificates: &NodeCertificates,
    findings: &mut Vec<(FindingRank, String)>,
) {
    let CertificateQuestion { key_sha256, pilot, address, in_use, now, .. } = *question;
    let purpose = match usage {
        CertificateUse::Internode => "between nodes",
        CertificateUse::Client => "for clients",
    };
    let Some(certificate) = certificates.certificate_for(usage) else {
        let text = "the node's key waits to be signed by the controller";
        return findings.push((FindingRank::Missing, text.to_owned()));
    };
    let trust = match TrustBundle::from_pem(certificate.trust.as_bytes()) {
        Ok(trust) => trust,
        Err(refusal) => {
            let text = format!("{purpose}: the bundle of trusted CAs {}", refusal_text(&refusal));
            return findings.push((FindingRank::Untrusted, text));
        }
    };
    let names = [pilot.to_owned(), address.to_string()];
    // One certificate for all nodes has names of its own; pilots go by the certificate itself.
    let (key_sha256, names) = match &certificate.mounted_key {
        Some(key) if question.mounted_sha256 != Some(key) => {
            let text = format!(
                "{purpose}: its key is not mounted yet: kubelet brings it within two minutes"
            );
            return findings.push((FindingRank::KeyAwaited, text));
        }
        Some(key) => (key.as_str(), &[][..]),
        None => (key_sha256, &names[..]),
    };
    let problems = check_chain(&certificate.chain, key_sha256, &trust, names, now);
    findings.extend(
        problems
            .iter()
            .map(|problem| (FindingRank::from_problem(problem), format!("{purpose}: {problem}"))),
    );
    if usage == CertificateUse::Client
        && question.security.requires_client_certificates()
        && certificate
            .clients
            .as_deref()
            .is_none_or(|clients| TrustBundle::from_pem(clients.as_bytes()).is_err())
    {
        let text = format!(
            "{purpose}: whose certificates they must show is not known: see client.clientCA"
        );
        findings.push((FindingRank::Untrusted, text));
    }
    // Peers that still show a certificate of the CA in use would be cut off.
    let used_certificate = in_use.and_then(|in_use| in_use.certificate_for(usage));
    let used_certificate = used_certificate
        .filter(|used| used.mounted_key.is_none() && certificate.mounted_key.is_none());
    let old_problems =
        used_certificate.map(|used| check_chain(&used.chain, key_sha256, &trust, &[], now));
    let is_untrusted =
        |problem: &CertificateProblem| FindingRank::from_problem(problem) == FindingRank::Untrusted;
    if old_problems.is_some_and(|problems| problems.iter().any(is_untrusted)) {
        let text = format!("{purpose}: the new bundle lacks the CA of the certificate in use");
        findings.push((FindingRank::Untrusted, text));
    }
}

/// Is half of what was left of a certificate's life over, when it was to be renewed?
fn is_overdue(leaf: &CertificateDetails, now: Timestamp) -> bool {
    now.as_second() >= leaf.issue_time().saturating_add(leaf.lifetime() / 6 * 5)
}

fn refusal_text(refusal: &BundleRefusal) -> String {
    refusal.to_string()
}

fn validity_message(details: &[CertificateDetails], is_renewal_due: bool) -> String {
    let end = details.iter().map(|leaf| leaf.not_after).min();
    let end = end.and_then(|end| Timestamp::from_second(end).ok());
    let end = end.map_or_else(String::new, |end| format!("valid until {end}"));
    if is_renewal_due { format!("{end}; asked to be renewed") } else { end }
}

/// Returns so much of a hash as people need.
fn hash_prefix(sha256: &str) -> &str {
    sha256.get(..12).unwrap_or(sha256)
}

#[cfg(test)]
mod tests;
