//! What a Secret by which images are pulled holds, made of the credentials of a Registry.

use std::{collections::BTreeMap, fmt};

use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::RegistryTrouble;
use crate::api::containership::{RegistrySpec, name};

/// Providers of 2019 whose credentials end after hours, so that they would have to be renewed.
const EXPIRING: [&str; 1] = ["amazon_ec2_registry"];
/// Type and key of a Secret that kubelets pull with.
const DOCKER_CONFIG: (&str, &str) = ("kubernetes.io/dockerconfigjson", ".dockerconfigjson");
const BASIC_AUTH: &str = "kubernetes.io/basic-auth";

/// Content of a Secret that kubelets pull with. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct PullConfig {
    pub digest: String,
    content: Vec<u8>,
}

impl fmt::Debug for PullConfig {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PullConfig({})", self.digest)
    }
}

impl PullConfig {
    fn new(uid: &str, content: Vec<u8>) -> Self {
        // The uid of the Registry goes in, so that equal credentials of two are not seen to be equal.
        let hash =
            Sha256::new().chain_update(uid).chain_update(b"/").chain_update(&content).finalize();
        let mut head = [0; 8];
        head.copy_from_slice(&hash[..8]);
        let digest = format!("{:016x}", u64::from_be_bytes(head));
        Self { digest, content }
    }

    /// Builds the Secret of a Registry for a namespace; with the version of the one that it replaces.
    pub fn build_secret(
        &self,
        registry: &str,
        uid: &str,
        namespace: &str,
        version: Option<&str>,
    ) -> Secret {
        let mut secret = Secret::default();
        let meta = &mut secret.metadata;
        meta.name = Some(registry.to_owned());
        meta.namespace = Some(namespace.to_owned());
        meta.resource_version = version.map(str::to_owned);
        meta.labels = Some([(name::REGISTRY.to_owned(), uid.to_owned())].into());
        meta.annotations = Some([(name::REGISTRY_DIGEST.to_owned(), self.digest.clone())].into());
        secret.type_ = Some(DOCKER_CONFIG.0.to_owned());
        secret.data = Some([(DOCKER_CONFIG.1.to_owned(), ByteString(self.content.clone()))].into());
        secret
    }
}

/// Type of the Secret into which Navigator moves the credentials of a Registry.
pub const MOVED_CREDENTIALS: &str = "containership.io/registry-credentials";

/// Makes the content of the Secrets of a Registry. `source` is the Secret that it names, where there is
/// one.
///
/// # Errors
/// What a person has to mend.
pub fn pull_config(
    spec: &RegistrySpec,
    uid: &str,
    source: Option<&Secret>,
) -> Result<PullConfig, RegistryTrouble> {
    let provider = spec.provider.as_deref().unwrap_or_default();
    if EXPIRING.contains(&provider) {
        return Err(RegistryTrouble::Unsupported(format!(
            "the credentials of a registry of provider {provider} end after hours, and are not renewed"
        )));
    }
    let Some(secret_ref) = &spec.credentials_secret_ref else {
        let message = "neither credentials nor credentialsSecretRef is given".to_owned();
        return Err(RegistryTrouble::Credentials(message));
    };
    let unusable_error = |problem: &str| {
        RegistryTrouble::Credentials(format!("Secret {:?} {problem}", secret_ref.name))
    };
    let source = source.ok_or_else(|| unusable_error("is not there"))?;
    let data = source.data.as_ref();
    let text = |key: &str| {
        let value = data.and_then(|data| data.get(key)).map(|value| value.0.clone());
        value.and_then(|value| String::from_utf8(value).ok()).filter(|value| !value.is_empty())
    };
    let type_ = source.type_.as_deref().unwrap_or_default();
    if type_ == DOCKER_CONFIG.0 {
        let content = text(DOCKER_CONFIG.1).ok_or_else(|| unusable_error("is empty"))?;
        return Ok(PullConfig::new(uid, content.into_bytes()));
    }
    if type_ != BASIC_AUTH && type_ != MOVED_CREDENTIALS {
        return Err(unusable_error(&format!(
            "is of type {type_:?}, and must be of {BASIC_AUTH} or {}",
            DOCKER_CONFIG.0
        )));
    }
    let pair = text("username").zip(text("password"));
    let token = match pair {
        Some((user, password)) => BASE64_STANDARD.encode(format!("{user}:{password}")),
        None => text("token").ok_or_else(|| unusable_error("holds no username and password"))?,
    };
    let spec_server = spec.serveraddress.clone().filter(|server| !server.is_empty());
    let server = spec_server.or_else(|| text("endpoint"));
    let server = server
        .ok_or_else(|| RegistryTrouble::Credentials("serveraddress is missing".to_owned()))?;
    let mut entry = Map::from_iter([("auth".to_owned(), Value::from(token))]);
    if let Some(email) = spec.email.as_ref().filter(|email| !email.is_empty()) {
        entry.insert("email".to_owned(), email.clone().into());
    }
    let auths: BTreeMap<String, Value> = [(server, Value::from(entry))].into();
    Ok(PullConfig::new(uid, json!({"auths": auths}).to_string().into_bytes()))
}
