//! What the watches told of Registries, and which writes were refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Namespace, Secret, ServiceAccount},
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    core::PartialObjectMeta,
    runtime::{watcher, watcher::Event},
};
use tokio::time::Instant;

use crate::{
    api::{
        containership::{Registry, RegistrySpec, RegistryStatus, name},
        names,
    },
    coordinator::stirring::{WatchedLedger, watch_into},
    engine::registries::{
        self, AccountFacts, AccountStep, NamespaceFacts, PullSecret, RegistryProgress,
        RegistryWish, SecretStep, meant,
    },
    runtime::{
        Runtime,
        watch::{WatchedReplica, namespaced, paged},
    },
};

/// Secrets, and ServiceAccounts, that one look writes, at most: a second or two of work, so that a
/// namespace that is made meanwhile does not wait for long.
const BATCH: usize = 400;
/// How long a write that was refused is not tried again.
const REFUSED: Duration = Duration::from_secs(50);

/// What the watches told of Registries.
#[derive(Default)]
pub(crate) struct RegistryLedger {
    registries: WatchedReplica<Registry>,
    namespaces: WatchedReplica<NamespaceFacts>,
    /// Secrets of ours, by `namespace/name`.
    secrets: WatchedReplica<PullSecret>,
    /// By `namespace/name`.
    accounts: WatchedReplica<AccountFacts>,
    /// Versions of the Secrets of the core namespace: one of them may hold credentials.
    sources: WatchedReplica<String>,
    /// Writes that were refused, by `namespace/name` of the Secret or of the ServiceAccount.
    refused: BTreeMap<(RefusedKind, String), WriteRefusal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RefusedKind {
    Secret,
    Account,
}

struct WriteRefusal {
    at: Instant,
    /// In words; `None` where a Secret of another is in the way.
    why: Option<String>,
}

impl RegistryLedger {
    /// Returns the Registries; `None` until each watch was filled once.
    pub(super) fn registries(&self) -> Option<Vec<Registry>> {
        let filled = self.namespaces.held().is_some()
            && self.secrets.held().is_some()
            && self.accounts.held().is_some()
            && self.sources.held().is_some();
        let registries = self.registries.held().filter(|_| filled)?;
        Some(registries.values().cloned().collect())
    }

    pub(super) fn meant(&self, spec: &RegistrySpec) -> Result<BTreeSet<String>, String> {
        meant(spec, self.namespaces.held().unwrap_or(&BTreeMap::new()))
    }

    /// Decides which Secrets are written now, and whether there are more.
    pub(super) fn secret_steps(&mut self, wishes: &[RegistryWish]) -> (Vec<SecretStep>, bool) {
        let Some(held) = self.secrets.held() else { return (Vec::new(), false) };
        let steps = registries::secret_steps(wishes, held);
        self.due(RefusedKind::Secret, steps, |step| match step {
            SecretStep::Create { namespace, registry }
            | SecretStep::Replace { namespace, registry, .. } => format!("{namespace}/{registry}"),
            SecretStep::Delete { namespace, secret, .. } => format!("{namespace}/{secret}"),
        })
    }

    /// Decides which ServiceAccounts are written now, and whether there are more.
    pub(super) fn account_steps(&mut self, wishes: &[RegistryWish]) -> (Vec<AccountStep>, bool) {
        let (Some(held), Some(accounts)) = (self.secrets.held(), self.accounts.held()) else {
            return (Vec::new(), false);
        };
        let going = |step: &AccountStep| {
            let namespaces = self.namespaces.held();
            namespaces.and_then(|all| all.get(&step.namespace)).is_none_or(|one| one.deleting)
        };
        let mut steps = registries::account_steps(wishes, held, accounts);
        steps.retain(|step| !going(step));
        self.due(RefusedKind::Account, steps, |step| format!("{}/{}", step.namespace, step.name))
    }

    /// Leaves out what was refused just now, and forgets refusals of what is no step any more.
    fn due<S>(
        &mut self,
        kind: RefusedKind,
        mut steps: Vec<S>,
        key: impl Fn(&S) -> String,
    ) -> (Vec<S>, bool) {
        let wanted: BTreeSet<String> = steps.iter().map(&key).collect();
        self.refused.retain(|(of, key), _| *of != kind || wanted.contains(key));
        let now = Instant::now();
        steps.retain(|step| {
            let refusal = self.refused.get(&(kind, key(step)));
            refusal.is_none_or(|refusal| now.duration_since(refusal.at) >= REFUSED)
        });
        let more = steps.len() > BATCH;
        steps.truncate(BATCH);
        (steps, more)
    }

    /// Notes a write that was refused; without words, as a Secret of another is in the way.
    pub(super) fn note_refusal(&mut self, kind: RefusedKind, key: String, why: Option<String>) {
        self.refused.insert((kind, key), WriteRefusal { at: Instant::now(), why });
    }

