//! With which Secrets the pods of a ServiceAccount pull.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ServiceAccount;

use super::{PullSecret, RegistryWish};
use crate::api::containership::name;

/// A ServiceAccount, as far as Registries go by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountFacts {
    pub uid: String,
    /// Secrets that Registries had it pull with, by the annotation, joined by commas.
    pub ours: String,
    /// All Secrets that it pulls with, as far as a Registry has a Secret of the name.
    pub pulls: BTreeSet<String>,
}

impl AccountFacts {
    /// Reads what matters of a ServiceAccount.
    pub fn new(account: &ServiceAccount) -> Self {
        let meta = &account.metadata;
        let ours = meta.annotations.as_ref().and_then(|all| all.get(name::REGISTRY_SECRETS));
        let pulls = account.image_pull_secrets.iter().flatten();
        Self {
            uid: meta.uid.clone().unwrap_or_default(),
            ours: ours.cloned().unwrap_or_default(),
            pulls: pulls.map(|secret| secret.name.clone()).collect(),
        }
    }
}

/// One write of a ServiceAccount, by server-side apply: what is ours and not among `secrets` goes, and
/// what others wrote stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountStep {
    pub namespace: String,
    pub name: String,
    /// uid of the ServiceAccount that is meant; without it, one is made.
    pub uid: Option<String>,
    pub secrets: Vec<String>,
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
    let mut steps = Vec::new();
    let mut step = |key: &str, uid: Option<&String>, secrets: &BTreeSet<&str>| {
        let (namespace, name) = key.split_once('/').unwrap_or_default();
        steps.push(AccountStep {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.cloned(),
            secrets: secrets.iter().map(|secret| (*secret).to_owned()).collect(),
        });
    };
    for (key, secrets) in &wanted {
        match accounts.get(key) {
            Some(account) => {
                let joined = joined(secrets);
                let pulls = secrets.iter().all(|secret| account.pulls.contains(*secret));
                if account.ours != joined || !pulls {
                    step(key, Some(&account.uid), secrets);
                }
            }
            None if key.ends_with(&format!("/{}", name::SERVICE_ACCOUNT)) => {
                step(key, None, secrets);
            }
            None => {}
        }
    }
    for (key, account) in accounts {
        if !account.ours.is_empty() && !wanted.contains_key(key) {
            step(key, Some(&account.uid), &BTreeSet::new());
        }
    }
    steps
}

/// Returns the value of the annotation that names the Secrets.
fn joined(secrets: &BTreeSet<&str>) -> String {
    secrets.iter().copied().collect::<Vec<_>>().join(",")
}
