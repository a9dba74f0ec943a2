//! The coordinator's own metrics.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry, core::Collector};

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// `navigator_coordinator_leader`: 1 while this process leads.
    pub(crate) leader: IntGauge,
    /// `navigator_coordinator_looks_total{outcome}`: looks at upgrades.
    pub(crate) looks: IntCounterVec,
    /// `navigator_coordinator_evictions_total{result}`: evictions that were asked for.
    pub(crate) evictions: IntCounterVec,
    /// `navigator_coordinator_label_patches_total`: Nodes whose labels were changed.
    pub(crate) label_patches: IntCounter,
    /// `navigator_coordinator_registry_secrets`: Secrets that Registries had made, and that stand.
    pub(crate) registry_secrets: IntGauge,
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
        let Self { leader, looks, evictions, label_patches, registry_secrets } = self;
        vec![
            Box::new(leader.clone()),
            Box::new(looks.clone()),
            Box::new(evictions.clone()),
            Box::new(label_patches.clone()),
            Box::new(registry_secrets.clone()),
        ]
    }

    pub(super) fn new() -> Self {
        let counter = |name: &str, help: &str, label| {
            IntCounterVec::new(Opts::new(name, help), &[label])
                .expect("the metric's name and labels are valid")
        };
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
            label_patches: IntCounter::new(
                "navigator_coordinator_label_patches_total",
                "Changes of labels of nodes, as ClusterLabels and NodePoolLabels ask for them.",
            )
            .expect("the metric's name is valid"),
            registry_secrets: IntGauge::new(
                "navigator_coordinator_registry_secrets",
                "Secrets by which namespaces pull images, as Registries ask for them.",
            )
            .expect("the metric's name is valid"),
        }
    }
}
