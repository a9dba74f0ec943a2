//! The coordinator's own metrics.

use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    core::Collector,
};

use crate::api::containership::{ClusterUpgradeStatus, MachinePhase};

/// Seconds that a machine may take from its cordon until its databases serve again.
const MACHINE_SECONDS: [f64; 9] =
    [60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14_400.0];

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// `navigator_coordinator_leader`: 1 while this process leads.
    pub(crate) leader: IntGauge,
    /// `navigator_coordinator_looks_total{outcome}`: looks at upgrades.
    pub(crate) looks: IntCounterVec,
    /// `navigator_coordinator_evictions_total{result}`: evictions that were asked for.
    pub(crate) evictions: IntCounterVec,
    /// `navigator_coordinator_upgrade_nodes{phase}`: machines of the ClusterUpgrades that there are.
    pub(crate) machines: IntGaugeVec,
    /// `navigator_coordinator_waits_since_timestamp_seconds{predicate}`: since when the oldest wait
    /// for a rule holds.
    pub(crate) waits: IntGaugeVec,
    /// `navigator_coordinator_upgrade_node_seconds`: how long machines took that are done.
    pub(crate) machine_seconds: Histogram,
    /// `navigator_coordinator_label_patches_total`: Nodes whose labels were changed.
    pub(crate) label_patches: IntCounter,
    /// `navigator_coordinator_plugin_ready{plugin}`: 1 where the version that is asked for stands.
    pub(crate) plugin_ready: IntGaugeVec,
    /// `navigator_coordinator_registry_secrets`: Secrets that Registries had made, and that stand.
    pub(crate) registry_secrets: IntGauge,
    /// `navigator_coordinator_hub_last_success_timestamp_seconds`: when the hub was last asked and
    /// followed without any failure. It is absent where no hub is set, or another coordinator leads.
    pub(crate) hub_last_success: IntGaugeVec,
    /// `navigator_coordinator_hub_requests_total{code}`: requests to the hub.
    pub(crate) hub_requests: IntCounterVec,
    /// `navigator_coordinator_hub_objects{kind}`: objects that the hub wants.
    pub(crate) hub_objects: IntGaugeVec,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> Self {
        let metrics = Self::new();
        for collector in metrics.collectors() {
            registry.register(collector).expect("the registry holds no metric of this name");
        }
        metrics
    }

    pub(super) fn collectors(&self) -> Vec<Box<dyn Collector>> {
        let Self {
            leader,
            looks,
            evictions,
            machines,
            waits,
            machine_seconds,
            label_patches,
            plugin_ready,
            registry_secrets,
            hub_last_success,
            hub_requests,
            hub_objects,
        } = self;
        vec![
            Box::new(leader.clone()),
            Box::new(looks.clone()),
            Box::new(evictions.clone()),
            Box::new(machines.clone()),
            Box::new(waits.clone()),
            Box::new(machine_seconds.clone()),
            Box::new(label_patches.clone()),
            Box::new(plugin_ready.clone()),
            Box::new(registry_secrets.clone()),
            Box::new(hub_last_success.clone()),
            Box::new(hub_requests.clone()),
            Box::new(hub_objects.clone()),
        ]
    }

    /// Counts the machines that a written status says are done, and the one before did not.
    pub(crate) fn count_done(
        &self,
        old_status: &ClusterUpgradeStatus,
        new_status: &ClusterUpgradeStatus,
    ) {
        let was_done = |name: &str| {
            let mut nodes = old_status.nodes.iter();
            nodes.any(|node| node.name == name && node.phase == MachinePhase::Done)
        };
        for node in &new_status.nodes {
            // A machine that was as wanted before its turn began never.
            if node.phase == MachinePhase::Done
                && !was_done(&node.name)
                && let (Some(start), Some(end)) = (&node.start_time, &node.completion_time)
            {
                self.machine_seconds.observe(end.0.duration_since(start.0).as_secs_f64());
            }
        }
    }

    pub(super) fn new() -> Self {
        let counter = |name: &str, help: &str, label| {
            IntCounterVec::new(Opts::new(name, help), &[label])
                .expect("the metric's name and labels are valid")
        };
        let gauge = |name: &str, help: &str, label| {
            IntGaugeVec::new(Opts::new(name, help), &[label])
                .expect("the metric's name and labels are valid")
        };
        let machine_seconds = HistogramOpts::new(
            "navigator_coordinator_upgrade_node_seconds",
            "How long a machine took from its cordon until its databases served again.",
        );
        Self {
            leader: IntGauge::new("navigator_coordinator_leader", "1 while this process leads.")
                .expect("the metric's name is valid"),
            looks: counter(
                "navigator_coordinator_looks_total",
                "Looks at upgrades of machines, by how they ended.",
                "outcome",
            ),
            evictions: counter(
                "navigator_coordinator_evictions_total",
                "Evictions that were asked for, by what was answered.",
                "result",
            ),
            machines: gauge(
                "navigator_coordinator_upgrade_nodes",
                "Machines of the ClusterUpgrades that there are, by phase.",
                "phase",
            ),
            waits: gauge(
                "navigator_coordinator_waits_since_timestamp_seconds",
                "Since when an upgrade of machines waits for a rule, by the oldest wait.",
                "predicate",
            ),
            machine_seconds: Histogram::with_opts(
                machine_seconds.buckets(MACHINE_SECONDS.to_vec()),
            )
            .expect("the metric's name and buckets are valid"),
            label_patches: IntCounter::new(
                "navigator_coordinator_label_patches_total",
                "Changes of labels of nodes, as ClusterLabels and NodePoolLabels ask for them.",
            )
            .expect("the metric's name is valid"),
            plugin_ready: gauge(
                "navigator_coordinator_plugin_ready",
                "1 where the version of a Plugin stands that is asked for, else 0.",
                "plugin",
            ),
            registry_secrets: IntGauge::new(
                "navigator_coordinator_registry_secrets",
                "Secrets by which namespaces pull images, as Registries ask for them.",
            )
            .expect("the metric's name is valid"),
            hub_last_success: IntGaugeVec::new(
                Opts::new(
                    "navigator_coordinator_hub_last_success_timestamp_seconds",
                    "When the hub was last asked and followed without any failure; 0 before that, absent without a hub.",
                ),
                &[],
            )
            .expect("the metric's name is valid"),
            hub_requests: counter(
                "navigator_coordinator_hub_requests_total",
                "Requests to the hub, by the code of the answer, or `error`.",
                "code",
            ),
            hub_objects: gauge(
                "navigator_coordinator_hub_objects",
                "Objects that the hub wants, by kind.",
                "kind",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_machine_is_counted_once_when_it_is_done() {
        let status = |phase: &str| -> ClusterUpgradeStatus {
            serde_json::from_value(json!({"nodes": [
                {
                    "name": "m-1", "phase": phase,
                    "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:10:00Z",
                },
                {"name": "m-2", "phase": "Done"},
            ]}))
            .unwrap()
        };
        let metrics = Metrics::new();
        metrics.count_done(&status("Settle"), &status("Settle"));
        metrics.count_done(&status("Settle"), &status("Done"));
        metrics.count_done(&status("Done"), &status("Done"));
        let seen = &metrics.machine_seconds;
        assert_eq!(seen.get_sample_count(), 1);
        assert_eq!(seen.get_sample_sum().to_string(), "600");
    }
}
