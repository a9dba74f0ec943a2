//! The agent's own metrics.

use prometheus::{IntCounter, IntGauge, Registry, core::Collector};

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// `navigator_agent_keys_written_total`: writes of the key file.
    pub(crate) written: IntCounter,
    /// `navigator_agent_keys_drift_total`: writes of it that undid a change of another program.
    pub(crate) drift: IntCounter,
    /// `navigator_agent_keys_standing`: 1 while the key file is as the Users want it.
    pub(crate) stands: IntGauge,
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
        let Self { written, drift, stands } = self;
        vec![Box::new(written.clone()), Box::new(drift.clone()), Box::new(stands.clone())]
    }

    pub(super) fn new() -> Self {
        let counter = |name, help| IntCounter::new(name, help).expect("the metric's name is valid");
        Self {
            written: counter("navigator_agent_keys_written_total", "Writes of the key file."),
            drift: counter(
                "navigator_agent_keys_drift_total",
                "Writes of the key file that undid what somebody else did to it.",
            ),
            stands: IntGauge::new(
                "navigator_agent_keys_standing",
                "1 while the key file is as the Users want it.",
            )
            .expect("the metric's name is valid"),
        }
    }
}
