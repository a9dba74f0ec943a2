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
    engine::pki::{GivenCertificate, TrustBundle, judge},
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
    pub(super) fn told(&self, pilot: &Pilot) -> Map<String, Value> {
        let told = pilot.spec.security.as_ref();
        let before = told.and_then(|told| told.client_certificate.as_ref());
        let mut part = Map::new();
        // Whose certificates clients must show is told beside it.
        let before = before.map(|one| NodeCertificate { clients: None, ..one.clone() });
        if before.as_ref() != Some(&self.certificate) {
            part.insert(CLIENT_CERTIFICATE.to_owned(), json!(self.certificate));
        }
        part
    }

    /// The first digits of the public key's hash: another key has others.
    pub(super) fn mark(&self) -> &str {
        self.certificate.mounted_key.as_deref().and_then(|key| key.get(..16)).unwrap_or_default()
    }
}

/// Reads the Secret with the certificate, where the spec names one.
pub(super) async fn read(
    ctx: &ControllerContext,
    desired: &DesiredCluster,
    security: &ClusterSecurity,
    now: Timestamp,
) -> Result<Option<Result<GivenForClients, SecurityProblem>>, Error> {
    let Some(name) = security.given_certificate() else { return Ok(None) };
    let Some(secret) = secrets::given(ctx, desired, name).await? else {
        let message = format!(
            "Secret {name}, which is to hold the certificate for clients, is not there: make it, \
             with tls.crt, tls.key and {TRUST}. Nodes go on with what they have"
        );
        return Ok(Some(Err(SecurityProblem { reason: "SecretMissing", message })));
    };
    let values = [secret.value("tls.crt"), secret.value("tls.key"), secret.value(TRUST)];
    Ok(Some(judged(desired, values, now).map_err(|why| {
        let message = format!("Secret {name}: {why}. Nodes go on with what they have");
        SecurityProblem { reason: "SecretInvalid", message }
    })))
}

fn judged(
    desired: &DesiredCluster,
    [certificate, key, trust]: [Option<&[u8]>; 3],
    now: Timestamp,
) -> Result<GivenForClients, String> {
    let given = GivenCertificate::read(certificate, key, now);
    let given = given.map_err(|refusal| chain(&refusal).to_string())?;
    let trust = match trust.filter(|trust| !trust.trim_ascii().is_empty()) {
        Some(trust) => TrustBundle::read(trust).map_err(|refusal| format!("{TRUST} {refusal}"))?,
        // A public CA is known to clients, and what leads to it comes with the certificate.
        None => given.authorities().ok_or_else(|| {
            format!("{TRUST} is missing: store there what clients are to trust, as PEM")
        })?,
    };
    let (chain, details) = (given.chain_pem(), given.details());
    let problems = judge(&chain, &details.key_sha256, &trust, &[], now);
    if let Some(problem) = problems.first() {
        return Err(format!("tls.crt: {problem}: store in {TRUST} the CA that it leads to"));
    }
    let services = (desired.database.services)(desired);
    let service = services.into_iter().find(ClusterService::is_for_clients);
    let host = service.map(|service| format!("{}.{}.svc", service.name, desired.namespace));
    let lacks = host.filter(|host| {
        !judge(&chain, &details.key_sha256, &trust, std::slice::from_ref(host), now).is_empty()
    });
    let certificate = NodeCertificate {
        chain,
        trust: trust.to_pem(),
        mounted_key: Some(details.key_sha256),
        clients: None,
    };
    Ok(GivenForClients { certificate, key_pem: given.key_pem(), trust, lacks })
}
