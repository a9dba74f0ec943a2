//! `machines`: upgrades and reboots of machines, and what they wait for.

use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};

use super::{
    error::Error,
    lookup::PluginSession,
    predicates::elapsed_time,
    text::{OutputStyle, Screen, StyledText, TextTable, Tone, cell},
};
use crate::api::containership::{ClusterUpgrade, MachineWait, UpgradePhase};

impl PluginSession {
    /// Lists the ClusterUpgrades of one namespace, or of all namespaces, by age.
    ///
    /// # Errors
    /// When Kubernetes does not serve the kind, or does not answer.
    pub async fn list_upgrades(
        &self,
        namespace: Option<&str>,
    ) -> Result<Vec<ClusterUpgrade>, Error> {
        let api: Api<ClusterUpgrade> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let list = api.list(&ListParams::default()).await.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 404 => Error::NoClusterManager,
            error => Error::Server(error),
        })?;
        let mut upgrades = list.items;
        upgrades.sort_by_cached_key(|upgrade| {
            (upgrade.creation_timestamp().map(|time| time.0), upgrade.name_any())
        });
        Ok(upgrades)
    }
}

/// Is no upgrade one that failed, or that waits for something?
pub fn are_well(upgrades: &[ClusterUpgrade]) -> bool {
    upgrades
        .iter()
        .filter_map(|upgrade| upgrade.status.as_ref())
        .all(|status| status.phase != Some(UpgradePhase::Failed) && status.waits_for.is_empty())
}

/// Draws the upgrades, and below them what they wait for.
pub fn render_upgrades(upgrades: &[ClusterUpgrade], now: Timestamp, style: OutputStyle) -> String {
    let mut screen = Screen::new(style);
    let mut table = TextTable::new(&[
        ("UPGRADE", 0),
        ("TYPE", 2),
        ("TARGET", 1),
        ("PHASE", 0),
        ("DONE", 0),
        ("FAILED", 1),
        ("NODE", 1),
        ("AGE", 2),
        ("MESSAGE", 0),
    ]);
    let mut wait_table = TextTable::new(&[
        ("UPGRADE", 0),
        ("MACHINE", 0),
        ("CLUSTER", 2),
        ("NODE", 1),
        ("WAITS-FOR", 0),
        ("SINCE", 1),
        ("MESSAGE", 0),
    ]);
    for upgrade in upgrades {
        let status = upgrade.status.clone().unwrap_or_default();
        let failed_count =
            if status.failed > 0 { status.failed.to_string() } else { String::new() };
        table.push(vec![
            cell(upgrade.name_any(), Tone::Title),
            format!("{:?}", upgrade.spec.type_).to_lowercase().into(),
            upgrade.spec.target_version.clone().unwrap_or_default().into(),
            phase_cell(status.phase),
            status.progress.unwrap_or_default().into(),
            cell(failed_count, Tone::Bad),
            status.current_node.unwrap_or_default().into(),
            upgrade
                .creation_timestamp()
                .map(|time| elapsed_time(time.0, now))
                .unwrap_or_default()
                .into(),
            status.message.unwrap_or_default().into(),
        ]);
        for MachineWait { machine, cluster, pilot, predicate, message, since: wait_start } in
            status.waits_for
        {
            wait_table.push(vec![
                cell(upgrade.name_any(), Tone::Title),
                machine.unwrap_or_default().into(),
                cluster.unwrap_or_default().into(),
                pilot.unwrap_or_default().into(),
                cell(predicate, Tone::Care),
                wait_start.map(|time| elapsed_time(time.0, now)).unwrap_or_default().into(),
                message.into(),
            ]);
        }
    }
    screen.table(0, &table.without_empty(&["TARGET", "DONE", "FAILED", "NODE", "MESSAGE"]));
    if !wait_table.is_empty() {
        screen.blank();
        screen.table(0, &wait_table.without_empty(&["MACHINE", "CLUSTER", "NODE"]));
    }
    screen.finish()
}

fn phase_cell(phase: Option<UpgradePhase>) -> StyledText {
    let tone = match phase {
        Some(UpgradePhase::Success) => Tone::Good,
        Some(UpgradePhase::Failed) => Tone::Bad,
        Some(_) => Tone::Care,
        None => Tone::Plain,
    };
    // Before the coordinator saw it, an upgrade has none.
    cell(phase.map_or_else(|| "New".to_owned(), |phase| format!("{phase:?}")), tone)
}

/// Returns the upgrades as JSON for programs.
pub fn list_json(upgrades: &[ClusterUpgrade]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": upgrades})
}
