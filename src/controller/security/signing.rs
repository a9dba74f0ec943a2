//! Which keys are signed, for which names, and when again. Pure.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::jiff::Timestamp;

use super::authorities::SigningAuthority;
use crate::{
    api::v1beta1::{CertificateSettings, NodeCertificate, PilotSecurity, SignedKey},
    engine::pki::{CertificateUse, IssueError, KeyRequest, LeafOrder, is_due, judge},
    machinery::{go_duration, x509::CertificateDetails},
};

/// Life of a certificate where the spec says none: 90 days.
const LIFE: Duration = Duration::from_secs(90 * 24 * 3600);

/// The names of a node. None of them comes from the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeNames {
    /// Names and addresses of the node alone.
    node: Vec<String>,
    /// What clients reach it by beside them.
    clients: Vec<String>,
}

impl NodeNames {
    /// The names of the pod `name` of the headless Service `subdomain`, with these addresses.
    pub(super) fn new(namespace: &str, name: &str, subdomain: &str, addresses: &[&str]) -> Self {
        let host = format!("{name}.{subdomain}.{namespace}.svc");
        let mut node = vec![name.to_owned(), format!("{host}.cluster.local"), host];
        node.push("localhost".to_owned());
        node.extend(addresses.iter().map(|address| (*address).to_owned()));
        node.extend(["127.0.0.1", "::1"].map(str::to_owned));
        node.dedup();
        Self { node, clients: Vec::new() }
    }

    pub(super) fn add_service(&mut self, name: &str, namespace: &str) {
        let host = format!("{name}.{namespace}.svc");
        self.clients.extend([
            name.to_owned(),
            format!("{name}.{namespace}"),
            format!("{host}.cluster.local"),
            host,
        ]);
    }

    pub(super) fn add_for_clients<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        self.clients.extend(names.map(str::to_owned));
    }

    fn of(&self, usage: CertificateUse) -> Vec<String> {
        let clients = match usage {
            CertificateUse::Internode => &[][..],
            CertificateUse::Client => &self.clients[..],
        };
        let mut all = self.node.clone();
        for name in clients {
            if !all.contains(name) {
                all.push(name.clone());
            }
        }
        all
    }
}

/// Is this key signed for a node? `record` is the key that was signed before, `word` what a person
/// wrote into the annotation `accept-key`.
///
/// # Errors
/// Why not, and what a person can do.
pub(super) fn accept(
    record: Option<&SignedKey>,
    key: &str,
    volume: &str,
    word: Option<&str>,
) -> Result<(), String> {
    let Some(record) = record else { return Ok(()) };
    if record.sha256 == key || record.volume != volume || word == Some(key) {
        return Ok(());
    }
    Err(format!(
        "it asks for a certificate for the key {key}, and {} is the one on record for its volume; \
         if you replaced the key, annotate the Pilot with {}={key}",
        record.sha256,
        crate::api::names::annotation::ACCEPT_KEY
    ))
}

/// A key that is to be signed for a node.
pub(super) struct SigningOrder<'a> {
    pub(super) pilot: &'a str,
    /// What the node was told before.
    pub(super) told: &'a PilotSecurity,
    pub(super) key: KeyRequest,
    pub(super) record: SignedKey,
    pub(super) names: NodeNames,
}

impl SigningOrder<'_> {
    /// Is the node to be told another certificate than `before`?
    pub(super) fn is_due(
        &self,
        signing: &SigningAuthority,
        usage: CertificateUse,
        before: Option<&NodeCertificate>,
        settings: &CertificateSettings,
        now: Timestamp,
    ) -> bool {
        if signing.turn.as_deref() == Some(self.pilot) {
            return true;
        }
        let Some(NodeCertificate { chain, .. }) = before else {
            return true;
        };
        let Some(details) = CertificateDetails::read(chain) else { return true };
        let asked = settings.renewed_at.as_ref().map(|time| time.0.as_second());
        !judge(chain, &self.record.sha256, &signing.trust, &self.names.of(usage), now).is_empty()
            || is_due(&details, self.pilot, now)
            || asked.is_some_and(|asked| details.made() < asked && asked <= now.as_second())
    }

    pub(super) fn sign(
        &self,
        signing: &SigningAuthority,
        usage: CertificateUse,
        settings: &CertificateSettings,
        now: Timestamp,
    ) -> Result<NodeCertificate, IssueError> {
        let names = self.names.of(usage);
        let is_address = |name: &&String| name.parse::<IpAddr>().is_ok();
        let (addresses, names): (Vec<_>, Vec<_>) = names.iter().partition(is_address);
        let names: Vec<String> = names.into_iter().cloned().collect();
        let addresses: Vec<IpAddr> =
            addresses.into_iter().filter_map(|text| text.parse().ok()).collect();
        let life = settings.duration.as_deref().and_then(go_duration::parse).unwrap_or(LIFE);
        let order = LeafOrder {
            common_name: self.pilot,
            dns_names: &names,
            addresses: &addresses,
            usage,
            life,
        };
        let chain = signing.authority.sign(&self.key, &order, now)?;
        Ok(NodeCertificate { chain, trust: signing.trust.to_pem(), ..NodeCertificate::default() })
    }
}