    /// Notes a Secret of our own write, ahead of the watch.
    pub(super) fn note_secret(&mut self, secret: Secret) {
        self.secrets.note_by(secret, namespaced, pull_secret);
    }

    /// Notes that a Secret of ours is gone, ahead of the watch.
    pub(super) fn forget_secret(&mut self, namespace: &str, name: &str) {
        let mut secret = Secret::default();
        secret.metadata.namespace = Some(namespace.to_owned());
        secret.metadata.name = Some(name.to_owned());
        self.secrets.take_by(&Event::Delete(secret), namespaced, pull_secret);
    }

    pub(super) fn note_account(&mut self, account: ServiceAccount) {
        self.accounts.note_by(account, namespaced, AccountFacts::new);
    }

    /// Notes a Registry of our own write, ahead of the watch.
    pub(super) fn note_registry(&mut self, registry: Option<Registry>) {
        if let Some(registry) = registry {
            self.registries.note(registry, kept);
        }
    }

    /// Is nothing left of a Registry in any namespace?
    pub(super) fn is_clean(&self, registry: &Registry) -> bool {
        let (name, uid) = (registry.name_any(), registry.uid().unwrap_or_default());
        let mut secrets = self.secrets.held().into_iter().flat_map(BTreeMap::values);
        let mut accounts = self.accounts.held().into_iter().flat_map(BTreeMap::values);
        !secrets.any(|secret| secret.registry == uid)
            && !accounts.any(|account| account.ours.split(',').any(|secret| secret == name))
    }

    /// Returns the status of a Registry, with what was refused to it.
    pub(super) fn standing(
        &self,
        registry: &Registry,
        wish: &RegistryWish,
        progress: &mut RegistryProgress,
    ) -> RegistryStatus {
        for ((kind, key), refusal) in &self.refused {
            let Some((namespace, name)) = key.split_once('/') else { continue };
            let meant = wish.namespaces.as_ref().is_some_and(|all| all.contains(namespace));
            if !meant || *kind == RefusedKind::Secret && name != wish.name {
                continue;
            }
            match &refusal.why {
                None => progress.foreign.push(namespace.to_owned()),
                Some(why) => progress.failures.push(format!("{namespace}: {why}")),
            }
        }
        let held = self.secrets.held();
        let secret = |namespace: &str| held?.get(&format!("{namespace}/{}", wish.name));
        registries::standing(registry, wish, secret, progress, Timestamp::now())
    }

    /// Returns how many Secrets of ours there are.
    pub(super) fn count(&self) -> i64 {
        let count = self.secrets.held().map_or(0, BTreeMap::len);
        i64::try_from(count).unwrap_or(i64::MAX)
    }
}

fn pull_secret<K: ResourceExt>(secret: &K) -> PullSecret {
    PullSecret::new(secret.meta(), names::COORDINATOR)
}

fn kept(registry: &Registry) -> Registry {
    let mut registry = registry.clone();
    registry.metadata.managed_fields = None;
    registry
}

/// Starts the watches.
pub(crate) fn watch(
    client: &Client,
    namespace: &str,
    runtime: &Runtime,
) -> WatchedLedger<RegistryLedger> {
    let ledger: WatchedLedger<RegistryLedger> = WatchedLedger::default();
    let client = || client.clone();
    let registries = watcher(Api::<Registry>::namespaced(client(), namespace), paged());
    watch_into(runtime, "watch-registries", registries, &ledger, |all, event| {
        all.registries.take(event, kept)
    });
    let namespaces = watcher(Api::<PartialObjectMeta<Namespace>>::all(client()), paged());
    watch_into(runtime, "watch-namespaces", namespaces, &ledger, |all, event| {
        all.namespaces.take(event, |namespace| NamespaceFacts::new(&namespace.metadata))
    });
    let ours = paged().labels(name::REGISTRY);
    let secrets = watcher(Api::<PartialObjectMeta<Secret>>::all(client()), ours);
    watch_into(runtime, "watch-pull-secrets", secrets, &ledger, |all, event| {
        all.secrets.take_by(event, namespaced, pull_secret)
    });
    let accounts = watcher(Api::<ServiceAccount>::all(client()), paged());
    watch_into(runtime, "watch-serviceaccounts", accounts, &ledger, |all, event| {
        all.accounts.take_by(event, namespaced, AccountFacts::new)
    });
    let sources =
        watcher(Api::<PartialObjectMeta<Secret>>::namespaced(client(), namespace), paged());
    watch_into(runtime, "watch-credentials", sources, &ledger, |all, event| {
        all.sources.take(event, |secret| secret.resource_version().unwrap_or_default())
    });
    ledger
}
