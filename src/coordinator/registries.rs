//! The Secrets and ServiceAccounts by which namespaces pull images, as Registries ask for them. What is
//! written is decided in `engine/registries`.
//!
//! Invariants: of Secrets in namespaces nothing is read but metadata, of those only that bear our label;
//! contents are read from the few Secrets that Registries name, and dropped with the look. A Registry
//! bears our finalizer before the first copy of its credentials is made, and until the last one is gone.

mod credentials;
mod ledger;
mod writes;

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use kube::{Client, ResourceExt};

pub(crate) use self::ledger::{RegistryLedger, watch_registries};
use self::writes::WriteEnd;
use super::{
    look_error::LookError,
    metrics::Metrics,
    stirring::{LookEnd, StatusWriter, StirredWork, WatchedLedger},
};
use crate::{
    api::containership::Registry,
    engine::registries::{
        PullConfig, RegistryProgress, RegistryTrouble, RegistryWish, pull_config,
    },
};

/// Writes that are under way at once.
const AT_ONCE: usize = 8;

/// Copies the credentials of Registries, while this process leads.
pub(crate) struct RegistryCoordinator {
    pub(super) seen: WatchedLedger<RegistryLedger>,
    pub(super) client: Client,
    pub(super) status: StatusWriter,
    pub(super) metrics: Metrics,
}

/// A Registry during one look.
struct RegistryTurn {
    registry: Registry,
    wish: RegistryWish,
    config: Option<PullConfig>,
    progress: RegistryProgress,
}

impl StirredWork for RegistryCoordinator {
    const WORK: &'static str = "registries";

    async fn wait_for_change(&self) {
        self.seen.wait_for_change().await;
    }

    async fn reconcile(&self) -> Result<LookEnd, LookError> {
        let Some(registries) = self.seen.lock().registries() else { return Ok(LookEnd::Done) };
        let mut failure = None;
        let (mut turns, mut unread_wishes) = (BTreeMap::new(), Vec::new());
        let (deleted_registries, live_registries): (Vec<_>, Vec<_>) = registries
            .into_iter()
            .partition(|registry| registry.metadata.deletion_timestamp.is_some());
        for registry in live_registries {
            let name = registry.name_any();
            let unchanged_wish = RegistryWish {
                name: name.clone(),
                uid: registry.uid().unwrap_or_default(),
                accounts: registry.spec.service_accounts.clone(),
                ..RegistryWish::default()
            };
            match self.prepare_registry(registry).await {
                Ok(turn) => drop(turns.insert(name, turn)),
                // What it asks for is not known, so all stays as it is.
                Err(error) => {
                    failure = failure.or(Some(error));
                    unread_wishes.push(unchanged_wish);
                }
            }
        }
        let mut wishes: Vec<RegistryWish> = turns.values().map(|turn| turn.wish.clone()).collect();
        wishes.extend(unread_wishes);
        let (secrets, has_more_secrets) = self.seen.lock().secret_steps(&wishes);
        let secrets = stream::iter(secrets).map(|step| self.write_secret(step, &turns));
        let secrets: Vec<WriteEnd> = secrets.buffer_unordered(AT_ONCE).collect().await;
        let (accounts, has_more_accounts) = self.seen.lock().account_steps(&wishes);
        let accounts = stream::iter(accounts).map(|step| self.write_account(step));
        let accounts: Vec<WriteEnd> = accounts.buffer_unordered(AT_ONCE).collect().await;

        let mut end = LookEnd::Done;
        for write_end in secrets.into_iter().chain(accounts) {
            match write_end {
                WriteEnd::Done => {}
                WriteEnd::Stale => end = LookEnd::Partly,
                WriteEnd::NotLeading => return Err(LookError::NotLeading),
            }
        }
        if has_more_secrets || has_more_accounts {
            end = LookEnd::More;
        }
        for registry in &deleted_registries {
            failure = self.finalize_registry(registry).await.err().or(failure);
        }
        for turn in turns.into_values() {
            failure = self.write_status(turn).await.err().or(failure);
        }
        self.metrics.registry_secrets.set(self.seen.lock().secret_count());
        failure.map_or(Ok(end), Err)
    }
}

impl RegistryCoordinator {
    /// Readies a Registry for this look: holds it, moves credentials out of it, reads them, and finds out
    /// for which namespaces it is meant.
    async fn prepare_registry(&self, registry: Registry) -> Result<RegistryTurn, LookError> {
        let registry = self.add_finalizer(registry).await?;
        let (registry, credential_trouble) = self.move_credentials(registry).await?;
        let uid = registry.uid().unwrap_or_default();
        let config = if let Some(trouble) = credential_trouble {
            Err(trouble)
        } else {
            let source = self.read_source(&registry).await?;
            pull_config(&registry.spec, &uid, source.as_ref())
        };
        let namespaces = self.seen.lock().target_namespaces(&registry.spec);
        let trouble = namespaces.clone().err().map(RegistryTrouble::Selector);
        let progress = RegistryProgress {
            trouble: trouble.or(config.clone().err()),
            ..RegistryProgress::default()
        };
        let config = config.ok();
        let wish = RegistryWish {
            name: registry.name_any(),
            uid,
            namespaces: namespaces.ok(),
            digest: config.as_ref().map(|config| config.digest.clone()),
            accounts: registry.spec.service_accounts.clone(),
        };
        Ok(RegistryTurn { registry, wish, config, progress })
    }

    async fn write_status(&self, turn: RegistryTurn) -> Result<(), LookError> {
        let RegistryTurn { registry, wish, config: _, mut progress } = turn;
        let old_status = registry.status.clone().unwrap_or_default();
        let new_status = self.seen.lock().registry_status(&registry, &wish, &mut progress);
        if new_status == old_status {
            return Ok(());
        }
        let registry = Registry { status: Some(new_status.clone()), ..registry };
        let written_registry = self
            .status
            .write_status(&registry, &old_status.conditions, &new_status.conditions)
            .await?;
        self.seen.lock().record_registry(written_registry);
        Ok(())
    }
}
