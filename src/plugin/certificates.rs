//! `certificates`: which certificates the nodes of a cluster show, until when, and by whose CAs.
//!
//! A node counts by what its own ports showed in a handshake. What the controller signed for it
//! stands in the Pilot's spec, and both are compared. All of it is public.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    logs::short_name,
    lookup::{ClusterObject, name_of},
    predicates::elapsed_time,
    text::{OutputStyle, Screen, StyledText, TextTable, Tone, cell},
};
use crate::{
    api::{
        object_picture::ConditionPicture,
        picture::NodePicture,
        v1beta1::{
            ClientTls, InternodeTls, NodeCertificate, Pilot, PilotSecurity, ServedCertificate,
        },
    },
    machinery::x509::CertificateDetails,
};

/// Condition of clusters and nodes about what their ports showed.
const CERTIFICATES_VALID: &str = "CertificatesValid";
/// Hexadecimal digits of a hash that are shown to people.
const DIGITS: usize = 12;

/// The certificate of one node for one use: what its port showed, and what was signed for it.
struct NodeUse<'a> {
    pilot: &'a Pilot,
    usage: &'static str,
    served: Option<&'a ServedCertificate>,
    signed: Option<CertificateDetails>,
}

impl<'a> NodeUse<'a> {
    fn new(
        pilot: &'a Pilot,
        usage: &'static str,
        served: Option<&'a ServedCertificate>,
        certificate: Option<&NodeCertificate>,
    ) -> Self {
        let signed =
            certificate.and_then(|certificate| CertificateDetails::from_pem(&certificate.chain));
        Self { pilot, usage, served, signed }
    }

    /// Does the port show what was signed last?
    fn is_current(&self) -> bool {
        let signed_hash = self.signed.as_ref().map(|signed| &signed.sha256);
        signed_hash.is_some() && signed_hash == self.served.map(|served| &served.sha256)
    }

    fn not_after(&self) -> Option<Timestamp> {
        self.served?.not_after.as_ref().map(|time| time.0)
    }

    /// What the port does not show yet.
    fn lag_reason(&self) -> Option<&'static str> {
        match (self.served, &self.signed) {
            (None, None) => Some("the node's key is not signed yet"),
            (None, Some(_)) => Some("its port has not shown a certificate"),
            (Some(_), None) => Some("nothing is signed for it"),
            (Some(_), Some(_)) if !self.is_current() => Some("another one was signed since"),
            (Some(_), Some(_)) => None,
        }
    }
}

/// A CA that nodes trust for one use.
struct TrustedAuthority {
    usage: &'static str,
    details: CertificateDetails,
    /// How many nodes are told to trust it.
    nodes: usize,
}

/// The certificates of one cluster.
pub struct ClusterCertificates<'a> {
    found: &'a ClusterObject,
    uses: Vec<NodeUse<'a>>,
    authorities: Vec<TrustedAuthority>,
    nodes: usize,
}

/// The ports of a node that encrypt, with what is told of each.
fn node_uses(pilot: &Pilot) -> impl Iterator<Item = NodeUse<'_>> {
    let spec_security = pilot.spec.security.as_ref();
    let status_security = pilot.status.security.as_ref();
    spec_security.into_iter().flat_map(move |security| {
        let PilotSecurity { internode, client, .. } = security;
        let internode = (*internode != InternodeTls::Off).then(|| {
            let served = status_security.and_then(|status| status.internode.as_ref());
            NodeUse::new(pilot, "internode", served, security.internode_certificate.as_ref())
        });
        let client = (*client != ClientTls::Off).then(|| {
            let served = status_security.and_then(|status| status.client.as_ref());
            NodeUse::new(pilot, "client", served, security.client_certificate.as_ref())
        });
        internode.into_iter().chain(client)
    })
}

/// The CAs that the nodes are told to trust, those of most nodes first.
fn trusted_authorities(pilots: &[Pilot]) -> Vec<TrustedAuthority> {
    let mut authorities = BTreeMap::<(&str, String), TrustedAuthority>::new();
    for security in pilots.iter().filter_map(|pilot| pilot.spec.security.as_ref()) {
        for (usage, certificate) in [
            ("internode", &security.internode_certificate),
            ("client", &security.client_certificate),
        ] {
            let bundle = certificate.as_ref().map_or("", |certificate| certificate.trust.as_str());
            for details in CertificateDetails::all_from_pem(bundle) {
                let entry = authorities.entry((usage, details.sha256.clone()));
                entry.or_insert(TrustedAuthority { usage, details, nodes: 0 }).nodes += 1;
            }
        }
    }
    let mut sorted_authorities: Vec<_> = authorities.into_values().collect();
    sorted_authorities
        .sort_by_key(|authority| (authority.usage == "client", std::cmp::Reverse(authority.nodes)));
    sorted_authorities
}

impl<'a> ClusterCertificates<'a> {
    pub fn new(cluster: &'a ClusterObject, pilots: &'a [Pilot]) -> Self {
        let uses = pilots.iter().flat_map(node_uses).collect();
        Self { found: cluster, uses, authorities: trusted_authorities(pilots), nodes: pilots.len() }
    }

