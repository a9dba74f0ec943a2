//! The controller's own metrics.

use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, core::Collector,
};

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// `navigator_controller_reconcile_seconds{kind,outcome}`: duration of reconciles.
    pub(crate) reconcile_seconds: HistogramVec,
    /// `navigator_controller_steps_total{kind,operation}`: steps carried out.
    pub(crate) steps: IntCounterVec,
    /// `navigator_controller_leader`: 1 while this process leads.
    pub(crate) leader: IntGauge,
    /// `navigator_controller_leader_transitions`: changes of leader before this process took the
    /// lease.
    pub(crate) transitions: IntGauge,
    /// `navigator_controller_queue_depth`: clusters that are due and wait for a worker.
    pub(crate) queue_depth: IntGauge,
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
        let Self { reconcile_seconds, steps, leader, transitions, queue_depth } = self;
        vec![
            Box::new(reconcile_seconds.clone()),
            Box::new(steps.clone()),
            Box::new(leader.clone()),
            Box::new(transitions.clone()),
            Box::new(queue_depth.clone()),
        ]
    }

    pub(super) fn new() -> Self {
        Self {
            reconcile_seconds: HistogramVec::new(
                HistogramOpts::new(
                    "navigator_controller_reconcile_seconds",
                    "Time that one look at a cluster took.",
                ),
                &["kind", "outcome"],
            )
            .expect("the metric's name and labels are valid"),
            steps: IntCounterVec::new(
                Opts::new("navigator_controller_steps_total", "Steps carried out."),
                &["kind", "operation"],
            )
            .expect("the metric's name and labels are valid"),
            leader: IntGauge::new("navigator_controller_leader", "1 while this process leads.")
                .expect("the metric's name is valid"),
            transitions: IntGauge::new(
                "navigator_controller_leader_transitions",
                "Times that the lead had changed hands when this process took it; 0 while it does \
                 not lead.",
            )
            .expect("the metric's name is valid"),
            queue_depth: IntGauge::new(
                "navigator_controller_queue_depth",
                "Clusters that are due for a look.",
            )
            .expect("the metric's name is valid"),
        }
    }
}
