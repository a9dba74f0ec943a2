//! One certificate that a person gave for all nodes to show to clients.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{CLIENT_CERTIFICATE, secrets};
use crate::{
    api::v1beta1::{ClusterSecurity, NodeCertificate, Pilot},
    controller::{
        context::{ControllerContext, Error},
        desired_state::{ClusterService, DesiredCluster},
        security_findings::SecurityProblem,
    },
    engine::pki::{GivenCertificate, TrustBundle, check_chain},
    error::chain,
};

/// Key of the Secret with what clients are to trust.
const TRUST: &str = "ca.crt";

/// The certificate for clients, where it is not signed by a CA of the cluster.
pub(super) enum ClientCertificate {
    Given(GivenForClients),
    /// The Secret cannot be used: nodes go on with what they have.
    Unusable,
}

/// A certificate, with its private key. It cannot be printed.
pub(super) struct GivenForClients {
    certificate: NodeCertificate,
    pub(super) key_pem: String,
    pub(super) trust: TrustBundle,
    /// A name that clients use, and that the certificate does not hold.
    pub(super) lacks: Option<String>,
}

impl GivenForClients {
    /// Returns what changes in a Pilot's `spec.security`.
    pub(super) fn certificate_patch(&self, pilot: &Pilot) -> Map<String, Value> {
        let security = pilot.spec.security.as_ref();
        let old_certificate = security.and_then(|security| security.client_certificate.as_ref());
        let mut part = Map::new();
        // Whose certificates clients must show is told beside it.
        let old_certificate = old_certificate
            .map(|certificate| NodeCertificate { clients: None, ..certificate.clone() });
        if old_certificate.as_ref() != Some(&self.certificate) {
            part.insert(CLIENT_CERTIFICATE.to_owned(), json!(self.certificate));
        }
        part
    }

    /// The first digits of the public key's hash: another key has others.
    pub(super) fn key_prefix(&self) -> &str {
        self.certificate.mounted_key.as_deref().and_then(|key| key.get(..16)).unwrap_or_default()
    }
}

/// Reads the Secret with the certificate, where the spec names one.
pub(super) async fn read_certificate(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    security: &ClusterSecurity,
    now: Timestamp,
) -> Result<Option<Result<GivenForClients, SecurityProblem>>, Error> {
    let Some(name) = security.certificate_secret_name() else { return Ok(None) };
    let Some(secret) = secrets::read_secret(ctx, desired, name).await? else {
        let message = format!(
            "Secret {name}, which is to hold the certificate for clients, is not there: make it, \
             with tls.crt, tls.key and {TRUST}. Nodes go on with what they have"
        );
        return Ok(Some(Err(SecurityProblem { reason: "SecretMissing", message })));
    };
    let values = [secret.value("tls.crt"), secret.value("tls.key"), secret.value(TRUST)];
    Ok(Some(check_certificate(desired, values, now).map_err(|reason| {
        let message = format!("Secret {name}: {reason}. Nodes go on with what they have");
        SecurityProblem { reason: "SecretInvalid", message }
    })))
}

fn check_certificate(
    desired: &DesiredCluster,
    [certificate, key, trust]: [Option<&[u8]>; 3],
    now: Timestamp,
) -> Result<GivenForClients, String> {
    let user_certificate = GivenCertificate::from_pem(certificate, key, now);
    let user_certificate = user_certificate.map_err(|refusal| chain(&refusal).to_string())?;
    let trust = match trust.filter(|trust| !trust.trim_ascii().is_empty()) {
        Some(trust) => {
            TrustBundle::from_pem(trust).map_err(|refusal| format!("{TRUST} {refusal}"))?
        }
        // A public CA is known to clients, and what leads to it comes with the certificate.
        None => user_certificate.chain_bundle().ok_or_else(|| {
            format!("{TRUST} is missing: store there what clients are to trust, as PEM")
        })?,
    };
    let (chain, details) = (user_certificate.chain_pem(), user_certificate.details());
    let problems = check_chain(&chain, &details.key_sha256, &trust, &[], now);
    if let Some(problem) = problems.first() {
        return Err(format!("tls.crt: {problem}: store in {TRUST} the CA that it leads to"));
    }
    let services = (desired.database.services)(desired);
    let service = services.into_iter().find(ClusterService::is_for_clients);
    let host = service.map(|service| format!("{}.{}.svc", service.name, desired.namespace));
    let missing_name = host.filter(|host| {
        !check_chain(&chain, &details.key_sha256, &trust, std::slice::from_ref(host), now)
            .is_empty()
    });
    let certificate = NodeCertificate {
        chain,
        trust: trust.to_pem(),
        mounted_key: Some(details.key_sha256),
        clients: None,
    };
    Ok(GivenForClients {
        certificate,
        key_pem: user_certificate.key_pem(),
        trust,
        lacks: missing_name,
    })
}
