//! Gauges about upgrades, by what the watch saw. Every coordinator shows them, leading or not.

use std::collections::BTreeMap;

use kube::runtime::watcher::Event;

use super::metrics::Metrics;
use crate::api::containership::{ClusterUpgrade, ClusterUpgradeStatus, MachinePhase};

const PHASES: [MachinePhase; 10] = [
    MachinePhase::Pending,
    MachinePhase::Cordon,
    MachinePhase::Drain,
    MachinePhase::Run,
    MachinePhase::Verify,
    MachinePhase::Uncordon,
    MachinePhase::Settle,
    MachinePhase::Done,
    MachinePhase::Failed,
    MachinePhase::Gone,
];

/// The statuses that the watch saw last, shown as metrics.
pub(crate) struct UpgradeGauges {
    metrics: Metrics,
    statuses: BTreeMap<String, ClusterUpgradeStatus>,
}

impl UpgradeGauges {
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { metrics, statuses: BTreeMap::new() }
    }

    pub(crate) fn record_event(&mut self, event: &Event<ClusterUpgrade>) {
        match event {
            Event::Apply(upgrade) | Event::InitApply(upgrade) => {
                let name = upgrade.metadata.name.clone().unwrap_or_default();
                self.statuses.insert(name, upgrade.status.clone().unwrap_or_default());
            }
            Event::Delete(upgrade) => {
                self.statuses.remove(upgrade.metadata.name.as_deref().unwrap_or_default());
            }
            Event::Init => self.statuses.clear(),
            Event::InitDone => {}
        }
        // A watch that is filled anew knows all only at its end.
        if !matches!(event, Event::Init | Event::InitApply(_)) {
            self.update_gauges();
        }
    }

    fn update_gauges(&self) {
        let Metrics { machines, waits, .. } = &self.metrics;
        for phase in PHASES {
            let nodes = self.statuses.values().flat_map(|status| &status.nodes);
            let count = nodes.filter(|node| node.phase == phase).count();
            let gauge = machines.with_label_values(&[format!("{phase:?}")]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let mut oldest_starts: BTreeMap<&str, i64> = BTreeMap::new();
        for wait in self.statuses.values().flat_map(|status| &status.waits_for) {
            if let Some(start_time) = &wait.since {
                let start_seconds = start_time.0.as_second();
                let oldest_start = oldest_starts.entry(&wait.predicate).or_insert(start_seconds);
                *oldest_start = start_seconds.min(*oldest_start);
            }
        }
        waits.reset();
        for (predicate, start_seconds) in oldest_starts {
            waits.with_label_values(&[predicate]).set(start_seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::core::Collector;
    use serde_json::{Value, json};

    use super::*;

    fn run(name: &str, status: &Value) -> ClusterUpgrade {
        serde_json::from_value(json!({
            "apiVersion": "provision.containership.io/v3", "kind": "ClusterUpgrade",
            "metadata": {"name": name}, "spec": {}, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn the_runs_that_there_are_are_counted_and_the_oldest_wait_is_shown() {
        let wait = |since: &str| json!({"predicate": "PeersUp", "since": since});
        let first = run(
            "a",
            &json!({
                "nodes": [{"name": "m-1", "phase": "Drain"}, {"name": "m-2"}],
                "waitsFor": [wait("1970-01-01T00:02:00Z"), wait("1970-01-01T00:01:00Z")],
            }),
        );
        let second = run("b", &json!({"nodes": [{"name": "m-3", "phase": "Failed"}]}));
        let metrics = Metrics::new();
        let mut gauges = UpgradeGauges::new(metrics.clone());
        let machines = |phase: &str| metrics.machines.with_label_values(&[phase]).get();
        let waits = || metrics.waits.collect()[0].get_metric().len();
        for event in [Event::Init, Event::InitApply(first.clone()), Event::InitApply(second)] {
            gauges.record_event(&event);
            assert_eq!(machines("Drain"), 0, "the watch is not filled yet");
        }
        gauges.record_event(&Event::InitDone);
        assert_eq!((machines("Drain"), machines("Pending"), machines("Failed")), (1, 1, 1));
        assert_eq!(metrics.waits.with_label_values(&["PeersUp"]).get(), 60);
        gauges.record_event(&Event::Delete(first));
        assert_eq!((machines("Drain"), machines("Failed"), waits()), (0, 1, 0));
    }
}
