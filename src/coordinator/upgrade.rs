//! One look: ClusterUpgrades are read, for each is decided what is done next, that is carried out, and
//! then the status is written.
//!
//! What must hold for the decision to be safe stands in `engine/machines`.

mod actions;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use kube::{
    Api, Client, Resource,
    api::{ListParams, PostParams},
};
use tracing::{debug, info};

use self::actions::RunHandle;
use super::{
    fleet::{FleetReader, FleetReading},
    look_error::LookError,
    metrics::Metrics,
    notices::status_notices,
};
use crate::{
    api::{
        containership::{ClusterUpgrade, ClusterUpgradeStatus, name},
        database_names::DatabaseNames,
        names,
    },
    engine::machines::{self, Decision, FleetView, OtherRun, RunFacts, UpgradeAction},
    runtime::events::EventPublisher,
};

/// Field manager of the coordinator's writes.
const MANAGER: &str = names::COORDINATOR;
/// What is said of an upgrade where upgrades are off.
const REFUSED: &str = "Unsupported: upgrades of machines are off here; the coordinator carries them \
                       out with --enable-cluster-upgrade";

/// Carries upgrades out, while this process leads.
pub(crate) struct UpgradeCoordinator {
    pub(crate) client: Client,
    /// Client whose writes fail once this process no longer leads.
    pub(crate) writer: Client,
    pub(crate) namespace: String,
    pub(crate) databases: Vec<&'static DatabaseNames>,
    /// Upgrades are on.
    pub(crate) enabled: bool,
    pub(crate) events: EventPublisher,
    pub(crate) metrics: Metrics,
    /// What the last eviction of a pod was answered where it was refused, by the pod's uid. It is for
    /// people only.
    pub(crate) refusals: BTreeMap<String, String>,
}

impl UpgradeCoordinator {
    /// Looks at every upgrade, oldest first, and takes off what runs that are over left on machines.
    ///
    /// # Errors
    /// The first failure; the other upgrades were looked at all the same.
    pub(crate) async fn reconcile(&mut self) -> Result<(), LookError> {
        let mut upgrades = self.list_upgrades().await?;
        let mut fleet = self.read_fleet(&upgrades).await?;
        let mut failure = None;
        let names: Vec<String> = upgrades.iter().map(name_of).collect();
        for name in names {
            let Some(upgrade) = upgrades.iter().find(|candidate| name_of(candidate) == name) else {
                continue;
            };
            let decision = self.decide(upgrade, &upgrades, &mut fleet.view);
            let status = upgrade.status.clone().unwrap_or_default();
            if decision.actions.is_empty() && decision.status == status {
                continue;
            }
            if let Err(error) = self.apply_decision(upgrade, &fleet, decision).await {
                debug!(upgrade = name, %error, "An upgrade was not brought further");
                failure = failure.or(Some(error));
            }
            // What follows goes by what was written, whether or not an answer came.
            upgrades = self.list_upgrades().await?;
            fleet = self.read_fleet(&upgrades).await?;
        }
        self.clean_up(&upgrades, &fleet).await.err().or(failure).map_or(Ok(()), Err)
    }

    /// Reads the upgrades, oldest first.
    async fn list_upgrades(&self) -> Result<Vec<ClusterUpgrade>, LookError> {
        let list = self.upgrade_api(&self.client).list(&ListParams::default()).await;
        let list = list.map_err(|error| LookError::for_request("read", "upgrades", error))?;
        let mut upgrades = list.items;
        upgrades.sort_by_cached_key(|upgrade| (creation_time(upgrade), name_of(upgrade)));
        Ok(upgrades)
    }

    async fn read_fleet(&mut self, upgrades: &[ClusterUpgrade]) -> Result<FleetReading, LookError> {
        let statuses = upgrades.iter().filter_map(|upgrade| upgrade.status.as_ref());
        let nodes =
            statuses.filter(|status| !status.is_finished()).flat_map(|status| &status.nodes);
        let awaited_clusters: Vec<String> = nodes.flat_map(|node| node.clusters.clone()).collect();
        let reader = FleetReader {
            client: &self.client,
            databases: &self.databases,
            refusals: &self.refusals,
            awaited: &awaited_clusters,
        };
        let fleet = reader.read_fleet(Timestamp::now()).await?;
        self.refusals.retain(|uid, _| fleet.view.pods.iter().any(|pod| pod.uid == *uid));
        Ok(fleet)
    }

    fn decide(
        &self,
        upgrade: &ClusterUpgrade,
        upgrades: &[ClusterUpgrade],
        fleet: &mut FleetView,
    ) -> Decision {
        fleet.others = other_upgrades(upgrade, upgrades);
        let status = upgrade.status.clone().unwrap_or_default();
        let meta = &upgrade.metadata;
        let facts = RunFacts {
            name: meta.name.as_deref().unwrap_or_default(),
            id: meta.uid.as_deref().unwrap_or_default(),
            created: creation_time(upgrade),
            generation: meta.generation.unwrap_or_default(),
            spec: &upgrade.spec,
            status: &status,
            deleting: meta.deletion_timestamp.is_some(),
            finalizer: meta
                .finalizers
                .iter()
                .flatten()
                .any(|finalizer| finalizer == name::UPGRADE_FINALIZER),
            retry: meta
                .annotations
                .as_ref()
                .and_then(|annotations| annotations.get(name::RETRY))
                .map(String::as_str),
        };
        let is_new = status.nodes.is_empty() && !status.is_finished() && !facts.deleting;
        if is_new && !self.enabled {
            machines::refuse_upgrade(&facts, fleet, REFUSED)
        } else {
            machines::plan_upgrade(&facts, fleet)
        }
    }

