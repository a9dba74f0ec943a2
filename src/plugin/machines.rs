//! `machines`: upgrades and reboots of machines, and what they wait for.

use k8s_openapi::jiff::Timestamp;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};

use super::{
    error::Error,
    lookup::PluginSession,
    predicates::since,
    text::{OutputStyle, Screen, StyledText, TextTable, Tone, cell},
};
use crate::api::containership::{ClusterUpgrade, MachineWait, UpgradePhase};

impl PluginSession {
    /// Lists the ClusterUpgrades of one namespace, or of all namespaces, by age.
    ///
    /// # Errors
    /// When Kubernetes does not serve the kind, or does not answer.
    pub async fn upgrades(&self, namespace: Option<&str>) -> Result<Vec<ClusterUpgrade>, Error> {
        let api: Api<ClusterUpgrade> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let list = api.list(&ListParams::default()).await.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 404 => Error::NoClusterManager,
            error => Error::Server(error),
        })?;
        let mut runs = list.items;
        runs.sort_by_cached_key(|run| {
            (run.creation_timestamp().map(|time| time.0), run.name_any())
        });
        Ok(runs)
    }
}

/// Is no upgrade one that failed, or that waits for something?
pub fn are_well(runs: &[ClusterUpgrade]) -> bool {
    runs.iter()
        .filter_map(|run| run.status.as_ref())
        .all(|status| status.phase != Some(UpgradePhase::Failed) && status.waits_for.is_empty())
}

/// Draws the upgrades, and below them what they wait for.
pub fn screen(runs: &[ClusterUpgrade], now: Timestamp, style: OutputStyle) -> String {
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
    let mut waits = TextTable::new(&[
        ("UPGRADE", 0),
        ("MACHINE", 0),
        ("CLUSTER", 2),
        ("NODE", 1),
        ("WAITS-FOR", 0),
        ("SINCE", 1),
        ("MESSAGE", 0),
    ]);
    for run in runs {
        let status = run.status.clone().unwrap_or_default();
        let failed = if status.failed > 0 { status.failed.to_string() } else { String::new() };
        table.push(vec![
            cell(run.name_any(), Tone::Title),
            format!("{:?}", run.spec.type_).to_lowercase().into(),
            run.spec.target_version.clone().unwrap_or_default().into(),
            phase(status.phase),
            status.progress.unwrap_or_default().into(),
            cell(failed, Tone::Bad),
            status.current_node.unwrap_or_default().into(),
            run.creation_timestamp().map(|time| since(time.0, now)).unwrap_or_default().into(),
            status.message.unwrap_or_default().into(),
        ]);
        for MachineWait { machine, cluster, pilot, predicate, message, since: then } in
            status.waits_for
        {
            waits.push(vec![
                cell(run.name_any(), Tone::Title),
                machine.unwrap_or_default().into(),
                cluster.unwrap_or_default().into(),
                pilot.unwrap_or_default().into(),
                cell(predicate, Tone::Care),
                then.map(|then| since(then.0, now)).unwrap_or_default().into(),
                message.into(),
            ]);
        }
    }
    screen.table(0, &table.without_empty(&["TARGET", "DONE", "FAILED", "NODE", "MESSAGE"]));
    if !waits.is_empty() {
        screen.blank();
        screen.table(0, &waits.without_empty(&["MACHINE", "CLUSTER", "NODE"]));
    }
    screen.finish()
}

fn phase(phase: Option<UpgradePhase>) -> StyledText {
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
pub fn list_json(runs: &[ClusterUpgrade]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": runs})
}
