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
        RegistryWish, SecretStep, selected_namespaces,
    },
    runtime::{
        Runtime,
        watch::{WatchedReplica, namespaced_key, paged_config},
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
        let is_filled = self.namespaces.objects().is_some()
            && self.secrets.objects().is_some()
            && self.accounts.objects().is_some()
            && self.sources.objects().is_some();
        let registries = self.registries.objects().filter(|_| is_filled)?;
        Some(registries.values().cloned().collect())
    }

    pub(super) fn target_namespaces(
        &self,
        spec: &RegistrySpec,
    ) -> Result<BTreeSet<String>, String> {
        selected_namespaces(spec, self.namespaces.objects().unwrap_or(&BTreeMap::new()))
    }

    /// Decides which Secrets are written now, and whether there are more.
    pub(super) fn secret_steps(&mut self, wishes: &[RegistryWish]) -> (Vec<SecretStep>, bool) {
        let Some(secrets) = self.secrets.objects() else { return (Vec::new(), false) };
        let steps = registries::secret_steps(wishes, secrets);
        self.due_steps(RefusedKind::Secret, steps, |step| match step {
            SecretStep::Create { namespace, registry }
            | SecretStep::Replace { namespace, registry, .. } => format!("{namespace}/{registry}"),
            SecretStep::Delete { namespace, secret, .. } => format!("{namespace}/{secret}"),
        })
    }

    /// Decides which ServiceAccounts are written now, and whether there are more.
    pub(super) fn account_steps(&mut self, wishes: &[RegistryWish]) -> (Vec<AccountStep>, bool) {
        let (Some(secrets), Some(accounts)) = (self.secrets.objects(), self.accounts.objects())
        else {
            return (Vec::new(), false);
        };
        let is_namespace_deleted = |step: &AccountStep| {
            let namespaces = self.namespaces.objects();
            namespaces
                .and_then(|facts| facts.get(&step.namespace))
                .is_none_or(|namespace| namespace.deleting)
        };
        let mut steps = registries::account_steps(wishes, secrets, accounts);
        steps.retain(|step| !is_namespace_deleted(step));
        self.due_steps(RefusedKind::Account, steps, |step| {
            format!("{}/{}", step.namespace, step.name)
        })
    }

    /// Leaves out what was refused just now, and forgets refusals of what is no step any more.
    fn due_steps<S>(
        &mut self,
        kind: RefusedKind,
        mut steps: Vec<S>,
        key: impl Fn(&S) -> String,
    ) -> (Vec<S>, bool) {
        let step_keys: BTreeSet<String> = steps.iter().map(&key).collect();
        self.refused
            .retain(|(refused_kind, key), _| *refused_kind != kind || step_keys.contains(key));
        let now = Instant::now();
        steps.retain(|step| {
            let refusal = self.refused.get(&(kind, key(step)));
            refusal.is_none_or(|refusal| now.duration_since(refusal.at) >= REFUSED)
        });
        let has_more = steps.len() > BATCH;
        steps.truncate(BATCH);
        (steps, has_more)
    }

    /// Notes a write that was refused; without words, as a Secret of another is in the way.
    pub(super) fn record_refusal(
        &mut self,
        kind: RefusedKind,
        key: String,
        reason: Option<String>,
    ) {
        self.refused.insert((kind, key), WriteRefusal { at: Instant::now(), why: reason });
    }

    /// Notes a Secret of our own write, ahead of the watch.
    pub(super) fn record_secret(&mut self, secret: Secret) {
        self.secrets.record_write_by(secret, namespaced_key, pull_secret);
    }

    /// Notes that a Secret of ours is gone, ahead of the watch.
    pub(super) fn remove_secret(&mut self, namespace: &str, name: &str) {
        let mut secret = Secret::default();
        secret.metadata.namespace = Some(namespace.to_owned());
        secret.metadata.name = Some(name.to_owned());
        self.secrets.apply_event_by(&Event::Delete(secret), namespaced_key, pull_secret);
    }

    pub(super) fn record_account(&mut self, account: ServiceAccount) {
        self.accounts.record_write_by(account, namespaced_key, AccountFacts::new);
    }

    /// Notes a Registry of our own write, ahead of the watch.
    pub(super) fn record_registry(&mut self, registry: Option<Registry>) {
        if let Some(registry) = registry {
            self.registries.record_write(registry, strip_managed_fields);
        }
    }

    /// Is nothing left of a Registry in any namespace?
    pub(super) fn is_clean(&self, registry: &Registry) -> bool {
        let (name, uid) = (registry.name_any(), registry.uid().unwrap_or_default());
        let mut secrets = self.secrets.objects().into_iter().flat_map(BTreeMap::values);
        let mut accounts = self.accounts.objects().into_iter().flat_map(BTreeMap::values);
        !secrets.any(|secret| secret.registry == uid)
            && !accounts.any(|account| account.ours.split(',').any(|secret| secret == name))
    }

    /// Returns the status of a Registry, with what was refused to it.
    pub(super) fn registry_status(
        &self,
        registry: &Registry,
        wish: &RegistryWish,
        progress: &mut RegistryProgress,
    ) -> RegistryStatus {
        for ((kind, key), refusal) in &self.refused {
            let Some((namespace, name)) = key.split_once('/') else { continue };
            let is_targeted =
                wish.namespaces.as_ref().is_some_and(|namespaces| namespaces.contains(namespace));
            if !is_targeted || *kind == RefusedKind::Secret && name != wish.name {
                continue;
            }
            match &refusal.why {
                None => progress.foreign.push(namespace.to_owned()),
                Some(reason) => progress.failures.push(format!("{namespace}: {reason}")),
            }
        }
        let secrets = self.secrets.objects();
        let secret = |namespace: &str| secrets?.get(&format!("{namespace}/{}", wish.name));
        registries::build_registry_status(registry, wish, secret, progress, Timestamp::now())
    }

    /// Returns how many Secrets of ours there are.
    pub(super) fn secret_count(&self) -> i64 {
        let count = self.secrets.objects().map_or(0, BTreeMap::len);
        i64::try_from(count).unwrap_or(i64::MAX)
    }
}