    /// Carries actions out in their order, and writes the status when all succeeded.
    async fn apply_decision(
        &mut self,
        upgrade: &ClusterUpgrade,
        fleet: &FleetReading,
        decision: Decision,
    ) -> Result<(), LookError> {
        let mut handle = Some(RunHandle::from_upgrade(upgrade));
        for action in &decision.actions {
            debug!(upgrade = name_of(upgrade), ?action, "Acting");
            match action {
                UpgradeAction::AddFinalizer
                | UpgradeAction::RemoveFinalizer
                | UpgradeAction::Delete => {
                    let Some(upgrade_handle) = handle else { break };
                    handle = self.change_upgrade(&upgrade_handle, action).await?;
                }
                action => self.apply_action(action, fleet).await?,
            }
        }
        match handle {
            Some(handle) => self.write_status(upgrade, handle, decision.status).await,
            None => Ok(()),
        }
    }

    /// Writes the status against the version that the upgrade was read in, or that our own write to it
    /// made.
    async fn write_status(
        &self,
        upgrade: &ClusterUpgrade,
        handle: RunHandle,
        status: ClusterUpgradeStatus,
    ) -> Result<(), LookError> {
        let old_status = upgrade.status.clone().unwrap_or_default();
        if status == old_status {
            return Ok(());
        }
        let mut updated_upgrade = upgrade.clone();
        updated_upgrade.metadata.resource_version = Some(handle.version);
        updated_upgrade.metadata.managed_fields = None;
        updated_upgrade.status = Some(status.clone());
        let params =
            PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let name = &handle.name;
        match self.upgrade_api(&self.writer).replace_status(name, &params, &updated_upgrade).await {
            Ok(_) => {}
            // A person deleted the upgrade, or the last finalizer was ours.
            Err(kube::Error::Api(answer)) if answer.code == 404 => return Ok(()),
            Err(error) => {
                return Err(LookError::for_request(
                    "write the status of",
                    &describe_upgrade(name),
                    error,
                ));
            }
        }
        self.metrics.count_done(&old_status, &status);
        let regarding: ObjectReference = upgrade.object_ref(&());
        for notice in status_notices(&old_status, &status) {
            info!(upgrade = name, reason = notice.reason, "{}", notice.note);
            self.events.publish(&regarding, &notice).await;
        }
        Ok(())
    }

    /// Takes off what runs that are over left on machines and Pilots.
    async fn clean_up(
        &mut self,
        upgrades: &[ClusterUpgrade],
        fleet: &FleetReading,
    ) -> Result<(), LookError> {
        let is_over = |upgrade: &ClusterUpgrade| {
            upgrade.status.as_ref().is_some_and(ClusterUpgradeStatus::is_finished)
        };
        let active_names: Vec<String> =
            upgrades.iter().filter(|upgrade| !is_over(upgrade)).map(name_of).collect();
        let active_names: Vec<&str> = active_names.iter().map(String::as_str).collect();
        let mut result = Ok(());
        for action in machines::sweep_marks(&fleet.view, &active_names) {
            debug!(?action, "Sweeping");
            // One that fails does not keep the others.
            result = result.and(self.apply_action(&action, fleet).await);
        }
        result
    }

    fn upgrade_api(&self, client: &Client) -> Api<ClusterUpgrade> {
        Api::namespaced(client.clone(), &self.namespace)
    }
}

/// Returns the runs beside this one that are not finished.
fn other_upgrades(upgrade: &ClusterUpgrade, upgrades: &[ClusterUpgrade]) -> Vec<OtherRun> {
    let to_other_run = |candidate: &ClusterUpgrade| {
        let status = candidate.status.clone().unwrap_or_default();
        let is_counted = !status.is_finished() && name_of(candidate) != name_of(upgrade);
        is_counted.then(|| OtherRun {
            name: name_of(candidate),
            created: creation_time(candidate),
            accepted: !status.nodes.is_empty(),
            under_way: status.nodes.iter().any(|node| node.phase.is_under_way()),
        })
    };
    upgrades.iter().filter_map(to_other_run).collect()
}

fn name_of(upgrade: &ClusterUpgrade) -> String {
    upgrade.metadata.name.clone().unwrap_or_default()
}

fn creation_time(upgrade: &ClusterUpgrade) -> Timestamp {
    upgrade.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0)
}

/// Names an upgrade in an error.
fn describe_upgrade(name: &str) -> String {
    format!("upgrade {name:?}")
}
