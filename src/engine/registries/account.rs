//! With which Secrets the pods of a ServiceAccount pull.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ServiceAccount;

use super::{PullSecret, RegistryWish};
use crate::api::containership::name;

/// A ServiceAccount, as far as Registries go by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountFacts {
    /// Its resourceVersion.
    pub version: String,
    /// Secrets that Registries had it pull with, by the annotation, joined by commas.
    pub ours: String,
    /// All Secrets that it pulls with.
    pub pulls: Vec<String>,
}

impl AccountFacts {
    /// Reads what matters of a ServiceAccount.
    pub fn new(account: &ServiceAccount) -> Self {
        let meta = &account.metadata;
        let own_secrets = meta.annotations.as_ref().and_then(|map| map.get(name::REGISTRY_SECRETS));
        let pulls = account.image_pull_secrets.iter().flatten();
        Self {
            version: meta.resource_version.clone().unwrap_or_default(),
            ours: own_secrets.cloned().unwrap_or_default(),
            pulls: pulls.map(|secret| secret.name.clone()).collect(),
        }
    }
}

/// One write of a ServiceAccount. The list is one value for Kubernetes, which merges no lists of this
/// kind: so it is written as a whole, with what others put there, where it still is as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountStep {
    pub namespace: String,
    pub name: String,
    /// resourceVersion of the ServiceAccount that is meant; without it, one is made.
    pub version: Option<String>,
    /// Secrets that Registries have it pull with, joined by commas.
    pub ours: String,
    /// All Secrets that it is to pull with.
    pub pulls: Vec<String>,
}

/// Decides which ServiceAccounts are written; `accounts` are by `namespace/name`. A Secret is named once
/// it stands.
pub fn account_steps(
    wishes: &[RegistryWish],
    existing_secrets: &BTreeMap<String, PullSecret>,
    accounts: &BTreeMap<String, AccountFacts>,
) -> Vec<AccountStep> {
    // By `namespace/name` of ServiceAccounts: the Secrets, in order.
    let mut desired_secrets: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for wish in wishes {
        let has_secret = |namespace: &str| {
            let secret = existing_secrets.get(&format!("{namespace}/{}", wish.name));
            secret.is_some_and(|secret| secret.registry == wish.uid)
        };
        let registry_secrets =
            existing_secrets.iter().filter(|(_, secret)| secret.registry == wish.uid);
        let secret_namespaces =
            registry_secrets.filter_map(|(key, _)| Some(key.split_once('/')?.0.to_owned()));
        // Where it cannot be said which namespaces are meant, those that have the Secret are.
        let namespaces = wish.namespaces.clone().unwrap_or_else(|| secret_namespaces.collect());
        for namespace in namespaces {
            for account in &wish.accounts {
                let secrets = desired_secrets.entry(format!("{namespace}/{account}")).or_default();
                if has_secret(&namespace) {
                    secrets.insert(&wish.name);
                }
            }
        }
    }
    let no_secrets = BTreeSet::new();
    let mut steps = Vec::new();
    for (key, secrets) in &desired_secrets {
        let is_managed_account = key.ends_with(&format!("/{}", name::SERVICE_ACCOUNT));
        match accounts.get(key) {
            Some(account) => steps.extend(plan_change(key, account, secrets)),
            None if is_managed_account => {
                let new_account = AccountFacts::default();
                steps.push(AccountStep { version: None, ..plan_step(key, &new_account, secrets) });
            }
            None => {}
        }
    }
    for (key, account) in accounts.iter().filter(|(key, _)| !desired_secrets.contains_key(*key)) {
        steps.extend(plan_change(key, account, &no_secrets));
    }
    steps
}

/// Returns how a ServiceAccount is written, where something is to be changed.
fn plan_change(key: &str, account: &AccountFacts, secrets: &BTreeSet<&str>) -> Option<AccountStep> {
    let step = plan_step(key, account, secrets);
    (step.ours != account.ours || step.pulls != account.pulls).then_some(step)
}

fn plan_step(key: &str, account: &AccountFacts, secrets: &BTreeSet<&str>) -> AccountStep {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    let mut pulls = account.pulls.clone();
    pulls.retain(|pull| {
        secrets.contains(pull.as_str())
            || !account.ours.split(',').any(|own_secret| own_secret == pull)
    });
    for secret in secrets {
        if !pulls.iter().any(|pull| pull == secret) {
            pulls.push((*secret).to_owned());
        }
    }
    AccountStep {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        version: Some(account.version.clone()),
        ours: secrets.iter().copied().collect::<Vec<_>>().join(","),
        pulls,
    }
}
