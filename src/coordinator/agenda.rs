//! When there is something to look at, by what the watches saw: so that an idle cluster is not asked
//! for anything.
//!
//! Nothing is decided by it but the time of a look; that reads anew.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::{SignedDuration, Timestamp},
};

use crate::api::containership::{ClusterUpgrade, UpgradePhase, name};

/// What the watches saw, as far as it says when to look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UpgradeAgenda {
    runs: BTreeMap<String, RunAgenda>,
    /// Nodes that bear a mark of ours.
    marked: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RunAgenda {
    /// When there is something to do; `None` where nothing is.
    due: Option<Timestamp>,
    under_way: bool,
}

impl UpgradeAgenda {
    pub(crate) fn record_upgrade(&mut self, upgrade: &ClusterUpgrade) {
        let phase = upgrade.status.as_ref().and_then(|status| status.phase);
        let is_under_way = phase == Some(UpgradePhase::InProgress);
        let agenda = RunAgenda { due: next_due_time(upgrade), under_way: is_under_way };
        self.runs.insert(upgrade.metadata.name.clone().unwrap_or_default(), agenda);
    }

    pub(crate) fn remove_upgrade(&mut self, name: &str) {
        self.runs.remove(name);
    }

    pub(crate) fn clear_upgrades(&mut self) {
        self.runs.clear();
    }

    pub(crate) fn record_node(&mut self, node: &ObjectMeta) {
        let has_mark = |mark: &str| {
            node.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(mark))
        };
        let node = node.name.as_deref().unwrap_or_default();
        if has_mark(name::CORDONED_BY) || has_mark(name::TAINTED_BY) {
            self.marked.insert(node.to_owned());
        } else {
            self.marked.remove(node);
        }
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        self.marked.remove(name);
    }

    pub(crate) fn clear_nodes(&mut self) {
        self.marked.clear();
    }

    /// Is there something to do?
    pub(crate) fn needs_reconcile(&self, now: Timestamp) -> bool {
        let is_due = |run: &RunAgenda| run.due.is_some_and(|due| due <= now);
        !self.marked.is_empty() || self.runs.values().any(is_due)
    }

    /// Is a run in progress?
    pub(crate) fn is_under_way(&self) -> bool {
        self.runs.values().any(|run| run.under_way)
    }
}

/// Returns when there is something to do for an upgrade; `None` where nothing is.
fn next_due_time(upgrade: &ClusterUpgrade) -> Option<Timestamp> {
    let meta = &upgrade.metadata;
    let at_once = Some(Timestamp::MIN);
    let Some(status) = upgrade.status.as_ref().filter(|status| status.is_finished()) else {
        return at_once;
    };
    let has_finalizer =
        meta.finalizers.iter().flatten().any(|finalizer| finalizer == name::UPGRADE_FINALIZER);
    if has_finalizer {
        return at_once;
    }
    if meta.deletion_timestamp.is_some() {
        return None;
    }
    let retry = meta.annotations.as_ref().and_then(|annotations| annotations.get(name::RETRY));
    let has_failed = status.phase == Some(UpgradePhase::Failed);
    if has_failed && retry.is_some() && retry != status.retried.as_ref() {
        return at_once;
    }
    let ttl = SignedDuration::from_secs(upgrade.spec.ttl_seconds_after_finished?.into());
    status.completion_time.as_ref()?.0.checked_add(ttl).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn run(more: &Value) -> ClusterUpgrade {
        let mut run = json!({
            "apiVersion": "provision.containership.io/v3", "kind": "ClusterUpgrade",
            "metadata": {"name": "a"}, "spec": {"targetVersion": "v1.34.4"},
        });
        json_patch::merge(&mut run, more);
        serde_json::from_value(run).unwrap()
    }

    #[test]
    fn only_what_is_to_be_done_makes_a_look_due() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let end = "2026-01-01T00:00:00Z";
        let ended = |phase: &str| json!({"phase": phase, "completionTime": end});
        let (soon, later) = (at("2026-01-01T00:00:59Z"), at("2026-01-01T00:01:00Z"));
        for (given, early, late) in [
            (json!({}), true, true),
            (json!({"status": {"phase": "InProgress"}}), true, true),
            (json!({"status": ended("Success")}), false, false),
            (json!({"status": ended("Failed")}), false, false),
            (
                json!({"status": ended("Success"), "spec": {"ttlSecondsAfterFinished": 60}}),
                false,
                true,
            ),
            (
                json!({
                    "status": ended("Failed"),
                    "metadata": {"annotations": {"containership.io/retry": "1"}},
                }),
                true,
                true,
            ),
            (
                json!({
                    "status": ended("Success"),
                    "metadata": {"finalizers": ["provision.containership.io/upgrade"]},
                }),
                true,
                true,
            ),
        ] {
            let mut agenda = UpgradeAgenda::default();
            agenda.record_upgrade(&run(&given));
            assert_eq!(agenda.needs_reconcile(soon), early, "{given}");
            assert_eq!(agenda.needs_reconcile(later), late, "{given}");
            agenda.remove_upgrade("a");
            assert!(!agenda.needs_reconcile(later));
        }
    }

    #[test]
    fn a_mark_on_a_node_is_looked_at_until_it_is_gone() {
        let node = |annotations: Value| {
            let meta = json!({"name": "m-1", "annotations": annotations});
            serde_json::from_value::<ObjectMeta>(meta).unwrap()
        };
        let mut agenda = UpgradeAgenda::default();
        agenda.record_node(&node(json!({"else": "x"})));
        assert!(!agenda.needs_reconcile(Timestamp::MIN));
        agenda.record_node(&node(json!({"containership.io/tainted-by": "x"})));
        assert!(agenda.needs_reconcile(Timestamp::MIN));
        agenda.record_node(&node(json!({})));
        assert!(!agenda.needs_reconcile(Timestamp::MIN));
    }
}
