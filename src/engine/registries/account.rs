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
        let ours = meta.annotations.as_ref().and_then(|all| all.get(name::REGISTRY_SECRETS));
        let pulls = account.image_pull_secrets.iter().flatten();
        Self {
            version: meta.resource_version.clone().unwrap_or_default(),
            ours: ours.cloned().unwrap_or_default(),
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
    held: &BTreeMap<String, PullSecret>,
    accounts: &BTreeMap<String, AccountFacts>,
) -> Vec<AccountStep> {
    // By `namespace/name` of ServiceAccounts: the Secrets, in order.
    let mut wanted: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for wish in wishes {
        let stands = |namespace: &str| {
            let secret = held.get(&format!("{namespace}/{}", wish.name));
            secret.is_some_and(|secret| secret.registry == wish.uid)
        };
        let known = held.iter().filter(|(_, secret)| secret.registry == wish.uid);
        let known = known.filter_map(|(key, _)| Some(key.split_once('/')?.0.to_owned()));
        // Where it cannot be said which namespaces are meant, those that have the Secret are.
        let namespaces = wish.namespaces.clone().unwrap_or_else(|| known.collect());
        for namespace in namespaces {
            for account in &wish.accounts {
                let secrets = wanted.entry(format!("{namespace}/{account}")).or_default();
                if stands(&namespace) {
                    secrets.insert(&wish.name);
                }
            }
        }
    }
    let none = BTreeSet::new();
    let mut steps = Vec::new();
    for (key, secrets) in &wanted {
        let made = key.ends_with(&format!("/{}", name::SERVICE_ACCOUNT));
        match accounts.get(key) {
            Some(account) => steps.extend(change(key, account, secrets)),
            None if made => {
                let there = AccountFacts::default();
                steps.push(AccountStep { version: None, ..step(key, &there, secrets) });
            }
            None => {}
        }
    }
    for (key, account) in accounts.iter().filter(|(key, _)| !wanted.contains_key(*key)) {
        steps.extend(change(key, account, &none));
    }
    steps
}

/// Returns how a ServiceAccount is written, where something is to be changed.
fn change(key: &str, account: &AccountFacts, secrets: &BTreeSet<&str>) -> Option<AccountStep> {
    let step = step(key, account, secrets);
    (step.ours != account.ours || step.pulls != account.pulls).then_some(step)
}

fn step(key: &str, account: &AccountFacts, secrets: &BTreeSet<&str>) -> AccountStep {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    let mut pulls = account.pulls.clone();
    pulls.retain(|pull| {
        secrets.contains(pull.as_str()) || !account.ours.split(',').any(|ours| ours == pull)
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