    /// Returns the cluster's condition `CertificatesValid`.
    fn condition(&self) -> Option<ConditionPicture<'a>> {
        self.found.picture().find_condition(CERTIFICATES_VALID).copied()
    }

    /// Does every port show what was signed for it last, and is nothing wrong with it?
    pub fn are_well(&self, now: Timestamp) -> bool {
        self.condition().is_some_and(|condition| condition.is_true())
            && self.uses.iter().all(|node_use| {
                node_use.is_current()
                    && node_use.not_after().is_some_and(|end| end > now)
                    && failed_condition(node_use.pilot).is_none()
            })
    }

    /// Draws a row for each node and use, and below them the CAs.
    pub fn render(&self, now: Timestamp, style: OutputStyle) -> String {
        let mut screen = Screen::new(style);
        if let Some(condition) = self.condition() {
            let tone = if condition.is_true() { Tone::Good } else { Tone::Bad };
            let text = format!("{}: {}", condition.reason, condition.message);
            screen.paragraph(0, &text, tone);
            screen.blank();
        }
        let mut table = TextTable::new(&[
            ("NODE", 0),
            ("USE", 0),
            ("SERVED", 1),
            ("NOT-BEFORE", 3),
            ("NOT-AFTER", 2),
            ("LEFT", 0),
            ("CURRENT", 0),
            ("MESSAGE", 0),
        ]);
        for node_use in &self.uses {
            let served = node_use.served;
            let not_before =
                served.and_then(|served| served.not_before.as_ref()).map(|time| time.0);
            table.push(vec![
                cell(short_name(self.found.name(), name_of(node_use.pilot)), Tone::Title),
                node_use.usage.into(),
                served.map_or("", |served| short_hash(&served.sha256)).into(),
                not_before.map(|time| time.to_string()).unwrap_or_default().into(),
                node_use.not_after().map(|time| time.to_string()).unwrap_or_default().into(),
                remaining_time(node_use.not_after(), now),
                if node_use.is_current() {
                    cell("yes", Tone::Good)
                } else {
                    cell("no", Tone::Care)
                },
                use_message(node_use),
            ]);
        }
        screen.table(0, &table.without_empty(&["SERVED", "NOT-BEFORE", "NOT-AFTER", "MESSAGE"]));
        if !self.authorities.is_empty() {
            screen.blank();
            screen.table(0, &self.authority_table(now));
        }
        screen.finish()
    }

    fn authority_table(&self, now: Timestamp) -> TextTable {
        let mut table = TextTable::new(&[
            ("CA", 0),
            ("SHA256", 1),
            ("NOT-AFTER", 2),
            ("LEFT", 0),
            ("TRUSTED-BY", 0),
        ]);
        for TrustedAuthority { usage, details, nodes } in &self.authorities {
            let not_after = Timestamp::from_second(details.not_after).ok();
            let tone = if *nodes < self.nodes { Tone::Care } else { Tone::Plain };
            table.push(vec![
                cell(*usage, Tone::Title),
                short_hash(&details.sha256).into(),
                not_after.map(|time| time.to_string()).unwrap_or_default().into(),
                remaining_time(not_after, now),
                cell(format!("{nodes}/{} nodes", self.nodes), tone),
            ]);
        }
        table
    }

    /// Returns all of it for programs.
    pub fn json(&self) -> Value {
        let time = |second| Timestamp::from_second(second).ok();
        let details = |details: &CertificateDetails| {
            json!({
                "sha256": details.sha256,
                "issuer": details.issuer,
                "notBefore": time(details.not_before),
                "notAfter": time(details.not_after),
            })
        };
        let condition_json = |condition: ConditionPicture<'_>| {
            json!({
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
            })
        };
        let certificates = self.uses.iter().map(|node_use| {
            json!({
                "pilot": name_of(node_use.pilot),
                "use": node_use.usage,
                "served": node_use.served,
                "signed": node_use.signed.as_ref().map(details),
                "current": node_use.is_current(),
                "condition": certificates_condition(node_use.pilot).map(condition_json),
            })
        });
        let authorities = self.authorities.iter().map(|authority| {
            let mut value = details(&authority.details);
            value["use"] = json!(authority.usage);
            value["trustedBy"] = json!(authority.nodes);
            value
        });
        json!({
            "cluster": {
                "kind": self.found.kind.kind(),
                "namespace": self.found.namespace(),
                "name": self.found.name(),
                "condition": self.condition().map(condition_json),
            },
            "certificates": certificates.collect::<Vec<_>>(),
            "authorities": authorities.collect::<Vec<_>>(),
        })
    }
}

/// Returns the node's condition `CertificatesValid`.
fn certificates_condition(pilot: &Pilot) -> Option<ConditionPicture<'_>> {
    NodePicture::new(pilot).conditions().find(|condition| condition.type_ == CERTIFICATES_VALID)
}

/// The same, where it is not True.
fn failed_condition(pilot: &Pilot) -> Option<ConditionPicture<'_>> {
    certificates_condition(pilot).filter(|condition| !condition.is_true())
}

fn use_message(node_use: &NodeUse<'_>) -> StyledText {
    let lag = node_use.lag_reason().unwrap_or_default();
    match failed_condition(node_use.pilot) {
        Some(ConditionPicture { reason, message, .. }) => {
            cell(format!("{reason}: {message}"), Tone::Bad)
        }
        None => cell(lag, Tone::Care),
    }
}

/// Returns the time until `end`.
fn remaining_time(end: Option<Timestamp>, now: Timestamp) -> StyledText {
    match end {
        None => StyledText::default(),
        Some(end) if end <= now => cell("expired", Tone::Bad),
        Some(end) => elapsed_time(now, end).into(),
    }
}

fn short_hash(sha256: &str) -> &str {
    sha256.get(..DIGITS).unwrap_or(sha256)
}