fn pull_secret<K: ResourceExt>(secret: &K) -> PullSecret {
    PullSecret::new(secret.meta(), names::COORDINATOR)
}

fn strip_managed_fields(registry: &Registry) -> Registry {
    let mut registry = registry.clone();
    registry.metadata.managed_fields = None;
    registry
}

/// Starts the watches.
pub(crate) fn watch_registries(
    client: &Client,
    namespace: &str,
    runtime: &Runtime,
) -> WatchedLedger<RegistryLedger> {
    let ledger: WatchedLedger<RegistryLedger> = WatchedLedger::default();
    let client = || client.clone();
    let registries = watcher(Api::<Registry>::namespaced(client(), namespace), paged_config());
    watch_into(runtime, "watch-registries", registries, &ledger, |state, event| {
        state.registries.apply_event(event, strip_managed_fields)
    });
    let namespaces = watcher(Api::<PartialObjectMeta<Namespace>>::all(client()), paged_config());
    watch_into(runtime, "watch-namespaces", namespaces, &ledger, |state, event| {
        state.namespaces.apply_event(event, |namespace| NamespaceFacts::new(&namespace.metadata))
    });
    let watch_config = paged_config().labels(name::REGISTRY);
    let secrets = watcher(Api::<PartialObjectMeta<Secret>>::all(client()), watch_config);
    watch_into(runtime, "watch-pull-secrets", secrets, &ledger, |state, event| {
        state.secrets.apply_event_by(event, namespaced_key, pull_secret)
    });
    let accounts = watcher(Api::<ServiceAccount>::all(client()), paged_config());
    watch_into(runtime, "watch-serviceaccounts", accounts, &ledger, |state, event| {
        state.accounts.apply_event_by(event, namespaced_key, AccountFacts::new)
    });
    let sources =
        watcher(Api::<PartialObjectMeta<Secret>>::namespaced(client(), namespace), paged_config());
    watch_into(runtime, "watch-credentials", sources, &ledger, |state, event| {
        state.sources.apply_event(event, |secret| secret.resource_version().unwrap_or_default())
    });
    ledger
}
