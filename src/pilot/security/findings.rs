//! Whether the certificates in a Pilot's spec are fit for its node. Pure.
//!
//! What is found here holds a start up, or keeps new certificates away from a database that runs. It
//! never takes anything from that database.

use std::net::IpAddr;

use jiff::Timestamp;

use super::SecurityReading;
use crate::{
    api::v1beta1::{ClientTls, InternodeTls, PilotSecurity, RequestReason},
    engine::pki::{BundleRefusal, CertificateProblem, CertificateUse, TrustBundle, is_due, judge},
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
    fn of(problem: &CertificateProblem) -> Self {
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
    fn request(self) -> Option<RequestReason> {
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
pub(super) fn find(question: &CertificateQuestion<'_>) -> Option<CertificateFindings> {
    let security = question.security;
    let wanted = [
        (CertificateUse::Internode, security.internode != InternodeTls::Off),
        (CertificateUse::Client, security.client != ClientTls::Off),
    ];
    let wanted: Vec<_> = wanted.into_iter().filter(|(_, on)| *on).map(|(usage, _)| usage).collect();
    if wanted.is_empty() {
        return None;
    }
    // Certificates for what is not encrypted are left out, so that their end means nothing.
    let given = NodeCertificates {
        internode: security.internode_certificate.clone(),
        client: security.client_certificate.clone(),
    };
    let given = NodeCertificates {
        internode: given.internode.filter(|_| wanted.contains(&CertificateUse::Internode)),
        client: given.client.filter(|_| wanted.contains(&CertificateUse::Client)),
    };
    let mut found: Vec<(FindingRank, String)> = Vec::new();
    let recorded = security.key.as_ref().map(|key| key.sha256.as_str());
    if let Some(other) = recorded.filter(|recorded| *recorded != question.key_sha256) {
        let own = question.key_sha256;
        found.push((
            FindingRank::ForeignKey,
            format!(
                "the key on record is {}…, and the key on this node's volume is {}…: certificates \
                 of another key are not used",
                start(other),
                start(own)
            ),
        ));
    }
    for usage in &wanted {
        examine(question, *usage, &given, &mut found);
    }
    let worst = found.iter().map(|(rank, _)| *rank).max();
    let details: Vec<_> = wanted.iter().filter_map(|usage| given.leaf(*usage)).collect();
    let due = wanted.iter().filter(|usage| !given.is_mounted(**usage)).any(|usage| {
        given.leaf(*usage).is_some_and(|leaf| is_due(&leaf, question.pilot, question.now))
    });
    let reading = match worst {
        Some(worst) => {
            let texts = found.iter().filter(|(rank, _)| *rank == worst).map(|(_, text)| text);
            let mut texts: Vec<_> = texts.map(String::as_str).collect();
            texts.dedup();
            SecurityReading::bad(worst.reason(), texts.join("; "))
        }
        None if details.iter().any(|leaf| is_overdue(leaf, question.now)) => {
            SecurityReading::bad("RenewalOverdue", current(&details, due))
        }
        None => SecurityReading::good("CertificatesCurrent", current(&details, due)),
    };
    // Due, or with an address that is not covered beside something graver.
    let request = worst
        .and_then(FindingRank::request)
        .or_else(|| due.then_some(RequestReason::Renewal))
        .unwrap_or(RequestReason::Standing);
    let usable = worst.is_none_or(|worst| worst == FindingRank::Uncovered);
    Some(CertificateFindings {
        reading,
        request,
        may_use_former: worst.is_some_and(FindingRank::may_use_former),
        awaits_key: found.iter().any(|(rank, _)| *rank == FindingRank::KeyAwaited),
        covers: worst.is_none(),
        usable: usable.then_some(given),
    })
}

/// Adds what is wrong with the certificate for one use.
fn examine(
    question: &CertificateQuestion<'_>,
    usage: CertificateUse,
    given: &NodeCertificates,
    found: &mut Vec<(FindingRank, String)>,
) {
    let CertificateQuestion { key_sha256, pilot, address, in_use, now, .. } = *question;
    let what = match usage {
        CertificateUse::Internode => "between nodes",
        CertificateUse::Client => "for clients",
    };
    let Some(one) = given.of(usage) else {
        let text = "the node's key waits to be signed by the controller";
        return found.push((FindingRank::Missing, text.to_owned()));
    };
    let trust = match TrustBundle::read(one.trust.as_bytes()) {
        Ok(trust) => trust,
        Err(refusal) => {
            let text = format!("{what}: the bundle of trusted CAs {}", told(&refusal));
            return found.push((FindingRank::Untrusted, text));
        }
    };
    let names = [pilot.to_owned(), address.to_string()];
    // One certificate for all nodes has names of its own; pilots go by the certificate itself.
    let (key_sha256, names) = match &one.mounted_key {
        Some(key) if question.mounted_sha256 != Some(key) => {
            let text =
                format!("{what}: its key is not mounted yet: kubelet brings it within two minutes");
            return found.push((FindingRank::KeyAwaited, text));
        }
        Some(key) => (key.as_str(), &[][..]),
        None => (key_sha256, &names[..]),
    };
    let problems = judge(&one.chain, key_sha256, &trust, names, now);
    found.extend(
        problems.iter().map(|problem| (FindingRank::of(problem), format!("{what}: {problem}"))),
    );
    if usage == CertificateUse::Client
        && question.security.asks_certificates()
        && one
            .clients
            .as_deref()
            .is_none_or(|clients| TrustBundle::read(clients.as_bytes()).is_err())
    {
        let text =
            format!("{what}: whose certificates they must show is not known: see client.clientCA");
        found.push((FindingRank::Untrusted, text));
    }
    // Peers that still show a certificate of the CA in use would be cut off.
    let used = in_use.and_then(|in_use| in_use.of(usage));
    let used = used.filter(|used| used.mounted_key.is_none() && one.mounted_key.is_none());
    let still = used.map(|used| judge(&used.chain, key_sha256, &trust, &[], now));
    let untrusted =
        |problem: &CertificateProblem| FindingRank::of(problem) == FindingRank::Untrusted;
    if still.is_some_and(|problems| problems.iter().any(untrusted)) {
        let text = format!("{what}: the new bundle lacks the CA of the certificate in use");
        found.push((FindingRank::Untrusted, text));
    }
}

/// Is half of what was left of a certificate's life over, when it was to be renewed?
fn is_overdue(leaf: &CertificateDetails, now: Timestamp) -> bool {
    now.as_second() >= leaf.made().saturating_add(leaf.life() / 6 * 5)
}

fn told(refusal: &BundleRefusal) -> String {
    refusal.to_string()
}

fn current(details: &[CertificateDetails], due: bool) -> String {
    let end = details.iter().map(|leaf| leaf.not_after).min();
    let end = end.and_then(|end| Timestamp::from_second(end).ok());
    let end = end.map_or_else(String::new, |end| format!("valid until {end}"));
    if due { format!("{end}; asked to be renewed") } else { end }
}

/// Returns so much of a hash as people need.
fn start(sha256: &str) -> &str {
    sha256.get(..12).unwrap_or(sha256)
}

#[cfg(test)]
mod tests;
