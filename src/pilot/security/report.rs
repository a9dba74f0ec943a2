//! What a pilot tells about the security of its node.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    api::v1beta1::{CertificateRequest, ClientConnections, PilotSecurityStatus, ServedCertificate},
    engine::pki::{TrustBundle, certificate_pem, find_authority},
    machinery::x509::CertificateDetails,
    pilot::tls::ServedPort,
};

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityReading {
    pub good: bool,
    pub reason: &'static str,
    pub message: String,
}

impl SecurityReading {
    pub(super) fn good(reason: &'static str, message: impl Into<String>) -> Self {
        Self { good: true, reason, message: message.into() }
    }

    pub(super) fn bad(reason: &'static str, message: impl Into<String>) -> Self {
        Self { good: false, reason, message: message.into() }
    }
}

/// What is told of a node that encrypts or asks for passwords.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityReport {
    /// What is to be signed.
    pub request: Option<CertificateRequest>,
    /// What the ports of the running database showed.
    pub internode: Option<ServedCertificate>,
    pub client: Option<ServedCertificate>,
    /// Revision of the users whom the running database has.
    pub users: Option<String>,
    /// How clients of the running database are connected, where it takes both.
    pub clients: Option<ClientConnections>,
    /// The condition `CertificatesValid`, while anything is to be encrypted.
    pub certificates: Option<SecurityReading>,
    /// The condition `UsersApplied`, while passwords are asked for.
    pub users_applied: Option<SecurityReading>,
}

impl SecurityReport {
    /// Returns the report as the API shows it; `is_up`: the database runs.
    pub fn build_status(&self, stored: Option<String>, is_up: bool) -> PilotSecurityStatus {
        let Self { request, internode, client, users, clients, certificates: _, users_applied: _ } =
            self;
        PilotSecurityStatus {
            stored,
            request: request.clone(),
            internode: internode.clone().filter(|_| is_up),
            client: client.clone().filter(|_| is_up),
            users: users.clone().filter(|_| is_up),
            clients: clients.clone().filter(|_| is_up),
            rungs: None,
        }
    }
}

/// Returns what a port showed, as the API shows it; `None` where that is no certificate. `trust`: the
/// CAs in its files.
pub(super) fn served_certificate(
    port: &ServedPort,
    trust: &TrustBundle,
    now: Timestamp,
) -> Option<ServedCertificate> {
    let pem = certificate_pem(&port.leaf);
    let leaf = CertificateDetails::from_pem(&pem)?;
    let time = |second| Timestamp::from_second(second).ok().map(Time);
    Some(ServedCertificate {
        not_before: time(leaf.not_before),
        not_after: time(leaf.not_after),
        sha256: leaf.sha256,
        authority: find_authority(&pem, trust, now),
        trust: trust.with_subjects(&port.accepts),
    })
}
