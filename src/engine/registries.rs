//! Who pulls images with which credentials: the Secrets and ServiceAccounts that Registries ask for, in
//! every namespace that they are meant for.
//!
//! A Secret is Navigator's where it bears the uid of a Registry as label [`name::REGISTRY`], and no
//! other is ever changed. Nothing here holds the content of a Secret that stands somewhere: a digest
//! says whether it is as wanted, and the managers of its fields whether another client edited it.

mod account;
mod credentials;
mod standing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{Selector, SelectorExt};

pub use self::{
    account::{AccountFacts, AccountStep, account_steps},
    credentials::{MOVED_CREDENTIALS, PullConfig, pull_config},
    standing::{RegistryProgress, RegistryTrouble, build_registry_status},
};
use crate::api::containership::{RegistrySpec, name};

/// A namespace, as far as Registries go by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceFacts {
    pub labels: BTreeMap<String, String>,
    /// Its annotation says that no Registry is meant for it.
    pub opted_out: bool,
    pub deleting: bool,
}

impl NamespaceFacts {
    /// Reads what matters of a namespace.
    pub fn new(meta: &ObjectMeta) -> Self {
        let sync = meta.annotations.as_ref().and_then(|map| map.get(name::REGISTRY_SYNC));
        Self {
            labels: meta.labels.clone().unwrap_or_default(),
            opted_out: sync.is_some_and(|sync| sync == "disabled"),
            deleting: meta.deletion_timestamp.is_some(),
        }
    }
}

/// A Secret of ours that stands in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullSecret {
    /// uid of its Registry.
    pub registry: String,
    pub digest: String,
    /// Its resourceVersion.
    pub version: String,
    /// Another client wrote its content.
    pub edited: bool,
}

impl PullSecret {
    /// Reads what matters of a Secret of ours; `manager` is the field manager of our writes.
    pub fn new(meta: &ObjectMeta, manager: &str) -> Self {
        let text_of = |entries: &Option<BTreeMap<String, String>>, key: &str| {
            entries.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default()
        };
        let edited = meta.managed_fields.iter().flatten().any(|entry| {
            let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
            let has_content = fields.and_then(|fields| fields.get("f:data")).is_some();
            has_content && entry.manager.as_deref() != Some(manager)
        });
        Self {
            registry: text_of(&meta.labels, name::REGISTRY),
            digest: text_of(&meta.annotations, name::REGISTRY_DIGEST),
            version: meta.resource_version.clone().unwrap_or_default(),
            edited,
        }
    }
}

/// What one Registry asks for. One that is being deleted asks for nothing, and is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryWish {
    pub name: String,
    pub uid: String,
    /// Namespaces that are meant; `None` where that cannot be said, and all stays as it is.
    pub namespaces: Option<BTreeSet<String>>,
    /// Digest of what the Secrets are to hold; `None` where that is not known, and those that there are
    /// stay.
    pub digest: Option<String>,
    pub accounts: Vec<String>,
}

/// One write of a Secret, in a namespace. The version is that of the Secret that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretStep {
    Create { namespace: String, registry: String },
    Replace { namespace: String, registry: String, version: String },
    Delete { namespace: String, secret: String, version: String },
}

/// Returns the namespaces that a Registry is meant for.
///
/// # Errors
/// A sentence where its selector is none.
pub fn selected_namespaces(
    spec: &RegistrySpec,
    namespaces: &BTreeMap<String, NamespaceFacts>,
) -> Result<BTreeSet<String>, String> {
    let selector = spec.namespace_selector.clone().unwrap_or_default();
    let selector = Selector::try_from(selector)
        .map_err(|error| format!("namespaceSelector cannot be read: {error}"))?;
    let is_meant = |(name, facts): &(&String, &NamespaceFacts)| {
        !facts.opted_out
            && !facts.deleting
            && !spec.excluded_namespaces.contains(name)
            && selector.matches(&facts.labels)
    };
    Ok(namespaces.iter().filter(is_meant).map(|(name, _)| name.clone()).collect())
}

/// Decides which Secrets are written. `existing_secrets` has ours by `namespace/name`.
pub fn secret_steps(
    wishes: &[RegistryWish],
    existing_secrets: &BTreeMap<String, PullSecret>,
) -> Vec<SecretStep> {
    let by_name: BTreeMap<&str, &RegistryWish> =
        wishes.iter().map(|wish| (wish.name.as_str(), wish)).collect();
    let mut steps = Vec::new();
    for (key, secret) in existing_secrets {
        let (namespace, name) = key.split_once('/').unwrap_or_default();
        let wish = by_name.get(name).filter(|wish| match &wish.namespaces {
            Some(namespaces) => namespaces.contains(namespace),
            None => wish.uid == secret.registry,
        });
        let version = secret.version.clone();
        match wish {
            None => steps.push(SecretStep::Delete {
                namespace: namespace.to_owned(),
                secret: name.to_owned(),
                version,
            }),
            Some(wish) if wish.digest.is_some() && !is_current(wish, Some(secret)) => {
                steps.push(SecretStep::Replace {
                    namespace: namespace.to_owned(),
                    registry: name.to_owned(),
                    version,
                });
            }
            Some(_) => {}
        }
    }
    for wish in wishes.iter().filter(|wish| wish.digest.is_some()) {
        for namespace in wish.namespaces.iter().flatten() {
            if !existing_secrets.contains_key(&format!("{namespace}/{}", wish.name)) {
                steps.push(SecretStep::Create {
                    namespace: namespace.clone(),
                    registry: wish.name.clone(),
                });
            }
        }
    }
    steps
}

/// Is the Secret as wished?
fn is_current(wish: &RegistryWish, secret: Option<&PullSecret>) -> bool {
    secret.is_some_and(|secret| {
        secret.registry == wish.uid
            && wish.digest.as_ref() == Some(&secret.digest)
            && !secret.edited
    })
}
