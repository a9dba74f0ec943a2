//! Which keys are signed, for which names, and when again. Pure.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::authorities::SigningAuthority;
use crate::{
    api::v1beta1::{
        CertificateRequest, CertificateSettings, NodeCertificate, PilotSecurity, SignedKey,
    },
    engine::pki::{
        CertificateUse, IssueError, KeyRequest, LeafOrder, TrustBundle, check_chain, check_proof,
        find_authority, needs_renewal,
    },
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

    fn for_usage(&self, usage: CertificateUse) -> Vec<String> {
        let clients = match usage {
            CertificateUse::Internode => &[][..],
            CertificateUse::Client => &self.clients[..],
        };
        let mut names = self.node.clone();
        for name in clients {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }
}

/// Is this key signed for a node? `record` is the key that was signed before, `accepted_key` what a
/// person wrote into the annotation `accept-key`.
///
/// # Errors
/// Why not, and what a person can do.
pub(super) fn check_key(
    record: Option<&SignedKey>,
    key: &str,
    volume: &str,
    accepted_key: Option<&str>,
) -> Result<(), String> {
    let Some(record) = record else { return Ok(()) };
    if record.sha256 == key || record.volume != volume || accepted_key == Some(key) {
        return Ok(());
    }
    Err(format!(
        "it asks for a certificate for the key {key}, and {} is the one on record for its volume; \
         if you replaced the key, annotate the Pilot with {}={key}",
        record.sha256,
        crate::api::names::annotation::ACCEPT_KEY
    ))
}

/// Returns since when each node is to have a new private key, where that is asked for by now.
pub(super) fn new_keys_at(settings: &CertificateSettings, now: Timestamp) -> Option<Time> {
    let requested_times =
        [&settings.keys_renewed_at, &settings.ca_rotated_at].into_iter().flatten();
    requested_times.filter(|time| time.0 <= now).max_by_key(|time| time.0).cloned()
}

/// Writes a record of a key into an annotation of what keeps the key.
pub(super) fn annotation_of(record: &SignedKey) -> String {
    let since = record.since.as_ref().map(|since| format!(" {}", since.0));
    format!("{}{}", record.sha256, since.unwrap_or_default())
}

/// Reads the record of a key from an annotation on what keeps the key.
pub(super) fn parse_annotation(text: &str, volume: &str) -> SignedKey {
    let (sha256, since) = text.split_once(' ').unwrap_or((text, ""));
    SignedKey {
        sha256: sha256.to_owned(),
        volume: volume.to_owned(),
        since: since.parse().ok().map(Time),
    }
}

/// Is the key on record to be replaced, by a request of this time?
pub(super) fn is_former(record: &SignedKey, asked_at: Option<&Time>) -> bool {
    let Some(asked_at) = asked_at else { return false };
    record.since.as_ref().is_none_or(|since| since.0.as_second() < asked_at.0.as_second())
}

/// Returns the new key that a node asks to have signed in place of the one on record; `None` where it
/// has made none for the request `asked_at` yet.
///
/// # Errors
/// When the key on record does not prove it.
pub(super) fn new_key(
    security: &PilotSecurity,
    request: &CertificateRequest,
    asked_at: Option<&Time>,
) -> Result<Option<KeyRequest>, String> {
    let (Some(record), Some(new_request)) = (&security.key, &request.new_key) else {
        return Ok(None);
    };
    if !is_former(record, asked_at)
        || security.new_key_at.as_ref() != asked_at
        || new_request.asked_at.as_ref() != asked_at
    {
        return Ok(None);
    }
    let key = KeyRequest::from_pem(&new_request.csr).map_err(|error| error.to_string())?;
    let is_own = |certificate: &&NodeCertificate| certificate.mounted_key.is_none();
    let certificates = [&security.internode_certificate, &security.client_certificate];
    let own_certificate = certificates.into_iter().flatten().find(is_own);
    let chain = own_certificate.map(|certificate| certificate.chain.as_str()).unwrap_or_default();
    check_proof(&new_request.proof, &key, &record.sha256, chain)
        .map_err(|error| format!("its new private key is not signed: {error}"))?;
    Ok(Some(key))
}

/// A key that is to be signed for a node.
pub(super) struct SigningOrder<'a> {
    pub(super) pilot: &'a str,
    /// What the node was told before.
    pub(super) told: &'a PilotSecurity,
    pub(super) key: KeyRequest,
    pub(super) record: SignedKey,
    pub(super) names: NodeNames,
    pub(super) key_state: KeyState,
}

/// Whether the key of a node may stay as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyState {
    /// It is the one on record, or the first one.
    Current,
    /// It is to be replaced: no CA signs it that has not done so before.
    Former,
    /// It takes the place of the one on record, in all certificates of the node at once.
    New,
}

impl SigningOrder<'_> {
    /// May this CA sign the key, for a node that was told `old_certificate`?
    pub(super) fn may_be_signed(
        &self,
        signing_authority: &SigningAuthority,
        old_certificate: Option<&NodeCertificate>,
        now: Timestamp,
    ) -> bool {
        if !signing_authority.may_sign || self.key_state != KeyState::Former {
            return signing_authority.may_sign;
        }
        old_certificate.is_some_and(|certificate| {
            let trust = TrustBundle::from_pem(certificate.trust.as_bytes()).unwrap_or_default();
            let authority_key = find_authority(&certificate.chain, &trust, now);
            authority_key == Some(signing_authority.authority.details().key_sha256)
        })
    }

    /// Is the node to be told another certificate than `old_certificate`?
    pub(super) fn is_due(
        &self,
        signing_authority: &SigningAuthority,
        usage: CertificateUse,
        old_certificate: Option<&NodeCertificate>,
        settings: &CertificateSettings,
        now: Timestamp,
    ) -> bool {
        if signing_authority.turn.as_deref() == Some(self.pilot) || self.key_state == KeyState::New
        {
            return true;
        }
        let Some(NodeCertificate { chain, .. }) = old_certificate else {
            return true;
        };
        let Some(details) = CertificateDetails::from_pem(chain) else { return true };
        let requested_at = settings.renewed_at.as_ref().map(|time| time.0.as_second());
        !check_chain(
            chain,
            &self.record.sha256,
            &signing_authority.trust,
            &self.names.for_usage(usage),
            now,
        )
        .is_empty()
            || needs_renewal(&details, self.pilot, now)
            || requested_at
                .is_some_and(|time| details.issue_time() < time && time <= now.as_second())
    }

    pub(super) fn issue_certificate(
        &self,
        signing_authority: &SigningAuthority,
        usage: CertificateUse,
        settings: &CertificateSettings,
        now: Timestamp,
    ) -> Result<NodeCertificate, IssueError> {
        let names = self.names.for_usage(usage);
        let is_address = |name: &&String| name.parse::<IpAddr>().is_ok();
        let (addresses, names): (Vec<_>, Vec<_>) = names.iter().partition(is_address);
        let names: Vec<String> = names.into_iter().cloned().collect();
        let addresses: Vec<IpAddr> =
            addresses.into_iter().filter_map(|text| text.parse().ok()).collect();
        let life =
            settings.duration.as_deref().and_then(go_duration::parse_duration).unwrap_or(LIFE);
        let order = LeafOrder {
            common_name: self.pilot,
            dns_names: &names,
            addresses: &addresses,
            usage,
            life,
        };
        let chain = signing_authority.authority.issue_certificate(&self.key, &order, now)?;
        Ok(NodeCertificate {
            chain,
            trust: signing_authority.trust.to_pem(),
            ..NodeCertificate::default()
        })
    }
}
