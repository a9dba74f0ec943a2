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
    notices::notices,
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
    pub(crate) async fn look(&mut self) -> Result<(), LookError> {
        let mut runs = self.runs().await?;
        let mut fleet = self.fleet(&runs).await?;
        let mut failure = None;
        let names: Vec<String> = runs.iter().map(name_of).collect();
        for name in names {
            let Some(run) = runs.iter().find(|run| name_of(run) == name) else { continue };
            let decision = self.decide(run, &runs, &mut fleet.view);
            let status = run.status.clone().unwrap_or_default();
            if decision.actions.is_empty() && decision.status == status {
                continue;
            }
            if let Err(error) = self.carry_out(run, &fleet, decision).await {
                debug!(upgrade = name, %error, "An upgrade was not brought further");
                failure = failure.or(Some(error));
            }
            // What follows goes by what was written, whether or not an answer came.
            runs = self.runs().await?;
            fleet = self.fleet(&runs).await?;
        }
        self.sweep(&runs, &fleet).await.err().or(failure).map_or(Ok(()), Err)
    }

    /// Reads the upgrades, oldest first.
    async fn runs(&self) -> Result<Vec<ClusterUpgrade>, LookError> {
        let list = self.upgrades(&self.client).list(&ListParams::default()).await;
        let list = list.map_err(|error| LookError::request("read", "upgrades", error))?;
        let mut runs = list.items;
        runs.sort_by_cached_key(|run| (created(run), name_of(run)));
        Ok(runs)
    }

    async fn fleet(&mut self, runs: &[ClusterUpgrade]) -> Result<FleetReading, LookError> {
        let statuses = runs.iter().filter_map(|run| run.status.as_ref());
        let nodes = statuses.filter(|status| !status.is_finished()).flat_map(|one| &one.nodes);
        let awaited: Vec<String> = nodes.flat_map(|node| node.clusters.clone()).collect();
        let reader = FleetReader {
            client: &self.client,
            databases: &self.databases,
            refusals: &self.refusals,
            awaited: &awaited,
        };
        let fleet = reader.read(Timestamp::now()).await?;
        self.refusals.retain(|uid, _| fleet.view.pods.iter().any(|pod| pod.uid == *uid));
        Ok(fleet)
    }

    fn decide(
        &self,
        run: &ClusterUpgrade,
        runs: &[ClusterUpgrade],
        fleet: &mut FleetView,
    ) -> Decision {
        fleet.others = others(run, runs);
        let status = run.status.clone().unwrap_or_default();
        let meta = &run.metadata;
        let facts = RunFacts {
            name: meta.name.as_deref().unwrap_or_default(),
            id: meta.uid.as_deref().unwrap_or_default(),
            created: created(run),
            generation: meta.generation.unwrap_or_default(),
            spec: &run.spec,
            status: &status,
            deleting: meta.deletion_timestamp.is_some(),
            finalizer: meta.finalizers.iter().flatten().any(|held| held == name::UPGRADE_FINALIZER),
            retry: meta
                .annotations
                .as_ref()
                .and_then(|all| all.get(name::RETRY))
                .map(String::as_str),
        };
        let is_new = status.nodes.is_empty() && !status.is_finished() && !facts.deleting;
        if is_new && !self.enabled {
            machines::refuse(&facts, fleet, REFUSED)
        } else {
            machines::next(&facts, fleet)
        }
    }

    /// Carries actions out in their order, and writes the status when all succeeded.
    async fn carry_out(
        &mut self,
        run: &ClusterUpgrade,
        fleet: &FleetReading,
        decision: Decision,
    ) -> Result<(), LookError> {
        let mut handle = Some(RunHandle::of(run));
        for action in &decision.actions {
            debug!(upgrade = name_of(run), ?action, "Acting");
            match action {
                UpgradeAction::AddFinalizer
                | UpgradeAction::RemoveFinalizer
                | UpgradeAction::Delete => {
                    let Some(held) = handle else { break };
                    handle = self.act_on_run(&held, action).await?;
                }
                action => self.act(action, fleet).await?,
            }
        }
        match handle {
            Some(handle) => self.write_status(run, handle, decision.status).await,
            None => Ok(()),
        }
    }

    /// Writes the status against the version that the upgrade was read in, or that our own write to it
    /// made.
    async fn write_status(
        &self,
        run: &ClusterUpgrade,
        handle: RunHandle,
        status: ClusterUpgradeStatus,
    ) -> Result<(), LookError> {
        let before = run.status.clone().unwrap_or_default();
        if status == before {
            return Ok(());
        }
        let mut written = run.clone();
        written.metadata.resource_version = Some(handle.version);
        written.metadata.managed_fields = None;
        written.status = Some(status.clone());
        let params =
            PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let name = &handle.name;
        match self.upgrades(&self.writer).replace_status(name, &params, &written).await {
            Ok(_) => {}
            // A person deleted the upgrade, or the last finalizer was ours.
            Err(kube::Error::Api(answer)) if answer.code == 404 => return Ok(()),
            Err(error) => {
                return Err(LookError::request("write the status of", &told(name), error));
            }
        }
        self.metrics.count_done(&before, &status);
        let regarding: ObjectReference = run.object_ref(&());
        for notice in notices(&before, &status) {
            info!(upgrade = name, reason = notice.reason, "{}", notice.note);
            self.events.publish(&regarding, &notice).await;
        }
        Ok(())
    }

    /// Takes off what runs that are over left on machines and Pilots.
    async fn sweep(
        &mut self,
        runs: &[ClusterUpgrade],
        fleet: &FleetReading,
    ) -> Result<(), LookError> {
        let is_over = |run: &ClusterUpgrade| {
            run.status.as_ref().is_some_and(ClusterUpgradeStatus::is_finished)
        };
        let active: Vec<String> = runs.iter().filter(|run| !is_over(run)).map(name_of).collect();
        let active: Vec<&str> = active.iter().map(String::as_str).collect();
        let mut swept = Ok(());
        for action in machines::sweep(&fleet.view, &active) {
            debug!(?action, "Sweeping");
            // One that fails does not keep the others.
            swept = swept.and(self.act(&action, fleet).await);
        }
        swept
    }

    fn upgrades(&self, client: &Client) -> Api<ClusterUpgrade> {
        Api::namespaced(client.clone(), &self.namespace)
    }
}

/// Returns the runs beside this one that are not finished.
fn others(run: &ClusterUpgrade, runs: &[ClusterUpgrade]) -> Vec<OtherRun> {
    let other = |other: &ClusterUpgrade| {
        let status = other.status.clone().unwrap_or_default();
        let counts = !status.is_finished() && name_of(other) != name_of(run);
        counts.then(|| OtherRun {
            name: name_of(other),
            created: created(other),
            accepted: !status.nodes.is_empty(),
            under_way: status.nodes.iter().any(|node| node.phase.is_under_way()),
        })
    };
    runs.iter().filter_map(other).collect()
}

fn name_of(run: &ClusterUpgrade) -> String {
    run.metadata.name.clone().unwrap_or_default()
}

fn created(run: &ClusterUpgrade) -> Timestamp {
    run.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0)
}

/// Names an upgrade in an error.
fn told(name: &str) -> String {
    format!("upgrade {name:?}")
}
