//! The identities of clients on one host, and the credentials that each of them uses.
//!
//! A person and the controller use certificates; a pod uses a token, because a certificate cannot
//! say which pod it is for.

use std::net::SocketAddr;

use base64::{Engine, prelude::BASE64_STANDARD};
use kube::{Client, config::Kubeconfig};
use serde_json::{Value, json};

use super::{
    pki::Pki,
    tokens::{TokenAuthority, TokenClaims},
};
use crate::{api::names, apiserver::certs::issuer::CertificatePair};

/// The identity of a client of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientIdentity {
    /// The administrator, who may do everything.
    Admin,
    Controller,
    /// A pod's pilot: its ServiceAccount, and the name and uid of the pod.
    Pod {
        namespace: String,
        service_account: String,
        pod_name: String,
        pod_uid: String,
    },
}

/// Issues the credentials of identities.
pub(super) struct CredentialIssuer {
    address: SocketAddr,
    ca: String,
    admin: CertificatePair,
    controller: CertificatePair,
    tokens: TokenAuthority,
}

impl CredentialIssuer {
    pub(super) fn new(address: SocketAddr, pki: &Pki, tokens: TokenAuthority) -> Self {
        let (admin, controller) = (pki.admin.clone(), pki.controller.clone());
        Self { address, ca: pki.ca.certificate.clone(), admin, controller, tokens }
    }

    pub(super) fn build_kubeconfig(&self, identity: &ClientIdentity) -> String {
        let config = self.build_document(identity);
        serde_yaml::to_string(&config).expect("a Value has string keys only")
    }

    fn build_document(&self, identity: &ClientIdentity) -> Value {
        let encode = |text: &str| BASE64_STANDARD.encode(text);
        let by_certificate = |pair: &CertificatePair| {
            json!({
                "client-certificate-data": encode(&pair.certificate),
                "client-key-data": encode(&pair.key),
            })
        };
        let (name, user, namespace) = match identity {
            ClientIdentity::Admin => ("admin", by_certificate(&self.admin), "default"),
            ClientIdentity::Controller => {
                ("controller", by_certificate(&self.controller), names::NAMESPACE)
            }
            ClientIdentity::Pod { namespace, service_account, pod_name, pod_uid } => {
                let claims = TokenClaims {
                    namespace: namespace.clone(),
                    service_account: service_account.clone(),
                    pod_name: pod_name.clone(),
                    pod_uid: pod_uid.clone(),
                };
                ("pod", json!({"token": self.tokens.issue_token(&claims)}), namespace.as_str())
            }
        };
        const HERE: &str = "navigator-local";
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": HERE, "cluster": {
                "server": format!("https://{}", self.address),
                "certificate-authority-data": encode(&self.ca),
            }}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": HERE, "context": {
                "cluster": HERE, "user": name, "namespace": namespace,
            }}],
            "current-context": HERE,
        })
    }

    pub(super) async fn build_client(
        &self,
        identity: &ClientIdentity,
    ) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
        let config: Kubeconfig = serde_json::from_value(self.build_document(identity))?;
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(config, &options).await?;
        Ok(Client::try_from(config)?)
    }
}
